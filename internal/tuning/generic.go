package tuning

// generic serves GPUs that nobody has measured: the numbers of hopper where they follow from counts, cautious ones
// where they follow from a cache or a clock.
var generic = Profile{
	Name: "generic",

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
