package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// CompareOptions describe a comparison with what others take.
type CompareOptions struct {
	Common
	Peers PeerTable
	Ops   []string // operations, names or how they begin; nil: all
	Cases []string // parts of names of cases, see OpOptions; nil: all
}

// against are operations that no peer was measured with on this device, and which of
// our own they are compared with, in the same cases: half the bytes should not take longer.
var against = map[string]string{"indexer_logits_mxfp4": "indexer_logits_fp8"}

// OpOptions choose the cases that are compared.
func (o CompareOptions) OpOptions() OpOptions {
	measured := map[string]bool{}
	for _, r := range o.Peers.Rows {
		measured[r.Op+" "+r.Case] = true
	}
	return OpOptions{Common: o.Common, Ops: o.Ops, Cases: o.Cases, only: func(op, name string) bool {
		if other := against[op]; other != "" {
			op = other
		}
		return measured[op+" "+name] || slices.ContainsFunc(goals, func(g goal) bool { return g.share > 0 && g.hasCase(op, name) })
	}}
}

// Compare checks and times the cases that the table has measurements of and those that have a
// goal without, and hands each row to emit as it is done, with the table's measurements.
// Errors: as Ops.
func Compare(ctx context.Context, dev *vk.Device, o CompareOptions, l Limits, p Progress, emit func(OpRow)) error {
	ours := map[string]float64{} // microseconds of the cases so far
	return Ops(ctx, dev, compareSuite, o.OpOptions(), l, p, func(r OpRow) {
		r.Peers = o.Peers.Of(r.Op, r.Case, r.Part)
		if us := ours[against[r.Op]+" "+r.Case]; us > 0 {
			r.Peers = append(r.Peers, Peer{Name: "our " + against[r.Op], US: us})
		}
		if r.Status == "ok" && r.Part == "" {
			ours[r.Op+" "+r.Case] = r.Time.Median
		}
		emit(r)
	})
}

// share returns the part of what the device can do that a row reaches: of bytes or of matrix
// products, whichever limits it more.
func (r OpRow) share() float64 { return max(r.ShareCopy, r.ShareMatrix) }

// goal says what a group of rows is to reach: quotients of our time by that of the first
// peer, at most so much on (geometric) average and for each row, or shares of what the
// device can do, at least so much for each.
type goal struct {
	name         string
	ops          []string
	cases        []string // as OpOptions.Cases
	part         string
	average, row float64 // quotients; 0: none
	share        float64 // least share; 0: none
	aim          float64
}

// has reports whether a row belongs to the goal.
func (g goal) has(r OpRow) bool { return g.hasCase(r.Op, r.Case) && (g.part == "" || g.part == r.Part) }

func (g goal) hasCase(op, name string) bool {
	return slices.Contains(g.ops, op) && hasParts(name, g.cases)
}

const decodeOp = "flashmla_sparse_decode"

// goals returns the names of the goals that a row belongs to, with semicolons.
func (r OpRow) goals() string {
	var names []string
	for _, g := range goals {
		if g.has(r) {
			names = append(names, g.name)
		}
	}
	return strings.Join(names, "; ")
}

// goals are those of the project: no slower than the best known kernels for the shapes
// that a model's step has.
var goals = []goal{
	{name: "sparse decode, 64 heads, 512+128 rows", ops: []string{decodeOp}, cases: []string{"heads=64/topk=512"},
		average: 1.05, row: 1.15, aim: 0.9},
	{name: "sparse decode, 128 heads, 1024+128 rows", ops: []string{decodeOp}, cases: []string{"heads=128/topk=1024"}, average: 1.3, aim: 1},
	{name: "sparse decode, window only", ops: []string{decodeOp}, cases: []string{"topk=0"}, average: 1.2, aim: 0.9},
	{name: "sparse decode, 8192+128 rows", ops: []string{decodeOp}, cases: []string{"topk=8192"}, share: 0.4, aim: 0.6},
	{name: "sparse prefill", ops: []string{"flashmla_sparse_prefill"}, average: 2, aim: 1.6},
	{name: "FP8 paged logits", ops: []string{"indexer_logits_fp8"}, average: 1.3, aim: 1},
	{name: "MXFP4 paged logits", ops: []string{"indexer_logits_mxfp4"}, average: 1, aim: 0.8},
	{name: "score and top-k in one, k 1024", ops: []string{"indexer_select_fp8"}, cases: []string{"k=1024"}, average: 1.1, aim: 0.8},
	{name: "score and top-k in one, k 512, the peer being the sum of two launches timed alone",
		ops: []string{"indexer_select_fp8"}, cases: []string{"k=512"}, average: 1.1, aim: 0.8},
	{name: "insert 4096 rows", ops: []string{"quantize_and_insert_k_cache"}, cases: []string{"tokens=4096"}, average: 1, aim: 1},
	{name: "gather 65536 rows", ops: []string{"dequantize_and_gather_k_cache"}, average: 1, aim: 1},
	{name: "inverse rotation and quantisation of o", ops: []string{"fused_inv_rope_fp8_quant"}, average: 1, aim: 1},
	{name: "q norm, rotation and insert", ops: []string{"fused_qnorm_rope_kv_insert"}, average: 1, aim: 1},
	{name: "q and kv norms", ops: []string{"fused_q_kv_rmsnorm"}, average: 1, aim: 1},
	{name: "indexer queries", ops: []string{"fused_indexer_q_rope_quant_fp8", "fused_indexer_q_rope_quant_mxfp4"}, average: 1, aim: 1},
	{name: "layer products, 1 to 16 tokens", ops: []string{"linear"}, cases: []string{"tokens=1", "tokens=4", "tokens=16"},
		share: 0.8, aim: 0.9},
	{name: "layer products, 4096 tokens", ops: []string{"linear"}, cases: []string{"tokens=4096"}, share: 0.45, aim: 0.6},
}

// outcome says how far a goal was reached.
type outcome struct {
	goal
	values   []float64 // quotients, or shares
	worst    float64
	worstRow string
	// Of rows that have a floor: how near ours come to it, and the share of the limit that launches
	// would reach that took no longer.
	ours, floors     []float64
	reached, aimedAt bool
}

// outcomes judges the goals that any row belongs to. Rows that are not right count as
// missing the goal.
func outcomes(rows []OpRow) (list []outcome) {
	for _, g := range goals {
		x := outcome{goal: g, reached: true}
		for _, r := range rows {
			if !g.has(r) {
				continue
			}
			value := 0.0
			switch {
			case r.Status != "ok":
				x.reached = false
				continue
			case g.share > 0:
				value = r.share()
			case len(r.Peers) > 0:
				value = r.Time.Median / r.Peers[0].US
			default:
				continue
			}
			if r.ShareFloor > 0 {
				x.ours, x.floors = append(x.ours, r.ShareFloor), append(x.floors, min(1, r.share()/r.ShareFloor))
			}
			x.values = append(x.values, value)
			if x.worstRow == "" || (g.share > 0) == (value < x.worst) {
				x.worst, x.worstRow = value, r.Op+" "+r.Case
			}
		}
		if len(x.values) == 0 {
			continue
		}
		if g.share > 0 {
			x.reached = x.reached && x.worst >= g.share
			x.aimedAt = x.reached && x.worst >= g.aim
		} else {
			x.reached = x.reached && geomean(x.values) <= g.average && (g.row == 0 || x.worst <= g.row)
			x.aimedAt = x.reached && geomean(x.values) <= g.aim
		}
		list = append(list, x)
	}
	return list
}

func geomean(values []float64) float64 {
	logs := 0.0
	for _, v := range values {
		logs += math.Log(v)
	}
	return math.Exp(logs / float64(len(values)))
}

// String returns a line for a report.
func (x outcome) String() string {
	verdict := "missed"
	if x.aimedAt {
		verdict = "reached, with the aim"
	} else if x.reached {
		verdict = "reached"
	}
	if len(x.floors) > 0 {
		verdict += fmt.Sprintf("; launches that only read reach %.1f%% of the limit in geometric mean, least %.1f%%; "+
			"ours reach %.1f%% of what they do",
			100*geomean(x.floors), 100*slices.Min(x.floors), 100*geomean(x.ours))
	}
	if x.share > 0 {
		return fmt.Sprintf("%s: share of the limit %.1f%% in geometric mean of %d rows, least %.1f%% (%s); at least %.0f%%, aim %.0f%%: %s",
			x.name, 100*geomean(x.values), len(x.values), 100*x.worst, x.worstRow, 100*x.share, 100*x.aim, verdict)
	}
	each := ""
	if x.row > 0 {
		each = fmt.Sprintf(", each at most %.2f", x.row)
	}
	return fmt.Sprintf("%s: %.3f times the peer's time in geometric mean of %d rows, most %.3f (%s); at most %.2f%s, aim %.2f: %s",
		x.name, geomean(x.values), len(x.values), x.worst, x.worstRow, x.average, each, x.aim, verdict)
}
