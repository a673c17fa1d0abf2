package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

// AttentionOps are the operations of the attention suite:
//
//	decode_c4a     the window's 128 rows and the indexer's picks: 512 for up to 64 heads, else 1024
//	decode_window  the window's 128 rows only
//	decode_c128a   the window's 128 rows and 8192 compressed entries, as at a million tokens
//	prefill        4096 queries over a bf16 workspace
var AttentionOps = []string{"decode_c4a", "decode_window", "decode_c128a", "prefill"}

// AttentionOptions describes what to time of attention: the kernel and the merge of
// its parts, without the rest of a step.
type AttentionOptions struct {
	Common
	Ops     []string // of AttentionOps, a name or its beginning; nil: all
	Heads   []int    // 64 and 128
	Batches []int    // tokens of a decode step, instead of the operation's own
	TopK    []int    // widths of the lists, multiples of 64, instead of the operation's own
	Rows    []int    // prefill: rows of the workspace, 8192 and 32768

	only func(op, name string) bool // cases to run; nil: all
}

// Attention checks and times the cases that the options ask for, as Indexer does.
func Attention(ctx context.Context, dev *vk.Device, o AttentionOptions, l Limits, p Progress, emit func(OpRow)) error {
	cpu := dev.Adapter().Type == vk.TypeCPU
	if err := o.check(); err != nil {
		return err
	}
	common := IndexerOptions{Common: o.Common}.withDefaults(dev.Adapter().Type)
	common.only = o.only
	return timeCases(ctx, dev, common, attentionCases(o, cpu), l, p, emit)
}

func (o AttentionOptions) check() error {
	for _, c := range []struct {
		arg       string
		v         []int
		low, high int
	}{
		{"heads", o.Heads, 1, 128}, {"topk", o.TopK, 1, 65536}, {"batch", o.Batches, 1, 4096}, {"rows", o.Rows, pattern, 1 << 20},
	} {
		for _, v := range c.v {
			if v < c.low || v > c.high {
				return &vk.ArgumentError{Op: "bench: attention", Arg: c.arg, Got: fmt.Sprint(v), Want: fmt.Sprintf("%d to %d", c.low, c.high)}
			}
		}
	}
	for _, n := range o.TopK {
		if n%64 != 0 { // sets begin in the middle of a tensor
			return &vk.ArgumentError{Op: "bench: attention", Arg: "topk", Got: fmt.Sprint(n), Want: "a multiple of 64"}
		}
	}
	ops, err := chooseOps("bench: attention", o.Ops, AttentionOps)
	if err != nil {
		return err
	}
	return errors.Join(o.Common.check("bench: attention"), o.checkVariant("bench: attention", ops))
}

// attentionCases lists the cases in the order of AttentionOps.
func attentionCases(o AttentionOptions, cpu bool) (all []opCase) {
	pick := func(given, gpu, slow []int) []int {
		if given != nil {
			return given
		}
		if cpu {
			return slow
		}
		return gpu
	}
	for _, op := range AttentionOps {
		if !chosen(o.Ops, op) {
			continue
		}
		for _, heads := range pick(o.Heads, []int{64, 128}, []int{64}) {
			if op == "prefill" {
				for _, topk := range pick(o.TopK, []int{640, 1152}, []int{64}) {
					for _, rows := range pick(o.Rows, []int{8192, 32768}, []int{8192}) {
						s := prefillShape{4096, heads, topk, rows}
						if cpu {
							s.tokens = 8
						}
						all = append(all, opCase{op, s.String(), func(_ context.Context, r *opRig) error { return r.sparsePrefill(s) }})
					}
				}
				continue
			}
			compPage, batches, widths := 0, []int{1, 2, 8, 32, 64, 128, 256}, []int{0}
			switch op {
			case "decode_c4a":
				compPage, widths = page, pick(o.TopK, []int{512 * max(1, heads/64)}, []int{64})
			case "decode_c128a":
				compPage, batches, widths = 2, []int{1, 8, 32}, pick(o.TopK, []int{8192}, []int{512})
			}
			for _, topk := range widths {
				for _, batch := range pick(o.Batches, batches, []int{1}) {
					s := attendShape{heads: heads, topk: topk, window: 128, batch: batch, compPage: compPage}
					all = append(all, opCase{op, s.String(), func(_ context.Context, r *opRig) error { return r.attend(s) }})
				}
			}
		}
	}
	return all
}
