package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// TestDevices spreads requests over one device that is opened twice. Answers are those of the first
// alone, which gets requests that come one by one.
func TestDevices(t *testing.T) {
	dir, vocab := whole(t)
	device := cmp.Or(os.Getenv("VKMLA_TEST_DEVICE"), "0")
	n := start(t, "--model", dir, "--devices", device+","+device)
	const requests, most = 4, 4
	rng := rand.New(rand.NewPCG(1, 2))
	generated := map[string]int{} // by device
	rounds := 0
	for ; rounds < 20 && len(generated) < 2; rounds++ { // where no request comes before another has ended, one device has all
		var prompts, answers [requests][]int32
		var group sync.WaitGroup
		for i := range requests {
			prompt := make([]int32, 3+rng.IntN(9))
			for i := range prompt {
				prompt[i] = rng.Int32N(int32(vocab))
			}
			group.Go(func() {
				answers[i], _ = n.complete(prompt, most)
			})
			prompts[i] = prompt
		}
		group.Wait()
		for i, prompt := range prompts {
			alone, _ := n.complete(prompt, most)
			assert.Equal(t, alone, answers[i], "request %d", i)
		}
		r, err := http.Get(n.url + "/metrics")
		require.NoError(t, err)
		text, err := io.ReadAll(r.Body)
		require.NoError(t, errors.Join(err, r.Body.Close()))
		pattern := regexp.MustCompile(`vkmla_generated_tokens_total\{device="([01])"\} ([1-9]\d*)`)
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			generated[m[1]], err = strconv.Atoi(m[2])
			require.NoError(t, err)
		}
	}
	assert.Len(t, generated, 2, "devices with tokens")
	assert.Equal(t, rounds*2*requests*most, generated["0"]+generated["1"])
	r, err := http.Get(n.url + "/healthz")
	require.NoError(t, err)
	defer r.Body.Close()
	assert.Equal(t, 200, r.StatusCode)
}

func TestSelectors(t *testing.T) {
	all, err := selectors("all", os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	assert.NotEmpty(t, all)
	some, err := selectors("1,H100", "")
	require.NoError(t, err)
	assert.Equal(t, []string{"1", "H100"}, some)
	_, err = selectors("1,,2", "")
	assert.ErrorContains(t, err, "--devices")
}

// broken is a model whose steps fail, or give the same logits for every token.
type broken struct{ err error }

func (broken) NewSequence() (*model.Sequence, error) { return &model.Sequence{}, nil }

func (b broken) Step(_ context.Context, chunks ...model.Chunk) (logits [][]float32, err error) {
	for _, c := range chunks {
		for range c.Logits {
			logits = append(logits, []float32{1, 0})
		}
	}
	return logits, b.err
}

// TestBrokenDevice holds that requests go where they can be answered, once a device has failed.
func TestBrokenDevice(t *testing.T) {
	instance, err := vk.NewInstance(vk.InstanceOptions{})
	require.NoError(t, err)
	defer instance.Close()
	adapter, err := instance.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	dev, err := adapter.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	defer dev.Close()
	var list hosts
	fails := errors.New("of the test")
	for _, err := range []error{fails, nil, fails} {
		o := batch.Options{Vocab: 2, MaxTokens: 9, MaxSessions: 2, MaxStep: 4, Log: slog.New(slog.DiscardHandler),
			Metrics: batch.NewMetrics(prometheus.NewRegistry())}
		list = append(list, &host{dev: dev, scheduler: batch.New(broken{err}, o)})
	}
	ask := func() error {
		a, err := list.submit(t.Context(), batch.Request{Prompt: []int32{1}, MaxTokens: 1})
		for reason := batch.Reason(""); err == nil && reason == ""; {
			_, reason, err = a.Next(t.Context())
		}
		return err
	}
	assert.ErrorIs(t, ask(), fails)
	for range 3 {
		assert.NoError(t, ask())
		assert.NoError(t, replicas.Err(list))
	}
	require.NoError(t, list.close(t.Context()))
	list = list[:1]
	assert.ErrorIs(t, replicas.Err(list), fails)
	assert.ErrorIs(t, ask(), fails)
}
