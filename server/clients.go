package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vkmla/vkmla/internal/files"
)

// clientsRow holds what a number of clients got.
type clientsRow struct {
	clients, tokens int
	took            time.Duration
	first, between  []time.Duration // sorted
	failed          error           // the first request that failed
}

// percentile returns the duration that a share of a sorted list does not exceed, in ms.
func percentile(sorted []time.Duration, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))].Seconds() * 1e3
}

// clients asks a server as many clients do, and prints a table of what they get.
func (o *benchOptions) clients(ctx context.Context, out io.Writer) error {
	if o.picture != "" {
		if err := files.Replaceable(o.picture); err != nil {
			return fmt.Errorf("server: bench: --picture: %w", err)
		}
	}
	table(out, "clients", "requests", "tokens/s", "first token, ms: p50", "p99", "between tokens, ms: p50", "p99")
	var rows []clientsRow
	for _, n := range o.batches {
		r := o.ask(ctx, n)
		if r.failed != nil {
			return fmt.Errorf("server: bench: %d clients: %w", n, r.failed)
		}
		rows = append(rows, r)
		fmt.Fprintf(out, "| %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f |\n", n, n*o.requests, float64(r.tokens)/r.took.Seconds(),
			percentile(r.first, .5), percentile(r.first, .99), percentile(r.between, .5), percentile(r.between, .99))
	}
	if o.picture == "" {
		return nil
	}
	return os.WriteFile(o.picture, draw(rows), 0o666)
}

// ask asks with n clients at a time. Each has requests of its own, one after the other.
func (o *benchOptions) ask(ctx context.Context, n int) clientsRow {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex
	var group sync.WaitGroup
	var tokens atomic.Int64
	row, began := clientsRow{clients: n}, time.Now()
	for client := range n {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), uint64(client)))
			for range o.requests {
				first, between, err := o.request(ctx, rng, &tokens)
				mu.Lock()
				if err != nil && row.failed == nil {
					row.failed = err
					stop(err)
				}
				row.first, row.between = append(row.first, first), append(row.between, between...)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	group.Wait()
	row.took, row.tokens = time.Since(began), int(tokens.Load())
	slices.Sort(row.first)
	slices.Sort(row.between)
	return row
}

// request takes one answer as a stream.
func (o *benchOptions) request(ctx context.Context, rng *rand.Rand, tokens *atomic.Int64) (first time.Duration,
	between []time.Duration, err error) {
	prompt := make([]int, o.prompt)
	for i := range prompt {
		prompt[i] = rng.IntN(o.vocab)
	}
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": o.answer, "ignore_eos": true, "stream": true,
		"seed": rng.Int64()})
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if o.key != "" {
		r.Header.Set("Authorization", "Bearer "+o.key)
	}
	began := time.Now()
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return 0, nil, fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(said))
	}
	last, lines := began, bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return first, between, nil
		}
		var piece struct {
			Choices []struct {
				Tokens []int32 `json:"token_ids"`
			}
			Error any
		}
		if err := json.Unmarshal([]byte(data), &piece); err != nil || piece.Error != nil || len(piece.Choices) != 1 {
			return 0, nil, fmt.Errorf("an event: got %.200s, want a choice", data)
		}
		n, now := len(piece.Choices[0].Tokens), time.Now()
		tokens.Add(int64(n))
		switch {
		case n == 0:
			continue
		case first == 0:
			first = now.Sub(began)
		default:
			for range n { // those of one event come together
				between = append(between, now.Sub(last)/time.Duration(n))
			}
		}
		last = now
	}
	return 0, nil, errors.Join(errors.New("the stream ended without [DONE]"), lines.Err())
}
