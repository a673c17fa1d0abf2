package api

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/model"
)

// TestNodeClient takes a session with the usual client for Node, which scripts/test server installs.
func TestNodeClient(t *testing.T) {
	if _, err := os.Stat("testdata/node_modules/openai"); err != nil && os.Getenv("CI") == "" {
		t.Skip("npm ci in testdata installs the client")
	}
	locked, _ := New(Options{Name: "m", Keys: []string{"secret"}, Metrics: prometheus.NewRegistry()})
	guarded := httptest.NewServer(locked)
	t.Cleanup(guarded.Close)
	tools := serveModel(t, speaking{"hm</think>" + toolCalls, map[*model.Sequence]int{}}, nil, tokenizer(t))
	node := exec.CommandContext(t.Context(), "node", "session.mjs")
	node.Dir = "testdata"
	node.Env = append(os.Environ(), "COUNTING="+serveText(t, nil, tokenizer(t)).URL, "SPEAKING="+tools.URL, "LOCKED="+guarded.URL)
	said, err := node.CombinedOutput()
	require.NoError(t, err, "%s", said)
	assert.Equal(t, "ok\n", string(said))
}
