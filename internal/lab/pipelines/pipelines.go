// Package pipelines builds the kernels of every operation as the models need them, and
// reports what a driver's compiler made of them. With RADV over a GPU that is not there
// it shows registers, shared memory and occupancy on AMD hardware.
package pipelines

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

// all makes an operation by each configuration, in every variant that it has. Variant is a field of
// those that can be made in several.
func all[C, O any](b *builder, op string, ladder []tuning.Variant, make func(*vk.Device, C) (O, error), configs ...C) {
	for _, c := range configs {
		b.each(op, ladder, func(v string) error {
			c := c
			if f := reflect.ValueOf(&c).Elem().FieldByName("Variant"); f.IsValid() {
				f.SetString(v)
			}
			_, err := make(b.dev, c)
			return err
		})
	}
}

// Slots of the pages that the models' caches have.
var kvPages = []int{64, 2}

func (b *builder) caches() {
	for _, page := range kvPages {
		all(b, "insert", opkit.Builds("kv_insert"), cache.NewInsert, cache.PagesConfig{Page: page})
		all(b, "gather", opkit.Builds("kv_gather"), cache.NewGather, cache.PagesConfig{Page: page})
		all(b, "gather runs", opkit.Builds("kv_gather_runs"), cache.NewGatherRuns,
			cache.GatherRunsConfig{PagesConfig: cache.PagesConfig{Page: page}})
		all(b, "gather slots", opkit.Builds("kv_gather_slots"), cache.NewGatherSlots, cache.PagesConfig{Page: page})
	}
	for _, ratio := range []int{1, 4, 128} {
		all(b, "slot mapping", opkit.Builds("kv_slot_mapping"), cache.NewSlotMapping, cache.SlotMappingConfig{Page: 64, Ratio: ratio})
	}
	for _, x := range []cache.CompressConfig{
		{Compression: verify.C4Main, StatePage: 4, Page: 64}, {Compression: verify.C128Main, StatePage: 8, Page: 2},
		{Compression: verify.C4Index, StatePage: 4, Page: 64, Keys: cache.IndexKeyFP8},
		{Compression: verify.C4Index, StatePage: 4, Page: 64, Keys: cache.IndexKeyMXFP4},
	} {
		saving := x
		saving.Save = true
		all(b, "compress", opkit.Builds("kv_compress"), cache.NewCompress, x, saving)
		all(b, "save state", opkit.Builds("kv_save_state"), cache.NewSaveState,
			cache.SaveStateConfig{Compression: x.Compression, Page: x.StatePage})
	}
	b.each("touch", []tuning.Variant{{Name: opkit.Base}}, func(string) error {
		_, err := cache.NewTouch(b.dev)
		return err
	})
}

func (b *builder) indexer(c model.Config) {
	for _, f := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
		all(b, "query quant", opkit.Builds("idx_query_quant"), indexer.NewQueryQuant, indexer.QueryQuantConfig{Format: f})
		for _, group := range []int{1, 128} {
			logits := indexer.LogitsConfig{Heads: c.IndexHeads, Format: f, Page: 64, Group: group}
			all(b, "logits", opkit.Builds("idx_logits"), indexer.NewLogits, logits)
			selects := func(dev *vk.Device, l indexer.LogitsConfig) (*indexer.Select, error) {
				return indexer.NewSelect(dev, indexer.SelectConfig{K: c.TopK, Logits: l})
			}
			all(b, "select", opkit.Builds("idx_logits"), selects, logits)
			if logits.Raw = true; group == 1 {
				all(b, "select", opkit.Builds("idx_logits"), selects, logits)
				logits.Few = true
				all(b, "select", opkit.Builds("idx_logits"), selects, logits)
			}
		}
	}
	all(b, "top-k", opkit.Builds("idx_topk"), indexer.NewTopK, indexer.TopKConfig{K: c.TopK})
	all(b, "visible", opkit.Builds("idx_visible"), indexer.NewVisible, indexer.VisibleConfig{Ratio: 4})
}

func (b *builder) attention(c model.Config) {
	indices := opkit.Builds("attn_window_indices")
	all(b, "window indices", indices, attention.NewWindowIndices, attention.WindowIndicesConfig{Page: 64})
	all(b, "c128 indices", indices, attention.NewC128Indices, attention.C128IndicesConfig{Page: 2})
	all(b, "global top-k", indices, attention.NewGlobalTopK, attention.GlobalTopKConfig{Page: 64})
	b.each("combined indices", indices, func(string) error {
		_, err := attention.NewCombineIndices(b.dev)
		return err
	})
	for _, page := range append([]int{0}, kvPages...) {
		all(b, "decode", opkit.Decodes(), attention.NewDecoder,
			attention.DecoderConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: page})
	}
	all(b, "prefill", opkit.Builds("attn_prefill"), attention.NewPrefill,
		attention.PrefillConfig{Heads: c.Heads}, attention.PrefillConfig{Heads: c.Heads, Norm: true})
}

// v41 asks for what only DeepSeek-V4.1's layers launch. Its candidate blocks are indexer.MaxK,
// which needs 32 KiB of shared memory.
func (b *builder) v41(c model.Config) {
	if b.dev.Caps().SharedMemory < 32<<10 {
		return
	}
	all(b, "compress latents", opkit.Builds("kv_compress"), cache.NewCompress,
		cache.CompressConfig{Compression: verify.C2Main, StatePage: 4, Page: 64, Record: cache.RecordFP4},
		cache.CompressConfig{Compression: verify.C1Main, Page: 64, Record: cache.RecordFP4, Save: true},
		cache.CompressConfig{Compression: verify.C2Index, Page: 64, Keys: cache.IndexKeyMXFP4, Save: true})
	all(b, "scores within blocks", opkit.Builds("idx_logits"), indexer.NewLogits, indexer.LogitsConfig{
		Heads: c.IndexHeads, Format: cache.IndexKeyMXFP4, Page: 64, Blocks: c.CandidateBlocks, Block: c.CandidateBlock})
	all(b, "candidates", opkit.Builds("idx_topk"), indexer.NewCandidates,
		indexer.CandidatesConfig{K: c.CandidateBlocks, Block: c.CandidateBlock})
	all(b, "candidate entries", opkit.Builds("idx_candidate_entries"), indexer.NewCandidateEntries,
		indexer.CandidateEntriesConfig{Block: c.CandidateBlock, SlotPage: 64})
	all(b, "decode records", opkit.Decodes(), attention.NewDecoder, attention.DecoderConfig{Heads: c.Heads, WindowPage: 64,
		CompressedPage: 64, WindowRecord: cache.RecordFP8, CompressedRecord: cache.RecordFP4})
	oA := projection.LinearConfig{N: c.ORank, K: c.HeadsPerGroup() * 512, Groups: c.Groups, Out: tensor.BF16,
		Weights: projection.FormatFP8x32}
	oB := projection.LinearConfig{N: c.Hidden, K: c.Groups * c.ORank, Out: tensor.BF16, Weights: oA.Weights}
	b.chain(oA, oB)
	b.linear(oA)
	b.linear(oB)
}

func (b *builder) projections(c model.Config) {
	// Numbers are passed on in subgroups of no size, or of the least that there is.
	for _, size := range []int{-1, int(b.dev.Caps().MinSubgroupSize)} {
		all(b, "q and kv norms", opkit.Builds("proj_qkv_norm"), projection.NewQKVNorm,
			projection.QKVNormConfig{Rank: c.QRank, Subgroup: size})
		for _, norm := range []tensor.DType{0, tensor.F32} {
			all(b, "q insert", opkit.Builds("proj_q_insert"), projection.NewQInsert,
				projection.QInsertConfig{Page: 64, KVNorm: norm, Subgroup: size})
		}
		for _, s := range []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked} {
			all(b, "inverse rope quant", opkit.Builds("proj_inverse_rope_quant"), projection.NewInverseRopeQuant,
				projection.InverseRopeQuantConfig{Groups: c.Groups, Heads: c.HeadsPerGroup(), Scales: s, Subgroup: size})
		}
	}
	all(b, "inverse rope", opkit.Builds("proj_inverse_rope"), projection.NewInverseRope, projection.InverseRopeConfig{})
	for _, x := range []projection.ActivationFormat{projection.ActivationFP8, projection.ActivationFP8Packed, projection.ActivationNVFP4} {
		all(b, "quantise", opkit.Builds("proj_quantise"), projection.NewQuantise, projection.QuantiseConfig{Format: x, K: c.Hidden})
	}
	wide := c.HeadsPerGroup() * 512
	for _, w := range []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatFP8, projection.FormatFP8Rows} {
		b.chain(projection.LinearConfig{N: c.ORank, K: wide, Groups: c.Groups, Out: tensor.BF16, Weights: w},
			projection.LinearConfig{N: c.Hidden, K: c.Groups * c.ORank, Out: tensor.BF16, Weights: w})
	}
	b.linear(projection.LinearConfig{N: c.QRank + 512, K: c.Hidden, Out: tensor.BF16, Weights: projection.FormatFP8, // with the norm
		Norm: tensor.F32, NormColumns: c.QRank, MaxTokens: 32})
	for _, l := range []projection.LinearConfig{
		{N: c.QRank + 512, K: c.Hidden, Out: tensor.BF16}, {N: c.Heads * 512, K: c.QRank, Out: tensor.BF16},
		{N: c.ORank, K: wide, Groups: c.Groups, Out: tensor.BF16}, {N: c.Hidden, K: c.Groups * c.ORank, Out: tensor.BF16},
		{N: 2048, K: c.Hidden, Out: tensor.F32}, {N: c.IndexHeads, K: c.Hidden, Out: tensor.BF16},
	} {
		for _, w := range []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatFP8,
			projection.FormatNVFP4, projection.FormatFP8Rows} {
			l.Weights, l.Activations = w, projection.ActivationBF16
			b.linear(l)
			if l.Groups > 1 {
				for _, a := range w.Activations() {
					l.Activations = a
					b.linear(l)
				}
			}
		}
	}
}

func (b *builder) linear(l projection.LinearConfig) {
	all(b, fmt.Sprintf("linear %dx%d %v", l.N, l.K, l.Weights), opkit.Builds("proj_linear"), projection.NewLinear, l)
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
		add([]string{"_cm"}, "idx_logits", "idx_logits_lanes", "idx_logits_lanes_raw", "idx_logits_lanes_picks")
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
