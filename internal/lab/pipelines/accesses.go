package pipelines

import (
	"strings"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// numbers are a kernel's specialisation constants by the shader's names, with THREADS and, where
// lanes hold matrices as gfx12 has them, GFX12.
func (c *Chosen) numbers() map[string]int {
	n := map[string]int{}
	k, err := shaders.Get(c.Kernel)
	if err != nil {
		return n
	}
	m, err := spirv.Parse(k.SPIRV)
	if err != nil {
		return n
	}
	for at, x := range m.Constants { // without gaps: internal/spirv tests it
		n[x.Name] = int(x.Default)
		if at < len(c.Constants) {
			n[x.Name] = int(c.Constants[at])
		}
	}
	n["THREADS"] = 1
	if size, err := m.LocalSize(c.Constants...); err == nil {
		n["THREADS"] = int(size[0] * size[1] * size[2])
	}
	if c.Listing.gfx12 {
		n["GFX12"] = 1
	}
	return n
}

// codes tells whether a kernel multiplies matrices of E4M3.
func (c *Chosen) codes() bool { return strings.HasSuffix(c.Kernel, "_codes_cm") }

// What a launch does once is shared by the tiles of the rows that V4's layers attend, and by the
// steps of its products with the smallest K.
const attended, leastK = 640, 1024

// patterns are the uses of shared memory by a kernel with some constants, by the shader's names. A
// turn is a tile of attention and scores, a step of products; else it is all of a workgroup. Digits
// of a selection count as random. TestPatternsMirrorShaders holds each against the shader's text.
func patterns(kernel string, n map[string]int) []pattern {
	if m, ok := n["CM_M"]; ok && (m != 16 || n["CM_N"] != 16 || n["CM_K"] != 16 || n["SUBGROUP"] != 32) {
		return nil // on no GPU of AMD's
	}
	for _, k := range []struct {
		prefix   string
		patterns func(n map[string]int) []pattern
	}{
		{"attn_decode_cm", func(n map[string]int) []pattern { return append(attentionPatterns(n, 1), decodedRows(n)...) }},
		{"attn_decode_float8_cm", func(n map[string]int) []pattern { return append(attentionPatterns(n, 1), decodedRows(n)...) }},
		{"attn_prefill_cm", func(n map[string]int) []pattern { return append(attentionPatterns(n, 2), gatheredRows(n)) }},
		{"idx_logits_cm", func(n map[string]int) []pattern { return scorePatterns(n, 17, 2) }},
		{"idx_logits_codes_cm", func(n map[string]int) []pattern { return scorePatterns(n, 9, 1) }},
		{"idx_topk_lanes", selectionByLanes},
		{"idx_topk", selectionPatterns},
		{"proj_linear_codes_cm", codePatterns},
		{"proj_linear_cm", func(n map[string]int) []pattern { return append(productPatterns(n), stagedRows(n)...) }},
		{"proj_linear_whole_cm", productPatterns},
		{"proj_linear_tokens1to8", fewTokens},
		{"kv_compress", compressorPatterns},
	} {
		if strings.HasPrefix(kernel, k.prefix) {
			return k.patterns(n)
		}
	}
	return plainPatterns(kernel, n)
}

// rowHalf is cm_half of shaders/lib/cm_rows.glsl.
func rowHalf(n map[string]int, row int) int {
	if n["ROWS"] == 0 {
		return 0
	}
	return row / 8 % 2
}

// fragments are loads of matrices, 16 rows of 16 elements each, pitch quads from row to row: lane l
// has row l%16, all of it or, on gfx12, the l/16th half; 8 bytes a load.
func fragments(name string, n map[string]int, pitch, elementBytes, matrices int) pattern {
	parts := 1 + n["GFX12"]
	loads := 2 * elementBytes / parts
	return pattern{name, load, 8, matrices * loads, 1, func(tid, i int) int {
		l := tid % 32
		return l%16*pitch*16 + (i%loads*8 + l/16%parts*loads*8 ^ rowHalf(n, l%16)*8)
	}}
}

// sumsOf are stores of f32 matrices by rows: lane l has column l%16, of every second row or, on
// gfx12, of half of them.
func sumsOf(name string, n map[string]int, pitch, matrices int, share float64) pattern {
	return pattern{name, store, 4, 8 * matrices, share, func(tid, i int) int {
		return sumRow(n, tid%32, i%8)*pitch*16 + tid%16*4
	}}
}

func sumRow(n map[string]int, lane, element int) int {
	if n["GFX12"] != 0 {
		return element + lane/16*8
	}
	return 2*element + lane/16
}

// keptRows is CM_KEEP_ROW, of a quad and its row.
func keptRows(name string, n map[string]int, times int, share float64, at func(tid, i int) (quad, row int)) pattern {
	p := pattern{name, store, 16, times, share, func(tid, i int) int { q, _ := at(tid, i); return q * 16 }}
	if n["ROWS"] != 0 {
		p.bytes, p.times = 8, 2*times
		p.at = func(tid, i int) int {
			q, row := at(tid, i/2)
			return q*16 + (i%2^rowHalf(n, row))*8
		}
	}
	return p
}

const kvPitch = 65

// attentionPatterns are those of shaders/lib/cm_mla.glsl and cm_mla_tiles.glsl.
func attentionPatterns(n map[string]int, buffers int) []pattern {
	tile, threads, split, heads := n["TILE"], n["THREADS"], n["KSPLIT"], n["HG"]/16
	subgroups, quads, units := threads/32, tile/4, n["HG"]*tile/4
	headParts := min(subgroups/split, heads)
	columns := tile / 16 / min(subgroups/split/headParts, tile/16)
	steps, outTiles, each := 32/split, 32/subgroups, (units+threads-1)/threads
	pPitch, sPitch, outPitch, once := tile/8+1, tile/4+1, 130, float64(tile)/attended
	if n["ROWS"] != 0 && tile == 16 {
		sPitch = 4
	}
	if 32 > buffers*tile {
		outPitch = 65
	}
	four := func(tid, u int) (head, quad int) { return (u*threads + tid) / quads, (u*threads + tid) % quads }
	parts := 1 + n["GFX12"]
	return []pattern{
		fragments("kv_s, fragments of K", n, kvPitch, 2, columns*steps),
		{"kv_s, V loaded", load, 8, tile / 16 * outTiles / 4 * 16 / parts, 1, func(tid, i int) int { // ROWS 1, as RADV has it
			l, e := tid%32, i%(16/parts)
			part := l / 16 % parts
			return (part*8+e)*kvPitch*16 + l%16/2*16 + (l%2^part^e/8)*8
		}},
		fragments("p_s, fragments of P", n, pPitch, 2, tile/16*heads*max(1, outTiles/4)),
		sumsOf("score_s, scores stored", n, sPitch, columns*heads/headParts, 1),
		{"score_s, scores read", load, 16, each * split, 1, upTo(units, func(tid, i int) int {
			head, quad := four(tid, i/split)
			return ((i%split*n["HG"]+head)*sPitch + quad) * 16
		})},
		{"p_s, weights stored", store, 8, each, 1, upTo(units, func(tid, i int) int {
			head, quad := four(tid, i)
			return (head*pPitch+quad/2)*16 + (quad%2^rowHalf(n, head))*8
		})},
		sumsOf("kv_s, output stored", n, outPitch, heads*outTiles, once),
		{"kv_s, output read", load, 16, heads * 1024 / threads * 4, once, func(tid, i int) int {
			at := i/4*threads + tid
			word := at % 64 % (outPitch / 2)
			return (at/64%16*outPitch + (word-word%8)*2 + i%4*4 + word%8/2) * 16
		}},
	}
}

// ownRow is which row of a tile an invocation brings in, and which part of it: cm_row and cm_part
// of shaders/lib/cm_mla_tiles.glsl.
func ownRow(n map[string]int, tid int) (row, part int) {
	parts := n["THREADS"] / n["TILE"]
	if n["ROWS"] == 0 || parts < 8 || n["TILE"]%16 != 0 {
		return tid / parts, tid % parts
	}
	eight := tid / 16
	row = eight / (parts / 8)
	return (row/8*16 + row%8) ^ tid/8%2*12, tid%8 + eight%(parts/8)*8
}

// gatheredRows is cm_keep of shaders/attn_prefill_cm.comp.
func gatheredRows(n map[string]int) pattern {
	parts := n["THREADS"] / n["TILE"]
	return keptRows("kv_s, rows stored", n, (63+parts)/parts, 1, func(tid, i int) (int, int) {
		row, part := ownRow(n, tid)
		return row*kvPitch + i*parts + part, row
	})
}

// decodedRows are those of shaders/lib/cm_lanes_row.glsl and cm_record_row.glsl.
func decodedRows(n map[string]int) []pattern {
	parts := n["THREADS"] / n["TILE"]
	if n["WIN_RECORD"] == 0 {
		return []pattern{keptRows("kv_s, codes of rows stored", n, 56/parts, 1, func(tid, i int) (int, int) {
			row, part := ownRow(n, tid)
			return row*kvPitch + i*parts + part, row
		}),
			{"kv_s, bf16 of rows stored", store, 8, 16 / parts, 1, func(tid, i int) int {
				row, part := ownRow(n, tid)
				return (row*kvPitch+56+i*parts/2+part/2)*16 + (part%2^rowHalf(n, row))*8
			}}}
	}
	return []pattern{keptRows("kv_s, rows stored", n, 64/parts, 1, func(tid, i int) (int, int) {
		row, part := ownRow(n, tid)
		if n["ROWS"] != 0 {
			return row*kvPitch + i*parts + part, row
		}
		return row*kvPitch + 2*(i/2*parts+part) + i%2, row
	})}
}

// scorePatterns are those of shaders/idx_logits_cm.comp, rows of pitch quads of elements of some
// bytes.
func scorePatterns(n map[string]int, pitch, elementBytes int) []pattern {
	subgroups := n["THREADS"] / 32
	keyTiles := n["TILE"] / 16 / (subgroups / (n["HEAD_PARTS"] * n["TOKENS"]))
	sums := pattern{"sum_s, sums stored", store, 4, keyTiles * 8, 1, func(tid, i int) int {
		return tid%16*5*16 + sumRow(n, tid%32, i%8)*4
	}}
	if n["GFX12"] != 0 { // four rows of a column lie side by side
		sums.bytes, sums.times = 16, keyTiles*2
		sums.at = func(tid, i int) int { return tid%16*5*16 + tid%32/16*32 + i%2*16 }
	}
	list := []pattern{
		{"row_s, keys stored", store, 16, n["TILE"] * 8 / n["THREADS"] * elementBytes, 1, func(tid, i int) int {
			row := tid/32*(n["TILE"]/subgroups) + tid%32/8 + i/elementBytes*4
			return (row*pitch + tid%8 + i%elementBytes*8) * 16
		}},
		fragments("row_s, fragments of keys", n, pitch, elementBytes, keyTiles*8),
	}
	if n["ROWS"] == 0 { // else lanes add up what they hold
		list = append(list, sums, pattern{"sum_s, sums read", load, 16, keyTiles * 4, 1, func(tid, i int) int {
			return upTo(16, func(l, i int) int { return (l*5 + i%4) * 16 })(tid%32, i)
		}})
	}
	if n["HELD"] == 0 {
		list = append(list, pattern{"weight_s, read", load, 4, keyTiles * n["HG"] / 16 * 8, 1, func(tid, i int) int {
			return sumRow(n, tid%32, i%8) * 4
		}})
	}
	return list
}

// codePatterns are those of shaders/proj_linear_codes.comp, beside the output of
// shaders/lib/linear_tiles.glsl.
func codePatterns(n map[string]int) []pattern {
	threads, m, pitch, units := n["THREADS"], n["WM"]/16, n["BK"]/16+1, n["BK"]/16
	lines, sums := threads/units, 1
	if n["FORMAT"] == 6 {
		sums = n["BK"] / 32
	}
	scales, scale := n["BM"]*sums, (n["BM"]+n["BN"])*pitch*16
	list := productPatterns(n)
	list[0] = fragments("tile_s, fragments", n, pitch, 1, units*(m+n["WN"]/16))
	list[1] = pattern{"tile_s, sums stored", store, 16, m * n["WN"] / 16 * 2, list[1].share, func(tid, i int) int {
		return tid%16*(n["WN"]/4+1)*16 + tid%32/16*32 + i%2*16 // a lane has a token's numbers, as gfx12 holds columns
	}}
	return append(list,
		keptRows("tile_s, codes stored", n, (n["BM"]+n["BN"])/lines, 1, func(tid, i int) (quad, row int) {
			row = spreadRow(n, tid/units, lines) + i*lines
			return row*pitch + tid%units, row
		}),
		pattern{"tile_s, scales stored", store, 4, (scales + threads - 1) / threads, 1, func(tid, i int) int {
			return upTo(scales, func(at, _ int) int { return scale + at*4 })(tid+i*threads, 0)
		}},
		pattern{"tile_s, scales read", load, 4, m * sums, 1, func(tid, _ int) int { return scale + tid%16*4 }})
}

// productPatterns are those of shaders/lib/linear_tiles.glsl.
func productPatterns(n map[string]int) []pattern {
	m, wide, once := n["WM"]/16, n["WN"]/4, float64(n["BK"])/leastK
	return []pattern{
		fragments("tile_s, fragments", n, n["BK"]/8+1, 2, n["BK"]/16*(m+n["WN"]/16)),
		sumsOf("tile_s, sums stored", n, wide+1, m*n["WN"]/16, once),
		{"tile_s, sums read", load, 16, m * ((16*wide + 31) / 32), once, func(tid, i int) int {
			at := (tid%32 + i*32) % (16 * wide)
			return (at/wide*(wide+1) + at%wide) * 16
		}},
	}
}

// stagedRows are those of shaders/proj_linear_cm.comp.
func stagedRows(n map[string]int) []pattern {
	vec := min(weightQuad(n), n["BN"]*n["BK"]/n["THREADS"], n["BK"])
	rows := func(name string, count, vec int) pattern {
		units := n["BK"] / vec
		lines := n["THREADS"] / units
		return keptRows(name, n, count/lines*vec/8, 1, func(tid, i int) (quad, row int) {
			row = spreadRow(n, tid/units, lines) + i/(vec/8)*lines
			return row*(n["BK"]/8+1) + tid%units*(vec/8) + i%(vec/8), row
		})
	}
	return []pattern{rows("tile_s, x stored", n["BM"], 8), rows("tile_s, weights stored", n["BN"], vec)}
}

// spreadRow is spread_rows of shaders/lib/linear_tiles.glsl.
func spreadRow(n map[string]int, i, lines int) int {
	if last := 8 * lines / n["THREADS"]; n["ROWS"] != 0 && lines%16 == 0 && last > 0 {
		i ^= (i/last ^ i/8) & 1 * (last ^ 8)
	}
	if n["BK"] == 32 && lines >= 8 {
		return i&^7 | i&1<<2 | i>>1&3
	}
	return i
}

// random is one of some numbers, as good as any.
func random(seed, of int) int {
	x := uint64(seed+1) * 0x9E3779B97F4A7C15
	x ^= x >> 32
	x *= 0xD6E8FEB86659FD93
	return int((x ^ x>>32) % uint64(of))
}

// upTo is an address of the invocations before `end`.
func upTo(end int, at func(tid, i int) int) func(tid, i int) int {
	return func(tid, i int) int {
		if tid >= end {
			return -1
		}
		return at(tid, i)
	}
}

// selectionPatterns are those of shaders/idx_topk.comp, for rows that are held in registers.
func selectionPatterns(n map[string]int) []pattern {
	threads, bins, cells := n["THREADS"], 1<<n["BITS"], n["ITEMS"]/4
	passes, rows := float64((31+n["BITS"])/n["BITS"]), threads*n["ITEMS"]/128
	cell := func(tid, i int) int { return ((tid/32*cells+i)*36 + tid%32) * 4 }
	return []pattern{
		{"pool_s, entries counted", count, 4, n["ITEMS"], 1, func(tid, i int) int { return random(i*threads+tid, bins) * 4 }},
		{"pool_s, bins summed", load, 4, 8, passes, upTo(bins/8, func(tid, i int) int { return (tid*8 + (i+tid/4)&7) * 4 })},
		{"pool_s, bins cleared", store, 4, max(1, bins/threads), passes, upTo(bins, func(tid, i int) int { return (i*threads + tid) * 4 })},
		{"pool_s, cells stored", store, 4, cells, 1, cell},
		{"pool_s, cells read", load, 4, cells, 1, cell},
		{"pool_s, rows of cells read", load, 8, 16, 1, upTo(rows, func(tid, i int) int { return tid*36*4 + i*8 })},
		{"pool_s, rows of cells stored", store, 16, 8, 1, upTo(rows, func(tid, i int) int { return tid*36*4 + i*16 })},
		{"sum_s, read", load, 4, 15, passes, upTo(bins/8, func(tid, i int) int { return (tid&^15 + i + 1) % (bins / 8) * 4 })},
	}
}

// selectionByLanes are those of shaders/idx_topk_lanes.comp, for the longest slices.
func selectionByLanes(n map[string]int) []pattern {
	threads, bins := n["THREADS"], 1<<n["BITS"]
	cells, own, passes := (n["CAPACITY"]+4*threads-1)/(4*threads), max(1, bins/threads), (31+n["BITS"])/n["BITS"]
	key := upTo(n["CAPACITY"]/(4*cells), func(tid, i int) int { return (tid*cells + i%cells) * 16 })
	bin := func(tid, i int) int { return (bins - own*(tid+1) + i) * 4 }
	return []pattern{
		{"key_s, keys stored", store, 16, cells, 1, key},
		{"key_s, keys read", load, 16, cells * (passes + 2), 1, key},
		{"pool_s, entries counted", count, 4, 4 * cells, 1, func(tid, i int) int { return random(i*threads+tid, bins) * 4 }},
		{"pool_s, bins read", load, 4, own, float64(passes), bin},
		{"pool_s, bins cleared", store, 4, own, float64(passes), bin},
	}
}

// fewTokens are those of shaders/proj_linear_tokens1to8.comp.
func fewTokens(n map[string]int) []pattern {
	sums, lanes := n["ROWS"]*n["TOKENS"], n["LANES"]
	parts := 128 / max(1, 128/lanes*sums/2)
	return []pattern{
		{"sum_s, sums stored", store, 4, sums, 1, func(tid, i int) int { return (i*129 + tid) * 4 }},
		{"sum_s, sums read", load, 4, 2 * max(1, lanes/parts), 1, func(tid, i int) int {
			pair, l := tid/parts, tid%parts+i/2*parts
			if l >= lanes {
				return -1
			}
			team, v := pair/(sums/2), pair%(sums/2)*2
			return ((v+i%2)*129 + team*lanes + l) * 4
		}},
		{"pair_s, pairs stored", store, 8, 1, 1, func(tid, _ int) int { return tid * 8 }},
	}
}

// compressorPatterns are those of shaders/kv_compress.comp.
func compressorPatterns(n map[string]int) (list []pattern) {
	threads, lanes, window := n["THREADS"], n["DIM"]/4, (1+n["OVERLAP"])*n["RATIO"]
	groups := max(1, threads/lanes)
	switch {
	case window <= n["CHUNK"] && groups == 4:
		list = []pattern{
			{"part, channels stored", store, 4, 1, 1, func(tid, _ int) int { return tid * 4 }},
			{"part, channels read", load, 16, 1, 1, func(tid, _ int) int { return tid % lanes * 16 }},
		}
	case groups > 1:
		half, merges := threads/2, 0.
		for size := half; size >= lanes; size /= 2 {
			merges++
		}
		sums := upTo(half, func(tid, i int) int { return (i*half + tid) * 16 })
		list = []pattern{{"part, sums stored", store, 16, 3, merges, sums}, {"part, sums read", load, 16, 3, merges, sums}}
	}
	if lanes != 128 {
		each := lanes / 4 // quads of a block
		if n["FORMAT"] == 2 {
			each = 2
		}
		one := upTo(lanes, func(tid, _ int) int { return tid * 4 })
		return append(list, pattern{"square_of, stored", store, 4, 1, 1, one}, pattern{"amax_of, stored", store, 4, 1, 1, one},
			pattern{"square_of, read", load, 16, 8, 1, func(_, i int) int { return i * 16 }},
			pattern{"amax_of, read", load, 16, each, 1, func(tid, i int) int { return (tid%lanes/4/each*each + i) * 16 }})
	}
	return append(list,
		pattern{"square_of, stored", store, 4, 1, 1, upTo(lanes, func(tid, _ int) int { return tid * 4 })},
		pattern{"square_of, read", load, 16, 2, 1, upTo(16, func(tid, i int) int { return (2*tid + i) * 16 })},
		pattern{"amax_of, read", load, 16, 4, 1, upTo(8, func(tid, i int) int { return (tid*4 + i) * 16 })})
}
