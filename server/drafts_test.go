package main

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/model"
)

// knowing is a model that drafts, beside what its block drafts, what answers are known to go on
// with, but for one in a few tokens: those of a random model are hardly ever drawn.
type knowing struct {
	*model.Model
	texts [][]int32 // prompts and answers
	wrong int

	mu               sync.Mutex
	seen             map[*model.Sequence][]int32 // tokens, without those of the store
	refused, guesses int
}

func (k *knowing) Step(ctx context.Context, chunks ...model.Chunk) ([][]float32, error) {
	logits, err := k.Model.Step(ctx, chunks...)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range chunks {
		if err == nil {
			k.seen[c.Sequence] = append(k.seen[c.Sequence], c.Tokens...)
		}
	}
	return logits, err
}

func (k *knowing) Draft(ctx context.Context, chunks ...model.Chunk) ([][]int32, error) {
	drafts, err := k.Model.Draft(ctx, chunks...)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, c := range chunks {
		seen := append(slices.Clone(k.seen[c.Sequence]), c.Tokens...)
		for _, text := range k.texts {
			for at := range max(0, len(text)-len(seen)) {
				if !slices.Equal(text[at:][:len(seen)], seen) {
					continue
				}
				for n, id := range text[at+len(seen):] {
					if k.guesses++; n < len(drafts[i]) && (k.wrong == 0 || k.guesses%k.wrong > 0) {
						drafts[i][n] = id
					}
				}
			}
		}
	}
	return drafts, err
}

func (k *knowing) TakeBack(s *model.Sequence, n int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[s], k.refused = k.seen[s][:len(k.seen[s])-n], k.refused+n
	return k.Model.TakeBack(s, n)
}

// TestDrafts demands the same answers with drafts as without, in either form: of prompts of many
// lengths, by many samplers, alone and beside others, in steps of other sizes, with drafts that are
// right, sometimes wrong, and the model's own, and from a store of prompts.
func TestDrafts(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, command(t.Context(), []string{"random", "--dir", dir, "--width", "tiny", "--layers", "2", "--drafts"}, quiet))
	testDrafts(t, dir, "")
}

// TestDraftsGGUF is TestDrafts with the block in a GGUF file of its own, beside a model in GGUF.
func TestDraftsGGUF(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, command(t.Context(),
		[]string{"random", "--dir", dir, "--width", "small", "--layers", "2", "--drafts", "--gguf", "mxfp4"}, quiet))
	testDrafts(t, dir, filepath.Join(dir, "draft"))
}

func testDrafts(t *testing.T, dir, draft string) {
	const most = 200
	rng := rand.New(rand.NewPCG(8, 1))
	var requests []batch.Request
	for i, n := range []int{1, 5, 125, 131, 20, 47} {
		r := batch.Request{MaxTokens: 14, Seed: rng.Uint64(), Logprobs: true, Top: 2}
		for range n {
			r.Prompt = append(r.Prompt, rng.Int32N(264))
		}
		switch i % 4 {
		case 1:
			r.Temperature = 1
		case 2:
			r.Temperature, r.TopP, r.TopK = .8, .9, 40
		case 3:
			r.Repetition, r.Frequency = 1.2, .4
		}
		requests = append(requests, r)
	}
	dev := testkit.Device(t)
	var found uint64 // tokens, in the store
	// run answers all requests, some at a time.
	run := func(o model.Options, step, sessions, wrong int, texts [][]int32, store prefix.Store) [][]batch.Token {
		o.MaxTokens, o.MaxSessions, o.MaxStep, o.Prefixes = most, sessions, step, store != nil
		m, err := model.Open(t.Context(), dev, dir, o)
		require.NoError(t, err)
		defer m.Close()
		o.Drafts = m.Drafts
		k := &knowing{Model: m, texts: texts, wrong: wrong, seen: map[*model.Sequence][]int32{}}
		options := batch.Options{Vocab: m.Config.Vocab, MaxTokens: most, MaxSessions: sessions, MaxStep: step, Drafter: k, Drafts: o.Drafts,
			Log: quiet, Metrics: batch.NewMetrics(prometheus.NewRegistry())}
		var p *model.Prefixes
		if store != nil {
			p, err = m.Prefixes(store, prefix.Options{Timeout: time.Minute})
			require.NoError(t, err)
			defer p.Close()
			options.Prefixes, options.KeepEvery = p, 3
		}
		s := batch.New(k, options)
		defer func() { assert.NoError(t, s.Close(context.Background())) }()
		list := answers(t, s, requests...)
		if store != nil {
			found = p.Stats().Found
		}
		if texts != nil && wrong == 0 {
			assert.Zero(t, k.refused, "right drafts")
		} else if o.Drafts > 0 {
			assert.NotZero(t, k.refused)
		}
		return list
	}
	forms := map[string]model.Options{"processor": {}, "device": {GPU: true}}
	for name, form := range forms {
		want := run(form, 64, 6, 0, nil, nil)
		var texts [][]int32
		for i, r := range requests {
			texts = append(texts, slices.Concat(r.Prompt, ids(want[i])))
		}
		form.Drafts, form.Draft = 5, draft
		if draft != "" {
			form.Drafts = 0 // all of a block
		}
		assert.Equal(t, want, run(form, 48, 6, 0, texts, nil), "%s, right drafts", name)
		assert.Equal(t, want, run(form, 64, 6, 0, nil, nil), "%s, its own drafts", name)
		if draft != "" {
			continue // where the block is from does not matter further on
		}
		assert.Equal(t, want, run(form, 7, 1, 4, texts, nil), "%s, some wrong drafts", name)
		form.Drafts = 2
		store, err := prefix.OpenFolder(t.TempDir(), 1<<30)
		require.NoError(t, err)
		for range 2 {
			assert.Equal(t, want, run(form, 33, 3, 5, texts, store), "%s, with a store", name)
		}
		assert.NotZero(t, found)
	}
}
