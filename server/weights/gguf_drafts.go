package weights

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/pipeline/model"
)

// draftNames are the key of dspark_noise_token_id and the first matrix of the Markov head, by
// general.architecture. N is the last layer.
var draftNames = map[string]struct{ noise, markov string }{
	"deepseek4-dspark": {"dspark.noise_token_id", "mtp.N.markov_head.markov_w1.weight"},
	"dflash":           {"tokenizer.ggml.mask_token_id", "markov_w1.weight"},
}

// addDrafts reads from a GGUF file with a draft block what attention does not need. The layers that
// draft are there already.
func (c *Config) addDrafts(path string) error {
	file, err := gguf.Find(path)
	if err != nil {
		return err
	}
	m, err := gguf.Open(file)
	if err != nil {
		return fmt.Errorf("weights: load config: %w", err)
	}
	err = gguf.Guard(func() error {
		r := ggufReader{keys: m.Keys}
		arch, _ := r.value("general.architecture").Text()
		c.fits(m, arch, &r)
		names := draftNames[arch]
		if c.Noise = int32(r.whole(names.noise)); c.Noise < 0 || int(c.Noise) >= c.Vocab {
			r.bad(names.noise, c.Noise, "0 to %d", c.Vocab-1)
		}
		c.MarkovRank = r.rank(m, filepath.Base(file), strings.Replace(names.markov, "N", strconv.Itoa(len(c.Layers)-c.Own()-1), 1))
		return r.err
	})
	c.Hash = slices.Concat(c.Hash, make([]bool, len(c.Layers)-c.Own()))
	return errors.Join(err, m.Close())
}

// fits refuses a draft block whose keys, where it has them, say anything else than the model's.
func (c *Config) fits(m *gguf.Model, arch string, r *ggufReader) {
	normalise := 0.
	if c.Normalise {
		normalise = 1
	}
	var list []gguf.Number
	for _, n := range []gguf.Number{{Key: "vocab_size", Want: float64(c.Vocab)}, {Key: "hyper_connection.count", Want: float64(c.Streams)},
		{Key: "hyper_connection.sinkhorn_iterations", Want: float64(c.SinkhornSteps)},
		{Key: "hyper_connection.epsilon", Want: float64(c.HyperEps)}, {Key: "expert_count", Want: float64(c.Experts)},
		{Key: "expert_used_count", Want: float64(c.PerToken)}, {Key: "expert_shared_count", Want: 1},
		{Key: "expert_feed_forward_length", Want: float64(c.Width)}, {Key: "expert_weights_scale", Want: float64(c.Factor)},
		{Key: "expert_weights_norm", Want: normalise}, {Key: "swiglu_clamp_exp", Want: float64(c.Limit)},
		{Key: "swiglu_clamp_shexp", Want: float64(c.Limit)}} {
		list = append(list, gguf.Number{Key: arch + "." + n.Key, Want: n.Want})
	}
	if c.Scoring == "sqrtsoftplus" {
		list = append(list, gguf.Number{Key: arch + ".expert_gating_func", Want: gatingSqrtSoftplus})
	}
	if key, want, got := m.Differs(list); key != "" {
		r.bad(key, got, "the model's, %v", float32(want))
	}
}

// rank returns the width of a Markov head's first matrix, which a key may say, too.
func (r *ggufReader) rank(m *gguf.Model, file, name string) int {
	head, there := m.Tensor(name)
	want := fmt.Sprintf("a matrix of up to %d columns", maxRank)
	switch {
	case r.err != nil:
	case !there:
		r.err = &model.CheckpointError{File: file, Tensor: name, Got: "absent", Want: want}
	case len(head.Shape) != 2 || head.Row() < 1 || head.Row() > maxRank:
		r.err = &model.CheckpointError{File: head.File, Tensor: name, Got: head.String(), Want: want}
	}
	if r.err != nil {
		return 0
	}
	rank := head.Row()
	if key, _, got := m.Differs([]gguf.Number{{Key: "dspark.markov_rank", Want: float64(rank)}}); key != "" {
		r.bad(key, got, "the columns of %s, %d", name, rank)
	}
	return rank
}
