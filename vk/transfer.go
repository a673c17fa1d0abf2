package vk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// staging is the device's mapped memory for Upload and Download, made when a transfer finds none
// that is free.
type staging struct {
	turns chan struct{} // has an element for each transfer that is under way
	mu    sync.Mutex
	free  []*Buffer
}

// stagings is the number of transfers that have staging memory at a time.
const stagings = 3

// stagingPieces is the number of pieces of the staging memory. Several cores fill uploads, two
// pieces each: the device copies one while the other is filled.
const stagingPieces = 32

// stagingSize returns the bytes of the staging memory. A device of little memory has less.
// Handing a piece over takes a while: 4 MiB arrive nearly three times as fast as 1 MiB.
func (d *Device) stagingSize() uint64 {
	if d.Caps().HeapBytes < 1<<30 {
		return 8 << 20
	}
	return 128 << 20
}

// Upload copies src to dst and waits. Work submitted before still sees the old bytes.
// Sizes must agree; dst may be any memory. Memory that is mapped is written where it is, once the
// device has finished what it was given; other memory is reached through 128 MiB of staging memory,
// 8 on small devices, which the device keeps. Three callers at a time have their own. Callers who
// order their writes themselves write to Buffer.Mapped, which waits for nothing.
//
// Errors: ErrArgument; the context's (dst is then partly written); ErrClosed,
// ErrDeviceLost, ErrOutOfHostMemory, ErrOutOfDeviceMemory; the error of
// DeviceOptions.MemoryHook.
func (d *Device) Upload(ctx context.Context, dst View, src []byte) error {
	return d.upload(ctx, "upload", dst, len(src), func(to []byte, at uint64) error {
		copy(to, src[at:])
		return nil
	})
}

// UploadFrom is Upload with what src has at 0 to dst.Size-1, which is read straight to where it
// goes, by several cores at once. Errors: also src's.
func (d *Device) UploadFrom(ctx context.Context, dst View, src io.ReaderAt) error {
	return d.upload(ctx, "upload", dst, int(dst.Size), readFrom(src))
}

// upload has n bytes filled in pieces.
func (d *Device) upload(ctx context.Context, op string, dst View, n int, fill func(to []byte, at uint64) error) error {
	if err := d.checkTransfer(op, dst, n); err != nil {
		return err
	}
	if ctx == nil {
		return argument(op, "ctx", "nil", "a context")
	}
	if m := dst.Buffer.mapped; m != nil {
		if err := d.finish(ctx, op); err != nil {
			return err
		}
		m = m[dst.Offset : dst.Offset+dst.Size]
		err := inPieces(ctx, dst.Size, d.stagingSize()/stagingPieces, func(ctx context.Context, _ int, take takePiece) (err error) {
			for at, n := take(); n > 0 && err == nil; at, n = take() {
				if err = ctx.Err(); err == nil {
					err = fill(m[at:at+n], at)
				}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("vk: %s: %w", op, err)
		}
		dst.Buffer.overwrittenByHost(dst)
		return nil
	}
	return d.stream(ctx, op, dst.Size, 1, fill, func(r *Recorder, at uint64, from View) error {
		return r.Copy(View{dst.Buffer, dst.Offset + at, from.Size}, from)
	})
}

// Stream brings the size bytes that src has from 0 on to staging memory, and has record say what
// the device does with each piece: from holds the bytes from at on. Pieces are multiples of unit
// bytes, but for the last. Stream waits for all of them. Several goroutines read src and call
// record, and pieces may run in any order.
//
// Errors: as UploadFrom; ErrArgument where unit is 0 or larger than a piece; those of record.
func (d *Device) Stream(ctx context.Context, size, unit uint64, src io.ReaderAt,
	record func(r *Recorder, at uint64, from View) error) error {
	const op = "stream"
	if err := d.usable(op); err != nil {
		return err
	}
	if most := d.stagingSize() / stagingPieces; unit == 0 || unit > most {
		return argument(op, "unit", fmt.Sprint(unit), "1 to %d", most)
	}
	switch {
	case ctx == nil:
		return argument(op, "ctx", "nil", "a context")
	case src == nil:
		return argument(op, "src", "nil", "a reader")
	case record == nil:
		return argument(op, "record", "nil", "a function")
	}
	return d.stream(ctx, op, size, unit, readFrom(src), record)
}

// readFrom fills pieces with what src has.
func readFrom(src io.ReaderAt) func(to []byte, at uint64) error {
	return func(to []byte, at uint64) error {
		n, err := src.ReadAt(to, int64(at))
		if n == len(to) {
			return nil
		}
		return cmp.Or(err, io.ErrUnexpectedEOF)
	}
}

// stream has pieces of staging memory filled, and what record records for each run.
func (d *Device) stream(ctx context.Context, op string, size, unit uint64, fill func(to []byte, at uint64) error,
	record func(r *Recorder, at uint64, from View) error) error {
	return d.staged(func(stage *Buffer) error {
		room := stage.Size() / stagingPieces
		return inPieces(ctx, size, room-room%unit, func(ctx context.Context, worker int, take takePiece) error {
			return d.pour(ctx, op, stage.View(uint64(2*worker)*room, 2*room), take, fill, record)
		})
	})
}

// takePiece returns the next piece of an upload, of no bytes once all are taken.
type takePiece func() (at, n uint64)

// inPieces has several workers take pieces of some bytes until there are none, and returns the
// first error, after which the context of the others ends.
func inPieces(ctx context.Context, size, piece uint64, work func(ctx context.Context, worker int, take takePiece) error) error {
	var next atomic.Uint64
	take := func() (at, n uint64) {
		at = next.Add(piece) - piece
		return at, min(piece, size-min(at, size))
	}
	workers := min(uint64(runtime.GOMAXPROCS(0)), stagingPieces/2, (size+piece-1)/piece)
	if workers == 1 {
		return work(ctx, 0, take)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	var once sync.Once
	var first error
	for i := range workers {
		group.Go(func() {
			if err := work(ctx, int(i), take); err != nil {
				once.Do(func() { first = err; stop() })
			}
		})
	}
	group.Wait()
	return first
}

// pour fills two pieces of staging memory by turns, and has what record records for each run.
func (d *Device) pour(ctx context.Context, op string, stage View, take takePiece, fill func(to []byte, at uint64) error,
	record func(r *Recorder, at uint64, from View) error) (err error) {
	var flying [2]*Commands
	wait := func(i int) (err error) {
		if c := flying[i]; c != nil {
			err, flying[i] = c.flying.Wait(ctx), nil
			err = cmp.Or(err, c.Release())
		}
		return err
	}
	for i := 0; err == nil; i = 1 - i {
		at, n := take()
		if n == 0 {
			break
		}
		from := stage.Buffer.View(stage.Offset+uint64(i)*stage.Size/2, n)
		if err = cmp.Or(ctx.Err(), wait(i)); err == nil {
			err = fill(from.Buffer.mapped[from.Offset:][:n:n], at)
		}
		if err == nil {
			flying[i], err = d.launch(func(r *Recorder) error { return record(r, at, from) })
		}
	}
	for i := range flying {
		err = cmp.Or(err, wait(i))
	}
	if err != nil {
		for _, c := range flying {
			_ = c.Release() // once the device has finished with it
		}
		return fmt.Errorf("vk: %s: %w", op, err)
	}
	return nil
}

// staged has a transfer use staging memory. After an error the device may still do so, and the
// memory is given up.
func (d *Device) staged(transfer func(stage *Buffer) error) (err error) {
	s := &d.staging
	s.turns <- struct{}{}
	defer func() { <-s.turns }()
	stage := s.take()
	if stage == nil {
		stage, err = d.NewBuffer(BufferSpec{Label: "staging", Size: d.stagingSize(), Memory: Readback})
	}
	if err == nil {
		err = transfer(stage)
	}
	if err != nil {
		_ = stage.Close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, stage)
	return nil
}

// take returns memory that is free, nil if there is none.
func (s *staging) take() (stage *Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free) - 1; n >= 0 {
		stage, s.free = s.free[n], s.free[:n]
	}
	return stage
}

// Download copies src to dst and waits: it sees what was submitted before. Sizes must
// agree; src may be any memory. What was said at Upload holds for it, too, but memory that the
// host reads past its caches goes through staging memory unless it was made as Upload.
//
// Errors: as Upload.
func (d *Device) Download(ctx context.Context, dst []byte, src View) error {
	const op = "download"
	if err := d.checkTransfer(op, src, len(dst)); err != nil {
		return err
	}
	if b := src.Buffer; b.mapped != nil && (b.cached || b.spec.Memory != DeviceLocal) {
		if err := d.finish(ctx, op); err != nil {
			return err
		}
		copy(dst, b.mapped[src.Offset:src.Offset+src.Size])
		return nil
	}
	if ctx == nil {
		return argument(op, "ctx", "nil", "a context")
	}
	return d.staged(func(stage *Buffer) error {
		for at := uint64(0); at < src.Size; at += stage.Size() {
			n := min(stage.Size(), src.Size-at)
			err := d.once(ctx, op, func(r *Recorder) error { return r.Copy(stage.View(0, n), View{src.Buffer, src.Offset + at, n}) })
			if err != nil {
				return err
			}
			copy(dst[at:], stage.mapped[:n])
		}
		return nil
	})
}

func (d *Device) checkTransfer(op string, v View, n int) error {
	if err := d.usable(op); err != nil {
		return err
	}
	if err := v.check(d, op, "view"); err != nil {
		return err
	}
	if uint64(n) != v.Size {
		return argument(op, "bytes", fmt.Sprint(n), "%d, the view's size", v.Size)
	}
	return nil
}

// finish waits for everything submitted before.
func (d *Device) finish(ctx context.Context, op string) error {
	if ctx == nil {
		return argument(op, "ctx", "nil", "a context")
	}
	f := &d.flights
	f.mu.Lock()
	list := slices.Clone(f.list)
	f.mu.Unlock()
	err := ctx.Err()
	for i := 0; i < len(list) && err == nil; i++ {
		_ = list[i].Wait(ctx) // what went wrong with it is for those who submitted it
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("vk: %s: %w", op, err)
	}
	return d.usable(op)
}

// Run records commands, runs them once and closes them. When the context ends first, it waits for
// the device all the same.
//
// Errors: record's; the context's; those of NewRecorder, Recorder.End, Commands.Submit and
// Pending.Wait.
func (d *Device) Run(ctx context.Context, record func(*Recorder) error) error {
	if ctx == nil {
		return argument("run", "ctx", "nil", "a context")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := d.launch(record)
	if err == nil {
		err = cmp.Or(c.flying.Wait(ctx), c.Close())
	}
	return err
}

// once records commands, runs them and closes them. If the context ends first, they are closed
// when the device has finished with them.
func (d *Device) once(ctx context.Context, op string, record func(*Recorder) error) error {
	var c *Commands
	err := ctx.Err()
	if err == nil {
		c, err = d.launch(record)
	}
	if err == nil {
		err = c.flying.Wait(ctx)
		err = cmp.Or(err, c.Release())
	}
	if err != nil {
		return fmt.Errorf("vk: %s: %w", op, err)
	}
	return nil
}

// launch records commands and submits them.
func (d *Device) launch(record func(*Recorder) error) (*Commands, error) {
	r, err := d.NewRecorder()
	if err != nil {
		return nil, err
	}
	if err := record(r); err != nil {
		r.Close()
		return nil, err
	}
	c, err := r.End()
	if err != nil {
		return nil, err
	}
	if _, err := c.Submit(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
