package pipeline

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/pipeline/internal/pages"
	"github.com/vkmla/vkmla/vk"
)

// progress is the step in progress. Its slices are used again by the next one.
type progress struct {
	// What every call looks at lies side by side: after a wait it is in no cache of a processor.
	step   *Step
	flight *vk.Pending // the last submission of a step that the device may not be done with
	parts  []commands.Part
	owners []*Session    // of parts
	busy   []pages.Claim // of sessions whose tables have something to do, see pages.Seat
	ran    []bool        // layers that ran
	shown  []bool        // layers whose results are in host memory, for ReadOutput
	bySeat []int         // index into parts, or -1: the session may change

	set []bool // [layers, MaxSessions] inputs set from host memory
}

func (now *progress) init(layers, sessions int) {
	*now = progress{bySeat: make([]int, sessions), ran: make([]bool, layers), shown: make([]bool, layers),
		set: make([]bool, layers*sessions)}
	now.clearSeats()
}

// clearSeats forgets which sessions have chunks.
func (now *progress) clearSeats() {
	for i := range now.bySeat {
		now.bySeat[i] = -1
	}
}

// begin is Begin. Steps that only warm the engine may have blocks of drafts of any length.
func (e *Engine) begin(ctx context.Context, chunks []Chunk, warms bool) (*Step, error) {
	if err := e.lockStep(ctx); err != nil { // until the step ends
		return nil, fmt.Errorf("%s: %w", opBegin, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	st := &Step{e: e, warms: warms}
	err := e.usable()
	if err == nil && !warms {
		err = e.checkDrafts(chunks)
	}
	if err == nil {
		err = st.arrange(chunks)
	}
	if err == nil {
		err = st.equip(ctx)
	}
	now := &e.now
	if err != nil {
		now.clearSeats()
		e.unlockStep()
		return nil, wrap(opBegin, e.note(err))
	}
	clear(now.ran)
	clear(now.shown)
	st.b.TrackInputs()
	now.step, e.sizes.InUse = st, st.b
	return st, nil
}

// equip gives a step the memory, the pages and the metadata that it takes.
func (st *Step) equip(ctx context.Context) (err error) {
	e, now := st.e, &st.e.now
	if err := e.growRopes(ctx, st.longest); err != nil {
		return err
	}
	if st.b, err = e.sizes.Of(ctx, st.tokens); err != nil {
		return err
	}
	if err := e.pages.Take(ctx, now.busy); err != nil {
		return err
	}
	if st.pieces, err = st.b.Fill(ctx, now.bySeat, now.parts, st.draft); err != nil {
		e.pages.Undo()
	}
	return err
}

// arrange checks the chunks, and finds the busy sessions.
func (st *Step) arrange(chunks []Chunk) error {
	e, now := st.e, &st.e.now
	now.parts, now.owners, now.busy = now.parts[:0], now.owners[:0], now.busy[:0]
	if len(chunks) == 0 {
		return badArgument(opBegin, "chunks", "none", "at least one")
	}
	st.draft = chunks[0].Draft
	st.first, _ = e.sizes.Given(st.draft)
	bad := func(i int, got any, want string) error {
		return badArgument(opBegin, fmt.Sprintf("chunks[%d]", i), got, "%s", want)
	}
	for i, c := range chunks {
		seat, ok := e.again(i, c.Session)
		if s := c.Session; !ok {
			switch {
			case s == nil:
				return bad(i, "a nil session", "a session of this engine")
			case s.e != e:
				return bad(i, "a session of another engine", "one of this engine")
			case s.closed:
				return fmt.Errorf("chunks[%d]: session %w", i, vk.ErrClosed)
			}
			seat = s.seq.Number
		}
		at := &e.pages.Seats[seat]
		length := at.Length + c.Tokens
		switch {
		case c.Tokens < 1:
			return bad(i, c.Tokens, "at least 1 token")
		case now.bySeat[seat] >= 0:
			return bad(i, "a session twice", "each once")
		case c.Tokens > e.opts.MaxTokens-at.Length:
			return fmt.Errorf("chunks[%d]: %w: %d tokens and %d more, of at most %d", i, ErrSequenceFull,
				at.Length, c.Tokens, e.opts.MaxTokens)
		case c.Tokens > e.opts.MaxStep-st.tokens:
			return bad(i, fmt.Sprintf("%d tokens after %d", c.Tokens, st.tokens), fmt.Sprintf("at most %d in all", e.opts.MaxStep))
		}
		now.bySeat[seat] = i
		now.parts = append(now.parts, commands.Part{Seat: seat, N: c.Tokens, Length: at.Length})
		now.owners = append(now.owners, c.Session)
		st.tokens += c.Tokens
		st.longest = max(st.longest, length)
		st.work += float64(c.Tokens) * float64(length)
		if length > at.Quiet {
			now.busy = append(now.busy, pages.Claim{Sequence: c.Session.seq, N: c.Tokens, Draft: st.draft})
		}
	}
	return nil
}

// again returns the seat of an open session that had the same chunk in the last step. Most have,
// and then the session itself, which is not in the processor's cache, is not looked at.
func (e *Engine) again(chunk int, s *Session) (seat int, ok bool) {
	if owners := e.now.owners[:cap(e.now.owners)]; chunk < len(owners) && owners[chunk] == s && s != nil {
		seat = e.now.parts[:cap(e.now.parts)][chunk].Seat
		return seat, e.sessions[seat] == s
	}
	return 0, false
}
