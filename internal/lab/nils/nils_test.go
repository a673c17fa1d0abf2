// Package nils_test calls what a server calls with nothing: nil receivers, contexts, sessions,
// recorders, readers, writers and functions, and zero values of everything else. None may panic,
// and what returns an error has to return one.
package nils_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
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
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// types have methods that return an error: nil pointers, and zero values of those that are used
// without one.
var types = []any{
	(*vk.Adapter)(nil), (*vk.Buffer)(nil), (*vk.Commands)(nil), (*vk.Device)(nil), (*vk.Instance)(nil), (*vk.Kernel)(nil),
	(*vk.Pending)(nil), (*vk.Recorder)(nil), (*vk.Semaphore)(nil), vk.Handle(0),
	(*tensor.Arena)(nil), tensor.Tensor{},
	(*cache.BlockPool)(nil), (*cache.Compress)(nil), (*cache.Gather)(nil), (*cache.GatherRuns)(nil), (*cache.GatherSlots)(nil),
	(*cache.Insert)(nil), (*cache.SaveState)(nil), (*cache.SlotMapping)(nil), (*cache.Table)(nil), (*cache.TableUpdate)(nil),
	(*cache.Touch)(nil), cache.IndexKeyCache{}, cache.KVCache{}, cache.StateCache{},
	(*indexer.CandidateEntries)(nil), (*indexer.Candidates)(nil), (*indexer.Logits)(nil), (*indexer.QueryQuant)(nil),
	(*indexer.Select)(nil), (*indexer.TopK)(nil), (*indexer.Visible)(nil),
	(*attention.C128Indices)(nil), (*attention.CombineIndices)(nil), (*attention.Decoder)(nil), (*attention.Gathered)(nil),
	(*attention.GlobalTopK)(nil), (*attention.Prefill)(nil), (*attention.TwoPass)(nil), (*attention.WindowIndices)(nil),
	(*projection.InverseRope)(nil), (*projection.InverseRopeQuant)(nil), (*projection.Linear)(nil), (*projection.LinearChain)(nil),
	(*projection.QInsert)(nil), (*projection.QKVNorm)(nil), (*projection.Quantise)(nil),
	(*pipeline.Engine)(nil), (*pipeline.Session)(nil), (*pipeline.Step)(nil),
	&pipeline.Engine{}, &pipeline.Session{}, &pipeline.Step{}, pipeline.EngineOptions{},
	(*prefix.Folder)(nil), (*prefix.Keeper)(nil), &prefix.Keeper{},
	(*replicas.Group)(nil), (*replicas.Session)(nil), &replicas.Group{}, &replicas.Session{},
	(*model.Checkpoint)(nil), (*model.DeviceLayer)(nil), (*model.Tensors)(nil), model.Config{}, model.Rope{},
}

// whole are types none of whose methods may panic, those without an error included.
var whole = []string{"*vk.Device", "*vk.Instance", "*pipeline.Engine", "*pipeline.Session", "*pipeline.Step", "tensor.Tensor",
	"*replicas.Group", "*replicas.Session"}

// functions return an error.
var functions = []any{
	vk.Adopt, vk.ChooseVariant, vk.NewInstance, tensor.Check, tensor.New, tensor.NewArena, tensor.NewIn,
	cache.NewBlockPool, cache.NewCompress, cache.NewGather, cache.NewGatherRuns, cache.NewGatherSlots, cache.NewIndexKeyLayout,
	cache.NewIndexKeys, cache.NewInsert, cache.NewKV, cache.NewLayout, cache.NewRecordLayout, cache.NewSaveState,
	cache.NewSlotMapping, cache.NewState,
	cache.NewStateLayout, cache.NewTable, cache.NewTableUpdate, cache.NewTouch,
	indexer.NewCandidateEntries, indexer.NewCandidates, indexer.NewLogits, indexer.NewQueryQuant, indexer.NewSelect,
	indexer.NewTopK, indexer.NewVisible,
	attention.CanDecode, attention.NewC128Indices, attention.NewCombineIndices, attention.NewDecoder, attention.NewGathered,
	attention.NewGlobalTopK, attention.NewPrefill, attention.NewTwoPass, attention.NewWindowIndices,
	projection.NewInverseRope, projection.NewInverseRopeQuant, projection.NewJoinedChain, projection.NewLinear,
	projection.NewLinearChain, projection.NewQInsert, projection.NewQKVNorm, projection.NewQuantise,
	projection.ResetState,
	pipeline.Measure, pipeline.NewEngine, prefix.New, prefix.OpenFolder, replicas.New,
	model.CloseLayers, model.LoadConfig, model.LoadConfigWithDrafts, model.Open, model.OpenTensors, model.ParseConfig, model.Upload, random.Write,
}

// fine are calls that succeed with nothing.
var fine = []string{"vk.NewInstance", "cache.NewBlockPool", "*vk.Commands.Release", "*pipeline.Step.Abort", "model.CloseLayers"}

// outside are types of files, of errors and of references.
var outside = []string{"CheckpointError", "ConfigError", "ForeignError", "LayerWeights", "Matrix", "Blob", "CompressHost"}

var errorType = reflect.TypeFor[error]()

func fails(f reflect.Type) bool { return f.NumOut() > 0 && f.Out(f.NumOut()-1) == errorType }

// try calls a function with zero values.
func try(t *testing.T, name string, f reflect.Value, fine bool) {
	t.Helper()
	defer func() { assert.Nil(t, recover(), "%s panics", name) }()
	var in []reflect.Value
	for i := range f.Type().NumIn() {
		if !f.Type().IsVariadic() || i < f.Type().NumIn()-1 {
			in = append(in, reflect.Zero(f.Type().In(i)))
		}
	}
	out := f.Call(in)
	if fails(f.Type()) && !fine {
		assert.False(t, out[len(out)-1].IsNil(), "%s succeeds with nothing", name)
	}
}

func TestNothing(t *testing.T) {
	for _, x := range types {
		v := reflect.ValueOf(x)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			name := fmt.Sprintf("%T.%s", x, m.Name)
			if !fails(v.Method(i).Type()) && !slices.Contains(whole, fmt.Sprintf("%T", x)) {
				continue
			}
			try(t, name, v.Method(i), m.Name == "Close" || m.Name == "Err" || slices.Contains(fine, name))
		}
	}
	for _, f := range functions {
		name := filepath.Base(runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name())
		try(t, name, reflect.ValueOf(f), slices.Contains(fine, name))
	}
}

// The lists above have every type with a method that returns an error, and every such function.
func TestComplete(t *testing.T) {
	listed := map[string]bool{}
	for _, x := range types {
		listed[strings.TrimPrefix(fmt.Sprintf("%T", x), "*")] = true
	}
	for _, f := range functions {
		listed[filepath.Base(runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name())] = true
	}
	for _, dir := range []string{"vk", "tensor", "cache", "indexer", "attention", "projection", "pipeline", "pipeline/model",
		"pipeline/model/random", "pipeline/prefix", "pipeline/replicas"} {
		files, err := filepath.Glob("../../../" + dir + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			require.NoError(t, err)
			for _, d := range f.Decls {
				if name := failing(d); name != "" && !slices.Contains(outside, name) && !strings.HasSuffix(name, "Ref") {
					assert.True(t, listed[f.Name.Name+"."+name], "%s.%s is not listed", f.Name.Name, name)
				}
			}
		}
	}
}

// failing is the name of an exported function that returns an error; of a method, that of its type.
func failing(d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok || !f.Name.IsExported() || f.Type.Results == nil {
		return ""
	}
	results := f.Type.Results.List
	if last, ok := results[len(results)-1].Type.(*ast.Ident); !ok || last.Name != "error" {
		return ""
	}
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	if id, ok := of.(*ast.Ident); ok && id.IsExported() {
		return id.Name
	}
	return ""
}

// An engine that runs takes no nil contexts, sessions, readers or writers, and goes on afterwards.
func TestNothingInAnEngine(t *testing.T) {
	dev := testkit.Device(t)
	dir, ctx, none := t.TempDir(), t.Context(), context.Context(nil)
	require.NoError(t, testkit.Must[*fakemodel.Model](t)(fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0, 4)})).Write(dir, 1))
	c := testkit.Must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
	defer c.Close()
	_, err := c.Upload(none, dev, nil)
	assert.ErrorIs(t, err, vk.ErrArgument)
	layers := testkit.Must[[]*model.DeviceLayer](t)(c.Upload(ctx, dev, nil))
	o := pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 2, MaxStep: 4}
	_, err = pipeline.NewEngine(none, dev, c.Config, layers, o)
	assert.ErrorIs(t, err, vk.ErrArgument)
	_, err = pipeline.NewEngine(ctx, dev, c.Config, []*model.DeviceLayer{nil}, o)
	assert.ErrorIs(t, err, vk.ErrArgument)
	e := testkit.Must[*pipeline.Engine](t)(pipeline.NewEngine(ctx, dev, c.Config, layers, o))
	s := testkit.Must[*pipeline.Session](t)(e.Open())
	hidden := [][]float32{make([]float32, c.Config.Hidden), make([]float32, c.Config.Hidden)}
	var saved bytes.Buffer
	require.NoError(t, s.Save(ctx, &saved))
	st := func() *pipeline.Step {
		st := testkit.Must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
		for i := range layers {
			require.NoError(t, st.SetInput(i, 0, hidden[i]))
		}
		return st
	}
	cmd := func() *vk.Commands {
		r := testkit.Must[*vk.Recorder](t)(dev.NewRecorder())
		return testkit.Must[*vk.Commands](t)(r.End())
	}()
	x := testkit.Must[tensor.Tensor](t)(tensor.New(dev, "x", tensor.U8, 4))
	for name, call := range map[string]func() error{
		"prepare":     func() error { return e.Prepare(none, 1) },
		"begin":       func() error { _, err := e.Begin(none, pipeline.Chunk{Session: s, Tokens: 1}); return err },
		"nil session": func() error { _, err := e.Begin(ctx, pipeline.Chunk{Tokens: 1}); return err },
		"zero session": func() error {
			_, err := e.Begin(ctx, pipeline.Chunk{Session: &pipeline.Session{}, Tokens: 1})
			return err
		},
		"append":       func() error { _, err := s.Append(none, hidden); return err },
		"append nil":   func() error { _, err := s.Append(ctx, nil); return err },
		"advance":      func() error { return s.Advance(none, 1) },
		"save":         func() error { return s.Save(none, &bytes.Buffer{}) },
		"save to nil":  func() error { return s.Save(ctx, nil) },
		"restore":      func() error { _, err := e.Restore(none, bytes.NewReader(saved.Bytes())); return err },
		"restore nil":  func() error { _, err := e.Restore(ctx, nil); return err },
		"record again": func() error { return e.RecordAgain(none) },
		"set timing":   func() error { return e.SetTiming(none, pipeline.TimingOff) },
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
	for _, close := range []func() error{e.Close, cmd.Close, x.Close} {
		assert.NoError(t, close())
	}
	for _, l := range layers {
		assert.NoError(t, l.Close())
	}
}
