package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBenchClients times clients of a small model: each number has a row, and a place in the
// picture.
func TestBenchClients(t *testing.T) {
	dir, _ := whole(t)
	n := start(t, "--model", dir, "--api-key", "k")
	picture := filepath.Join(t.TempDir(), "load.svg")
	var out bytes.Buffer
	args := []string{"--url", n.url, "--key", "k", "--batch", "1,3", "--requests", "1", "--prompt", "3", "--tokens", "4"}
	require.NoError(t, bench(t.Context(), append(args, "--picture", picture), &out, quiet))
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 4)
	for i, clients := range []string{"| 1 | 1 |", "| 3 | 3 |"} {
		assert.True(t, strings.HasPrefix(rows[2+i], clients), rows[2+i])
		assert.NotContains(t, rows[2+i], "| 0.0 |")
	}
	data, err := os.ReadFile(picture)
	require.NoError(t, err)
	assert.NoError(t, xml.Unmarshal(data, new(struct{})))
	assert.Equal(t, 10, strings.Count(string(data), "<circle"))

	closed, full := io.Pipe()
	require.NoError(t, closed.Close())
	assert.ErrorIs(t, bench(t.Context(), args, full, quiet), io.ErrClosedPipe, "a table that cannot be written")
	assert.ErrorContains(t, bench(t.Context(), append(args, "--key", "other"), &out, quiet), "401")
	assert.ErrorContains(t, bench(t.Context(), append(args, "--prompt", "2000"), &out, quiet), "400")
	for _, bad := range [][]string{{"--batch", "0"}, {"--tokens", "2"}, {"--model", dir}, {"--requests", "0"}} {
		assert.ErrorContains(t, bench(t.Context(), append(args, bad...), &out, quiet), "want")
	}
}

// asked is a request of a kind, and its answer when it is alone.
type asked struct {
	prompt []int32
	most   int
	seed   int
	alone  []int32
}

// ways lists the forms in which clients take their answers.
const (
	atOnce  = iota
	stream  // piece by piece
	slow    // with pauses
	leaving // not to the end
	ways
)

// TestManyClients asks for answers of several kinds at once, in all ways: each equals the answer to
// the request alone, none fails, and memory stays as it is. VKMLA_TEST_LOAD is the number of
// requests of a long run, of 64 clients.
func TestManyClients(t *testing.T) {
	requests, clients, kinds, longest, most := 24, 12, 4, 24, 8
	if s := os.Getenv("VKMLA_TEST_LOAD"); s != "" {
		var err error
		requests, err = strconv.Atoi(s)
		require.NoError(t, err)
		clients, kinds, longest, most = 64, 40, 256, 32
	}
	dir, vocab := whole(t)
	n := start(t, "--model", dir, "--max-sessions", "16")
	rng := rand.New(rand.NewPCG(6, 4))
	// There are more short ones than long ones.
	upTo := func(n int) int { return int(math.Pow(float64(n), rng.Float64()) + .5) }
	list := make([]asked, kinds)
	for i := range list {
		k := asked{make([]int32, upTo(longest)), upTo(most), i, nil}
		for j := range k.prompt {
			k.prompt[j] = rng.Int32N(int32(vocab))
		}
		var err error
		k.alone, err = n.take(t.Context(), k, atOnce)
		require.NoError(t, err)
		require.Len(t, k.alone, k.most)
		list[i] = k
	}
	var next, left, equal atomic.Int64
	var early int // KiB of memory when a quarter is answered
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < requests; i = int(next.Add(1)) - 1 {
				if i == requests/4 {
					early = n.resident()
				}
				k, way := list[i%kinds], i/kinds%ways
				got, err := n.take(t.Context(), k, way)
				switch {
				case !assert.NoError(t, err, "request %d, way %d", i, way):
				case way == leaving:
					left.Add(1)
					assert.Equal(t, k.alone[:len(got)], got, "request %d that was left", i)
				case assert.Equal(t, k.alone, got, "request %d, way %d", i, way):
					equal.Add(1)
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d of %d requests as alone, %d left; %d KiB, then %d", equal.Load(), requests, left.Load(), early, n.resident())
	assert.EqualValues(t, requests, equal.Load()+left.Load())
	assert.Less(t, n.resident(), early+early/2+64<<10, "KiB of memory at the end")
	_, text := n.get("/metrics")
	assert.NotContains(t, text, `outcome="error"`)
}

// take asks for an answer and takes it in some way.
func (n *node) take(ctx context.Context, k asked, way int) (tokens []int32, err error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	body, err := json.Marshal(map[string]any{"prompt": k.prompt, "max_tokens": k.most, "seed": k.seed, "stream": way != atOnce,
		"ignore_eos": true})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", n.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	if got.StatusCode != 200 || way == atOnce {
		data, err := io.ReadAll(got.Body)
		var a answer
		if err = errors.Join(err, json.Unmarshal(data, &a)); err != nil || len(a.Choices) != 1 {
			return nil, fmt.Errorf("%s: %s (%w)", got.Status, data, err)
		}
		return a.Choices[0].Tokens, nil
	}
	lines := bufio.NewScanner(got.Body)
	for lines.Scan() {
		var a answer
		if data, ok := strings.CutPrefix(lines.Text(), "data: {"); ok {
			if err := json.Unmarshal([]byte("{"+data), &a); err != nil || len(a.Choices) != 1 {
				return nil, fmt.Errorf("%s: %w", lines.Text(), err)
			}
			tokens = slices.Concat(tokens, a.Choices[0].Tokens)
		}
		if way == leaving && len(tokens) > 0 {
			return tokens, nil
		}
		if way == slow {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return tokens, lines.Err()
}

// resident is the server's memory in KiB; 0 where the system does not say.
func (n *node) resident() (kib int) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	return 0
}
