package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "fused_q_kv_rmsnorm", Class: ClassTolerance, Variants: opkit.Builds("proj_qkv_norm"),
		Of:     Of{"projection.QKVNorm", "proj_qkv_norm", "q_kv_norm"},
		NaN:    Spoilt{Input: "qr_kv", Zero: true},
		Random: randomQKVNorm, Ref: refBy(fields, refQKVNorm), Bind: bindBy(fields, bindQKVNorm),
		Timing: Timing{Suite: "memory", Sizes: qkvNormSizes, Axes: map[string]string{"qr_kv": "T", "q_out": "T", "kv_out": "T"}},
		Compare: func(_ Case, got, want Arrays) Result {
			return NewComparison(ClassTolerance).normed("q_out", got["q_out"], want["q_out"]).
				normed("kv_out", got["kv_out"], want["kv_out"]).Result()
		},
	})
}

// normed demands that bf16 numbers are at most one code from the wanted ones, numbers
// below 2^-112 counting as zeros: a device may take inputs below 2^-126 for zeros, and a
// norm multiplies with up to 1000 and a weight, in the cases here below 16.
func (c *Comparison) normed(name string, got, want Array) *Comparison {
	return c.BF16Steps(name, withoutTiny(got), withoutTiny(want), 1)
}

func withoutTiny(a Array) Array {
	if a.Type != vectors.U16 {
		return a
	}
	const tiny = (127 - 112) << 7
	v := a.U16()
	for i, b := range v {
		if b&0x7FFF < tiny {
			v[i] = 0
		}
	}
	return vectors.FromU16(v, a.Shape...)
}

// randomQKVNorm makes rows of all kinds. Parameter split puts them into two tensors,
// pad adds columns after and between that must not be read.
func randomQKVNorm(seed uint64) []Case {
	var cases []Case
	add := func(tokens, rank, pad int, split bool, weights vectors.Type) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		params := map[string]any{"eps": 1e-6, "q_size": rank, "pad": pad}
		name := fmt.Sprintf("t%d_q%d", tokens, rank)
		if pad > 0 {
			name += fmt.Sprintf("_pad%d", pad)
		}
		if split {
			params["split"], name = 1, name+"_split"
		}
		if weights == vectors.F32 {
			name += "_f32"
		}
		kinds := rowKinds
		row, x := make([]float32, rank+cache.D), []uint16(nil)
		for i := range tokens {
			// The ties and bounds of kinds come in blocks of 64: rows are filled whole.
			full := make([]float32, (len(row)+63)/64*64)
			kinds[(i+len(cases))%len(kinds)].fill(rng, full)
			copy(row, full)
			for _, v := range row {
				x = append(x, finiteBF16(v))
			}
		}
		cases = append(cases, Case{Name: name, Params: params, In: Arrays{
			"qr_kv":    vectors.FromU16(x, tokens, rank+cache.D),
			"q_weight": randomNorm(rng, weights, rank), "kv_weight": randomNorm(rng, weights, cache.D),
		}})
	}
	for i, tokens := range sizes {
		add(tokens, []int{1024, 1536, 256, 8, 1032, 2048}[i], 0, false, vectors.U16)
		add(tokens, []int{1536, 64, 1024, 4096, 1024, 24}[i], 8*(i%3), i%2 == 0, []vectors.Type{vectors.F32, vectors.U16}[i%2])
	}
	add(3, 8192, 0, true, vectors.F32)
	return cases
}

// randomNorm makes the weights of a norm, f32 or bf16.
func randomNorm(rng *rand.Rand, t vectors.Type, n int) Array {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(1 + rng.NormFloat64()/2)
	}
	if t == vectors.F32 {
		return vectors.FromF32(w, n)
	}
	return vectors.FromBF16(w, n)
}

type qkvNormInput struct {
	Rank     int     `in:"q_size"`
	Eps      float32 `in:"eps"`
	Pad      int     `in:"pad=0"`
	Split    bool    `in:"split=0"`
	X        Array   `in:"qr_kv u16 T Rank+512"`
	QWeight  Array   `in:"q_weight u16|f32 Rank"`
	KVWeight Array   `in:"kv_weight u16|f32 512"`

	T int
}

// columns are n columns of a [rows, width] array, from column at on, with pad columns of
// NaNs before and after them.
func columns(a Array, at, n, pad int) Array {
	width, rows := a.Dim(1), a.Dim(0)
	out := vectors.Filled(0xFF, a.Type, rows, n+2*pad)
	size := a.Type.Size()
	for r := range rows {
		copy(out.Data[(r*(n+2*pad)+pad)*size:][:n*size], a.Data[(r*width+at)*size:])
	}
	return out
}

func refQKVNorm(x qkvNormInput) (Arrays, error) {
	want := Arrays{}
	for _, part := range []struct {
		name   string
		at, n  int
		weight Array
	}{{"q_out", 0, x.Rank, x.QWeight}, {"kv_out", x.Rank, cache.D, x.KVWeight}} {
		y := make([]uint16, x.T*part.n)
		if err := projection.QKVNormRef(columns(x.X, part.at, part.n, 0).U16(), floats(part.weight), x.Eps, y); err != nil {
			return nil, err
		}
		want[part.name] = vectors.FromU16(y, x.T, part.n)
	}
	return want, nil
}

// floats returns the numbers of an f32 array, or of a bf16 one.
func floats(a Array) []float32 {
	if a.Type == vectors.F32 {
		return a.F32()
	}
	return numfmt.BF16DecodeSlice(nil, a.U16())
}

// floatType returns the element type of such an array in a tensor.
func floatType(a Array) tensor.DType {
	if a.Type == vectors.F32 {
		return tensor.F32
	}
	return tensor.BF16
}

func bindQKVNorm(b Build, x qkvNormInput) (Bound, error) {
	op, err := projection.NewQKVNorm(b.Dev, projection.QKVNormConfig{Rank: x.Rank, Eps: x.Eps, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		a := projection.QKVNormArgs{
			QRAt: x.Pad, QRWeight: r.Shared(x.QWeight, floatType(x.QWeight)),
			KVWeight: r.Shared(x.KVWeight, floatType(x.KVWeight)),
			QROut:    r.Out(tensor.BF16, x.T, x.Rank), KVOut: r.Out(tensor.BF16, x.T, cache.D),
		}
		if x.Split {
			a.QR, a.KVAt = r.In(columns(x.X, 0, x.Rank, x.Pad), tensor.BF16), x.Pad
			a.KV = r.In(columns(x.X, x.Rank, cache.D, x.Pad), tensor.BF16)
		} else {
			both := r.In(columns(x.X, 0, x.Rank+cache.D, x.Pad), tensor.BF16)
			a.QR, a.KV, a.KVAt = both, both, x.Pad+x.Rank
		}
		return launch(op, a, outs{"q_out": a.QROut, "kv_out": a.KVOut})
	})
}

func qkvNormSizes(o SizeOptions) (all []Size) {
	const rank = 1536
	for _, t := range o.steps() {
		bytes := 2*2*t*(rank+cache.D) + 2*(rank+cache.D)
		all = append(all, Size{
			Name: fmt.Sprintf("tokens=%d/rank=%d", t, rank), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
			Make: func(rng *rand.Rand) Case {
				return Case{Params: map[string]any{"eps": 1e-6, "q_size": rank},
					In: Arrays{"qr_kv": normalBF16(rng, 1, t, rank+cache.D),
						"q_weight": normalBF16(rng, 1, rank), "kv_weight": normalBF16(rng, 1, cache.D)}}
			},
		})
	}
	return all
}
