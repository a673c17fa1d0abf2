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
)

func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"fused_indexer_q_rope_quant_fp8":   cache.IndexKeyFP8,
		"fused_indexer_q_rope_quant_mxfp4": cache.IndexKeyMXFP4,
	} {
		read := readAs(readQueryQuant, format)
		Register(Op{
			Name: name, Class: ClassExact, Variants: opkit.Builds("idx_query_quant"),
			Of:     Of{"indexer.QueryQuant", "idx_query_quant", "indexer.q_quantise"},
			Random: randomQueryQuant, Ref: refBy(read, refQueryQuant), Bind: bindBy(read, bindQueryQuant),
			Timing: Timing{Suite: "indexer", Sizes: with(queryQuantSizes, format), Axes: map[string]string{
				"q": "T", "positions": "T", "weights": "T", "q_fp8": "T", "q_packed": "T", "q_scale": "T", "weights_out": "T",
			}},
			Compare: compareBy(ClassExact, read, func(cmp *Comparison, c Case, x queryInput, got, want Arrays) {
				names := queryOutputs(format)
				cmp.queryCodes(names[0], x, c.Source != "random", got[names[0]], want[names[0]])
				for _, n := range names[1:] {
					cmp.Exact(n, got[n], want[n])
				}
			}),
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
// smallest blocks that MXFP4 has, numbers that a rotation just keeps finite,
// subnormal ones beside ordinary ones, and one that is infinite.
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
	each(func(r *rand.Rand, i int) float64 {
		if i == 17 { // nothing turns it
			return math.Inf(int(sign(r)))
		}
		return r.NormFloat64()
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

func randomQueryQuant(seed uint64) []Case {
	var cases []Case
	add := func(tokens, heads int, tableBF16, hadamard bool) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		positions, weights, table := randomPositions(rng, tokens), normalBF16(rng, 1, tokens, heads), randomCosSin(rng)
		if tableBF16 {
			table = vectors.FromBF16(table.F32(), table.Shape...)
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
				"positions": positions, "weights": weights, "cos_sin_rows": table,
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
	Q            Array   `in:"q u16 T H 128"`
	Weights      Array   `in:"weights u16 T H"`
	Table        Array   `in:"cos_sin_rows f32|u16 * 64"`
	Positions    Array   `in:"positions rows T"`
	SoftmaxScale float32 `in:"softmax_scale"`
	HeadScale    float32 `in:"head_scale"`
	Hadamard     bool    `in:"hadamard=0"`

	T, H int
	cfg  indexer.QueryQuantConfig
}

func readQueryQuant(c Case, format cache.IndexKeyFormat) (queryInput, error) {
	x, err := fields[queryInput](c)
	x.cfg = indexer.QueryQuantConfig{Format: format, TableBF16: x.Table.Type == vectors.U16,
		SoftmaxScale: x.SoftmaxScale, HeadScale: x.HeadScale, Hadamard: x.Hadamard}
	return x, err
}

func refQueryQuant(x queryInput) (Arrays, error) {
	n, format := x.T*x.H, x.cfg.Format
	codes, scales, out := make([]byte, n*format.RowBytes()), make([]byte, n*indexer.Blocks), make([]float32, n)
	err := indexer.QueryQuantRef(x.Q.U16(), x.H, x.Positions.I32(), x.Weights.U16(), floats(x.Table), x.cfg, codes, scales, out)
	if err != nil {
		return nil, err
	}
	names := queryOutputs(format)
	want := Arrays{names[0]: vectors.FromU8(codes, x.T, x.H, format.RowBytes()), names[1]: vectors.FromF32(out, x.T, x.H)}
	if len(names) > 2 {
		want[names[2]] = vectors.FromU8(scales, x.T, x.H, indexer.Blocks)
	}
	return want, nil
}

// place returns the operands of a case, and its results by their names.
func (x queryInput) place(r *Rig) (indexer.QueryQuantArgs, outs) {
	a := indexer.QueryQuantArgs{
		Q: r.In(x.Q, tensor.BF16), Positions: r.In(x.Positions, tensor.I32), Weights: r.In(x.Weights, tensor.BF16),
		Table: r.Shared(x.Table, floatType(x.Table)),
		Codes: r.Out(tensor.U8, x.T, x.H, x.cfg.Format.RowBytes()), WeightsOut: r.Out(tensor.F32, x.T, x.H),
	}
	names := queryOutputs(x.cfg.Format)
	results := outs{names[0]: a.Codes, names[1]: a.WeightsOut}
	if len(names) > 2 {
		a.Scales = r.Out(tensor.U8, x.T, x.H, indexer.Blocks)
		results[names[2]] = a.Scales
	}
	return a, results
}

func bindQueryQuant(b Build, x queryInput) (Bound, error) {
	x.cfg.Variant = b.Variant
	op, err := indexer.NewQueryQuant(b.Dev, x.cfg)
	return bound(op, err, func(r *Rig) Launch {
		a, results := x.place(r)
		return launch(op, a, results)
	})
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
				return Case{Params: map[string]any{"softmax_scale": indexer.DefaultSoftmaxScale,
					"head_scale": indexer.DefaultHeadScale(heads)},
					In: Arrays{"q": normalBF16(rng, 1, t, heads, cache.IndexDim), "positions": positions,
						"weights": normalBF16(rng, 1, t, heads), "cos_sin_rows": table}}
			},
		})
	}
	return all
}
