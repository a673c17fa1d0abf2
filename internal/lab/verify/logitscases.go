package verify

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// scoring is scores of a decode step, with a request for each token, or of a prefill, whose
// tokens are a request's last.
type scoring struct {
	tokens, entries, heads int
	format                 cache.IndexKeyFormat
	prefill                bool
}

const (
	keyPage     = 64  // slots of a page of timed cases
	keyPages    = 256 // different pages of keys
	mostScored  = 1 << 28
	sampledKeys = 256 // neighbouring entries of a token that a check looks at
)

// scorings returns the sizes of the scores: decode steps, then prefills with at most a GiB of them.
func scorings(o SizeOptions, format cache.IndexKeyFormat) (all []scoring) {
	for _, context := range o.contexts() {
		for _, t := range o.batches() {
			all = append(all, scoring{t, context / 4, o.indexHeads(), format, false})
		}
		for _, t := range o.prefill() {
			if t <= context && t*context/4 <= mostScored {
				all = append(all, scoring{t, context / 4, o.indexHeads(), format, true})
			}
		}
	}
	return all
}

// name returns the sizes; entries are a fourth of the context.
func (s scoring) name() string {
	name := fmt.Sprintf("tokens=%d/context=%d/heads=%d", s.tokens, 4*s.entries, s.heads)
	if s.prefill {
		return "prefill/" + name
	}
	return name
}

func (s scoring) requests() int {
	if s.prefill {
		return 1
	}
	return s.tokens
}

// visible returns how many entries a token sees.
func (s scoring) visible(token int) int {
	if s.prefill {
		return (4*s.entries - s.tokens + token + 1) / 4
	}
	return s.entries
}

func (s scoring) pageBytes() int { return keyPage * (s.format.RowBytes() + cache.IndexScaleBytes) }

// size describes scores. Results take results bytes, and each more for every visible entry.
func (s scoring) size(results, each int) Size {
	row, rows := s.format.RowBytes(), s.requests()*s.entries
	visible := 0
	for i := range s.tokens {
		visible += s.visible(i)
	}
	keys, queries := rows*(row+cache.IndexScaleBytes), s.tokens*s.heads
	return Size{
		Name: s.name(), Make: s.random,
		Work:     Work{Bytes: float64(keys + queries*(row+8) + results + each*visible), Flop: 2 * float64(visible*s.heads) * cache.IndexDim},
		Touched:  keys + queries*row + results + each*s.tokens*s.entries,
		MaxBytes: uint64(max((rows/keyPage+s.requests())*s.pageBytes(), RotateBytes)+keyPages*s.pageBytes()) + uint64(each*s.tokens*s.entries),
	}
}

// random makes queries, and pages of keys that block tables name over and over.
func (s scoring) random(rng *rand.Rand) Case {
	l := cache.IndexKeyLayout{Page: keyPage, Stride: (s.pageBytes() + 15) / 16 * 16, Format: s.format}
	width := (s.entries + keyPage - 1) / keyPage
	pages := min(s.requests()*width, keyPages)
	pool := vectors.Filled(0xFF, vectors.U8, pages, l.Stride)
	fillKeys(rng, pool.Data, l, pages, logitsNormal)
	table := make([]int32, s.requests()*width)
	for i, p := range rng.Perm(len(table)) {
		table[i] = int32(p % pages)
	}
	lens, req := make([]int32, s.tokens), make([]int32, s.tokens)
	for i := range lens {
		if lens[i] = int32(s.visible(i)); !s.prefill {
			req[i] = int32(i)
		}
	}
	group := 1
	if s.prefill {
		group = s.tokens
	}
	c := Case{
		Params: map[string]any{"block_size": keyPage, "columns": s.entries, "group": group},
		In:     randomQueryRows(rng, s.format, logitsNormal, s.tokens, s.heads),
	}
	maps.Copy(c.In, Arrays{"cache": pool, "context_lens": vectors.FromI32(lens, s.tokens),
		"block_table": vectors.FromI32(table, s.requests(), width), "token_to_req": vectors.FromI32(req, s.tokens)})
	return c
}

func logitsSizes(o SizeOptions, format cache.IndexKeyFormat) (all []Size) {
	for _, s := range scorings(o, format) {
		all = append(all, s.size(0, 4))
	}
	return all
}

// sampleTokens returns a scoring case of some of its tokens.
func sampleTokens(c Case, at []int) Case {
	c.In = maps.Clone(c.In)
	for _, name := range []string{"q_fp8", "q_packed", "q_scale", "weights", "context_lens", "token_to_req", "blocks"} {
		if a, ok := c.In[name]; ok {
			c.In[name] = Take(a, [][]int{at})
		}
	}
	return c
}

// sampleLogits takes the first, some middle and the last visible entries of up to three tokens.
func sampleLogits(c Case) (all []Piece) {
	lens := c.In["context_lens"].I32()
	for _, t := range Some(3, len(lens)) {
		n := int(lens[t])
		width := min(sampledKeys, n)
		for _, first := range []int{0, (n - width) / 2, n - width} {
			p := Piece{Case: sampleTokens(c, []int{t}), Out: map[string][][]int{"logits": {{t}, indices(first, width)}}}
			p.Case.Params = maps.Clone(c.Params)
			p.Case.Params["first"], p.Case.Params["columns"] = first, width
			all = append(all, p)
		}
	}
	return all
}

// indices are n indices from first on.
func indices(first, n int) []int {
	at := make([]int, n)
	for i := range at {
		at[i] = first + i
	}
	return at
}

// selectSizes returns the scores' sizes, each with every number of picks.
func selectSizes(o SizeOptions, format cache.IndexKeyFormat) (all []Size) {
	for _, s := range scorings(o, format) {
		for _, k := range o.pick(o.TopK, []int{512, 1024}, []int{512}) {
			x := s.size(4*s.tokens*k, 0)
			x.Name += fmt.Sprintf("/k=%d", k)
			x.Make = func(rng *rand.Rand) Case {
				c := s.random(rng)
				c.Params["k"] = k
				return c
			}
			all = append(all, x)
		}
	}
	return all
}

// sampleSelect takes one token: its reference scores all entries that it sees.
func sampleSelect(c Case) []Piece {
	last := c.In["context_lens"].Dim(0) - 1
	return []Piece{{Case: sampleTokens(c, []int{last}), Out: map[string][][]int{"topk_indices": {{last}}}}}
}

// refScores is indexer.LogitsRef by all processors.
func refScores(x indexer.LogitsHost, out []float32) error {
	const least = 1 << 12 // columns
	t, parts := len(x.Lens), min(runtime.NumCPU(), x.Width/least)
	if parts < 2 {
		return indexer.LogitsRef(x, out)
	}
	var all sync.WaitGroup
	errs := make([]error, parts)
	for p := range parts {
		y := x
		y.First, y.Width = x.First+p*x.Width/parts, (p+1)*x.Width/parts-p*x.Width/parts
		all.Go(func() {
			part := make([]float32, t*y.Width)
			at := y.First - x.First
			for i := range t {
				copy(part[i*y.Width:][:y.Width], out[i*x.Width+at:])
			}
			errs[p] = indexer.LogitsRef(y, part)
			for i := range t {
				copy(out[i*x.Width+at:], part[i*y.Width:][:y.Width])
			}
		})
	}
	all.Wait()
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}
