package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"fused_indexer_q_rope_quant_fp8":   cache.IndexKeyFP8,
		"fused_indexer_q_rope_quant_mxfp4": cache.IndexKeyMXFP4,
	} {
		Register(Op{
			Name: name, Class: ClassExact, Variants: opkit.Builds("idx_query_quant"),
			Of:     Of{"indexer.QueryQuant", "idx_query_quant", "indexer.q_quantise"},
			Random: randomQueryQuant,
			Ref:    func(c Case) (Arrays, error) { return refQueryQuant(c, format) },
			Bind:   func(b Build, c Case) (Bound, error) { return bindQueryQuant(b, c, format) },
			Timing: Timing{Suite: "indexer", Sizes: func(o SizeOptions) []Size { return queryQuantSizes(o, format) }, Axes: map[string]string{
				"q": "T", "positions": "T", "weights": "T", "q_fp8": "T", "q_packed": "T", "q_scale": "T", "weights_out": "T",
			}},
			Compare: func(c Case, got, want Arrays) Result {
				cmp, names := NewComparison(ClassExact), queryOutputs(format)
				x, err := readQueryQuant(c, format)
				if err != nil {
					return cmp.Fail("%v", err).Result()
				}
				cmp.queryCodes(names[0], x, c.Source != "random", got[names[0]], want[names[0]])
				for _, n := range names[1:] {
					cmp.Exact(n, got[n], want[n])
				}
				return cmp.Result()
			},
		})
	}
}

// queryOutputs returns the names of a format's outputs, codes first.
func queryOutputs(f cache.IndexKeyFormat) []string {
	if f == cache.IndexKeyMXFP4 {
		return []string{"q_packed", "weights_out", "q_scale"}
	}
	return []string{"q_fp8", "weights_out"}
}

// queryKinds make rows for the queries besides those of rowKinds: ties of E2M1, the
// smallest blocks that MXFP4 has, numbers that a rotation just keeps finite, and
// subnormal ones beside ordinary ones.
var queryKinds = []func(rng *rand.Rand, x []float32){
	func(r *rand.Rand, x []float32) {
		for b := 0; b < len(x); b += 32 {
			k := r.IntN(60) - 30
			for i := range 32 {
				x[b+i] = float32(sign(r) * math.Ldexp(float64(r.IntN(25))/4, k))
			}
			x[b+r.IntN(32)] = float32(math.Ldexp(6, k))
		}
	},
	each(func(r *rand.Rand, _ int) float64 { return math.Ldexp(sign(r)*float64(r.IntN(128)), -133) }),
	each(func(r *rand.Rand, _ int) float64 { return math.Ldexp(sign(r)*(1+r.Float64()), r.IntN(14)-132) }),
	each(func(r *rand.Rand, _ int) float64 { return sign(r) * 1.1e38 * (0.5 + r.Float64()) }),
	each(func(r *rand.Rand, _ int) float64 { // what position 0 keeps: tiny numbers, only as signs, beside others
		return math.Ldexp(sign(r)*float64(1+r.IntN(127)), []int{-133, -7}[r.IntN(2)])
	}),
}

// randomQueries makes n query heads of all kinds in turn, or of those whose sums stay
// finite and normal.
func randomQueries(rng *rand.Rand, n int, tame bool) []uint16 {
	var fill []func(*rand.Rand, []float32)
	for _, k := range rowKinds {
		if k.name != "huge" && !(tame && (k.name == "subnormal" || k.name == "wide")) {
			fill = append(fill, k.fill)
		}
	}
	if !tame {
		fill = append(fill, queryKinds...)
	}
	var q []uint16
	row := make([]float32, cache.IndexDim)
	for i := range n {
		fill[i%len(fill)](rng, row)
		q = append(q, numfmt.BF16EncodeSlice(nil, row)...)
	}
	return q
}

// randomCosSin makes a table of cosines and sines: row 0 turns nothing, as position 0
// does, the others turn each pair by an angle of its own.
func randomCosSin(rng *rand.Rand, rows int) []float32 {
	table := make([]float32, rows*cache.RopeDim)
	for r := range rows {
		for i := range cache.RopeDim / 2 {
			angle := float64(min(r, 1)) * 2 * math.Pi * rng.Float64()
			table[r*cache.RopeDim+i] = float32(math.Cos(angle))
			table[r*cache.RopeDim+cache.RopeDim/2+i] = float32(math.Sin(angle))
		}
	}
	return table
}

func randomQueryQuant(seed uint64) []Case {
	var cases []Case
	add := func(tokens, heads int, tableBF16, hadamard bool) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		rows := 40
		positions := make([]int64, tokens)
		for i := range positions {
			positions[i] = int64(rng.IntN(rows))
			switch { // rows of the identity, and positions that only a broken host makes
			case i%3 == 1:
				positions[i] = 0
			case i%17 == 16:
				positions[i] = []int64{-5, int64(rows), 1<<31 - 1, -1 << 31}[rng.IntN(4)]
			}
		}
		weights := make([]float32, tokens*heads)
		for i := range weights {
			weights[i] = float32(rng.NormFloat64())
		}
		table := vectors.FromF32(randomCosSin(rng, rows), rows, cache.RopeDim)
		if tableBF16 {
			table = vectors.FromBF16(table.F32(), rows, cache.RopeDim)
		}
		name := fmt.Sprintf("t%d_h%d", tokens, heads)
		params := map[string]any{"softmax_scale": indexer.DefaultSoftmaxScale, "head_scale": indexer.DefaultHeadScale(heads)}
		if tableBF16 {
			name += "_bf16"
		}
		if hadamard {
			name, params["hadamard"] = name+"_hadamard", 1
		}
		cases = append(cases, Case{
			Name: name, Params: params,
			In: Arrays{
				"q":         vectors.FromU16(randomQueries(rng, tokens*heads, hadamard), tokens, heads, cache.IndexDim),
				"positions": vectors.FromI64(positions, tokens), "weights": vectors.FromBF16(weights, tokens, heads), "cos_sin_rows": table,
			},
		})
	}
	for i, tokens := range sizes {
		add(tokens, []int{64, 5, 32, 8, 1, 64}[i], i%2 == 1, false)
		add(tokens, []int{3, 64, 8, 13, 64, 2}[i], i%2 == 0, i%2 == 0)
	}
	add(5, 128, false, true)
	add(3, 127, true, true)
	return cases
}

type queryInput struct {
	q, positions, weights, table Array
	cfg                          indexer.QueryQuantConfig
	tokens, heads                int
}

// readQueryQuant reads a case. A recorded case says with cos_sin_pos which position
// each row of the table belongs to; positions then become row numbers, so that a few
// rows stand for a table of any length.
func readQueryQuant(c Case, format cache.IndexKeyFormat) (x queryInput, err error) {
	in := c.Input()
	x.q = in.Array("q", vectors.U16, -1, -1, cache.IndexDim)
	x.tokens, x.heads = x.q.Dim(0), x.q.Dim(1)
	positions := in.Array("positions", vectors.I64, x.tokens)
	x.weights = in.Array("weights", vectors.U16, x.tokens, x.heads)
	x.table = c.In["cos_sin_rows"]
	x.cfg = indexer.QueryQuantConfig{Format: format, TableBF16: x.table.Type == vectors.U16,
		SoftmaxScale: float32(in.Float("softmax_scale")), HeadScale: float32(in.Float("head_scale")), Hadamard: in.IntOr("hadamard", 0) != 0}
	if !x.cfg.TableBF16 {
		x.table = in.Array("cos_sin_rows", vectors.F32, -1, cache.RopeDim)
	}
	known := in.Optional("cos_sin_pos", vectors.I64, x.table.Dim(0))
	if err := in.Err(); err != nil {
		return x, err
	}
	x.positions, err = tableRows(c, positions, known)
	return x, err
}

// tableRows returns the rows of a case's table that belong to positions: known says which
// position a row is for, and without it row p is for position p.
func tableRows(c Case, positions, known Array) (Array, error) {
	rows := map[int64]int32{}
	if !known.IsZero() {
		for row, p := range known.I64() {
			rows[p] = int32(row)
		}
	}
	at := make([]int32, positions.Dim(0))
	for i, p := range positions.I64() {
		at[i] = int32(p)
		if row, ok := rows[p]; ok {
			at[i] = row
		} else if len(rows) > 0 {
			return Array{}, fmt.Errorf("verify: %s.%s: no row of the table for position %d: %w", c.Op, c.Name, p, vectors.ErrFormat)
		}
	}
	return vectors.FromI32(at, len(at)), nil
}

func refQueryQuant(c Case, format cache.IndexKeyFormat) (Arrays, error) {
	x, err := readQueryQuant(c, format)
	if err != nil {
		return nil, err
	}
	var table []float32
	if x.cfg.TableBF16 {
		table = numfmt.BF16DecodeSlice(nil, x.table.U16())
	} else {
		table = x.table.F32()
	}
	n := x.tokens * x.heads
	codes, scales, out := make([]byte, n*format.RowBytes()), make([]byte, n*indexer.Blocks), make([]float32, n)
	if err := indexer.QueryQuantRef(x.q.U16(), x.heads, x.positions.I32(), x.weights.U16(), table, x.cfg, codes, scales, out); err != nil {
		return nil, err
	}
	names := queryOutputs(format)
	want := Arrays{names[0]: vectors.FromU8(codes, x.tokens, x.heads, format.RowBytes()), names[1]: vectors.FromF32(out, x.tokens, x.heads)}
	if len(names) > 2 {
		want[names[2]] = vectors.FromU8(scales, x.tokens, x.heads, indexer.Blocks)
	}
	return want, nil
}

func bindQueryQuant(b Build, c Case, format cache.IndexKeyFormat) (Bound, error) {
	x, err := readQueryQuant(c, format)
	if err != nil {
		return Bound{}, err
	}
	x.cfg.Variant = b.Variant
	op, err := indexer.NewQueryQuant(b.Dev, x.cfg)
	if err != nil {
		return Bound{}, err
	}
	table := tensor.F32
	if x.cfg.TableBF16 {
		table = tensor.BF16
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := indexer.QueryQuantArgs{
			Q: r.In(x.q, tensor.BF16), Positions: r.In(x.positions, tensor.I32), Weights: r.In(x.weights, tensor.BF16),
			Table: r.Shared(x.table, table),
			Codes: r.Out(tensor.U8, x.tokens, x.heads, format.RowBytes()), WeightsOut: r.Out(tensor.F32, x.tokens, x.heads),
		}
		names := queryOutputs(format)
		results := map[string]tensor.Tensor{names[0]: a.Codes, names[1]: a.WeightsOut}
		if len(names) > 2 {
			a.Scales = r.Out(tensor.U8, x.tokens, x.heads, indexer.Blocks)
			results[names[2]] = a.Scales
		}
		return Launch{Out: results,
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}

func queryQuantSizes(o SizeOptions, format cache.IndexKeyFormat) (all []Size) {
	each := 2*cache.IndexDim + format.RowBytes() + 2 + 4 // bytes of a head
	if format == cache.IndexKeyMXFP4 {
		each += indexer.Blocks
	}
	heads := o.indexHeads()
	for _, t := range o.steps() {
		bytes := t*heads*each + t*(4+4*cache.RopeDim)
		all = append(all, Size{
			Name: fmt.Sprintf("tokens=%d/heads=%d", t, heads), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
			Make: func(rng *rand.Rand) Case {
				table, positions := manyTurns(rng, t)
				return Case{Params: map[string]any{"softmax_scale": indexer.DefaultSoftmaxScale, "head_scale": indexer.DefaultHeadScale(heads)},
					In: Arrays{"q": manyBF16(rng, 1, t, heads, cache.IndexDim), "positions": positions,
						"weights": manyBF16(rng, 1, t, heads), "cos_sin_rows": table}}
			},
		})
	}
	return all
}
