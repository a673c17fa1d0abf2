package recorded

import "math"

// twister is the generator MT19937, which PyTorch draws from on a processor.
//
// Source: Matsumoto and Nishimura, "Mersenne Twister", 1998.
type twister struct {
	state [624]uint32
	next  int
}

func newTwister(seed uint32) *twister {
	m := &twister{next: 624}
	m.state[0] = seed
	for i := uint32(1); i < 624; i++ {
		m.state[i] = 1812433253*(m.state[i-1]^m.state[i-1]>>30) + i
	}
	return m
}

func (m *twister) draw() uint32 {
	if m.next == 624 {
		m.refill()
	}
	y := m.state[m.next]
	m.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (m *twister) refill() {
	s := &m.state
	for k := range s {
		y := s[k]&0x80000000 | s[(k+1)%624]&0x7fffffff
		s[k] = s[(k+397)%624] ^ y>>1
		if y&1 != 0 {
			s[k] ^= 0x9908b0df
		}
	}
	m.next = 0
}

// normals draws n numbers of a normal distribution as torch.randn does on a processor, n below 16
// and even, or a multiple of 16.
//
// Source: PyTorch, ATen/native/cpu/DistributionTemplates.h (normal_fill) and
// ATen/core/DistributionsHelper.h (normal_distribution).
func (m *twister) normals(n int) []float32 {
	v := make([]float32, n)
	if n < 16 {
		for i := 0; i < n; i += 2 {
			turn, u := 2*math.Pi*m.uniform64(), m.uniform64()
			r := math.Sqrt(-2 * math.Log1p(-u))
			v[i], v[i+1] = float32(r*math.Cos(turn)), float32(r*math.Sin(turn))
		}
		return v
	}
	for i := range v {
		v[i] = float32(m.draw()&(1<<24-1)) / (1 << 24)
	}
	for at := 0; at < n; at += 16 {
		for i := at; i < at+8; i++ {
			r := float32(math.Sqrt(float64(-2 * float32(math.Log(float64(1-v[i]))))))
			sin, cos := math.Sincos(float64(2 * math.Pi * v[i+8]))
			v[i], v[i+8] = r*float32(cos), r*float32(sin)
		}
	}
	return v
}

func (m *twister) uniform64() float64 {
	high := uint64(m.draw())
	return float64((high<<32|uint64(m.draw()))&(1<<53-1)) / (1 << 53)
}
