package pipeline_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/vkmla/vkmla/internal/fakemodel"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestRestore restores sessions where they have less room than where they were saved, and
// headers that promise what does not come.
func TestRestore(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(pipeline.RatioWindow)})))
	const tokens, rewind = 3000, 2000
	long := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, Rewind: rewind})
	s := must[*pipeline.Session](t)(long.Open())
	var saved bytes.Buffer
	if err := errors.Join(s.Advance(t.Context(), tokens), s.Save(t.Context(), &saved)); err != nil {
		t.Fatal(err)
	}
	short := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, Rewind: 100})
	back, err := short.Restore(t.Context(), bytes.NewReader(saved.Bytes()))
	if err != nil || back.Len() != tokens {
		t.Fatal(err)
	}
	if err := back.Truncate(tokens - 101); !errors.Is(err, pipeline.ErrRewind) {
		t.Errorf("truncated too far: %v", err)
	}
	if err := errors.Join(back.Truncate(tokens-100), back.Advance(t.Context(), 200), back.Close()); err != nil {
		t.Error(err)
	}
	if all, free := short.Pages(); all != free {
		t.Errorf("of %v pages %v are free", all, free)
	}
	// The length and the number of pages of a session of half a million tokens, and no page.
	const length, pages, end = 48, 64 + 40, 64 + 80
	most := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 1 << 19, Rewind: 1 << 19})
	header := bytes.Clone(saved.Bytes()[:end])
	binary.LittleEndian.PutUint64(header[length:], 1<<19)
	binary.LittleEndian.PutUint64(header[64:], 0)
	binary.LittleEndian.PutUint64(header[pages:], 1<<19/64)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = most.Restore(t.Context(), bytes.NewReader(header))
	if runtime.ReadMemStats(&after); !errors.Is(err, pipeline.ErrSnapshot) || after.TotalAlloc-before.TotalAlloc > 8<<20 {
		t.Errorf("a header alone: %v, and %d bytes allocated", err, after.TotalAlloc-before.TotalAlloc)
	}
	if _, err := short.Restore(t.Context(), nil); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("no reader: %v", err)
	}
	if err := s.Save(t.Context(), nil); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("no writer: %v", err)
	}
}
