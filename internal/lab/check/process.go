package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// process is a worker as the supervisor sees it. Nothing here waits without a limit.
type process struct {
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	messages chan message // closed when the worker says no more
	ended    chan error   // how the process ended, once
	gone     chan struct{}
	output   *tail
}

// outFlag is the last argument of a worker: the file, or handle, on which it says what it has to
// say. Drivers write what they like to the others.
const outFlag = "--out="

// start starts a worker.
func start(command []string) (*process, error) {
	said, speak, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("check: worker: %w", err)
	}
	defer speak.Close()
	p := &process{cmd: exec.Command(command[0], command[1:]...), messages: make(chan message), ended: make(chan error, 1),
		gone: make(chan struct{}), output: &tail{}}
	p.cmd.Stderr = p.output
	p.cmd.WaitDelay = time.Second // for what it left behind that still holds its standard error
	out, err := inherit(p.cmd, speak)
	p.cmd.Args = append(p.cmd.Args, fmt.Sprint(outFlag, out))
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		said.Close()
		return nil, fmt.Errorf("check: worker: %w", err)
	}
	go p.listen(said)
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// listen decodes what the worker says until it ends, or its listener has left.
func (p *process) listen(said io.ReadCloser) {
	defer close(p.messages)
	defer said.Close()
	for dec := json.NewDecoder(said); ; {
		var m message
		if dec.Decode(&m) != nil {
			return
		}
		select {
		case p.messages <- m:
		case <-p.gone:
			return
		}
	}
}

// tell gives the worker an order. That it has ended shows elsewhere.
func (p *process) tell(x order) { json.NewEncoder(p.stdin).Encode(x) }

// quiet is a while in which a worker says nothing. A machine with much else to do may give it
// little of its processors, which compile kernels and, for a software driver, execute them: its own
// time counts then, not the clock's.
type quiet struct {
	p           *process
	limit       time.Duration // of the worker's own time
	since, last time.Duration // that it had used at the beginning, and when goesOn was asked last
}

// listened begins such a while. The worker may use its processors for as long as limit.
func (p *process) listened(limit time.Duration) quiet {
	used, _ := busyTime(p.cmd.Process.Pid)
	return quiet{p, limit * time.Duration(runtime.NumCPU()), used, used}
}

// goesOn reports whether the worker has worked since it was asked last, and not too long in all.
func (q *quiet) goesOn() bool {
	const least = time.Second
	used, ok := busyTime(q.p.cmd.Process.Pid)
	worked := used - q.last
	q.last = used
	return ok && worked >= least && used-q.since < q.limit
}

// leave lets the worker close its device and end, and ends it if it does not.
func (p *process) leave(patience time.Duration) {
	p.stdin.Close()
	p.wait(patience)
	p.end()
}

// end ends the process, if it has not ended, and says how it did. What hangs in the kernel's
// driver may not end, and is not waited for.
func (p *process) end() (how string) {
	select {
	case <-p.gone:
		return "ended"
	default:
		close(p.gone)
	}
	p.stdin.Close()
	p.cmd.Process.Kill()
	if err, ok := p.wait(reaping); !ok {
		return "could not be ended"
	} else if err != nil {
		return err.Error()
	}
	return "exit status 0"
}

// reaping is how long the system may take to end a process.
const reaping = 3 * time.Second

// wait waits for the process to end, for a while.
func (p *process) wait(long time.Duration) (err error, ok bool) {
	select {
	case err = <-p.ended:
		p.ended <- err
		return err, true
	case <-time.After(long):
		return nil, false
	}
}

// crash says how a process ended that had more to do.
func (p *process) crash() (how, output string) {
	err, ok := p.wait(reaping)
	end := p.end()
	var exit *exec.ExitError
	switch {
	case !ok:
		how = "it stopped talking and " + end
	case errors.As(err, &exit):
		how = "the process ended: " + signalOf(exit.String(), p.output.String())
	case err != nil:
		how = "the process ended: " + err.Error()
	default:
		how = "the process ended before the check"
	}
	return how, p.output.String()
}

// signalOf names the signal that Go's runtime reports of a program, which then exits by itself.
func signalOf(how, output string) string {
	for line := range strings.Lines(output) {
		if name, _, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(name, "SIG") {
			return strings.TrimSpace(line)
		}
		for _, start := range []string{"panic: ", "fatal error: ", "Exception 0x"} {
			if strings.HasPrefix(line, start) {
				return strings.TrimSpace(line)
			}
		}
	}
	return how
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
	cut  bool
}

// How much of what a process wrote is kept, and how much of it a report shows: traces begin
// with what matters.
const (
	kept  = 32 << 10
	shown = 4 << 10
)

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if n := len(t.data) - kept; n > 0 {
		t.data, t.cut = append([]byte(nil), t.data[n:]...), true
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.ToValidUTF8(strings.TrimSpace(string(t.data)), "?")
	if len(s) > shown {
		s = strings.ToValidUTF8(s[:shown], "?") + "\n..."
	}
	return s
}
