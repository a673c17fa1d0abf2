package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// Lose makes an engine believe that its device was lost.
func (e *Engine) Lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(vk.ErrDeviceLost)
}

// allSteps returns the sizes of steps that there are.
func (e *Engine) allSteps() []*commands.Size {
	return slices.Collect(maps.Values(e.sizes.All))
}

// PageCounts are numbers of pages of the first pools of an engine.
type PageCounts [8]int

// Pages returns how many pages the engine has of each pool, and how many are free.
func (e *Engine) Pages() (all, free PageCounts) {
	for i, p := range e.pages.All {
		all[i], free[i] = p.IDs.Capacity(), p.IDs.Free()
	}
	return all, free
}

// PageBytes returns the bytes that `pages` pages of each pool take.
func (e *Engine) PageBytes(pages PageCounts) uint64 {
	sum := uint64(0)
	for i, p := range e.pages.All {
		sum += uint64(pages[i]) * p.PageBytes
	}
	return sum
}

// Submissions returns how many submissions a step of a size takes, and whether each operation is
// one because its time is not known yet.
func (e *Engine) Submissions(size int) (n int, each bool) {
	for _, b := range e.allSteps() {
		if b.Tokens != size {
			continue
		}
		for _, c := range b.Recorded {
			n, each = c.Parts(), c.Each
		}
	}
	return n, each
}

// Updates returns how many block tables a step that has begun looked at, and how many entries of
// them it sends to the device.
func (st *Step) Updates() (tables, entries int) {
	return st.e.pages.Changed(), st.b.Updates
}

// Parts are those of the commands for a step of a size, which has them all.
func (e *Engine) Parts(size int) (parts []vk.Part) {
	for _, b := range e.allSteps() {
		if b.Tokens == size {
			for _, c := range b.Recorded {
				parts = append(parts, c.Division()...)
			}
		}
	}
	return parts
}

// Divided returns how many launches are in pieces, in the commands with most of them.
func (e *Engine) Divided() (most int) {
	for _, b := range e.allSteps() {
		for _, c := range b.Recorded {
			divided := map[int]bool{}
			parts := c.Division()
			for i, p := range parts {
				if i > 0 && parts[i-1].First == p.First {
					divided[p.First] = true
				}
			}
			most = max(most, len(divided))
		}
	}
	return most
}

// OpenAll allocates what Warm does, and runs nothing.
func (e *Engine) OpenAll(ctx context.Context) error {
	return e.betweenSteps(ctx, func() error {
		if err := e.growRopes(ctx, e.opts.MaxTokens); err != nil {
			return err
		}
		return e.sizes.Open(ctx)
	})
}

// SpareBytes is a page of each pool whose pages go.
func (e *Engine) SpareBytes() (n uint64) {
	for _, p := range e.pages.All {
		if !p.KeepsAll() {
			n += p.PageBytes
		}
	}
	return n
}

// Poison makes steps overwrite, in front of each part of a layer, the scratch that the part does
// not use. They compute the same, or something reads what another operation or layer left. It is
// for sizes of steps that there have been.
func (e *Engine) Poison() error {
	const nan = 0x7fc07fc0 // and no entry, slot or code that there is
	for _, b := range e.sizes.All {
		last := memory.Always
		b.Scratch.Enter = func(rec *vk.Recorder, now memory.Use) (err error) {
			if now != 0 && now == last {
				return nil
			}
			last = now
			for _, r := range b.Scratch.Idle(now) {
				err = errors.Join(err, rec.Fill(b.Buffer.View(r[0], r[1]-r[0]), nan))
			}
			return err
		}
	}
	return e.forget()
}

// Levels returns the schedule of a layer in steps of `tokens` tokens; there must have been one.
func (e *Engine) Levels(tokens, layer int) [][]string {
	return e.sizes.All[e.sizes.SizeOf(tokens)].Layers[layer].Levels()
}

// Tear leaves counters as a launch does that failed between two of its pieces. Recorded steps
// cannot be submitted until Untear.
func (e *Engine) Tear(ctx context.Context) error {
	for _, b := range e.allSteps() {
		for _, c := range b.Recorded {
			if err := c.Close(); err != nil {
				return err
			}
		}
		for _, k := range b.Kinds {
			for _, t := range k.Counters() {
				if err := t.Upload(ctx, bytes.Repeat([]byte{1, 0, 0, 0}, t.Len())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Untear lets steps be submitted again.
func (e *Engine) Untear() error { return e.forget() }

// Pretend makes a step believe that all layers ran, without the device. What is left is the host's
// part besides submissions.
func (st *Step) Pretend() {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	for i := range st.e.now.ran {
		st.e.now.ran[i] = true
	}
}

// PageOf is the page of an entry of the session's table of a pool.
func (s *Session) PageOf(pool, entry int) int { return int(s.seq.Tables[pool].Entry(entry)) }

// Pieces returns in how many pieces the step gathers rows; 0: it reads pages in place.
func (st *Step) Pieces() int { return st.pieces }

// WithoutDevice is an engine that has a fingerprint and reads snapshots, and can do nothing else.
// Its options are not checked.
func WithoutDevice(cfg model.Config, layers []*model.DeviceLayer, o EngineOptions) (*Engine, error) {
	o.fill(&cfg)
	e := &Engine{cfg: cfg, opts: o}
	e.addLayers(layers)
	return e, e.shapePools()
}

// Encodings returns the bytes whose hashes are the parts of a fingerprint.
func (e *Engine) Encodings() (config, weights, formats string) {
	return e.encodeConfig().String(), e.encodeWeights().String(), e.encodeFormats().String()
}

// ReadSnapshot reads a snapshot and returns its tokens, and what it read as a snapshot again,
// without what this engine would not keep.
func (e *Engine) ReadSnapshot(r io.Reader) (tokens int, again []byte, err error) {
	h, data, err := e.readSnapshot(r)
	if err != nil {
		return 0, nil, err
	}
	if again, err = h.encode(); err != nil {
		return 0, nil, err
	}
	for i, p := range e.pages.All {
		for _, c := range p.Caches {
			slots := make([]byte, h.pools[i].slots()*c.SlotBytes())
			data[c].take(slots)
			again = append(again, slots...)
		}
	}
	sum := sha256.Sum256(again)
	return int(h.Length), append(again, sum[:]...), nil
}

// GatherIn makes engines gather rows in n bytes; 0: as many as they do otherwise.
func GatherIn(t testing.TB, n uint64) {
	gatherBytes = n
	t.Cleanup(func() { gatherBytes = 0 })
}

// LeastGather returns what a token's rows take of what GatherIn allows, in the layer where they
// take the most, and that layer.
func (e *Engine) LeastGather() (least uint64, layer int) {
	for i := range e.layers {
		cfg := e.sizes.LayerConfig(i, 1)
		if n := cfg.LeastWorkspace(); n > least {
			least, layer = n, i
		}
	}
	return least, layer
}

// Caches, Advance, ReuseInputs and SetBudget are those of internal/probe/engine.
func (e *Engine) Caches(layer int) probe.Caches { return e.cachesOf(layer) }

func (e *Engine) SetBudget(d time.Duration) { e.setBudget(d) }

func (s *Session) Advance(ctx context.Context, n int) error { return s.advanceBy(ctx, n) }

func (st *Step) ReuseInputs() error { return st.reuseInputs() }
