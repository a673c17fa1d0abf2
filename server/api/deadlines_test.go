package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/batch"
)

// pipes is a listener whose connections hold nothing that is not read.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// connections serves connections; dial returns the client's ends. done gets a value when a
// request is done with.
func connections(t *testing.T, m batch.Model) (dial func() net.Conn, done chan struct{}) {
	h := handler(t, m, nil, tokenizer(t), nil)
	listener := make(pipes)
	done = make(chan struct{}, 99)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		done <- struct{}{}
	})}
	ended := make(chan error)
	go func() { ended <- s.Serve(listener) }()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return func() net.Conn {
		server, client := net.Pipe()
		t.Cleanup(func() { client.Close() })
		listener <- server
		return client
	}, done
}

// TestWriteDeadline cuts a client that stops to read in the middle of a stream. The clock is the
// test's.
func TestWriteDeadline(t *testing.T) {
	for path, prompt := range map[string]string{"/v1/completions": `"prompt": "abc"`,
		"/v1/chat/completions": `"messages": [{"role": "user", "content": "abc"}]`} {
		synctest.Test(t, func(t *testing.T) {
			dial, done := connections(t, counting{})
			c := dial()
			body := `{"max_tokens": 90, "stream": true, ` + prompt + `}`
			_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
			require.NoError(t, err)
			lines := bufio.NewScanner(c)
			for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
			}
			require.NoError(t, lines.Err())
			began := time.Now()
			<-done
			assert.Equal(t, writeDeadline, time.Since(began), path)
			_, err = io.Copy(io.Discard, c)
			assert.NoError(t, err, "the connection is closed")
		})
	}
}

// TestKeepAlive sends headers when a stream is taken, and comments while nothing else comes.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := stepping{goOn: make(chan struct{})}
		dial, _ := connections(t, m)
		c, body := dial(), `{"prompt": [1], "max_tokens": 1, "stream": true}`
		_, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		require.NoError(t, err)
		began, lines := time.Now(), bufio.NewScanner(c)
		for comments := 0; comments < 3 && lines.Scan(); {
			if strings.HasPrefix(lines.Text(), ":") {
				comments++
			}
		}
		assert.Equal(t, 2*keepAlive, time.Since(began), "before anything is computed")
		close(m.goOn)
		for lines.Scan() && lines.Text() != "data: [DONE]" {
		}
		assert.Equal(t, "data: [DONE]", lines.Text())
	})
}

// TestBodyDeadline cuts a client that sends its body slowly, to whatever path.
func TestBodyDeadline(t *testing.T) {
	for path, status := range map[string]int{"/v1/completions": 408, "/v1/chat/completions": 408, "/v1/responses": 404} {
		synctest.Test(t, func(t *testing.T) {
			dial, _ := connections(t, counting{})
			c := dial()
			_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", path)
			require.NoError(t, err)
			var sending sync.WaitGroup
			sending.Go(func() {
				for err := error(nil); err == nil; _, err = c.Write([]byte(" ")) {
					time.Sleep(time.Second)
				}
			})
			began := time.Now()
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			data, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			assert.Equal(t, bodyDeadline, time.Since(began), path)
			assert.Equal(t, status, answer.StatusCode, "%s", data)
			assert.True(t, answer.Close, "the rest of the body is not waited for")
			require.NoError(t, c.Close())
			sending.Wait()
		})
	}
}

// TestSlowBodies answers a client while others, as many as are read at a time, send large bodies
// slowly.
func TestSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, _ := connections(t, counting{})
		for range bodiesAtOnce {
			_, err := fmt.Fprintf(dial(), "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{", smallBody+1)
			require.NoError(t, err)
		}
		synctest.Wait()
		began, c, body := time.Now(), dial(), `{"prompt": [1], "max_tokens": 1}`
		_, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, answer.StatusCode)
		assert.Zero(t, time.Since(began), "time waited")
	})
}
