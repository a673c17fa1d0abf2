package ranks

import "github.com/vkmla/vkmla/pipeline"

// On is the session on each rank.
func (s *Session) On() []*pipeline.Session { return s.on }

// Steps are those of each rank.
func (st *Step) Steps() []*pipeline.Step { return st.steps }
