package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// constructors take a context, a device, an engine, a file or other arguments that can be nil or
// zero.
var constructors = []any{
	share.Adopt, tensor.Check, tensor.New, tensor.NewArena, tensor.NewIn,
	cache.NewCompress, cache.NewGather, cache.NewGatherRuns, cache.NewGatherSlots, cache.NewIndexKeyLayout,
	cache.NewInsert, cache.NewKV, cache.NewLayout, cache.NewRecordLayout, cache.NewSaveState,
	cache.NewSlotMapping,
	cache.NewStateLayout, cache.NewTableUpdate, cache.NewTouch,
	indexer.NewCandidateEntries, indexer.NewCandidates, indexer.NewLogits, indexer.NewQueryQuant, indexer.NewSelect,
	indexer.NewTopK, indexer.NewVisible,
	attention.CanDecode, attention.NewC128Indices, attention.NewCombineIndices, attention.NewDecoder, attention.NewGathered,
	attention.NewGlobalTopK, attention.NewPrefill, attention.NewTwoPass, attention.NewWindowIndices,
	projection.NewInverseRope, projection.NewInverseRopeQuant, projection.NewJoinedChain, projection.NewLinear,
	projection.NewLinearChain, projection.NewQInsert, projection.NewQKVNorm, projection.NewQuantise,
	projection.ResetState,
	pipeline.Measure, pipeline.NewEngine, prefix.New, prefix.OpenFolder,
	model.LoadConfig, model.LoadConfigWithDrafts, model.Open, model.OpenTensors, model.Upload, random.Write,
}

// TestNilArguments demands an error, and no panic, of all functions that are given nil and zero
// arguments.
func TestNilArguments(t *testing.T) {
	for _, f := range constructors {
		v := reflect.ValueOf(f)
		name := filepath.Base(runtime.FuncForPC(v.Pointer()).Name())
		var in []reflect.Value
		for i := range v.Type().NumIn() {
			if !v.Type().IsVariadic() || i < v.Type().NumIn()-1 {
				in = append(in, reflect.Zero(v.Type().In(i)))
			}
		}
		require.NotPanics(t, func() {
			out := v.Call(in)
			assert.False(t, out[len(out)-1].IsNil(), "%s succeeds with nothing", name)
		}, name)
	}
}

// TestNilArgumentsOfEngine demands that an engine takes no nil contexts, sessions, readers or
// writers, and goes on afterwards.
func TestNilArgumentsOfEngine(t *testing.T) {
	dev := testkit.Device(t)
	ctx, none := t.Context(), context.Context(nil)
	c, layers := opened(t, dev, fake(t, fakemodel.Options{Config: fakemodel.Config(0, 4)}), model.CheckpointOptions{})
	_, err := c.Upload(none, dev, nil)
	assert.ErrorIs(t, err, vk.ErrArgument)
	o := options{MaxTokens: 64, MaxSessions: 2, MaxStep: 4}
	_, err = pipeline.NewEngine(none, dev, c.Config, layers, o)
	assert.ErrorIs(t, err, vk.ErrArgument)
	e := engine(t, dev, c.Config, layers, o)
	s := must[*pipeline.Session](t)(e.Open())
	hidden := [][]float32{make([]float32, c.Config.Hidden), make([]float32, c.Config.Hidden)}
	var saved bytes.Buffer
	require.NoError(t, s.Save(ctx, &saved))
	st := func() *pipeline.Step {
		st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
		for i := range layers {
			require.NoError(t, st.SetInput(i, 0, hidden[i]))
		}
		return st
	}
	cmd := func() *vk.Commands {
		r := must[*vk.Recorder](t)(dev.NewRecorder())
		return must[*vk.Commands](t)(r.End())
	}()
	x := must[tensor.Tensor](t)(tensor.New(dev, "x", tensor.U8, 4))
	for name, call := range map[string]func() error{
		"prepare":     func() error { return e.Prepare(none, 1) },
		"begin":       func() error { _, err := e.Begin(none, pipeline.Chunk{Session: s, Tokens: 1}); return err },
		"nil session": func() error { _, err := e.Begin(ctx, pipeline.Chunk{Tokens: 1}); return err },
		"zero session": func() error {
			_, err := e.Begin(ctx, pipeline.Chunk{Session: &pipeline.Session{}, Tokens: 1})
			return err
		},
		"append":      func() error { _, err := s.Append(none, hidden); return err },
		"append nil":  func() error { _, err := s.Append(ctx, nil); return err },
		"advance":     func() error { return s.Advance(none, 1) },
		"save":        func() error { return s.Save(none, &bytes.Buffer{}) },
		"save to nil": func() error { return s.Save(ctx, nil) },
		"restore":     func() error { _, err := e.Restore(none, bytes.NewReader(saved.Bytes())); return err },
		"restore nil": func() error { _, err := e.Restore(ctx, nil); return err },
		"set timing":  func() error { return e.SetTiming(none, pipeline.TimingOff) },
		"run": func() error {
			st := st()
			defer st.Abort()
			return st.Run(none)
		},
		"run layer": func() error {
			st := st()
			defer st.Abort()
			return st.RunLayer(none, 0)
		},
		"wait": func() error {
			st := st()
			defer st.Abort()
			require.NoError(t, st.Submit())
			err := st.Wait(none)
			require.NoError(t, st.Wait(ctx))
			return err
		},
		"nil inputs": func() error {
			st := st()
			defer st.Abort()
			return st.SetInput(0, 0, nil)
		},
		"commands": func() error { return cmd.Run(none) },
		"pending": func() error {
			p, err := cmd.Submit()
			require.NoError(t, err)
			err = p.Wait(none)
			require.NoError(t, p.Wait(ctx))
			return err
		},
		"upload":   func() error { return x.Upload(none, make([]byte, 4)) },
		"download": func() error { return x.Download(none, make([]byte, 4)) },
		"nothing":  func() error { return x.Upload(ctx, nil) },
	} {
		assert.NotPanics(t, func() { assert.ErrorIs(t, call(), vk.ErrArgument, name) }, name)
	}
	_, err = s.Append(ctx, hidden)
	assert.NoError(t, err)
	assert.Equal(t, 1, s.Len())
	assert.NoError(t, errors.Join(cmd.Close(), x.Close()))
}
