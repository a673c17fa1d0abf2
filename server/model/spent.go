package model

import "time"

// Part holds the time of some part of the steps, and the bytes of weights that it read.
type Part struct {
	Time  time.Duration
	Bytes int64
}

// minus returns what was added since q.
func (p Part) minus(q Part) Part { return Part{p.Time - q.Time, p.Bytes - q.Bytes} }

// Spent divides the time of all steps so far.
type Spent struct {
	Attention Part // on the device, its caches left out of the bytes
	Experts   Part // the router too
	Streams   Part // embedding, hyper-connections, norms
	Head      Part // of the tokens whose logits were wanted
	Drafts    Part // all of what Draft does, and what its layers keep of a step's tokens
}

// Minus returns what was spent since t.
func (s Spent) Minus(t Spent) Spent {
	return Spent{s.Attention.minus(t.Attention), s.Experts.minus(t.Experts), s.Streams.minus(t.Streams), s.Head.minus(t.Head),
		s.Drafts.minus(t.Drafts)}
}

// drafting adds all that was spent since t to t's drafts.
func (s Spent) drafting(t Spent) Spent {
	for _, p := range []Part{s.Attention.minus(t.Attention), s.Experts.minus(t.Experts), s.Streams.minus(t.Streams),
		s.Head.minus(t.Head), s.Drafts.minus(t.Drafts)} {
		t.Drafts.Time, t.Drafts.Bytes = t.Drafts.Time+p.Time, t.Drafts.Bytes+p.Bytes
	}
	return t
}

// Spent is for the goroutine that calls Step.
func (m *Model) Spent() Spent { return m.spent }

// watch adds what passes between its laps to parts.
type watch struct {
	m    *Model
	at   time.Time
	read int64
}

func (m *Model) watch() watch { return watch{m, time.Now(), m.cpu.Read()} }

func (w *watch) lap(p *Part) {
	now, read := time.Now(), w.m.cpu.Read()
	p.Time, p.Bytes = p.Time+now.Sub(w.at), p.Bytes+read-w.read
	w.at, w.read = now, read
}
