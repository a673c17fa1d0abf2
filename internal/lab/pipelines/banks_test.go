package pipelines

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBankClocks(t *testing.T) {
	lanes := func(step int) (a []int) {
		for l := range 32 {
			a = append(a, l*step)
		}
		return a
	}
	for _, c := range []struct {
		use                        use
		step, bytes, clocks, least int
	}{
		{load, 4, 4, 1, 1}, {store, 2, 2, 1, 1}, {load, 0, 4, 1, 1}, {count, 0, 4, 32, 1}, {count, 4, 4, 1, 1}, {load, 8, 4, 2, 1},
		{load, 128, 4, 32, 1}, {load, 8, 8, 2, 2}, {load, 16, 8, 4, 2}, {store, 16, 16, 4, 4}, {load, 128, 16, 32, 4}, {load, -4, 4, 1,
			1},
	} {
		clocks, least := bankClocks(c.use, lanes(c.step), c.bytes)
		assert.Equal(t, [2]int{c.clocks, c.least}, [2]int{clocks, least}, "every %d bytes, %d each", c.step, c.bytes)
	}
}

// Rows of fragments have to begin at multiples of 16 bytes, as Vulkan demands of loads of matrices
// (VUID-RuntimeSpirv-OpCooperativeMatrixLoadKHR-08986). Loads of 8 bytes then always leave half of
// the banks idle, unless the halves of 16 bytes lie exchanged in every second eight rows.
func TestNoPitchIsBetter(t *testing.T) {
	for pitch := 1; pitch <= 128; pitch++ {
		plain, exchanged := fragments("", nil, pitch, 2, 1), fragments("", map[string]int{"ROWS": 1}, pitch, 2, 1)
		assert.GreaterOrEqual(t, plain.access(32).Conflicts, 2., "%d quads", pitch)
		if pitch%2 == 1 {
			assert.Equal(t, 1., exchanged.access(32).Conflicts, "%d quads, exchanged", pitch)
		}
	}
}

// mirror is a kernel with some constants, its conflicts by access, and the lines of its sources
// that patterns says again.
type mirror struct {
	kernel    string
	constants []uint32
	conflicts map[string]float64
	sources   []string
}

// TestPatternsMirrorShaders holds what patterns says of kernels against their sources.
func TestPatternsMirrorShaders(t *testing.T) {
	attention := []string{"lib/cm_mla.glsl", "const uint KV_PITCH = 65u;", "const uint P_PITCH = TILE / 8u + 1u;",
		"const uint S_PITCH = ROWS != 0u && TILE == 16u ? 4u : TILE / 4u + 1u;", "const uint OUT_PITCH = OUT_PARTS == 1u ? 130u : 65u;",
		"const uint OUT_PARTS = CM_M * 2u <= KV_ROWS ? 1u : 2u;", "const uint QUADS = TILE / 4u;",
		"const uint first_ = h % CM_M * OUT_PITCH, word_ = CM_POSITION(c) % (64u / OUT_PARTS), turn_ = word_ % (CM_N / 2u);",
		"kv_s[first_ + (word_ - turn_) * 2u + i_ * CM_N / 4u + turn_ / 2u]",
		"CM_LOAD_ROWS(rows, kv_s, buf * TILE + j * CM_N, CM_VECTORS(cm_dims * QK_STEPS + k, CM_K, 8u), KV_PITCH,",
		"* CM_M) * S_PITCH + CM_VECTORS(j, CM_N, 4u), S_PITCH,", "half_ = lane % 2u ^ part, other = half_ ^ 1u;",
		"(row0 + part * count) * KV_PITCH + quad + lane % 16u / 2u;", "CM_VALUES(v, e, at + e * KV_PITCH, (e < 8u ? half_ : other))",
		"CM_LOAD_ROWS(p, p_s, i * CM_M, k * CM_K / 8u, P_PITCH,", "head = unit / QUADS, quad = unit % QUADS;",
		"s += score_s[(k * HG + head) * S_PITCH + quad];", "const uint pair = (quad % 2u ^ cm_half(head)) * 2u;",
		"p_s[head * P_PITCH + quad / 2u][pair] = w.x;",
		"lib/cm_mla_tiles.glsl", "coopMatStore(acc_f[x][j], kv_s, (cm_sub * OUT_TILES + j) * CM_N / 4u - first, OUT_PITCH,",
		"at += THREADS) {", "r = at / 64u, c = at % 64u,", "cm_row = cm_tid / ROW_PARTS;", "cm_part = cm_tid % ROW_PARTS;",
		"if (ROWS != 0u && ROW_PARTS >= 8u && TILE % 16u == 0u) {",
		"const uint eight = cm_tid / 16u, row = eight / (ROW_PARTS / 8u);",
		"cm_part = cm_tid % 8u + eight % (ROW_PARTS / 8u) * 8u;",
		"cm_row = (row / 8u * 16u + row % 8u) ^ (cm_tid / 8u % 2u * 12u);",
		"lib/cm_rows.glsl", "return ROWS == 0u ? 0u : row / 8u % 2u;",
		"first_ = cm_half(row) * 2u, second_ = (cm_half(row) ^ 1u) * 2u;",
		"first_ = (row0) * (pitch) + (quad) + (lane) % 16u * (pitch);", "CM_PUT8(m, 0u, array, first_ + (lane) / 16u, half_)"}
	rows := []string{"lib/cm_lanes_row.glsl", "CM_KEEP_ROW(kv_s, to + i * ROW_PARTS + cm_part, at,",
		"uint x = to + 56u + i * ROW_PARTS / 2u + pair;",
		"pair = cm_part / 2u, half_ = CM_HALF(cm_part % 2u, at) * 2u;", "lib/cm_record_row.glsl",
		"to = at * KV_PITCH + CM_TURN * cm_part;", "unit = to + i / CM_TURN * CM_TURN * ROW_PARTS + i % CM_TURN;",
		"to + i * 4u * ROW_PARTS + 2u * ROW_PARTS, at, s.yy)"}
	scores := []string{"idx_logits_cm.comp", "const uint SUM_PITCH = CM_M / 4u + 1u;", "row0_ = sub * OWN_ROWS + lane / ROW_PARTS;",
		"part_ = lane % ROW_PARTS;", "return row0_ + i * (SUBGROUP / ROW_PARTS);",
		"coopMatStore(sum, sum_s, sub * CM_N * SUM_PITCH, SUM_PITCH,",
		"sum_s[(sub * CM_N + key) * SUM_PITCH + m];", "key = lane; mine && key < CM_N;",
		"LOAD_KEYS(keys, row_s, row0, k * CM_K / QUAD, ROW_PITCH,", "if (ROWS != 0u) {", "key_sum_ += sum[e];",
		"HG + i * CM_M) / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);", "lib/cm_index_row.glsl", "const uint ROW_PITCH = 9u;",
		"const uint ROW_PITCH = 17u;", "row * ROW_PITCH + part, row * ROW_PITCH + ROW_PARTS + part, exchange);"}
	product := []string{"lib/linear_tiles.glsl", "const uint PITCH = UNITS + 1u;", "const uint OUT_PITCH = WN / 4u + 1u;",
		"UNITS == 4u && lines >= 8u ? (i & ~7u) | (i & 1u) << 2 | (i >> 1) & 3u : i;",
		"i ^= ((i / last ^ i / 8u) & 1u) * (last ^ 8u);", "const uint last = 8u * lines / THREADS;",
		"coopMatStore(acc[i][j], tile_s, mine + j * CM_N / 4u, OUT_PITCH,",
		"m = at / (WN / 4u), q = at % (WN / 4u),", "tile_s[mine + m * OUT_PITCH + q]", "proj_linear_cm.comp",
		"const uint W_FAIR = BN * BK / THREADS < BK ? BN * BK / THREADS : BK;",
		"w_at = (BM + w_line_) * PITCH + w_unit_ * (W_VEC / 8u);",
		"tile_s, x_at + i * LINES * PITCH,", "tile_s, w_at + i * W_LINES * PITCH + j,",
		"CM_LOAD_ROWS(a[i], tile_s, m0 + i * CM_M, k * CM_K / 8u, PITCH,",
		"lib/linear_format.glsl", "FORMAT == WEIGHT_BF16 ? 8u : FORMAT == WEIGHT_NVFP4 ? 32u : 16u;", "WEIGHT_BF16 = 1u",
		"WEIGHT_NVFP4 = 4u", "WEIGHT_FP8_UE8M0_32 = 6u;"}
	codes := []string{"proj_linear_codes.comp", "const uint CODE_UNITS = BK / 16u;", "const uint CODE_LINES = THREADS / CODE_UNITS;",
		"code_line_ = spread_rows(tid / CODE_UNITS, CODE_LINES);", "CM_KEEP_ROW(tile_s, row * PITCH + code_unit_, like, q)",
		"const uint SCALES_AT = (BM + BN) * PITCH;", "const uint SCALES = BM * SUMS;", "tile_s[SCALES_AT + at / 4u][at % 4u] =",
		"tile_s, m0 + i * CM_M, (s * SUMMED + k * CM_K) / QUAD, PITCH,", "SCALES_AT + (s * BM + m0 + i * CM_M) / 4u, 0u,",
		"lib/linear_tiles.glsl", "const uint QUAD = 16u;", "const uint UNITS = BK / QUAD;",
		"coopMatStore(acc[i][j], tile_s, mine + j * CM_N / 4u, OUT_PITCH, OUT_LAYOUT);"}
	checkMirrors(t, []mirror{
		{"attn_decode_cm", []uint32{64, 64, 32, 32, 256, 32, 16, 16, 16, 4, 1}, map[string]float64{"kv_s, fragments of K": 1,
			"kv_s, V loaded":      1,
			"p_s, fragments of P": 1, "score_s, scores stored": 2, "score_s, scores read": 2, "p_s, weights stored": 2,
			"kv_s, output stored": 2,
			"kv_s, output read":   2, "kv_s, codes of rows stored": 1, "kv_s, bf16 of rows stored": 1}, append(attention, rows...)},
		{"attn_decode_cmb", []uint32{64, 64, 16, 32, 256, 32, 16, 16, 16, 8, 0, 1, 2}, map[string]float64{"kv_s, fragments of K": 2,
			"kv_s, V loaded": 1, "p_s, fragments of P": 2, "score_s, scores stored": 2, "score_s, scores read": 2,
			"p_s, weights stored": 2,
			"kv_s, output stored": 2, "kv_s, output read": 2, "kv_s, rows stored": 2}, rows},
		{"attn_decode_cmb", []uint32{64, 64, 64, 16, 256, 32, 16, 16, 16, 2, 1, 1, 2}, map[string]float64{"kv_s, fragments of K": 1,
			"kv_s, V loaded": 1, "p_s, fragments of P": 1, "score_s, scores stored": 1, "score_s, scores read": 2,
			"p_s, weights stored": 2,
			"kv_s, output stored": 2, "kv_s, output read": 2, "kv_s, rows stored": 1},
			[]string{"attn_decode_cm.comp", "#define CM_TURN (ROWS == 0u ? 2u : 1u)", "#define CM_NEXT (ROWS == 0u ? 1u : ROW_PARTS)"}},
		{"attn_prefill_cm", []uint32{32, 16, 256, 32, 16, 16, 16, 4, 1, 1}, map[string]float64{"kv_s, fragments of K": 1,
			"kv_s, V loaded":      1,
			"p_s, fragments of P": 1, "score_s, scores stored": 1, "score_s, scores read": 2, "p_s, weights stored": 2,
			"kv_s, output stored": 2,
			"kv_s, output read":   2, "kv_s, rows stored": 1}, []string{"attn_prefill_cm.comp", "word = i * ROW_PARTS + cm_part;",
			"at * KV_PITCH + word,"}},
		{"idx_logits_cm", []uint32{64, 1, 256, 32, 16, 16, 16, 32, 2, 4, 64, 0, 0, 0, 1}, map[string]float64{"row_s, keys stored": 1,
			"row_s, fragments of keys": 1, "weight_s, read": 1}, scores},
		{"idx_logits_cm", []uint32{64, 1, 256, 32, 16, 16, 16, 32, 2, 4, 64, 0, 1, 0, 0}, map[string]float64{"row_s, keys stored": 1,
			"row_s, fragments of keys": 2, "sum_s, sums stored": 2, "sum_s, sums read": 2}, nil},
		{"idx_logits_codes_cm", []uint32{64, 1, 256, 32, 16, 16, 16, 32, 2, 4, 64, 0, 1, 0, 1}, map[string]float64{"row_s, keys stored": 1,
			"row_s, fragments of keys": 1}, nil},
		{"idx_logits_codes_cm", []uint32{64, 1, 256, 32, 16, 16, 16, 32, 2, 4, 64, 0, 1, 0, 0}, map[string]float64{"row_s, keys stored": 1,
			"row_s, fragments of keys": 2, "sum_s, sums stored": 1, "sum_s, sums read": 2}, nil},
		{"proj_linear_cm", []uint32{3, 0, 128, 32, 16, 16, 16, 128, 128, 32, 64, 64, 1}, map[string]float64{"tile_s, fragments": 1,
			"tile_s, sums stored": 2, "tile_s, sums read": 2, "tile_s, x stored": 1, "tile_s, weights stored": 1}, product},
		{"proj_linear_cm", []uint32{1, 0, 128, 32, 16, 16, 16, 128, 128, 32, 64, 64, 0}, map[string]float64{"tile_s, fragments": 2,
			"tile_s, sums stored": 2, "tile_s, sums read": 2, "tile_s, x stored": 1, "tile_s, weights stored": 1}, nil},
		{"proj_linear_codes_cm", []uint32{3, 1, 256, 32, 16, 16, 16, 128, 128, 128, 32, 64, 1}, map[string]float64{"tile_s, fragments": 1,
			"tile_s, sums stored": 1, "tile_s, sums read": 2, "tile_s, codes stored": 1, "tile_s, scales stored": 1,
			"tile_s, scales read": 1}, codes},
		{"proj_linear_tokens1to8_cm", []uint32{3, 0, 2, 4, 32}, map[string]float64{"sum_s, sums stored": 1, "sum_s, sums read": 4,
			"pair_s, pairs stored": 1}, []string{"proj_linear_tokens1to8.comp", "const uint PITCH = 129u;",
			"sum_s[(t * ROWS + r) * PITCH + tid]",
			"v = pair % (SUMS / 2u) * 2u;", "sum_s[(v + 1u) * PITCH + team * LANES + l]", "pair_s[tid] = sum;",
			"const uint PARTS = 128u / PAIRS;"}},
		{"idx_topk", []uint32{1024, 16, 0, 11, 64}, map[string]float64{"pool_s, entries counted": 3.5, "pool_s, bins summed": 1,
			"pool_s, bins cleared": 1, "pool_s, cells stored": 1, "pool_s, cells read": 1, "pool_s, rows of cells read": 2,
			"pool_s, rows of cells stored": 1, "sum_s, read": 1}, []string{"idx_topk.comp", "const uint STRIDE = 36u;",
			"atomicAdd(pool_s[set + d], 1u);",
			"pool_s[set + g * 8u + ((j + g / 4u) & 7u)];", "pool_s[((lane >> 5) * n + j) * STRIDE + (lane & 31u)] = count;",
			"pool_s[lane * STRIDE + i + m] = sum;", "const uint other = (g & ~15u) + i;"}},
		{"idx_topk_lanes", []uint32{1024, 9216, 11, 2048, 64, 32}, map[string]float64{"key_s, keys stored": 1, "key_s, keys read": 2,
			"pool_s, entries counted": 3.5, "pool_s, bins read": 2, "pool_s, bins cleared": 2}, []string{"idx_topk_lanes.comp",
			"const uint c = me * cells + j;", "key_s[c] = raw[j];", "atomicAdd(pool_s[d], 1u);", "first = BINS - OWN * (me + 1u);",
			"n[i] = pool_s[first + i];"}},
		{"kv_compress_save", []uint32{512, 64, 4, 4, 1, 512, 0, 0, 1, 8}, map[string]float64{"part, channels stored": 1,
			"part, channels read": 2,
			"square_of, stored":   1, "square_of, read": 4, "amax_of, read": 4}, []string{"kv_compress.comp",
			"part[self / 4u][self % 4u] = v.x;",
			"return part[lane];", "sum4(square_of[2u * self] + square_of[2u * self + 1u]);",
			"amax_of_lanes((self - 32u) * 16u, 16u);"}},
		{"kv_compress_save", []uint32{512, 2, 8, 128, 0, 512, 0, 0, 1, 8}, map[string]float64{"part, sums stored": 1,
			"part, sums read":   2,
			"square_of, stored": 1, "square_of, read": 4, "amax_of, read": 4}, []string{"kv_compress.comp",
			"uint at = self % HALF;",
			"part[2u * HALF + at] = x.sum;", "uint at = (self + half_size) % HALF;"}},
	})
}

func checkMirrors(t *testing.T, list []mirror) {
	for _, c := range list {
		k, got := Chosen{Kernel: c.kernel, Constants: c.constants}, map[string]float64{}
		k.Listing.gfx12 = k.codes() // which no other has
		list := k.accesses()
		for _, a := range list {
			require.Greater(t, a.Clocks, 0., "%s: %s", c.kernel, a.Name)
			got[a.Name] = a.Conflicts
		}
		assert.InDeltaMapValues(t, c.conflicts, got, 0.1, "%s%v", c.kernel, c.constants)
		assert.Len(t, list, len(got), "%s: names", c.kernel)
		eight, other, all := Conflicts(list)
		assert.True(t, all >= min(max(eight, 1), max(other, 1)) && all <= max(eight, other), "%s: %v of %v and %v", c.kernel, all,
			eight, other)
		text := ""
		for _, s := range c.sources {
			if ext := filepath.Ext(s); ext == ".glsl" || ext == ".comp" {
				data, err := os.ReadFile(filepath.Join("../../../shaders", s))
				require.NoError(t, err)
				text = string(data)
			} else {
				assert.Contains(t, text, s, "%s: its addresses in accesses.go are those of another line", c.kernel)
			}
		}
	}
}
