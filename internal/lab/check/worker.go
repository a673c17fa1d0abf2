package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/vk"
)

// order is what the supervisor tells the worker, one object a line.
type order struct {
	Run    string        `json:"run,omitempty"` // the check of this ID
	Limits bench.Limits  `json:"limits"`        // for it
	Share  time.Duration `json:"share"`         // of the budget
	Stop   bool          `json:"stop,omitempty"`
}

// message is what the worker tells the supervisor, one object a line.
type message struct {
	Open   *opened `json:"open,omitempty"`   // once, at first
	Doing  string  `json:"doing,omitempty"`  // goes on
	Result *Result `json:"result,omitempty"` // the check ended
	// What besides came of it: the device was lost, and that because it hung; the check was told
	// to stop, and did.
	Lost    bool `json:"lost,omitempty"`
	Hung    bool `json:"hung,omitempty"`
	Stopped bool `json:"stopped,omitempty"`
}

// opened says what came of opening the device.
type opened struct {
	Device  *describe.Device `json:"device,omitempty"`
	Problem string           `json:"problem,omitempty"`
	Devices int              `json:"devices"` // that drivers list
}

// WorkerOptions say what a worker opens and how it checks.
type WorkerOptions struct {
	Seed  uint64
	Quick bool

	// Open opens the device and describes it; devices is how many there are to choose from.
	Open func() (dev *vk.Device, about describe.Device, devices int, close func(), err error)
}

// Work opens the device and runs the checks that come by name from in, one at a time, until
// in ends. What it has to say goes to out. When in ends it closes the device, unless a check is
// still under way: then it returns at once, and the process is to exit.
func Work(in io.Reader, out io.Writer, checks []Check, o WorkerOptions) error {
	orders := make(chan order)
	go func() {
		defer close(orders)
		for dec := json.NewDecoder(in); ; {
			var x order
			if dec.Decode(&x) != nil {
				return
			}
			orders <- x
		}
	}()
	done := make(chan error, 1)
	w := &worker{out: json.NewEncoder(out), checks: checks, o: o, orders: make(chan begun, 1)}
	go func() { done <- w.work() }()
	for {
		select {
		case x, more := <-orders:
			if !more {
				return w.leave(done)
			}
			if x.Stop {
				w.stop()
			} else {
				w.begin(x)
			}
		case err := <-done:
			return err
		}
	}
}

// leave waits for the device to be closed, if nothing runs, and not for long.
func (w *worker) leave(done <-chan error) error {
	w.mu.Lock()
	idle := w.cancel == nil
	w.mu.Unlock()
	if !idle {
		return nil
	}
	close(w.orders)
	select {
	case err := <-done:
		return err
	case <-time.After(closing):
		return nil
	}
}

// closing is how long a device may take to be closed.
const closing = 5 * time.Second

type worker struct {
	mu     sync.Mutex // of out and cancel
	out    *json.Encoder
	cancel context.CancelFunc // ends the check that runs; nil if none does

	checks []Check
	o      WorkerOptions
	orders chan begun
	shared shared
}

// begun is an order to run a check, with a context that the next order to stop ends.
type begun struct {
	order
	ctx context.Context
	end func() // to be called when the check ended
}

func (w *worker) say(m message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Encode(m)
}

// stop ends the check that runs.
func (w *worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel != nil {
		w.cancel()
	}
}

// begin hands on an order to run a check.
func (w *worker) begin(x order) {
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.cancel = cancel
	w.mu.Unlock()
	w.orders <- begun{x, ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cancel = nil
		cancel()
	}}
}

func (w *worker) work() error {
	dev, about, devices, close, err := w.o.Open()
	if err != nil {
		return w.say(message{Open: &opened{Problem: oneLine(err.Error()), Devices: devices}})
	}
	defer func() {
		w.shared.close()
		close()
	}()
	if err := w.say(message{Open: &opened{Device: &about, Devices: devices}}); err != nil {
		return err
	}
	for x := range w.orders {
		c, ok := find(w.checks, x.Run)
		if !ok {
			return fmt.Errorf("check: worker: no check %q", x.Run)
		}
		if err := w.check(dev, c, x); err != nil {
			return err
		}
	}
	return nil
}

// check runs a check and tells what came of it.
func (w *worker) check(dev *vk.Device, c Check, x begun) error {
	m, run := message{}, c.Run
	c.Run = func(ctx context.Context, e *Env) error {
		err := run(ctx, e)
		m.Lost, m.Hung, m.Stopped = errors.Is(err, vk.ErrDeviceLost), errors.Is(err, vk.ErrDeviceHung), errors.Is(err, context.Canceled)
		return err
	}
	r := c.run(x.ctx, &Env{Dev: dev, Seed: w.o.Seed, Quick: w.o.Quick, Limits: x.Limits, Share: x.Share, beat: w.beats(), shared: &w.shared})
	x.end()
	// A check whose errors became rows does not return them.
	m.Lost = m.Lost || strings.Contains(r.Why, vk.ErrDeviceLost.Error())
	m.Hung = m.Hung || strings.Contains(r.Why, vk.ErrDeviceHung.Error())
	m.Result = &r
	return w.say(m)
}

// often is how often the supervisor hears the same check.
const often = 50 * time.Millisecond

// beats tells the supervisor what a check does, not more often than it is of use.
func (w *worker) beats() func(what string) {
	var mu sync.Mutex
	var last time.Time
	return func(what string) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) >= often {
			last = time.Now()
			w.say(message{Doing: what})
		}
	}
}

func find(checks []Check, id string) (Check, bool) {
	for _, c := range checks {
		if c.ID() == id {
			return c, true
		}
	}
	return Check{}, false
}

// guard turns a panic of f into an error.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return f()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
