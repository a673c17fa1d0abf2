package tuning

// generic serves GPUs without measurements. Its numbers are those of hopper until a measurement
// says otherwise: a family of its own is a copy with what differs.
//
// Its rates are declared, not measured: a tenth of what kernels without matrices reach on an H100's
// multiprocessor, where a compute unit of an integrated GPU has half the lanes at two thirds of the
// clock, and half of what two channels of DDR4 bring.
//
// An invocation of 1024 has 64 registers on most GPUs. Mesa's compilers spill as many and more with
// the selection's shape of 32 numbers each (RADV on navi21 64, NVK 180).
var generic = like(&hopper, "generic", func(p *Profile) {
	p.Measured = false
	p.TopK.Short = p.TopK.Short[:4]
	p.Step = Step{UnitRate: 15000, Bandwidth: 20000}
})

// like returns a copy of a profile under another name, changed by change. It shares the lists that
// change leaves alone; profiles are never written to afterwards.
func like(p *Profile, name string, change func(p *Profile)) Profile {
	c := *p
	c.Name = name
	change(&c)
	return c
}
