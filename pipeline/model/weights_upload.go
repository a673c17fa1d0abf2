package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opUpload = "model: upload weights"
	opPlan   = "model: plan weights"
)

// DeviceMatrix is a Matrix on a device, stored as Format says.
type DeviceMatrix struct {
	Format    projection.Format
	N, K      int
	Data      tensor.Tensor // as projection.Format.Shapes says, as are the next two
	Scales    tensor.Tensor // absent if the format has none
	RowScales tensor.Tensor // absent if the format has none, or Global is for all rows
	Global    float32       // FormatNVFP4
	Input     float32       // FormatNVFP4: input_scale, for activations of 4 bits; 0: none
}

// DeviceLayer is LayerWeights on a device, with H heads and G groups of one rank.
// Upload makes it. A program with its own loader fills in the fields, and closes the tensors
// itself: Bytes is then 0, and Close does nothing. Its Identity may be any hash that tells the
// weights from others.
type DeviceLayer struct {
	Layer    int      // of the model
	Identity Identity // of the weights, see LayerWeights.Identity; 0: not known

	QKV    DeviceMatrix  // [QRank+512, Hidden]: wq_a over wkv
	QNorm  tensor.Tensor // [QRank] f32 or bf16
	KVNorm tensor.Tensor // [512] f32 or bf16
	QB     DeviceMatrix  // [H*512, QRank]: wq_b
	Sink   tensor.Tensor // [H] f32: attn_sink
	OA     DeviceMatrix  // [G*ORank, P*512]: wo_a, P heads of a group
	OB     DeviceMatrix  // [Hidden, G*ORank]: wo_b

	Compressor *DeviceCompressor // nil without one
	Indexer    *DeviceIndexer    // nil without one

	arena   *tensor.Arena
	bytes   uint64
	planned bool
	closed  bool
}

// DeviceCompressor is CompressorWeights on a device, to entries of d numbers, with C = d
// channels of a token, or 2 d where entries overlap.
type DeviceCompressor struct {
	KVGate DeviceMatrix  // [2*C, Hidden]: wkv over wgate; [C, Hidden], wkv alone, unless LayerSpec.Gated
	Ape    tensor.Tensor // [Ratio, C] f32: positional term of the scores: 0 with LayerSpec.Unplaced, none unless Gated
	Norm   tensor.Tensor // [d] f32 or bf16
}

// DeviceIndexer is IndexerWeights on a device.
type DeviceIndexer struct {
	QB         DeviceMatrix      // [Hi*128, QRank]: wq_b
	Weights    DeviceMatrix      // [Hi, Hidden]: weights_proj
	Compressor *DeviceCompressor // to keys of 128 numbers; nil where the layer borrows them or has Keys
	Keys       *DeviceKeys       // of keys made of entries; nil without LayerSpec.LatentKeys
}

// DeviceKeys are KeyWeights on a device.
type DeviceKeys struct {
	K    DeviceMatrix  // [128, 512]: wk
	Norm tensor.Tensor // [128] f32 or bf16: k_norm
}

// bytes is the layer's memory on the device, 0 for a layer that neither Upload nor Plan made.
func (l *DeviceLayer) Bytes() uint64 {
	return l.bytes
}

// CloseLayers closes the layers of a list, as Upload returned it. Errors: those of closing each.
func CloseLayers(layers []*DeviceLayer) (err error) {
	for _, l := range layers {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Close frees the layer's memory. Nothing on the device may be using it.
// Closing twice is allowed. A layer that Upload did not make is left alone.
func (l *DeviceLayer) Close() error {
	if l == nil || l.arena == nil {
		return nil
	}
	a := l.arena
	*l = DeviceLayer{Layer: l.Layer, closed: true}
	return a.Close()
}

// Closed reports whether Close freed the layer's memory.
func (l *DeviceLayer) Closed() bool { return l.closed }

// Planned reports whether the layer is of Checkpoint.Plan: it has no memory.
func (l *DeviceLayer) Planned() bool { return l.planned }

// Plan returns the layers that Upload would make, with all sizes and without memory, for
// EngineOptions.Estimate of package pipeline. No weights are read. There is nothing to close.
//
// Errors: vk.ErrArgument for weights that Upload would refuse.
func (c *Checkpoint) Plan() ([]*DeviceLayer, error) {
	return planned(c.Layers)
}

// planned returns layers without memory.
func planned(layers []LayerWeights) (list []*DeviceLayer, err error) {
	for i := range layers {
		var u uploader
		l := u.fill(&layers[i])
		if u.err != nil {
			return nil, fmt.Errorf("%s: %w", opPlan, u.err)
		}
		l.bytes, l.planned = arenaBytes(&layers[i]), true
		list = append(list, l)
	}
	return list, nil
}

// Upload puts the weights of all layers on a device, as the function Upload does.
func (c *Checkpoint) Upload(ctx context.Context, dev *vk.Device, progress func(done, total int64)) ([]*DeviceLayer, error) {
	return Upload(ctx, dev, c.Layers, progress)
}

// Upload puts the weights of layers on a device as they are stored, each layer in a buffer of its
// own, and waits. The caller closes every layer of the result. progress, unless nil, is called from
// this goroutine with the bytes that have arrived and those of all; they are equal in the last
// call.
//
// Errors: the context's; those of Blob.ReadAt, vk.Device.NewBuffer and vk.Device.Upload. After an
// error nothing stays allocated.
func Upload(ctx context.Context, dev *vk.Device, layers []LayerWeights, progress func(done, total int64)) ([]*DeviceLayer, error) {
	if ctx == nil {
		return nil, badArgument(opUpload, "ctx", "nil", "a context")
	}
	if dev == nil {
		return nil, badArgument(opUpload, "dev", "nil", "a device")
	}
	var list []*DeviceLayer
	u := uploader{dev: dev, progress: progress}
	err := ctx.Err()
	for i := range layers {
		if err != nil {
			break
		}
		var l *DeviceLayer
		if l, err = u.layer(&layers[i]); err == nil {
			list = append(list, l)
		}
	}
	if err == nil {
		err = u.run(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opUpload, errors.Join(err, CloseLayers(list)))
	}
	return list, nil
}

// uploader allocates tensors and lists what to copy to them.
type uploader struct {
	dev      *vk.Device
	progress func(done, total int64)
	jobs     []uploadJob
	arena    *tensor.Arena // of the layer at hand
	err      error
}

type uploadJob struct {
	to     tensor.Tensor
	from   Blob
	name   string
	finite numfmt.Special // elements that are refused; none where they were looked at before
}

// ReadAt reads what goes to the device. It refuses weights that are infinite or none: kernels make
// finite wrong numbers of them.
func (j uploadJob) ReadAt(p []byte, off int64) (n int, err error) {
	if n, err = j.from.ReadAt(p, off); j.finite.Bytes == 0 || err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	if at, bits := j.finite.Find(p[:n]); at >= 0 {
		// Without bytes, since io.ReadFull forgets an error that comes with all of them.
		return 0, &CheckpointError{Tensor: j.name, Want: "finite numbers",
			Got: fmt.Sprintf("the bits %0*x at %v", 2*j.finite.Bytes, bits, indices(j.to.Shape, int(off)/j.finite.Bytes+at))}
	}
	return n, err
}

// indices returns where an element lies, by dimensions.
func indices(shape []int, n int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i], n = n%shape[i], n/shape[i]
	}
	return at
}

// layer allocates the tensors of a layer.
func (u *uploader) layer(w *LayerWeights) (*DeviceLayer, error) {
	id, err := w.Identity()
	if err != nil {
		return nil, err
	}
	arena, err := tensor.NewArena(u.dev, vk.DeviceLocal, fmt.Sprintf("weights of layer %d", w.Layer), arenaBytes(w))
	if err != nil {
		return nil, err
	}
	u.arena, u.err = arena, nil
	l := u.fill(w)
	if u.err != nil {
		return nil, errors.Join(u.err, arena.Close())
	}
	l.Identity, l.arena, l.bytes = id, arena, arena.Whole().Size
	return l, nil
}

// arenaBytes returns the size of one buffer with the tensors of a layer.
func arenaBytes(w *LayerWeights) (n uint64) {
	for _, m := range w.matrices() {
		for _, b := range []Blob{m.Data, m.Scales, m.RowScales} {
			n += tensor.Need(tensor.U8, int(b.Size()))
		}
	}
	for _, v := range w.vectors() {
		n += tensor.Need(tensor.U8, int(v.Data.Size()))
	}
	return n
}

// fill makes a layer of the tensors of the uploader's arena.
func (u *uploader) fill(w *LayerWeights) *DeviceLayer {
	l := &DeviceLayer{Layer: w.Layer, QKV: u.matrix(&w.QKV), QB: u.matrix(&w.QB), OA: u.matrix(&w.OA), OB: u.matrix(&w.OB),
		QNorm: u.vector(&w.QNorm), KVNorm: u.vector(&w.KVNorm), Sink: u.vector(&w.Sink)}
	l.Compressor = u.compressor(w.Compressor)
	if x := w.Indexer; x != nil {
		l.Indexer = &DeviceIndexer{QB: u.matrix(&x.QB), Weights: u.matrix(&x.Weights), Compressor: u.compressor(x.Compressor)}
		if x.Keys != nil {
			l.Indexer.Keys = &DeviceKeys{u.matrix(&x.Keys.K), u.vector(&x.Keys.Norm)}
		}
	}
	return l
}

func (u *uploader) compressor(c *CompressorWeights) *DeviceCompressor {
	if c == nil {
		return nil
	}
	d := &DeviceCompressor{KVGate: u.matrix(&c.KVGate), Norm: u.vector(&c.Norm)}
	if c.Ape.Shape != nil {
		d.Ape = u.vector(&c.Ape)
	}
	return d
}

func (u *uploader) matrix(m *Matrix) DeviceMatrix {
	d := DeviceMatrix{Format: m.Format, N: m.N, K: m.K, Global: m.Global, Input: m.Input}
	if !m.Format.Known() {
		u.fail(m.Name, m.Format.String(), "a format")
		return d
	}
	is := m.Format.Shapes(m.N, m.K)
	d.Data = u.tensor(m.Name, m.Data, is.Data.DType, is.Data.Shape...)
	if n := len(u.jobs); n > 0 {
		u.jobs[n-1].finite = m.Format.Special()
	}
	if is.Scale.Shape != nil {
		d.Scales = u.tensor(m.Name, m.Scales, is.Scale.DType, is.Scale.Shape...)
		if n := len(u.jobs); n > 0 && is.Scale.DType == tensor.F16 { // those of other types were looked at before
			u.jobs[n-1].finite = numfmt.SpecialF16
		}
	}
	if is.RowScale.Shape != nil && m.Global == 0 {
		d.RowScales = u.tensor(m.Name, m.RowScales, is.RowScale.DType, is.RowScale.Shape...)
	}
	return d
}

func (u *uploader) vector(v *Vector) tensor.Tensor {
	return u.tensor(v.Name, v.Data, v.DType, v.Shape...)
}

func (u *uploader) fail(name, got, want string) {
	if u.err == nil {
		u.err = badArgument(opUpload, name, got, "%s", want)
	}
}

func (u *uploader) tensor(name string, from Blob, dt tensor.DType, shape ...int) tensor.Tensor {
	if u.err != nil {
		return tensor.Tensor{}
	}
	t, err := tensor.Tensor{DType: dt, Shape: shape}, error(nil)
	if u.arena != nil {
		t, err = u.arena.Alloc(dt, shape...)
	}
	switch {
	case err != nil:
		u.err = err
	case t.Bytes() != uint64(from.Size()):
		u.fail(name, fmt.Sprintf("%d bytes", from.Size()), fmt.Sprintf("the %d of %s", t.Bytes(), t))
	}
	u.jobs = append(u.jobs, uploadJob{to: t, from: from, name: name})
	return t
}

// uploadChunk is the number of bytes between two reports of progress.
const uploadChunk = 128 << 20

// uploadsAtATime is the number of uploads under way: while one ends, or is too small for all cores,
// these work for the others. A device has staging memory for three.
const uploadsAtATime = 3

// run brings all bytes to the device.
func (u *uploader) run(ctx context.Context) (err error) {
	type part struct {
		uploadJob
		at, size int64
		err      error
	}
	var parts []part
	done, total := int64(0), int64(0)
	for _, j := range u.jobs {
		for at := int64(0); at < j.from.Size(); at += uploadChunk {
			parts = append(parts, part{uploadJob: j, at: at, size: min(uploadChunk, j.from.Size()-at)})
		}
		total += j.from.Size()
	}
	beside, stop := context.WithCancel(ctx)
	defer stop()
	todo, ended := make(chan part, len(parts)), make(chan part)
	for _, p := range parts {
		todo <- p
	}
	close(todo)
	for range uploadsAtATime {
		go func() {
			for p := range todo {
				if p.err = beside.Err(); p.err == nil {
					to := p.to.Buffer.View(p.to.Offset+uint64(p.at), uint64(p.size))
					p.err = u.dev.UploadFrom(beside, to, io.NewSectionReader(p, p.at, p.size))
				}
				ended <- p
			}
		}()
	}
	for range parts {
		p := <-ended
		if p.err != nil && err == nil {
			err = p.err
			stop()
		}
		if done += p.size; err == nil && u.progress != nil {
			u.progress(done, total)
		}
	}
	return cmp.Or(err, ctx.Err())
}
