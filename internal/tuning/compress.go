package tuning

// Compress holds the numbers of package cache.
type Compress struct {
	// ChunkInvocations is the largest workgroup whose invocations load 8 rows together instead of
	// 4: eight take about 100 registers each.
	ChunkInvocations int
}

// Numbers that no profile has other ones of.
const (
	// LongInvocations is the largest workgroup that is chosen for an entry of a long window (more
	// rows than an invocation loads together). More of them stream the window's rows faster; too
	// many leave each too few registers. It fixes the order of additions, and so the last bits.
	LongInvocations = 512

	// CompressGroups is the most workgroups of a launch that does not save, where they have an
	// invocation for four channels; of larger ones as many fewer. A workgroup costs a turn on a
	// compute unit even if its tokens complete no entry.
	CompressGroups = 1024
)
