package tuning

// cpu keeps kernels short, because a processor takes long to compile them, and workgroups few.
var cpu = Profile{
	Name: "cpu",

	Device: Device{
		DiscreteUnits:   8,
		OtherUnits:      8,
		OneEach:         true,
		UnitRegisters:   65536,
		MaxRegisters:    255,
		OnceSubgroup:    32,
		NarrowRegisters: 128,
	},

	Attention: Attention{
		MaxHeads:          64,
		LaneHeads:         32,
		LanesAnyRegisters: true,
		LanesAnyHeads:     true,
		Subgroups:         []int{8, 16, 32},
		DecodeSubgroups:   []int{16, 8, 32},
		LaneSplit:         4,
		OtherRegisters:    44,
		Plain:             []PlainForm{{16, 16, 1, 3.8}, {8, 8, 2, 2.6}, {4, 8, 3, 2.9}},
		MinPartRows:       32,
		Waves:             4,
		StartTime:         3,
		HeadsTime:         4,
		TrafficTime:       5,
		JoinTime:          3,
		SpillTime:         12,
		RowShare:          0.5,
		DecodeTile:        1.5,
		LanesCode:         3,
		DecodeCode:        4,
	},

	Compress: Compress{
		LongInvocations: 512, ChunkInvocations: 512, SaveSingle: true,
		ShortGroups: 1024, LongGroups: 256, TouchBytes: 2 << 20,
	},

	Linear: cpuLinear(),

	Logits: Logits{
		PerUnit: 2, BaseUnroll: 4,
		MatrixHeads: 64, MatrixSubgroups: 4, MatrixTokens: 4, MatrixChunk: 64, MatrixSpread: 16, OtherRegisters: 32,
		LaneSubgroups: 8, RawSubgroups: 16, LaneTiles: 2, LaneKeys: 4096, LaneBegin: 256, LaneSlack: 16,
	},

	TopK: TopK{
		PerUnit:     1,
		Short:       []TopKShape{{128, 4, 0, 8}, {128, 16, 0, 8}},
		Few:         []TopKShape{{1024, 4, 3072, 8}, {128, 4, 512, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8}},
		Many:        []TopKShape{{1024, 4, 3072, 8}, {128, 4, 512, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8}},
		SoloColumns: 16384, SliceColumns: 4096, MaxSlices: 16,
		LaneThreads: 128, LaneBits: 11, LaneEntries: []int{4096, 9216}, LaneSlice: 5120, LaneLists: 4096,
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

// cpuLinear leaves out what takes long to compile: large tiles and passes, and unrolled loops.
func cpuLinear() Linear {
	l := hopper.Linear
	l.Tokens1to8.BaseRows = 0
	l.Tokens8to16.MostPass = 8
	l.Tokens8to32.MostStepMany, l.Tokens8to32.MostAheadMany, l.Tokens8to32.MostPartsMany = 128, 1, 4
	l.Tokens32to64.Passes = []int{32, 48}
	l.Base.Tiles, l.Base.Unroll = []BaseTile{{64, 64, 1, 0.8}}, 1
	l.Tiles.Pairs = false
	l.ChainApart = true
	return l
}
