package verify_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// free are axes along which a tensor may have less in some case, by its name, with the operation's
// in front where others of that name may not: pages and rows that data name, lists of a width of
// their own, and what others follow or have more of than they need.
var free = []string{"Pool 0", "BlockTable 0", "BlockTable 1", "CosSin 0", "StateTable 0", "StateTable 1",
	"StateSlots 0", "Window.Indices 1", "Compressed.Indices 1", "KV 0", "Runs 0", "Tables 0", "Tables 1", "IsValid 0", "Scratch 0", "XScale 2",
	"Window.Table 0", "Window.Table 1", "Compressed.Table 0", "Compressed.Table 1", "dequantize_and_gather_k_cache.Table 1",
	"get_compressed_slot_mapping.Table 1", "fused_indexer_q_rope_quant_fp8.Table 0", "fused_indexer_q_rope_quant_mxfp4.Table 0",
	"fused_inv_rope_fp8_quant.Table 0", "fused_qnorm_rope_kv_insert.Table 0", "inverse_rope.Table 0", "Raw.Table 0",
	"c128a_indices.Indices 1", "candidate_entries.Blocks 1", "candidate_entries.Picks 1", "combine_topk_swa_indices.TopK 0",
	"combine_topk_swa_indices.TopK 1", "decode_window_indices.Lens 0", "decode_window_indices.Slots 0", "decode_window_indices.Slots 1",
	"draft_block_indices.Lens 0", "draft_block_indices.Slots 0", "draft_block_indices.Slots 1", "dequantize_and_gather_k_cache.Out 1",
	"flashmla_sparse_prefill.Indices 1", "fused_inv_rope_fp8_quant.O 1", "inverse_rope.O 1", "fused_qnorm_rope_kv_insert.Q 1",
	"fused_qnorm_rope_kv_insert.Slots 0", "quantize_and_insert_k_cache.K 0", "quantize_and_insert_k_cache.Slots 0",
	"get_compressed_slot_mapping.Slots 0", "indexer_logits_fp8.Out 1", "indexer_logits_mxfp4.Out 1", "indexer_logits_raw_fp8.Out 1",
	"indexer_logits_raw_mxfp4.Out 1", "indexer_topk.Logits 1"}

// optional are tensors that an operation may lack in some case, or whose lack is told of another.
var optional = []string{"c128a_indices.BlockTable", "c128a_indices.SlotMapping", "c128a_indices.Lens", "Arrived", "Latent", "GatherLens",
	"LSE", "MaxLogits", "Sink", "Compressed.Cache.Pool", "flashmla_sparse_prefill.Lens", "fused_qnorm_rope_kv_insert.Q",
	"IsValid", "Scratch", "xpu_sparse_prefill.TopK", "LogitsArgs.Q", "linear_norm.Normed"}

// bounded are operations that are told of the largest tensor when they are made, by beginnings of
// their names.
var bounded = []string{"compressor_", "dequant", "flashmla_sparse_decode", "fused_inv_", "fused_qnorm", "indexer_logits", "indexer_select",
	"indexer_within", "inverse_rope", "per_token", "quantize_", "scaled_"}

// names reports whether a list has what an operation calls so.
func names(list []string, op, what string) bool {
	return slices.ContainsFunc(list, func(x string) bool { return strings.HasSuffix("."+op+"."+what, "."+x) })
}

// TestArguments changes each tensor of the arguments of every operation: to none, to another type,
// to a place beyond its buffer, and by one along each axis that is not free. Each time there is an
// argument error, which names the tensor but for the last, and nothing is recorded. Nor is an
// operation made without a device, of a variant that there is none of, or as base for a tensor that
// no descriptor holds.
func TestArguments(t *testing.T) {
	dev := testkit.Device(t)
	for _, op := range verify.All() {
		if op.Bind == nil {
			continue
		}
		t.Run(op.Name, func(t *testing.T) {
			cases := op.RandomCases(testkit.Seed(t))
			_, err := op.Bind(verify.Build{}, cases[0])
			withoutDevice(t, err)
			if len(op.Variants) > 1 { // some to choose from
				_, err := op.Bind(verify.Build{Dev: dev, Variant: "none such"}, cases[0])
				assert.ErrorIs(t, err, vk.ErrArgument)
			}
			if slices.ContainsFunc(bounded, func(name string) bool { return strings.HasPrefix(op.Name, name) }) {
				_, err := op.Bind(verify.Build{Dev: dev, Variant: opkit.Base, MaxBytes: dev.Caps().MaxStorageBufferRange + 1}, cases[0])
				assert.ErrorIs(t, err, vk.ErrArgument, "base for large tensors")
			}
			for _, c := range cases {
				arguments(t, dev, op, c)
			}
		})
	}
}

func withoutDevice(t *testing.T, err error) {
	t.Helper()
	wrong := new(vk.ArgumentError)
	require.ErrorAs(t, err, &wrong)
	assert.Equal(t, "device", wrong.Arg)
}

// What no operation of this package is made of alone is not made without a device, either.
func TestNothingIsMadeWithoutDevice(t *testing.T) {
	_, err := cache.NewKV(nil, cache.KVConfig{Layout: cache.Layout{Page: 2, Stride: 1728}, Pages: 3})
	withoutDevice(t, err)
	_, err = cache.NewCompress(nil, cache.CompressConfig{Compression: verify.C4Main, Page: 64, StatePage: 8})
	withoutDevice(t, err)
	_, err = cache.NewGatherRuns(nil, cache.GatherRunsConfig{PagesConfig: cache.PagesConfig{Page: 64}})
	withoutDevice(t, err)
}

func arguments(t *testing.T, dev *vk.Device, op verify.Op, c verify.Case) {
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	c.Want = nil
	bound, err := op.Bind(verify.Build{Dev: dev, Variant: op.Variants[len(op.Variants)-1].Name}, c)
	if errors.Is(err, vk.ErrMissingFeature) {
		return
	}
	require.NoError(t, err, c.Name)
	l := bound.Place(r)
	require.NoError(t, r.Err())
	if l.Args == nil {
		t.Logf("%s: no arguments", c.Name)
		return
	}
	record := func() (arg string, ok bool) {
		rec, err := dev.NewRecorder()
		require.NoError(t, err)
		defer rec.Close()
		err = l.Record(rec)
		wrong := new(vk.ArgumentError)
		if !errors.As(err, &wrong) {
			return fmt.Sprint(err), false
		}
		assert.Zero(t, rec.Barriers())
		return wrong.Arg, true
	}
	tensors(reflect.ValueOf(l.Args).Elem(), "", func(path string, at *tensor.Tensor) {
		if k, ok := c.Params["topk"]; ok && k == 0 && path == "TopK" {
			return // no picks
		}
		good := *at
		defer func() { *at = good }()
		of := func(what string, change func(x *tensor.Tensor), named bool) {
			*at = good
			at.Shape = slices.Clone(good.Shape)
			change(at)
			arg, ok := record()
			if assert.True(t, ok, "%s.%s %s: %s", op.Name, path, what, arg) && named {
				last := func(path string) string { return path[strings.LastIndex(path, ".")+1:] }
				assert.Equal(t, last(path), last(arg), "%s.%s %s", op.Name, path, what)
			}
		}
		of("of another type", func(x *tensor.Tensor) {
			if x.DType = tensor.I64; good.DType == tensor.I64 {
				x.DType = tensor.F16
			}
		}, true)
		of("beyond its buffer", func(x *tensor.Tensor) { x.Offset = 1 << 40 }, true)
		if !names(optional, op.Name, path) {
			of("absent", func(x *tensor.Tensor) { *x = tensor.Tensor{} }, true)
		}
		for i := range good.Shape {
			if !names(free, op.Name, fmt.Sprint(path, " ", i)) {
				of(fmt.Sprint("less along ", i), func(x *tensor.Tensor) { x.Shape[i]-- }, false)
			}
		}
	})
}

// tensors calls f for each tensor in a struct that is there, with the names that lead to it.
func tensors(v reflect.Value, path string, f func(path string, x *tensor.Tensor)) {
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		name := strings.Trim(path+"."+v.Type().Field(i).Name, ".")
		switch x := v.Field(i).Addr().Interface().(type) {
		case *tensor.Tensor:
			if !x.IsZero() {
				f(name, x)
			}
		default:
			if v.Field(i).Kind() == reflect.Struct {
				tensors(v.Field(i), name, f)
			}
		}
	}
}
