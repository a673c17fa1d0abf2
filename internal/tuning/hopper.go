package tuning

import "github.com/vkmla/vkmla/vk"

// hopper holds the numbers measured on an H100 80GB HBM3, driver 580.159; docs/design has the
// measurements.
var hopper = Profile{
	Name:     "hopper",
	Measured: true,

	Device: Device{
		DiscreteUnits:   32,
		OtherUnits:      16,
		UnitRegisters:   65536,
		MaxRegisters:    255,
		OnceSubgroup:    32,
		NarrowRegisters: 128,
		OtherRegisters:  32,
		PerUnit:         2,
	},

	Attention: Attention{
		LaneHeads:       64,
		Subgroups:       []int{8, 16, 32},
		DecodeSubgroups: []int{16, 8, 32},
		DecodeTiles:     []int{2},
		LaneSplit:       4,
		OtherNarrow:     32,
		Plain:           []PlainForm{{16, 16, 1, 3.8}, {8, 8, 2, 2.6}, {4, 8, 3, 2.9}},
		GatherTokens:    512,
		GatherShare:     128,
		MinPartRows:     32,
		Waves:           4,
		InvariantTokens: 32,
		TrafficTime:     5,
		DecodeTile:      1.5,
		DecodeShare:     1,
	},

	Compress: Compress{
		ChunkInvocations: 512,
	},

	Linear: Linear{
		SmallFill: 2, Ahead: 2,
		Tokens1to8: LinearTokens1to8{
			Pass: 4, MostBeside8to32: 2, BaseRows: 4096, AlikeRows: 1024, SmallRows: 2048, Threads: 384, Rows: 4,
		},
		Tokens8to16: LinearTokens8to16{Most: 48, MostSmall: 64, MostPass: 16, Rows: 4},
		Tokens8to32: LinearTokens8to32{
			Most: 16, LeastPass: 8, Reads: 80 << 20,
			LeastParts: 4, Busy: 8, BusyMany: 6, AlikeParts: 8, LeastFill: 4,
			MostStepMany: 1 << 30,
		},
		Tokens32to64: LinearTokens32to64{Passes: []int{16, 32, 48, 64}, MostFull: 96},
		Base: LinearBase{
			Tiles:  []BaseTile{{128, 128, 2, 1}, {64, 128, 2, 0.92}, {64, 64, 1, 0.8}},
			Unroll: 8, Threads: 512,
		},
		Tiles: LinearTiles{
			Shapes:      []LinearTile{{128, 128, 32, 64, 64}, {64, 64, 64, 64, 16}, {32, 64, 64, 32, 16}, {16, 64, 64, 16, 16}},
			SmallTokens: 64, Pairs: true,
		},
		NormSubgroup: 32, ChainPolls: 1 << 20,
		Parts: LinearParts{Most: 16, LeastSteps: 4},
	},

	Logits: Logits{
		BaseUnroll:  16,
		MatrixHeads: 64, MatrixSubgroups: 4, MatrixTokens: 4, MatrixChunk: 64, MatrixSpread: 16, OtherRegisters: 32,
		LaneSubgroups: 8, KeptSubgroups: 12, LaneKeys: 4096, LaneSlack: 16, LaneSlackMany: 64,
		PromptTokens: 8, PromptTiles: 4,
	},

	TopK: TopK{
		Short: []TopKShape{{1024, 4, 0, 11}, {1024, 8, 0, 11}, {1024, 16, 0, 11}, {1024, 20, 0, 11}, {1024, 32, 0, 11}},
		Few: []TopKShape{
			{1024, 8, 4096, 10}, {512, 8, 4096, 10}, {256, 16, 3072, 9}, {128, 24, 3072, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8},
		},
		Many: []TopKShape{
			{512, 8, 2048, 10}, {512, 8, 4096, 10}, {256, 16, 3072, 9}, {128, 24, 3072, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8},
		},
		SoloColumns: 16384, SliceColumns: 4096, MaxSlices: 16,
		LaneThreads: 1024, LaneSubgroup: 32, LaneBits: 11, LaneEntries: []int{4096, 9216}, LaneSlice: 5120,
		TileRows: 128,
	},

	Layer: Layer{
		NormTokens:   32,
		BesideTokens: 16,
		ChainTokens:  1,
		JoinTokens:   2,
		TouchLeast:   256 << 20,
		TouchMost:    2 << 30,
	},

	Step: Step{UnitRate: 155000, Bandwidth: 2.5e6}, // of kernels without matrices; of copies
}

// isHopper tells an H100, an H200 and their like. Nothing that Vulkan says tells them from GeForce
// cards of as many compute units, which were never measured: those get generic's profile, with the
// same numbers, and may have builds timed. NVIDIA's open kernel modules list GPUs by their ids
// (g_nv_name_released.h); those of Hopper begin with 0x23.
func isHopper(a *vk.Adapter) bool {
	c := &a.Caps
	return c.VendorID == vendorNVIDIA && c.DeviceID>>8 == 0x23 && c.Features["coopmat.bf16.f32"]
}
