package cache

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// References of parts of operations.
var (
	GatherRunsRef = gatherRunsRef
	HalvesRef     = halvesRef
)

// SlotOffset is the byte of a pool at which a slot begins.
func (l StateLayout) SlotOffset(slot int64) int64 { return l.slotOffset(slot) }
