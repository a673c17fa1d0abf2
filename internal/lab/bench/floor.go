package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// reader records launches that only read. They are the floor of an operation that has as many
// bytes and launches: a launch of some megabytes that waits for another one reaches less than
// the copy bandwidth of gigabytes, whatever it computes.
type reader struct {
	kernel *vk.Kernel
	addr   bool          // reached by device address
	shape  readShape     // of launches
	src    tensor.Tensor // each launch reads the next bytes, so that they come from memory
	at     uint64        // where the next launch begins
	totals tensor.Tensor // [totalSlots, totalStep] u8: each launch's own, or launches side by side would wait
	turn   int           // launches so far
	pieces uint64        // that a launch may have
}

// benchReadPush is the push block of bench_read.comp.
type benchReadPush struct {
	SrcAddr, TotalAddr uint64
	Count, Keep        uint32
}

// readShape divides a launch that reads: invocations of a workgroup, 16 bytes
// each asks for before it waits, and workgroups at most.
type readShape struct{ lanes, loads, groups uint32 }

const (
	pieceBytes            = 16
	viewAlign             = 256 // at most what descriptors want
	totalSlots, totalStep = 1024, viewAlign
	readPattern           = 1 << 20 // bytes that the source repeats
)

// readKernel returns the kernel that a device reads with: by address where it can, since a launch
// has to fetch a descriptor first.
func readKernel(dev *vk.Device) string {
	const byAddress = "bench_read_da"
	if code, err := kernels.Get(byAddress); err == nil && len(dev.Caps().Missing(code.Requires)) == 0 {
		return byAddress
	}
	return "bench_read"
}

// newReader makes the kernel and what it reads, and checks that it reads all of it.
// Errors: those of vk, and one that says what was read wrongly.
func newReader(ctx context.Context, dev *vk.Device, name string, shape readShape) (*reader, error) {
	r, pattern := &reader{shape: shape}, make([]byte, readPattern)
	rng := rand.New(rand.NewPCG(1, 11))
	for i := range pattern {
		pattern[i] = byte(rng.Uint32())
	}
	err := r.open(ctx, dev, name, pattern)
	if err == nil {
		err = r.check(ctx, dev, pattern)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: floor: %w", err), r.close())
	}
	return r, nil
}

func (r *reader) open(ctx context.Context, dev *vk.Device, name string, pattern []byte) error {
	spec := vk.KernelSpec{PushSize: 24, Constants: []uint32{r.shape.lanes, r.shape.loads}}
	if r.addr = strings.HasSuffix(name, "_da"); !r.addr {
		spec.Bindings = []vk.Access{vk.Read, vk.ReadWrite}
	}
	var err error
	if r.kernel, err = kernel(dev, name, spec); err != nil {
		return err
	}
	size := uint64(2 * verify.RotateBytes)
	if slow(dev) {
		size = 16 << 20
	}
	size = min(size, dev.Caps().HeapBytes/8) &^ (readPattern - 1)
	if r.src, err = tensor.New(dev, "bench floor", tensor.U8, int(size)); err != nil {
		return err
	}
	if r.totals, err = tensor.New(dev, "bench floor", tensor.U8, totalSlots, totalStep); err != nil {
		return err
	}
	r.pieces = min(size, dev.Caps().MaxStorageBufferRange) / pieceBytes
	return verify.Fill(ctx, dev, r.src, pattern)
}

// check demands that launches of few pieces and of many add up all words that they are for.
func (r *reader) check(ctx context.Context, dev *vk.Device, pattern []byte) error {
	block := uint64(r.shape.lanes * r.shape.loads)
	for _, n := range []uint64{1, block + 5, min(block*uint64(r.shape.groups+1), r.pieces), r.pieces} {
		var src, total vk.View
		if err := run(ctx, dev, func(rec *vk.Recorder) (err error) {
			if err = rec.Fill(r.totals.View(), 0); err == nil {
				src, total, err = r.launch(rec, n, true)
			}
			return err
		}); err != nil {
			return err
		}
		var got [4]byte
		if err := dev.Download(ctx, got[:], total); err != nil {
			return err
		}
		want := sumOfWords(pattern, src.Offset-r.src.Offset, src.Size)
		if x := binary.LittleEndian.Uint32(got[:]); x != want {
			return fmt.Errorf("%s on this device: the words of %d bytes add up to %d, got %d", r.kernel.Name(), src.Size, want, x)
		}
	}
	return nil
}

// sumOfWords adds up the words of n bytes, of a pattern over and over, from byte at on.
func sumOfWords(pattern []byte, at, n uint64) (sum uint32) {
	size := uint64(len(pattern))
	part := func(from, to uint64) (s uint32) {
		for i := from; i < to; i += 4 {
			s += binary.LittleEndian.Uint32(pattern[i%size:])
		}
		return s
	}
	if whole := n / size; whole > 0 {
		sum, n = uint32(whole)*part(0, size), n%size
	}
	return sum + part(at, at+n)
}

func (r *reader) close() (err error) {
	if r == nil {
		return nil
	}
	for _, t := range []tensor.Tensor{r.src, r.totals} {
		if !t.IsZero() {
			err = errors.Join(err, t.Close())
		}
	}
	return err
}

// record records launches side by side that read those bytes, one for most numbers, and one
// that reads nothing for 0.
func (r *reader) record(rec *vk.Recorder, bytes float64) error {
	for left := uint64(bytes) / pieceBytes; ; {
		n := min(left, r.pieces)
		if _, _, err := r.launch(rec, n, false); err != nil {
			return err
		}
		if left -= n; left == 0 {
			return nil
		}
	}
}

// launch records a launch that reads n pieces, and returns what it reads and where its total
// goes.
func (r *reader) launch(rec *vk.Recorder, n uint64, keep bool) (src, total vk.View, err error) {
	bytes := max(n, 1) * pieceBytes
	if r.at+bytes > r.src.Bytes() {
		r.at = 0
	}
	src = r.src.Buffer.View(r.src.Offset+r.at, bytes)
	r.at += (bytes + viewAlign - 1) &^ (viewAlign - 1)
	total = r.totals.Buffer.View(r.totals.Offset+uint64(r.turn%totalSlots*totalStep), 4)
	r.turn++
	block := uint64(r.shape.lanes * r.shape.loads)
	groups := min(uint64(r.shape.groups), max(1, (n+block-1)/block))
	push := benchReadPush{Count: uint32(n), Keep: opkit.Bit(0, keep)}
	d := vk.Dispatch{Kernel: r.kernel, Groups: [3]uint32{uint32(groups), 1, 1}}
	if r.addr {
		push.SrcAddr, push.TotalAddr = src.Address(), total.Address()
		d.Reach = []vk.Reach{{View: src, Access: vk.Read}, {View: total, Access: vk.ReadWrite}}
	} else {
		d.Bind = []vk.View{src, total}
	}
	d.Push = vk.Bytes(&push)
	return src, total, rec.Dispatch(d)
}

// openReader returns the device's reader, or none where there is no memory left for what it reads.
func openReader(ctx context.Context, dev *vk.Device) (*reader, error) {
	r, err := newReader(ctx, dev, readKernel(dev), readShapeOf(dev))
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		return nil, nil
	}
	return r, err
}

// below times as many launches one after the other as the part has; the first
// reads its bytes and the others nothing, as the part itself was timed: the median in
// microseconds, and how many launches.
func (r *reader) below(ctx context.Context, dev *vk.Device, p opPart, warmup, reps int) (us float64, launches int, err error) {
	if launches, err = levelsOf(dev, p.record); err != nil {
		return 0, 0, err
	}
	t, err := opPart{inner: p.inner, record: func(rec *vk.Recorder, _ int) error {
		err := r.record(rec, p.Bytes)
		for range launches - 1 {
			err = errors.Join(err, door.Separate(rec), r.record(rec, 0))
		}
		return err
	}}.sample(ctx, dev, warmup, reps)
	return t.Median, launches, err
}

// levelsOf returns how many launches, or groups of some, wait for each other in what is recorded.
func levelsOf(dev *vk.Device, record func(*vk.Recorder, int) error) (int, error) {
	rec, err := dev.NewRecorder()
	if err != nil {
		return 0, err
	}
	defer rec.Close()
	if err := record(rec, 0); err != nil {
		return 0, err
	}
	return rec.Barriers() + 1, nil
}

// readShapeOf returns the shape of the launches of floors. On an H100 others differ by as much as
// runs do, from 128 to 1024 invocations with 1 to 16 loads on their way; fewer workgroups
// that go on with other blocks take up to 9 % longer. See docs/design/linear.md.
func readShapeOf(dev *vk.Device) readShape {
	return readShape{256, 2, dev.Caps().MaxWorkgroupCount[0]}
}
