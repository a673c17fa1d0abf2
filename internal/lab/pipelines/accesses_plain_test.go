package pipelines

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPlainPatternsMirrorShaders is TestPatternsMirrorShaders for kernels without matrices, such as
// navi21 gets, and for small ones.
func TestPlainPatternsMirrorShaders(t *testing.T) {
	halves := []string{"lib/half_loads.glsl", "#define HALF_FIRST(lane) ((lane) / 8u % 2u)",
		"uvec4(array[at][HALF_FIRST(lane) * 2u], array[at][HALF_FIRST(lane) * 2u + 1u],"}
	attention := []string{"lib/sparse_mla.glsl", "const uint MLA_DOT_HEAD = MLA_PAIRS + 2u;",
		"const uint MLA_DOTS = HG * MLA_DOT_HEAD + 1u;",
		"const uint MLA_P_PITCH = HG / 4u + 1u;", "const uint MLA_SHARES = 256u / TILE;",
		"const uint slot = lane % MLA_HALF, block = lane / MLA_HALF % (MLA_THREADS / MLA_SHARES), second = lane",
		"const uint head = block % MLA_HEAD_BLOCKS * 4u, row = block / MLA_HEAD_BLOCKS * 4u;",
		"const uint unit = slot + second * MLA_HALF + step * MLA_SHARES;", "a[i] = mla_query(head, i, unit);",
		"const uint at = head * 128u + head / 4u + unit * 2u + i * 128u;",
		"q_s[i * 2u + i / 256u] = w.xy;", "q_s[(head + i) * 64u + unit];",
		"b[j] = kv_s[(row + j) * 64u + unit];",
		"const uint at = slot * MLA_DOTS + head * MLA_DOT_HEAD + row / 2u;", "dot_s[at + i * MLA_DOT_HEAD + 1u] += dots[i].zw;",
		"s += dot_s[i * MLA_DOTS + own_head * MLA_DOT_HEAD + pair];", "p_s[pair * MLA_P_PITCH + head / 4u][head % 4u] =",
		"p = p_s[r / 2u * MLA_P_PITCH + first / 4u];", "p_s[(2u * pair * HG + head) / 4u][head % 4u] = p.x;",
		"const uint at = r * 64u + unit / 2u, two = unit % 2u * 2u;",
		"return uvec4(kv_s[at][two], kv_s[at][two + 1u], kv_s[at + 32u][two], kv_s[at + 32u][two + 1u]);",
		"const vec2 x = dot_s[lane * MLA_PAIRS + i];", "kv_s[row * 64u + i * MLA_LANES + column] =",
		"const uint row = lane / MLA_LANES, column = lane % MLA_LANES;"}
	scores := append(halves, "idx_logits.comp", "return HALF_LOAD(k_s, at, lane);",
		"const uint QP = HEADS / 4u, KP = KEYS / 4u, KL = KEYS / 8u;", "q_s[(at / EACH + e) * QP + line / 4u][line % 4u] = v[e];",
		"k_s[(at / EACH + e) * KP + line / 4u][line % 4u] = v[e];", "mine_h = tid / KL, mine_k = tid % KL;",
		"qs = q_s[s * QP + mine_h * FOURS + f];", "if (tid < HEADS * STEP / 8u)",
		"k0 = load_keys(s * KP + mine_k, mine_k), k1 = load_keys(s * KP + KL + mine_k, mine_k);",
		"k_s[mine_h * KP + KL + mine_k] = floatBitsToUint(sum[1]);", "uintBitsToFloat(k_s[i * KP + tid / 4u][tid % 4u]);")
	products := append(halves, "proj_linear.comp", "return HALF_LOAD(w_s, at, lane);",
		"x_s[(at / 2u + e) * XP + line / 4u][line % 4u]", "w_s[(at + e) * WP + line / 4u][line % 4u]",
		"const uint NL = BN / (4u * QUADS);", "mine_t = tid / NL * 2u, mine_n = tid % NL;",
		"const uint u = i * THREADS + tid, k = u / BM * 8u;", "a = x_s[s * XP + mine_t], b = x_s[s * XP + mine_t + 1u];",
		"v[j] = load_weights(s * WP + j * NL + mine_n, mine_n);")
	shared := []string{"proj_linear_tokens8to16.comp", "const uint PITCH = 128u + PARTS;", "const uint PARTS = 128u / PAIRS;",
		"const uint at = u / LANES * 2u * LANES + u % LANES;", "room_s[at + LANES] = floatBitsToUint(b * scale);",
		"at = (t * UNITS + u) * 2u * LANES + gl_LocalInvocationIndex % LANES;",
		"uint place(uint i) { return (i % 2u * (SUMS / 2u) + i / 2u) * PITCH; }", "keep_sum(place(t * ROWS + r) + tid,",
		"sum_at(place(v) + team * LANES + l), sum_at(place(v + 1u) + team * LANES + l)",
		"const uint pair = tid / PARTS, part = tid % PARTS, team = pair / (SUMS / 2u), v = pair % (SUMS / 2u) * 2u;"}
	plain := map[string]float64{"q_s, queries stored": 2, "kv_s, rows stored": 1, "q_s, queries read": 1, "kv_s, keys read": 1,
		"dot_s, sums stored": 1, "dot_s, sums added": 1, "dot_s, sums read": 2, "p_s, weights stored": 1, "p_s, weights read": 1,
		"kv_s, values read": 1, "dot_s, heads joined": 8}
	few := map[string]float64{"room_s, x stored": 1, "room_s, x read": 1, "room_s, sums stored": 1, "room_s, sums read": 1}
	checkMirrors(t, []mirror{
		{"attn_decode_dot", []uint32{64, 64, 16, 16, 256}, plain, attention},
		{"attn_prefill_dot", []uint32{16, 16, 256}, plain, nil},
		{"attn_decode_da", []uint32{64, 64, 16, 16, 256}, map[string]float64{"q_s, queries stored": 1, "kv_s, rows stored": 1,
			"q_s, queries read": 2, "kv_s, keys read": 1, "dot_s, sums stored": 1, "dot_s, sums added": 1, "dot_s, sums read": 2,
			"p_s, weights stored": 8, "p_s, weights read": 1, "kv_s, values read": 2, "dot_s, heads joined": 8}, nil},
		{"idx_logits_dot", []uint32{64, 1, 16}, map[string]float64{"q_s, queries stored": 1, "k_s, keys stored": 1,
			"q_s, queries read": 1, "k_s, keys read": 1, "k_s, sums stored": 1, "k_s, sums read": 1}, scores},
		{"idx_logits_dot", []uint32{64, 1, 16, 0, 32}, map[string]float64{"q_s, queries stored": 1, "k_s, keys stored": 1,
			"q_s, queries read": 1, "k_s, keys read": 1, "k_s, sums stored": 1, "k_s, sums read": 1}, nil},
		{"idx_logits_da", []uint32{64, 1, 16}, map[string]float64{"q_s, queries stored": 1, "k_s, keys stored": 1,
			"q_s, queries read": 1, "k_s, keys read": 2, "k_s, sums stored": 1, "k_s, sums read": 1}, nil},
		{"proj_linear_dot", []uint32{3, 0, 128, 128, 2, 256, 8}, map[string]float64{"x_s, x stored": 1, "w_s, weights stored": 1,
			"x_s, x read": 1, "w_s, weights read": 1}, products},
		{"proj_linear", []uint32{3, 0, 128, 128, 2, 256, 8}, map[string]float64{"x_s, x stored": 1, "w_s, weights stored": 1,
			"x_s, x read": 1, "w_s, weights read": 2}, nil},
		{"proj_linear_tokens8to16_da", []uint32{3, 0, 16, 4, 8, 2}, few, shared},
		{"proj_linear_tokens8to16_dot", []uint32{3, 0, 16, 4, 8, 2}, few,
			[]string{"proj_linear_tokens8to16.comp", "if (u < X_UNITS) room_s[u] =",
				"room_s[(t * UNITS + u + i) * LANES + gl_LocalInvocationIndex % LANES];"}},
		{"proj_linear_tokens8to16_dot", []uint32{1, 0, 8, 4, 8, 1}, few, nil},
		{"proj_linear_tokens8to16_da", []uint32{4, 0, 8, 4, 8, 1}, few, nil},
		{"proj_linear_tokens8to16_da", []uint32{1, 0, 16, 4, 32, 1}, map[string]float64{"room_s, x stored": 1, "room_s, x read": 2,
			"room_s, sums stored": 1, "room_s, sums read": 1}, nil},
		{"attn_merge_da", []uint32{5, 4}, map[string]float64{"acc_s, sums stored": 1, "acc_s, sums read": 2},
			[]string{"attn_merge.comp", "acc_s[group * 128u + lane] = j.acc;", "acc_s[g * 128u + lane]"}},
		{"idx_query_quant_da", []uint32{0, 0, 0}, map[string]float64{"amax_of, stored": 1, "amax_of, read": 1},
			[]string{"idx_query_quant.comp", "amax_of[me / 4u][me % 4u] =", "const uint amax = max4(amax_of[me / 4u]);",
				"const uint first = me % TURNED / HALF * (HALF / 4u), turned = first + TURNED / 4u;"}},
		{"idx_query_quant_da", []uint32{1, 0, 0}, map[string]float64{"amax_of, stored": 1, "amax_of, read": 1}, nil},
		{"proj_q_insert_lanes_da", []uint32{64, 0, 0, 1, 64}, map[string]float64{"amax_of, stored": 1, "amax_of, read": 1},
			[]string{"proj_q_insert.comp", "if (me < UNITS) amax_of[lane / 4u][lane % 4u] =", "const uvec4 m = amax_of[lane / 4u];",
				"const uvec4 m = max(amax_of[block * 2u], amax_of[block * 2u + 1u]);"}},
		{"proj_q_insert_lanes_da", []uint32{64, 0, 1, 0, 64}, map[string]float64{"amax_of, stored": 1, "amax_of, read": 1}, nil},
		{"proj_qkv_norm_lanes_da", []uint32{1024, 64}, map[string]float64{"part_of, read": 1},
			[]string{"proj_qkv_norm.comp", "(part_of.x + part_of.y) + (part_of.z + part_of.w);"}},
		{"kv_compress_save", []uint32{32, 64, 1, 2, 0, 128, 2, 0, 1, 4, 2}, map[string]float64{"square_of, stored": 1,
			"square_of, read": 1, "amax_of, stored": 1, "amax_of, read": 1}, []string{"kv_compress.comp",
			"sum = ((square_of[0] + square_of[1]) + (square_of[2] + square_of[3]))", "lib/kv_latent.glsl",
			"amax_of_lanes(lane / 8u * 8u, 8u);"}},
	})
}

// Loads of 16 bytes from neighbours leave half of the banks idle, unless every second eight of
// invocations begins with the second half.
func TestHalfLoads(t *testing.T) {
	for halves, want := range map[bool]float64{false: 2, true: 1} {
		one := func(tid int) int { return tid }
		p := halfLoads("", halves, 1, func(tid, _ int) int { return tid }, one)
		assert.Equal(t, want, p.access(64).Conflicts)
	}
}
