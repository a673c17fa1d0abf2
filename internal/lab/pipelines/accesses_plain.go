package pipelines

import "strings"

// plainBuild tells whether a kernel is a build of a stem without matrices, and whether it
// multiplies pairs of halves, as opkit.Dot says.
func plainBuild(kernel, stem string) (plain, halves bool) {
	switch strings.TrimPrefix(kernel, stem) {
	case "", "_da":
		return true, false
	case "_dot":
		return true, true
	}
	return false, false
}

// plainPatterns are those of kernels without matrices.
func plainPatterns(kernel string, n map[string]int) []pattern {
	for _, k := range []struct {
		stem     string
		patterns func(n map[string]int, halves bool) []pattern
	}{
		{"attn_decode", plainAttention},
		{"attn_prefill", plainAttention},
		{"idx_logits", plainScores},
		{"proj_linear", plainProducts},
		{"proj_linear_tokens8to16", sharedTokens},
		{"attn_merge", mergePatterns},
		{"idx_query_quant", quantisedQueries},
		{"proj_q_insert", insertedRows},
		{"proj_q_insert_lanes", insertedRows},
		{"proj_qkv_norm_lanes", normsByLanes},
	} {
		if plain, halves := plainBuild(kernel, k.stem); plain {
			return k.patterns(n, halves)
		}
	}
	return nil
}

// halfLoads are loads of 16 bytes: of a lane's quad or, with halves, HALF_LOAD of
// shaders/lib/half_loads.glsl, which goes by what eight of `lane` an invocation is of.
func halfLoads(name string, halves bool, times int, quad func(tid, i int) int, lane func(tid int) int) pattern {
	if !halves {
		return pattern{name, load, 16, times, 1, func(tid, i int) int { return quad(tid, i) * 16 }}
	}
	return pattern{name, load, 8, 2 * times, 1, func(tid, i int) int { return quad(tid, i/2)*16 + (i%2^lane(tid)/8%2)*8 }}
}

// plainAttention are those of shaders/lib/sparse_mla.glsl.
func plainAttention(n map[string]int, halves bool) []pattern {
	hg, tile := n["HG"], n["TILE"]
	threads, once := n["THREADS"], float64(tile)/attended
	lanes, blocks, shares := threads/tile, hg/4, 256/tile
	half, pairs := shares/2, tile/2
	dotHead := pairs + 2
	dots, steps := hg*dotHead+1, 64/shares
	each, pitch := 1, hg // of weights
	if halves {
		each, pitch = 2, hg+4
	}
	block := func(tid int) int { return tid / half % (threads / shares) }
	unit := func(tid, step int) int { return tid%half + tid/(threads/2)*half + step*shares }
	dot := func(tid, i int) int { // of four heads, two pairs each
		return (tid%half*dots + (block(tid)%blocks*4+i%8/2)*dotHead + block(tid)/blocks*2 + i%2) * 8
	}
	weighs := hg * pairs
	head := func(tid int) int { return tid / pairs }
	values := pattern{"kv_s, values read", load, 16, tile, 1, func(tid, i int) int { return (i*64 + tid%64) * 16 }}
	query := func(tid, i int) int { return (block(tid)%blocks*4+i%4)*64 + unit(tid, i/4) }
	stored := pattern{"q_s, queries stored", store, 16, hg * 64 / threads, once, func(tid, i int) int { return (i*threads + tid) * 16 }}
	read := pattern{"q_s, queries read", load, 16, 4 * steps, 1, func(tid, i int) int { return query(tid, i) * 16 }}
	if halves { // mla_values, mla_keep_query, mla_query
		values.bytes, values.times = 8, 2*tile
		values.at = func(tid, i int) int { return i/2*1024 + i%2*512 + tid%64*8 }
		stored.bytes, stored.times = 8, 2*stored.times
		stored.at = func(tid, i int) int { u := i/2*threads + tid; return u*16 + u/256*8 + i%2*8 }
		read.bytes, read.times = 8, 2*read.times
		read.at = func(tid, i int) int { q := query(tid, i/2); return q*16 + q/256*8 + i%2*8 }
	}
	return []pattern{
		stored, read,
		{"kv_s, rows stored", store, 16, 64 / lanes, 1, func(tid, i int) int { return (tid/lanes*64 + i*lanes + tid%lanes) * 16 }},
		{"kv_s, keys read", load, 16, 4 * steps, 1, func(tid, i int) int {
			return ((block(tid)/blocks*4+i%4)*64 + unit(tid, i/4)) * 16
		}},
		{"dot_s, sums stored", store, 8, 16, 0.5, dot}, // by each half of the invocations
		{"dot_s, sums added", load, 8, 8, 0.5, dot},
		{"dot_s, sums read", load, 8, half, 1, upTo(weighs, func(tid, i int) int {
			return (i*dots + head(tid)*dotHead + tid%pairs) * 8
		})},
		{"p_s, weights stored", store, 4, 2 / each, 1, upTo(weighs, func(tid, i int) int {
			return ((tid%pairs*2/each+i)*pitch + head(tid)) * 4
		})},
		{"p_s, weights read", load, 16, tile / each, 1, func(tid, i int) int { return (i*pitch + tid/64*4) * 4 }},
		values,
		{"dot_s, heads joined", load, 8, pairs, once, upTo(hg, func(tid, i int) int { return (tid*pairs + i) * 8 })},
	}
}

// plainScores are those of shaders/idx_logits.comp, for a step of 16 of the 128 numbers.
func plainScores(n map[string]int, halves bool) []pattern {
	const keys, step = 128, 16
	heads, each := n["HEADS"], 1
	if halves {
		each = 2
	}
	lane := func(tid int) int { return tid % (keys / 8) }
	once, fours := float64(step)/128, heads/32
	return []pattern{
		{"q_s, queries stored", store, 4, 8 / each, 1, upTo(heads*step/8, func(tid, i int) int {
			return ((tid/heads*8/each+i)*heads + tid%heads) * 4
		})},
		{"k_s, keys stored", store, 4, 16 / each, 1, func(tid, i int) int { return (i*keys + tid) * 4 }},
		{"q_s, queries read", load, 16, step / each * fours, 1, func(tid, i int) int {
			return (i/fours*heads/4 + tid/(keys/8)*fours + i%fours) * 16
		}},
		halfLoads("k_s, keys read", halves, step/each*2, func(tid, i int) int { return i/2*keys/4 + i%2*keys/8 + lane(tid) }, lane),
		{"k_s, sums stored", store, 16, 2, once, func(tid, i int) int { return (tid/(keys/8)*keys/4 + i*keys/8 + lane(tid)) * 16 }},
		{"k_s, sums read", load, 4, 8, once, func(tid, i int) int { return (i*keys + tid) * 4 }},
	}
}

// plainProducts are those of shaders/proj_linear.comp, for a step of 16 numbers.
func plainProducts(n map[string]int, halves bool) []pattern {
	const step = 16
	threads, bm, bn, quads, each := n["THREADS"], n["BM"], n["BN"], n["QUADS"], 1
	if halves {
		each = 2
	}
	lanes := bn / (4 * quads)
	rows := func(name string, rows int) pattern {
		return pattern{name, store, 4, rows * step / 8 / threads * 8 / each, 1, func(tid, i int) int {
			u := i/(8/each)*threads + tid
			return ((u/rows*8/each+i%(8/each))*rows + u%rows) * 4
		}}
	}
	lane := func(tid int) int { return tid % lanes }
	return []pattern{
		rows("x_s, x stored", bm), rows("w_s, weights stored", bn),
		{"x_s, x read", load, 16, step / each * 2, 1, func(tid, i int) int { return (i/2*bm/4 + tid/lanes*2 + i%2) * 16 }},
		halfLoads("w_s, weights read", halves, step/each*quads, func(tid, i int) int {
			return i/quads*bn/4 + i%quads*lanes + lane(tid)
		}, lane),
	}
}

// weightQuad is how many weights 16 bytes have.
func weightQuad(n map[string]int) int {
	const bf16, nvfp4 = 1, 4
	switch n["FORMAT"] {
	case bf16:
		return 8
	case nvfp4:
		return 32
	}
	return 16
}

// sharedTokens are those of shaders/proj_linear_tokens8to16.comp.
func sharedTokens(n map[string]int, halves bool) []pattern {
	const threads = 128
	quads := 2 // of an eight of x
	if halves {
		quads = 1
	}
	tokens, lanes, sums, vec := n["TOKENS"], n["LANES"], n["ROWS"]*4, weightQuad(n)
	units, fours, once := vec/8, tokens/4, float64(lanes*vec)/leastK
	eights := tokens * lanes * units
	parts := max(1, 128/max(1, threads/lanes*sums/2))
	pitch := threads + parts
	place := func(sum int) int { return (sum%2*sums/2 + sum/2) * pitch }
	return []pattern{
		{"room_s, x stored", store, 16, quads * ((eights + threads - 1) / threads), 1, func(tid, i int) int {
			u := i/quads*threads + tid
			if u >= eights {
				return -1
			}
			return (u/lanes*quads*lanes + u%lanes + i%quads*lanes) * 16
		}},
		{"room_s, x read", load, 16, eights / lanes * quads, 1, func(tid, i int) int { return (i*lanes + tid%lanes) * 16 }},
		{"room_s, sums stored", store, 4, fours * sums, once, func(tid, i int) int { return (place(i%sums) + tid) * 4 }},
		{"room_s, sums read", load, 4, fours * 2 * max(1, lanes/parts), once, func(tid, i int) int {
			pair, l := tid/parts, tid%parts+i/2*parts%lanes
			return (place(pair%(sums/2)*2+i%2) + pair/(sums/2)*lanes + l) * 4
		}},
	}
}

// mergePatterns are those of shaders/attn_merge.comp.
func mergePatterns(n map[string]int, _ bool) []pattern {
	const row = 128
	groups := n["THREADS"] / row
	if groups < 2 {
		return nil
	}
	return []pattern{
		{"acc_s, sums stored", store, 16, 1, 1, func(tid, _ int) int { return tid * 16 }},
		{"acc_s, sums read", load, 16, groups - 1, 1, upTo(row, func(tid, i int) int { return ((i+1)*row + tid) * 16 })},
	}
}

// quantisedQueries are those of shaders/idx_query_quant.comp.
func quantisedQueries(n map[string]int, _ bool) []pattern {
	read := pattern{"amax_of, read", load, 16, 4, 1, func(tid, i int) int { return (tid%64/8*2 + i%2 + i/2*16) * 16 }}
	if n["MXFP4"] != 0 {
		read.times, read.at = 1, func(tid, _ int) int { return tid / 4 * 16 }
	}
	return []pattern{{"amax_of, stored", store, 4, 1, 1, func(tid, _ int) int { return tid * 4 }}, read}
}

// insertedRows are those of a K row of shaders/proj_q_insert.comp.
func insertedRows(n map[string]int, _ bool) []pattern {
	read := pattern{"amax_of, read", load, 16, 2, 1, func(tid, i int) int { return (tid%64/8*2 + i) * 16 }}
	if n["RECORD"] != 0 {
		read.times, read.at = 1, func(tid, _ int) int { return tid % 64 / 4 * 16 }
	}
	return []pattern{{"amax_of, stored", store, 4, 1, 1, upTo(64, func(tid, _ int) int { return tid * 4 })}, read}
}

// normsByLanes are those of shaders/proj_qkv_norm.comp.
func normsByLanes(n map[string]int, _ bool) []pattern {
	n["THREADS"] = 64
	return []pattern{{"part_of, read", load, 16, 1, 1, func(_, _ int) int { return 0 }}}
}
