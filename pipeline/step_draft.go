package pipeline

import "fmt"

// checkDrafts demands that all chunks are blocks of drafts, each a whole one, or that none is.
func (e *Engine) checkDrafts(chunks []Chunk) error {
	for i, c := range chunks {
		bad := func(field string, got any, want string, a ...any) error {
			return badArgument(opBegin, fmt.Sprintf("chunks[%d].%s", i, field), got, want, a...)
		}
		switch {
		case c.Draft != chunks[0].Draft:
			return bad("Draft", c.Draft, "%v, as in chunks[0]", !c.Draft)
		case c.Draft && e.drafts == len(e.layers):
			return bad("Draft", c.Draft, "false: no layer of the engine drafts")
		case c.Draft && c.Tokens != e.cfg.DraftBlock:
			return bad("Tokens", c.Tokens, "%d, a block of drafts", e.cfg.DraftBlock)
		}
	}
	return nil
}

// draftsOrNot lists the values of Chunk.Draft that steps of a size can have, false first.
func (e *Engine) draftsOrNot(size int) []bool {
	block := e.cfg.DraftBlock
	if e.drafts < len(e.layers) && block <= size && size <= e.sizes.SizeOf(min(block*e.opts.MaxSessions, e.opts.MaxStep)) {
		return []bool{false, true}
	}
	return []bool{false}
}
