package main

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/model"
)

// scheduled is a scheduler of a model in one of its forms.
func scheduled(t *testing.T, dir string, o model.Options, sessions int) *batch.Scheduler {
	t.Helper()
	const tokens = 200
	step := min(16, sessions)
	o.MaxTokens, o.MaxSessions, o.MaxStep = tokens, sessions, step
	m, err := model.Open(t.Context(), testkit.Device(t), dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	s := batch.New(m, batch.Options{Vocab: m.Config.Vocab, MaxTokens: tokens, MaxSessions: sessions, MaxStep: step, Log: quiet,
		Metrics: batch.NewMetrics(prometheus.NewRegistry())})
	t.Cleanup(func() { assert.NoError(t, s.Close(context.Background())) })
	return s
}

// answers asks for all requests at once.
func answers(t *testing.T, s *batch.Scheduler, requests ...batch.Request) (all [][]batch.Token) {
	t.Helper()
	var list []*batch.Answer
	for _, r := range requests {
		a, err := s.Submit(t.Context(), r)
		require.NoError(t, err)
		list = append(list, a)
	}
	for _, a := range list {
		var tokens []batch.Token
		for reason := batch.Reason(""); reason == ""; {
			some, why, err := a.Next(t.Context())
			require.NoError(t, err)
			tokens, reason = append(tokens, some...), why
		}
		all = append(all, tokens)
	}
	return all
}

func ids(tokens []batch.Token) (list []int32) {
	for _, t := range tokens {
		list = append(list, t.ID)
	}
	return list
}

// near bounds how much less probable the processor may find the token that the device found most
// probable, as a logarithm: both round activations to bf16, at different places.
const near = .2

// TestForms asks the form on the device for answers, many at once, then for some of them alone,
// whose prompts are cut elsewhere. They have to be the same. The form on the processor has to find
// each of their tokens to be the most probable one, or nearly so.
func TestForms(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, command(t.Context(), []string{"random", "--dir", dir, "--width", "tiny", "--layers", "2"}, quiet))
	forms(t, dir)
}

// TestFormsGGUF is TestForms with blocks of GGUF.
func TestFormsGGUF(t *testing.T) {
	forms(t, filepath.Join(testkit.GGUF(t), "model-iq2xxs-ds4.gguf"))
}

func forms(t *testing.T, dir string) {
	const vocab = 64
	rng := rand.New(rand.NewPCG(3, 1))
	n, most, longer := 2, 3, 1
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		n, most, longer = 16, 40, 5
	}
	var requests []batch.Request
	for i := range n {
		r := batch.Request{MaxTokens: most, Logprobs: true, Top: 1}
		for range 1 + longer*i {
			r.Prompt = append(r.Prompt, rng.Int32N(int32(vocab)))
		}
		requests = append(requests, r)
	}
	device := scheduled(t, dir, model.Options{GPU: true}, n)
	together := answers(t, device, requests...)
	for _, i := range []int{n / 2, 0} {
		assert.Equal(t, together[i], answers(t, device, requests[i])[0], "request %d alone", i)
	}

	var scored []batch.Request
	for i, r := range requests {
		scored = append(scored, batch.Request{Prompt: slices.Concat(r.Prompt, ids(together[i])), Echo: true, Logprobs: true, Top: 1})
	}
	same, tokens := 0, 0
	for i, list := range answers(t, scheduled(t, dir, model.Options{}, n), scored...) {
		for k, token := range list[len(requests[i].Prompt):] {
			best := token.Top[0]
			assert.LessOrEqual(t, best.Logprob-token.Logprob, float32(near), "request %d, token %d of the answer", i, k)
			assert.InDelta(t, together[i][k].Logprob, token.Logprob, near, "request %d, token %d of the answer", i, k)
			tokens++
			if best.ID == token.ID {
				same++
			}
		}
	}
	assert.Equal(t, n*most, tokens)
	assert.Greater(t, same, tokens*8/10, "the most probable tokens that are the same, of %d", tokens)
	t.Logf("%d of %d tokens are the same", same, tokens)
}
