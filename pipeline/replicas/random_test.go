package replicas_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/replicas"
)

// chance does random things with the sessions of a group. What the layers give for a token depends
// on the tokens up to it alone: it is the same wherever it is computed.
type chance struct {
	*world
	t    *testing.T
	g    *replicas.Group
	rng  *rand.Rand
	open []*replicas.Session
	gave map[string][]float32 // by the tokens up to it
	did  map[string]int
}

func chances(t *testing.T, w *world) {
	operations := 80
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		operations = 3000
	}
	seed := testkit.Seed(t)
	o := pipeline.EngineOptions{MaxTokens: longest, MaxStep: 16, MaxSessions: 5, CacheBytes: 400 << 10}
	plan := must[pipeline.EngineMemory](t)(o.Estimate(t.Context(), w.devs[0], w.cfg, w.layers[0], 60, 40))
	o = pipeline.EngineOptions{MaxSessions: 5, CacheBytes: 400 << 10, MaxCacheBytes: plan.Caches, Rewind: 12}
	c := &chance{world: w, t: t, g: w.group(t, o, replicas.Options{Lead: 3}), rng: rand.New(rand.NewPCG(seed, 1)),
		gave: map[string][]float32{}, did: map[string]int{}}
	for range operations {
		c.operation()
		c.invariants()
	}
	slices.SortFunc(c.open, func(a, b *replicas.Session) int { return b.Len() - a.Len() })
	for _, s := range c.open[:min(4, len(c.open))] {
		tokens := s.Tokens()
		for i, row := range w.want(t, tokens) {
			if had := c.gave[fmt.Sprint(tokens[:i+1])]; had != nil {
				require.True(t, slices.Equal(had, row), "token %d of %d", i, len(tokens))
			}
		}
	}
	dropped(t, c.open...)
	for i, l := range c.g.Loads() {
		assert.Equal(t, replicas.Load{Free: plan.Caches}, l, "replica %d", i)
	}
	t.Log(c.did)
}

// allowed counts an operation and reports whether it succeeded.
func (c *chance) allowed(what string, err error, good ...error) bool {
	c.t.Helper()
	if err == nil {
		c.did[what]++
		return true
	}
	require.True(c.t, slices.ContainsFunc(good, func(g error) bool { return errors.Is(err, g) }), "%s: %v", what, err)
	c.did["no "+what]++
	return false
}

func (c *chance) operation() {
	ctx, n := c.t.Context(), c.rng.IntN(100)
	if len(c.open) == 0 || n < 10 {
		c.begin()
		return
	}
	s := c.open[c.rng.IntN(len(c.open))]
	switch {
	case n < 65:
		c.step()
	case n < 72:
		f, err := s.Fork()
		if c.allowed("fork", err, pipeline.ErrTooManySessions) {
			c.open = append(c.open, f)
		}
	case n < 78:
		c.allowed("truncate", s.Truncate(c.rng.IntN(s.Len()+1)), pipeline.ErrRewind)
	case n < 86:
		c.allowed("move", s.Move(ctx, c.rng.IntN(2)), pipeline.ErrTooManySessions, cache.ErrPoolFull)
	case n < 90:
		var data bytes.Buffer
		require.NoError(c.t, s.Save(ctx, &data))
		r, err := c.g.Restore(ctx, s.Tokens(), bytes.NewReader(data.Bytes()))
		if c.allowed("restore", err, pipeline.ErrTooManySessions, cache.ErrPoolFull) {
			c.open = append(c.open, r)
		}
	default:
		c.close(s)
	}
}

func (c *chance) close(s *replicas.Session) {
	c.allowed("close", s.Close())
	c.open = slices.DeleteFunc(c.open, func(x *replicas.Session) bool { return x == s })
}

// begin opens a prompt that begins like some session, or like none.
func (c *chance) begin() {
	tokens := sequence(c.rng.Uint64(), 1+c.rng.IntN(20))
	if len(c.open) > 0 && c.rng.IntN(4) > 0 {
		like := c.open[c.rng.IntN(len(c.open))].Tokens()
		tokens = append(slices.Clone(like[:len(like)-min(len(like), c.rng.IntN(10))]), tokens...)
	}
	s, n, err := c.g.Open(c.t.Context(), tokens)
	if c.allowed("open", err, pipeline.ErrTooManySessions, cache.ErrPoolFull) {
		c.open = append(c.open, s)
		require.Equal(c.t, []int{n, n}, []int{s.Len(), len(s.Tokens())})
		c.did["shared"] += n
	}
}

// step takes tokens of some sessions, and makes room where there is none.
func (c *chance) step() {
	var chunks []replicas.Chunk
	for _, s := range c.open {
		if n := 1 + c.rng.IntN(5); c.rng.IntN(2) == 0 && s.Len()+n <= longest && len(chunks) < 3 {
			chunks = append(chunks, replicas.Chunk{Session: s, Tokens: sequence(c.rng.Uint64()%6, n)})
		}
	}
	if len(chunks) == 0 {
		return
	}
	var before [][]int32
	for _, x := range chunks {
		before = append(before, x.Session.Tokens())
	}
	rows, err := c.world.step(c.t.Context(), c.g, chunks...)
	failed := &replicas.StepError{}
	if !c.allowed("step", err, cache.ErrPoolFull) {
		require.ErrorAs(c.t, err, &failed)
	}
	for i, x := range chunks {
		after := append(slices.Clone(before[i]), x.Tokens...)
		if slices.ContainsFunc(failed.Failed, func(f replicas.Failure) bool { return slices.Contains(f.Chunks, i) }) {
			require.Equal(c.t, len(before[i]), x.Session.Len())
			continue
		}
		require.True(c.t, slices.Equal(after, x.Session.Tokens()))
		for j, row := range rows[i] {
			key := fmt.Sprint(after[:len(before[i])+j+1])
			if had := c.gave[key]; had != nil {
				require.True(c.t, slices.Equal(had, row), "token %d of %d", len(before[i])+j, len(after))
				c.did["again"]++
			}
			c.gave[key] = row
		}
	}
	for _, f := range failed.Failed {
		if _, err := c.g.Relieve(c.t.Context(), f.Replica); !c.allowed("relieve", err, cache.ErrPoolFull) {
			c.close(chunks[f.Chunks[0]].Session)
		}
	}
}

// invariants holds what is true between operations.
func (c *chance) invariants() {
	loads, count := c.g.Loads(), []int{0, 0}
	for _, s := range c.open {
		require.NoError(c.t, s.Err())
		require.Equal(c.t, s.Len(), len(s.Tokens()))
		count[s.Replica()]++
	}
	require.Equal(c.t, count, []int{loads[0].Sessions, loads[1].Sessions})
}

// loops is a goroutine for each replica that takes steps, while others open, move and close
// sessions.
func loops(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 4, Rewind: 8}, replicas.Options{})
	var list []*replicas.Session
	for i := range 4 {
		list = append(list, opened(t, g, sequence(uint64(70+i), 2), 0, i%2))
	}
	want, mine := map[*replicas.Session][]int32{}, map[*replicas.Session]*sync.Mutex{} // a session is for one loop at a time
	for i, s := range list {
		want[s], mine[s] = sequence(uint64(70+i), 28), &sync.Mutex{}
	}
	var group sync.WaitGroup
	stop := make(chan struct{})
	for replica := range 2 {
		group.Go(func() {
			for {
				var chunks []replicas.Chunk
				left := false
				for _, s := range list {
					n := s.Len()
					left = left || n < len(want[s])
					if s.Replica() != replica || n == len(want[s]) || !mine[s].TryLock() {
						continue
					}
					n = s.Len()
					chunks = append(chunks, replicas.Chunk{Session: s, Tokens: want[s][n:][:min(2, len(want[s])-n)]})
				}
				if !left {
					return
				}
				chunks = slices.DeleteFunc(chunks, func(c replicas.Chunk) bool {
					if len(c.Tokens) == 0 {
						mine[c.Session].Unlock()
					}
					return len(c.Tokens) == 0
				})
				if len(chunks) == 0 {
					runtime.Gosched()
					continue
				}
				_, err := w.step(t.Context(), g, chunks...)
				for _, c := range chunks {
					mine[c.Session].Unlock()
				}
				if err != nil && !errors.Is(err, pipeline.ErrInStep) { // one moves: the next step is for all
					t.Error(err)
					return
				}
			}
		})
	}
	var beside sync.WaitGroup
	beside.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				return
			default:
			}
			s := list[rng.IntN(len(list))]
			if err := s.Move(t.Context(), rng.IntN(2)); err != nil && !errors.Is(err, pipeline.ErrInStep) &&
				!errors.Is(err, pipeline.ErrTooManySessions) {
				t.Error(err)
				return
			}
			x, _, err := g.Open(t.Context(), want[s])
			if errors.Is(err, pipeline.ErrTooManySessions) {
				continue
			}
			if err != nil || x.Close() != nil {
				t.Error(err)
				return
			}
		}
	})
	group.Wait()
	close(stop)
	beside.Wait()
	for i, s := range list {
		require.Equal(t, want[s], s.Tokens())
		more := sequence(uint64(170+i), 3)
		w.same(t, s, w.extend(t, g, s, more))
	}
}
