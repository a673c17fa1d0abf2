package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// serverVar makes this test program the server, with the arguments that it has, one a line.
const serverVar = "VKMLA_TEST_SERVER"

func TestMain(m *testing.M) {
	if args := os.Getenv(serverVar); args != "" {
		os.Args = append(os.Args[:1], strings.Split(args, "\n")...)
		main()
		return
	}
	testkit.Main(m)
}

// node is a server, a process of its own.
type node struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
	log *bytes.Buffer
}

var listening = regexp.MustCompile(`msg=listening address=(\S+)`)

// start starts a server.
func start(t *testing.T, args ...string) *node {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	n := &node{t: t, cmd: exec.Command(self), log: &bytes.Buffer{}}
	args = append([]string{"--listen", "localhost:0", "--max-tokens", "1000", "--max-sessions", "2", "--max-step", "128", "--warm=false",
		"--device", os.Getenv("VKMLA_TEST_DEVICE")}, args...)
	n.cmd.Env = append(os.Environ(), serverVar+"="+strings.Join(args, "\n"))
	out, err := n.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, n.cmd.Start())
	t.Cleanup(n.kill)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Fprintln(n.log, lines.Text())
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			n.url = "http://" + m[1]
		}
		if n.url != "" && strings.Contains(lines.Text(), "msg=ready") {
			go io.Copy(io.Discard, out)
			return n
		}
	}
	require.Fail(t, "the server does not listen", "%s", n.log)
	return nil
}

// kill is kill -9.
func (n *node) kill() {
	n.cmd.Process.Kill()
	n.cmd.Wait()
}

// request asks for tokens.
func (n *node) request(prompt []int32, most int, stream bool) *http.Response {
	n.t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": most, "temperature": 1, "seed": 7, "stream": stream,
		"ignore_eos": true})
	require.NoError(n.t, err)
	r, err := http.Post(n.url+"/v1/completions", "application/json", bytes.NewReader(body))
	require.NoError(n.t, err)
	require.Equal(n.t, 200, r.StatusCode)
	return r
}

type answer struct {
	Choices []struct {
		Tokens []int32 `json:"token_ids"`
	}
	Usage struct {
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// complete returns tokens, and how many of the prompt's were found in the store.
func (n *node) complete(prompt []int32, most int) (tokens []int32, cached int) {
	n.t.Helper()
	r := n.request(prompt, most, false)
	defer r.Body.Close()
	var a answer
	require.NoError(n.t, json.NewDecoder(r.Body).Decode(&a))
	require.Len(n.t, a.Choices[0].Tokens, most)
	return a.Choices[0].Tokens, a.Usage.Details.Cached
}

// objects are the files of a store.
func objects(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "[0-9a-f]*"))
	require.NoError(t, err)
	return list
}

// TestNodes kills a server in the middle of an answer. Another one with the same store goes on from
// the last span that was kept, with the tokens of a server that never stopped. When the store is
// damaged, or gone, it gives them too.
func TestNodes(t *testing.T) {
	dir, vocab := whole(t)
	store := filepath.Join(t.TempDir(), "store")
	nodes(t, dir, vocab, [2]string{store, store}, func() int { return len(objects(t, store)) }, func(n *node, ask func() int) {
		for _, name := range objects(t, store) {
			require.NoError(t, os.WriteFile(name, []byte("vkmla prefix 1\n"), 0o600))
		}
		assert.Zero(t, ask(), "tokens found in a store that is damaged")
		require.NoError(t, os.Rename(store, store+" that is gone")) // the server may be writing to it
		assert.Zero(t, ask(), "tokens found in a store that is gone")
	})
}

// nodes is the test, for a store of any kind, by the name that each of the two servers has for it:
// count says how many objects it has, spoil what is done to it while a server runs.
func nodes(t *testing.T, dir string, vocab int, store [2]string, count func() int, spoil func(*node, func() int)) {
	rng, prompt := rand.New(rand.NewPCG(1, 1)), make([]int32, 250)
	for i := range prompt {
		prompt[i] = rng.Int32N(int32(vocab))
	}
	with := func(i int) *node { return start(t, "--model", dir, "--prefix", store[i], "--prefix-every", "128") }
	first := with(0)
	r := first.request(prompt, 700, true)
	defer r.Body.Close()
	var got []int32
	lines, killed := bufio.NewScanner(r.Body), false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var a answer
		require.NoError(t, json.Unmarshal([]byte(data), &a), data)
		got = append(got, a.Choices[0].Tokens...)
		// After the prompt a span and two states, after 256 tokens a span and a state more.
		if count() >= 5 && len(got) > 10 {
			first.kill()
			killed = true
			break
		}
	}
	require.True(t, killed, "%d tokens, and no state after 256 in the store", len(got))
	require.Less(t, len(got), 700)

	const more = 6
	alone, _ := start(t, "--model", dir).complete(prompt, len(got)+more)
	require.Equal(t, alone[:len(got)], got, "before the kill")
	second := with(1)
	ask := func() int {
		tokens, cached := second.complete(slices.Concat(prompt, got), more)
		assert.Equal(t, alone[len(got):], tokens)
		return cached
	}
	assert.GreaterOrEqual(t, ask(), 256, "tokens found")
	found := ask()
	for began := time.Now(); found < len(prompt)+len(got)-1 && time.Since(began) < time.Minute; {
		found = ask() // the prompt is kept beside what follows
	}
	assert.Equal(t, len(prompt)+len(got)-1, found, "tokens found by who asks again")
	spoil(second, ask)
}
