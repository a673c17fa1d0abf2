package indexer

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// CandidatesConfig says what a Candidates is built for.
type CandidatesConfig struct {
	K       int    // candidate blocks of a token, 1 to MaxK
	Block   int    // entries of a block, a power of two up to MaxBlock
	Variant string // a build, as vkmla info lists them; "" picks the best

	Workgroups, Threads int // as in TopKConfig

	onDemand bool // see SelectConfig.OnDemand
}

// CandidateBlocks are the blocks of entries in which later layers look for their picks.
type CandidateBlocks struct {
	Blocks  tensor.Tensor // [T, K] i32, written: block numbers within the request, ascending, -1 after the last
	Columns tensor.Tensor // [T] i32, written: entries of these blocks that the token sees
}

// CandidatesArgs are the tensors of one Candidates.
type CandidatesArgs struct {
	Logits  tensor.Tensor // [T, N] f32, N a multiple of Block and of 4; columns from Lens[t] on do not count
	Lens    tensor.Tensor // [T] i32: entries that a token sees, clamped to 0..N
	Out     CandidateBlocks
	Scratch vk.View       // ScratchBytes(T, N) bytes, device memory
	Arrived tensor.Tensor // as in TopKArgs
}

// Candidates selects the K best blocks of entries of every row, by the largest logit of a block.
// The newest block is always one of them. Of equal blocks the older one is taken. The definition is
// CandidatesRef; results are equal bit for bit, on every device and in every run.
//
// A launch makes a score of each block, and a [TopK] selects from these.
//
// Source: DeepSeek-V4.1 inference/model.py; vLLM candidate_blocks.py.
type Candidates struct {
	dev  *vk.Device
	cfg  CandidatesConfig
	topk *TopK
	k    *opkit.Later
}

// idxCandidatesPush is the push block of idx_candidates.comp.
type idxCandidatesPush struct {
	Width, First, Limit, Keep uint32
}

// candidateThreads is the number of blocks that a workgroup of idx_candidates takes.
const candidateThreads = 128

// NewCandidates builds the kernels. The device owns them; there is nothing to close.
//
// Errors: vk.ErrArgument for another Block; those of NewTopK.
func NewCandidates(dev *vk.Device, cfg CandidatesConfig) (*Candidates, error) {
	if err := checkBlock("new candidates", "Block", cfg.Block); err != nil {
		return nil, err
	}
	topk, err := NewTopK(dev, TopKConfig{K: cfg.K, Variant: cfg.Variant, Workgroups: cfg.Workgroups, Threads: cfg.Threads,
		onDemand: cfg.onDemand})
	if err != nil {
		return nil, err
	}
	o := &Candidates{dev: dev, cfg: cfg, topk: topk, k: pkg.Later(dev, opkit.Spec{
		Stem: "idx_candidates", Variant: opkit.Base, Push: idxCandidatesPush{},
		Bindings:  []vk.Access{vk.Read, vk.Read, vk.Write, vk.Write, vk.Write},
		Constants: opkit.Constants(cfg.Block),
	})}
	if cfg.onDemand {
		return o, nil
	}
	return o, opkit.Ask(o.k)
}

// candidatePlan describes the layout of the scratch for some rows and columns: scores of blocks,
// counts of blocks, lists of the selection.
type candidatePlan struct {
	rows, blocks, lists int
	countsAt, listsAt   uint64
	bytes               uint64
}

// plan lays out the scratch for rows of n columns. With rounds the best blocks are carried from one
// round to the next in a list.
func (o *Candidates) plan(rows, n int, rounds bool) candidatePlan {
	p := candidatePlan{rows: rows, blocks: opkit.CeilDiv(n, o.cfg.Block)}
	if p.lists = o.topk.lists(rows, p.blocks); rounds {
		p.lists = max(topkLists(o.topk.slices(rows, p.blocks)), 1)
	}
	p.countsAt = tensor.Need(tensor.F32, rows, p.blocks)
	p.listsAt = p.countsAt + tensor.Need(tensor.I32, rows)
	p.bytes = p.listsAt + tensor.Need(tensor.U8, int(listBytes(rows, p.lists, o.cfg.K)))
	return p
}

// ScratchBytes returns the bytes of scratch that Record needs for T rows of N columns: a score of
// each block, and what TopK.ScratchBytes says of rows of N/Block.
func (o *Candidates) ScratchBytes(t, n int) uint64 {
	if t < 1 {
		return 0
	}
	return o.plan(t, n, false).bytes
}

// Record checks the arguments and records the launches.
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Candidates) Record(rec *vk.Recorder, a CandidatesArgs) error {
	const op = "candidates"
	t, n := opkit.DimOrZero(a.Logits, 0), opkit.DimOrZero(a.Logits, 1)
	if err := opkit.FirstError(
		pkg.Check(op, "Logits", a.Logits, tensor.F32, -1, -1),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
		o.checkOut(op, t, a.Out),
		o.checkLaunch(op, "Logits", t),
		pkg.Bindable(o.dev, op, "Logits", a.Logits),
		pkg.Bindable(o.dev, op, "Out.Blocks", a.Out.Blocks),
		checkScratch(o.dev, op, a.Scratch, o.ScratchBytes(t, n)),
		pkg.Optional(op, "Arrived", a.Arrived, tensor.I32, t),
	); err != nil || t == 0 {
		return err
	}
	if unit := blockUnit(o.cfg.Block); n%unit != 0 || a.Logits.View().Offset%16 != 0 {
		return pkg.Wrong(op, "Logits", a.Logits, "a multiple of %d columns, at an offset that is a multiple of 16", unit)
	}
	return o.record(rec, op, o.plan(t, n, false), candidateRound{logits: a.Logits, lens: a.Lens, out: a.Out,
		scratch: a.Scratch, arrived: a.Arrived, limit: n})
}

// checkOut checks candidate blocks of t tokens.
func (o *Candidates) checkOut(op string, t int, c CandidateBlocks) error {
	return opkit.FirstError(
		pkg.Check(op, "Candidates.Blocks", c.Blocks, tensor.I32, t, o.cfg.K),
		pkg.Check(op, "Candidates.Columns", c.Columns, tensor.I32, t),
	)
}

// checkLaunch checks that one launch takes all rows.
func (o *Candidates) checkLaunch(op, arg string, rows int) error {
	return opkit.FirstError(pkg.Grid(o.dev, op, arg, rows, 1, 1), pkg.Grid(o.dev, op, arg, rows, 1, 0))
}

// candidateRound is a selection of blocks from the entries first.. of longer rows, as a topkRound
// is one of entries.
type candidateRound struct {
	logits, lens tensor.Tensor
	out          CandidateBlocks
	scratch      vk.View // of a candidatePlan
	arrived      tensor.Tensor
	first, limit int // entries, first a multiple of a block and of 4
}

// topkRound is the selection from the scores of blocks.
func (o *Candidates) topkRound(p candidatePlan, r candidateRound) topkRound {
	t, n := r.logits.Shape[0], r.logits.Shape[1]/o.cfg.Block
	at := func(from, bytes uint64) vk.View { return r.scratch.Buffer.View(r.scratch.Offset+from, bytes) }
	return topkRound{
		logits: tensor.Of(at(0, uint64(t)*uint64(n)*4), tensor.F32, t, n), lens: tensor.Of(at(p.countsAt, uint64(t)*4), tensor.I32, t),
		out: r.out.Blocks, scratch: at(p.listsAt, p.bytes-p.listsAt), arrived: r.arrived,
		slices: o.topk.slices(p.rows, n), lists: p.lists, first: r.first / o.cfg.Block, limit: opkit.CeilDiv(r.limit, o.cfg.Block),
	}
}

// record records a round: the scores of its blocks, and the selection from these.
func (o *Candidates) record(rec *vk.Recorder, op string, p candidatePlan, r candidateRound) error {
	kernel, err := o.k.Kernel()
	if err != nil {
		return err
	}
	k, t, n := o.topkRound(p, r), r.logits.Shape[0], r.logits.Shape[1]
	x := opkit.CeilDiv(max(n/o.cfg.Block, 1), candidateThreads)
	push := idxCandidatesPush{Width: uint32(n), First: uint32(r.first), Limit: uint32(min(r.limit, math.MaxInt32)), Keep: uint32(o.cfg.K)}
	if err := pkg.Dispatch(rec, op, opkit.Base, vk.Dispatch{
		Kernel: kernel, Groups: [3]uint32{uint32(x), uint32(t), 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{r.logits.View(), r.lens.View(), k.logits.View(), k.lens.View(), r.out.Columns.View()},
	}); err != nil {
		return err
	}
	return o.topk.record(rec, op, k)
}
