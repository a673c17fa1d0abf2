package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/vk"
)

// DecodeOptions describes the decode attention to time: one C4A layer, each token
// of the batch a request of its own with context tokens. What is 0 gets its
// default, the second one on a CPU.
type DecodeOptions struct {
	Common
	Heads   int   // query heads: 64
	TopK    int   // compressed rows that each token attends: 512
	Window  int   // rows of the sliding window: 128
	Batches []int // tokens: 1 to 128 by powers of two; 1, 2, 4
	Context int   // tokens of each request: 65536; 4096
}

// withDefaults fills in what is 0: a V4-Flash layer, at sizes that suit the kind of
// device.
func (o DecodeOptions) withDefaults(t vk.DeviceType) DecodeOptions {
	set := func(v *int, gpu, cpu int) {
		if *v == 0 {
			*v = gpu
			if t == vk.TypeCPU {
				*v = cpu
			}
		}
	}
	set(&o.Heads, 64, 64)
	set(&o.TopK, 512, 512)
	set(&o.Window, 128, 128)
	set(&o.Context, 65536, 4096)
	o.Common = o.Common.withDefaults(t, [2]int{200, 5}, [2]int{20, 1})
	if len(o.Batches) == 0 {
		o.Batches = []int{1, 2, 4, 8, 16, 32, 64, 128}
		if t == vk.TypeCPU {
			o.Batches = []int{1, 2, 4}
		}
	}
	return o
}

func (o DecodeOptions) check() error {
	bad := func(arg string, got int, want string, a ...any) error {
		return &vk.ArgumentError{Op: "bench: decode", Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
	}
	switch {
	case o.Heads < 1 || o.Heads > 128:
		return bad("heads", o.Heads, "1 to 128")
	case o.TopK < 1 || o.TopK > 65536:
		return bad("topk", o.TopK, "1 to 65536")
	case o.Window < 1 || o.Window > 65536:
		return bad("window", o.Window, "1 to 65536")
	case o.Context/4 < o.TopK || o.Context < o.Window || o.Context > 1<<20:
		return bad("context", o.Context, "%d to %d tokens, so that top-k and window are full", max(4*o.TopK, o.Window), 1<<20)
	}
	for _, b := range o.Batches {
		if b < 1 || b > 4096 {
			return bad("batch", b, "1 to 4096")
		}
	}
	return errors.Join(o.Common.check("bench: decode"), o.checkVariant("bench: decode", []string{"decode_c4a"}))
}

// Row is the result for one batch size.
type Row struct {
	Op      string `json:"op"`
	Variant string `json:"variant"`
	Heads   int    `json:"heads"`
	TopK    int    `json:"topk"`
	Window  int    `json:"window"`
	Batch   int    `json:"batch"`
	Context int    `json:"context"`

	Attend Time `json:"attend"` // the attention kernel, with the merge of its parts
	Step   Time `json:"step"`   // slots, insert, indices and attention

	Bytes       float64 `json:"bytes"`        // least traffic of the attention: rows read once a token, q, out, indices
	GBs         float64 `json:"gbs"`          // of Attend.Median
	TFLOPs      float64 `json:"tflops"`       // 4 * T * H * (topk+window) * 512 over Attend.Median
	ShareCopy   float64 `json:"share_copy"`   // GBs over the measured copy bandwidth
	ShareMatrix float64 `json:"share_matrix"` // TFLOPs over the measured matrix rate

	Sets   int     `json:"sets"`             // input sets rotated
	Status string  `json:"status"`           // "ok" or "wrong"
	Error  float64 `json:"error"`            // of the check, see verify.Result
	Bound  float64 `json:"bound"`            // likewise
	Detail string  `json:"detail,omitempty"` // of a wrong result
}

// Decode checks and times the decode attention for every batch size and hands each
// row to emit as it is done. Rows whose check failed have status "wrong" and no
// times; the error is then ErrWrong.
func Decode(ctx context.Context, dev *vk.Device, o DecodeOptions, l Limits, p Progress, emit func(Row)) error {
	o = o.withDefaults(dev.Adapter().Type)
	if err := o.check(); err != nil {
		return err
	}
	var wrong error
	for _, batch := range o.Batches {
		row, err := decodeBatch(ctx, dev, o, batch, l, p)
		if err != nil {
			return fmt.Errorf("bench: batch %d: %w", batch, err)
		}
		emit(row)
		if row.Status != "ok" {
			wrong = ErrWrong
		}
	}
	return wrong
}

func decodeBatch(ctx context.Context, dev *vk.Device, o DecodeOptions, batch int, l Limits, p Progress) (Row, error) {
	row := Row{Op: "decode_c4a", Heads: o.Heads, TopK: o.TopK, Window: o.Window, Batch: batch, Context: o.Context}
	p.Step(fmt.Sprintf("batch %d: filling caches", batch))
	w, err := newWorkload(ctx, dev, o, batch, p)
	if err != nil {
		return row, err
	}
	defer w.Close()
	row.Variant, row.Sets = w.decode.Variant(), len(w.sets)

	p.Step(fmt.Sprintf("batch %d: checking %s", batch, row.Variant))
	res, err := w.verify(ctx)
	if err != nil {
		return row, err
	}
	row.Status, row.Error, row.Bound = "ok", res.Error, res.Bound
	if !res.Pass {
		row.Status, row.Detail = "wrong", res.Detail
		return row, nil
	}

	p.Step(fmt.Sprintf("batch %d: timing", batch))
	if err := wake(ctx, dev, w.recordStep); err != nil {
		return row, err
	}
	if row.Step, err = sample(ctx, dev, o.Warmup, o.Reps, w.recordStep); err != nil {
		return row, err
	}
	if row.Attend, err = sample(ctx, dev, o.Warmup, o.Reps, w.recordAttend); err != nil {
		return row, err
	}
	t, h, rows := float64(batch), float64(o.Heads), float64(o.TopK+o.Window)
	row.Bytes = t * (rows*(cache.SlotBytes+4) + h*(2*2*512))
	flop := 4 * t * h * rows * 512
	row.GBs = row.Bytes / row.Attend.Median / 1e3
	row.TFLOPs = flop / row.Attend.Median / 1e6
	row.ShareCopy, row.ShareMatrix = row.GBs/l.CopyGBs, row.TFLOPs/l.MatrixTFLOPs
	return row, nil
}

// wake keeps the device busy for a while: an idle GPU runs at a fraction of its
// clock.
func wake(ctx context.Context, dev *vk.Device, record func(r *vk.Recorder, i int) error) error {
	return wakeFor(ctx, dev, record, wakeAfterPause)
}

// wakeFor is wake for some time.
func wakeFor(ctx context.Context, dev *vk.Device, record func(r *vk.Recorder, i int) error, long time.Duration) error {
	if dev.Adapter().Type == vk.TypeCPU {
		return nil
	}
	rec, err := dev.NewRecorder()
	if err != nil {
		return err
	}
	for i := range 50 {
		if err := record(rec, i); err != nil {
			rec.Close()
			return err
		}
	}
	cmd, err := rec.End()
	if err != nil {
		return err
	}
	for start := time.Now(); err == nil && time.Since(start) < long; {
		err = cmd.Run(ctx)
	}
	return errors.Join(err, cmd.Close())
}

func (w *workload) recordStep(r *vk.Recorder, i int) error {
	s := w.sets[i%len(w.sets)]
	if err := w.decode.RecordStep(r, s.step); err != nil {
		return err
	}
	return w.decode.RecordLayer(r, s.step, s.layer)
}

func (w *workload) recordAttend(r *vk.Recorder, i int) error {
	return w.decode.RecordAttend(r, w.sets[i%len(w.sets)].layer)
}
