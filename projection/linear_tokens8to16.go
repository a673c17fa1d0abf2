package projection

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
)

// tokens8to16 is proj_linear_tokens8to16: no matrices, and the invocations of a workgroup share x
// of 8 or 16 tokens. It covers what lies between proj_linear_tokens1to8 and the tiles of
// proj_linear.
type tokens8to16 struct {
	*linearLayer
	most   int           // tokens
	passes []rowDivision // fewest tokens first
}

func (k *tokens8to16) fit(l *linearLayer, _ kernelKind) (bool, error) {
	k.linearLayer = l
	p := &l.tune.Tokens8to16
	k.most = p.Most
	if l.fewRows() {
		k.most = p.MostSmall
	}
	least := 2 * l.tune.Tokens1to8.Pass // the first that tokens1to8 has none of
	if l.cfg.Invariant {
		k.most, least = math.MaxInt, fewestPass
	}
	for tokens := least; tokens <= p.MostPass; tokens *= 2 {
		k.passes = append(k.passes, rowDivision{tokens: tokens, rows: p.Rows, lanes: lineLanes})
		if l.enough(tokens) {
			break
		}
	}
	return len(k.passes) > 0, nil
}

func (k *tokens8to16) reach() int { return k.most }

func (k *tokens8to16) covers(T int) bool { return T <= k.most }

func (k *tokens8to16) build(int) {
	for i, d := range k.passes {
		spec := k.spec("proj_linear_tokens8to16", k.constants(d)...)
		spec.Divisible = k.cfg.Invariant // launches of thousands of tokens
		k.passes[i].kernel = k.later(spec)
	}
}

// longestPass is the tokens with which a quad's eights may need no loop. Pairs of halves have none:
// a sum of a quad is multiplied by its scale.
const longestPass = 16

// constants are those of the shader after the formats.
func (k *tokens8to16) constants(d rowDivision) []uint32 {
	unroll := 1
	if d.tokens == longestPass || k.halves() {
		unroll = k.format.unroll
	}
	return opkit.Constants(d.tokens, d.rows, d.lanes, unroll)
}

// plan takes passes of as few tokens as hold all, or of the most. K is cut into parts where the
// rows leave much of the device idle.
func (k *tokens8to16) plan(T, scratch int) linearPlan {
	d := k.passes[len(k.passes)-1]
	for i := len(k.passes) - 1; i >= 0 && k.passes[i].tokens >= T; i-- {
		d = k.passes[i]
	}
	p := linearPlan{kernel: d.kernel, step: d.lanes * k.format.quad}
	down, passes := d.rowTiles(k.cfg.N), opkit.CeilDiv(T, d.tokens)
	fill, steps := k.tune.SmallFill*k.cfg.Workgroups, opkit.CeilDiv(k.cfg.K, p.step)
	p.cut(k.cfg.K, k.partsFor(down*passes*k.cfg.Groups, fill, steps, T, scratch))
	p.grid = [3]uint32{uint32(down), uint32(passes), uint32(k.cfg.Groups * p.splits)}
	return p
}
