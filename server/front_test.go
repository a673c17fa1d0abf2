//go:build unix

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPortInUse says so before the model is opened.
func TestPortInUse(t *testing.T) {
	dir, _ := whole(t)
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close()
	err = command(t.Context(), []string{"--model", dir, "--listen", l.Addr().String(), "--device", "no such device"}, quiet)
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
}

// get returns the status and the body of a path.
func (n *node) get(path string) (int, string) {
	r, err := http.Get(n.url + path)
	require.NoError(n.t, err)
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	require.NoError(n.t, err)
	return r.StatusCode, string(data)
}

// TestWarming answers while sizes of steps are still to be taken, and tells balancers of load that
// it is not yet time.
func TestWarming(t *testing.T) {
	dir, _ := whole(t)
	n := start(t, "--model", dir, "--warm=true", "--served-model-name", "tiny")
	warming := false
	for {
		status, text := n.get("/healthz")
		if status == 200 {
			break
		}
		require.Regexp(t, "^warming [0-9]+ of 8", text)
		warming = true
		n.complete([]int32{1, 2}, 1)
	}
	assert.True(t, warming, "it was warm before it listened")
	_, text := n.get("/v1/models")
	assert.Contains(t, text, `"id":"tiny"`)
}

// TestDrainSlow ends a server while some clients send no body, and some do not read: it waits for
// neither longer than it says, and ends well.
func TestDrainSlow(t *testing.T) {
	dir, _ := whole(t)
	n := start(t, "--model", dir, "--drain", "1s")
	address := strings.TrimPrefix(n.url, "http://")
	for range 3 {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	}
	r := n.request([]int32{1, 2, 3}, 900, true) // its answer is not read
	defer r.Body.Close()
	require.NoError(t, n.cmd.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- n.cmd.Wait() }()
	select {
	case err := <-ended:
		assert.NoError(t, err)
	case <-time.After(5 * time.Minute):
		assert.Fail(t, "the server does not end")
	}
}
