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

// order tells the worker which check to run, one object a line. The end of orders stops the check.
type order struct {
	Run    string        `json:"run"`    // the check of this ID
	Limits bench.Limits  `json:"limits"` // for it
	Share  time.Duration `json:"share"`  // of the budget
}

// message tells the supervisor how the worker gets on, one object a line.
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

// Work opens the device and runs the checks that come by name from in, one at a time, until in
// ends, which ends the check that runs, too. What it has to say goes to out. Where a check does not
// end then, it returns nevertheless, and the process is to exit.
func Work(in io.Reader, out io.Writer, checks []Check, o WorkerOptions) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := make(chan order)
	go func() {
		defer cancel()
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
	w := &worker{out: json.NewEncoder(out), checks: checks, o: o}
	go func() { done <- w.work(ctx, orders) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(ending):
		return nil
	}
}

// ending bounds the time that a check takes to end, and a device to be closed, where no supervisor
// is left to end the process, which it does earlier.
const ending = 10 * time.Minute

type worker struct {
	mu     sync.Mutex // of out
	out    *json.Encoder
	checks []Check
	o      WorkerOptions
	shared shared
}

func (w *worker) say(m message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Encode(m)
}

func (w *worker) work(ctx context.Context, orders <-chan order) error {
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
	for x := range orders {
		c, ok := find(w.checks, x.Run)
		if !ok {
			return fmt.Errorf("check: worker: no check %q", x.Run)
		}
		if err := w.check(ctx, dev, c, x); err != nil {
			return err
		}
	}
	return nil
}

// check runs a check and tells what came of it.
func (w *worker) check(ctx context.Context, dev *vk.Device, c Check, x order) error {
	m, run := message{}, c.Run
	c.Run = func(ctx context.Context, e *Env) error {
		err := run(ctx, e)
		m.Lost, m.Hung, m.Stopped = errors.Is(err, vk.ErrDeviceLost), errors.Is(err, vk.ErrDeviceHung), errors.Is(err, context.Canceled)
		return err
	}
	r := c.run(ctx, &Env{Dev: dev, Seed: w.o.Seed, Quick: w.o.Quick, Limits: x.Limits, Share: x.Share, beat: w.beats(), shared: &w.shared})
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
