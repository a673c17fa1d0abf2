package model_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func fake(t testing.TB, o fakemodel.Options) *fakemodel.Model {
	t.Helper()
	if o.Config.Layers == nil {
		o.Config = fakemodel.Config(1, 4, 128)
	}
	return fakemodel.New(o)
}

// openFake writes a model and opens it.
func openFake(t testing.TB, m *fakemodel.Model, shards int, o model.CheckpointOptions) (*model.Checkpoint, error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, shards))
	c, err := model.Open(dir, o)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// wanted is a part of stacked tensors of k columns: rows r to s and columns a to b.
type wanted struct {
	names      []string
	k          int
	r, s, a, b int
}

// wants lists what the matrices of a layer mean, in the order of Matrices.
func wants(c model.Config, spec *model.LayerSpec, rank, ranks int) []wanted {
	part := func(n int) (int, int) { return n / ranks * rank, n / ranks * (rank + 1) }
	all := func(k, n int, names ...string) wanted { return wanted{names, k, 0, n, 0, k} }
	qb, oa, ob := all(c.QRank, 0, "wq_b"), all(c.HeadsPerGroup()*512, 0, "wo_a"), all(c.Groups*c.ORank, c.Hidden, "wo_b")
	qb.r, qb.s = part(c.Heads * 512)
	oa.r, oa.s = part(c.Groups * c.ORank)
	ob.a, ob.b = part(c.Groups * c.ORank)
	list := []wanted{all(c.Hidden, c.QRank+512, "wq_a", "wkv"), qb, oa, ob}
	pooled := func(stem string, dim int) {
		x := spec.Compression(dim)
		if spec.Gated() {
			list = append(list, all(c.Hidden, 2*x.Channels(), stem+".wkv", stem+".wgate"))
		} else {
			list = append(list, all(c.Hidden, x.Channels(), stem+".wkv"))
		}
	}
	if spec.Compresses() {
		pooled("compressor", 512)
	}
	if spec.Picks == model.PickOwn {
		list = append(list, all(c.QRank, c.IndexHeads*128, "indexer.wq_b"), all(c.Hidden, c.IndexHeads, "indexer.weights_proj"))
		switch {
		case spec.LatentKeys:
			list = append(list, all(512, 128, "indexer.wk"))
		case spec.Compresses():
			pooled("indexer.compressor", 128)
		}
	}
	return list
}

// decode reads the bytes of a matrix as Format describes them.
func decode(t *testing.T, m *model.Matrix) []float32 {
	t.Helper()
	data, scales := must[[]byte](t)(m.Data.Bytes()), must[[]byte](t)(m.Scales.Bytes())
	rows := must[[]byte](t)(m.RowScales.Bytes())
	side := 128
	if m.Format == projection.FormatFP8x32 {
		side = 32
	}
	v, kb := make([]float32, m.N*m.K), (m.K+side-1)/side
	le, blocks := binary.LittleEndian, (m.N+side-1)/side*kb
	size := map[projection.Format][3]int{projection.FormatBF16: {2 * len(v)}, projection.FormatFP8: {len(v), blocks},
		projection.FormatFP8x32: {len(v), blocks}, projection.FormatFP8F32: {len(v), 4 * blocks},
		projection.FormatNVFP4: {len(v) / 2, len(v) / 16}, projection.FormatFP8Rows: {len(v), 0, 4 * m.N}}[m.Format]
	require.Equal(t, size[2], len(rows), "%s: %v: scales of rows", m.Name, m.Format)
	require.Equal(t, size[0], len(data),
		"%s: %v [%d, %d] has %d bytes and %d of scales, want %v", m.Name, m.Format, m.N, m.K, len(data), len(scales), size)
	require.Equal(t, size[1], len(scales),
		"%s: %v [%d, %d] has %d bytes and %d of scales, want %v", m.Name, m.Format, m.N, m.K, len(data), len(scales), size)
	for i := range v {
		switch m.Format {
		case projection.FormatBF16:
			v[i] = numfmt.BF16Decode(le.Uint16(data[2*i:]))
		case projection.FormatFP8, projection.FormatFP8x32:
			v[i] = numfmt.E4M3Decode(data[i]) * numfmt.UE8M0Scale(scales[i/m.K/side*kb+i%m.K/side])
		case projection.FormatFP8F32:
			v[i] = numfmt.E4M3Decode(data[i]) * math.Float32frombits(le.Uint32(scales[4*(i/m.K/side*kb+i%m.K/side):]))
		case projection.FormatFP8Rows:
			v[i] = numfmt.E4M3Decode(data[i]) * math.Float32frombits(le.Uint32(rows[4*(i/m.K):]))
		case projection.FormatNVFP4:
			v[i] = numfmt.E2M1Decode(data[i/2]>>(4*(i%2))) * numfmt.E4M3Decode(scales[i/16]) * m.Global
		}
	}
	return v
}

// compare compares the matrices of a layer with the model's values. Unless exact, they may be
// rounded to bf16.
func compare(t *testing.T, m *fakemodel.Model, c *model.Checkpoint, l *model.LayerWeights, exact bool) {
	t.Helper()
	stem := fmt.Sprintf("layers.%d.attn.", l.Layer)
	if c.Config.Layers[l.Layer].Draft {
		stem = "mtp.0.attn."
	}
	list := wants(c.Config, &c.Config.Layers[l.Layer].LayerSpec, c.Rank, c.Ranks)
	require.Len(t, l.Matrices(), len(list), stem)
	for i, w := range list {
		got := l.Matrices()[i]
		var want []float32
		for _, name := range w.names {
			v := m.Values[stem+name+".weight"]
			require.NotNil(t, v, "no values of %v", name)
			want = append(want, v...)
		}
		if got.N != w.s-w.r || got.K != w.b-w.a {
			t.Errorf("%s: [%d, %d], want %+v", got.Name, got.N, got.K, w)
			continue
		}
		v, row := decode(t, got), make([]float32, got.K)
		for j, x := range v {
			y := want[(w.r+j/got.K)*w.k+w.a+j%got.K]
			if !exact || got.Format == projection.FormatBF16 {
				y = numfmt.BF16Round(y)
			}
			if j%got.K == 0 {
				require.NoError(t, got.Row(j/got.K, row))
			}
			if x != y || row[j%got.K] != y {
				t.Errorf("%s (%v) [%d, %d]: %v, row %v, want %v", got.Name, got.Format, j/got.K, j%got.K, x, row[j%got.K], y)
				break
			}
		}
	}
	for _, v := range l.Vectors() {
		_, rest, _ := strings.Cut(v.Name, "attn.")
		want := m.Values[stem+rest]
		if want == nil {
			continue // of another naming; the checks of the released one do
		}
		if rest == "attn_sink" {
			n := len(want) / c.Ranks
			want = want[n*c.Rank : n*(c.Rank+1)]
		}
		data := must[[]byte](t)(v.Data.Bytes())
		if len(data) != len(want)*v.DType.Size() || v.DType != tensor.F32 && v.DType != tensor.BF16 {
			t.Errorf("%s: %d bytes of %v", v.Name, len(data), v.DType)
			continue
		}
		for j, y := range want {
			x := float32(0)
			if v.DType == tensor.F32 {
				x = math.Float32frombits(binary.LittleEndian.Uint32(data[4*j:]))
			} else {
				x = numfmt.BF16Decode(binary.LittleEndian.Uint16(data[2*j:]))
			}
			if x != y {
				t.Errorf("%s %d: %v, want %v", v.Name, j, x, y)
				break
			}
		}
	}
}

func TestCheckpoint(t *testing.T) {
	formats := map[fakemodel.Storage]projection.Format{fakemodel.FP8: projection.FormatFP8, fakemodel.FP8F32: projection.FormatFP8F32,
		fakemodel.FP8BF16: projection.FormatFP8F32, fakemodel.FP8One: projection.FormatFP8F32, fakemodel.FP8Rows: projection.FormatFP8Rows,
		fakemodel.NVFP4: projection.FormatNVFP4, fakemodel.NVFP4Packed: projection.FormatNVFP4}
	for i, s := range fakemodel.Storages() {
		for _, naming := range []fakemodel.Naming{fakemodel.Released, fakemodel.Prefixed, fakemodel.Modules} {
			t.Run(fmt.Sprintf("%s/%d", s, naming), func(t *testing.T) {
				m := fake(t, fakemodel.Options{Storage: s, Naming: naming, Seed: uint64(i)})
				c, err := openFake(t, m, 1+2*(i%2), model.CheckpointOptions{})
				require.NoError(t, err)
				want := formats[s]
				if want == 0 {
					want = projection.FormatBF16
				}
				for j := range c.Layers {
					l := &c.Layers[j]
					require.Equal(t, j, l.Layer, "%+v", l)
					require.Equal(t, j > 0, l.Compressor != nil, "%+v", l)
					assert.Equal(t, j == 1, l.Indexer != nil, "%+v", l)
					for _, w := range []*model.Matrix{&l.QKV, &l.QB, &l.OA, &l.OB} {
						require.Equal(t, want, w.Format, w.Name)
					}
					compare(t, m, c, l, true)
				}
			})
		}
	}
}

// Ranks get their heads, groups and columns. With 2 groups of 64 the columns of wo_b
// begin within a block of 128, so that FP8 has to become bf16 there, unless its scales are those of
// rows or of all.
func TestCheckpointRanks(t *testing.T) {
	for _, s := range fakemodel.Storages() {
		for _, rank := range []int{0, 1} {
			m := fake(t, fakemodel.Options{Storage: s})
			c, err := openFake(t, m, 2, model.CheckpointOptions{Layers: []int{2, 0}, Rank: rank, Ranks: 2})
			require.NoError(t, err)
			require.Len(t, c.Layers, 2)
			require.Equal(t, 2, c.Layers[0].Layer)
			assert.Equal(t, 2, c.Layers[0].Sink.Shape[0])
			for j := range c.Layers {
				compare(t, m, c, &c.Layers[j], true)
			}
			if s == fakemodel.FP8 && (c.Layers[0].OB.Format == projection.FormatBF16) != (rank == 1) {
				t.Errorf("rank %d: wo_b is %v", rank, c.Layers[0].OB.Format)
			}
		}
	}
}

// Tensors that do not stack as they are stored become bf16.
func TestCheckpointStacks(t *testing.T) {
	uneven := fakemodel.Config(1)
	uneven.QRank = 136
	for name, c := range map[string]struct {
		o      fakemodel.Options
		change func(*fakemodel.Model)
		format projection.Format
	}{
		"uneven blocks": {fakemodel.Options{Config: uneven, Storage: fakemodel.FP8}, func(*fakemodel.Model) {}, projection.FormatBF16},
		"two factors": {fakemodel.Options{Config: fakemodel.Config(1), Storage: fakemodel.NVFP4}, func(m *fakemodel.Model) {
			copy(m.Find("layers.0.attn.wkv.weight_scale_2").Data, []byte{0, 0, 128, 62}) // 0.25
			v := m.Values["layers.0.attn.wkv.weight"]
			for i := range v {
				v[i] *= 0.25 * (448 * 6 / 2)
			}
		}, projection.FormatBF16},
		"two kinds of scales": {fakemodel.Options{Config: fakemodel.Config(1), Storage: fakemodel.FP8}, func(m *fakemodel.Model) {
			s := m.Find("layers.0.attn.wkv.scale")
			var wide []byte
			for _, b := range s.Data {
				wide = binary.LittleEndian.AppendUint32(wide, uint32(b)<<23)
			}
			s.Name, s.DType, s.Data = "layers.0.attn.wkv.weight_scale_inv", safetensors.F32, wide
		}, projection.FormatFP8F32},
		"bytes as exponents": {fakemodel.Options{Config: fakemodel.Config(1), Storage: fakemodel.FP8}, func(m *fakemodel.Model) {
			m.Find("layers.0.attn.wkv.scale").DType = safetensors.U8
		}, projection.FormatFP8},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, c.o)
			c.change(m)
			ck, err := openFake(t, m, 1, model.CheckpointOptions{})
			require.NoError(t, err)
			assert.Equal(t, c.format, ck.Layers[0].QKV.Format)
			if name == "two factors" {
				return // the product's order of roundings differs
			}
			compare(t, m, ck, &ck.Layers[0], true)
		})
	}
}

func TestCheckpointErrors(t *testing.T) {
	const l = "layers.1.attn."
	find := func(m *fakemodel.Model, name string) *fakemodel.Tensor {
		x := m.Find(l + name)
		require.NotNil(t, x, "no %v", name)
		return x
	}
	nan := []byte{0, 0, 0xC0, 0x7F}
	for name, c := range map[string]struct {
		s      fakemodel.Storage
		change func(*fakemodel.Model)
		tensor string // that the error names, without the layer
	}{
		"missing":             {"", func(m *fakemodel.Model) { m.Remove(l + "wq_b.weight") }, "wq_b.weight"},
		"missing sink":        {"", func(m *fakemodel.Model) { m.Remove(l + "attn_sink") }, "attn_sink"},
		"missing indexer":     {"", func(m *fakemodel.Model) { m.Remove(l + "indexer.compressor.ape") }, "indexer.compressor.ape"},
		"extra":               {"", func(m *fakemodel.Model) { m.Add(l+"wq_b.bias", safetensors.F32, 4) }, "wq_b.bias"},
		"extra layer part":    {"", func(m *fakemodel.Model) { m.Add("layers.0.attn.compressor.ape", safetensors.F32, 4) }, "layers.0.attn.compressor.ape"},
		"two namings":         {"", func(m *fakemodel.Model) { m.Add("model."+l+"wq_b.weight", safetensors.BF16, 4) }, "model.layers.1.attn.wq_b.weight"},
		"two spellings":       {"", func(m *fakemodel.Model) { m.Add(l+"norm.weight", safetensors.BF16, 512) }, "norm.weight"},
		"shape":               {"", func(m *fakemodel.Model) { find(m, "wo_b.weight").Shape = []int{128, 192} }, "wo_b.weight"},
		"dimensions":          {"", func(m *fakemodel.Model) { find(m, "q_norm.weight").Shape = []int{1, 128} }, "q_norm.weight"},
		"type":                {"", func(m *fakemodel.Model) { find(m, "wo_b.weight").DType = "I16" }, "wo_b.weight"},
		"type of a vector":    {"", func(m *fakemodel.Model) { find(m, "attn_sink").DType = "I32" }, "attn_sink"},
		"NaN sink":            {"", func(m *fakemodel.Model) { copy(find(m, "attn_sink").Data[4:], nan) }, "attn_sink"},
		"infinite norm":       {"", func(m *fakemodel.Model) { copy(find(m, "q_norm.weight").Data, []byte{0x80, 0x7F}) }, "q_norm.weight"},
		"scales of plain":     {"", func(m *fakemodel.Model) { m.Add(l+"wq_b.scale", safetensors.F8E8M0, 16, 1) }, "wq_b.scale"},
		"no scale":            {fakemodel.FP8, func(m *fakemodel.Model) { m.Remove(l + "wo_a.scale") }, "wo_a.scale"},
		"two scales":          {fakemodel.FP8, func(m *fakemodel.Model) { m.Add(l+"wo_a.weight_scale_inv", safetensors.F32, 1, 8) }, "wo_a.weight_scale_inv"},
		"UE8M0 NaN":           {fakemodel.FP8, func(m *fakemodel.Model) { find(m, "wo_a.scale").Data[3] = 255 }, "wo_a.scale"},
		"NaN scale":           {fakemodel.FP8F32, func(m *fakemodel.Model) { copy(find(m, "wo_a.weight_scale_inv").Data[8:], nan) }, "wo_a.weight_scale_inv"},
		"negative scale":      {fakemodel.FP8F32, func(m *fakemodel.Model) { find(m, "wo_a.weight_scale_inv").Data[3] |= 0x80 }, "wo_a.weight_scale_inv"},
		"infinite scale":      {fakemodel.FP8BF16, func(m *fakemodel.Model) { copy(find(m, "wq_b.weight_scale").Data, []byte{0x80, 0x7F}) }, "wq_b.weight_scale"},
		"scale shape":         {fakemodel.FP8, func(m *fakemodel.Model) { find(m, "wo_a.scale").Shape = []int{8, 1} }, "wo_a.scale"},
		"scale type":          {fakemodel.FP8F32, func(m *fakemodel.Model) { find(m, "wo_a.weight_scale_inv").DType = "I32" }, "wo_a.weight_scale_inv"},
		"E4M3 NaN scale":      {fakemodel.NVFP4, func(m *fakemodel.Model) { find(m, "wq_b.weight_scale").Data[1000] = 0x7F }, "wq_b.weight_scale"},
		"E4M3 negative scale": {fakemodel.NVFP4, func(m *fakemodel.Model) { find(m, "wq_b.weight_scale").Data[0] = 0x81 }, "wq_b.weight_scale"},
		"NaN factor":          {fakemodel.NVFP4, func(m *fakemodel.Model) { copy(find(m, "wq_b.weight_scale_2").Data, nan) }, "wq_b.weight_scale_2"},
		"zero factor":         {fakemodel.NVFP4, func(m *fakemodel.Model) { clear(find(m, "wq_b.weight_scale_2").Data) }, "wq_b.weight_scale_2"},
		"infinite factor":     {fakemodel.NVFP4Packed, func(m *fakemodel.Model) { clear(find(m, "wq_b.weight_global_scale").Data) }, "wq_b.weight_global_scale"},
		"no factor":           {fakemodel.NVFP4, func(m *fakemodel.Model) { m.Remove(l + "wq_b.weight_scale_2") }, "wq_b.weight_scale_2"},
		"unpacked": {fakemodel.NVFP4,
			func(m *fakemodel.Model) { find(m, "wq_b.weight").Shape = []int{1024, 128} }, "wq_b.weight"},
		"exponents for E4M3": {fakemodel.NVFP4, func(m *fakemodel.Model) { find(m, "wq_b.weight_scale").DType = safetensors.F8E8M0 }, "wq_b.weight_scale"},
	} {
		m := fake(t, fakemodel.Options{Storage: c.s})
		c.change(m)
		_, err := openFake(t, m, 1, model.CheckpointOptions{})
		var ce *model.CheckpointError
		if !errors.Is(err, model.ErrCheckpoint) || !errors.As(err, &ce) {
			t.Errorf("%s: %v", name, err)
		} else if want := c.tensor; ce.Tensor != want && ce.Tensor != l+want {
			t.Errorf("%s: the error names %s: %v", name, ce.Tensor, err)
		}
	}
}

// Tensors outside of attention, and those that nothing reads, are ignored.
func TestCheckpointIgnores(t *testing.T) {
	m := fake(t, fakemodel.Options{})
	m.Add("mtp.0.attn.wq_a.weight", safetensors.BF16, 4)
	m.Add("layers.3.attn.wq_a.weight", safetensors.BF16, 4)
	m.Add("layers.01.attn.wq_a.weight", safetensors.BF16, 4)
	m.Add("layers.1.ffn.gate.weight", safetensors.BF16, 4)
	m.Add("layers.1.attn.indexer.k_norm.weight", safetensors.BF16, 4)
	m.Add("layers.1.attn_norm.weight", safetensors.BF16, 4)
	_, err := openFake(t, m, 1, model.CheckpointOptions{})
	assert.NoError(t, err)
	// Nor does a layer that was not asked for.
	m.Remove("layers.2.attn.wq_a.weight")
	_, err = openFake(t, m, 1, model.CheckpointOptions{Layers: []int{1, 0}})
	assert.NoError(t, err)
}

func TestOpenFiles(t *testing.T) {
	m := fake(t, fakemodel.Options{Config: fakemodel.Config(1)})
	for _, o := range []model.CheckpointOptions{{Ranks: 3}, {Ranks: -1}, {Rank: 1}, {Rank: -1}, {Rank: 2, Ranks: 2}, {Layers: []int{1}}, {Layers: []int{-1}}, {Layers: []int{0, 0}}} {
		_, err := openFake(t, m, 1, o)
		assert.ErrorIs(t, err, vk.ErrArgument, "%+v", o)
	}
	dir := t.TempDir()
	_, err := model.Open(dir, model.CheckpointOptions{})
	assert.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, m.Write(dir, 3))
	shard := filepath.Join(dir, "model-00002-of-00003.safetensors")
	data := must[[]byte](t)(os.ReadFile(shard))
	for what, b := range map[string][]byte{"cut": data[:len(data)-1], "longer": append(data[:len(data):len(data)], 0), "header only": data[:100], "empty": {}} {
		require.NoError(t, os.WriteFile(shard, b, 0o666))
		var ce *model.CheckpointError
		_, err := model.Open(dir, model.CheckpointOptions{})
		assert.ErrorIs(t, err, model.ErrCheckpoint, what)
		require.ErrorAs(t, err, &ce, what)
		assert.Equal(t, filepath.Base(shard), ce.File, what)
	}
	require.NoError(t, os.Remove(shard))
	_, err = model.Open(dir, model.CheckpointOptions{})
	assert.ErrorIs(t, err, model.ErrCheckpoint)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, safetensors.IndexName), []byte("{"), 0o666))
	_, err = model.Open(dir, model.CheckpointOptions{})
	assert.ErrorIs(t, err, model.ErrCheckpoint)
}

// Every range of every blob reads the same bytes, and a file that is cut is noticed.
func TestBlob(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4), Storage: fakemodel.FP8BF16}).Write(dir, 1))
	c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{Rank: 1, Ranks: 2}))
	defer c.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, m := range c.Layers[0].Matrices() {
		for _, b := range []model.Blob{m.Data, m.Scales} {
			all := must[[]byte](t)(b.Bytes())
			for range 20 {
				if len(all) == 0 {
					break
				}
				from := rng.IntN(len(all))
				p := make([]byte, rng.IntN(len(all)-from+1))
				n, err := b.ReadAt(p, int64(from))
				require.True(t, n == len(p) && err == nil && bytes.Equal(p, all[from:from+n]),
					"%s: bytes %d to %d: %d, %v", m.Name, from, from+len(p), n, err)
			}
			n, err := b.ReadAt(make([]byte, 3), b.Size())
			assert.True(t, n == 0 && err == io.EOF, "behind the end: %d, %v", n, err)
			_, err = b.ReadAt(nil, -1)
			assert.Error(t, err, "a negative offset")
		}
	}
	for _, m := range []*model.Matrix{&c.Layers[0].QB, &c.Layers[0].QKV, {}} {
		row := make([]float32, m.K)
		for what, err := range map[string]error{"before the first": m.Row(-1, row), "behind the last": m.Row(m.N, row), "too short": m.Row(0, make([]float32, max(m.K, 1)-1))} {
			assert.ErrorIs(t, err, vk.ErrArgument, "%s of %q", what, m.Name)
		}
	}
	assert.NoError(t, (&model.Checkpoint{}).Close())
	require.NoError(t, os.Truncate(filepath.Join(dir, safetensors.SingleName), 4096))
	_, err := c.Layers[0].QB.Data.Bytes()
	assert.ErrorIs(t, err, model.ErrCheckpoint)
	assert.ErrorIs(t, c.Layers[0].QB.Row(1000, make([]float32, 128)), model.ErrCheckpoint)
	_, err = c.Upload(context.Background(), testkit.Device(t), nil)
	assert.ErrorIs(t, err, model.ErrCheckpoint)
}

// A file with a damaged header or any byte of data changed is refused with a typed error, or gives
// layers whose bytes can be read.
func FuzzOpen(f *testing.F) {
	cfg, v41 := fakemodel.Config(1), fakemodel.TinyV41().WithDrafts(1)
	var data [][]byte
	var dirs []string
	for i, s := range []fakemodel.Storage{fakemodel.BF16, fakemodel.FP8, fakemodel.FP8F32, fakemodel.FP8Rows, fakemodel.FP8One, fakemodel.FP8} {
		o := fakemodel.Options{Config: cfg, Storage: s, Naming: fakemodel.Namings()[i%len(fakemodel.Namings())]}
		hidden := 8
		if i == 5 {
			o.Config, o.Naming, hidden = v41, fakemodel.Released, 40 // in two blocks of scales
		}
		o.Config.Hidden, o.Config.Heads, o.Config.Groups, o.Config.QRank, o.Config.ORank, o.Config.IndexHeads = hidden, 1, 1, 16, 16, 1
		dir := testkit.MemoryDir(f)
		require.NoError(f, fake(f, o).Write(dir, 1))
		file := must[[]byte](f)(os.ReadFile(filepath.Join(dir, safetensors.SingleName)))
		n := 8 + binary.LittleEndian.Uint64(file)
		data, dirs = append(data, file[n:]), append(dirs, dir)
		f.Add(uint8(i), file[8:n], uint16(i), uint8(i))
	}
	f.Fuzz(func(t *testing.T, which uint8, header []byte, at uint16, flip uint8) {
		d, dir := data[int(which)%len(data)], dirs[int(which)%len(data)]
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		file = append(file, d...)
		file[8+len(header)+int(at)%len(d)] ^= flip
		require.NoError(t, os.WriteFile(filepath.Join(dir, safetensors.SingleName), file, 0o666))
		c, err := model.Open(dir, model.CheckpointOptions{})
		if err != nil {
			assert.ErrorIs(t, err, model.ErrCheckpoint, "untyped error")
			return
		}
		defer c.Close()
		for i := range c.Layers {
			for _, m := range c.Layers[i].Matrices() {
				for _, b := range []model.Blob{m.Data, m.Scales} {
					_, err := b.Bytes()
					assert.NoError(t, err)
				}
			}
		}
	})
}

// Factors of activations are read in both spellings; of stacked matrices the largest counts. As
// products of bf16 activations need none, a bad one does not keep a checkpoint from being read.
func TestCheckpointInputScale(t *testing.T) {
	const l = "layers.0.attn."
	stored := func(m *fakemodel.Model, name string) float32 {
		return math.Float32frombits(binary.LittleEndian.Uint32(m.Find(l + name).Data))
	}
	open := func(s fakemodel.Storage, change func(*fakemodel.Model)) *model.LayerWeights {
		m := fake(t, fakemodel.Options{Config: fakemodel.Config(4), Storage: s})
		if change != nil {
			change(m)
		}
		c, err := openFake(t, m, 1, model.CheckpointOptions{})
		require.NoError(t, err)
		return &c.Layers[0]
	}
	m := fake(t, fakemodel.Options{Config: fakemodel.Config(4), Storage: fakemodel.NVFP4})
	a, b := stored(m, "wq_a.input_scale"), stored(m, "wkv.input_scale")
	require.NotEqual(t, a, b)
	w, packed := open(fakemodel.NVFP4, nil), open(fakemodel.NVFP4Packed, nil)
	assert.Equal(t, max(a, b), w.QKV.Input)
	assert.Equal(t, stored(m, "wo_b.input_scale"), w.OB.Input)
	for i, x := range packed.Matrices() {
		assert.InEpsilon(t, w.Matrices()[i].Input+1, x.Input+1, 1e-6, x.Name)
		assert.Equal(t, x.Format == projection.FormatNVFP4, x.Input > 0, x.Name)
	}
	w = open(fakemodel.NVFP4, func(m *fakemodel.Model) { m.Remove(l + "wkv.input_scale"); m.Remove(l + "wo_a.input_scale") })
	assert.Zero(t, w.QKV.Input, "one of two matrices has none")
	assert.Zero(t, w.OA.Input)
	w = open(fakemodel.NVFP4, func(m *fakemodel.Model) {
		m.Find(l + "wq_b.input_scale").DType = safetensors.I32
		clear(m.Find(l + "wo_b.input_scale").Data)
	})
	assert.True(t, math.IsNaN(float64(w.QB.Input)), "of another type")
	assert.Zero(t, w.OB.Input)
	assert.Zero(t, open(fakemodel.FP8, nil).QB.Input)
}
