package api

import (
	_ "embed"
	"net/http"
)

//go:embed page.html
var page []byte

// page sends the page for browsers: it asks this server, and loads nothing else.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "+
		"connect-src 'self'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(page)
}
