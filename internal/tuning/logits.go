package tuning

// Logits holds the numbers of the scores of package indexer.
type Logits struct {
	// BaseUnroll is the number of numbers of a step of idx_logits that are multiplied without a
	// loop, a power of two up to 16. More run faster and take longer to compile.
	BaseUnroll int

	// Of idx_logits_cm, where matrices go through shared memory.

	// MatrixHeads is the most heads that a subgroup holds, of codes twice as many. A key's
	// fragments are loaded once for all of them; each takes registers. idx_logits_lanes takes as
	// many heads at most, and its code is long in proportion: a processor takes most of a minute to
	// compile 8 matrices of them.
	MatrixHeads int
	// MatrixSubgroups is the fewest subgroups of a workgroup. Fewer let two workgroups share a
	// compute unit, so that one loads its queries while the other works; on an H100 4 do.
	MatrixSubgroups int
	// MatrixTokens is the most tokens of a workgroup, which share the decoded keys. Decoding is a
	// fourth of the instructions for one token, so more of them gain little.
	MatrixTokens int
	// MatrixChunk is the number of tiles of keys that a workgroup takes where there are more than
	// fill the device: many hide its start, few even out unequal lengths.
	MatrixChunk int
	// MatrixSpread is the fewest tiles of a workgroup where one workgroup for each token fills the
	// device; with fewer tokens it shrinks in proportion.
	MatrixSpread int

	// MatrixCodes multiplies codes of E4M3 as they are stored, where the device has such matrices.
	// Their products take half the time of f16's on RDNA4, and nothing is decoded.
	MatrixCodes bool

	// OtherRegisters are an invocation's registers besides its matrices and rows: Device's where
	// no compiler says otherwise.
	OtherRegisters int

	// Of idx_logits_lanes, where matrices stay in registers.

	// LaneSubgroups is the number of subgroups that share a token's queries in shared memory. With
	// about 120 registers an invocation, two workgroups of 8 share a compute unit of an H100. One
	// that quantises the queries of few tokens first has twice as many.
	LaneSubgroups int
	// KeptSubgroups is the same for FP8 keys and MatrixHeads heads, where each subgroup keeps the
	// queries of one matrix in registers: a workgroup of 12 fills a compute unit of an H200.
	KeptSubgroups int
	// LaneKeys is the number of entries that a workgroup scores where there are more than fill the
	// device, for workgroups of 8 subgroups: many hide its start, few even out unequal lengths.
	LaneKeys int
	// LaneSlack allows more and shorter shares of a row that take up to 1/LaneSlack longer by the
	// estimate, which assumes that all rows are equally long. LaneSlackMany is the same for rows
	// that fill the device with a workgroup each, as a prompt's do: there queries are loaded for
	// each share, and 512 x 8192 in two took 2.4 % longer on an H100.
	LaneSlack, LaneSlackMany int

	// Of idx_logits_prompt, where the tokens of a workgroup share decoded keys.

	// PromptTokens is the number of tokens of a workgroup, each in a subgroup that holds its
	// queries: as many as a compute unit has registers for. PromptTiles is the number of tiles of
	// keys that they decode between two barriers.
	PromptTokens, PromptTiles int
}

// Numbers that no profile has other ones of.
const (
	// LaneBegin is the time that a workgroup takes to begin, in entries that it could score
	// meanwhile.
	LaneBegin = 256

	// PromptGroup is the fewest tokens in a row of a request, on average, for which it is taken: a
	// workgroup whose tokens have several requests takes the keys of one after the other.
	PromptGroup = 128
)
