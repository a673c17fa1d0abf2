// Package api is the server's HTTP: completions as the usual API has them, with token ids beside
// text or in its place, and what an operator asks.
package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/chat"
	"github.com/vkmla/vkmla/server/text"
)

// Options describes a Server.
type Options struct {
	Name      string // of the model, in answers and in requests that name one
	EOS       []int32
	Text      *text.Tokenizer // nil: prompts are token ids, and answers have no text
	Chat      *chat.Template  // nil: no conversations
	MaxTokens int             // of a prompt and its answer
	Keys      []string        // each request to /v1 needs one of them; none: no request does
	Host      string          // under which pages may ask without keys, besides localhost and addresses
	Metrics   prometheus.Gatherer
	Healthy   func() error // why no load should come here: of devices, schedulers, warming, draining
	Log       *slog.Logger
	Schedule  func(context.Context, batch.Request) (*batch.Answer, error)
}

// Server answers requests.
type Server struct {
	o      Options
	began  time.Time
	bodies chan struct{} // holds a value for each body that is read
	keys   [][sha256.Size]byte
}

// New returns the handlers of the API and of what operators ask, which may be served elsewhere.
func New(o Options) (api, admin http.Handler) {
	s := &Server{o: o, began: time.Now(), bodies: make(chan struct{}, bodiesAtOnce)}
	for _, k := range o.Keys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/completions", s.keyed(s.answer(s.completion)))
	mux.Handle("POST /v1/chat/completions", s.keyed(s.answer(s.chat)))
	mux.Handle("GET /v1/models", s.keyed(s.models))
	mux.Handle("GET /v1/models/{id}", s.keyed(s.model))
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("/", s.unknown)
	own := http.NewCrossOriginProtection() // a page of another site may not ask in its reader's name
	own.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, &statusError{http.StatusForbidden, "cross_origin", "the request comes from the page of another server"})
	}))
	return s.named(own.Handler(mux)), s.admin()
}

// named refuses what pages ask of a server without keys under a name that anyone may have pointed
// here: such a page is of the same origin, whoever wrote it. It bounds the time that any body may
// take, read or not: net/http waits for the rest of one before it answers.
func (s *Server) named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyDeadline)) // a recorder of tests has none
		u := url.URL{Host: r.Host}
		name := u.Hostname()
		_, err := netip.ParseAddr(name)
		known := err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") || name == s.o.Host
		if r.Header.Get("Origin") != "" && len(s.keys) == 0 && !known {
			fail(w, &statusError{http.StatusForbidden, "cross_origin", fmt.Sprintf("the page asks %.100q, which could be anyone's name: "+
				"want localhost, an address, --listen with that name, or --api-key", name)})
			return
		}
		h.ServeHTTP(w, r)
	})
}

// admin returns the handler for operators alone: it shows what is asked and how the program runs.
func (s *Server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.o.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", s.unknown)
	return mux
}

// keyed demands a key where there are some. All are compared, in a time that says nothing of them.
func (s *Server) keyed(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		sum, ok := sha256.Sum256([]byte(given)), 0
		for _, k := range s.keys {
			ok |= subtle.ConstantTimeCompare(sum[:], k[:])
		}
		if len(s.keys) > 0 && (ok == 0 || !is) {
			fail(w, &statusError{http.StatusUnauthorized, "invalid_api_key", "want a key of this server: Authorization: Bearer KEY"})
			return
		}
		if len(s.keys) > 0 {
			r = r.WithContext(context.WithValue(r.Context(), owner{}, string(sum[:])))
		}
		f(w, r)
	})
}

// owner is the key of a context's value that tells clients apart: what their keys hash to.
type owner struct{}

// paths lists the API, for requests of something else.
const paths = "POST /v1/chat/completions, /v1/completions, GET /v1/models, /v1/models/{id}, /healthz"

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	fail(w, &statusError{http.StatusNotFound, "not_found", fmt.Sprintf("%s %.200s is not here; there are %s", r.Method, r.URL.Path, paths)})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.o.Healthy(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// card describes the model.
func (s *Server) card() map[string]any {
	return map[string]any{"id": s.o.Name, "object": "model", "created": s.began.Unix(), "owned_by": "vkmla", "max_model_len": s.o.MaxTokens}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	_ = write(w, map[string]any{"object": "list", "data": []any{s.card()}})
}

// otherModel refuses a name that is not the model's.
func (s *Server) otherModel(name string) error {
	return &statusError{http.StatusNotFound, "model_not_found",
		fmt.Sprintf("model: got %.60q, want %q, which this server has", name, s.o.Name)}
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); id != s.o.Name {
		fail(w, s.otherModel(id))
		return
	}
	_ = write(w, s.card())
}

// writeDeadline is the longest time that a client may take for a piece of an answer.
const writeDeadline = 30 * time.Second

// event sends a server-sent event.
func event(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil { // JSON has no NaN
		return errors.Join(err, event(w, map[string]any{"error": problem{Message: err.Error(), Type: "server_error"}}))
	}
	return send(w, "data: "+string(data)+"\n\n")
}

// send writes a piece of a stream.
func send(w http.ResponseWriter, s string) error {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeDeadline)) // a recorder of tests has none
	if _, err := w.Write([]byte(s)); err != nil {
		return err
	}
	return control.Flush()
}

// write sends an answer.
func write(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		fail(w, err)
		return err
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeDeadline))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n')) // a client that has left is noticed by its context
	return nil
}
