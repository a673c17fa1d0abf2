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
	moved, err := tensor.New(dev, "moved codes", tensor.U8, len(codes))
	if err != nil {
		return nil, err
	}
	defer moved.Close()
	dst, err := tensor.New(dev, "decoded codes", tensor.F32, columns)
	if err != nil {
		return nil, err
	}
	defer dst.Close()
	if err := src.Upload(ctx, codes); err != nil {
		return nil, err
	}
	push := struct{ chunks uint32 }{size(len(codes) / 16)}
	from := src
	err = dev.Run(ctx, func(rec *vk.Recorder) error {
		if format == mxfp4 {
			if err := unpack(rec, dev, mxfp4, 16, len(codes)/16, src.View(), moved.View(), vk.View{}); err != nil {
				return err
			}
			from = moved
		}
		return launch(rec, &built{dev: dev}, "decode", [3]uint32{1, 1, 1}, 0, &push, []uint32{uint32(format), flag(halves)},
			from.View(), dst.View())
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

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
