package tuning

// TopK holds the numbers of the selection of package indexer.
type TopK struct {
	// Of idx_topk, which takes rows of any length on any device.

	// Short are the shapes for rows that fit registers, ascending; the first that a row fits takes
	// it. Few and Many are the shapes for longer rows, best first, for few rows and for more than
	// fill the device. The first that the device can run and that has room for K is taken.
	Short, Few, Many []TopKShape
	// SoloColumns is the longest row that is not cut, in columns; SliceColumns the shortest slice.
	SoloColumns, SliceColumns int
	// MaxSlices is the most slices of a row, a power of two; also for idx_topk_lanes. Each takes a
	// list of K candidates in scratch.
	MaxSlices int

	// Of idx_topk_lanes, which selects in one launch with subgroup operations.

	// LaneThreads is the invocations of a workgroup; also of idx_topk_tiles.
	LaneThreads int
	// LaneSubgroup is the size of its subgroups where the device has it. Wide ones need fewer
	// steps; they leave an invocation fewer registers where a subgroup has a fixed number.
	LaneSubgroup int
	// LaneBits is the most bits of a digit of the radix selection: fewer passes for more bins. Also
	// of idx_topk_tiles.
	LaneBits int
	// LaneEntries are the builds, ascending, by the entries that a workgroup holds in shared
	// memory: small ones share a compute unit, the largest sets which rows need no slices. H100:
	// one row of 8192 entries takes 8.5 us whole, 10.4 in 4 slices; 9216 fill 48 KiB.
	LaneEntries []int
	// LaneSlice is the length that slices are cut to where rows are few, in entries, and how many
	// candidates the lists of a row's slices may have for that: the last slice reads all of them.
	// H100, K 512, one row: of 16384 entries 10.8 us in 4 slices, 13.2 in 2; of 65536 14.3 in 8,
	// 14.9 in 16.
	LaneSlice int

	// Of idx_topk_tiles, which selects by the largest score of each tile.

	// TileRows is from how many times K entries a row is selected from by tiles where
	// idx_topk_lanes could take it, too: in a step the kernel's code has to be fetched. H100, K
	// 512, one row: of 65536 entries 11.7 us against 13.1; of 32768 11.0 against 11.2, and 3 more
	// in a step.
	TileRows int
}

// TopKShape is a build of idx_topk.
type TopKShape struct {
	Threads int // invocations of a workgroup
	Items   int // entries that an invocation loads at a time
	Held    int // entries in shared memory; 0: rows have no more than Threads*Items
	Bits    int // of a digit of the radix selection
}

// Numbers that no profile has other ones of.
const (
	// SpareShare keeps 1/SpareShare of Held free when a shape is chosen by K: candidates beyond K
	// gather there, and a selection is due when it is full.
	SpareShare = 3

	// TileQuads is the least number of fours of numbers that an invocation has room for. With 4 and
	// 1024 invocations, rows of 262144 entries in tiles of 16 fit.
	TileQuads = 4

	// MaxQuads is the number of them that an invocation has registers for.
	MaxQuads = 8
)
