package sequences

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

// Stage says what the process holds at a moment.
type Stage struct {
	Step       int
	RSS, Heap  int // bytes; what the collector left of Go's heap
	Files      int // descriptors
	Goroutines int
	Live       map[string]int // Vulkan objects
}

func (s Stage) String() string {
	return fmt.Sprintf("%d steps, rss %.1f MB, heap %.2f MB, %d files, %d goroutines, %d buffers, %d fences, %d pipelines, %d set pools",
		s.Step, float64(s.RSS)/1e6, float64(s.Heap)/1e6, s.Files, s.Goroutines, s.Live["buffer"], s.Live["fence"], s.Live["pipeline"],
		s.Live["descriptor pool"])
}

func (x *walk) stage() Stage {
	runtime.GC()
	trim()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := Stage{Step: int(x.steps.Load()), Heap: int(m.HeapAlloc), Goroutines: runtime.NumGoroutine(), Live: x.o.Live()}
	if f, err := os.ReadDir("/proc/self/fd"); err == nil {
		s.Files = len(f)
	}
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := bytes.Fields(b); len(fields) > 1 {
			pages, _ := strconv.Atoi(string(fields[1]))
			s.RSS = pages * os.Getpagesize()
		}
	}
	return s
}

// watch notes what the process holds now and then, until the function that it returns is called,
// and ends the walk when its time is over.
func (x *walk) watch(start time.Time) (stop func()) {
	const stages = 40
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		next, told := 0, start
		for {
			select {
			case <-quit:
				x.stages = append(x.stages, x.stage())
				return
			case <-tick.C:
			}
			took := time.Since(start)
			if x.o.Time > 0 && took >= x.o.Time {
				x.end()
			}
			at := 0
			if x.o.Steps > 0 {
				at = int(x.steps.Load()) * stages / x.o.Steps
			}
			if x.o.Time > 0 {
				at = max(at, int(took*stages/x.o.Time))
			}
			if at > next {
				next = at
				x.stages = append(x.stages, x.stage())
			}
			if x.o.Progress != nil && time.Since(told) > 10*time.Second {
				told = time.Now()
				s := x.stage()
				x.o.Progress(fmt.Sprintf("%v: %.0f steps/s, %v", took.Round(time.Second), float64(s.Step)/took.Seconds(), s))
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// Grew says what the process held more of in the last quarter of a walk than in its first half,
// beyond what chance explains. How many objects there are depends on which engines and sizes of
// steps there are at that moment, so more moments are looked at early than late: what leaks has
// grown since the last of them. Memory is first looked at after a quarter, because a walk begins
// by compiling kernels. A walk of few steps does nothing else.
func (r *Report) Grew() (list []string) {
	const few = 20000
	n := len(r.Stages)
	if r.Steps < few {
		return nil
	}
	most := func(of func(Stage) int, stages []Stage) (most int) {
		for _, s := range stages {
			most = max(most, of(s))
		}
		return most
	}
	for _, what := range []struct {
		name  string
		first int // stage that is looked at
		slack int
		of    func(Stage) int
	}{
		{"resident bytes", n / 4, 16 << 20, func(s Stage) int { return s.RSS }},
		{"bytes of heap", n / 4, 4 << 20, func(s Stage) int { return s.Heap }},
		{"files", 0, 24, func(s Stage) int { return s.Files }}, // some drivers have one for each fence
		{"goroutines", 0, 8, func(s Stage) int { return s.Goroutines }},
		{"buffers", 0, 24, func(s Stage) int { return s.Live["buffer"] }},
		{"fences", 0, 24, func(s Stage) int { return s.Live["fence"] }},
		{"pipelines", 0, 12, func(s Stage) int { return s.Live["pipeline"] }},
		{"descriptor pools", 0, 2, func(s Stage) int { return s.Live["descriptor pool"] }},
	} {
		early, late := most(what.of, r.Stages[what.first:n/2]), most(what.of, r.Stages[3*n/4:])
		if late > early+what.slack {
			list = append(list, fmt.Sprintf("%s: %d at most in the first half, %d in the last quarter", what.name, early, late))
		}
	}
	return list
}
