package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"time"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/text"
)

const (
	mostBody     = 64 << 20         // bytes of a body, whatever the model's limits are
	bodyRest     = 256 << 10        // bytes of a body besides what tokens take
	bodyToken    = 32               // bytes that a token may take there, as a number or as text
	mostPrompts  = 64               // of a request
	mostAnswers  = 64               // of a request: prompts times n
	mostRest     = 64 << 10         // bytes of all members besides the prompt
	mostDepth    = 8                // lists and objects inside each other
	smallBody    = 64 << 10         // bytes of a body that any number of clients may send at a time
	bodiesAtOnce = 16               // larger ones, that are read and understood at a time
	bodyDeadline = 30 * time.Second // for a body to come
)

// bodyLimit returns the longest body of requests of up to `tokens` tokens.
func bodyLimit(tokens int) int64 { return min(mostBody, bodyRest+bodyToken*int64(tokens)) }

// read reads a body and understands it by parse. That is done for bodiesAtOnce at a time; small
// ones do not wait for others that come slowly.
func (s *Server) read(w http.ResponseWriter, r *http.Request, parse func(context.Context, []byte) (*task, error)) (*task, error) {
	if r.ContentLength < 0 || r.ContentLength > smallBody {
		select {
		case s.bodies <- struct{}{}:
			defer func() { <-s.bodies }()
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyDeadline)) // a recorder of tests has none
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit(s.o.MaxTokens)))
	var large *http.MaxBytesError
	switch {
	case err == nil:
		_ = control.SetReadDeadline(time.Time{}) // the answer may take longer
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &statusError{http.StatusRequestTimeout, "timeout", fmt.Sprintf("the body has not come within %v", bodyDeadline)}
	case errors.As(err, &large):
		return nil, &statusError{http.StatusRequestEntityTooLarge, "request_too_large",
			fmt.Sprintf("the body is too large, want at most %d bytes", large.Limit)}
	default:
		return nil, fmt.Errorf("%w: %w", batch.ErrRequest, err)
	}
	return parse(r.Context(), data)
}

// object goes over an object once. Each member that may be long goes to a function of its own, and
// the first error ends the reading. All other members together have at most mostRest bytes.
func object(data []byte, long map[string]func(*files.Scanner) error) (map[string]json.RawMessage, error) {
	scan := &files.Scanner{Data: data}
	if !scan.Take('{') {
		return nil, fmt.Errorf("%w: the body is not a JSON object", batch.ErrRequest)
	}
	rest, seen := 0, map[string]bool{}
	members := map[string]json.RawMessage{}
	for first := true; ; first = false {
		name, more, err := scan.Member(first, 100)
		if err != nil {
			return nil, fmt.Errorf("%w: the body: %w", batch.ErrRequest, err)
		}
		if !more {
			break
		}
		if seen[name] {
			return nil, bad(name, "it twice", "each member once")
		}
		seen[name] = true
		if read := long[name]; read != nil {
			if err := read(scan); err != nil {
				return nil, err
			}
			continue
		}
		from := scan.At()
		if err := scan.Skip(mostDepth); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", batch.ErrRequest, name, err)
		}
		members[name] = data[from:scan.At()]
		if rest += scan.At() - from; rest > mostRest {
			return nil, bad(name, fmt.Sprintf("%d bytes", scan.At()-from), "at most %d bytes of all members but the prompt", mostRest)
		}
	}
	if !scan.End() {
		return nil, fmt.Errorf("%w: the body goes on after its JSON object", batch.ErrRequest)
	}
	return members, nil
}

// prompts reads the prompt: a text, a list of token ids, or a list of these.
func (s *Server) prompts(ctx context.Context, scan *files.Scanner, c *task) error {
	switch {
	case scan.Is('"'):
		ids, err := s.text(ctx, scan)
		c.prompts = [][]int32{ids}
		return err
	case !scan.Take('['):
		return bad("prompt", "something else", "a text or a list of token ids, such as [1, 2, 3]")
	case !scan.Is('"') && !scan.Is('['):
		ids, err := s.ids(scan)
		c.prompts = [][]int32{ids}
		return err
	}
	for first := true; !scan.Take(']'); first = false {
		if !first && !scan.Take(',') {
			return bad("prompt", "no comma between prompts", "a list")
		}
		if len(c.prompts) == mostPrompts {
			return bad("prompt", "more prompts", "at most %d", mostPrompts)
		}
		var ids []int32
		var err error
		switch {
		case scan.Is('"'):
			ids, err = s.text(ctx, scan)
		case scan.Take('['):
			ids, err = s.ids(scan)
		default:
			err = bad("prompt", "something else in its list", "texts or lists of token ids")
		}
		if err != nil {
			return err
		}
		c.prompts = append(c.prompts, ids)
	}
	return nil
}

// ids reads token ids to the end of their list.
func (s *Server) ids(scan *files.Scanner) (list []int32, err error) {
	for first := true; !scan.Take(']'); first = false {
		if !first && !scan.Take(',') {
			return nil, bad("prompt", "no comma between token ids", "a list such as [1, 2, 3]")
		}
		n, err := scan.Int()
		if err != nil || n < math.MinInt32 || n > math.MaxInt32 {
			return nil, bad("prompt", "no token id", "token ids, such as [1, 2, 3]")
		}
		if len(list) == s.o.MaxTokens {
			return nil, bad("prompt", "more tokens", "at most %d", s.o.MaxTokens)
		}
		list = append(list, int32(n))
	}
	if len(list) == 0 {
		return nil, bad("prompt", "no tokens", "at least 1")
	}
	return list, nil
}

// text reads a text and encodes it.
func (s *Server) text(ctx context.Context, scan *files.Scanner) ([]int32, error) {
	if s.o.Text == nil {
		return nil, bad("prompt", "a text", "a list of token ids, such as [1, 2, 3]: the model has no tokenizer.json")
	}
	words, err := scan.String(mostBody)
	if err != nil {
		return nil, fmt.Errorf("%w: prompt: %w", batch.ErrRequest, err)
	}
	return s.encode(ctx, "prompt", words)
}

// encode returns the tokens of a text that a parameter has.
func (s *Server) encode(ctx context.Context, param, words string) ([]int32, error) {
	ids, err := s.o.Text.Encode(ctx, words, s.o.MaxTokens)
	if errors.Is(err, text.ErrLong) {
		return nil, bad(param, fmt.Sprintf("a text of %d bytes", len(words)),
			"at most %d tokens, without words of more than 128 KiB", s.o.MaxTokens)
	}
	if err == nil && len(ids) == 0 {
		return nil, bad(param, "no tokens", "at least 1")
	}
	return ids, err
}
