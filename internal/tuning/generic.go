package tuning

// generic serves GPUs that nobody has measured: the numbers of hopper where they follow from counts, cautious ones
// where they follow from a cache or a clock.
var generic = Profile{
	Name: "generic",

	Device: Device{
		DiscreteUnits:   32,
		OtherUnits:      16,
		UnitRegisters:   65536,
		MaxRegisters:    255,
		NarrowRegisters: 128,
	},

	Attention: Attention{
		MaxHeads:        64,
		LaneHeads:       64,
		Subgroups:       []int{8, 16, 32},
		DecodeSubgroups: []int{16, 8, 32},
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

	Compress: Compress{},

	Linear: Linear{},

	Logits: Logits{},

	TopK: TopK{},

	Layer: Layer{},
}
