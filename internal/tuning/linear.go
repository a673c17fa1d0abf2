package tuning

// Linear holds the numbers of the linear layers of package projection. Kernels are named as their
// shaders are; docs/design/linear.md has the measurements.
type Linear struct {
	// SmallFill times Device.PerUnit small workgroups fill a compute unit: tiles of up to
	// LinearTiles.SmallTokens tokens, and those of proj_linear_tokens8to16.
	SmallFill int
	Ahead     int // chunks of K that are loaded at a time: more hide loads and make longer code

	Tokens1to8   LinearTokens1to8
	Tokens8to16  LinearTokens8to16
	Tokens8to32  LinearTokens8to32
	Tokens32to64 LinearTokens32to64
	Base         LinearBase
	Tiles        LinearTiles
	Parts        LinearParts

	// NormSubgroup is the least size of subgroups inside which the norms, the insertion and the
	// inverse RoPE pass numbers on: with 32, the invocations of a head, no number goes through
	// shared memory. Norm and insertion of 4096 tokens gain 5 %. Fewer leave an invocation more
	// registers where a subgroup has a fixed number.
	NormSubgroup int

	// ChainPolls is after how many looks in vain a workgroup of a chain gives up, see
	// vk.ErrStarved; it may take twice as many. Fewer end a wait that cannot succeed before a
	// watchdog does, after 2 s; more are safe on slower devices. No GPU looks at memory that
	// another workgroup writes in less than 100 ns, and the first layer takes it 10 ms at most.
	ChainPolls int
}

// LinearTokens1to8 is for proj_linear_tokens1to8. Its work grows with the tokens, so it loses to
// every other kernel from some number of tokens on.
type LinearTokens1to8 struct {
	// Pass is the most tokens of a workgroup: more share what is read and take more registers, and
	// twice as many leave an invocation half the rows. A layer takes as many tokens, or two passes
	// where its tiles of matrices are too few to fill the device. An FP8 weight takes 3.5
	// instructions to decode and one a token; memory leaves time for 10.
	Pass int
	// MostBeside8to32 is the most tokens beside proj_linear_tokens8to32, which takes as long for
	// one token as for eight: longer than this kernel for one and two tokens, less for four.
	MostBeside8to32 int
	// BaseRows is the fewest rows of layers that take one pass without matrices. Smaller layers,
	// for which the next kernel needs a second launch, and layers with a norm take two of twice as
	// many tokens.
	BaseRows int

	// AlikeRows is the fewest rows of layers that are divided by K alone. Such layers share one
	// kernel, whose code is then in a cache for the next one: 2 % of a step.
	AlikeRows int
	// SmallRows is the most rows of bf16 layers divided so for more than one token.
	SmallRows int
	// Threads is the number of invocations that a division should have for each workgroup that
	// fills the device: more hide loads, fewer read x less often.
	Threads int
	// Rows are the rows of an invocation, which halve what is read of x per weight. Small layers,
	// and layers without enough of these invocations, have half as many.
	Rows int
}

// LinearTokens8to16 is for proj_linear_tokens8to16, which serves devices without matrices, and
// activations that only kernels without matrices take.
type LinearTokens8to16 struct {
	Most, MostSmall int // tokens, of layers of LinearTokens1to8.BaseRows rows or more and of others
	MostPass        int // tokens of a workgroup; longer passes are longer kernels
	Rows            int // rows of an invocation
}

// LinearTokens8to32 is for proj_linear_tokens8to32. It reads x again for every 16 or 32 rows.
type LinearTokens8to32 struct {
	Most      int // tokens up to which it beats every kernel for more, unless it mostly reads x
	LeastPass int // fewest tokens of a workgroup; most are the columns of two products
	// Reads is the most bytes of x that all its workgroups together may read for more tokens than
	// that, half of it where several passes read weights of two bytes. The second-level cache
	// brings 80 MiB in 15 us, and proj_linear_tokens32to64 would need a second launch for so few
	// rows.
	Reads int

	LeastParts int // subgroups of a workgroup, among which K is divided; LinearParts.Most at most
	// Busy is the number of subgroups worth having for each workgroup that fills the device; each
	// waits for 2 or 4 KiB. BusyMany is for more than LeastPass tokens and rows that fill the
	// device.
	Busy, BusyMany int
	// AlikeParts are the subgroups for up to LeastPass tokens of formats that share kernels between
	// layers (see AlikeRows): 1.5 % of a step. For more tokens they are LinearParts.Most, unless
	// the last workgroups leave more than half of the device idle: 1 %.
	AlikeParts int
	LeastFill  int // larger workgroups are taken while they are at least 1/LeastFill of those that fill the device

	// MostStepMany is the most numbers of K of a step of more than LeastPass tokens: where steps
	// are longer there is no kernel. It bounds what a slow compiler has to compile.
	MostStepMany int
}

// LinearTokens32to64 is for proj_linear_tokens32to64, whose 128 rows share x.
type LinearTokens32to64 struct {
	// Passes are the tokens of a workgroup, fewest first; each is a kernel.
	Passes []int
	// MostFull is the most tokens where its workgroups fill the device, elsewhere two of the
	// longest passes; whole tiles are faster from there on.
	MostFull int
}

// Most returns the tokens that two of the longest passes take; also those of
// proj_linear_tokens8to32.
func (p *LinearTokens32to64) Most() int { return 2 * p.Passes[len(p.Passes)-1] }

// LinearBase is for proj_linear, the tiles of devices without matrices. A cost is in multiply-adds
// that a compute unit makes meanwhile, 155000 in a microsecond.
type LinearBase struct {
	Tiles  []BaseTile // largest first; the last ones fit every device
	Unroll int        // numbers of a step that are multiplied without a loop

	Threads int // invocations with which a compute unit waits little
}

// BaseTile is a tile of proj_linear.
type BaseTile struct {
	Tokens, Rows, Quads int     // BM, BN, QUADS
	Rate                float64 // at which it multiplies on a full device, relative to the first
}

// LinearTiles is for proj_linear_cm and proj_linear_whole.
type LinearTiles struct {
	// Shapes are for products of 16 numbers, most tokens first. Small tiles are bound by reading
	// weights: long steps read 64 bytes of a row at a time, and little shared memory lets four
	// workgroups share a multiprocessor. The largest is bound by what brings operands: two
	// workgroups take turns, and a subgroup has as many sums as registers hold.
	Shapes      []LinearTile
	SmallTokens int  // most tokens of small tiles
	Pairs       bool // build proj_linear_whole, which takes numbers for two steps at a time: whole lines of memory
	// Codes are tiles for E4M3 activations and FP8 weights as they are stored, in the place of
	// those of Shapes for as many tokens, where the device has such matrices.
	Codes []LinearTile
}

// LinearTile is a shape of tiles with matrices.
type LinearTile struct {
	Tokens, Rows, Step           int // BM, BN, BK
	SubgroupTokens, SubgroupRows int // WM, WN
}

// LinearParts is about cutting K into parts, whose sums a second launch adds up, or the subgroups
// of a workgroup of proj_linear_tokens8to32.
type LinearParts struct {
	Most       int // parts, which one invocation adds up
	LeastSteps int // steps of a part: fewer do not hide their loads
}

// Numbers that no profile has other ones of.
const (
	// Of proj_linear: the rate with few invocations, of 1, and what LinearBase.Threads of them add;
	// costs of a second launch, and of each number of a part of K that is written and read.
	BaseIdleRate    = 0.26
	BaseThreadsRate = 1.28
	BaseLaunchCost  = 470000.0
	BaseMoveCost    = 65.0

	// BesideIdle: K is not cut where tiles of layers beside each other leave at most 1/BesideIdle
	// of their time idle. Parts have to be added up.
	BesideIdle = 8

	// Costs in numbers of K that a tile is multiplied by meanwhile, at 300 TFLOP/s and 2.5 TB/s: of
	// a part of a tile, and of the second launch, 3 us, for each tile there is room for.
	PartCost   = 480
	LaunchCost = 110

	// Of proj_linear_tokens32to64.

	Teams = 8 // subgroups of a workgroup, each with a product's rows: more read x less often

	Stage = 8 << 10 // bytes of shared memory for a round of x; less leaves room for more workgroups

	// Of tiles.

	// EnoughFill: workgroups or invocations are enough where they make 1/EnoughFill of those that
	// fill the device.
	EnoughFill = 2

	// PartsGain: tiles of proj_linear, and the last ones with matrices, are cut into parts of K
	// where that gains more than 1/PartsGain.
	PartsGain = 16

	// Of proj_linear_tokens8to32.

	MostUnrolled = 256 // numbers of K that compilers unroll willingly

	CacheRate = 2 // how many times the bytes of the weights a cache brings of x meanwhile
)
