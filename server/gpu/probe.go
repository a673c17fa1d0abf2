package gpu

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// decoded has the device decode codes, whole chunks of 16 bytes.
func decoded(dev *vk.Device, format format, halves bool, codes []byte) (values []float32, err error) {
	columns := len(codes)
	if format == mxfp4 {
		columns *= 2
	}
	ctx := context.Background()
	src, err := tensor.New(dev, "codes", tensor.U8, len(codes))
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := tensor.New(dev, "decoded codes", tensor.F32, columns)
	if err != nil {
		return nil, err
	}
	defer dst.Close()
	if err := src.Upload(ctx, codes); err != nil {
		return nil, err
	}
	push := struct{ chunks uint32 }{size(len(codes) / 16)}
	err = once(ctx, dev, func(rec *vk.Recorder) error {
		if format == mxfp4 {
			if err := pack(rec, dev, mxfp4, src.View()); err != nil {
				return err
			}
		}
		return launch(rec, &built{dev: dev}, "decode", [3]uint32{1, 1, 1}, 0, &push, []uint32{uint32(format), flag(halves)},
			src.View(), dst.View())
	})
	if err != nil {
		return nil, err
	}
	data := make([]byte, 4*columns)
	if err := dst.Download(ctx, data); err != nil {
		return nil, err
	}
	for i := range columns {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return values, nil
}

// once records something, runs it and forgets it.
func once(ctx context.Context, dev *vk.Device, record func(rec *vk.Recorder) error) error {
	rec, err := dev.NewRecorder()
	if err != nil {
		return err
	}
	defer rec.Close()
	if err := record(rec); err != nil {
		return err
	}
	c, err := rec.End()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx)
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
