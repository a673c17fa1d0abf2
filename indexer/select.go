package indexer

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// SelectConfig says what a Select is built for.
type SelectConfig struct {
	K      int          // width of the selection, 1 to MaxK
	Logits LogitsConfig // how entries are scored; its Variant is that of the Select

	// Workgroups and Threads are those of TopKConfig.
	Workgroups, Threads int
	// Segment is the number of entries that are scored between two selections, at least K, rounded
	// up to a multiple of 64; 0: SelectSegment. Results do not depend on it. A Record takes at most
	// 65536 of them, of all tokens together.
	Segment int
	// Rows is the number of tokens that are taken at a time, rounded up to a multiple of 64; 0:
	// selectRows. Results do not depend on it.
	Rows int

	// SlotPage is the slots per page of the cache that SelectArgs.Slots is about; 0: no slots.
	SlotPage int

	// Candidates is the number of candidate blocks of each token that are selected besides, from
	// the same scores, 0 to MaxK; 0: none. Logits.Block is the number of entries of each. With
	// Logits.Blocks there are none: picks are then made among the entries of given blocks.
	Candidates int

	// OnDemand leaves it to Prepare and Record to ask for the kernels that they need. Otherwise
	// NewSelect asks for all.
	OnDemand bool
}

// PickSlots holds the places of the picked entries in a paged cache, as attention wants them.
// attention.GlobalTopK would make the same of the picks, in a launch of its own.
type PickSlots struct {
	BlockTable tensor.Tensor // [R, W] i32: pages of that cache
	Slots      tensor.Tensor // [T, K] i32, written: the entries' slots, -1 for none, or one that the table does not have
	Lens       tensor.Tensor // [T] i32, written: how many entries were picked
}

// SelectArgs are the tensors of one Select.
type SelectArgs struct {
	LogitsArgs               // without First and Out
	TopK       tensor.Tensor // [T, K] i32, written
	Entries    int           // entries of a request at most, more are not looked at; 0: the keys of a row of BlockTable
	Scratch    vk.View       // ScratchBytes(T) bytes, device memory

	Slots PickSlots // with SelectConfig.SlotPage only

	Candidates CandidateBlocks // with SelectConfig.Candidates only, written

	// Arrived is [T, SelectCounters] i32, all 0, and left 0. With it, one launch instead of two
	// selects from the scores of few tokens, or the launch that makes the scores does. May be
	// absent.
	Arrived tensor.Tensor

	// Beside, unless nil, records what does not depend on the selection, to run at the same time as
	// the scores of the first round, because few scores leave most of a device's bandwidth unused.
	// It is called once, after all checks. Record returns its error.
	Beside func() error
}

// Select scores the entries that a token may see and keeps the K best of them, in
// memory that does not depend on how many they are: a segment of entries is scored,
// the best so far and the best of the segment become the best so far, and so on. The
// result is bit for bit that of Logits followed by TopK over all entries.
//
// With SelectConfig.Candidates the same scores also give candidate blocks: bit for bit what
// Candidates gives of all entries. With LogitsConfig.Blocks the entries are those of such blocks,
// and picks are again entries of the request: the K best of at most Logits.Block for each block,
// however long the context is.
//
// What is recorded suits contexts up to Entries: a token with fewer is finished in the
// segment where they end, and the launches for later segments find nothing to do.
type Select struct {
	dev    *vk.Device
	cfg    SelectConfig
	logits *Logits
	topk   *TopK
	topped *Logits // with tops, for tiles; nil where there are none
	tiles  *tileTopK
	// picking makes the scores and picks; nil where two launches do.
	picking *Logits
	blocks  *Candidates       // with SelectConfig.Candidates
	within  *CandidateEntries // with LogitsConfig.Blocks
}

// selectRows is the most tokens that a Select takes at a time.
const selectRows = 512

const (
	selectLogits = 1 << 23 // scores of one round at most, 32 MiB: what bounds the scratch
	selectMost   = 1 << 18 // entries of a segment at most: those of a context of 1048576
)

// selectSegment returns how many entries are scored between two selections where `tokens` tokens
// are taken at a time: the largest power of two of at most 2^23 / tokens and 2^18.
func selectSegment(tokens int) int {
	n := selectMost
	for n > 64 && n*tokens > selectLogits {
		n /= 2
	}
	return n
}

func selectScratch(rows, segment, lists, k int) uint64 {
	scores, tops := tensor.Need(tensor.F32, rows, segment), tensor.Need(tensor.U32, rows, topsWidth(segment))
	return scores + tensor.Need(tensor.U8, int(listBytes(rows, lists, k))) + tops
}

// selectTile returns how many of the tokens are taken at a time: an even share, in multiples of 64
// because bindings are aligned.
func selectTile(tokens, most int) int {
	if tokens <= most {
		return tokens
	}
	return opkit.RoundUp(opkit.CeilDiv(tokens, opkit.CeilDiv(tokens, most)), 64)
}

// NewSelect builds the kernels. The device owns them; there is nothing to close.
//
// Errors: those of NewLogits and NewTopK; vk.ErrArgument for a segment shorter than
// K or a negative number of rows.
func NewSelect(dev *vk.Device, cfg SelectConfig) (*Select, error) {
	const op = "new select"
	cfg.Logits.onDemand = cfg.OnDemand
	o := &Select{dev: dev, cfg: cfg}
	err := pkg.Range(op, "SlotPage", cfg.SlotPage, 0, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	pick := TopKConfig{K: cfg.K, Workgroups: cfg.Workgroups, Threads: cfg.Threads, slotPage: cfg.SlotPage, onDemand: cfg.OnDemand}
	if cfg.Logits.Blocks > 0 {
		pick.slotPage = 0 // the picks are columns
	}
	if o.topk, err = NewTopK(dev, pick); err != nil {
		return nil, err
	}
	if o.logits, err = NewLogits(dev, cfg.Logits); err != nil {
		return nil, err
	}
	if err = o.buildBlocks(op); err != nil {
		return nil, err
	}
	if o.logits.inLanes && cfg.Logits.Blocks == 0 {
		if o.tiles, err = o.topk.buildTiles(o.logits.lanes.m); err != nil {
			return nil, err
		}
	}
	if o.tiles != nil {
		with := cfg.Logits
		with.tops = true
		if o.topped, err = NewLogits(dev, with); err != nil {
			return nil, err
		}
	}
	if err := o.buildPicks(); err != nil {
		return nil, err
	}
	if cfg.Segment != 0 {
		if err := pkg.Range(op, "Segment", cfg.Segment, cfg.K, math.MaxInt32/2); err != nil {
			return nil, err
		}
	}
	if err := pkg.Range(op, "Rows", cfg.Rows, 0, math.MaxInt32/2); err != nil {
		return nil, err
	}
	o.cfg.Segment = opkit.RoundUp(cfg.Segment, 64)
	if o.cfg.Rows = opkit.RoundUp(cfg.Rows, 64); cfg.Rows == 0 {
		o.cfg.Rows = selectRows
	}
	return o, nil
}

// buildBlocks builds what selects candidate blocks, or what picks among those need.
func (o *Select) buildBlocks(op string) (err error) {
	cfg := o.cfg
	switch {
	case cfg.Candidates == 0 && cfg.Logits.Blocks == 0:
		return nil
	case cfg.Logits.Blocks == 0:
		o.blocks, err = NewCandidates(o.dev, CandidatesConfig{K: cfg.Candidates, Block: cfg.Logits.Block, Workgroups: cfg.Workgroups,
			Threads: cfg.Threads, onDemand: cfg.OnDemand})
		return err
	case cfg.Candidates != 0:
		return pkg.Wrong(op, "Candidates", cfg.Candidates, "0 with Logits.Blocks")
	}
	o.within, err = NewCandidateEntries(o.dev, CandidateEntriesConfig{
		Block: cfg.Logits.Block, SlotPage: cfg.SlotPage, onDemand: cfg.OnDemand})
	return err
}

// candidateRows returns the number of rows of a round, at most `most`. A round has the entries of k
// candidate blocks for each row, and its scores must keep within their bound.
func candidateRows(most, k, block int) int {
	return min(most, max(64, selectLogits/max(k*block, 1)&^63))
}

// plan divides t tokens: `rows` of them at a time, `segment` entries of each, with `lists` lists of
// candidates.
func (o *Select) plan(t int) (rows, segment, lists int) {
	rows = selectTile(t, candidateRows(o.cfg.Rows, o.cfg.Candidates, o.cfg.Logits.Block))
	if segment = o.cfg.Segment; segment == 0 {
		segment = max(selectSegment(rows), opkit.RoundUp(o.cfg.K, 64))
	}
	// A round fills a list.
	segment = max(segment, opkit.RoundUp(o.cfg.Candidates*o.cfg.Logits.Block, 64))
	return rows, segment, max(topkLists(o.topk.slices(rows, segment)), 1)
}

// ScratchBytes returns the scratch bytes that Record needs for t tokens, with contexts of any
// length.
func (o *Select) ScratchBytes(t int) uint64 {
	if t < 1 {
		return 0
	}
	rows, segment, lists := o.plan(t)
	bytes := selectScratch(rows, segment, lists, o.cfg.K)
	if o.blocks != nil {
		bytes += o.blocks.plan(rows, segment, true).bytes
	}
	return bytes
}

// Record checks the arguments and records the launches: for every 512 tokens and segment of Entries
// one of Logits and one or two of TopK, or one of both. Lengths, tables and requests are read when
// the commands run.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Select) Record(rec *vk.Recorder, a SelectArgs) error {
	const op = "select"
	t := a.tokens()
	rows, segment, _ := o.plan(t)
	entries := a.Entries
	if entries == 0 {
		entries = o.reach(a, segment)
	}
	if err := opkit.FirstError(
		pkg.Check(op, "TopK", a.TopK, tensor.I32, t, o.cfg.K),
		pkg.Range(op, "Entries", entries, 0, math.MaxInt32-segment),
		o.checkRounds(op, "Entries", t, entries),
		pkg.Grid(o.dev, op, "Q", min(t, rows), 1, 0),
		checkScratch(o.dev, op, a.Scratch, o.ScratchBytes(t)),
		checkSlots(op, o.cfg.SlotPage, t, o.cfg.K, a.Slots),
		o.checkCandidates(op, t, rows, a.Candidates),
		pkg.Optional(op, "Arrived", a.Arrived, tensor.I32, t, SelectCounters),
	); err != nil {
		return err
	}
	if o.within != nil { // whose launch is for all tokens, not for a round's
		if err := o.within.checkLaunch(op, "TopK", a.TopK, a.Blocks); err != nil {
			return err
		}
	}
	if a.First != 0 || !a.Out.IsZero() {
		return pkg.Wrong(op, "First, Out", fmt.Sprintf("%d, %v", a.First, a.Out), "0 and absent: the scores are in Scratch")
	}
	if t == 0 {
		if a.Beside != nil {
			return a.Beside()
		}
		return nil
	}
	rounds := o.rounds(a, t, entries)
	for _, r := range rounds { // everything is checked before anything is recorded
		if err := o.logits.check(op, r.logits); err != nil {
			return err
		}
		if _, _, err := o.logits.grid(op, r.logits.Out.Shape[0], r.logits.First, r.logits.Out.Shape[1]); err != nil {
			return err
		}
	}
	for i, r := range rounds {
		if err := o.recordScores(rec, op, r); err != nil {
			return err
		}
		if i == 0 && a.Beside != nil {
			if err := a.Beside(); err != nil {
				return err
			}
		}
		if r.picks.group == 0 {
			if err := o.topk.record(rec, op, r.topk); err != nil {
				return err
			}
		}
		if o.blocks != nil {
			if err := o.blocks.record(rec, op, r.plan, r.blocks); err != nil {
				return err
			}
		}
	}
	if o.within == nil {
		return nil
	}
	e := CandidateEntriesArgs{Picks: a.TopK, Blocks: a.Blocks, Slots: a.Slots}
	return o.within.record(rec, op, e, entries, a.TokenToReq.View(), a.Lens.View())
}

func (o *Select) recordScores(rec *vk.Recorder, op string, r selectRound) error {
	if r.picks.group > 0 {
		return o.recordPicks(rec, op, r)
	}
	return o.scores(r).Record(rec, r.logits)
}

// reach returns the most entries of a request that can be looked at.
func (o *Select) reach(a SelectArgs, segment int) int {
	if o.within != nil {
		return o.cfg.Logits.Blocks * o.cfg.Logits.Block
	}
	return min(opkit.DimOrZero(a.BlockTable, 1)*o.cfg.Logits.Page, math.MaxInt32-segment)
}

// checkCandidates checks the candidate blocks that are to be written.
func (o *Select) checkCandidates(op string, t, rows int, c CandidateBlocks) error {
	if o.blocks != nil {
		return opkit.FirstError(o.blocks.checkOut(op, t, c), o.blocks.checkLaunch(op, "Q", min(t, rows)))
	}
	if !c.Blocks.IsZero() || !c.Columns.IsZero() {
		return pkg.Wrong(op, "Candidates", c.Blocks, "absent: SelectConfig.Candidates is 0")
	}
	return nil
}

// Prepare asks for the kernels of a Record of t tokens and `entries` entries, with or without
// Arrived, so that they are compiled in the background. It is for SelectConfig.OnDemand.
//
// Errors: vk.ErrArgument for numbers out of range; those of vk.Device.Kernel.
func (o *Select) Prepare(t, entries int, arrived bool) error {
	const op = "select"
	if err := opkit.FirstError(
		pkg.Range(op, "t", t, 1, math.MaxInt32), pkg.Range(op, "entries", entries, 0, math.MaxInt32/2),
		o.checkRounds(op, "entries", t, entries),
	); err != nil {
		return err
	}
	var a SelectArgs
	if arrived {
		a.Arrived = tensor.Of(o.dev.Dummy(), tensor.I32, t, SelectCounters) // nothing is bound
	}
	for _, r := range o.rounds(a, t, entries) {
		kernels := []*opkit.Later{o.scores(r).k}
		if r.picks.group == 0 {
			kernels = append(kernels, o.topk.kernels(r.topk)...)
		}
		if o.blocks != nil {
			kernels = append(append(kernels, o.blocks.topk.kernels(o.blocks.topkRound(r.plan, r.blocks))...), o.blocks.k)
		}
		if err := opkit.Ask(kernels...); err != nil {
			return err
		}
	}
	if o.within != nil {
		return opkit.Ask(o.within.k)
	}
	return nil
}

// scores returns the operation that scores the entries of a round.
func (o *Select) scores(r selectRound) *Logits {
	switch {
	case r.picks.group > 0:
		return o.picking
	case r.topk.tiles != nil:
		return o.topped
	}
	return o.logits
}

type selectRound struct {
	picks  pickPlan
	logits LogitsArgs
	topk   topkRound
	blocks candidateRound // with candidate blocks
	plan   candidatePlan
}

// selectRounds is the most rounds of a Record: enough for 2^19 tokens of contexts of 2^20 entries
// by default segments. A round takes about two kilobytes of the host, and several launches.
const selectRounds = 1 << 16

// checkRounds checks that segments are not too small for `entries` entries.
func (o *Select) checkRounds(op, arg string, t, entries int) error {
	rows, segment, _ := o.plan(max(t, 1))
	tiles := opkit.CeilDiv(t, rows)
	if tiles*max(opkit.CeilDiv(entries, segment), 1) <= selectRounds {
		return nil
	}
	return pkg.Wrong(op, arg, entries, "at most %d, with %d tokens and segments of %d", selectRounds/tiles*segment, t, segment)
}

// rounds lists the rounds of all tokens: of each tile of rows its segments in order.
func (o *Select) rounds(a SelectArgs, t, entries int) []selectRound {
	rows, segment, lists := o.plan(t)
	scores := tensor.Need(tensor.F32, rows, segment)
	tops := scores + tensor.Need(tensor.U8, int(listBytes(rows, lists, o.cfg.K)))
	unit := 4 // rows of scores are loaded by fours, or block by block
	var plan candidatePlan
	if o.blocks != nil {
		unit, plan = blockUnit(o.cfg.Logits.Block), o.blocks.plan(rows, segment, true)
	}
	// Where a round needs at most half of the memory for scores, rounds take halves by turns: the
	// scores of one do not wait for the selection of the one before.
	half := scores / 2 &^ (tensor.Align - 1)
	if uint64(rows)*uint64(opkit.RoundUp(min(segment, max(entries, 1)), unit))*4 > half {
		half = 0
	}
	var all []selectRound
	for low := 0; low < t; low += rows {
		high := min(low+rows, t)
		part := func(x tensor.Tensor) tensor.Tensor {
			if x.IsZero() || len(x.Shape) == 0 || x.Shape[0] != t {
				return x // the check refuses it
			}
			return x.Rows(low, high)
		}
		// Without entries one round still writes that the rows have none.
		for first := 0; first == 0 || first < entries; first += segment {
			n := opkit.RoundUp(max(min(segment, entries-first), 1), unit)
			l := a.LogitsArgs
			l.Q, l.QScale, l.Weights, l.TokenToReq, l.Lens = part(l.Q), part(l.QScale), part(l.Weights), part(l.TokenToReq), part(l.Lens)
			l.Raw, l.Blocks = l.Raw.rows(part), part(l.Blocks)
			l.First = first
			at := a.Scratch.Offset + uint64(len(all)%2)*half
			l.Out = tensor.Of(a.Scratch.Buffer.View(at, uint64(high-low)*uint64(n)*4), tensor.F32, high-low, n)
			k := topkRound{logits: l.Out, lens: l.Lens, out: part(a.TopK), arrived: part(a.Arrived),
				slices: o.topk.slices(rows, n), lists: lists, first: first, limit: entries,
				scratch: a.Scratch.Buffer.View(a.Scratch.Offset+scores, listBytes(high-low, lists, o.cfg.K))}
			// All columns count in tops, so none may be beyond Entries.
			if entries == n && o.tiles != nil && o.tiles.suits(o.topk, high-low, n, topsWidth(segment), lists, k.arrived) {
				l.tops = topsAt(a.Scratch.Buffer.View(a.Scratch.Offset+tops, a.Scratch.Size-tops), high-low, segment)
				k.tops, k.tiles = l.tops, o.tiles
			}
			if o.cfg.SlotPage > 0 && o.within == nil {
				k.slots, k.requests = PickSlots{a.Slots.BlockTable, part(a.Slots.Slots), part(a.Slots.Lens)}, l.TokenToReq
			}
			round := selectRound{logits: l, topk: k, picks: o.planPicks(k), plan: plan}
			if o.blocks != nil {
				from := selectScratch(rows, segment, lists, o.cfg.K)
				round.blocks = candidateRound{logits: l.Out, lens: l.Lens, first: first, limit: entries,
					out:     CandidateBlocks{part(a.Candidates.Blocks), part(a.Candidates.Columns)},
					scratch: a.Scratch.Buffer.View(a.Scratch.Offset+from, plan.bytes)}
			}
			all = append(all, round)
		}
	}
	return all
}
