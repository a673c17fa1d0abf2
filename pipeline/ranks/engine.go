package ranks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNew     = "ranks: new engine"
	opOpen    = "ranks: open session"
	opRestore = "ranks: restore session"
)

// Engine is an engine of package pipeline on each of several devices, its ranks. A lost device ends
// all of it (vk.ErrDeviceLost): no rank has the heads of another.
// Its methods, and those of sessions and steps, may be called from any goroutine.
// The zero values of Engine, Session and Step cannot be used.
type Engine struct {
	cfg    model.Config
	ranks  []*pipeline.Engine
	layers [][]*model.DeviceLayer // of each rank
	copies sync.RWMutex           // read while hidden states are copied to mapped memory
	spare  sync.Pool              // of what ReadOutput gets from ranks, *[][]float32
}

// New opens a checkpoint once for each device, uploads the heads of each rank, all ranks side by
// side, and makes their engines. Rank and Ranks of both options follow from the devices,
// LayerByLayer is set. Engine.Close frees everything but the devices.
//
// Errors: vk.ErrArgument for fewer than two devices, a nil one or one that is there twice, as many
// as do not divide o_groups, options that say Rank, Ranks or Between; those of model.Open,
// model.Checkpoint.Upload and pipeline.NewEngine.
func New(ctx context.Context, dir string, devices []*vk.Device, c model.CheckpointOptions, o pipeline.EngineOptions) (*Engine, error) {
	bad := func(arg string, got any, want string) (*Engine, error) {
		return nil, badArgument(opNew, arg, got, "%s", want)
	}
	switch {
	case ctx == nil:
		return bad("ctx", "nil", "a context")
	case len(devices) < 2:
		return bad("devices", len(devices), "at least 2")
	case c.Rank != 0 || c.Ranks != 0 || o.Ranks != 0:
		return bad("Ranks", "given", "0: as many as devices")
	case o.Between != nil:
		return bad("Between", "a function", "nil: the host adds up what ranks give, behind each layer")
	}
	for i, d := range devices {
		if d == nil || slices.Contains(devices[:i], d) {
			return bad(fmt.Sprintf("devices[%d]", i), "nil, or one that is there twice", "another for each rank")
		}
	}
	c.Ranks, o.Ranks, o.LayerByLayer = len(devices), len(devices), true
	e := &Engine{ranks: make([]*pipeline.Engine, len(devices)), layers: make([][]*model.DeviceLayer, len(devices))}
	err := all(len(devices), func(i int) error {
		c := c
		c.Rank = i
		return e.open(ctx, dir, devices[i], c, o)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", opNew, err), e.Close())
	}
	return e, nil
}

// open makes a rank.
func (e *Engine) open(ctx context.Context, dir string, d *vk.Device, o model.CheckpointOptions, eo pipeline.EngineOptions) error {
	c, err := model.Open(dir, o)
	if err != nil {
		return err
	}
	defer c.Close() // what was uploaded stays
	if o.Rank == 0 {
		e.cfg = c.Config
	}
	if e.layers[o.Rank], err = c.Upload(ctx, d, nil); err != nil {
		return err
	}
	e.ranks[o.Rank], err = pipeline.NewEngine(ctx, d, c.Config, e.layers[o.Rank], eo)
	return err
}

// all calls f for each rank, side by side, and joins the errors. Each says of which rank it is.
func all(n int, f func(rank int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// usable demands an engine that New made.
func (e *Engine) usable(op string) error {
	if e == nil || len(e.ranks) == 0 {
		return badArgument(op, "engine", "nil", "one that New made")
	}
	return nil
}

// Engines are those of the ranks, in their order, for metrics and measurements: sessions and steps
// of their own would not pass through the other ranks.
func (e *Engine) Engines() []*pipeline.Engine {
	if e == nil {
		return nil
	}
	return slices.Clone(e.ranks)
}

// Layers returns the number of layers.
func (e *Engine) Layers() int {
	if e.usable("") != nil {
		return 0
	}
	return e.ranks[0].Layers()
}

// Config is the model's configuration.
func (e *Engine) Config() model.Config {
	if e == nil {
		return model.Config{}
	}
	return e.cfg
}

// Warm takes steps of all sizes on all ranks, side by side: see pipeline.Engine.Warm, whose errors
// it has.
func (e *Engine) Warm(ctx context.Context) error {
	if err := e.usable("ranks: warm"); err != nil {
		return err
	}
	return all(len(e.ranks), func(i int) error { return e.ranks[i].Warm(ctx) })
}

// Close closes the engines of all ranks and frees their weights. Closing again does nothing.
// Errors:
// those of pipeline.Engine.Close and model.CloseLayers.
func (e *Engine) Close() (err error) {
	if e == nil {
		return nil
	}
	e.copies.Lock()
	defer e.copies.Unlock()
	for i, x := range e.ranks {
		if x != nil {
			err = errors.Join(err, x.Close())
		}
		err = errors.Join(err, model.CloseLayers(e.layers[i]))
	}
	return err
}

// Session is a sequence of tokens, with all of its pages on each rank.
type Session struct {
	e  *Engine
	on []*pipeline.Session // of each rank

	mu    sync.Mutex // held by what changes the session on all ranks
	steps int        // that have the session; some ranks may have ended one, or not begun
}

// same makes a session of one on each rank, all of them or none.
func (e *Engine) same(op string, open func(rank int) (*pipeline.Session, error)) (*Session, error) {
	s := &Session{e: e, on: make([]*pipeline.Session, len(e.ranks))}
	err := all(len(e.ranks), func(i int) (err error) {
		s.on[i], err = open(i)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", op, err), s.Close())
	}
	return s, nil
}

// Open makes a session without tokens. Errors: those of pipeline.Engine.Open.
func (e *Engine) Open() (*Session, error) {
	if err := e.usable(opOpen); err != nil {
		return nil, err
	}
	return e.same(opOpen, func(i int) (*pipeline.Session, error) { return e.ranks[i].Open() })
}

// Restore makes a session of what Session.Save wrote, or pipeline.Session.Save in an engine with
// the whole model. It reads everything into host memory, and once more for each rank.
// Errors: those of pipeline.Engine.Restore.
func (e *Engine) Restore(ctx context.Context, r io.Reader) (*Session, error) {
	err := e.usable(opRestore)
	switch {
	case err != nil:
	case ctx == nil:
		err = badArgument(opRestore, "ctx", "nil", "a context")
	case r == nil:
		err = badArgument(opRestore, "r", "nil", "a reader")
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	return e.same(opRestore, func(i int) (*pipeline.Session, error) {
		return e.ranks[i].Restore(ctx, bytes.NewReader(data))
	})
}

// known demands a session that an engine made.
func (s *Session) known(op string) error {
	if s == nil || s.e == nil {
		return badArgument(op, "session", "nil", "one that Engine.Open, Engine.Restore or Session.Fork made")
	}
	return nil
}

// Len returns the number of tokens; 0 once closed.
func (s *Session) Len() int {
	if s.known("") != nil {
		return 0
	}
	return s.on[0].Len()
}

// Fork makes a session with the same tokens in the same pages. Errors: those of
// pipeline.Session.Fork.
func (s *Session) Fork() (*Session, error) {
	const op = "ranks: fork session"
	if err := s.known(op); err != nil {
		return nil, err
	}
	var f *Session
	err := s.change(op, func() (err error) {
		f, err = s.e.same(op, func(i int) (*pipeline.Session, error) { return s.on[i].Fork() })
		return err
	})
	return f, err
}

// change does what needs the session outside of steps.
func (s *Session) change(op string, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.steps > 0 {
		return fmt.Errorf("%s: %w", op, pipeline.ErrInStep)
	}
	return f()
}

// Truncate forgets the tokens from n on. Errors: those of pipeline.Session.Truncate.
func (s *Session) Truncate(n int) error {
	const op = "ranks: truncate session"
	if err := s.known(op); err != nil {
		return err
	}
	return s.change(op, func() error {
		for _, x := range s.on { // what the first refuses all do
			if err := x.Truncate(n); err != nil {
				return err
			}
		}
		return nil
	})
}

// Save writes the session to w: see pipeline.Session.Save, whose errors it has.
func (s *Session) Save(ctx context.Context, w io.Writer) error {
	if err := s.known("ranks: save session"); err != nil {
		return err
	}
	return s.on[0].Save(ctx, w)
}

// Close gives the session's pages back. Closing again does nothing.
// The error is pipeline.ErrInStep.
func (s *Session) Close() (err error) {
	if s == nil {
		return nil
	}
	return s.change("ranks: close session", func() error {
		for _, x := range s.on {
			if err = errors.Join(err, x.Close()); errors.Is(err, pipeline.ErrInStep) {
				break // a step has begun on the first
			}
		}
		return err
	})
}

// badArgument says what is wrong with an argument of a call.
func badArgument(op, arg string, got any, want string, a ...any) error {
	return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}
