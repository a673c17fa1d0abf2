package api

import (
	"net/http"
	"sync/atomic"
)

// Gate answers that the server is not ready until it gets a handler.
type Gate struct {
	handler atomic.Pointer[http.Handler]
	doing   atomic.Pointer[string]
}

// Say sets the message for requests that come too early.
func (g *Gate) Say(doing string) { g.doing.Store(&doing) }

// Open hands requests to a handler from now on.
func (g *Gate) Open(h http.Handler) { g.handler.Store(&h) }

// ServeHTTP answers with the handler, or with status 503.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := g.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	doing := "starting"
	if s := g.doing.Load(); s != nil {
		doing = *s
	}
	fail(w, &statusError{http.StatusServiceUnavailable, "starting", doing})
}
