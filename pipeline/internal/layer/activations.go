package layer

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

// source is an input of products.
type source int

const (
	fromHidden  source = iota // Args.Hidden
	fromQLoRA                 // the queries' bottleneck, normed
	fromO                     // the attention's output, with RoPE undone
	fromOLoRA                 // what wo_a gives
	fromLatents               // latents, from which index keys are made; always bf16
	sources                   // how many there are
)

// use says when a source with fewer bits is in use.
func (s source) use() memory.Use {
	return [sources]memory.Use{fromHidden: edges | picking, fromQLoRA: picking, fromO: edges, fromOLoRA: edges}[s]
}

// quantiserKey names an input with fewer bits, which layers of a kind share. Products share one of
// 8 bits; those of 4 have factors of their own.
type quantiserKey struct {
	from    source
	format  projection.ActivationFormat
	product string // of 4 bits
}

// quantised is an input with fewer bits, and what makes it.
type quantised struct {
	coded
	op *projection.Quantise
}

// coded is an input with fewer bits.
type coded struct{ codes, scales tensor.Tensor }

// activation is the form in which a product with a matrix takes its input.
func (cfg *Config) activation(m *model.DeviceMatrix) projection.ActivationFormat {
	if fewer := m.Format.Activations(); cfg.Quantise && len(fewer) > 0 {
		return fewer[0]
	}
	return projection.ActivationBF16
}

// checkInput looks at the factor that 4 bits need.
func checkInput(u *use) error {
	if x := u.m.Input; u.x == projection.ActivationNVFP4 && !(x >= projection.LeastInputScale && x <= 1/projection.LeastInputScale) {
		got := fmt.Sprint(x)
		if x == 0 {
			got = "no input_scale"
		}
		return badWeights(u.name+".Input", got, "an input_scale of the checkpoint from 2^-64 to 2^64, or activations of bf16")
	}
	return nil
}

// quantise makes what gives a layer's products the inputs that they take.
func (l *Layer) quantise(uses []use) error {
	k := l.kernels
	for _, u := range uses {
		switch {
		case u.x == projection.ActivationBF16:
		case u.to == &l.oa && u.x != projection.ActivationNVFP4:
			if err := k.output.buildQuant(k); err != nil {
				return err
			}
			l.unropesToCodes, u.to.coded = true, &k.output.coded
		default:
			key := quantiserKey{from: u.from, format: u.x}
			if u.x == projection.ActivationNVFP4 {
				key.product = u.name
			}
			q, err := k.quantiser(key, projection.QuantiseConfig{Format: u.x, Groups: u.groups, K: u.k})
			if err != nil {
				return fmt.Errorf("%s: %w", u.name, err)
			}
			u.to.coded = &q.coded
			if in := (layerInput{q, u.m.Input}); !slices.Contains(l.inputs[u.from], in) {
				l.inputs[u.from] = append(l.inputs[u.from], in)
			}
		}
	}
	return nil
}

// layerInput is an input with fewer bits of products of a layer.
type layerInput struct {
	*quantised
	factor float32 // of 4 bits
}

// quantiser returns the kind's one quantiser for an input with fewer bits.
func (k *Kernels) quantiser(key quantiserKey, cfg projection.QuantiseConfig) (*quantised, error) {
	if q := k.quantisers[key]; q != nil {
		return q, nil
	}
	t := k.cfg.Tokens
	cfg.MaxBytes = 2 * uint64(t) * uint64(cfg.Groups) * uint64(cfg.K)
	op, err := projection.NewQuantise(k.dev, cfg)
	if err != nil {
		return nil, err
	}
	q, s, name := &quantised{op: op}, k.scratch(), fmt.Sprintf("input %d, %v %s", key.from, key.format, key.product)
	s.Add(name+", codes", key.from.use(), &q.codes, tensor.U8, op.CodesShape(t)...)
	s.Add(name+", scales", key.from.use(), &q.scales, op.ScalesType(), op.ScalesShape(t)...)
	k.quantisers[key] = q
	return q, nil
}

// quantise records what the layer's products take of a source.
func (r *recording) quantise(from source) error {
	k := r.k
	x := [sources]tensor.Tensor{fromHidden: r.a.Hidden, fromQLoRA: k.qr, fromO: k.mla.o, fromOLoRA: k.output.z}[from]
	for _, q := range r.l.inputs[from] {
		if err := q.op.Record(r.rec, projection.QuantiseArgs{X: x, Codes: q.codes, Scales: q.scales, InputScale: q.factor}); err != nil {
			return err
		}
	}
	return nil
}
