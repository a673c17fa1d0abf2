package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
)

// tokens1to8 is proj_linear_tokens1to8: no matrices, and weights are read once for 1, 2, 4 or 8
// tokens of a workgroup. It covers the fewest tokens in all variants.
type tokens1to8 struct {
	*linearLayer
	most   int           // tokens
	passes []rowDivision // fewest tokens first
}

// rowWorkgroup is the invocations of a workgroup of proj_linear_tokens1to8, proj_linear_tokens8to16
// and proj_linear_chain.
const rowWorkgroup = 128

func (k *tokens1to8) fit(l *linearLayer, next kernelKind) (bool, error) {
	k.linearLayer = l
	if l.cfg.Activations.row().staged {
		return false, nil
	}
	p := &l.tune.Tokens1to8
	pass := p.Pass
	k.most = pass
	switch _, beside := next.(*tokens8to32); {
	case beside:
		k.most = p.MostBeside8to32
	case !l.matrices() && (l.fewRows() || l.mayNorm()):
		pass *= 2
		k.most = 2 * pass
	case l.matrices() && opkit.CeilDiv(l.cfg.N, l.narrowRows())*l.cfg.Groups < l.cfg.Workgroups/tuning.EnoughFill:
		k.most = 2 * pass
	}
	for tokens := 1; tokens <= min(k.most, pass); tokens *= 2 {
		d := l.divideRows(tokens)
		k.passes = append(k.passes, d)
		if l.enough(tokens) {
			break
		}
	}
	return true, nil
}

// fewRows tells whether kernels without matrices keep a layer for longer.
func (l *linearLayer) fewRows() bool { return l.rows() < l.tune.Tokens1to8.BaseRows }

func (k *tokens1to8) reach() int { return k.most }

func (k *tokens1to8) covers(T int) bool { return T <= k.most }

func (k *tokens1to8) build(int) {
	for i, d := range k.passes {
		spec := k.spec("proj_linear_tokens1to8", opkit.Constants(d.tokens, d.rows, d.lanes)...)
		if k.matrices() {
			spec.Variant = opkit.CM
		}
		if k.mayNorm() {
			spec.Stem, spec.Push = "proj_linear_tokens1to8_norm", projLinearNormPush{}
			spec.Constants = append(spec.Constants, k.cfg.normConstants()...)
		}
		k.passes[i].kernel = k.later(spec)
	}
}

// pass is the division of as few tokens as hold T, or of the most.
func (k *tokens1to8) pass(T int) rowDivision {
	for _, d := range k.passes {
		if d.tokens >= T {
			return d
		}
	}
	return k.passes[len(k.passes)-1]
}

func (k *tokens1to8) plan(T, _ int) linearPlan {
	d := k.pass(T)
	return linearPlan{kernel: d.kernel, splits: 1, norms: k.mayNorm(),
		grid: [3]uint32{uint32(d.rowTiles(k.cfg.N)), uint32(opkit.CeilDiv(T, d.tokens)), uint32(k.cfg.Groups)}}
}

// division1to8 is how a layer divides its rows for so few tokens.
func (o *Linear) division1to8(T int) rowDivision { return o.kinds[0].(*tokens1to8).pass(T) }
