//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEndWhileStarting ends a server by a signal before its model is open, without an error.
func TestEndWhileStarting(t *testing.T) {
	dir, _ := whole(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, command(ctx, []string{"--model", dir, "--listen", "localhost:0", "--device", os.Getenv("VKMLA_TEST_DEVICE")}, quiet))
}

// TestDrain ends a server by SIGTERM in the middle of an answer: the answer comes to its end, a new
// request is refused, and the server ends without an error.
func TestDrain(t *testing.T) {
	dir, _ := whole(t)
	n := start(t, "--model", dir, "--drain", "10m")
	const most = 80
	r := n.request([]int32{1, 2, 3}, most, true)
	defer r.Body.Close()
	got := 0
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var a answer
		require.NoError(t, json.Unmarshal([]byte(data), &a), data)
		if got == 0 {
			require.NoError(t, n.cmd.Process.Signal(syscall.SIGTERM))
			for draining := false; !draining; {
				status, text := n.get("/healthz")
				draining = status == http.StatusServiceUnavailable
				require.True(t, !draining || strings.Contains(text, "draining"), text)
			}
			for refused := false; !refused; { // the signal takes its time, the answer longer
				other, err := http.Post(n.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt": [1], "max_tokens": 1}`))
				require.NoError(t, err, "no new request was refused")
				refused = other.StatusCode == http.StatusServiceUnavailable
				require.NoError(t, other.Body.Close())
			}
		}
		got += len(a.Choices[0].Tokens)
	}
	assert.Equal(t, most, got, "tokens of the answer")
	assert.NoError(t, n.cmd.Wait())
}
