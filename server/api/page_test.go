package api

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPage serves a page that loads nothing from elsewhere.
func TestPage(t *testing.T) {
	r, err := http.Get(serve(t, nil).URL + "/")
	require.NoError(t, err)
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	assert.Equal(t, 200, r.StatusCode)
	assert.Contains(t, r.Header.Get("Content-Security-Policy"), "default-src 'none'")
	assert.Contains(t, string(data), "v1/chat/completions")
	assert.NotContains(t, string(data), "://")
}

// TestPageChats chats in a browser: an answer is shown while it comes, Stop ends it, the next one
// knows what was said, and what the server refuses can be sent again. scripts/test server sets
// VKMLA_TEST_BROWSER.
func TestPageChats(t *testing.T) {
	browser := os.Getenv("VKMLA_TEST_BROWSER")
	if browser == "" {
		t.Skip("VKMLA_TEST_BROWSER names no browser")
	}
	m, asked := stepping{goOn: make(chan struct{})}, make(chan context.Context, 3)
	s := serveAsked(t, m, nil, tokenizer(t), func(ctx context.Context) { asked <- ctx })
	ctx, end := chromedp.NewContext(t.Context(), chromedp.WithAllocatorOptions(append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.WSURLReadTimeout(5*time.Minute))...))
	defer end()
	do := func(steps ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		require.NoError(t, chromedp.Do(ctx, steps...))
	}
	until := func(expression string) {
		t.Helper()
		_, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(5*time.Minute)))
		require.NoError(t, err, expression)
	}
	said := func(id string) string {
		t.Helper()
		text, err := chromedp.Run(ctx, chromedp.TextContent(id))
		require.NoError(t, err)
		return text
	}
	do(chromedp.Navigate(s.URL))
	until(`document.title === "m"`)

	do(chromedp.SetValue("#temperature", "0"), chromedp.SendKeys("#message", "abc"), chromedp.Click("#send"))
	until(`document.getElementById("state").textContent === "computing the prompt"`)
	for range 3 { // steps of 4 tokens of u:abc; give < and =: < may begin a mark
		m.goOn <- struct{}{}
	}
	until(`document.querySelector(".assistant").textContent === "<="`)
	m.goOn <- struct{}{}
	until(`document.querySelector(".assistant").textContent === "<=>"`)
	do(chromedp.Click("#stop"))
	until(`!document.getElementById("send").disabled`)
	assert.Regexp(t, `^stopped: 3 tokens, [0-9.]+ a second$`, said("#state"))
	<-(<-asked).Done() // the server knows
	close(m.goOn)

	do(chromedp.SetValue("#most", "2"), chromedp.SendKeys("#message", "x"), chromedp.Click("#send"))
	until(`document.querySelectorAll(".assistant").length === 2 && !document.getElementById("send").disabled`)
	assert.Equal(t, "abc<=>x<=", said("#talk"))
	assert.Regexp(t, `^2 tokens(, [0-9.]+ a second)?, 18 of 600 tokens of context used$`, said("#state"), "u:abc;a:<=>;u:x;")

	do(chromedp.SetValue("#message", strings.Repeat("x", 700)), chromedp.Click("#send"))
	until(`document.getElementById("message").value.length === 700`)
	assert.Contains(t, said("#state"), "messages: got a text of")
	assert.Equal(t, "abc<=>x<=", said("#talk"))
}
