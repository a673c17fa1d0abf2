package pipeline_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// small is a model of one small layer, and what its sessions are saved with.
func small() (model.Config, pipeline.EngineOptions) {
	cfg := fakemodel.Config(0)
	cfg.Hidden, cfg.Heads, cfg.Groups, cfg.QRank, cfg.ORank = 8, 1, 1, 16, 16
	return cfg, pipeline.EngineOptions{MaxTokens: 1 << 14, Rewind: 1 << 10, MaxSessions: 3}
}

// smallEngine makes an engine of the small model, which is written to a folder.
func smallEngine(t *testing.T) (e *pipeline.Engine, dir string) {
	t.Helper()
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, o := small()
	dir = written(t, fake(t, fakemodel.Options{Config: cfg}))
	_, layers := uploaded(t, dev, dir)
	return engine(t, dev, cfg, layers, o), dir
}

const saverVar = "VKMLA_TEST_SAVER"

// saver makes this process one that restores a session, if it finds one, and saves it over and over
// with a token more each time. After each time it prints the length. The folder has a model, and
// gets the session.
func saver(dir string) error {
	ctx, path := context.Background(), filepath.Join(dir, "session")
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	if err != nil {
		return err
	}
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	if err != nil {
		return err
	}
	dev, err := a.Open(vk.DeviceOptions{})
	if err != nil {
		return err
	}
	c, err := model.Open(dir, model.CheckpointOptions{})
	if err != nil {
		return err
	}
	layers, err := c.Upload(ctx, dev, nil)
	if err != nil {
		return err
	}
	cfg, o := small()
	e, err := pipeline.NewEngine(ctx, dev, cfg, layers, o)
	if err != nil {
		return err
	}
	s, err := e.RestoreFile(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		s, err = e.Open()
	}
	for err == nil {
		if err = s.Advance(ctx, 1); err == nil {
			err = s.SaveFile(ctx, path)
		}
		fmt.Println(s.Len())
	}
	return err
}

// TestSaveKilled kills processes that save a session, at random moments: each time there is the
// snapshot that was complete, or the next one. VKMLA_TEST_FULL=1 kills a thousand.
func TestSaveKilled(t *testing.T) {
	kills := 20
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		kills = 1000
	}
	e, dir := smallEngine(t)
	path := filepath.Join(dir, "session")
	s := must[*pipeline.Session](t)(e.Open())
	require.NoError(t, errors.Join(s.Advance(t.Context(), 1000), s.SaveFile(t.Context(), path), s.Close()))
	rng, files, older, newer, left := rand.New(rand.NewPCG(20, 6)), len(entries(t, dir)), 0, 0, 0
	for length := 1000; kills > 0; kills-- {
		complete := killSaver(t, dir, length, time.Duration(rng.IntN(20_000))*time.Microsecond)
		back, err := e.RestoreFile(t.Context(), path)
		require.NoError(t, err, "after %d tokens", complete)
		switch length = back.Len(); length {
		case complete:
			older++
		case complete + 1:
			newer++
		default:
			require.Fail(t, "neither the old snapshot nor the new one", "of %d tokens, after %d", length, complete)
		}
		var again bytes.Buffer
		require.NoError(t, errors.Join(back.Save(t.Context(), &again), back.Close()))
		require.True(t, bytes.Equal(must[[]byte](t)(os.ReadFile(path)), again.Bytes()), "another session")
		more := len(entries(t, dir)) - files
		require.LessOrEqual(t, more, 1, "files left behind: %v", entries(t, dir))
		left += more
	}
	t.Logf("the old snapshot %d times, the new one %d times, and beside them a part of one %d times", older, newer, left)
}

// killSaver starts a process that saves, kills it some time after it has saved for the first time,
// and returns the length of the last snapshot that was complete before.
func killSaver(t *testing.T, dir string, length int, after time.Duration) (complete int) {
	t.Helper()
	cmd := exec.Command(must[string](t)(os.Executable()))
	cmd.Env = append(os.Environ(), saverVar+"="+dir)
	cmd.Stderr = os.Stderr
	out := must[io.ReadCloser](t)(cmd.StdoutPipe())
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "nothing was saved")
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
	defer timer.Stop()
	for more := true; more; more = lines.Scan() {
		if n := 0; !assert.NoError(t, failure(fmt.Sscan(lines.Text(), &n))) || n <= length {
			require.Fail(t, "not a session that goes on", "%q after %d", lines.Text(), length)
		} else {
			complete = n
		}
	}
	var ended *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &ended)
	return complete
}

// entries are the names of a folder's files.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(dir)) {
		names = append(names, e.Name())
	}
	return names
}

// TestSaveFile saves to files, refuses what are none, and leaves no file where it fails.
func TestSaveFile(t *testing.T) {
	e, _ := smallEngine(t)
	s := must[*pipeline.Session](t)(e.Open())
	require.NoError(t, s.Advance(t.Context(), 300))
	dir := t.TempDir()
	path := filepath.Join(dir, "session")
	require.NoError(t, s.SaveFile(t.Context(), path))
	var want bytes.Buffer
	require.NoError(t, s.Save(t.Context(), &want))
	assert.True(t, bytes.Equal(want.Bytes(), must[[]byte](t)(os.ReadFile(path))))
	back := must[*pipeline.Session](t)(e.RestoreFile(t.Context(), path))
	assert.Equal(t, 300, back.Len())
	assert.NoError(t, back.Close())

	ended, end := context.WithCancel(t.Context())
	end()
	assert.ErrorIs(t, s.SaveFile(ended, path), context.Canceled)
	assert.ErrorIs(t, failure(e.RestoreFile(ended, path)), context.Canceled)
	assert.ErrorIs(t, s.SaveFile(t.Context(), dir), fs.ErrInvalid)
	assert.ErrorIs(t, failure(e.RestoreFile(t.Context(), dir)), fs.ErrInvalid)
	assert.ErrorIs(t, s.SaveFile(t.Context(), filepath.Join(dir, "none", "session")), fs.ErrNotExist)
	assert.ErrorIs(t, failure(e.RestoreFile(t.Context(), filepath.Join(dir, "none"))), fs.ErrNotExist)
	bad := filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(bad, want.Bytes()[:1000], 0o600))
	err := failure(e.RestoreFile(t.Context(), bad))
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	assert.ErrorContains(t, err, bad)
	assert.Equal(t, []string{"bad", "session"}, entries(t, dir))
	assert.True(t, bytes.Equal(want.Bytes(), must[[]byte](t)(os.ReadFile(path))))
	require.NoError(t, s.Close())
	err = s.SaveFile(t.Context(), path)
	assert.ErrorIs(t, err, vk.ErrClosed)
	assert.True(t, strings.Count(err.Error(), "save session") == 1, "%v", err)
	assert.Equal(t, []string{"bad", "session"}, entries(t, dir))
}
