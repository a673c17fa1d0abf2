// Package pipelines builds the kernels of every operation as the models need them, and
// reports what a driver's compiler made of them. With RADV over a GPU that is not there
// it shows registers, shared memory and occupancy on AMD hardware.
package pipelines

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Build is Make, and compiles the kernels, as many at a time as there are processors.
// progress, unless nil, is called with the kernel that is next, by one goroutine at a time.
//
// Errors: those of Make and of vk.Kernel.Ready; the context's.
func Build(ctx context.Context, dev *vk.Device, progress func(kernel string)) error {
	if err := Make(dev, nil); err != nil {
		return err
	}
	return compile(ctx, dev.Kernels(), progress)
}

// Make makes all operations in all variants that the device can run, with the sizes that
// V4-Flash and V4-Pro have. refused, unless nil, is called with each variant that the device
// lacks something for.
//
// Errors: the first of the operations' constructors, but for those that say that.
func Make(dev *vk.Device, refused func(op, variant string, err error)) error {
	b := &builder{dev: dev, refused: refused}
	b.caches()
	for _, c := range []model.Config{model.FlashConfig(), model.ProConfig()} {
		b.indexer(c)
		b.attention(c)
		b.projections(c)
	}
	b.v41(model.FlashV41Config())
	return b.err
}

func compile(ctx context.Context, kernels []*vk.Kernel, progress func(kernel string)) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(runtime.GOMAXPROCS(0))
	var mu sync.Mutex
	for _, k := range kernels {
		tasks.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if progress != nil {
				mu.Lock()
				progress(k.Name())
				mu.Unlock()
			}
			if err := k.Ready(); err != nil {
				return fmt.Errorf("pipelines: %w", err)
			}
			return nil
		})
	}
	return tasks.Wait()
}

type builder struct {
	dev     *vk.Device
	refused func(op, variant string, err error)
	err     error // the first
}

// each makes an operation in every variant of a ladder, unless something failed before.
func (b *builder) each(op string, ladder []tuning.Variant, build func(variant string) error) {
	for _, v := range ladder {
		if b.err != nil {
			return
		}
		err := build(v.Name)
		var arg *vk.ArgumentError // a variant that binds more than a descriptor of the device can hold
		switch {
		case err == nil:
		case !errors.Is(err, vk.ErrMissingFeature) && !(errors.As(err, &arg) && arg.Arg == "Variant"):
			b.err = fmt.Errorf("pipelines: %s, variant %s: %w", op, v.Name, err)
		case b.refused != nil:
			b.refused(op, v.Name, err)
		}
	}
}

// Slots of the pages that the models' caches have.
var kvPages = []int{64, 2}

func (b *builder) caches() {
	for _, page := range kvPages {
		b.each("insert", opkit.Builds("kv_insert"), func(v string) error {
			_, err := cache.NewInsert(b.dev, cache.PagesConfig{Page: page, Variant: v})
			return err
		})
		b.each("gather", opkit.Builds("kv_gather"), func(v string) error {
			_, err := cache.NewGather(b.dev, cache.PagesConfig{Page: page, Variant: v})
			return err
		})
		b.each("gather runs", opkit.Builds("kv_gather_runs"), func(v string) error {
			_, err := cache.NewGatherRuns(b.dev, cache.GatherRunsConfig{PagesConfig: cache.PagesConfig{Page: page, Variant: v}})
			return err
		})
		b.each("gather slots", opkit.Builds("kv_gather_slots"), func(v string) error {
			_, err := cache.NewGatherSlots(b.dev, cache.PagesConfig{Page: page, Variant: v})
			return err
		})
	}
	for _, ratio := range []int{1, 4, 128} {
		b.each("slot mapping", opkit.Builds("kv_slot_mapping"), func(v string) error {
			_, err := cache.NewSlotMapping(b.dev, cache.SlotMappingConfig{Page: 64, Ratio: ratio})
			return err
		})
	}
	for _, x := range []cache.CompressConfig{
		{Compression: verify.C4Main, StatePage: 4, Page: 64}, {Compression: verify.C128Main, StatePage: 8, Page: 2},
		{Compression: verify.C4Index, StatePage: 4, Page: 64, Keys: cache.IndexKeyFP8},
		{Compression: verify.C4Index, StatePage: 4, Page: 64, Keys: cache.IndexKeyMXFP4},
	} {
		b.each("compress", opkit.Builds("kv_compress"), func(v string) error {
			c := x
			c.Variant = v
			if _, err := cache.NewCompress(b.dev, c); err != nil {
				return err
			}
			c.Save = true
			_, err := cache.NewCompress(b.dev, c)
			return err
		})
		b.each("save state", opkit.Builds("kv_save_state"), func(v string) error {
			_, err := cache.NewSaveState(b.dev, cache.SaveStateConfig{Compression: x.Compression, Page: x.StatePage, Variant: v})
			return err
		})
	}
	b.each("touch", []tuning.Variant{{Name: opkit.Base}}, func(string) error {
		_, err := cache.NewTouch(b.dev)
		return err
	})
}

var keyFormats = []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4}

func (b *builder) indexer(c model.Config) {
	for _, f := range keyFormats {
		b.each("query quant", opkit.Builds("idx_query_quant"), func(v string) error {
			_, err := indexer.NewQueryQuant(b.dev, indexer.QueryQuantConfig{Format: f, Variant: v})
			return err
		})
		for _, group := range []int{1, 128} {
			cfg := indexer.LogitsConfig{Heads: c.IndexHeads, Format: f, Page: 64, Group: group}
			b.each("logits", opkit.Builds("idx_logits"), func(v string) error {
				cfg := cfg
				cfg.Variant = v
				_, err := indexer.NewLogits(b.dev, cfg)
				if err != nil {
					return err
				}
				if _, err = indexer.NewSelect(b.dev, indexer.SelectConfig{K: c.TopK, Logits: cfg}); err != nil || group > 1 {
					return err
				}
				cfg.Raw = true
				_, err = indexer.NewSelect(b.dev, indexer.SelectConfig{K: c.TopK, Logits: cfg})
				return err
			})
		}
	}
	b.each("top-k", opkit.Builds("idx_topk"), func(v string) error {
		_, err := indexer.NewTopK(b.dev, indexer.TopKConfig{K: c.TopK, Variant: v})
		return err
	})
	b.each("visible", opkit.Builds("idx_visible"), func(v string) error {
		_, err := indexer.NewVisible(b.dev, indexer.VisibleConfig{Ratio: 4})
		return err
	})
}

func (b *builder) attention(c model.Config) {
	b.each("indices", opkit.Builds("attn_window_indices"), func(v string) error {
		_, err1 := attention.NewWindowIndices(b.dev, attention.WindowIndicesConfig{Page: 64})
		_, err2 := attention.NewC128Indices(b.dev, attention.C128IndicesConfig{Page: 2})
		_, err3 := attention.NewGlobalTopK(b.dev, attention.GlobalTopKConfig{Page: 64})
		_, err4 := attention.NewCombineIndices(b.dev)
		return errors.Join(err1, err2, err3, err4)
	})
	for _, page := range append([]int{0}, kvPages...) {
		b.each("decode", opkit.Decodes(), func(v string) error {
			_, err := attention.NewDecoder(b.dev, attention.DecoderConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: page, Variant: v})
			return err
		})
	}
	b.each("prefill", opkit.Builds("attn_prefill"), func(v string) error {
		_, err1 := attention.NewPrefill(b.dev, attention.PrefillConfig{Heads: c.Heads, Variant: v})
		_, err2 := attention.NewPrefill(b.dev, attention.PrefillConfig{Heads: c.Heads, Variant: v, Norm: true})
		return errors.Join(err1, err2)
	})
}

// v41 asks for what only DeepSeek-V4.1's layers launch. Its candidate blocks are indexer.MaxK,
// which needs 32 KiB of shared memory.
func (b *builder) v41(c model.Config) {
	if b.dev.Caps().SharedMemory < 32<<10 {
		return
	}
	for _, x := range []cache.CompressConfig{
		{Compression: verify.C2Main, StatePage: 4, Page: 64, Record: cache.RecordFP4},
		{Compression: verify.C1Main, Page: 64, Record: cache.RecordFP4, Save: true},
		{Compression: verify.C2Index, Page: 64, Keys: cache.IndexKeyMXFP4, Save: true},
	} {
		b.each("compress latents", opkit.Builds("kv_compress"), func(v string) error {
			x.Variant = v
			_, err := cache.NewCompress(b.dev, x)
			return err
		})
	}
	b.each("scores within blocks", opkit.Builds("idx_logits"), func(v string) error {
		_, err := indexer.NewLogits(b.dev, indexer.LogitsConfig{
			Heads: c.IndexHeads, Format: cache.IndexKeyMXFP4, Page: 64, Blocks: c.CandidateBlocks,
			Block: c.CandidateBlock, Variant: v})
		return err
	})
	b.each("candidates", opkit.Builds("idx_topk"), func(v string) error {
		_, err := indexer.NewCandidates(b.dev, indexer.CandidatesConfig{K: c.CandidateBlocks, Block: c.CandidateBlock, Variant: v})
		return err
	})
	b.each("candidate entries", opkit.Builds("idx_candidate_entries"), func(v string) error {
		_, err := indexer.NewCandidateEntries(b.dev, indexer.CandidateEntriesConfig{Block: c.CandidateBlock, SlotPage: 64})
		return err
	})
	b.each("decode records", opkit.Decodes(), func(v string) error {
		_, err := attention.NewDecoder(b.dev, attention.DecoderConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: 64,
			WindowRecord: cache.RecordFP8, CompressedRecord: cache.RecordFP4, Variant: v})
		return err
	})
	oA := projection.LinearConfig{N: c.ORank, K: c.HeadsPerGroup() * 512, Groups: c.Groups, Out: tensor.BF16,
		Weights: projection.FormatFP8x32}
	oB := projection.LinearConfig{N: c.Hidden, K: c.Groups * c.ORank, Out: tensor.BF16, Weights: oA.Weights}
	b.chain(oA, oB)
	b.linear(oA)
	b.linear(oB)
}

func (b *builder) projections(c model.Config) {
	b.each("q and kv norms", opkit.Builds("proj_qkv_norm"), func(v string) error {
		return b.sizes(func(size int) error {
			_, err := projection.NewQKVNorm(b.dev, projection.QKVNormConfig{Rank: c.QRank, Variant: v, Subgroup: size})
			return err
		})
	})
	b.each("q insert", opkit.Builds("proj_q_insert"), func(v string) error {
		return b.sizes(func(size int) error {
			var errs []error
			for _, norm := range []tensor.DType{0, tensor.F32} {
				_, err := projection.NewQInsert(b.dev, projection.QInsertConfig{Page: 64, Variant: v, KVNorm: norm, Subgroup: size})
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
	})
	b.each("inverse rope", opkit.Builds("proj_inverse_rope"), func(v string) error {
		_, err := projection.NewInverseRope(b.dev, projection.InverseRopeConfig{Variant: v})
		return err
	})
	for _, s := range []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked} {
		b.each("inverse rope quant", opkit.Builds("proj_inverse_rope_quant"), func(v string) error {
			return b.sizes(func(size int) error {
				_, err := projection.NewInverseRopeQuant(b.dev, projection.InverseRopeQuantConfig{
					Groups: c.Groups, Heads: c.HeadsPerGroup(), Scales: s, Variant: v, Subgroup: size})
				return err
			})
		})
	}
	for _, x := range []projection.ActivationFormat{projection.ActivationFP8, projection.ActivationFP8Packed, projection.ActivationNVFP4} {
		b.each("quantise", opkit.Builds("proj_quantise"), func(v string) error {
			_, err := projection.NewQuantise(b.dev, projection.QuantiseConfig{Format: x, K: c.Hidden, Variant: v})
			return err
		})
	}
	wide := c.HeadsPerGroup() * 512
	formats := []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatFP8, projection.FormatFP8Rows}
	for _, w := range formats {
		b.chain(projection.LinearConfig{N: c.ORank, K: wide, Groups: c.Groups, Out: tensor.BF16, Weights: w},
			projection.LinearConfig{N: c.Hidden, K: c.Groups * c.ORank, Out: tensor.BF16, Weights: w})
	}
	for _, l := range []projection.LinearConfig{
		{N: c.QRank + 512, K: c.Hidden, Out: tensor.BF16}, {N: c.Heads * 512, K: c.QRank, Out: tensor.BF16},
		{N: c.ORank, K: wide, Groups: c.Groups, Out: tensor.BF16}, {N: c.Hidden, K: c.Groups * c.ORank, Out: tensor.BF16},
		{N: 2048, K: c.Hidden, Out: tensor.F32}, {N: c.IndexHeads, K: c.Hidden, Out: tensor.BF16},
	} {
		if l.N == c.QRank+512 && l.Out == tensor.BF16 { // with the norm after it
			n := l
			n.Norm, n.NormColumns, n.MaxTokens, n.Weights = tensor.F32, c.QRank, 32, projection.FormatFP8
			b.linear(n)
		}
		for _, w := range []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatFP8,
			projection.FormatNVFP4, projection.FormatFP8Rows} {
			l.Weights, l.Activations = w, projection.ActivationBF16
			b.linear(l)
			if l.Groups > 1 {
				for _, a := range fewBits[w] {
					l.Activations = a
					b.linear(l)
				}
			}
		}
	}
}

// fewBits are the formats of activations that go with weights, bf16 aside.
var fewBits = map[projection.Format][]projection.ActivationFormat{
	projection.FormatFP8F32:  {projection.ActivationFP8, projection.ActivationFP8Packed},
	projection.FormatFP8:     {projection.ActivationFP8, projection.ActivationFP8Packed},
	projection.FormatFP8Rows: {projection.ActivationFP8, projection.ActivationFP8Packed},
	projection.FormatNVFP4:   {projection.ActivationNVFP4},
}

// sizes builds with sizes of subgroups to pass numbers on in: none, and the least that
// there is.
func (b *builder) sizes(build func(size int) error) error {
	return errors.Join(build(-1), build(int(b.dev.Caps().MinSubgroupSize)))
}

func (b *builder) linear(l projection.LinearConfig) {
	b.each(fmt.Sprintf("linear %dx%d %v", l.N, l.K, l.Weights), opkit.Builds("proj_linear"), func(v string) error {
		cfg := l
		cfg.Variant = v
		_, err := projection.NewLinear(b.dev, cfg)
		return err
	})
}

// chain builds two layers as one launch after the attention, where they can be.
func (b *builder) chain(first, second projection.LinearConfig) {
	b.each(fmt.Sprintf("linear chain %v", first.Weights), opkit.Builds("proj_linear"), func(v string) error {
		first, second := first, second // variants are built at the same time
		first.Variant, second.Variant = v, v
		x, err := projection.NewLinear(b.dev, first)
		if err != nil {
			return err
		}
		y, err := projection.NewLinear(b.dev, second)
		if err != nil {
			return err
		}
		if _, err = projection.NewJoinedChain(x, y, projection.LinearChainTokens); errors.Is(err, vk.ErrMissingFeature) {
			return nil
		}
		return err
	})
}

// Hot tells whether a kernel is one of those that a step spends its time in on a device,
// which must not spill: matrix products, scores, and attention, in the variants that are
// picked first where there are cooperative matrices and where there are not.
func Hot(name string, matrices bool) bool {
	stems := map[string][]string{}
	add := func(suffixes []string, list ...string) {
		for _, stem := range list {
			stems[stem] = suffixes
		}
	}
	if matrices {
		add([]string{"_cm", "_cmb"}, "attn_decode", "attn_decode_float8", "attn_decode_lanes", "attn_prefill", "attn_prefill_lanes",
			"proj_linear", "proj_linear_tokens1to8", "proj_linear_tokens1to8_norm", "proj_linear_chain",
			"proj_linear_tokens8to32", "proj_linear_tokens32to64", "proj_linear_codes", "proj_linear_whole")
		add([]string{"_cm"}, "idx_logits", "idx_logits_lanes", "idx_logits_lanes_raw")
	} else {
		add([]string{"", "_da", "_dot"}, "attn_decode", "attn_prefill", "idx_logits", "proj_linear", "proj_linear_tokens8to16")
		add([]string{"", "_da", "_cm"}, "proj_linear_tokens1to8", "proj_linear_tokens1to8_norm") // none multiplies matrices
	}
	for stem, suffixes := range stems {
		if rest, ok := strings.CutPrefix(name, stem); ok && slices.Contains(suffixes, rest) {
			return true
		}
	}
	return false
}

// Unbuilt lists kernels that the device could run and that no operation asked for: the
// measuring loops, the tests' own, and any that were forgotten here.
func Unbuilt(dev *vk.Device) []string {
	built := map[string]bool{}
	for _, k := range dev.Kernels() {
		built[k.Name()] = true
	}
	var left []string
	for _, name := range shaders.Names() {
		if !built[name] && len(dev.Caps().Missing(shaders.Requires(name))) == 0 {
			left = append(left, name)
		}
	}
	return left
}
