package pipeline

import (
	"context"

	"github.com/vkmla/vkmla/vk"
)

// Methods of nil and zero engines, sessions and steps work with these, and nothing can be done with
// them.
var (
	noEngine  = &Engine{ranks: 1}
	noSession = &Session{e: noEngine, at: &rowState{}}
	noStep    = &Step{e: noEngine, b: &stepSize{}}
)

func (e *Engine) orNone() *Engine {
	if e == nil || e.dev == nil {
		return noEngine
	}
	return e
}

func (s *Session) orNone() *Session {
	if s == nil || s.e == nil {
		return noSession
	}
	return s
}

func (st *Step) orNone() *Step {
	if st == nil || st.e == nil {
		return noStep
	}
	return st
}

// missing is the error for a receiver or an argument that is nil.
func missing(arg, want string) error {
	return &vk.ArgumentError{Op: "pipeline", Arg: arg, Got: "nil", Want: want}
}

// alive reports whether a context has ended.
func alive(ctx context.Context) error {
	if ctx == nil {
		return missing("ctx", "a context")
	}
	return ctx.Err()
}
