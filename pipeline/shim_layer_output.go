package pipeline

import (
	"context"
	"errors"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// buildOutput builds what turns the attention's output back; queries is its size.
func (k *LayerKind) buildOutput(queries uint64) (err error) {
	switch k.cfg.Output {
	case OutputBF16:
		k.turn, err = projection.NewInverseRope(k.dev, projection.InverseRopeConfig{MaxBytes: queries})
		return err
	case OutputFP8:
		return k.buildQuant(projection.ScaleF32, queries)
	}
	return k.buildQuant(projection.ScalePacked, queries)
}

func (k *LayerKind) buildQuant(scales projection.ScaleLayout, queries uint64) (err error) {
	k.quant, err = projection.NewInverseRopeQuant(k.dev, projection.InverseRopeQuantConfig{
		Groups: k.groups, Heads: k.cfg.Model.HeadsPerGroup(), Scales: scales, MaxBytes: queries})
	return err
}

// quantised lists the tensors of a quantised output.
func (k *LayerKind) quantised() []wanted {
	t, p := k.cfg.Tokens, k.cfg.Model.HeadsPerGroup()
	codes, padded := wanted{&k.o8, tensor.U8, []int{k.groups, t, p * model.HeadDim}}, projection.PaddedTokens(t)
	switch k.cfg.Output {
	case OutputFP8:
		return []wanted{codes, {&k.o8s, tensor.F32, []int{k.groups, p * projection.HeadBlocks, padded}}}
	case OutputFP8Packed:
		return []wanted{codes, {&k.o8s, tensor.I32, []int{k.groups, p, padded}}}
	}
	return nil
}

// outputTurn is how the attention turns its output back itself, if it can.
func (k *LayerKind) outputTurn(step SparseStepArgs, a WholeLayerArgs) attention.InverseRope {
	if k.cfg.Output != OutputBF16 || !k.sparse.decode.turns() {
		return attention.InverseRope{}
	}
	return attention.InverseRope{Positions: step.Positions, Table: a.CosSin}
}

// normsLate tells whether the attention norms and turns queries.
func (k *LayerKind) normsLate() bool { return k.sparse.decode.norms() }

// queryNorm is how the attention norms and turns queries itself, if it can.
func (k *LayerKind) queryNorm(step SparseStepArgs, a WholeLayerArgs) attention.QueryNorm {
	if !k.normsLate() {
		return attention.QueryNorm{}
	}
	return attention.QueryNorm{Eps: k.cfg.Model.Eps, Positions: step.Positions, Table: a.CosSin}
}

// recordOutput records what follows the attention, or its parts.
func (l *Layer) recordOutput(rec *vk.Recorder, step SparseStepArgs, a WholeLayerArgs, parts attention.Parts) error {
	k := l.kind
	x := projection.LinearArgs{X: k.o, W: l.oa.w, Out: k.z, Scratch: l.oa.scratch}
	if k.quant != nil {
		x.X, x.XScale = k.o8, k.o8s
		rec.Section("inverse_rope")
		if err := k.quant.Record(rec, projection.InverseRopeQuantArgs{O: k.o, Positions: step.Positions, Table: a.CosSin,
			Codes: k.o8, Scales: k.o8s}); err != nil {
			return err
		}
	} else if k.outputTurn(step, a).IsZero() {
		rec.Section("inverse_rope")
		if err := k.turn.Record(rec, projection.InverseRopeArgs{O: k.o, Positions: step.Positions, Table: a.CosSin}); err != nil {
			return err
		}
	}
	if l.chain != nil {
		rec.Section("wo_a, wo_b")
		args := projection.LinearChainArgs{First: x, Second: projection.LinearArgs{X: k.z, W: l.ob.w, Out: a.Out}, State: k.chained}
		if l.chain.Joined() {
			args.Parts = projection.AttentionParts{Out: parts.Out, State: parts.State, Sink: l.w.Sink, Positions: step.Positions, Table: a.CosSin}
		}
		return l.chain.Record(rec, args)
	}
	rec.Section("wo_a")
	if err := l.oa.op.Record(rec, x); err != nil {
		return err
	}
	rec.Section("wo_b")
	return l.ob.record(rec, k.z, a.Out)
}

// chainTokens are the most tokens for which wo_a and wo_b are one launch: of more than one
// only with the joining of the attention's parts, without which two launches take less time.
const chainTokens = projection.LinearChainTokens

// chain returns the one launch of wo_a and wo_b, which layers share, with the joining of the
// attention's parts if it can be, or nil where they are to be two.
func (k *LayerKind) chain(ctx context.Context, a, b *projection.Linear) (*projection.LinearChain, error) {
	if k.cfg.Tokens > chainTokens {
		return nil, nil
	}
	c := k.chains[[2]*projection.Linear{a, b}]
	if c != nil {
		return c, nil
	}
	var err error
	if k.cfg.Output == OutputBF16 && projection.JoinedParts(k.sparse.decode.parts()) {
		c, err = projection.NewJoinedChain(a, b, k.cfg.Tokens)
	}
	if c == nil && k.cfg.Tokens == 1 && (err == nil || errors.Is(err, vk.ErrMissingFeature)) {
		c, err = projection.NewLinearChain(a, b, k.cfg.Tokens)
	}
	if errors.Is(err, vk.ErrMissingFeature) || err == nil && c == nil {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if k.chained.IsZero() || k.chained.Len() < c.StateLen(k.cfg.Tokens) {
		fresh, err := c.NewState(ctx, "layer step", k.cfg.Tokens)
		if err != nil {
			return nil, err
		}
		if !k.chained.IsZero() {
			k.outworn = append(k.outworn, k.chained)
		}
		k.chained = fresh
	}
	k.chains[[2]*projection.Linear{a, b}] = c
	return c, nil
}
