package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// IndexerOps are the operations of the indexer suite, in the order of a step:
// compressors, queries, logits, selection.
var IndexerOps = []string{
	"compress_main4", "compress_main128", "compress_idx_fp8", "compress_idx_mxfp4",
	"query_quant_fp8", "query_quant_mxfp4", "gather_keys_fp8", "gather_keys_mxfp4",
	"logits_fp8", "logits_mxfp4", "topk", "select_fp8", "select_mxfp4",
}

// IndexerOptions describes what to time of the indexer and the compressors. In a
// decode case every token is a request of its own; in a compressor's, every token
// completes a group. A prefill case is one request's.
type IndexerOptions struct {
	Common
	Ops      []string // of IndexerOps, a name or its beginning; nil: all
	Heads    int
	TopK     []int // widths of the selections
	Batches  []int // tokens of a decode step
	Prefill  []int // tokens of a prefill step of one request
	Contexts []int // tokens of each request; it has a fourth of them in keys
	Rows     int   // suite memory: rows that are gathered

	only     func(op, name string) bool // cases to run; nil: all
	together int                        // cases to prepare at a time; 0: what suits the device
	floors   *floors                    // of the cases that have one
}

func (o IndexerOptions) withDefaults(t vk.DeviceType) IndexerOptions {
	cpu := t == vk.TypeCPU
	one := func(v *int, gpu, slow int) {
		if *v == 0 {
			*v = gpu
			if cpu {
				*v = slow
			}
		}
	}
	list := func(v *[]int, gpu, slow []int) {
		if *v == nil {
			*v = gpu
			if cpu {
				*v = slow
			}
		}
	}
	one(&o.Heads, 64, 64)
	one(&o.Rows, 65536, 512)
	o.Common = o.Common.withDefaults(t, [2]int{100, 3}, [2]int{20, 1})
	list(&o.TopK, []int{512, 1024}, []int{512})
	list(&o.Batches, []int{1, 32, 128}, []int{1, 2})
	list(&o.Prefill, []int{4096}, []int{256})
	list(&o.Contexts, []int{16384, 131072, 1 << 20}, []int{4096})
	return o
}

// check looks at the options of a suite with these operations and says which of them
// were asked for.
func (o IndexerOptions) check(suite string, all []string) (ops []string, err error) {
	for _, c := range []struct {
		arg       string
		v         []int
		low, high int
	}{
		{"heads", []int{o.Heads}, 1, 128}, {"topk", o.TopK, 1, 2048}, {"batch", o.Batches, 1, 4096}, {"prefill", o.Prefill, 128, 65536},
		{"context", o.Contexts, 512, 1 << 22},
	} {
		for _, v := range c.v {
			if v < c.low || v > c.high {
				return nil, &vk.ArgumentError{Op: suite, Arg: c.arg, Got: fmt.Sprint(v), Want: fmt.Sprintf("%d to %d", c.low, c.high)}
			}
		}
	}
	if err := o.Common.check(suite); err != nil {
		return nil, err
	}
	return chooseOps(suite, o.Ops, all)
}

// OpRow is the result for one part of one case of an operation.
type OpRow struct {
	Op      string `json:"op"`
	Case    string `json:"case"` // sizes, as name=value with slashes between
	Part    string `json:"part,omitempty"`
	Variant string `json:"variant"`

	Time        Time    `json:"time"`
	Bytes       float64 `json:"bytes"`        // the least that has to be read and written
	Flop        float64 `json:"flop"`         // of matrix products; 0 where there are none
	GBs         float64 `json:"gbs"`          // of Time.Median
	TFLOPs      float64 `json:"tflops"`       // of Time.Median
	ShareCopy   float64 `json:"share_copy"`   // GBs over the measured copy bandwidth
	ShareMatrix float64 `json:"share_matrix"` // TFLOPs over the measured matrix rate
	Peers       []Peer  `json:"peers,omitempty"`

	// As many launches one behind the other as the part has, of which the first reads its
	// bytes and none does anything else; 0 where they were not timed.
	FloorUS       float64 `json:"floor_us,omitempty"`
	FloorLaunches int     `json:"floor_launches,omitempty"`
	ShareFloor    float64 `json:"share_floor,omitempty"` // FloorUS over Time.Median

	Sets   int     `json:"sets"` // input sets rotated
	Status string  `json:"status"`
	Error  float64 `json:"error"` // of the check, see internal/lab/verify
	Bound  float64 `json:"bound"`
	Detail string  `json:"detail,omitempty"`
}

// Indexer checks and times the cases that the options ask for and hands each row to
// emit as it is done. Rows whose check failed have status "wrong" and no times; the
// error is then ErrWrong. A case for which the device has not enough memory has
// status "skipped".
func Indexer(ctx context.Context, dev *vk.Device, o IndexerOptions, l Limits, p Progress, emit func(OpRow)) error {
	o = o.withDefaults(dev.Adapter().Type)
	ops, err := o.check("bench: indexer", IndexerOps)
	if err != nil {
		return err
	}
	if err := o.checkVariant("bench: indexer", ops); err != nil {
		return err
	}
	return timeCases(ctx, dev, o, indexerCases(o), l, p, emit)
}

// indexerCases lists the cases in the order of IndexerOps.
func indexerCases(o IndexerOptions) []opCase {
	var all []opCase
	for _, op := range IndexerOps {
		if chosen(o.Ops, op) {
			all = append(all, casesOf(op, o)...)
		}
	}
	return all
}

func casesOf(op string, o IndexerOptions) []opCase {
	kind, format := op, formatOf(op)
	if format != 0 {
		kind = strings.TrimSuffix(op, "_"+format.String())
	}
	switch kind {
	case "compress_main4", "compress_main128", "compress_idx":
		return compressCases(op, o)
	case "query_quant":
		return queryCases(op, o, format)
	case "gather_keys":
		return gatherCases(op, o, format)
	case "logits":
		return logitsCases(op, o, format)
	case "topk":
		return topkCases(op, o)
	case "select":
		return selectCases(op, o, format)
	}
	return nil
}
