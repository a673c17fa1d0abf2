package pipelines

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Choice describes what an operation of a layer launches unless a variant is named.
type Choice struct {
	Op      string   `json:"op"`
	Tokens  int      `json:"tokens"`
	Kernels []Chosen `json:"kernels"` // in the order of their names
	Missing error    `json:"-"`       // of vk.ErrMissingFeature: no variant runs
}

// Chosen is a kernel with what it is specialised for.
type Chosen struct {
	Kernel    string   `json:"kernel"`
	Constants []uint32 `json:"constants"`
	Subgroup  uint32   `json:"subgroup"`

	Row Row `json:"compiled"` // what the compiler says; zero unless it was inspected
}

// choice makes an operation and asks for the kernels of some tokens.
type choice struct {
	op     string
	tokens []int
	ask    func(dev *vk.Device, tokens int) error
}

// Choose lists what the operations of a C4A layer of V4-Flash, the compressor of a C128A layer, and
// what V4.1-Flash has besides launch for some tokens. open opens the device anew, once for each
// choice. inspect, unless nil, is called with each kernel while its device is open.
//
// Errors: open's, those of the operations, but for vk.ErrMissingFeature, and inspect's.
func Choose(open func() (*vk.Device, error),
	inspect func(dev *vk.Device, k *vk.Kernel, to *Chosen) error) ([]Choice, error) {
	var list []Choice
	for _, x := range append(choicesV4(model.FlashConfig()), choicesV41(model.FlashV41Config())...) {
		for _, tokens := range x.tokens {
			one, err := x.choose(tokens, open, inspect)
			if err != nil {
				return nil, fmt.Errorf("pipelines: %s of %d tokens: %w", x.op, tokens, err)
			}
			list = append(list, one)
		}
	}
	return list, nil
}

func (x choice) choose(tokens int, open func() (*vk.Device, error),
	inspect func(dev *vk.Device, k *vk.Kernel, to *Chosen) error) (one Choice, err error) {
	one = Choice{Op: x.op, Tokens: tokens}
	dev, err := open()
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if err = x.ask(dev, tokens); errors.Is(err, vk.ErrMissingFeature) {
		one.Missing = err
		return one, nil
	}
	for _, k := range dev.Kernels() {
		if strings.HasPrefix(k.Name(), "num_") { // finds out what the device does
			continue
		}
		got := Chosen{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize()}
		if inspect != nil {
			if err = inspect(dev, k, &got); err != nil {
				return one, err
			}
		}
		one.Kernels = append(one.Kernels, got)
	}
	return one, nil
}

// choicesV4 are those of a C4A layer of DeepSeek-V4, and the compressor of a C128A layer.
func choicesV4(c model.Config) []choice {
	picks := indexer.SelectConfig{Logits: indexer.LogitsConfig{Format: c.Records.Keys()}}
	list := append(attends("", c, 4, 1<<16), selection(c, "selection", requested/4, picks))
	return append(append(list, products(c)...),
		made("compressor c4a", cache.NewCompress, cache.CompressConfig{Compression: verify.C4Main, StatePage: 4, Page: 64, Save: true}),
		made("compressor c128a", cache.NewCompress, cache.CompressConfig{Compression: verify.C128Main, StatePage: 8, Page: 2, Save: true}),
		made("compressor keys", cache.NewCompress, cache.CompressConfig{Compression: verify.C4Index, StatePage: 4, Page: 64,
			Keys: cache.IndexKeyFP8, Save: true}),
		made("q and kv norms", projection.NewQKVNorm, projection.QKVNormConfig{Rank: c.QRank}),
		made("q insert", projection.NewQInsert, projection.QInsertConfig{Page: 64}),
		made("inverse rope", projection.NewInverseRope, projection.InverseRopeConfig{}),
	)
}

// choicesV41 are those of DeepSeek-V4.1's layers that are not DeepSeek-V4's: records of 528 and 288
// bytes, MXFP4 keys, candidates, and entries of one or two tokens.
func choicesV41(c model.Config) []choice {
	window, entries := c.Records.Record(model.StoreWindow), c.Records.Record(model.StoreEntries)
	keys := indexer.LogitsConfig{Format: c.Records.Keys(), Block: c.CandidateBlock}
	within := keys
	within.Blocks = c.CandidateBlocks
	return append(attends("v4.1 ", c, 1, 1<<17),
		selection(c, "v4.1 selection", requested/2, indexer.SelectConfig{Logits: keys}),
		selection(c, "v4.1 selection and candidates", requested, indexer.SelectConfig{Logits: keys, Candidates: c.CandidateBlocks}),
		selection(c, "v4.1 selection of candidates", c.CandidateBlocks*c.CandidateBlock, indexer.SelectConfig{Logits: within}),
		made("v4.1 compressor, two tokens", cache.NewCompress, cache.CompressConfig{Compression: verify.C2Main, StatePage: 4, Page: 64,
			Record: entries, Save: true}),
		made("v4.1 compressor, one token", cache.NewCompress, cache.CompressConfig{Compression: verify.C1Main, Page: 64,
			Record: entries, Save: true}),
		made("v4.1 compressor keys", cache.NewCompress, cache.CompressConfig{Compression: verify.C2Index, Page: 64,
			Keys: keys.Format, Save: true}),
		made("v4.1 q insert", projection.NewQInsert, projection.QInsertConfig{Page: 64, Record: window, RotateOnly: c.PlainQueries}),
	)
}

// made is an operation whose kernels are those that it is made with.
func made[C, O any](op string, make func(*vk.Device, C) (O, error), c C) choice {
	return choice{op, []int{1}, func(dev *vk.Device, _ int) error {
		_, err := make(dev, c)
		return err
	}}
}

// attends are decode steps, and a prompt whose rows may be gathered, of as many entries.
func attends(prefix string, c model.Config, ratio, entries int) []choice {
	window, compressed := c.Records.Record(model.StoreWindow), c.Records.Record(model.StoreEntries)
	pages := func(dev *vk.Device, tokens int) error {
		op, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: 64,
			WindowRecord: window, CompressedRecord: compressed, OnDemand: true})
		if err != nil {
			return err
		}
		return op.Prepare(tokens, c.Window, c.TopK)
	}
	return []choice{{prefix + "decode", []int{1, 32, 128}, pages},
		{prefix + "prefill", []int{4096}, func(dev *vk.Device, tokens int) error {
			if !attention.Gathers(dev, tokens, 1) {
				return pages(dev, tokens)
			}
			op, err := attention.NewGathered(dev, attention.GatheredConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: 64,
				WindowRecord: window, CompressedRecord: compressed,
				Rows: attention.RowConfig{Window: c.Window, Width: c.TopK, Ratio: ratio, Windows: 1 << 16, Entries: entries}})
			if err != nil {
				return err
			}
			return op.Prepare(tokens)
		}}}
}

// product is a linear layer.
func product(op string, tokens []int, c projection.LinearConfig) choice {
	return choice{op, tokens, func(dev *vk.Device, tokens int) error {
		c := c
		c.MaxTokens, c.OnDemand = tokens, true
		op, err := projection.NewLinear(dev, c)
		if err != nil {
			return err
		}
		// Nothing reads the scratch, which has room for all parts.
		return op.Prepare(tokens, tensor.Of(vk.View{Buffer: new(vk.Buffer)}, tensor.F32, 1<<30))
	}}
}

func products(c model.Config) []choice {
	wqB := projection.LinearConfig{N: c.Heads * 512, K: c.QRank, Weights: projection.FormatFP8, Out: tensor.BF16}
	codes, mxfp8 := wqB, wqB
	codes.Activations = projection.ActivationFP8
	mxfp8.Weights, mxfp8.Activations = projection.FormatFP8x32, projection.ActivationMXFP8
	return []choice{
		product("product wq_b", []int{1, 2, 4, 6, 32, 4096}, wqB), product("product wq_b of codes", []int{4096}, codes),
		product("product wq_b of mxfp8", []int{4096}, mxfp8),
		product("product wo_a", []int{1, 32, 4096}, projection.LinearConfig{N: c.ORank, K: c.HeadsPerGroup() * 512, Groups: c.Groups,
			Weights: projection.FormatFP8, Out: tensor.BF16}),
		product("product wkv_gate", []int{1, 32, 4096}, projection.LinearConfig{N: 2048, K: c.Hidden, Weights: projection.FormatBF16,
			Out: tensor.F32}),
	}
}

// requested is the tokens of a request whose entries are scored.
const requested = 131072

// selection scores entries and selects, as a layer does: with queries that the scores quantise,
// where a kernel does.
func selection(c model.Config, op string, entries int, s indexer.SelectConfig) choice {
	s.K, s.SlotPage, s.OnDemand = c.TopK, 64, true
	s.Logits.Heads, s.Logits.Page = c.IndexHeads, 64
	return choice{op, []int{1, 32, 4096}, func(dev *vk.Device, tokens int) error {
		s := s
		s.Logits.Group, s.Logits.Raw, s.Logits.Few = tokens, true, tokens < tuning.Of(dev).Layer.BesideTokens
		made, err := indexer.NewSelect(dev, s)
		if errors.Is(err, vk.ErrMissingFeature) {
			if _, err = indexer.NewQueryQuant(dev, indexer.QueryQuantConfig{Format: s.Logits.Format}); err != nil {
				return err
			}
			s.Logits.Raw = false
			made, err = indexer.NewSelect(dev, s)
		}
		if err != nil {
			return err
		}
		return made.Prepare(tokens, entries, true)
	}}
}
