package verify

import (
	"maps"
	"math"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// Spoilt says what a NaN of one token does to an operation's outputs: what it reaches, as the
// reference has it, is NaN whatever a driver's min and max do with one, and no number of another
// token changes.
type Spoilt struct {
	Input   string // [tokens, ...] of bf16 numbers with one NaN; "": the operation has none
	Zero    bool   // numbers that it reaches may be 0 instead, and zeros of rows without an entry NaN
	Maximum string // an output that is a maximum, which NVIDIA's max takes of the other numbers; of none it may be anything
}

// spoiltCases counts the random cases of an operation that come a second time, with a NaN.
const spoiltCases = 6

// cases adds cases with a NaN, parameter nan, to an operation's random ones.
func (s Spoilt) cases(list []Case) []Case {
	var fit []Case
	for _, c := range list {
		if x := c.In[s.Input]; x.Type == vectors.U16 && x.Dim(0) > 1 && x.Dim(0) < 70 {
			fit = append(fit, c)
		}
	}
	n := min(spoiltCases, len(fit))
	for i := range n {
		c := fit[i*len(fit)/n]
		c.Params = maps.Clone(c.Params)
		if c.Params == nil {
			c.Params = map[string]any{}
		}
		c.Name, c.Params["nan"] = c.Name+"_nan", c.In[s.Input].Len()/2+5*i
		list = append(list, s.put(c, []uint16{0x7FC0, 0xFFC0, 0x7F81}[i%3]))
	}
	return list
}

// put puts another number in the place of the NaN.
func (s Spoilt) put(c Case, bf16 uint16) Case {
	x := c.In[s.Input]
	v := x.U16()
	v[c.Params["nan"].(int)] = bf16
	c.In = maps.Clone(c.In)
	c.In[s.Input] = vectors.FromU16(v, x.Shape...)
	return c
}

// compare judges what the NaN reaches, and has the rest judged as if there were none.
func (s Spoilt) compare(c Case, got, want Arrays, judge func(Case, Arrays, Arrays) Result) Result {
	x, at := c.In[s.Input], c.Params["nan"].(int)
	token := at / (x.Len() / x.Dim(0))
	float := func(a Array) bool { return a.Type == vectors.U16 || a.Type == vectors.F32 }
	got, want = maps.Clone(got), maps.Clone(want)
	for name, w := range want {
		g := got[name]
		if !float(w) || !float(g) || g.Len() != w.Len() || w.Dim(0) != x.Dim(0) {
			continue // holds no NaN, or is refused
		}
		w, g = w.Clone(), g.Clone()
		numbers, row := g.Float64s(), w.Len()/w.Dim(0)
		for i, v := range w.Float64s()[token*row:][:row] {
			i += token * row
			size := w.Type.Size()
			empty := s.Zero && (v == 0 || math.IsInf(v, 1)) && math.IsNaN(numbers[i]) || // no row is attended
				name == s.Maximum && math.IsInf(v, -1)
			if !math.IsNaN(v) && !empty || w.Data[i*size] == poisonFloat { // a place that is not written
				continue
			}
			if v := numbers[i]; name != s.Maximum && !math.IsNaN(v) && !math.IsInf(v, 0) && !(s.Zero && v == 0) {
				return NewComparison("").Fail("%s: got %g at %s, want NaN", name, v, position(i, w.Shape)).Result()
			}
			clear(w.Data[i*size:][:size])
			clear(g.Data[i*g.Type.Size():][:g.Type.Size()])
		}
		got[name], want[name] = g, w
	}
	return judge(s.put(c, 0), got, want)
}

// watch makes an operation's random cases and its comparison those of the NaN, too.
func (s Spoilt) watch(op *Op) {
	random, judge := op.Random, op.Compare
	op.Random = func(seed uint64) []Case { return s.cases(random(seed)) }
	op.Compare = func(c Case, got, want Arrays) Result {
		if _, is := c.Params["nan"]; is {
			return s.compare(c, got, want, judge)
		}
		return judge(c, got, want)
	}
}
