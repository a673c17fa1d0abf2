package weights

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Model is all weights that are not attention's.
type Model struct {
	Config   Config
	Embed    Matrix    // [V, D]
	Norm     []float32 // [D], in front of the head
	Head     Matrix    // [V, D]
	HeadHC   Hyper     // mixes the streams in front of Norm; Fn [n, nD]
	Layers   []Layer
	Draft    *Draft // nil: the layers are the model's own, and nothing drafts
	tensors  *model.Tensors
	released map[string]string // names, and how they are stored
	gguf     bool              // the model's own layers are of GGUF
	drafts   bool              // those that draft are, in a file of their own
	dir      string
	identity string            // see Examine
	files    map[string]digest // that Examine read, by name
}

// Hyper are the weights of a hyper-connection: Fn [(2+n)n, nD], Base one for each row of Fn,
// Scale one each for pre, post and comb.
type Hyper struct {
	Fn          Matrix
	Base, Scale []float32
}

// Draft holds what a DSpark block has beside its layers, which are the last of Model.Layers. It
// ends as the model does, with the model's Head. Row t of MarkovIn by MarkovOut is added to the
// logits of what follows token t.
type Draft struct {
	Main                Matrix    // [D, targets*D], of the states after the layers Config.DraftTargets
	MainNorm            []float32 // [D]
	HeadHC              Hyper     // as Model.HeadHC
	Norm                []float32 // [D]
	MarkovIn, MarkovOut Matrix    // [V, rank]
}

// Layer holds the parts of a layer around its attention.
type Layer struct {
	AttnHC, FFNHC     Hyper
	AttnNorm, FFNNorm []float32 // [D]
	Gate              Matrix    // [E, D]
	Bias              []float32 // [E], for the choice of experts only; nil in a hash layer
	Table             []int32   // [V, k] experts of a token id; nil but in a hash layer
	Experts           []Expert  // [E]
	Shared            Expert
}

// Expert is a gated network: w1 gate and w3 up [F, D], w2 down [D, F].
type Expert struct{ W1, W3, W2 Matrix }

// Open maps a checkpoint and checks that everything is there in the right shape. The caller
// closes it.
//
// Errors: those of LoadConfig and model.OpenTensors; *model.CheckpointError.
func Open(dir string) (*Model, error) { return open(dir, false, "") }

// OpenWithDrafts is Open for a checkpoint with a DSpark block, which is read, too: that of the GGUF
// file `drafts`, see model.CheckpointOptions, or with "" the checkpoint's own.
//
// Errors: those of Open and model.LoadConfigWithDrafts; *model.ConfigError for a checkpoint without
// a block, such as one with layers of MTP.
func OpenWithDrafts(dir, drafts string) (*Model, error) { return open(dir, true, drafts) }

func open(dir string, with bool, drafts string) (*Model, error) {
	cfg, err := loadConfig(dir, with, drafts)
	if err != nil {
		return nil, err
	}
	t, err := model.OpenTensors(dir, drafts)
	if err != nil {
		return nil, err
	}
	m := &Model{Config: cfg, dir: dir, tensors: t, Layers: make([]Layer, len(cfg.Hash)), drafts: drafts != ""}
	if file, e := gguf.Find(dir); e == nil && file != "" {
		m.gguf, m.dir, m.released = true, filepath.Dir(file), ggufReleased(t.Names())
	} else {
		err = m.names()
	}
	if err == nil {
		err = m.read()
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return m, nil
}

// names finds the tensors of safetensors, and of drafts in GGUF beside them.
func (m *Model) names() (err error) {
	var own, drafts []string
	for _, name := range m.tensors.Names() {
		if m.drafts && strings.HasPrefix(name, draftStack) {
			drafts = append(drafts, name)
		} else {
			own = append(own, name)
		}
	}
	if m.released, err = releasedNames(own); err == nil {
		maps.Copy(m.released, ggufReleased(drafts))
	}
	return err
}

// inGGUF reports whether a tensor of that released name, or those that begin so, are of GGUF.
func (m *Model) inGGUF(name string) bool {
	if strings.HasPrefix(name, draftStack) {
		return m.drafts
	}
	return m.gguf
}

// Own returns the number of layers of the model itself. Those after them draft.
func (m *Model) Own() int {
	if m.Draft == nil {
		return len(m.Layers)
	}
	return m.Config.Own()
}

// Close unmaps the files: nothing may be computed with the weights any more.
func (m *Model) Close() error { return m.tensors.Close() }

// Read runs f, which reads matrices, and turns the fault that the system raises where a file became
// shorter into an error, see model.Tensors.Read.
func (m *Model) Read(f func() error) error {
	if m.tensors == nil { // the matrices are in memory
		return f()
	}
	return m.tensors.Read(f)
}

// read reads the layers side by side: all scales are looked at, which takes the disk's time.
func (m *Model) read() error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range m.Layers {
		g.Go(func() error {
			return m.tensors.Read(func() error { r := reader{m: m}; r.layer(i); return r.err })
		})
	}
	g.Go(func() error {
		return m.tensors.Read(func() error { r := reader{m: m}; r.ends(); return r.err })
	})
	return g.Wait()
}

// reader remembers the first error.
type reader struct {
	m   *Model
	err error
}

// tensor returns a tensor by its released name.
func (r *reader) tensor(name string) (t model.Tensor) {
	if r.err != nil {
		return t
	}
	stored, there := r.m.released[name]
	if stored = cmp.Or(stored, name); !there && r.m.inGGUF(name) {
		stored = inGGUF(name)
	}
	t, r.err = r.m.tensors.Tensor(stored)
	return t
}

// shaped returns a tensor of a certain shape.
func (r *reader) shaped(name string, shape ...int) model.Tensor {
	t := r.tensor(name)
	if r.err == nil && !slices.Equal(t.Shape, shape) {
		r.err = wrong(t, "shape %v", shape)
	}
	return t
}

// vector reads a small tensor of numbers.
func (r *reader) vector(name string, n int) (v []float32) {
	if t := r.shaped(name, n); r.err == nil {
		v, r.err = floats(t)
	}
	return v
}

// matrix reads a linear layer in whatever format it is stored.
func (r *reader) matrix(stem string, n, k int) (m Matrix) {
	t := r.tensor(stem + ".weight")
	if r.err != nil {
		return m
	}
	switch t.DType {
	case "F8_E4M3":
		if s := r.tensor(stem + ".scale"); r.err == nil {
			m, r.err = fp8(t, s, n, k)
		}
	case "I8", "U8":
		if s := r.tensor(stem + ".scale"); r.err == nil {
			m, r.err = mxfp4(t, s, n, k)
		}
	default:
		factor := float32(1)
		if r.m.released[stem+".scale"] != "" {
			factor = r.factors(stem+".scale", 1)[0]
		}
		m = r.floats(r.shaped(stem+".weight", n, k), n, k, factor)
	}
	return m
}

func (r *reader) hyper(name string, rows, scales int) (h Hyper) {
	c := &r.m.Config
	h.Fn = r.floats(r.shaped(name+"_fn", rows, c.Streams*c.Hidden), rows, c.Streams*c.Hidden, 1)
	h.Base, h.Scale = r.vector(name+"_base", rows), r.vector(name+"_scale", scales)
	return h
}

// ends reads what lies in front of the layers and after them.
func (r *reader) ends() {
	m, c := r.m, &r.m.Config
	m.Embed = r.matrix("embed", c.Vocab, c.Hidden)
	m.Head = r.matrix("head", c.Vocab, c.Hidden)
	m.Norm = r.vector("norm.weight", c.Hidden)
	m.HeadHC = r.hyper("hc_head", c.Streams, 1)
	own := c.Own()
	if own == len(c.Layers) {
		return
	}
	first, last := "mtp.0.", fmt.Sprintf("mtp.%d.", len(c.Layers)-own-1)
	m.Draft = &Draft{
		Main:      r.matrix(first+"main_proj", c.Hidden, len(c.DraftTargets)*c.Hidden),
		MainNorm:  r.vector(first+"main_norm.weight", c.Hidden),
		HeadHC:    r.hyper(last+"hc_head", c.Streams, 1),
		Norm:      r.vector(last+"norm.weight", c.Hidden),
		MarkovIn:  r.matrix(last+"markov_head.markov_w1", c.Vocab, c.MarkovRank),
		MarkovOut: r.matrix(last+"markov_head.markov_w2", c.Vocab, c.MarkovRank),
	}
}

func (r *reader) layer(i int) {
	l, c, at := &r.m.Layers[i], &r.m.Config, fmt.Sprintf("layers.%d.", i)
	if own := c.Own(); i >= own {
		at = fmt.Sprintf("mtp.%d.", i-own)
	}
	rows := (2 + c.Streams) * c.Streams
	l.AttnHC, l.FFNHC = r.hyper(at+"hc_attn", rows, 3), r.hyper(at+"hc_ffn", rows, 3)
	l.AttnNorm, l.FFNNorm = r.vector(at+"attn_norm.weight", c.Hidden), r.vector(at+"ffn_norm.weight", c.Hidden)
	at += "ffn."
	l.Gate = r.matrix(at+"gate", c.Experts, c.Hidden)
	if c.Hash[i] {
		l.Table = r.table(at + "gate.tid2eid")
	} else {
		l.Bias = r.vector(at+"gate.bias", c.Experts)
	}
	l.Shared = r.expert(at + "shared_experts")
	if r.m.released[at+"experts.gate_up_proj"] != "" {
		l.Experts = r.fused(at + "experts")
		return
	}
	if r.m.inGGUF(at) {
		w1, w3 := r.stacked(at+"experts.w1", c.Width, c.Hidden), r.stacked(at+"experts.w3", c.Width, c.Hidden)
		for e, w2 := range r.stacked(at+"experts.w2", c.Hidden, c.Width) {
			l.Experts = append(l.Experts, Expert{w1[e], w3[e], w2})
		}
		return
	}
	for e := 0; e < c.Experts && r.err == nil; e++ {
		l.Experts = append(l.Experts, r.expert(fmt.Sprintf("%sexperts.%d", at, e)))
	}
}

func (r *reader) expert(stem string) Expert {
	d, f := r.m.Config.Hidden, r.m.Config.Width
	return Expert{W1: r.matrix(stem+".w1", f, d), W3: r.matrix(stem+".w3", f, d), W2: r.matrix(stem+".w2", d, f)}
}

// fused reads the experts of a layer from two tensors: gate_up_proj [E, 2F, D] holds the rows of
// w1, then those of w3; down_proj is [E, D, F].
func (r *reader) fused(stem string) []Expert {
	c := &r.m.Config
	d, f := c.Hidden, c.Width
	up, down := r.shaped(stem+".gate_up_proj", c.Experts, 2*f, d), r.shaped(stem+".down_proj", c.Experts, d, f)
	part := func(t model.Tensor, at, n, k int) (m Matrix) {
		if r.err != nil {
			return m
		}
		if m, r.err = plain(t, n, k); r.err == nil {
			size := map[Format]int{BF16: 2, F32: 4}[m.Format] * n * k
			m.Data = t.Data[at*size:][:size]
		}
		return m
	}
	var all []Expert
	for e := 0; e < c.Experts && r.err == nil; e++ {
		all = append(all, Expert{part(up, 2*e, f, d), part(up, 2*e+1, f, d), part(down, e, d, f)})
	}
	return all
}

// table reads which experts a token id chooses.
func (r *reader) table(name string) []int32 {
	c := &r.m.Config
	t := r.shaped(name, c.Vocab, c.PerToken)
	if r.err == nil && t.DType != "I64" && t.DType != "I32" {
		r.err = wrong(t, "I64 or I32")
	}
	if r.err != nil {
		return nil
	}
	table := make([]int32, c.Vocab*c.PerToken)
	for i := range table {
		e := int64(0)
		if t.DType == "I64" {
			e = int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
		} else {
			e = int64(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		}
		if e < 0 || e >= int64(c.Experts) {
			r.err = &model.CheckpointError{File: t.File, Tensor: name,
				Got: fmt.Sprintf("%d at %d", e, i), Want: fmt.Sprintf("0 to %d", c.Experts-1)}
			return nil
		}
		table[i] = int32(e)
	}
	return table
}
