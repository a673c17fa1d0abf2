package tuning

// generic serves GPUs that nobody has measured. Its numbers are those of hopper until a
// measurement says otherwise: a family of its own is a copy with what differs.
var generic = like(&hopper, "generic", func(*Profile) {})

// like returns a copy of a profile under another name, changed by change. It shares the lists that
// change leaves alone; profiles are never written to afterwards.
func like(p *Profile, name string, change func(p *Profile)) Profile {
	c := *p
	c.Name = name
	change(&c)
	return c
}
