package batch

import (
	"errors"

	"github.com/vkmla/vkmla/cache"
	weights "github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// A drafted token is computed with the one in front of it. Where the request then draws the same
// token from the same logits, by the same seed, as without drafts, the next is drawn, too; where it
// draws another one, that one is the answer's, and what was computed after it is taken back.

// draft guesses the next tokens of all answers that wait for one and have more to come.
func (s *Scheduler) draft() error {
	var chunks []model.Chunk
	var of []*Answer
	room := s.o.MaxStep
	for _, a := range s.running {
		room -= a.left()
	}
	if s.o.Drafts == 0 || room <= 0 { // prompts fill the next step
		return nil
	}
	for _, a := range s.running {
		if a.left() == 1 && a.answered+1 < a.request.MaxTokens {
			chunks, of = append(chunks, model.Chunk{Sequence: a.sequence, Tokens: a.all[a.computed:]}), append(of, a)
		}
	}
	if len(of) == 0 {
		return nil
	}
	drafts, err := s.o.Drafter.Draft(s.ctx, chunks...)
	for _, not := range []error{cache.ErrPoolFull, vk.ErrStarved, weights.ErrCheckpoint} { // the next step meets it, too, or does without
		if errors.Is(err, not) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	for i, a := range of {
		// A token is drawn after the last draft.
		a.drafts = drafts[i][:min(len(drafts[i]), s.o.Drafts, a.request.MaxTokens-a.answered-1)]
	}
	return nil
}

// forget drops all drafts, and reports whether there were any.
func (s *Scheduler) forget() (some bool) {
	for _, a := range s.running {
		some = some || len(a.drafts) > 0
		a.drafts = nil
	}
	return some
}

// takeBack takes from a sequence what was computed after the drafts that were drawn.
func (s *Scheduler) takeBack(a *Answer, n int) error {
	if n == 0 {
		return nil
	}
	s.o.Metrics.refused.Add(float64(n))
	return s.o.Drafter.TakeBack(a.sequence, n)
}
