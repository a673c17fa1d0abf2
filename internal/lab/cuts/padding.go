package cuts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
)

// padding takes steps whose inputs are on the device, with NaN in the rows behind their tokens.
func padding(ctx context.Context, l *Lab) error {
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64})
	if err != nil {
		return err
	}
	defer e.Close()
	for _, from := range []int{0, 254} {
		var clean, x *line
		if clean, err = p.resume(ctx, e, from); err != nil {
			return err
		}
		if x, err = p.resume(ctx, e, from); err != nil {
			return err
		}
		for _, n := range []int{3, 35, 5, 1, 3} {
			if err := errors.Join(clean.take(ctx, n, n), x.poisoned(ctx, n)); err != nil {
				return err
			}
		}
		if err := errors.Join(same(x, clean), p.check(ctx, x), x.s.Close(), clean.s.Close()); err != nil {
			return fmt.Errorf("from token %d: %w", from, err)
		}
	}
	return nil
}

// poisoned takes the next n tokens in a step with NaN behind them.
func (x *line) poisoned(ctx context.Context, n int) error {
	at := x.s.Len()
	st, err := x.e.Begin(ctx, pipeline.Chunk{Session: x.s, Tokens: n})
	if err != nil {
		return err
	}
	defer st.Abort()
	for i := range x.l.layers {
		var rows []byte
		for _, v := range x.st.inputs(i, at, at+n) {
			rows = binary.LittleEndian.AppendUint16(rows, numfmt.BF16Encode(v))
		}
		for len(rows) < 2*hidden*st.Size() {
			rows = binary.LittleEndian.AppendUint16(rows, 0x7fc0)
		}
		if err := st.Input(i).Upload(ctx, rows); err != nil {
			return err
		}
	}
	if err := st.Run(ctx); err != nil {
		return err
	}
	for i := range x.got {
		var out []uint16
		if out, err = download[uint16](ctx, st.Output(i).Rows(0, n)); err != nil {
			return err
		}
		for _, v := range out {
			x.got[i].Out = append(x.got[i].Out, numfmt.BF16Decode(v))
		}
		if x.l.picks(i) {
			picks, err := download[int32](ctx, st.TopK(i).Rows(0, n))
			if err != nil {
				return err
			}
			x.got[i].TopK = append(x.got[i].TopK, picks...)
		}
	}
	return st.Commit()
}

func download[T any](ctx context.Context, t tensor.Tensor) ([]T, error) {
	b, v := make([]byte, t.Bytes()), make([]T, t.Len())
	err := t.Download(ctx, b)
	if err == nil {
		_, err = binary.Decode(b, binary.LittleEndian, v)
	}
	return v, err
}
