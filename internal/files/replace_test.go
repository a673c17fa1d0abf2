package files

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func put(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestReplace writes a file whole or not at all, whatever ends the writing.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	is := func(want string) {
		t.Helper()
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, want, string(data))
		assert.Equal(t, []string{"a"}, names(t, dir))
	}
	require.NoError(t, Replace(path, 0o600, put("one")))
	is("one")
	require.NoError(t, Replace(path, 0o600, put("")))
	is("")
	require.NoError(t, Replace(path, 0o600, put("two")))
	failed := errors.New("failed")
	half := func(then func() error) func(io.Writer) error {
		return func(w io.Writer) error { return errors.Join(put("ha")(w), then()) }
	}
	assert.ErrorIs(t, Replace(path, 0o600, half(func() error { return failed })), failed)
	is("two")
	assert.PanicsWithValue(t, "over", func() { Replace(path, 0o600, half(func() error { panic("over") })) })
	is("two")
	assert.NoError(t, Replaceable(path))
	is("two")

	assert.ErrorIs(t, Replace(dir, 0o600, put("x")), fs.ErrInvalid)
	assert.ErrorIs(t, Replace(filepath.Join(dir, "none", "a"), 0o600, put("x")), fs.ErrNotExist)
	assert.ErrorIs(t, Replaceable(filepath.Join(dir, "none", "a")), fs.ErrNotExist)
	is("two")
}

// TestLeftOvers finds temporary files of killed processes: the next who writes to the same path
// removes them, and never one that is being written.
func TestLeftOvers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	temp := func(n int) string { return filepath.Join(dir, fmt.Sprintf(".a.%d.tmp", n)) }
	then := time.Now().Add(-time.Hour) // for systems without locks
	leave := func(n int) {
		require.NoError(t, os.WriteFile(temp(n), []byte(strings.Repeat("left over", 1000)), 0o644))
		require.NoError(t, os.Chtimes(temp(n), then, then))
	}
	leave(0)
	require.NoError(t, Replace(path, 0o600, func(w io.Writer) error {
		leave(1) // as if another process had been killed meanwhile
		require.NoError(t, Replace(path, 0o600, func(w io.Writer) error {
			assert.Equal(t, []string{".a.0.tmp", ".a.1.tmp"}, names(t, dir))
			return put("inner")(w)
		}))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "inner", string(data))
		return put("outer")(w)
	}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "outer", string(data))
	assert.Equal(t, []string{"a"}, names(t, dir))

	require.NoError(t, os.Mkdir(temp(0), 0o700)) // what is no file stays
	require.NoError(t, Replace(path, 0o600, put("three")))
	assert.Equal(t, []string{".a.0.tmp", "a"}, names(t, dir))
}

// TestReplaceAtOnce lets many write to one path: it has always all of what one of them wrote.
func TestReplaceAtOnce(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file that somebody reads cannot be replaced there")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	text := func(i int) string { return strings.Repeat(fmt.Sprint(i), 1000) }
	require.NoError(t, Replace(path, 0o600, put(text(0))))
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			for range 20 {
				if !assert.NoError(t, Replace(path, 0o600, func(w io.Writer) error {
					return errors.Join(put(text(i)[:500])(w), put(text(i)[500:])(w))
				})) {
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text(int(data[0]-'0')), string(data))
	}
	assert.Equal(t, []string{"a"}, names(t, dir))
}

// TestReplaceNew lets many write to a path where there was nothing, or nothing any more.
func TestReplaceNew(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file that somebody reads cannot be replaced there")
	}
	dir := t.TempDir()
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for i := range 50 {
				path := filepath.Join(dir, fmt.Sprint(i%5))
				assert.NoError(t, Replace(path, 0o600, put("new")))
				os.Remove(path)
			}
		})
	}
	writers.Wait()
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nothing"), link))
	assert.ErrorIs(t, Replace(link, 0o600, put("x")), fs.ErrNotExist)
}

// TestReplaceKilled kills processes that write a file over and over, at random moments: each time
// there is the content that was complete, or the next one. VKMLA_TEST_FULL=1 kills a thousand.
func TestReplaceKilled(t *testing.T) {
	const child, times = "VKMLA_TEST_REPLACER", 50_000
	content := func(i int) string { return strings.Repeat(fmt.Sprintf("%8d", i), times) }
	if path := os.Getenv(child); path != "" { // the process that is killed
		for i := 1; ; i++ {
			require.NoError(t, Replace(path, 0o600, put(content(i))))
			fmt.Println(i)
		}
	}
	kills, dir, rng := 20, t.TempDir(), rand.New(rand.NewPCG(20, 6))
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		kills = 1000
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for range kills {
		path := filepath.Join(dir, "a")
		cmd := exec.Command(self, "-test.run=^TestReplaceKilled$")
		cmd.Env = append(os.Environ(), child+"="+path)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines, complete := bufio.NewScanner(out), 0
		require.True(t, lines.Scan(), "nothing was written")
		time.AfterFunc(time.Duration(rng.IntN(20_000))*time.Microsecond, func() { cmd.Process.Kill() })
		for more := true; more; more = lines.Scan() {
			_, err := fmt.Sscan(lines.Text(), &complete)
			require.NoError(t, err)
		}
		require.Error(t, cmd.Wait())
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		ok := string(data) == content(complete) || string(data) == content(complete+1)
		require.True(t, ok, "neither the old content nor the new one, after %d", complete)
		require.LessOrEqual(t, len(names(t, dir)), 2, "the file and a part of one")
	}
}
