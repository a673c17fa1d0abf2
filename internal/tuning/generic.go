package tuning

// generic serves GPUs that nobody has measured: the numbers of hopper where they follow from
// counts, cautious ones where they follow from a cache or a clock.
var generic = Profile{
	Name: "generic",

	Device: Device{
		DiscreteUnits:   32,
		OtherUnits:      16,
		UnitRegisters:   65536,
		MaxRegisters:    255,
		OnceSubgroup:    32,
		NarrowRegisters: 128,
	},

	Attention: Attention{
		MaxHeads:        64,
		LaneHeads:       64,
		Subgroups:       []int{8, 16, 32},
		DecodeSubgroups: []int{16, 8, 32},
		LaneSplit:       4,
		OtherRegisters:  44,
		Plain:           []PlainForm{{16, 16, 1, 3.8}, {8, 8, 2, 2.6}, {4, 8, 3, 2.9}},
		MinPartRows:     32,
		Waves:           4,
		StartTime:       3,
		HeadsTime:       4,
		TrafficTime:     5,
		JoinTime:        3,
		SpillTime:       12,
		RowShare:        0.5,
		DecodeTile:      1.5,
		LanesCode:       3,
		DecodeCode:      4,
	},

	Compress: Compress{
		LongInvocations: 512, ChunkInvocations: 512, SaveSingle: true,
		ShortGroups: 1024, LongGroups: 256, TouchBytes: 2 << 20,
	},

	Linear: hopper.Linear,

	Logits: Logits{
		PerUnit: 2, BaseUnroll: 16,
		MatrixHeads: 64, MatrixSubgroups: 4, MatrixTokens: 4, MatrixChunk: 64, MatrixSpread: 16, OtherRegisters: 32,
		LaneSubgroups: 8, RawSubgroups: 16, LaneTiles: 8, LaneKeys: 4096, LaneBegin: 256, LaneSlack: 16,
	},

	TopK: TopK{
		PerUnit: 1,
		Short:   []TopKShape{{1024, 4, 0, 11}, {1024, 8, 0, 11}, {1024, 16, 0, 11}, {1024, 20, 0, 11}, {1024, 32, 0, 11}},
		Few: []TopKShape{
			{1024, 8, 4096, 10}, {512, 8, 4096, 10}, {256, 16, 3072, 9}, {128, 24, 3072, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8},
		},
		Many: []TopKShape{
			{512, 8, 2048, 10}, {512, 8, 4096, 10}, {256, 16, 3072, 9}, {128, 24, 3072, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8},
		},
		SoloColumns: 16384, SliceColumns: 4096, MaxSlices: 16,
		LaneThreads: 1024, LaneBits: 11, LaneEntries: []int{4096, 9216}, LaneSlice: 5120, LaneLists: 4096,
		TileQuads: 4, MaxQuads: 8, TileRows: 128, SpareShare: 3,
	},

	Layer: Layer{
		NormTokens:   32,
		RawTokens:    32,
		BesideTokens: 16,
		ChainTokens:  1,
		JoinTokens:   2,
		TouchLeast:   256 << 20,
		TouchMost:    2 << 30,
	},

	Step: Step{FirstWorkgroups: 512},
}
