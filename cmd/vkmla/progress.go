package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"
)

// isTerminal reports whether w is a terminal. Not every character device is one:
// /dev/null is not.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// columnsOf returns the columns of the terminal that w is, which the variable COLUMNS may say, and
// a number larger than any where w is none.
func columnsOf(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return math.MaxInt
}

// progress shows one changing line on a terminal. Elsewhere, and on a terminal that cannot erase a
// line, it writes a new one now and then, the same again where one thing takes long.
type progress struct {
	w     io.Writer // nil: nothing is shown
	plain bool
	pause time.Duration // plain: between lines
	width int
	open  bool
	begun time.Time

	mu    sync.Mutex // plain: of the following
	line  string
	last  time.Time   // when a line was written
	again *time.Timer // nil: nothing goes on
}

// plainPause is the pause between lines that stay on a terminal.
const plainPause = 10 * time.Second

// filePause is that where a file or another program reads them.
var filePause = 30 * time.Second

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, begun: time.Now(), width: 78, plain: true, pause: filePause}
	p.last = p.begun
	if !isTerminal(w) {
		return p
	}
	f := w.(*os.File)
	p.plain, p.pause, p.last = os.Getenv("TERM") == "dumb" || !erases(f), plainPause, time.Time{}
	if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 2 {
		p.width = columns - 2
	}
	return p
}

// show replaces the line.
func (p *progress) show(format string, args ...any) {
	if p.w == nil {
		return
	}
	line := fmt.Sprintf(format, args...)
	if r := []rune(line); len(r) > p.width {
		line = string(r[:p.width])
	}
	if p.plain {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.line = line
		p.tell()
		if p.again == nil {
			p.again = time.AfterFunc(p.pause, p.repeat)
		}
		return
	}
	fmt.Fprintf(p.w, "\r%s\x1b[K", line)
	p.open = true
}

// tell writes the line, unless there was one not long ago.
func (p *progress) tell() {
	if now := time.Now(); now.Sub(p.last) >= p.pause {
		p.last = now
		fmt.Fprintln(p.w, p.line)
	}
}

// repeat tells the line while what it says goes on.
func (p *progress) repeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again != nil {
		p.tell()
		p.again.Reset(p.pause)
	}
}

// left says how long the rest takes if it goes on as before, "" while that says nothing.
func (p *progress) left(done, total int) string {
	if done < 1 || done >= total {
		return ""
	}
	d := time.Since(p.begun) / time.Duration(done) * time.Duration(total-done)
	switch {
	case d < 10*time.Second:
		return ""
	case d < 2*time.Minute:
		return fmt.Sprintf(", %d s left", d/time.Second)
	}
	return fmt.Sprintf(", %d min left", (d+time.Minute/2)/time.Minute)
}

// clear removes the line: what it says has ended.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again != nil {
		p.again.Stop()
		p.again = nil
	}
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}
