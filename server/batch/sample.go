package batch

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Candidate is a token and the logarithm of its probability.
type Candidate struct {
	ID      int32
	Logprob float32
}

// distribution is the logits of a position. Their total, which takes as long as a sample, is for
// logarithms of probabilities alone, at temperature 1.
type distribution struct {
	logits []float32
	most   float64 // the largest
	total  float64 // log of the sum of exp(logits)
}

// newDistribution finds the largest logit, and reports whether all are finite.
func newDistribution(logits []float32) (d distribution, finite bool) {
	d = distribution{logits: logits, most: math.Inf(-1)}
	for _, top := range d.parts(func(i int) float64 {
		if top, finite := largest(d.part(i)); finite {
			return float64(top)
		}
		return math.NaN()
	}) {
		d.most = max(d.most, top)
	}
	return d, d.most == d.most
}

// sum makes the total.
func (d *distribution) sum() {
	sum := 0.0
	for _, part := range d.parts(func(i int) float64 { return d.weights(i, 1) }) {
		sum += part
	}
	d.total = d.most + math.Log(sum)
}

func (d distribution) logprob(id int32) float32 { return float32(float64(d.logits[id]) - d.total) }

// top lists the n most probable tokens, the first first. Of equal ones the smaller id is first.
func (d distribution) top(n int) (list []Candidate) {
	for id, v := range d.logits {
		if len(list) == n && (n == 0 || v <= d.logits[list[n-1].ID]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(list, v, func(c Candidate, v float32) int {
			if d.logits[c.ID] >= v {
				return -1
			}
			return 1
		})
		list = slices.Insert(list, at, Candidate{int32(id), d.logprob(int32(id))})
		list = list[:min(len(list), n)]
	}
	return list
}

// samplePart is the tokens of the vocabulary that one goroutine weighs.
const samplePart = 1 << 13

func (d distribution) part(i int) []float32 {
	return d.logits[i*samplePart : min((i+1)*samplePart, len(d.logits))]
}

// mostHelpers is the most goroutines beside the caller's that weigh a vocabulary: more of them wake
// up after the work is done.
const mostHelpers = 7

// parts calls f for the number of each part of the vocabulary, side by side. The caller begins at
// once, and others help as they wake up.
func (d distribution) parts(f func(i int) float64) []float64 {
	all := make([]float64, (len(d.logits)+samplePart-1)/samplePart)
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < len(all); i = int(next.Add(1)) - 1 {
			all[i] = f(i)
		}
	}
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), mostHelpers+1, len(all)) - 1 {
		group.Go(work)
	}
	work()
	group.Wait()
	return all
}

// largest returns the largest of some numbers without a NaN, and whether all are finite: 0 times
// another one is none, and so is a sum. Four at a time wait for no other's comparison.
func largest(l []float32) (top float32, finite bool) {
	a, b, c, d := l[0], l[0], l[0], l[0]
	var e, f, g, h float32
	for ; len(l) >= 4; l = l[4:] {
		if l[0] > a {
			a = l[0]
		}
		if l[1] > b {
			b = l[1]
		}
		if l[2] > c {
			c = l[2]
		}
		if l[3] > d {
			d = l[3]
		}
		e, f, g, h = e+l[0]*0, f+l[1]*0, g+l[2]*0, h+l[3]*0
	}
	for _, v := range l {
		a, e = max(a, v), e+v*0
	}
	return max(a, b, c, d), e+f+g+h == 0
}

// weight is exp((logit - top) / temperature), to 2^-34 of itself. A sample takes it of a whole
// vocabulary, so it is made of a power of 2, a table of its 64th parts and three terms of a series,
// in less than half of the time that math.Exp takes.
func weight(logit float32, top, temperature float64) float64 {
	x := (float64(logit) - top) / temperature
	if !(x > -700) { // no normal number
		return 0
	}
	n := int(x*(64/math.Ln2) - .5)
	r := x - float64(n)*(math.Ln2/64)
	return math.Float64frombits(roots[n&63]+uint64(n>>6)<<52) * (1 + r*(1+r*(1./2+r*(1./6))))
}

// roots are the bits of 2^(i/64).
var roots = func() (list [64]uint64) {
	for i := range list {
		list[i] = math.Float64bits(math.Exp2(float64(i) / 64))
	}
	return list
}()

// weights is the sum of a part's weights.
func (d distribution) weights(i int, temperature float64) (sum float64) {
	for _, v := range d.part(i) {
		sum += weight(v, d.most, temperature)
	}
	return sum
}

// changed is the distribution that a request wants after some tokens, prompt and answer.
func (d distribution) changed(r *Request, all []int32) distribution {
	if r.Presence == 0 && r.Frequency == 0 && (r.Repetition == 0 || r.Repetition == 1) && len(r.Bias) == 0 {
		return d
	}
	l := slices.Clone(d.logits)
	if r.Repetition != 0 && r.Repetition != 1 {
		seen := map[int32]bool{}
		for _, id := range all {
			switch v := &l[id]; {
			case seen[id]:
			case *v > 0:
				*v = float32(float64(*v) / r.Repetition)
			default:
				*v = float32(float64(*v) * r.Repetition)
			}
			seen[id] = true
		}
	}
	counts := map[int32]int{}
	for _, id := range all[len(r.Prompt):] {
		counts[id]++
	}
	for id, n := range counts {
		l[id] -= float32(r.Presence + r.Frequency*float64(n))
	}
	for id, b := range r.Bias {
		l[id] += float32(b)
	}
	top, _ := largest(l)
	return distribution{logits: l, most: float64(top)}
}

// draw picks the token of a position as a request wants it.
func (d distribution) draw(r *Request, position int) int32 {
	if r.Temperature <= 0 || r.TopK == 0 && (r.TopP == 0 || r.TopP >= 1) && r.MinP <= 0 {
		return d.sample(r.Temperature, r.Seed, position)
	}
	list := d.chosen(r)
	if len(list) == 0 { // with an infinite logit
		return d.sample(0, r.Seed, position)
	}
	left := rand.New(rand.NewPCG(r.Seed, uint64(position))).Float64() * mass(list)
	for _, c := range list {
		if left -= c.weight; left < 0 {
			return c.id
		}
	}
	return list[len(list)-1].id
}

// sample picks the token of a position. At temperature 0, or with an infinite logit, it is the most
// probable one, of equal ones the smallest id. Otherwise seed and position alone decide, so a
// sequence that is computed again draws the same: a part of the vocabulary by its sum, then a token
// of it.
func (d distribution) sample(temperature float64, seed uint64, position int) int32 {
	if temperature <= 0 || math.IsInf(d.most, 1) { // penalties and biases made it infinite
		return int32(slices.Index(d.logits, float32(d.most)))
	}
	sums := d.parts(func(i int) float64 { return d.weights(i, temperature) })
	all := 0.0
	for _, s := range sums {
		all += s
	}
	left, drawn := rand.New(rand.NewPCG(seed, uint64(position))).Float64()*all, 0
	for i, s := range sums {
		if s > 0 { // what rounding leaves over is of the last part that can be drawn
			drawn = i
		}
		if left < s {
			break
		}
		left -= s
	}
	token := int32(drawn * samplePart)
	for i, v := range d.part(drawn) {
		p := weight(v, d.most, temperature)
		if p > 0 {
			token = int32(drawn*samplePart + i)
		}
		if left -= p; left < 0 {
			break
		}
	}
	return token
}
