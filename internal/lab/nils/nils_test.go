// Package nils_test calls what a server calls with nothing: nil receivers, contexts, sessions,
// recorders, readers, writers and functions, and zero values of everything else.
package nils_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// types are the exported ones with methods: nil pointers, and zero values of those that are used
// without one.
var types = []any{
	(*vk.Adapter)(nil), (*vk.ArgumentError)(nil), (*vk.Buffer)(nil), (*vk.Caps)(nil), (*vk.Commands)(nil), (*vk.Device)(nil),
	(*vk.Instance)(nil), (*vk.Kernel)(nil), (*vk.MissingError)(nil), (*vk.Pending)(nil), (*vk.Recorder)(nil),
	vk.DeviceType(0), vk.Version(0), vk.View{},
	(*tensor.Arena)(nil), tensor.DType(0), tensor.Tensor{},
	(*cache.BlockPool)(nil), (*cache.Compress)(nil), (*cache.CompressedEntry)(nil), (*cache.Gather)(nil), (*cache.GatherRuns)(nil),
	(*cache.GatherSlots)(nil), (*cache.Insert)(nil), (*cache.SaveState)(nil), (*cache.SlotMapping)(nil), (*cache.Table)(nil),
	(*cache.TableUpdate)(nil), (*cache.Touch)(nil), cache.CompressHost{}, cache.Compression{}, cache.IndexKeyCache{},
	cache.IndexKeyFormat(0), cache.IndexKeyLayout{}, cache.KVCache{}, cache.Layout{}, cache.StateCache{}, cache.StateLayout{},
	(*indexer.Logits)(nil), (*indexer.QueryQuant)(nil), (*indexer.Select)(nil), (*indexer.TopK)(nil), (*indexer.Visible)(nil),
	indexer.RawQueries{},
	(*attention.CombineIndices)(nil), (*attention.Decoder)(nil), (*attention.Gathered)(nil), (*attention.GlobalTopK)(nil),
	(*attention.Prefill)(nil), (*attention.RowPlan)(nil), (*attention.TwoPass)(nil), (*attention.WindowIndices)(nil),
	attention.RowConfig{}, attention.SlotSet{},
	(*projection.InverseRope)(nil), (*projection.InverseRopeQuant)(nil), (*projection.Linear)(nil), (*projection.LinearChain)(nil),
	(*projection.QInsert)(nil), (*projection.QKVNorm)(nil), (*projection.Quantise)(nil), projection.ActivationFormat(0),
	projection.LinearHost{}, projection.ScaleLayout(0), projection.WeightFormat(0),
	(*pipeline.Engine)(nil), (*pipeline.Session)(nil), (*pipeline.Step)(nil), pipeline.EngineMemory{}, pipeline.OutputPath(0),
	(*model.Checkpoint)(nil), (*model.CheckpointError)(nil), (*model.ConfigError)(nil), (*model.DeviceLayer)(nil),
	(*model.ForeignError)(nil), (*model.LayerSpec)(nil), (*model.LayerWeights)(nil), (*model.Matrix)(nil),
	model.Blob{}, model.Config{}, model.Format(0), model.Rope{},
}

// call calls a function with zero arguments.
func call(f reflect.Value) (err error, panicked any) {
	defer func() { panicked = recover() }()
	in := make([]reflect.Value, 0, f.Type().NumIn())
	for i := range f.Type().NumIn() {
		if f.Type().IsVariadic() && i == f.Type().NumIn()-1 {
			break
		}
		in = append(in, reflect.Zero(f.Type().In(i)))
	}
	for _, out := range f.Call(in) {
		if e, ok := out.Interface().(error); ok {
			err = e
		}
	}
	return err, nil
}

func TestNilReceivers(t *testing.T) {
	for _, x := range types {
		v := reflect.ValueOf(x)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			name := fmt.Sprintf("%T.%s", x, m.Name)
			err, panicked := call(v.Method(i))
			assert.Nil(t, panicked, "%s panics", name)
			n := m.Type.NumOut()
			if panicked == nil && n > 0 && m.Type.Out(n-1) == reflect.TypeFor[error]() && !strings.HasSuffix(name, ".Close") {
				assert.Error(t, err, name)
			}
		}
	}
}
