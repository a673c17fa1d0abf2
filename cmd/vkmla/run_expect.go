package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// How far a layer may be from what is expected of it. Both bound 1 - 2*sum(xy)/sum(x^2+y^2),
// over a whole layer and for any single token: ten times what the rounding of caches, of
// queries and of products to bf16 made of layers that were recorded in float32. A wrong
// operation moves a layer by far more. Picks that lie near the last one flip with such
// roundings: up to 3 % of them in layers with few index heads and small widths, a third of
// picksBound, and up to 5 % where an indexer picks a single entry.
const (
	layerBound = 5e-3
	tokenBound = 1e-2
	picksBound = 0.1
)

// expectation compares layers with an archive that has out of each, and if it likes topk of those
// with picks, or picks of those with an indexer.
type expectation struct {
	path, prefix string
	file         *vectors.Archive
	rows         rowWriter
	origin       describe.Origin
	sum          verify.Summary
}

// openExpectation opens the archive; output says how rows are printed.
func openExpectation(f runFlags, stdout io.Writer) (*expectation, error) {
	if err := checkRowFormat("run", f.output); err != nil {
		return nil, err
	}
	file, err := vectors.OpenArchive(f.expect)
	if err != nil {
		return nil, fmt.Errorf("run: expect: %w", err)
	}
	return &expectation{path: f.expect, prefix: f.prefix, file: file, rows: newRows(stdout, f.output)}, nil
}

// layer compares the outputs of a layer, and topk, which is the zero Array without picks. stem is
// what the names of its arrays begin with, after the prefix, and from that of the layer whose
// picks it attends.
func (e *expectation) layer(stem, from, op string, out, topk vectors.Array) error {
	out, topk = rows(out), rows(topk)
	name := e.prefix + stem
	put := func(what, class string, r verify.Result) {
		row := verify.Row{Op: op, Case: what, Class: class, Status: verify.Pass, Source: e.path, Detail: r.Detail}
		if !r.Pass {
			row.Status = verify.Fail
		}
		row.Error, row.Bound = verify.Finite(r.Error), verify.Finite(r.Bound)
		e.put(row)
	}
	same := slices.Repeat([]bool{true}, out.Dim(0))
	picked := name + "topk"
	if !e.file.Has(picked) {
		picked = e.prefix + from + "picks"
	}
	if e.file.Has(picked) && !topk.IsZero() {
		want, err := e.file.Array(picked)
		if err != nil {
			return fmt.Errorf("run: expect: %w", err)
		}
		put("topk", verify.ClassSet, comparePicks(topk, want, same))
	}
	if !e.file.Has(name + "out") {
		e.put(verify.Row{Op: op, Case: "out", Class: verify.ClassTolerance, Status: verify.Missing, Source: e.path,
			Detail: fmt.Sprintf("there is no array %sout", name)})
		return nil
	}
	want, err := e.file.Array(name + "out")
	if err != nil {
		return fmt.Errorf("run: expect: %w", err)
	}
	put("out", verify.ClassTolerance, compareHidden(out, rows(want), same))
	return nil
}

func (e *expectation) put(r verify.Row) { e.sum.Add(r.Status); e.rows.row(r) }

// begin notes what device the layers run on.
func (e *expectation) begin(origin describe.Origin) {
	e.origin = origin
	e.rows.begin(origin, nil)
}

// end prints the verdict, and is errWrong if not everything agreed.
func (e *expectation) end() error {
	e.rows.end(verdict{OK: e.sum.OK(), Origin: e.origin, Summary: e.sum})
	if !e.sum.OK() {
		return errWrong
	}
	return nil
}

// comparePicks compares the sets of entries that an indexer picked for each token, and
// says in same for which tokens they are equal.
func comparePicks(got, want vectors.Array, same []bool) verify.Result {
	res := verify.Result{Bound: picksBound}
	want = rows(want)
	if len(want.Shape) != 2 || want.Dim(0) != len(same) {
		res.Error, res.Detail = 1, fmt.Sprintf("topk: want is %v, of %d tokens", want, len(same))
		return res
	}
	differ, all, tokens := 0, 0, 0
	row := func(a vectors.Array, t int) map[float64]bool {
		values := a.Part(t*a.Dim(1), (t+1)*a.Dim(1)).Float64s()
		if a.Type == vectors.U8 {
			return flagged(values)
		}
		return picks(values)
	}
	for t := range same {
		x, y := row(got, t), row(want, t)
		n := len(x) + len(y)
		all += n
		for entry := range x {
			if y[entry] {
				n -= 2
			}
		}
		if differ += n; n > 0 {
			same[t], tokens = false, tokens+1
		}
	}
	res.Error = float64(differ) / float64(max(all, 1))
	res.Pass = res.Error < res.Bound
	res.Detail = fmt.Sprintf("topk: %.3g of the picks differ, of %d of %d tokens", res.Error, tokens, len(same))
	return res
}

// flagged returns the places of flags that are set.
func flagged(row []float64) map[float64]bool {
	set := map[float64]bool{}
	for i, v := range row {
		if v != 0 {
			set[float64(i)] = true
		}
	}
	return set
}

func picks(row []float64) map[float64]bool {
	set := map[float64]bool{}
	for _, v := range row {
		if v >= 0 {
			set[v] = true
		}
	}
	return set
}

// compareHidden compares the outputs of those tokens that attended the same entries: one
// other entry moves a token by more than all rounding does.
func compareHidden(got, want vectors.Array, same []bool) verify.Result {
	if !slices.Equal(got.Shape, want.Shape) {
		return verify.NewComparison(verify.ClassTolerance).Fail("out: got %v, want %v", got, want).Result()
	}
	width := got.Dim(1)
	diff := func(name string, a, b []float64, bound float64) verify.Result {
		return verify.NewComparison(verify.ClassTolerance).CalcDiff(name, f64Array(a), f64Array(b), bound).Result()
	}
	a, b := got.Float64s(), want.Float64s()
	var left, right []float64
	worst := verify.Result{Pass: true}
	for t, ok := range same {
		if !ok {
			continue
		}
		x, y := a[t*width:(t+1)*width], b[t*width:(t+1)*width]
		left, right = append(left, x...), append(right, y...)
		if r := diff(fmt.Sprintf("out of token %d", t), x, y, tokenBound); r.Error > worst.Error || !r.Pass && worst.Pass {
			worst = r
		}
	}
	if len(left) == 0 {
		return verify.Result{Bound: layerBound, Detail: "out: every token attended other entries"}
	}
	all := diff("out", left, right, layerBound)
	switch {
	case worst.Pass:
		return all
	case all.Pass:
		return worst
	}
	all.Detail += "; " + worst.Detail
	return all
}

// rows returns an array with one dimension in front of the last: the tokens of all sequences.
func rows(a vectors.Array) vectors.Array {
	if n := len(a.Shape); n > 2 {
		tokens := 1
		for _, d := range a.Shape[:n-1] {
			tokens *= d
		}
		a.Shape = []int{tokens, a.Shape[n-1]}
	}
	return a
}

func f64Array(v []float64) vectors.Array {
	a := vectors.New(vectors.F64, len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint64(a.Data[8*i:], math.Float64bits(x))
	}
	return a
}
