package recorded

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// V41 is a folder with a very small checkpoint of DeepSeek-V4.1 and what the official layers made
// of 300 tokens: config.json, model.safetensors, in.npz, and one .npz for each run.
type V41 struct {
	Config  model.Config         // with the layer that drafts
	Values  map[string][]float32 // tensors of all layers, by released name, as their bytes mean them
	Prefill int                  // tokens of the first call; each other token was a call of its own

	dir string
	in  *vectors.Archive
}

// OpenV41 reads the checkpoint of a folder, and finds its recordings.
func OpenV41(dir string) (*V41, error) {
	cfg, err := model.LoadConfigWithDrafts(dir, "")
	if err != nil {
		return nil, err
	}
	all := make([]int, len(cfg.Layers))
	for i := range all {
		all[i] = i
	}
	c, err := model.Open(dir, model.CheckpointOptions{Layers: all})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	v := &V41{Config: cfg, Values: map[string][]float32{}, dir: dir}
	for i := range c.Layers {
		err = errors.Join(err, v.layer(&c.Layers[i]))
	}
	if v.in, err = vectors.OpenArchive(filepath.Join(dir, "in.npz")); err != nil {
		return nil, err
	}
	prefill, err := v.in.Array("prefill")
	if err == nil {
		v.Prefill = int(prefill.I32()[0])
	}
	return v, err
}

// layer reads the values of a layer's tensors.
func (v *V41) layer(w *model.LayerWeights) (err error) {
	stem := fmt.Sprintf("layers.%d.attn.", w.Layer)
	if main := len(v.Config.Layers) - 1; w.Layer == main {
		stem = "mtp.0.attn."
	}
	rows := func(m *model.Matrix, from, to int, name string) {
		all := make([]float32, (to-from)*m.K)
		for r := from; r < to; r++ {
			err = errors.Join(err, m.Row(r, all[(r-from)*m.K:]))
		}
		v.Values[stem+name] = all
	}
	small := func(x *model.Vector, name string) {
		data, e := x.Data.Bytes()
		typ := vectors.F32
		if len(data) == 2*x.Shape[0] {
			typ = vectors.U16
		}
		a := vectors.Array{Type: typ, Shape: x.Shape, Data: data}
		if typ == vectors.U16 {
			v.Values[stem+name] = a.BF16()
		} else {
			v.Values[stem+name] = a.F32()
		}
		err = errors.Join(err, e)
	}
	q := v.Config.QRank
	rows(&w.QKV, 0, q, "wq_a.weight")
	rows(&w.QKV, q, w.QKV.N, "wkv.weight")
	rows(&w.QB, 0, w.QB.N, "wq_b.weight")
	rows(&w.OA, 0, w.OA.N, "wo_a.weight")
	rows(&w.OB, 0, w.OB.N, "wo_b.weight")
	small(&w.QNorm, "q_norm.weight")
	small(&w.KVNorm, "kv_norm.weight")
	small(&w.Sink, "attn_sink")
	if c := w.Compressor; c != nil {
		rows(&c.KVGate, 0, cache.D, "compressor.wkv.weight")
		rows(&c.KVGate, cache.D, c.KVGate.N, "compressor.wgate.weight")
		small(&c.Norm, "compressor.norm.weight")
	}
	if x := w.Indexer; x != nil {
		rows(&x.QB, 0, x.QB.N, "indexer.wq_b.weight")
		rows(&x.Weights, 0, x.Weights.N, "indexer.weights_proj.weight")
		if x.Keys != nil {
			rows(&x.Keys.K, 0, x.Keys.K.N, "indexer.wk.weight")
			small(&x.Keys.Norm, "indexer.k_norm.weight")
		}
	}
	return err
}

// In returns an input by its name in in.npz, bf16 numbers.
func (v *V41) In(name string) ([]float32, error) {
	a, err := v.in.Array(name)
	if err != nil {
		return nil, err
	}
	return a.BF16(), nil
}

// Run opens the recordings of a run: v41, v4 or official.
func (v *V41) Run(name string) (*vectors.Archive, error) {
	return vectors.OpenArchive(filepath.Join(v.dir, name+".npz"))
}
