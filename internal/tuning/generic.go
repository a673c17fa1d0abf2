package tuning

// generic serves GPUs that nobody has measured: the numbers of hopper where they follow from counts, cautious ones
// where they follow from a cache or a clock.
var generic = Profile{
	Name: "generic",

	Device: Device{},

	Attention: Attention{},

	Compress: Compress{},

	Linear: hopper.Linear,

	Logits: Logits{},

	TopK: TopK{},

	Layer: Layer{},
}
