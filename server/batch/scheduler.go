// Package batch computes many requests at once. Each step takes the next token of every answer
// and, beside them, pieces of prompts.
package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vkmla/vkmla/cache"
	weights "github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

var (
	// ErrRequest: a request that can never be answered.
	ErrRequest = errors.New("bad request")
	// ErrBusy: too many requests wait already.
	ErrBusy = errors.New("too many requests wait")
	// ErrClosing: the server takes no more requests.
	ErrClosing = errors.New("the server is closing")
	// ErrMemory: there is not enough memory for the request, even alone.
	ErrMemory = errors.New("not enough memory for the request")
	// ErrNumbers: the model gave logits that are infinite or none. Nothing of the request is kept.
	ErrNumbers = errors.New("the model gave numbers that are not finite")
)

// Model runs the scheduler's steps: *model.Model does.
type Model interface {
	NewSequence() (*model.Sequence, error)
	Step(ctx context.Context, chunks ...model.Chunk) ([][]float32, error)
}

// Prefixes stores the beginnings of sequences: *model.Prefixes does.
type Prefixes interface {
	// Open opens a sequence that has the first n of an owner's tokens already. It may take long.
	Open(ctx context.Context, owner string, tokens []int32) (s *model.Sequence, n int, err error)
	// Parting returns the number of tokens after which the sequence should be kept, because others
	// that were kept go on otherwise; 0: nowhere.
	Parting(owner string, tokens []int32) int
	// Keep stores what an owner's sequence has of some tokens, and returns at once.
	Keep(s *model.Sequence, owner string, tokens []int32, end bool)
}

// Drafter guesses how sequences go on: *model.Model does.
type Drafter interface {
	// Draft guesses the tokens after the last one of each chunk, which the sequence does not have
	// yet; it may guess none.
	Draft(ctx context.Context, chunks ...model.Chunk) ([][]int32, error)
	// TakeBack forgets the last n tokens of a sequence, all of the last step.
	TakeBack(s *model.Sequence, n int) error
}

// Options are the limits of a Scheduler.
type Options struct {
	Vocab       int      // token ids are smaller
	MaxTokens   int      // of a sequence, prompt and answer
	MaxSessions int      // requests computed at a time
	MaxStep     int      // tokens of a step, at least MaxSessions: what everybody waits for
	MaxWaiting  int      // requests that wait; 0: any number
	Prefixes    Prefixes // nil: none
	KeepEvery   int      // with Prefixes: sequences are kept after each KeepEvery tokens, too; 0: only at the ends of prompts and answers
	Drafter     Drafter  // with Drafts
	Drafts      int      // tokens that are guessed after each of an answer; 0: none. They change no answer.
	Warm        []int    // sizes of steps that are taken once while nothing else is to be computed
	Log         *slog.Logger
	Metrics     *Metrics
}

// Scheduler decides what each step computes. One goroutine runs the steps.
type Scheduler struct {
	model  Model
	o      Options
	ctx    context.Context
	stop   context.CancelCauseFunc
	ended  chan struct{}
	load   atomic.Int64 // requests that have not ended
	warmed atomic.Int64 // of Options.Warm

	mu      sync.Mutex
	changed sync.Cond
	waiting []*Answer // the first comes next
	opening int       // requests that wait for Options.Prefixes
	opened  []*Answer // those that do no longer
	closing bool
	failed  error

	running []*Answer // of the loop, by arrival
	most    int       // of running: fewer than MaxSessions while memory is short
	starved int       // steps one after the other whose workgroups starved
}

// mostStarved is the most steps in a row that may starve. After the first, kernels no longer wait
// inside.
const mostStarved = 4

// New starts a scheduler. The caller ends it with Close.
func New(m Model, o Options) *Scheduler {
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Scheduler{model: m, o: o, ctx: ctx, stop: stop, ended: make(chan struct{}), most: o.MaxSessions}
	s.changed.L = &s.mu
	go s.loop()
	return s
}

// Submit takes a request. It is given up when its context, the client's, ends.
//
// Errors: ErrRequest, ErrBusy, ErrClosing; the error that ended the scheduler. Later, from
// Answer.Next: ErrMemory, ErrNumbers, ErrClosing, the context's, or what failed in the model.
func (s *Scheduler) Submit(ctx context.Context, r Request) (*Answer, error) {
	if err := s.check(&r); err != nil {
		return nil, err
	}
	a := &Answer{request: r, ctx: ctx, came: time.Now(), changed: make(chan struct{}, 1), all: slices.Clone(r.Prompt), found: -1}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, s.failed
	case s.closing:
		return nil, ErrClosing
	case s.o.MaxWaiting > 0 && len(s.waiting) >= s.o.MaxWaiting:
		return nil, ErrBusy
	}
	s.waiting = append(s.waiting, a)
	s.load.Add(1)
	context.AfterFunc(ctx, s.wake)
	s.changed.Signal()
	return a, nil
}

// ParamError is an ErrRequest that names the parameter that cannot be honoured.
type ParamError struct{ Param, Got, Want string }

func (e *ParamError) Error() string {
	return fmt.Sprintf("%s: got %.60s, want %s", e.Param, e.Got, e.Want)
}

// Is reports that the client is to blame.
func (e *ParamError) Is(target error) bool { return target == ErrRequest }

func (s *Scheduler) check(r *Request) error {
	switch n := len(r.Prompt); {
	case n == 0:
		return &ParamError{"prompt", "no tokens", "at least 1"}
	case r.MaxTokens < 0:
		return &ParamError{"max_tokens", strconv.Itoa(r.MaxTokens), "at least 0"}
	case r.MaxTokens > s.o.MaxTokens-n: // the sum may be more than an int has
		return &ParamError{"max_tokens", fmt.Sprintf("%d after a prompt of %d tokens", r.MaxTokens, n),
			fmt.Sprintf("at most %d together", s.o.MaxTokens)}
	}
	token := func(param string, id int32) error {
		if id < 0 || int(id) >= s.o.Vocab {
			return &ParamError{param, fmt.Sprintf("token %d", id), fmt.Sprintf("0 to %d", s.o.Vocab-1)}
		}
		return nil
	}
	for id := range r.Bias {
		if err := token("logit_bias", id); err != nil {
			return err
		}
	}
	for _, id := range r.Stop {
		if err := token("stop_token_ids", id); err != nil {
			return err
		}
	}
	for i, id := range r.Prompt {
		if err := token(fmt.Sprintf("prompt[%d]", i), id); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scheduler) wake() {
	s.mu.Lock()
	s.changed.Signal()
	s.mu.Unlock()
}

// Load returns the number of requests that have not ended.
func (s *Scheduler) Load() int { return int(s.load.Load()) }

// Err returns the error that ended the scheduler, nil while it runs.
func (s *Scheduler) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Close takes no more requests and waits for those that are there. When the context ends, what is
// left ends with ErrClosing.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing = true; s.Load() == 0 {
		s.stop(ErrClosing) // a step that only warms is not waited for
	}
	s.changed.Signal()
	s.mu.Unlock()
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		s.stop(ErrClosing)
		s.wake()
		<-s.ended
		return context.Cause(ctx)
	}
}

// loop runs steps while there is something to do.
func (s *Scheduler) loop() {
	defer close(s.ended)
	for s.admit() {
		if len(s.running) > 0 {
			s.step()
		} else {
			s.warm()
		}
	}
	s.mu.Lock()
	s.closing = true
	s.stop(ErrClosing) // what is opening gives up
	for s.opening > 0 {
		s.changed.Wait()
	}
	left := slices.Concat(s.running, s.opened, s.waiting)
	s.waiting, s.opened, s.running = nil, nil, nil
	s.mu.Unlock()
	for _, a := range left {
		s.end(a, nil, "", cmp.Or(s.Err(), ErrClosing))
	}
}

// admit drops requests whose client has left, and begins with waiting ones. It waits until there
// is something to do; false means that there never will be.
func (s *Scheduler) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		s.running = s.dropLeft(s.running)
		s.waiting = s.dropLeft(s.waiting)
		s.takeOpened()
		for len(s.waiting) > 0 && len(s.running)+s.opening < max(s.most, 1) {
			a := s.waiting[0]
			if s.o.Prefixes != nil && !a.request.Echo { // all tokens of an echo have to be computed
				s.o.Metrics.begun(a)
				s.waiting = s.waiting[1:]
				s.opening++
				go s.open(a)
				continue
			}
			sequence, err := s.model.NewSequence()
			if err != nil {
				s.waiting = s.waiting[1:]
				s.end(a, nil, "", err)
				continue
			}
			s.waiting, a.sequence = s.waiting[1:], sequence
			s.o.Metrics.begun(a)
			s.running = append(s.running, a)
		}
		s.o.Metrics.queues(len(s.running), len(s.waiting))
		switch {
		case s.failed != nil || s.ctx.Err() != nil:
			return false
		case len(s.running) > 0 || !s.closing && int(s.warmed.Load()) < len(s.o.Warm):
			return true
		case s.closing && len(s.waiting) == 0 && s.opening == 0:
			return false
		}
		s.changed.Wait()
	}
}

// open waits for what the store has of a request's tokens, beside the steps of others.
func (s *Scheduler) open(a *Answer) {
	ctx, cancel := context.WithCancel(a.ctx)
	defer context.AfterFunc(s.ctx, cancel)()
	defer cancel()
	sequence, n, err := s.o.Prefixes.Open(ctx, a.request.Owner, a.all)
	parting := s.o.Prefixes.Parting(a.request.Owner, a.all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.found < 0 {
		a.found = n
	}
	a.sequence, a.computed, a.ready, a.parting = sequence, n, err, parting
	s.opening--
	s.opened = append(s.opened, a)
	s.changed.Signal()
}

// takeOpened begins with the requests that were opened. Where there was no memory for what the
// store has, a request waits until another one has ended; without others it is computed.
func (s *Scheduler) takeOpened() {
	for _, a := range s.dropLeft(s.opened) {
		full := errors.Is(a.ready, cache.ErrPoolFull)
		if full && len(s.running) > 0 {
			s.waiting, s.most = slices.Insert(s.waiting, 0, a), len(s.running)
			continue
		}
		if full {
			a.sequence, a.ready = s.model.NewSequence()
		}
		if a.ready != nil {
			s.end(a, nil, "", a.ready)
			continue
		}
		s.running = append(s.running, a)
	}
	s.opened = nil
}

// dropLeft ends the answers whose clients have gone.
func (s *Scheduler) dropLeft(list []*Answer) []*Answer {
	return slices.DeleteFunc(list, func(a *Answer) bool {
		err := a.ctx.Err()
		if err != nil {
			s.end(a, nil, "", err)
		}
		return err != nil
	})
}

// end closes what an answer holds and tells its reader. Whoever ends it has taken it off its list.
func (s *Scheduler) end(a *Answer, tokens []Token, reason Reason, err error) {
	if closing := a.sequence.Close(); closing != nil {
		s.o.Log.Error("closing a sequence", "error", closing)
	}
	a.sequence = nil
	s.most = min(s.most+1, s.o.MaxSessions) // its memory is free
	s.o.Metrics.ended(reason, err)
	s.load.Add(-1)
	a.add(tokens, reason, err)
}

// plan says how many tokens each running answer gets in the next step. Answers that wait for one
// token get it. The rest of the step is shared among prompts as evenly as their lengths allow, so
// that a long one does not keep a short one waiting. What is left is for drafts.
func plan(running []*Answer, most int) []int {
	n := make([]int, len(running))
	var prompts []int
	for i, a := range running {
		if a.left() == 1 {
			n[i] = 1
			most--
		} else {
			prompts = append(prompts, i)
		}
	}
	slices.SortStableFunc(prompts, func(i, j int) int { return cmp.Compare(running[i].left(), running[j].left()) })
	for k, i := range prompts {
		n[i] = min(running[i].left(), most/(len(prompts)-k))
		if before := running[i].parting - running[i].computed; before > 0 { // it is kept there
			n[i] = min(n[i], before)
		}
		most -= n[i]
	}
	for i, a := range running {
		if a.left() == 1 {
			drafts := min(len(a.drafts), most)
			n[i], most = n[i]+drafts, most-drafts
		}
	}
	return n
}

// step computes one step. Without memory for it drafts are left out, then the youngest request goes
// back into the queue.
func (s *Scheduler) step() {
	var chunks []model.Chunk
	var of []*Answer
	for i, n := range plan(s.running, s.o.MaxStep) {
		if n > 0 {
			a := s.running[i]
			chunks, of = append(chunks, a.chunk(n, s.keeps(a, a.computed, a.computed+n))), append(of, a)
		}
	}
	began := time.Now()
	logits, err := s.model.Step(s.ctx, chunks...)
	switch {
	case errors.Is(err, cache.ErrPoolFull):
		if !s.forget() {
			s.makeRoom(err)
		}
		return
	case errors.Is(err, vk.ErrStarved) && s.starved < mostStarved:
		s.starved++
		s.o.Log.Warn("a step is begun again", "error", err)
		return
	case errors.Is(err, weights.ErrCheckpoint): // the model's files have changed: who comes later may find them as they were
		s.o.Log.Error("a step failed", "error", err)
		for _, a := range of {
			s.running = slices.DeleteFunc(s.running, func(b *Answer) bool { return b == a })
			s.end(a, nil, "", err)
		}
		return
	case err != nil:
		s.fail(err)
		return
	}
	s.starved = 0
	s.o.Metrics.step(time.Since(began), of, chunks)
	s.forget()
	for i, x := range sampled(of, chunks, logits) {
		a := of[i]
		s.o.Metrics.tokens(a, x.tokens)
		if err := s.takeBack(a, len(chunks[i].Tokens)-x.computed); err != nil {
			s.fail(err)
			return
		}
		if x.err == nil {
			s.keep(a, x.computed, x.reason)
		} else {
			s.o.Metrics.nonfinite.Inc()
			s.o.Log.Error("a request gave numbers that are not finite", "tokens", len(a.all), "computed", a.computed)
		}
		if x.reason != "" || x.err != nil {
			s.running = slices.DeleteFunc(s.running, func(b *Answer) bool { return b == a })
			s.end(a, x.tokens, x.reason, x.err)
		} else if len(x.tokens) > 0 {
			a.add(x.tokens, "", nil)
		}
	}
	if err := s.draft(); err != nil {
		s.fail(err)
	}
}

// warm takes a step of the next size, of a sequence of its own, so that what comes later need not
// wait for kernels to be compiled. Requests wait for one such step at most.
func (s *Scheduler) warm() {
	i := int(s.warmed.Load())
	if i == len(s.o.Warm) {
		return
	}
	began, left := time.Now(), s.o.Warm[i]
	var chunks []model.Chunk
	var err error
	for left > 0 && err == nil {
		var sequence *model.Sequence
		if sequence, err = s.model.NewSequence(); err != nil {
			break
		}
		defer sequence.Close()
		n := min(left, s.o.MaxTokens)
		if s.o.Drafts > 0 { // of as many as draft at once
			n = min(n, (s.o.Warm[i]+s.o.MaxSessions-1)/s.o.MaxSessions)
		}
		chunks, left = append(chunks, model.Chunk{Sequence: sequence, Tokens: make([]int32, n), Logits: []int{n - 1}}), left-n
	}
	if err == nil {
		_, err = s.model.Step(s.ctx, chunks...)
	}
	if err == nil && s.o.Drafts > 0 {
		for k := range chunks {
			chunks[k].Tokens = chunks[k].Tokens[:1]
		}
		_, err = s.o.Drafter.Draft(s.ctx, chunks...)
	}
	if errors.Is(err, vk.ErrDeviceLost) {
		s.fail(err)
	}
	log := s.o.Log.With("tokens", s.o.Warm[i], "done", i+1, "of", len(s.o.Warm))
	if err != nil {
		log = log.With("error", err)
	}
	log.Info("warm", "time", time.Since(began))
	s.warmed.Add(1)
}

// Warming returns how many steps of Options.Warm were taken, and of how many.
func (s *Scheduler) Warming() (done, all int) { return int(s.warmed.Load()), len(s.o.Warm) }

// sample holds an answer's results of a step.
type sample struct {
	tokens   []Token
	computed int // tokens that are the sequence's
	reason   Reason
	err      error
}

// sampled gives answers their logits, side by side: a vocabulary takes milliseconds.
func sampled(of []*Answer, chunks []model.Chunk, logits [][]float32) []sample {
	all := make([]sample, len(of))
	var group sync.WaitGroup
	for i, a := range of {
		k := len(chunks[i].Logits)
		own := logits[:k]
		logits = logits[k:]
		take := func() {
			before := a.computed
			all[i].tokens, all[i].reason, all[i].err = a.took(chunks[i], own)
			all[i].computed = a.computed - before
		}
		if i == len(of)-1 { // here: another goroutine would have to wake up
			take()
			break
		}
		group.Go(take)
	}
	group.Wait()
	return all
}

// keep stores what a step has just completed: a prompt, what it shares with others, KeepEvery
// tokens, an answer.
func (s *Scheduler) keep(a *Answer, step int, reason Reason) {
	if s.o.Prefixes == nil {
		return
	}
	prompt, before := len(a.request.Prompt), a.computed-step
	if before < prompt && a.computed >= prompt {
		s.o.Prefixes.Keep(a.sequence, a.request.Owner, a.request.Prompt, true)
	} else if s.keeps(a, before, a.computed) || reason != "" {
		s.o.Prefixes.Keep(a.sequence, a.request.Owner, a.all[:a.computed], false)
	}
}

// keeps reports whether an answer is kept after the tokens to end-1, from before on.
func (s *Scheduler) keeps(a *Answer, before, end int) bool {
	prompt, every := len(a.request.Prompt), s.o.KeepEvery
	return s.o.Prefixes != nil && (before < prompt && end >= prompt || every > 0 && end/every > before/every || end == a.parting)
}

// makeRoom takes the youngest request's memory. What it has said so far stays: it is computed
// again, with the same bits, once another one has ended. The only one waits for those that are
// being opened; without such there is nothing to wait for.
func (s *Scheduler) makeRoom(cause error) {
	last := len(s.running) - 1
	a := s.running[last]
	s.running = s.running[:last]
	s.mu.Lock()
	others := s.opening + len(s.opened) // they hold memory, too
	s.mu.Unlock()
	if last == 0 && others == 0 {
		s.end(a, nil, "", fmt.Errorf("%w: %w", ErrMemory, cause))
		return
	}
	if err := a.sequence.Close(); err != nil {
		s.fail(err)
		return
	}
	a.sequence, a.computed = nil, 0
	s.most = last
	s.mu.Lock()
	s.waiting = slices.Insert(s.waiting, 0, a)
	s.mu.Unlock()
	s.o.Metrics.preempted()
	s.o.Log.Info("no memory: a request waits for others to end", "running", last, "tokens", len(a.all))
}

// fail ends the scheduler.
func (s *Scheduler) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	} else {
		s.o.Log.Error("a step failed", "error", err)
	}
	s.failed = err
}
