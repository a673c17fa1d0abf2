package gpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// piece is memory that is still to be allocated.
type piece struct {
	label  string
	memory vk.Memory
	size   uint64
	to     *vk.View
	from   io.ReaderAt // what it holds at first; nil: anything
	stored *stored     // what it holds, with an earlier piece
}

// loader collects pieces, so that their sizes are known before any is allocated.
type loader struct {
	w      *weights.Model
	bounds bool // of blocks' numbers are found, which only matrices have to know
	pieces []piece
	err    error
}

func (l *loader) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// scratch asks for memory that steps work with.
func (l *loader) scratch(to *vk.View, label string, bytes int) {
	l.pieces = append(l.pieces, piece{label: label, size: uint64(max(bytes, 16)), to: to})
}

// activations asks for memory with n rows of k of them.
func (l *loader) activations(to *activations, label string, n, k int) {
	l.scratch(&to.plain, label, 16*n*quads(k))
	l.scratch(&to.whole, label, 16*n*wholeQuads(k))
}

// host asks for memory that the host maps.
func (l *loader) host(to *vk.View, label string, memory vk.Memory, bytes int) {
	l.pieces = append(l.pieces, piece{label: label, memory: memory, size: uint64(bytes), to: to})
}

// data asks for memory that holds something.
func (l *loader) data(to *vk.View, label string, size int, from io.ReaderAt) {
	l.pieces = append(l.pieces, piece{label: label, size: uint64(size), to: to, from: from})
}

// floats asks for memory with numbers.
func (l *loader) floats(to *vk.View, label string, lists ...[]float32) {
	var data []byte
	for _, list := range lists {
		for _, v := range list {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
	}
	l.data(to, label, len(data), bytes.NewReader(data))
}

// need is the bytes of all pieces in a kind of memory.
func (l *loader) need(memory vk.Memory) (sum uint64) {
	for _, p := range l.pieces {
		if p.memory == memory {
			sum += aligned(p.size, tensor.Align)
		}
	}
	return sum
}

// smallBytes is up to where pieces share a buffer: drivers allow only some thousands.
const smallBytes = 1 << 20

func aligned(n, to uint64) uint64 { return (n + to - 1) / to * to }

// load allocates and fills all pieces: a driver takes milliseconds for a large one, while those
// before it are filled. beside, if any, runs meanwhile. What it has allocated is returned even with
// an error.
func (l *loader) load(ctx context.Context, dev *vk.Device, beside func(context.Context) error) (buffers []*vk.Buffer, err error) {
	ready := make(chan piece, len(l.pieces))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		defer close(ready)
		buffers, err = l.allocate(ctx, dev, ready)
		return err
	})
	for range 2 { // the next is begun while the last pieces of one are on their way
		g.Go(func() error {
			for p := range ready {
				if err := p.fill(ctx, dev); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if beside != nil {
		g.Go(func() error { return beside(ctx) })
	}
	err = g.Wait()
	return buffers, err
}

// allocate makes the memory of all pieces, and sends each that has it.
func (l *loader) allocate(ctx context.Context, dev *vk.Device, ready chan<- piece) (buffers []*vk.Buffer, err error) {
	var shared *vk.Buffer
	at := uint64(0)
	for _, p := range l.pieces {
		if err := ctx.Err(); err != nil {
			return buffers, err
		}
		small, whole := p.size <= smallBytes && p.memory == vk.DeviceLocal, aligned(p.size, 16)
		buffer, first := shared, at
		if !small || shared == nil || shared.Size()-at < whole {
			bytes := whole
			if small {
				bytes = 16 * smallBytes
			}
			if buffer, err = dev.NewBuffer(vk.BufferSpec{Label: p.label, Size: bytes, Memory: p.memory}); err != nil {
				return buffers, err
			}
			buffers, first = append(buffers, buffer), 0
		}
		if small {
			shared, at = buffer, first+aligned(whole, tensor.Align)
			at = min(at, shared.Size())
		}
		*p.to = buffer.View(first, whole) // kernels read whole words
		ready <- p
	}
	return buffers, nil
}

// fill brings to a piece's memory what it holds at first.
func (p *piece) fill(ctx context.Context, dev *vk.Device) (err error) {
	switch {
	case p.stored != nil:
		err = p.stored.upload(ctx, dev)
	case p.from != nil:
		err = dev.UploadFrom(ctx, p.to.Buffer.View(p.to.Offset, p.size), p.from)
	}
	if err != nil {
		return fmt.Errorf("gpu: upload %s: %w", p.label, err)
	}
	return nil
}

// mapped reads parts of mapped files one after the other. check, if any, looks at what was read.
type mapped struct {
	w     *weights.Model
	parts [][]byte // of one size
	check func(p []byte) error
}

// ReadAt reads from the parts as if they lay one after the other.
func (m mapped) ReadAt(p []byte, off int64) (n int, err error) {
	part := int64(len(m.parts[0]))
	err = m.w.Read(func() error {
		for n < len(p) && off/part < int64(len(m.parts)) {
			k := copy(p[n:], m.parts[off/part][off%part:])
			n, off = n+k, off+int64(k)
		}
		return nil
	})
	if err == nil && m.check != nil {
		err = m.check(p[:n])
	}
	switch {
	case err != nil:
		return 0, err
	case n < len(p):
		return n, io.EOF
	}
	return n, nil
}

// matrix is one matrix of each of some experts, or a single one: [experts, N, K] on the device.
type matrix struct {
	format       format
	n, k, side   int
	experts      int
	codes, scale vk.View
	largest      *largest // of its numbers; nil where no matrices multiply them
}

// bytes returns the number of bytes that a product reads of one expert.
func (m *matrix) bytes() float64 { return float64(m.codes.Size+m.scale.Size) / float64(m.experts) }

// matrix asks for memory with matrices that are alike.
func (l *loader) matrix(to *matrix, list ...*weights.Matrix) {
	m := list[0]
	*to = matrix{format: format(m.Format), n: m.N, k: m.K, side: max(m.Side, 1), experts: len(list)}
	var codes, scales [][]byte
	var blocks [][]float32
	for _, x := range list {
		if x.Format != m.Format || x.N != m.N || x.K != m.K || x.Side != m.Side {
			l.fail(&model.CheckpointError{Tensor: x.Name, Got: fmt.Sprintf("%v [%d, %d], scales for %d rows", x.Format, x.N, x.K, x.Side),
				Want: fmt.Sprintf("%v [%d, %d], %d, as %s", m.Format, m.N, m.K, m.Side, m.Name)})
			return
		}
		codes, scales, blocks = append(codes, x.Data), append(scales, x.Scales), append(blocks, x.BlockScales)
	}
	if m.Format == weights.Blocks {
		l.blocks(to, list)
		return
	}
	if c := columns[to.format]; c == 0 || m.K%c != 0 {
		l.fail(&model.CheckpointError{Tensor: m.Name, Got: fmt.Sprintf("%v with %d columns", m.Format, m.K),
			Want: fmt.Sprintf("a multiple of %d", c)})
		return
	}
	read := mapped{w: l.w, parts: codes}
	if m.Format == weights.FP8 {
		read.check = func(p []byte) error {
			if bytes.IndexByte(p, 0x7F) >= 0 || bytes.IndexByte(p, 0xFF) >= 0 {
				return &model.CheckpointError{Tensor: m.Name, Got: "NaN", Want: "numbers"}
			}
			return nil
		}
		l.floats(&to.scale, "scales", blocks...)
		to.largest = new(largest)
		for _, scales := range blocks {
			for _, s := range scales {
				to.largest.see(448 * float32(math.Abs(float64(s))))
			}
		}
	}
	l.data(&to.codes, "weights", len(list)*len(m.Data), read)
	if m.Format == weights.MXFP4 {
		l.pieces[len(l.pieces)-1].stored = &stored{is: blockLayout{format: mxfp4, codes: 16}, bytes: 16,
			blocks: len(list) * len(m.Data) / 16, from: read, codes: &to.codes}
		largest := new(largest)
		to.largest = largest
		l.data(&to.scale, "scales", len(list)*len(m.Scales), mapped{w: l.w, parts: scales, check: func(p []byte) error {
			largest.see(largestMXFP4(p))
			return nil
		}})
	}
}

// twins asks for memory with matrices that are multiplied side by side, which need one format: f32
// where they have two.
func (l *loader) twins(a, b *matrix, as, bs []*weights.Matrix) {
	before := len(l.pieces)
	l.matrix(a, as...)
	l.matrix(b, bs...)
	if a.format == b.format && a.side == b.side {
		return
	}
	l.pieces = l.pieces[:before]
	for m, list := range map[*matrix][]*weights.Matrix{a: as, b: bs} {
		*m = matrix{format: f32, n: list[0].N, k: list[0].K, side: 1, experts: len(list)}
		l.decoded(&m.codes, "weights", f32, list...)
	}
}

// check refuses what a descriptor does not reach.
func (l *loader) check(dev *vk.Device) error {
	most := dev.Caps().MaxStorageBufferRange
	for _, p := range l.pieces {
		if p.size > most {
			l.fail(fmt.Errorf("gpu: %s: %d bytes, want at most %d, what the device binds at a time: %w", p.label, p.size, most,
				errors.ErrUnsupported))
		}
	}
	return l.err
}
