// Package engine reaches what tests and measurements need of package pipeline, and its users do
// not. Package pipeline sets the functions; engine, session and step are its types of these names.
package engine

import (
	"context"
	"time"

	"github.com/vkmla/vkmla/cache"
)

// Caches are the caches that a layer reads or writes; those that it does not have are zero.
type Caches struct {
	Window     cache.KVCache       // a slot for each token
	Compressed cache.KVCache       // entries: a slot for each Ratio tokens
	State      cache.StateCache    // of the compressor
	IndexState cache.StateCache    // of the indexer's compressor
	Keys       cache.IndexKeyCache // the indexer's, a slot for each entry
}

var (
	// CachesOf returns the caches of a layer. Growing replaces their memory. An unknown layer has
	// none.
	CachesOf func(engine any, layer int) Caches

	// SetBudget sets the longest time of a submission; negative: a step is always one. It is
	// called before the engine's first step.
	SetBudget func(engine any, budget time.Duration)

	// Advance lengthens a session by n tokens that no layer has seen: all that caches hold of them
	// is zeros. It waits while a step of other sessions is in progress.
	//
	// Errors: vk.ErrArgument for a negative n; pipeline.ErrSequenceFull, cache.ErrPoolFull,
	// pipeline.ErrInStep; the context's; vk.ErrClosed, vk.ErrDeviceLost. Then the session may have
	// got some of the tokens.
	Advance func(ctx context.Context, session any, n int) error

	// ReuseInputs makes a step take as its inputs what Input holds already: rows of an earlier
	// step. Without it a layer whose input was not written since Begin is refused.
	//
	// Errors: vk.ErrClosed, vk.ErrDeviceLost.
	ReuseInputs func(step any) error
)
