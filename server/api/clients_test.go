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

// TestNodeClient runs a session with the usual client for Node. scripts/test server installs it and
// sets VKMLA_TEST_NPM.
func TestNodeClient(t *testing.T) {
	dir := os.Getenv("VKMLA_TEST_NPM")
	if dir == "" {
		t.Skip("VKMLA_TEST_NPM names no folder with the client")
	}
	session, err := os.Open("testdata/session.mjs")
	require.NoError(t, err)
	defer session.Close()
	locked, _ := New(Options{Name: "m", Keys: []string{"secret"}, Metrics: prometheus.NewRegistry()})
	guarded := httptest.NewServer(locked)
	t.Cleanup(guarded.Close)
	tools := serveModel(t, speaking{"hm</think>" + toolCalls, map[*model.Sequence]int{}}, nil, tokenizer(t))
	node := exec.CommandContext(t.Context(), "node", "--input-type=module", "-")
	node.Dir, node.Stdin = dir, session
	node.Env = append(os.Environ(), "COUNTING="+serveText(t, nil, tokenizer(t)).URL, "SPEAKING="+tools.URL, "LOCKED="+guarded.URL)
	said, err := node.CombinedOutput()
	require.NoError(t, err, "%s", said)
	assert.Equal(t, "ok\n", string(said))
}
