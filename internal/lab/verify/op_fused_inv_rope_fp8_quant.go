package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "fused_inv_rope_fp8_quant", Class: ClassBoundary, Variants: opkit.Builds("proj_inverse_rope_quant"),
		Of:     Of{"projection.InverseRopeQuant", "proj_inverse_rope_quant", "inverse_rope"},
		Random: randomInverseQuant, Ref: refBy(readInverseQuant, refInverseQuant),
		Bind:    bindBy(readInverseQuant, bindInverseQuant),
		Compare: compareBy(ClassBoundary, readInverseQuant, compareInverseQuant),
		Timing: Timing{Suite: "memory", Sizes: inverseQuantSizes, Axes: map[string]string{"o": "P", "positions": "P",
			"fp8_fp32": ".P", "scale_fp32": "..P", "fp8_packed_ue8m0": ".P", "scale_packed_ue8m0": "..P"}},
	})
}

// quantOutputs are the names of the codes and scales in either layout.
var quantOutputs = map[projection.ScaleLayout][2]string{
	projection.ScaleF32:    {"fp8_fp32", "scale_fp32"},
	projection.ScalePacked: {"fp8_packed_ue8m0", "scale_packed_ue8m0"},
}

// outputKinds make heads of the attention's output besides those of rowKinds: blocks
// around the smallest scale, and numbers that a rotation just keeps finite.
var outputKinds = []func(rng *rand.Rand, x []float32){
	each(func(r *rand.Rand, _ int) float64 { return sign(r) * (0.5e-10 + 1e-10*r.Float64()) }),
	each(func(r *rand.Rand, _ int) float64 { return math.Ldexp(sign(r)*(1+r.Float64()), r.IntN(14)-56) }),
	each(func(r *rand.Rand, _ int) float64 { return sign(r) * 1.1e38 * (0.5 + r.Float64()) }),
}

func randomInverseQuant(seed uint64) []Case {
	var fill []func(*rand.Rand, []float32)
	for _, k := range rowKinds {
		if k.name != "huge" { // a turned pair would leave the numbers
			fill = append(fill, k.fill)
		}
	}
	fill = append(fill, outputKinds...)
	var cases []Case
	add := func(tokens, groups, heads, more int) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		table, positions := randomTurns(rng, tokens)
		width := groups*heads + more
		var o []uint16
		row := make([]float32, cache.D)
		for i := range tokens * width {
			fill[i%len(fill)](rng, row)
			if i%width >= groups*heads { // heads that must not be read
				for d := range row {
					row[d] = float32(math.NaN())
				}
			}
			o = append(o, numfmt.BF16EncodeSlice(nil, row)...)
		}
		cases = append(cases, Case{
			Name: fmt.Sprintf("t%d_g%d_p%d_of%d", tokens, groups, heads, width),
			Params: map[string]any{
				"n_groups": groups, "heads_per_group": heads, "nope_dim": cache.NopeDim, "rope_dim": cache.RopeDim,
				"quant_group_size": projection.BlockDim},
			In: Arrays{"o": vectors.FromU16(o, tokens, width, cache.D), "positions": positions, "cos_sin_rows": table},
		})
	}
	for i, tokens := range sizes {
		add(tokens, []int{8, 16, 1, 2, 3, 1}[i], []int{8, 8, 8, 4, 1, 2}[i], 0)
		add(tokens, []int{2, 1, 3, 1, 2, 1}[i], []int{4, 5, 7, 1, 4, 3}[i], []int{0, 3, 0, 1, 64, 1}[i])
	}
	return cases
}

type inverseQuantInput struct {
	outputInput
	Groups int `in:"n_groups"`
	Heads  int `in:"heads_per_group"`
	Layout int `in:"layout=0"` // 1 or 2: only this one

	layouts []projection.ScaleLayout
}

func readInverseQuant(c Case) (x inverseQuantInput, err error) {
	if x, err = fields[inverseQuantInput](c); err != nil {
		return x, err
	}
	x.layouts = []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked}
	if n := x.Layout; n == 1 || n == 2 {
		x.layouts = x.layouts[n-1 : n]
	}
	if x.Groups < 1 || x.Heads < 1 || x.Groups*x.Heads > x.H {
		return x, fmt.Errorf("verify: %s.%s: %d groups of %d heads in %v: %w", c.Op, c.Name, x.Groups, x.Heads, x.O, vectors.ErrFormat)
	}
	return x, nil
}

// used is o without the heads that are not read.
func (x inverseQuantInput) used() []uint16 {
	n, width := x.Groups*x.Heads*cache.D, x.H*cache.D
	var used []uint16
	for o := x.O.U16(); len(o) > 0; o = o[width:] {
		used = append(used, o[:n]...)
	}
	return used
}

func refInverseQuant(x inverseQuantInput) (Arrays, error) {
	heads, padded := x.Groups*x.Heads, projection.PaddedTokens(x.T)
	codes, scales := make([]byte, x.T*heads*cache.D), make([]byte, x.T*heads*projection.HeadBlocks)
	if err := projection.InverseRopeQuantRef(x.used(), x.Groups, x.Heads, x.Positions.I32(), x.Table.F32(), codes, scales); err != nil {
		return nil, err
	}
	numbers, packed := scaleLayouts(scales, x.T)
	all := vectors.FromU8(codes, x.Groups, x.T, x.Heads*cache.D)
	return Arrays{
		"fp8_fp32": all, "scale_fp32": vectors.FromF32(numbers, x.Groups, x.Heads*projection.HeadBlocks, padded),
		"fp8_packed_ue8m0": all, "scale_packed_ue8m0": vectors.FromI32(packed, x.Groups, x.Heads, padded),
	}, nil
}

// scaleLayouts returns the scales of blocks [B, tokens] as numbers, and four to a word, [B/4], with
// zeros for tokens of padding.
func scaleLayouts(scales []byte, tokens int) (numbers []float32, words []int32) {
	padded, blocks := projection.PaddedTokens(tokens), len(scales)/max(tokens, 1)
	numbers, words = make([]float32, blocks*padded), make([]int32, (blocks+3)/4*padded)
	for i, sb := range scales {
		b, t := i/tokens, i%tokens
		numbers[b*padded+t] = numfmt.UE8M0Scale(sb)
		words[b/4*padded+t] |= int32(uint32(sb) << (8 * (b % 4)))
	}
	return numbers, words
}

func bindInverseQuant(b Build, x inverseQuantInput) (Bound, error) {
	ops := map[projection.ScaleLayout]*projection.InverseRopeQuant{}
	for _, layout := range x.layouts {
		var err error
		if ops[layout], err = projection.NewInverseRopeQuant(b.Dev, projection.InverseRopeQuantConfig{
			Groups: x.Groups, Heads: x.Heads, Scales: layout, MaxBytes: b.MaxBytes, Variant: b.Variant}); err != nil {
			return Bound{}, err
		}
	}
	padded := projection.PaddedTokens(x.T)
	return Bound{ops[x.layouts[0]].Variant(), func(r *Rig) Launch {
		in := projection.InverseRopeQuantArgs{O: r.In(x.O, tensor.BF16),
			Positions: r.Shared(x.Positions, tensor.I32), Table: r.Shared(x.Table, tensor.F32)}
		out, args := outs{}, map[projection.ScaleLayout]*projection.InverseRopeQuantArgs{}
		for _, layout := range x.layouts {
			a := in
			a.Codes = r.Out(tensor.U8, x.Groups, x.T, x.Heads*cache.D)
			if layout == projection.ScaleF32 {
				a.Scales = r.Out(tensor.F32, x.Groups, x.Heads*projection.HeadBlocks, padded)
			} else {
				a.Scales = r.Out(tensor.I32, x.Groups, x.Heads, padded)
			}
			names := quantOutputs[layout]
			out[names[0]], out[names[1]], args[layout] = a.Codes, a.Scales, &a
		}
		return Launch{Out: out, Args: args[x.layouts[0]], Record: func(rec *vk.Recorder) error {
			for _, layout := range x.layouts {
				if err := ops[layout].Record(rec, *args[layout]); err != nil {
					return err
				}
			}
			return nil
		}}
	}}, nil
}

// inverseQuantSizes are decode and prefill steps in either layout, of groups of 8 heads.
func inverseQuantSizes(o SizeOptions) (all []Size) {
	for layout, name := range []string{"f32", "packed"} {
		scales := []int{4 * projection.HeadBlocks, 4}[layout]
		for _, t := range o.steps() {
			for _, heads := range o.pick(o.Heads, []int{64, 128}, []int{64, 128}) {
				bytes := t * (heads*(3*cache.D+scales) + 4 + 4*cache.RopeDim)
				width := min(8, heads&-heads)
				all = append(all, Size{
					Name: fmt.Sprintf("scales=%s/tokens=%d/heads=%d", name, t, heads), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
					MaxBytes: uint64(t * heads * 2 * cache.D),
					Make: func(rng *rand.Rand) Case {
						table, positions := manyTurns(rng, t)
						return Case{Params: map[string]any{"n_groups": heads / width, "heads_per_group": width, "layout": layout + 1},
							In: Arrays{"o": normalBF16(rng, 1, t, heads, cache.D), "positions": positions, "cos_sin_rows": table}}
					},
				})
			}
		}
	}
	return all
}

// compareInverseQuant demands equal bytes, but where float64 cannot tell how f32 rounds:
// only in blocks with turned numbers, and there only as far as a millionth of the
// products of a sum explains. A case may want one layout only.
func compareInverseQuant(cmp *Comparison, _ Case, x inverseQuantInput, got, want Arrays) {
	o, positions, table := x.used(), x.Positions.I32(), x.Table.F32()
	for _, layout := range x.layouts {
		codes, scales := quantOutputs[layout][0], quantOutputs[layout][1]
		if want[codes].IsZero() && want[scales].IsZero() && len(want) > 0 {
			continue
		}
		if !cmp.Same(codes, got[codes], want[codes]) || !cmp.Same(scales, got[scales], want[scales]) {
			continue
		}
		undecided := 0
		for i := range x.T * x.Groups * x.Heads {
			t, h := i/(x.Groups*x.Heads), i%(x.Groups*x.Heads)
			at := (((h/x.Heads)*x.T+t)*x.Heads + h%x.Heads) * cache.D
			for b := range projection.HeadBlocks {
				a := quantBlock{got[codes].Data[at+b*projection.BlockDim:][:projection.BlockDim], scaleByte(layout, got[scales], h, b, t)}
				w := quantBlock{want[codes].Data[at+b*projection.BlockDim:][:projection.BlockDim], scaleByte(layout, want[scales], h, b, t)}
				n := a.differs(w)
				if n == 0 {
					continue
				}
				exact := turned(o[i*cache.D:][:cache.D], turnedRow(table, positions[t]), -1, flushed)
				for side, q := range map[string]quantBlock{"got": a, "wanted": w} {
					if why := q.judge(exact, b); why != "" {
						cmp.Fail("%s: block %d of head %d of token %d: %s %s", codes, b, h, t, side, why)
						return
					}
				}
				undecided += n
			}
		}
		if why := paddedScales(got[scales], x.T); why != "" {
			cmp.Fail("%s: %s", scales, why)
			return
		}
		// The numbers of a head are of one kind, which may put all of them near boundaries.
		limit := math.Max(boundaryShare*float64(x.T*x.Groups*x.Heads*cache.RopeDim), cache.RopeDim)
		cmp.Criterion(float64(undecided) <= limit, float64(undecided), limit,
			fmt.Sprintf("%s: %d bytes differ where rounding is undecided", codes, undecided))
	}
}

// paddedScales says which scale of no token is not 0.
func paddedScales(a Array, tokens int) string {
	padded := a.Dim(2)
	for i, v := range a.Float64s() {
		if i%padded >= tokens && v != 0 {
			return fmt.Sprintf("%g for token %d of %d", v, i%padded, tokens)
		}
	}
	return ""
}

// scaleByte returns the UE8M0 byte of block b of head h of token t, -1 for a number that is
// no power of two.
func scaleByte(layout projection.ScaleLayout, a Array, h, b, t int) int {
	padded := a.Dim(2)
	if layout == projection.ScalePacked {
		return int(a.Data[(h*padded+t)*4+b])
	}
	at := ((h*projection.HeadBlocks+b)*padded + t) * 4
	u := uint32(a.Data[at]) | uint32(a.Data[at+1])<<8 | uint32(a.Data[at+2])<<16 | uint32(a.Data[at+3])<<24
	if u&0x807FFFFF != 0 {
		return -1
	}
	return int(u >> 23)
}

// flushed bounds the products that a device may take for zeros.
const flushed = 0x1p-124

// quantBlock is 128 codes and their scale.
type quantBlock struct {
	codes []byte
	scale int
}

// differs counts the codes that are not equal, all of them under another scale.
func (q quantBlock) differs(w quantBlock) (n int) {
	for d := range q.codes {
		if q.scale != w.scale || q.codes[d] != w.codes[d] {
			n++
		}
	}
	return n
}

// judge says what is wrong with block b of a head whose exact numbers are known, or nothing.
func (q quantBlock) judge(exact cache.CompressedEntry, b int) string {
	if q.scale < 0 {
		return "scale that is no power of two"
	}
	first := b * projection.BlockDim
	return blockOutput.check(exact, first, projection.BlockDim, byte(q.scale), func(d int) byte { return q.codes[d-first] })
}
