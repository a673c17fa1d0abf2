package tuning

import "github.com/vkmla/vkmla/vk"

// hopper holds the numbers measured on an H100 80GB HBM3, driver 580.159; docs/design has the measurements.
var hopper = Profile{
	Name: "hopper",

	Device: Device{},

	Attention: Attention{},

	Compress: Compress{
		LongInvocations: 512, ChunkInvocations: 512, SaveSingle: true,
		ShortGroups: 1024, LongGroups: 256, TouchBytes: 2 << 20,
	},

	Linear: Linear{},

	Logits: Logits{},

	TopK: TopK{},

	Layer: Layer{
		NormTokens:   32,
		RawTokens:    32,
		BesideTokens: 16,
		ChainTokens:  1,
		JoinTokens:   2,
		TouchLeast:   256 << 20,
		TouchMost:    2 << 30,
	},
}

// isHopper tells an H100 or its like by what it offers, not by its name.
func isHopper(a *vk.Adapter) bool {
	c := &a.Caps
	return c.ComputeUnits >= 120 && c.SubgroupSize == 32 && c.MinSubgroupSize == 32 && c.Features["coopmat.bf16.f32"]
}
