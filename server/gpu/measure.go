package gpu

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// Rate holds the bytes that were moved, and the time.
type Rate struct {
	Bytes   float64
	Seconds float64
}

// PerSecond is bytes a second.
func (r Rate) PerSecond() float64 { return r.Bytes / r.Seconds }

// Rates are those of the experts of all layers, for tokens of random hidden states.
type Rates struct {
	Experts  Rate // of all launches together: router, routed and shared experts
	Up, Down Rate // of routed experts alone, each launch for itself
}

// Measure times the experts of all layers for T tokens: of several runs the median. It may be
// called while no step is with the device.
func (g *GPU) Measure(ctx context.Context, T int) (r Rates, err error) {
	if err := g.randomInput(ctx, T); err != nil {
		return r, err
	}
	// Few layers are recorded again and again: a submission of its own takes time.
	turns := opkit.CeilDiv(longRecording, g.own)
	record := func(rec *vk.Recorder) error {
		for i := range turns * g.own {
			if err := g.experts(rec, T, &g.layers[i%g.own]); err != nil {
				return err
			}
		}
		return nil
	}
	whole, err := g.timed(ctx, (*vk.Recorder).TimeWhole, record)
	if err != nil {
		return r, err
	}
	parts, err := g.timed(ctx, (*vk.Recorder).TimeSections, record)
	if err != nil {
		return r, err
	}
	for _, s := range whole {
		r.Experts.Seconds += s.NS / 1e9 / float64(turns)
	}
	for _, s := range parts {
		switch s.Name {
		case Sections[2]:
			r.Up.Seconds += s.NS / 1e9 / float64(turns)
		case Sections[3]:
			r.Down.Seconds += s.NS / 1e9 / float64(turns)
		}
	}
	return r, g.read(ctx, T, &r)
}

// read counts the bytes of weights that were read at least once.
func (g *GPU) read(ctx context.Context, T int, r *Rates) error {
	for i := range g.layers[:g.own] {
		l := &g.layers[i]
		err := g.dev.Run(ctx, func(rec *vk.Recorder) error { return g.experts(rec, T, l) })
		if err != nil {
			return err
		}
		chosen := make([]byte, 4*T*g.cfg.PerToken)
		if err := g.dev.Download(ctx, chosen, g.chosen.Buffer.View(g.chosen.Offset, uint64(len(chosen)))); err != nil {
			return err
		}
		different := map[uint32]bool{}
		for p := range T * g.cfg.PerToken {
			different[binary.LittleEndian.Uint32(chosen[4*p:])] = true
		}
		n := float64(len(different))
		up, down := n*(l.w1.bytes()+l.w3.bytes()), n*l.w2.bytes()
		r.Up.Bytes, r.Down.Bytes = r.Up.Bytes+up, r.Down.Bytes+down
		r.Experts.Bytes += up + down + l.gate.bytes() + l.shared1.bytes() + l.shared3.bytes() + l.shared2.bytes()
	}
	return nil
}

// randomInput gives T tokens hidden states as norms leave them.
func (g *GPU) randomInput(ctx context.Context, T int) error {
	rng := rand.New(rand.NewPCG(2, uint64(T)))
	x := make([]byte, 16*T*quads(g.cfg.Hidden))
	for i := 0; i < len(x); i += 2 {
		binary.LittleEndian.PutUint16(x[i:], uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
	}
	if err := g.dev.Upload(ctx, g.x.plain.Buffer.View(g.x.plain.Offset, uint64(len(x))), x); err != nil {
		return err
	}
	step := make([]byte, g.step.Size)
	binary.LittleEndian.PutUint32(step, uint32(T))
	for t := range T {
		binary.LittleEndian.PutUint32(step[16+4*t:], rng.Uint32N(uint32(g.cfg.Vocab)))
	}
	return g.dev.Upload(ctx, g.step, step)
}

// longRecording is the number of layers of a recording that is timed.
const longRecording = 24

// timed records something and runs it several times. Of these it returns the one of median length.
func (g *GPU) timed(ctx context.Context, timing func(*vk.Recorder) error, record func(*vk.Recorder) error) ([]vk.Section, error) {
	const runs = 15
	rec, err := g.dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := timing(rec); err != nil {
		return nil, err
	}
	if err := record(rec); err != nil {
		return nil, err
	}
	c, err := rec.End()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var all [][]vk.Section
	for range runs {
		if err := c.Run(ctx); err != nil {
			return nil, err
		}
		s, err := c.Sections()
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	length := func(s []vk.Section) (sum float64) {
		for _, x := range s {
			sum += x.NS
		}
		return sum
	}
	slices.SortFunc(all, func(a, b []vk.Section) int { return int(math.Copysign(1, length(a)-length(b))) })
	return all[runs/2], nil
}

// warming is the time that copies run before one is timed.
const warming = 1500 * time.Millisecond

// CopyRate measures what a plain copy reads and writes.
func CopyRate(ctx context.Context, dev *vk.Device) (Rate, error) {
	size := min(uint64(1<<30), dev.Caps().MaxStorageBufferRange, Free(dev)/4) / 4096 * 4096
	g := GPU{dev: dev}
	var views [2]vk.View
	for i := range views {
		b, err := dev.NewBuffer(vk.BufferSpec{Label: "copies", Size: size})
		if err != nil {
			return Rate{}, err
		}
		defer b.Close()
		views[i] = b.Whole()
	}
	// The clock of a device that idled comes up late.
	for began := time.Now(); time.Since(began) < warming; {
		if err := dev.Run(ctx, func(rec *vk.Recorder) error { return rec.Copy(views[0], views[1]) }); err != nil {
			return Rate{}, err
		}
	}
	const groups = 4096
	push := struct{ count, stride uint32 }{uint32(size / 16), groups}
	s, err := g.timed(ctx, (*vk.Recorder).TimeWhole, func(rec *vk.Recorder) error {
		return launch(rec, &built{dev: dev}, "copy", [3]uint32{groups, 1, 1}, 0, &push, nil, views[0], views[1])
	})
	if err != nil {
		return Rate{}, err
	}
	return Rate{Bytes: 2 * float64(size), Seconds: s[0].NS / 1e9}, nil
}
