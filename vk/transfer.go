package vk

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
)

// stagingBuffer is the device's mapped memory for Upload and Download, made on
// first use.
type stagingBuffer struct {
	mu  sync.Mutex
	buf *Buffer
}

const stagingSize = 8 << 20

// Upload copies src to dst and waits. Work submitted before still sees the old bytes.
// Sizes must agree; dst may be any memory. Memory that is mapped is written where it is, once the
// device has finished what it was given; other memory is reached through 8 MiB of staging memory,
// which the device keeps and callers use one after the other. Callers who order their writes
// themselves write to Buffer.Mapped, which waits for nothing.
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
// goes. Errors: also src's.
func (d *Device) UploadFrom(ctx context.Context, dst View, src io.ReaderAt) error {
	return d.upload(ctx, "upload", dst, int(dst.Size), func(to []byte, at uint64) error {
		n, err := src.ReadAt(to, int64(at))
		if n == len(to) {
			return nil
		}
		return cmp.Or(err, io.ErrUnexpectedEOF)
	})
}

// upload has n bytes filled in pieces.
func (d *Device) upload(ctx context.Context, op string, dst View, n int, fill func(to []byte, at uint64) error) error {
	if err := d.checkTransfer(op, dst, n); err != nil {
		return err
	}
	if m := dst.Buffer.mapped; m != nil {
		if err := d.finish(ctx, op); err != nil {
			return err
		}
		m = m[dst.Offset : dst.Offset+dst.Size]
		for at := uint64(0); at < dst.Size; at += stagingSize {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("vk: %s: %w", op, err)
			}
			if err := fill(m[at:min(at+stagingSize, dst.Size)], at); err != nil {
				return fmt.Errorf("vk: %s: %w", op, err)
			}
		}
		dst.Buffer.overwrittenByHost(dst)
		return nil
	}
	return d.staged(ctx, op, dst.Size, fill, func(r *Recorder, stage View, at uint64) error {
		return r.Copy(View{dst.Buffer, dst.Offset + at, stage.Size}, stage)
	}, nil)
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
	return d.staged(ctx, op, src.Size, nil,
		func(r *Recorder, stage View, at uint64) error {
			return r.Copy(stage, View{src.Buffer, src.Offset + at, stage.Size})
		},
		func(stage []byte, at uint64) { copy(dst[at:], stage) })
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

// staged moves size bytes through the staging buffer in pieces.
func (d *Device) staged(ctx context.Context, op string, size uint64, before func([]byte, uint64) error,
	record func(*Recorder, View, uint64) error, after func([]byte, uint64)) error {
	s := &d.staging
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf == nil {
		var err error
		if s.buf, err = d.NewBuffer(BufferSpec{Label: "staging", Size: stagingSize, Memory: Readback}); err != nil {
			return err
		}
	}
	for at := uint64(0); at < size; at += stagingSize {
		n := min(stagingSize, size-at)
		if before != nil {
			if err := before(s.buf.mapped[:n], at); err != nil {
				return fmt.Errorf("vk: %s: %w", op, err)
			}
		}
		if err := d.once(ctx, op, func(r *Recorder) error { return record(r, s.buf.View(0, n), at) }); err != nil {
			_ = s.buf.Close() // the device may still use it
			s.buf = nil
			return err
		}
		if after != nil {
			after(s.buf.mapped[:n], at)
		}
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

// once records commands, runs them and closes them. If the context ends first, they are closed
// when the device has finished with them.
func (d *Device) once(ctx context.Context, op string, record func(*Recorder) error) error {
	r, err := d.NewRecorder()
	if err != nil {
		return err
	}
	if err := record(r); err != nil {
		r.Close()
		return err
	}
	c, err := r.End()
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	if e := c.Release(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("vk: %s: %w", op, err)
	}
	return nil
}
