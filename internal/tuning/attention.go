package tuning

// Attention holds the numbers of package attention.
//
// The plan divides a launch into workgroups: of how many heads each, and of how many parts of
// each row. It weighs estimates in one unit, the time of a tile of the workgroup with the most
// heads: 16 rows of 64 heads on the device that they were measured on (docs/design/decode.md).
type Attention struct {
	// LaneHeads are the most heads of a workgroup of the kernels whose lanes hold known
	// components, attn_decode_lanes and attn_prefill_lanes. Fewer make shorter code.
	LaneHeads int

	// LanesAlways takes these kernels wherever matrices lie so, for devices that tests execute them
	// on: with more registers than the device is thought to have, and to decode any number of
	// heads, however much of a workgroup is padding.
	LanesAlways bool

	// Subgroups lists the numbers of subgroups of a workgroup to try, best first. More subgroups
	// hold fewer registers each, but read more shared memory for each product.
	Subgroups []int

	// DecodeSubgroups are the same for attn_decode_cm. Its code is half as long with 16 as with
	// 8, which counts where instructions come from memory, as they do in a step.
	DecodeSubgroups []int

	// DecodeTiles are the tiles of attn_decode_cm to try for a number of heads, best first, in
	// tiles of 16 rows. A workgroup without room beside a large one may have more heads beside a
	// small one, which share what a row costs.
	DecodeTiles []int

	// Float8 has the device convert E4M3 codes in attn_decode_cm, where it does so exactly: up to a
	// sixth fewer clocks on RDNA4 by the compiler.
	Float8 bool

	// LaneSplit is the number of parts of a row that different subgroups score, in the kernels
	// whose lanes hold known components. More parts read each row less often; their partial scores
	// need shared memory.
	LaneSplit int

	// OtherNarrow is Device.OtherRegisters in subgroups of fewer than 32 invocations.
	OtherNarrow int

	// Plain are the forms of the kernels without matrices, the one with the most heads first.
	// The first that fits a device is taken; the last has to fit Vulkan's guaranteed limits.
	Plain []PlainForm

	// GatherTokens is the fewest tokens of a step, padding included, whose rows are gathered to
	// bf16 before they are attended; 0: never. Below, rows are read in their pages: a decode step
	// attends each row about once.
	GatherTokens int

	// GatherShare is the fewest tokens of such a step for each session that there may be. Gathering
	// a session's entries, one for 4 positions, costs an H100 0.66 ns each (43 us for 65536). It
	// makes attention cheaper by 65 ns a token (1597 and 1333 us for 4096 of 64 heads and 640
	// rows): 128 tokens pay for 50,000 positions.
	GatherShare int

	// MinPartRows are the fewest rows that are worth a part of their own. Below it the fixed
	// cost of a part (loading q, storing and joining 2 KiB a head) exceeds its work.
	MinPartRows int

	// Waves is the number of times that parts may fill the device. A third more workgroups than
	// find room take twice as long as one wave; cut in three they take four thirds. More waves gain
	// less than the work of a workgroup besides its tiles costs, and take more scratch memory.
	Waves int

	// InvariantTokens is the number of tokens whose plan all steps take where a token's bits are
	// not to depend on their number. Steps of fewer leave compute units idle, steps of many write
	// and join parts for nothing.
	InvariantTokens int

	// TrafficTime is that of moving the queries and output of as many heads as fill the device.
	TrafficTime float64

	// DecodeTile is the time of a tile of attn_decode_cm with the most heads, which has twice as
	// many rows; one of half of them has half of it.
	DecodeTile float64

	// DecodeShare is the share of that time that is spent on bringing rows in and waiting for
	// others, whatever the number of heads.
	DecodeShare float64
}

// PlainForm is one way to divide the work of a kernel without matrices.
type PlainForm struct {
	Heads   int     // of a workgroup
	Tile    int     // rows of cache at a time
	PerUnit int     // workgroups that share a compute unit
	Time    float64 // of a tile where that many do, in microseconds: about the unit of the plan
}

// Numbers that no profile has other ones of.
const (
	// StartTime is that of starting a workgroup, finding its rows, and ending it.
	StartTime = 3.0

	// HeadsTime is that of loading the queries and storing the output of a workgroup with the
	// most heads.
	HeadsTime = 4.0

	// JoinTime is that of the launch that joins parts.
	JoinTime = 3.0

	// SpillTime is that of partial rows of as many heads as fill the device. It counts only
	// beyond the first device-full of them: these miss the cache when they are joined.
	SpillTime = 12.0

	// RowShare is the share of a tile's time that is spent on its rows, whatever the number of
	// heads, in kernels with matrices. The rest falls with the number of heads.
	RowShare = 0.5

	// LanesCode is the time in which the code of attn_decode_lanes comes from memory, beyond
	// that of attn_decode_cm with 16 invocations a row, which is short.
	LanesCode = 3.0

	// DecodeCode is the same for attn_decode_cm with fewer invocations a row.
	DecodeCode = 4.0
)
