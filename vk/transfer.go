package vk

import (
	"context"
	"fmt"
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
// Sizes must agree; dst may be any memory. Memory that is not mapped is reached through
// 8 MiB of staging memory, which the device keeps and callers use one after the other.
// Callers who order their writes themselves write to Buffer.Mapped, which waits for nothing.
//
// Errors: ErrArgument; the context's (dst is then partly written); ErrClosed,
// ErrDeviceLost, ErrOutOfHostMemory, ErrOutOfDeviceMemory; the error of
// DeviceOptions.MemoryHook.
func (d *Device) Upload(ctx context.Context, dst View, src []byte) error {
	const op = "upload"
	if err := d.checkTransfer(op, dst, len(src)); err != nil {
		return err
	}
	if m := dst.Buffer.mapped; m != nil {
		if err := d.finish(ctx, op); err != nil {
			return err
		}
		copy(m[dst.Offset:], src)
		return nil
	}
	return d.staged(ctx, op, dst.Size, func(stage []byte, at uint64) { copy(stage, src[at:]) },
		func(r *Recorder, stage View, at uint64) error {
			return r.Copy(View{dst.Buffer, dst.Offset + at, stage.Size}, stage)
		}, nil)
}

// Download copies src to dst and waits: it sees what was submitted before. Sizes must
// agree; src may be any memory.
//
// Errors: as Upload.
func (d *Device) Download(ctx context.Context, dst []byte, src View) error {
	const op = "download"
	if err := d.checkTransfer(op, src, len(dst)); err != nil {
		return err
	}
	if m := src.Buffer.mapped; m != nil {
		if err := d.finish(ctx, op); err != nil {
			return err
		}
		copy(dst, m[src.Offset:src.Offset+src.Size])
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
func (d *Device) staged(ctx context.Context, op string, size uint64, before func([]byte, uint64),
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
			before(s.buf.mapped[:n], at)
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

// finish waits for everything submitted before. Commands run in order, so empty ones
// that are submitted now finish last.
func (d *Device) finish(ctx context.Context, op string) error {
	return d.once(ctx, op, func(*Recorder) error { return nil })
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
