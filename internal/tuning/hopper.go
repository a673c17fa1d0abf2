package tuning

import "github.com/vkmla/vkmla/vk"

// hopper holds the numbers measured on an H100 80GB HBM3, driver 580.159; docs/design has the measurements.
var hopper = Profile{
	Name: "hopper",

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

// isHopper tells an H100 or its like by what it offers, not by its name.
func isHopper(a *vk.Adapter) bool {
	c := &a.Caps
	return c.ComputeUnits >= 120 && c.SubgroupSize == 32 && c.MinSubgroupSize == 32 && c.Features["coopmat.bf16.f32"]
}
