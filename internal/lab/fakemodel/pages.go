package fakemodel

import (
	"cmp"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

// VLLMPages returns the slots of vLLM's pages, by the names of V4's pools: a page of entries is for
// 256 tokens.
//
// Source: block sizes of vLLM vllm/models/deepseek_v4/{attention,compressor}.py and
// vllm/v1/attention/backends/mla/sparse_swa.py.
func VLLMPages() map[string]int {
	return map[string]int{"window": 64, "c4a": 64, "c4a.state": 4, "c128a": 2, "c128a.state": 8}
}

// VLLMPagesV41 returns those of DeepSeek-V4.1: a page of entries is for block tokens, vLLM's
// block_size, a multiple of 64 or 128 by its device. Pages of rows and entries have vLLM's bytes;
// those of states and of index keys are padded otherwise.
//
// Source: vllm/models/deepseek_v41/{attention,compressor}.py.
func VLLMPagesV41(block int) map[string]int {
	return map[string]int{"window": 32, "draft": 32, "ratio1": block, "ratio2": block / 2, "ratio2.state": 8}
}

// Paged returns the configuration with other slots of a page, by the names of pools.
func Paged(c model.Config, pages map[string]int) model.Config {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Pools = slices.Clone(l.Pools)
		for k := range l.Pools {
			p := &l.Pools[k]
			p.Page = cmp.Or(pages[p.Name], p.Page)
		}
	}
	return c
}
