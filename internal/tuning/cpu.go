package tuning

// cpu keeps kernels short, because a processor takes long to compile them, and workgroups few.
var cpu = Profile{
	Name: "cpu",

	Device: Device{},

	Attention: Attention{},

	Compress: Compress{},

	Linear: cpuLinear(),

	Logits: Logits{},

	TopK: TopK{},

	Layer: Layer{},
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
