package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
)

// Options say how checks are supervised.
type Options struct {
	Worker []string // the command line of a process that calls Work with the same checks

	Budget  time.Duration // for all checks; what does not fit is not run
	Silence time.Duration // a check that is silent for longer has timed out
	Grace   time.Duration // how long a check may take to end when it is told to

	// What to tell the caller; each may be nil.
	Opened func(d describe.Device)
	Doing  func(done, total int, c Check, what string)
	Result func(r Result)

	clock clock // of the limits
}

// clock is what limits go by; nil: time's own.
type clock struct {
	now   func() time.Time
	after func(d time.Duration) <-chan time.Time
}

// Run runs the checks in a worker and adds what becomes of them to the report. It ends soon
// after the budget, or the context, whatever the driver does. After a crash a new worker takes
// the checks that are left; after one that hung, none does.
func Run(ctx context.Context, checks []Check, o Options, report *Report) {
	if o.clock.now == nil {
		o.clock = clock{time.Now, time.After}
	}
	s := &supervisor{ctx: ctx, o: o, checks: checks, report: report, end: o.clock.now().Add(o.Budget)}
	for i, c := range checks {
		if o.Doing != nil {
			o.Doing(i, len(checks), c, "")
		}
		s.doing = func(what string) {
			if o.Doing != nil {
				o.Doing(i, len(checks), c, what)
			}
		}
		r := s.check(c)
		r.Group, r.Name, r.About, r.Seed = c.Group, c.Name, c.About, report.Seed
		report.Results = append(report.Results, r)
		if o.Result != nil {
			o.Result(r)
		}
	}
	if s.worker != nil {
		s.worker.leave(o.Grace)
	}
}

type supervisor struct {
	ctx    context.Context
	o      Options
	checks []Check // the first is that of the report's first result
	report *Report
	end    time.Time // of the budget
	worker *process
	doing  func(what string)
	limits bench.Limits
	closed string // why no further check can run
}

// passes is how often a check of times runs its layer, about.
const passes = 3 * timedReps

func notRun(format string, args ...any) Result {
	return Result{Status: NotRun, Why: fmt.Sprintf(format, args...)}
}

// left returns what is left of the budget for a group. Its first check may take half of what all
// have, because a slow device needs more for one than a share: so no group is without a result.
func (s *supervisor) left(group string) time.Duration {
	all := s.end.Sub(s.o.clock.now())
	left := all - s.o.Budget*time.Duration(reserved(group))/100
	if !slices.ContainsFunc(s.report.Results, func(r Result) bool { return r.Group == group }) {
		left = max(left, all/2)
	}
	return left
}

// generous is the factor by which a check may exceed its part of its group's time: most need less.
const generous = 2

// share returns the time after which a check is to begin no further case, so that the checks of its
// group which come after it have some, too.
func (s *supervisor) share(group string) time.Duration {
	n := 0
	for _, c := range s.checks[len(s.report.Results):] {
		if c.Group == group {
			n++
		}
	}
	return generous * s.left(group) / time.Duration(max(n, generous))
}

// outOfTime says why checks of a group are not run, as the report and its readers group them.
func (s *supervisor) outOfTime(group string) string {
	if reserved(group) > 0 {
		return fmt.Sprintf("the share of %s in the budget of %v was used up", group, s.o.Budget)
	}
	return fmt.Sprintf("the budget of %v was used up", s.o.Budget)
}

// check runs a check, if there is a device and time for it.
func (s *supervisor) check(c Check) Result {
	switch {
	case s.closed != "":
		return notRun("%s", s.closed)
	case s.ctx.Err() != nil:
		s.closed = "interrupted"
		return notRun("interrupted")
	case s.left(c.Group) <= 0:
		return notRun("%s", s.outOfTime(c.Group))
	}
	if r, ok := s.fits(c); !ok {
		return r
	}
	if s.worker == nil {
		s.doing("opening the device")
		if s.closed = s.open(); s.closed != "" {
			return notRun("%s", s.closed)
		}
	}
	start := time.Now()
	r := s.one(c)
	r.Seconds = time.Since(start).Seconds()
	if r.Limits != nil {
		s.limits = *r.Limits
	}
	return r
}

// fits reports whether a check may end in time, by what the smaller one took: its work grows,
// what surrounds it does not.
func (s *supervisor) fits(c Check) (Result, bool) {
	if c.Smaller == "" {
		return Result{}, true
	}
	for _, r := range s.report.Results {
		if r.Group != c.Group || r.Name != c.Smaller {
			continue
		}
		if r.Status != Right {
			return notRun("%s has no result", c.Smaller), false
		}
		step := 0.0
		for _, t := range r.Times {
			step += t.Time.Median / 1e6 * c.Grows
		}
		need, left := r.Seconds+step*passes, s.left(c.Group).Seconds()
		switch {
		case step > s.o.Silence.Seconds()/4: // it would look as if the device hung
			return notRun("the device is too slow for it"), false
		case need > left:
			return notRun("it might not end within the budget of %v", s.o.Budget), false
		}
	}
	return Result{}, true
}

// open starts a worker and returns why that was of no use.
func (s *supervisor) open() (problem string) {
	p, err := start(s.o.Worker)
	if err != nil {
		problem = err.Error()
	} else if problem = s.greet(p); problem == "" {
		s.worker = p
		return ""
	}
	if s.report.Problem == "" {
		s.report.Problem = problem
	}
	return "the device could not be opened: " + problem
}

// greet waits for a worker to have opened the device.
func (s *supervisor) greet(p *process) (problem string) {
	select {
	case m, more := <-p.messages:
		switch {
		case !more || m.Open == nil:
			how, output := p.crash()
			s.report.Output = output
			return "the driver crashed while the device was opened: " + how
		case m.Open.Problem != "":
			s.report.Devices = m.Open.Devices
			p.leave(s.o.Grace)
			return m.Open.Problem
		}
		if s.report.Device == nil {
			s.report.Device, s.report.Devices = m.Open.Device, m.Open.Devices
			if s.o.Opened != nil {
				s.o.Opened(*m.Open.Device)
			}
		}
		return ""
	case <-s.o.clock.after(s.o.Silence):
		p.end()
		return fmt.Sprintf("the driver did not open the device in %v", s.o.Silence)
	case <-s.ctx.Done():
		p.end()
		return "interrupted"
	}
}

// one has the worker run a check, and waits until it has ended or was ended.
func (s *supervisor) one(c Check) Result {
	w := s.worker
	w.tell(order{Run: c.ID(), Limits: s.limits, Share: s.share(c.Group)})
	silence, budget := s.o.clock.after(s.o.Silence), s.o.clock.after(s.left(c.Group))
	interrupted := s.ctx.Done()
	heard := w.listened(s.o.Silence)
	var grace <-chan time.Time
	var told Result // what becomes of a check that was told to stop
	last := "it began"
	stop := func(r Result) {
		if grace == nil {
			told, grace = r, s.o.clock.after(s.o.Grace)
			w.stdin.Close()
		}
	}
	for {
		select {
		case m, more := <-w.messages:
			if !more {
				s.worker = nil
				how, output := w.crash()
				return Result{Status: Crashed, Why: how + "; it was at: " + last, Output: output}
			}
			if m.Result != nil {
				return s.ended(*m.Result, m, told)
			}
			if last = m.Doing; grace == nil {
				s.doing(last)
				heard = w.listened(s.o.Silence)
				silence = s.o.clock.after(s.o.Silence)
			}
		case <-silence:
			if heard.goesOn() {
				silence = s.o.clock.after(s.o.Silence)
				break
			}
			stop(Result{Status: TimedOut,
				Why: fmt.Sprintf("nothing was heard of it for %v (--timeout allows more); it was at: %s", s.o.Silence, last)})
			heard = w.listened(s.o.Grace)
		case <-budget:
			stop(notRun("%s in the middle of it", s.outOfTime(c.Group)))
			heard = w.listened(s.o.Grace)
		case <-interrupted:
			interrupted = nil
			stop(notRun("interrupted"))
			heard = w.listened(0)
		case <-grace:
			if heard.goesOn() {
				grace = s.o.clock.after(s.o.Grace)
				break
			}
			return s.hung(c, last)
		}
	}
}

// ended judges a check that came to an end, by itself or when it was told to.
func (s *supervisor) ended(r Result, m message, told Result) Result {
	if m.Lost { // what the driver gave up on is of no use to the checks that follow
		s.worker.end()
		s.worker = nil
		if r.Status = Crashed; m.Hung {
			r.Why += " (--timeout allows more)"
			r.Status, s.closed = TimedOut, "the device hung in "+r.Group+"/"+r.Name
		}
		return r
	}
	if told.Status == "" {
		return r
	}
	s.worker.leave(s.o.Grace) // it has no further orders
	s.worker = nil
	if m.Stopped && r.Counts().Fail == 0 {
		r.Status, r.Why = told.Status, told.Why
		if n := r.Counts().Pass; n > 0 {
			r.Why += fmt.Sprintf("; %d parts were right", n)
		}
	}
	return r
}

// hung ends a worker that does not come back.
func (s *supervisor) hung(c Check, last string) Result {
	how := s.worker.end()
	s.worker = nil
	s.closed = "the device hung in " + c.ID()
	return Result{Status: TimedOut,
		Why: fmt.Sprintf("%v after it was told to stop it had not; its process was ended (%s; --timeout allows more); it was at: %s",
			s.o.Grace, how, last)}
}
