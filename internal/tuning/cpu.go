package tuning

// cpu keeps kernels short, because a processor takes long to compile them, and workgroups few.
var cpu = Profile{
	Name: "cpu",

	Device: Device{
		DiscreteUnits:   32,
		OtherUnits:      16,
		Workgroups:      8,
		UnitRegisters:   65536,
		MaxRegisters:    255,
		NarrowRegisters: 128,
	},

	Attention: Attention{
		MaxHeads:          64,
		LaneHeads:         32,
		LanesAnyRegisters: true,
		LanesAnyHeads:     true,
		Subgroups:         []int{8, 16, 32},
		DecodeSubgroups:   []int{16, 8, 32},
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

	Compress: Compress{},

	Linear: Linear{},

	Logits: Logits{},

	TopK: TopK{},

	Layer: Layer{},
}
