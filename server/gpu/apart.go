package gpu

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// Apart computes the head, the shared experts, and all experts of the first layers on a device. The
// processor has the rest of the model. Each call is a submission of its own, of at most
// MaxStep tokens; calls are for one goroutine at a time.
type Apart struct {
	g       *GPU
	layers  int     // whose experts are all on the device
	in, out vk.View // mapped: hidden states by place, what experts give
}

// Needs are bytes of device memory.
type Needs struct {
	Whole  uint64   // of a GPU
	Rest   uint64   // of an Apart without layers
	Layers []uint64 // more for the experts of each
}

// NeedsOf says what a model needs with steps of at most `most` tokens.
func NeedsOf(w *weights.Model, most int) (n Needs, err error) {
	whole, apart := &loader{w: w}, &loader{w: w}
	g := newGPU(nil, w, most)
	g.weights(whole, w)
	g.memory(whole)
	g.drafts(whole, w)
	a := &Apart{g: newGPU(nil, w, most)}
	a.shared(apart, w)
	a.memory(apart)
	n.Whole, n.Rest = whole.need(vk.DeviceLocal), apart.need(vk.DeviceLocal)
	for i := range w.Layers {
		layer := &loader{w: w}
		g.routed(layer, w, i)
		n.Layers = append(n.Layers, layer.need(vk.DeviceLocal))
	}
	return n, whole.err
}

// Fit returns for how many of the first layers there is room in `free` bytes; -1: not even for the
// rest.
func (n *Needs) Fit(free uint64) (layers int) {
	if n.Rest > free {
		return -1
	}
	free -= n.Rest
	for ; layers < len(n.Layers) && n.Layers[layers] <= free; layers++ {
		free -= n.Layers[layers]
	}
	return layers
}

// NewApart uploads the head, all shared experts and the experts of the first layers; the weights
// stay open for the processor. The caller closes it before the device.
//
// Errors: as New.
func NewApart(ctx context.Context, dev *vk.Device, w *weights.Model, layers int, o Options) (*Apart, error) {
	a := &Apart{g: newGPU(dev, w, o.MaxStep), layers: layers}
	err := a.g.open(ctx, w, o, func(l *loader) {
		a.shared(l, w)
		for i := range layers {
			a.g.routed(l, w, i)
		}
		a.memory(l)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Apart) shared(l *loader, w *weights.Model) {
	l.matrix(&a.g.head, &w.Head)
	for i := range w.Layers {
		a.g.shared(l, w, i)
	}
}

func (a *Apart) memory(l *loader) {
	g := a.g
	a.g.memory(l)
	l.host(&a.in, "hidden states", vk.Upload, 16*g.most*quads(g.cfg.Hidden))
	l.host(&a.out, "hidden states", vk.Readback, 4*(g.mostItems()+g.most)*g.cfg.Hidden)
}

// Layers returns the number of layers whose experts are on the device.
func (a *Apart) Layers() int {
	if a == nil {
		return 0
	}
	return a.layers
}

// run brings hidden states to the device and waits for what is recorded after them.
func (a *Apart) run(ctx context.Context, ids []int32, x []float32, to vk.View, record func(rec *vk.Recorder) error) error {
	d := a.g.cfg.Hidden
	T := len(x) / d
	if T > a.g.most {
		return fmt.Errorf("gpu: a step of %d tokens, want at most %d", T, a.g.most)
	}
	words, in := a.g.host.Buffer.Mapped(), a.in.Buffer.Mapped()
	for i, v := range []int{T, T} {
		binary.LittleEndian.PutUint32(words[4*i:], uint32(v))
	}
	for i, id := range ids {
		binary.LittleEndian.PutUint32(words[4*(4+i):], uint32(id))
	}
	for t := range T {
		row := in[16*t*quads(d):]
		for c, v := range x[t*d:][:d] {
			binary.LittleEndian.PutUint16(row[16*quadAt(c/8)+c%8*2:], numfmt.BF16Encode(v))
		}
	}
	size := uint64(16 * T * quads(d))
	return a.g.dev.Run(ctx, func(rec *vk.Recorder) error {
		if err := rec.Copy(a.g.step, a.g.host); err != nil {
			return err
		}
		if err := rec.Copy(first(to, size), first(a.in, size)); err != nil {
			return err
		}
		return record(rec)
	})
}

// quadAt is place of lib/activations.glsl.
func quadAt(q int) int { return q&^127 | q&3<<5 | q>>2&31 }

// first is the beginning of a view.
func first(v vk.View, size uint64) vk.View { return v.Buffer.View(v.Offset, size) }

// floats reads n numbers of a mapped view.
func floats(v vk.View, at, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(v.Buffer.Mapped()))), at+n)[at:]
}

// Experts computes the experts of one of Layers for tokens ids [T]: f [T, D] from x [T, D].
func (a *Apart) Experts(ctx context.Context, layer int, ids []int32, x, f []float32) error {
	g, T, d, per := a.g, len(ids), a.g.cfg.Hidden, a.g.cfg.PerToken
	routed, shared := uint64(4*T*per*d), uint64(4*T*d)
	err := a.run(ctx, ids, x, g.x.plain, func(rec *vk.Recorder) error {
		if err := g.experts(rec, T, &g.layers[layer]); err != nil {
			return err
		}
		if err := rec.Copy(first(a.out, routed), first(g.routedY, routed)); err != nil {
			return err
		}
		return rec.Copy(a.out.Buffer.View(a.out.Offset+routed, shared), first(g.sharedY, shared))
	})
	if err != nil {
		return err
	}
	all := floats(a.out, 0, T*(per+1)*d)
	for t := range T {
		sum := f[t*d:][:d]
		clear(sum)
		for k := range per {
			for i, v := range all[(t*per+k)*d:][:d] {
				sum[i] += v
			}
		}
		for i, v := range all[(T*per+t)*d:][:d] {
			sum[i] = numfmt.BF16Round(sum[i] + v)
		}
	}
	return nil
}

// Shared computes what a layer's shared expert gives: y [T, D] from x [T, D], not rounded.
func (a *Apart) Shared(ctx context.Context, layer int, x, y []float32) error {
	g, l, T := a.g, &a.g.layers[layer], len(x)/a.g.cfg.Hidden
	err := a.run(ctx, nil, x, g.x.plain, func(rec *vk.Recorder) error {
		shared := g.sharedRows(T, l)
		if err := g.whole(rec, T, g.x, reader{&l.shared1, shared}); err != nil {
			return err
		}
		if err := g.up(rec, &l.shared1, &l.shared3, shared, g.sharedH.plain); err != nil {
			return err
		}
		if err := g.whole(rec, T, g.sharedH, reader{&l.shared2, shared}); err != nil {
			return err
		}
		if err := g.product(rec, &l.shared2, g.tiles.down, shared, g.sharedH, g.sharedY); err != nil {
			return err
		}
		return rec.Copy(first(a.out, uint64(4*len(y))), first(g.sharedY, uint64(4*len(y))))
	})
	if err == nil {
		copy(y, floats(a.out, 0, len(y)))
	}
	return err
}

// Head computes logits [T, V] from x [T, D].
func (a *Apart) Head(ctx context.Context, x, logits []float32) error {
	g, T := a.g, len(x)/a.g.cfg.Hidden
	size := uint64(4 * len(logits))
	err := a.run(ctx, nil, x, g.headX.plain, func(rec *vk.Recorder) error {
		if err := g.whole(rec, T, g.headX, reader{&g.head, g.allRows(T)}); err != nil {
			return err
		}
		if err := g.product(rec, &g.head, g.tiles.head, g.allRows(T), g.headX, g.headY); err != nil {
			return err
		}
		return rec.Copy(first(g.results, size), first(g.headY, size))
	})
	if err == nil {
		copy(logits, floats(g.results, 0, len(logits)))
	}
	return err
}

// Close frees the memory. Closing twice is allowed.
func (a *Apart) Close() error {
	if a == nil {
		return nil
	}
	return a.g.Close()
}
