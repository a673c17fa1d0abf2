package verify

import (
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
)

// xpu_sparse_decode is the two-pass decode as vLLM's XPU path computes it: no
// sink, and a masked entry within a length counts as a row of zeros. A row of no
// entries at all is left to the definition; the recorded kernel gives 0 there too.
func init() {
	var variants []tuning.Variant
	for _, v := range opkit.Builds("attn_prefill") {
		variants = append(variants, tuning.Variant{Name: opkit.TwoPass + v.Name, Requires: v.Requires})
	}
	Register(Op{
		Name: "xpu_sparse_decode", Class: ClassTolerance, Variants: variants,
		Of:     Of{"attention.TwoPass", "attn_pack_indices kv_gather attn_prefill", ""},
		NaN:    Spoilt{Input: "q", Zero: true},
		Random: randomXPU, Ref: refBy(readDecode, refXPU), Bind: bindBy(readDecode, bindXPU), After: markRounded,
		Compare: compareBy(ClassTolerance, readDecode, func(cmp *Comparison, c Case, x decodeInput, got, want Arrays) {
			cmp.CloseWeighted("out", got["out"], want["out"], DecodeOut, roundings(c, got), func() ([]float32, error) {
				return attention.TwoPassSpreadRef(x.q, x.H, x.win, x.comp, nil, x.Scale, true)
			})
		}),
	})
}

// randomXPU takes every other case of the decode operation whose lengths are legal.
func randomXPU(seed uint64) []Case {
	var cases []Case
	for i, c := range randomDecode(seed) {
		if i%2 == 1 && c.About != "lengths and indices out of range" {
			cases = append(cases, c)
		}
	}
	return cases
}

func refXPU(x decodeInput) (Arrays, error) {
	out, _, err := attention.TwoPassRef(x.q, x.H, x.win, x.comp, nil, x.Scale, true)
	if err != nil {
		return nil, err
	}
	return Arrays{"out": vectors.FromF32(out, x.T, x.H, cache.D)}, nil
}

func bindXPU(b Build, x decodeInput) (Bound, error) {
	topk, compPage := setSize(x.comp)
	op, err := attention.NewTwoPass(b.Dev, attention.TwoPassConfig{ZeroMasked: true, DecoderConfig: attention.DecoderConfig{
		Heads: x.H, WindowPage: x.win.Layout.Page, CompressedPage: compPage, WindowRecord: x.win.Layout.Record,
		CompressedRecord: setRecord(x.comp), Scale: x.Scale, Variant: strings.TrimPrefix(b.Variant, opkit.TwoPass),
	}})
	if err != nil {
		return Bound{}, err
	}
	return Bound{b.Variant, func(r *Rig) Launch {
		a := attention.DecodeArgs{
			Q:      r.In(vectors.FromU16(x.q, x.Q.Shape...), tensor.BF16),
			Window: SlotSet(r, x.win, decodeWindowSlots), Compressed: SlotSet(r, x.comp, decodeSlots),
			Out: r.Out(tensor.BF16, x.T, x.H, cache.D), Scratch: r.Scratch(op.ScratchBytes(x.T, x.win.Width, topk)),
		}
		return launch(op, a, outs{"out": a.Out})
	}}, nil
}
