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

// connect serves one connection, and returns the client's end. done gets a value when a request is
// done with.
func connect(t *testing.T) (client net.Conn, done chan struct{}) {
	h := handler(t, counting{}, nil, tokenizer(t), nil)
	server, client := net.Pipe()
	listener := pipes(make(chan net.Conn, 1))
	listener <- server
	done = make(chan struct{}, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		done <- struct{}{}
	})}
	ended := make(chan error)
	go func() { ended <- s.Serve(listener) }()
	t.Cleanup(func() {
		client.Close()
		s.Close()
		<-ended
	})
	return client, done
}

// TestWriteDeadline cuts a client that stops to read in the middle of a stream. The clock is the
// test's.
func TestWriteDeadline(t *testing.T) {
	for path, prompt := range map[string]string{"/v1/completions": `"prompt": "abc"`,
		"/v1/chat/completions": `"messages": [{"role": "user", "content": "abc"}]`} {
		synctest.Test(t, func(t *testing.T) {
			c, done := connect(t)
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

// TestBodyDeadline cuts a client that sends its body slowly, to whatever path.
func TestBodyDeadline(t *testing.T) {
	for path, status := range map[string]int{"/v1/completions": 408, "/v1/chat/completions": 408, "/v1/responses": 404} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := connect(t)
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
