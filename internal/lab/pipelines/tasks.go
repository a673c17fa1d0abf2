package pipelines

import (
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/model"
)

// launch is what an operation has to do, and a kernel's constants.
type launch struct {
	tokens   int
	heads    int            // of attention or of the indexer
	rows     int            // that a token attends, or that a product has
	entries  int            // that are scored for a token
	k        int            // numbers of a row of a product
	parts    int            // groups of a product, of which each has its own x
	bytes    int            // of cached rows, keys or weights
	gathered [2]int         // rows of a prompt: of its windows, and all entries
	of       map[string]int // the constants, by the shader's names
}

// task is what a kernel does for an operation. TestModelMultiplies holds its turns against RADV's
// listings. Where data or plans decide, this is assumed: a workgroup of a selection takes as many
// entries as it has room for, and all digits; rows of scores are whole; the token of a compressor
// completes a window.
type task struct {
	kernel string // or what its name begins with
	groups func(l *launch) int
	turns  func(l *launch) []float64 // of the loops of a workgroup, the inmost first
	parted bool                      // several workgroups share the turns of the last, if compute units were without any
	bytes  func(l *launch) int       // of memory, each once
}

var tasks = []task{
	{"attn_decode_cm", headGroups, matrixRows, true, attendedBytes},
	{"attn_decode_float8_cm", headGroups, matrixRows, true, attendedBytes},
	{"attn_prefill_cm", headGroups, matrixRows, false, attendedBytes},
	{"attn_decode_dot", headGroups, dotRows, true, attendedBytes},
	{"attn_prefill_dot", headGroups, dotRows, false, attendedBytes},
	{"idx_logits_codes_cm", scoreGroups, scoreTiles, true, scoreBytes},
	{"idx_logits_cm", scoreGroups, scoreTiles, true, scoreBytes},
	{"idx_logits_dot", func(l *launch) int { return l.tokens * opkit.CeilDiv(l.entries, 128) },
		func(l *launch) []float64 {
			return turns(16/l.of["UNROLL"], 128/16, opkit.CeilDiv(l.heads, l.of["HEADS"]))
		}, false, scoreBytes},
	{"idx_topk_lanes", func(l *launch) int { return l.tokens * opkit.CeilDiv(l.entries, l.of["CAPACITY"]) },
		func(l *launch) []float64 { return turns(1, opkit.CeilDiv(l.of["CAPACITY"], 4*l.of["THREADS"])) }, false, selectedBytes},
	{"idx_topk", func(l *launch) int { return l.tokens * opkit.CeilDiv(l.entries, l.of["THREADS"]*l.of["ITEMS"]) },
		func(l *launch) []float64 { return turns(opkit.CeilDiv(32, l.of["BITS"])) }, false, selectedBytes},
	{"proj_linear_cm", tileGroups, func(l *launch) []float64 { return turns(l.k / l.of["BK"]) }, true, productBytes},
	{"proj_linear_codes_cm", tileGroups, func(l *launch) []float64 { return turns(l.k/l.of["BK"] - 1) }, true, productBytes},
	{"proj_linear_dot", tileGroups, func(l *launch) []float64 { return turns(16/l.of["UNROLL"], l.k/16) }, true, productBytes},
	{"proj_linear_tokens1to8", rowGroups, func(l *launch) []float64 { return turns(laneTurns(l)) }, false, productBytes},
	{"proj_linear_tokens8to16", rowGroups, func(l *launch) []float64 {
		return turns(weightQuad(l.of)/8/l.of["UNROLL"], laneTurns(l))
	}, true, productBytes},
	{"kv_compress", compressorGroups, func(l *launch) []float64 {
		chunks := opkit.CeilDiv((1+l.of["OVERLAP"])*l.of["RATIO"], l.of["CHUNK"])
		return turns(opkit.CeilDiv(chunks, max(1, l.of["THREADS"]*4/l.of["DIM"])))
	}, false, func(l *launch) int { return 8 * completed(l) * (1 + l.of["OVERLAP"]) * l.of["RATIO"] * l.of["DIM"] }},

	// What they do for rare numbers counts as done once. A sum counts with two parts, its least.
	{"proj_linear_sum", func(l *launch) int { return l.tokens * opkit.CeilDiv(l.rows, 512) }, once, false,
		func(l *launch) int { return l.tokens * l.rows * (2*4 + 2) }},
	{"attn_merge", func(l *launch) int { return l.tokens * l.heads }, once, false, func(l *launch) int {
		return l.tokens * l.heads * (l.of["AHEAD"]*l.of["THREADS"]/opkit.JoinLanes*4 + 2) * cache.D
	}},
	{"attn_placed_indices", tokenGroups, func(l *launch) []float64 { return turns(opkit.CeilDiv(l.rows, l.of["THREADS"])) }, false,
		func(l *launch) int { return 2 * 4 * l.tokens * l.rows }},
	{"kv_gather_runs", func(l *launch) int { return opkit.CeilDiv(gathered(l), 2) }, once, false,
		func(l *launch) int { return gathered(l) * (cache.Record(l.of["RECORD"]).SlotBytes() + 2*cache.D) }},
	{"idx_query_quant", func(l *launch) int { return l.tokens * opkit.CeilDiv(l.heads, 8) }, once, false,
		func(l *launch) int { return 3 * l.tokens * l.heads * cache.IndexDim }},
	{"proj_qkv_norm", func(l *launch) int { return 2 * l.tokens }, once, false,
		func(l *launch) int { return 2 * 2 * l.tokens * (l.of["RANK"] + cache.D) }},
	{"proj_q_insert", func(l *launch) int { return l.tokens * (1 + opkit.CeilDiv(l.heads, 4)) }, once, false,
		func(l *launch) int { return l.tokens * (2*2*cache.D*l.heads + 2*cache.D + cache.SlotBytes) }},
	{"proj_inverse_rope", func(l *launch) int { return l.tokens * opkit.CeilDiv(l.heads, 16) }, once, false,
		func(l *launch) int { return 2 * 2 * l.tokens * l.heads * cache.RopeDim }},
}

func gathered(l *launch) int {
	switch cache.Record(l.of["RECORD"]) {
	case cache.RecordFP8:
		return l.gathered[0]
	case cache.RecordFP4:
		return l.gathered[1]
	}
	return l.gathered[0] + l.gathered[1]
}

func once(*launch) []float64    { return turns(1) }
func tokenGroups(l *launch) int { return l.tokens }

func turns(list ...int) (t []float64) {
	for _, n := range list {
		t = append(t, float64(max(n, 1)))
	}
	return t
}

func headGroups(l *launch) int       { return l.tokens * opkit.CeilDiv(l.heads, l.of["HG"]) }
func matrixRows(l *launch) []float64 { return turns(rowTiles(l)) }
func dotRows(l *launch) []float64    { return turns(2, l.of["TILE"]/4, rowTiles(l)) }
func rowTiles(l *launch) int         { return opkit.CeilDiv(l.rows, l.of["TILE"]) }
func attendedBytes(l *launch) int    { return l.bytes + 2*2*l.tokens*l.heads*cache.D } // queries and output

func scoreGroups(l *launch) int {
	return opkit.CeilDiv(l.tokens, l.of["TOKENS"]) * opkit.CeilDiv(l.heads, l.of["HG"]*l.of["HEAD_PARTS"])
}

func scoreTiles(l *launch) []float64 {
	subgroups := l.of["THREADS"] / l.of["SUBGROUP"]
	return turns(l.of["TILE"]/16*l.of["HEAD_PARTS"]*l.of["TOKENS"]/subgroups, opkit.CeilDiv(l.entries, l.of["TILE"]))
}

func scoreBytes(l *launch) int    { return l.bytes + selectedBytes(l) }
func selectedBytes(l *launch) int { return 4 * l.tokens * l.entries }

func tileGroups(l *launch) int {
	return l.parts * opkit.CeilDiv(l.rows/l.parts, l.of["BN"]) * opkit.CeilDiv(l.tokens, l.of["BM"])
}

func rowGroups(l *launch) int {
	return opkit.CeilDiv(l.rows*l.of["LANES"], l.of["THREADS"]*l.of["ROWS"]) * opkit.CeilDiv(l.tokens, l.of["TOKENS"])
}

func laneTurns(l *launch) int    { return opkit.CeilDiv(l.k, l.of["LANES"]*weightQuad(l.of)) }
func productBytes(l *launch) int { return l.bytes + 2*l.tokens*(l.parts*l.k+l.rows) }

func compressorGroups(l *launch) int {
	if l.of["MODE"] == 2 { // there is no state
		return completed(l)
	}
	return completed(l) + l.tokens // each saves a state
}

func completed(l *launch) int { return opkit.CeilDiv(l.tokens, l.of["RATIO"]) }

// task of a kernel for a choice; nil if tasks has none.
func (c *Choice) task(k *Chosen) (*task, *launch) {
	for i := range tasks {
		if strings.HasPrefix(k.Kernel, tasks[i].kernel) {
			l := c.launch()
			l.of = k.numbers()
			if c.Op == "v4.1 selection and candidates" && l.of["PAGE"] == 0 && l.of["ITEMS"] > 0 { // of blocks
				l.entries /= indexer.BlockEntries
			}
			return &tasks[i], l
		}
	}
	return nil, nil
}

// shares is how many kernels of a choice share a task alike: a selection of many tokens goes
// through its entries in rounds, of which the first has no best so far.
func (c *Choice) shares(of *task, l *launch) int {
	n := 0
	for i := range c.Kernels {
		if t, other := c.task(&c.Kernels[i]); t == of && t.bytes(other) == t.bytes(l) {
			n++
		}
	}
	return max(n, 1)
}

// launch is what a choice has to do.
func (c *Choice) launch() *launch {
	m := model.FlashConfig()
	op, v41 := strings.CutPrefix(c.Op, "v4.1 ")
	if v41 {
		m = model.FlashV41Config()
	}
	l := &launch{tokens: c.Tokens, heads: m.Heads, rows: m.Window + m.TopK}
	if op == "decode" {
		window, entries := m.Records.Record(model.StoreWindow), m.Records.Record(model.StoreEntries)
		l.bytes = c.Tokens * (m.Window*window.SlotBytes() + m.TopK*entries.SlotBytes())
	}
	if n := scored(m)[c.Op]; n > 0 {
		l.heads, l.entries, l.bytes = m.IndexHeads, n, n*(m.Records.Keys().RowBytes()+cache.IndexScaleBytes)
		if op == "selection of candidates" { // tokens of a request have their own
			l.bytes *= c.Tokens
		}
	}
	if op == "prefill" {
		l.gathered = [2]int{c.Tokens + m.Window - 1, scored(m)[strings.TrimSuffix(c.Op, op)+"selection"]}
	}
	for _, p := range append(products(m), layerProducts(m)...) {
		if p.op == c.Op {
			l.parts, l.k = max(p.c.Groups, 1), p.c.K
			l.rows = p.c.N * l.parts
			l.bytes = int(p.c.Weights.Bytes(l.rows, l.k))
		}
	}
	return l
}
