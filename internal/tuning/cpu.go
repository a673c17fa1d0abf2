package tuning

// cpu keeps kernels short, because a processor takes long to compile them, and workgroups few.
var cpu = like(&hopper, "cpu", func(p *Profile) {
	d := &p.Device
	d.DiscreteUnits, d.OtherUnits, d.OneEach = 8, 8, true

	a := &p.Attention
	a.InvariantTokens = 2
	a.LaneHeads, a.LanesAlways = 32, true
	a.GatherTokens, a.GatherShare = 64, 16

	l := &p.Linear
	l.Tokens1to8.BaseRows = 0
	l.Tokens8to16.MostPass = 8
	l.Tokens8to32.MostStepMany = 128
	l.Tokens32to64.Passes = []int{16, 32, 48}
	l.Base.Tiles, l.Base.Unroll = []BaseTile{{64, 64, 1, 0.8}}, 1
	l.Tiles.Pairs = false
	l.ChainPolls = 1 << 28 // 10 s of the thread that looks (39 ns each, 23 November); others get as much

	p.Logits.BaseUnroll, p.Logits.MatrixHeads = 4, 16

	p.Step = Step{UnitRate: 300, Bandwidth: 2000} // lavapipe on two cores; no watchdog looks

	k := &p.TopK
	k.Short = []TopKShape{{128, 4, 0, 8}, {128, 16, 0, 8}}
	k.Few = []TopKShape{{1024, 4, 3072, 8}, {128, 4, 512, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8}, {128, 24, 3072, 8}}
	k.Many = k.Few
	k.LaneThreads = 128
})
