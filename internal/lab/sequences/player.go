package sequences

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
)

// player plays a scenario with the sessions of an engine. After its first error all does nothing.
type player struct {
	l   *Lab
	ctx context.Context
	rng *rand.Rand
	e   *engine
	err error
}

func (p *player) ok() bool { return p.err == nil }

func (p *player) do(err error) {
	if p.err == nil {
		p.err = err
	}
}

// at says in the first error where it was, if that is of f.
func (p *player) at(f func(), format string, args ...any) {
	if p.err == nil {
		if f(); p.err != nil {
			p.err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), p.err)
		}
	}
}

// in plays with an engine of its own.
func (p *player) in(o pipeline.EngineOptions, play func(p *player)) {
	if p.err != nil {
		return
	}
	e, err := p.l.engine(p.ctx, o)
	if p.do(err); err == nil {
		p.with(e, play)
	}
}

// with plays with an engine, and closes it.
func (p *player) with(e *engine, play func(p *player)) {
	inner := &player{l: p.l, ctx: p.ctx, rng: p.rng, e: e}
	play(inner)
	p.do(errors.Join(inner.err, e.Close()))
}

// script returns the script of a seed, which shares nothing with others.
func (p *player) script(seed uint64) *script { return p.l.script(seed, 0) }

// open makes a session that follows a script.
func (p *player) open(sc *script) *session {
	x := &session{e: p.e, sc: sc, past: newHistory()}
	if p.ok() {
		var err error
		x.s, err = p.e.Open()
		p.do(err)
	}
	return x
}

// fork makes a session with the same tokens.
func (p *player) fork(x *session) *session {
	if !p.ok() {
		return x
	}
	return p.got(p.l.fork(x, x.sc))
}

// resume makes a session of the first n tokens, as one pass left them.
func (p *player) resume(n int) *session {
	if !p.ok() {
		return p.open(nil)
	}
	return p.got(p.l.resume(p.ctx, p.e, n))
}

// got returns a session, or one without tokens after an error.
func (p *player) got(x *session, err error) *session {
	if p.do(err); err != nil {
		return p.open(nil)
	}
	return x
}

func (l *Lab) resume(ctx context.Context, e *engine, n int) (*session, error) {
	f, err := l.fork(l.pass.session, l.pass.sc)
	if err != nil {
		return nil, err
	}
	defer f.s.Close()
	if err := l.cut(f, n); err != nil {
		return nil, err
	}
	data, err := l.saved(ctx, f)
	if err != nil {
		return nil, err
	}
	return l.restored(ctx, e, f, data)
}

// step takes chunks through all layers.
func (p *player) step(chunks ...chunk) {
	if p.ok() && len(chunks) > 0 {
		p.do(p.l.step(p.ctx, manner{}, chunks...))
	}
}

// abandon begins a step of chunks and gives it up before anything of it is submitted.
func (p *player) abandon(chunks ...chunk) {
	if p.ok() {
		if err := p.l.step(p.ctx, manner{early: true}, chunks...); !errors.Is(err, errLeft) {
			p.do(err)
		}
	}
}

// take takes a session's next n tokens in steps of at most `most`.
func (p *player) take(x *session, n, most int) {
	for end := x.len() + n; p.ok() && x.len() < end; {
		p.step(chunk{session: x, n: min(most, end-x.len())})
	}
}

// takeEach takes steps of some sizes.
func (p *player) takeEach(x *session, sizes ...int) {
	for _, n := range sizes {
		p.take(x, n, n)
	}
}

func (p *player) cut(x *session, n int) {
	if p.ok() {
		p.do(p.l.cut(x, n))
	}
}

func (p *player) saved(x *session) (data []byte) {
	if p.ok() {
		var err error
		data, err = p.l.saved(p.ctx, x)
		p.do(err)
	}
	return data
}

func (p *player) restored(of *session, data []byte) *session {
	if !p.ok() {
		return of
	}
	return p.got(p.l.restored(p.ctx, p.e, of, data))
}

func (p *player) close(list ...*session) {
	for _, x := range list {
		if p.ok() {
			p.do(x.s.Close())
		}
	}
}

// check demands that the caches of a session hold the bytes that those of one pass do, wherever a
// session of its engine keeps them, and that a block of drafts gives the same after both and leaves
// the caches as they were. The engine needs room for one more session.
func (p *player) check(x *session) {
	same := p.resume(x.len())
	want, got := p.saved(same), p.saved(x)
	if p.ok() && !bytes.Equal(got, want) {
		p.do(fmt.Errorf("the caches of %d tokens differ from those of one pass", x.len()))
	}
	if b := p.l.blocks(x); p.ok() && len(b) > 0 {
		p.step(p.l.blocks(same)...)
		p.step(b...)
		if now := p.saved(x); p.ok() && !bytes.Equal(now, got) {
			p.do(fmt.Errorf("a block of drafts changed the caches of %d tokens", x.len()))
		}
	}
	p.close(same)
}

// done checks a session and closes it.
func (p *player) done(x *session) {
	p.check(x)
	p.close(x)
}

// pad uploads a layer's inputs, with NaN in the rows after them.
func pad(ctx context.Context, st *pipeline.Step, layer int, values []float32) error {
	var rows []byte
	for _, v := range values {
		rows = binary.LittleEndian.AppendUint16(rows, numfmt.BF16Encode(v))
	}
	for in := st.Input(layer); len(rows) < int(in.Bytes()); {
		rows = binary.LittleEndian.AppendUint16(rows, 0x7fc0)
	}
	return st.Input(layer).Upload(ctx, rows)
}

// download reads what a layer gave for n tokens from the device.
func (l *Lab) download(ctx context.Context, st *pipeline.Step, layer, n int) (g gave, err error) {
	out, err := downloaded[uint16](ctx, st.Output(layer).Rows(0, n))
	for _, v := range out {
		g.out = append(g.out, numfmt.BF16Decode(v))
	}
	if err == nil && l.picks(layer) {
		g.picks, err = downloaded[int32](ctx, st.TopK(layer).Rows(0, n))
	}
	return g, err
}

func downloaded[T any](ctx context.Context, t tensor.Tensor) ([]T, error) {
	b, v := make([]byte, t.Bytes()), make([]T, t.Len())
	err := t.Download(ctx, b)
	if err == nil {
		_, err = binary.Decode(b, binary.LittleEndian, v)
	}
	return v, err
}
