package layer

import (
	"slices"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
)

// op is an operation of a layer, named as its product is in the model, or for what it does.
type op int

const (
	wqaWkv        op = iota // queries' bottleneck beside KV rows; norms the bottleneck where traits.fusedNorm
	wgate                   // inputs of the compressor
	wgateFirst              // the same, where it comes before wqaWkv: see traits.gatesFirst
	indexWgate              // inputs of the indexer's compressor
	weightsProj             // the indexer's weights of heads
	userCommands            // what Args.Beside records
	inputSums               // adds up parts of the products above
	qkvNorm                 // norms of bottleneck and KV rows; where not traits.fusedNorm
	save                    // the compressor's states; where not traits.saves
	indexSave               // likewise of the indexer's compressor
	compress                // compressed entries of the groups that the step completes
	indexWk                 // inputs of the indexer's keys, where these are made of latents
	indexCompress           // the indexer's keys of these
	wqB                     // queries of the heads
	indexWqB                // queries of the indexer
	kvInsert                // KV rows into the cache; norm and rotation of queries where not traits.lateQueries
	indexQuantise           // the indexer's queries; where not traits.rawScores
	indexScores             // scores of entries. What follows in its level runs beside the first of them
	indexSelect             // the picks; recorded with indexScores
	touchPool               // translates the addresses of entries
	attend                  // attention, to its parts where traits.joined
	inverseRope             // undoes RoPE in the output; where not traits.unroped
	woA                     // where not traits.chained
	woB                     // likewise
	woAB                    // both in one launch, which joins the attention's parts where traits.joined
	codesHidden             // Hidden with fewer bits, for products that take it so: see traits.codes
	codesQLoRA              // likewise the bottleneck
	codesO                  // likewise the attention's output, with RoPE undone
	codesOLoRA              // likewise what wo_a gives
	ops                     // how many there are
)

// sections are the names that ops are timed under. Ops without one go with those before them.
var sections = [ops]string{
	wqaWkv: "wq_a|wkv", wgate: "compressor.wkv|wgate", wgateFirst: "compressor.wkv|wgate",
	indexWgate: "indexer.compressor.wkv|wgate", weightsProj: "indexer.weights_proj", inputSums: "input_sums",
	qkvNorm: "q_kv_norm", save: "compressor.save", indexSave: "indexer.compressor.save",
	compress: "compressor.compress", indexWk: "indexer.wk", indexCompress: "indexer.compressor.compress",
	wqB: "wq_b", indexWqB: "indexer.wq_b", kvInsert: "q_norm_rope_kv_insert", indexQuantise: "indexer.q_quantise",
	indexScores: "indexer.select", indexSelect: "indexer.select", touchPool: "indexer.select",
	attend: "attention", inverseRope: "inverse_rope", woA: "wo_a", woB: "wo_b", woAB: "wo_a, wo_b",
	codesHidden: "hidden.quantise", codesQLoRA: "q_lora.quantise", codesO: "o.quantise", codesOLoRA: "o_lora.quantise",
}

// level is a list of ops that do not wait for each other, in the order of recording. What is
// recorded first begins first, and a product leaves little room beside it. So what is short, or
// takes long in few workgroups, comes first: after a product in the list it would end later than
// it. A step of 8 tokens loses 2 % with kvInsert after wqB. One of 16, 32 or 64 tokens that
// completes an entry of 128 loses 2 to 3 % with compress after wqB.
type level []op

// schedule is the order of a layer's ops. A layer skips the ops that it does not have, and then
// levels without ops: see traits.has. Every op stands after those whose results it takes, which
// TestScheduleOrder holds. Beyond that the order decides only how long a step takes: the recorder
// derives barriers from what ops read and write, and TestLevels counts them.
//
// Gains and losses are of whole steps of DeepSeek-V4-Flash; docs/design/step.md has more.
type schedule []level

// The first levels. wqaWkv leads, so that its norm, which one workgroup does, is done while others
// multiply: after the others it costs a step of 32 tokens 0.9 %.
var (
	inputs    = level{wgateFirst, wqaWkv, wgate, indexWgate, weightsProj, userCommands}
	sums      = level{inputSums}
	normLevel = level{qkvNorm, save, indexSave}

	head = schedule{{codesHidden}, inputs, sums, normLevel, {codesQLoRA}}
	tail = schedule{{attend}, {inverseRope}, {codesO}, {woA, woAB}, {codesOLoRA}, {woB}}
)

// whole returns the schedule that begins with head, and ends with tail.
func whole(head schedule, middle ...level) schedule { return slices.Concat(head, middle, tail) }

// The schedules. A layer picks if it has an indexer of its own: in V4 C4A layers do, window and
// C128A layers do not; in V4.1 those of its full and reindex roles do (model.V41Layers).
var (
	// No picks, and the attention norms queries and applies RoPE: nothing waits for wqB before it.
	attends = whole(head,
		level{compress, kvInsert, wqB})

	// No picks: kvInsert norms what wqB gives and applies RoPE.
	attendsNormed = whole(head,
		level{compress, wqB},
		level{kvInsert})

	// Picks, few tokens. The selection ends with a launch of few workgroups, so wqB costs least
	// beside it. Entries take long in few workgroups, and there no score waits for them. A step of
	// one token gains 1 to 1.7 %, one of 4 or 8 gains 0.6 %.
	picksFew = whole(head,
		level{indexCompress, indexWqB},
		level{indexQuantise},
		level{indexScores},
		level{indexSelect, touchPool, compress, kvInsert, wqB})

	// The same where touchPool has something to do: it reads entries, so they come before it.
	picksTouched = whole(head,
		level{compress, indexCompress, indexWqB},
		level{indexQuantise},
		level{indexScores},
		level{indexSelect, touchPool, kvInsert, wqB})

	// Picks, few tokens, and the attention does not norm queries.
	picksNormed = whole(head,
		level{compress, indexCompress, wqB, indexWqB},
		level{kvInsert, indexQuantise},
		level{indexScores},
		level{indexSelect, touchPool})

	// Picks, from tuning.Layer.BesideTokens on, which says what wqB beside the scores gains.
	// Entries beside them gain another 2 % of a step of 32 tokens, 0.6 % of one of 16.
	picksMany = whole(head,
		level{indexWqB, indexCompress},
		level{indexQuantise},
		level{indexScores, compress, wqB},
		level{indexSelect, touchPool, kvInsert})

	// Picks, and keys are made of the entries' latents: three launches one after the other, with
	// those beside them that do not need their results.
	picksLatent = whole(head,
		level{compress, indexWqB},
		level{indexWk, indexQuantise, wqB},
		level{indexCompress, kvInsert},
		level{indexScores},
		level{indexSelect, touchPool})

	// Picks, and the attention gathers rows: products of a prompt's tokens fill the device many
	// times, and it is their last workgroups that leave it idle. So products are beside each other,
	// and what is bound by memory is beside the end of them.
	picksPrompt = whole(schedule{{codesHidden}, {weightsProj, wgateFirst, wgate, wqaWkv, indexWgate, userCommands}, sums,
		{qkvNorm, indexSave}, {codesQLoRA}},
		level{indexWqB, save, indexCompress},
		level{wqB, compress, indexQuantise},
		level{kvInsert},
		level{indexScores},
		level{indexSelect, touchPool})
)

// contexts is the schedule of a layer that drafts for tokens of the context: it keeps their KV
// rows.
var contexts = schedule{{codesHidden}, inputs, sums, normLevel, {kvInsert}}

// traits describes what a layer has and what its operations fuse, which decides its schedule.
type traits struct {
	tokens     int  // T
	indexer    bool // has an indexer
	compresses bool // has a compressor
	keys       bool // has index keys of its own
	latentKeys bool // and makes them of latents
	ungated    bool // the compressor weighs no tokens, and has no states

	fusedNorm   bool // wqaWkv norms the bottleneck, and kvInsert KV rows
	saves       bool // compressors store the states themselves
	lateQueries bool // the attention norms queries and applies RoPE
	gathers     bool // the attention gathers rows
	rawScores   bool // the kernel of the scores quantises the indexer's queries
	touch       bool // the pool of entries may grow to a size to be touched
	touches     bool // and is of one
	unroped     bool // the attention, or what joins its parts, undoes RoPE
	chained     bool // woA and woB are one launch
	joined      bool // and it joins the attention's parts
	sums        bool // some of the first products are in parts
	gatesFirst  bool // wgate takes longer than wqaWkv and begins before it

	codes [sources]bool // products take it with fewer bits
}

// choose returns the schedule of a layer, without the ops that it does not have.
func choose(n *tuning.Layer, t traits) schedule {
	var table schedule
	switch {
	case !t.indexer && t.lateQueries:
		table = attends
	case !t.indexer:
		table = attendsNormed
	case t.latentKeys:
		table = picksLatent
	case t.gathers:
		table = picksPrompt
	case t.tokens >= n.BesideTokens:
		table = picksMany
	case !t.lateQueries:
		table = picksNormed
	case t.touches:
		table = picksTouched
	default:
		table = picksFew
	}
	// Without a norm inside, a compute unit has room for one workgroup of these products at a time.
	t.gatesFirst = t.tokens >= n.BesideTokens && !t.fusedNorm
	return table.of(t)
}

// of is the schedule without the ops that a layer does not have.
func (table schedule) of(t traits) (s schedule) {
	for _, all := range table {
		var l level
		for _, o := range all {
			if t.has(o) {
				l = append(l, o)
			}
		}
		if len(l) > 0 {
			s = append(s, l)
		}
	}
	return s
}

// has reports whether the layer has an op.
func (t *traits) has(o op) bool {
	switch o {
	case codesHidden:
		return t.codes[fromHidden]
	case codesQLoRA:
		return t.codes[fromQLoRA]
	case codesO:
		return t.codes[fromO]
	case codesOLoRA:
		return t.codes[fromOLoRA]
	case wgate:
		return t.compresses && !t.gatesFirst
	case wgateFirst:
		return t.compresses && t.gatesFirst
	case compress:
		return t.compresses
	case save:
		return t.compresses && !t.ungated && !t.saves
	case indexCompress:
		return t.keys
	case indexWk:
		return t.latentKeys
	case indexWgate:
		return t.keys && !t.latentKeys
	case indexSave:
		return t.keys && !t.latentKeys && !t.saves
	case weightsProj, indexWqB, indexScores, indexSelect:
		return t.indexer
	case touchPool:
		return t.indexer && t.touch
	case indexQuantise:
		return t.indexer && !t.rawScores
	case inputSums:
		return t.sums
	case qkvNorm:
		return !t.fusedNorm
	case inverseRope:
		return !t.unroped
	case woA, woB:
		return !t.chained
	case woAB:
		return t.chained
	}
	return true
}

// wants lists what a kind of layer asks of its operations, where they can do it.
type wants struct {
	fusedNorm bool // norms inside products
	saves     bool // states stored by compressors
	raw       bool // scores of queries that are not quantised
	chains    bool // wo_a and wo_b in one launch
	joins     bool // which joins the attention's parts
	touch     bool // a kernel that touches the pool of entries
	touches   bool // a schedule for a pool that is touched
}

// wanted decides for steps of `tokens` tokens and a pool of entries of `pool` bytes.
func wanted(n *tuning.Layer, tokens int, pool uint64) wants {
	return wants{
		fusedNorm: tokens <= n.NormTokens,
		saves:     tokens <= n.NormTokens,
		raw:       tokens <= n.NormTokens,
		chains:    tokens <= min(n.ChainTokens, projection.LinearChainTokens),
		joins:     tokens <= min(n.JoinTokens, projection.LinearChainTokens),
		touch:     pool >= n.TouchLeast,
		touches:   pool >= n.TouchLeast && pool <= n.TouchMost,
	}
}
