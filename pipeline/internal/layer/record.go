package layer

import (
	"fmt"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Args are the inputs and outputs of one layer. Out must not overlap Hidden.
type Args struct {
	Hidden tensor.Tensor // [T, Hidden] bf16, after the layer's own input norm
	CosSin tensor.Tensor // [rows, 64] f32, Rope.Table(rows, 1) of the layer; later positions take the last row
	// Out [T, Hidden] of Config.Out is written; padding tokens have undefined rows. Layers that
	// draft do not write it without StepArgs.Drafts.
	Out tensor.Tensor

	// Caches are written, then read. A layer that borrows has the Compressed and the Keys of the
	// layer that it borrows from.
	Caches Caches

	// Picks receives the picks, for an indexer whose picks other layers read; absent, they go
	// to memory of the kind. A layer that attends an earlier layer's picks reads them here.
	Picks PickedSlots

	// Blocks receives candidates, for a layer that makes them; a layer that picks among an
	// earlier layer's candidates reads them here.
	Blocks indexer.CandidateBlocks

	// Beside, unless nil, records something of the caller's after the layer's first products, which
	// nothing in front of it waits for.
	Beside func(*vk.Recorder) error
}

// PickedSlots are the compressed entries that an indexer picked, as slots of their cache.
type PickedSlots struct {
	Slots tensor.Tensor // [T, TopK] i32
	Lens  tensor.Tensor // [T] i32
	TopK  tensor.Tensor // [T, TopK] i32: the picks as entries of their request; only where rows are gathered
}

// Record records the layer, after Kernels.RecordStep with the same step in the same or an earlier
// submission.
//
// Errors: vk.ErrClosed for weights that were closed; those of the operations, after which the
// recording is to be given up.
func (l *Layer) Record(rec *vk.Recorder, step StepArgs, a Args) error {
	if l.w.Closed() {
		return fmt.Errorf("%s: weights of layer %d %w", opLayer, l.w.Layer, vk.ErrClosed)
	}
	r := &recording{l: l, k: l.kernels, rec: rec, step: &step, a: &a}
	plan := l.plan
	if !l.kernels.attends(&step) {
		plan = l.context
	}
	if err := r.schedule(plan); err != nil {
		return fmt.Errorf("%s: %w", opLayer, err)
	}
	return nil
}

// recording is a layer being recorded.
type recording struct {
	l     *Layer
	k     *Kernels
	rec   *vk.Recorder
	step  *StepArgs
	a     *Args
	parts attention.Parts // of the attention, where woAB joins them
}

func (r *recording) schedule(s schedule) error {
	err := r.enter(0)
	for _, l := range s {
		if err == nil {
			err = r.enter(l[0].use())
		}
		if err == nil {
			err = r.level(l)
		}
	}
	return err
}

// level records ops in their order. What follows indexScores runs beside it.
func (r *recording) level(l level) error {
	for i, o := range l {
		if name := sections[o]; name != "" {
			r.rec.Section(name)
		}
		if o == indexScores {
			return r.selection(l[i+1:])
		}
		if err := r.op(o); err != nil {
			return err
		}
	}
	return nil
}

func (r *recording) op(o op) error {
	l, k := r.l, r.k
	switch o {
	case codesHidden:
		return r.quantise(fromHidden)
	case codesQLoRA:
		return r.quantise(fromQLoRA)
	case codesO:
		return r.quantise(fromO)
	case codesOLoRA:
		return r.quantise(fromOLoRA)
	case wqaWkv:
		return l.qkv.op.RecordProducts(r.rec, r.bottleneck())
	case wgate, wgateFirst:
		return l.gates.op.RecordProducts(r.rec, l.gates.args(r.a.Hidden, k.main.gates))
	case indexWgate:
		return l.idxGates.op.RecordProducts(r.rec, l.idxGates.args(r.a.Hidden, k.keys.gates))
	case inputSums:
		return r.inputSums()
	case weightsProj:
		return r.headWeights()
	case userCommands:
		if r.a.Beside == nil {
			return nil
		}
		return r.a.Beside(r.rec)
	case qkvNorm:
		return l.norm.Record(r.rec, projection.QKVNormArgs{QR: k.qkv, KV: k.qkv, KVAt: k.cfg.Model.QRank,
			QRWeight: l.w.QNorm, KVWeight: l.w.KVNorm, QROut: k.qr, KVOut: k.kv})
	case save:
		return k.main.recordSave(r.rec, r.step, l.w.Compressor, r.a.Caches.State)
	case indexSave:
		return k.keys.recordSave(r.rec, r.step, l.w.Indexer.Compressor, r.a.Caches.IndexState)
	case compress:
		return k.main.record(r.rec, r.step, l.w.Compressor, cache.CompressArgs{State: r.a.Caches.State, StateTable: r.step.Tables.State,
			CosSin: r.a.CosSin, Cache: r.a.Caches.Compressed})
	case indexWk:
		return l.idxGates.record(r.rec, k.main.latents, k.keys.gates)
	case indexCompress:
		return k.keys.record(r.rec, r.step, l.keyCompressor(), cache.CompressArgs{State: r.a.Caches.IndexState,
			StateTable: r.step.Tables.IndexState, CosSin: r.a.CosSin, Keys: r.a.Caches.Keys})
	case wqB:
		return l.qb.record(r.rec, k.qr, k.mla.q)
	case indexWqB:
		return l.idxQB.record(r.rec, k.qr, k.indexer.q)
	case kvInsert:
		return r.insert()
	case indexQuantise:
		return k.indexer.recordQuantise(r.rec, r.step, r.a.CosSin)
	case indexSelect: // recorded with indexScores
		return nil
	case touchPool:
		return r.touch()
	case attend:
		return r.attention()
	case inverseRope:
		return r.unrope()
	case woA:
		return l.oa.op.Record(r.rec, r.firstOutput())
	case woB:
		return l.ob.record(r.rec, k.output.z, r.a.Out)
	case woAB:
		return r.chain()
	}
	return fmt.Errorf("unknown operation %d", o)
}

// bottleneck are the arguments of wq_a and wkv, with those of the norm of the former where the
// product does it.
func (r *recording) bottleneck() projection.LinearArgs {
	k, args := r.k, r.l.qkv.args(r.a.Hidden, r.k.qkv)
	if r.l.fusesNorm() {
		args.Norm, args.Normed, args.Arrived = r.l.w.QNorm, k.qr, k.arrived
	}
	return args
}

// inputSums records the sums of those input products that are in parts.
func (r *recording) inputSums() error {
	l, k := r.l, r.k
	err := l.qkv.op.RecordSums(r.rec, r.bottleneck())
	if err == nil && k.main != nil {
		err = l.gates.op.RecordSums(r.rec, l.gates.args(r.a.Hidden, k.main.gates))
	}
	if err == nil && k.keys != nil && !k.cfg.Spec.LatentKeys {
		err = l.idxGates.op.RecordSums(r.rec, l.idxGates.args(r.a.Hidden, k.keys.gates))
	}
	return err
}

// keyCompressor returns the weights that make index keys, after the product.
func (l *Layer) keyCompressor() *model.DeviceCompressor {
	if x := l.w.Indexer.Keys; x != nil {
		return &model.DeviceCompressor{Norm: x.Norm}
	}
	return l.w.Indexer.Compressor
}

// fusesNorm reports whether norms are part of wqaWkv and kvInsert.
func (l *Layer) fusesNorm() bool { return l.norm == nil }

// headWeights records the indexer's weights of heads.
func (r *recording) headWeights() error {
	x, s := &r.l.idxWeights, r.k.indexer
	if s.wide.IsZero() {
		return x.record(r.rec, r.a.Hidden, s.weights)
	}
	if err := x.record(r.rec, r.a.Hidden, s.wide); err != nil {
		return err
	}
	to, from, row := s.weights.View(), s.wide.View(), uint64(2*r.k.cfg.Model.IndexHeads)
	pitch := uint64(2 * s.wide.Shape[1])
	for t := range uint64(r.k.cfg.Tokens) {
		if err := r.rec.Copy(to.Buffer.View(to.Offset+t*row, row), from.Buffer.View(from.Offset+t*pitch, row)); err != nil {
			return err
		}
	}
	return nil
}

// insert records how KV rows are stored, and the norm and the rotation of queries unless the
// attention does them.
func (r *recording) insert() error {
	k := r.k
	a := projection.QInsertArgs{KV: k.kv, Slots: k.lists.slots, Positions: r.step.Positions, Table: r.a.CosSin, Cache: r.a.Caches.Window}
	if !k.mla.normsQueries && k.attends(r.step) {
		a.Q = k.mla.q
	}
	if r.l.fusesNorm() {
		a.KV, a.KVAt, a.KVWeight = k.qkv, k.cfg.Model.QRank, r.l.w.KVNorm
	}
	return r.l.insert.Record(r.rec, a)
}

// selection records scores and picks, and ops beside the first scores.
func (r *recording) selection(ops level) error {
	var beside func() error
	if len(ops) > 0 {
		beside = func() error {
			defer r.rec.Section(sections[indexSelect])
			return r.level(ops)
		}
	}
	return r.k.indexer.record(r.rec, r.step, r.a, r.k.lists.visibleLens, beside)
}

// touch records what has the addresses of entries translated, so that the attention finds its
// rows sooner. The pool grows: it may have another size than the schedule was chosen for.
func (r *recording) touch() error {
	pool, s := r.a.Caches.Compressed.Pool, r.k.indexer
	n := pool.Bytes()
	if n < r.k.tune.TouchLeast || n > min(r.k.tune.TouchMost, r.k.dev.Caps().MaxStorageBufferRange) {
		return nil
	}
	return s.touch.Record(r.rec, pool, s.sink)
}

func (r *recording) attention() (err error) {
	if r.k.mla.gathers() {
		return r.gathered()
	}
	k, joined := r.k, r.l.chain.Joined()
	window := k.lists.window
	a := attention.DecodeArgs{Sink: r.l.w.Sink,
		Window: attention.SlotSet{Cache: r.a.Caches.Window, Indices: window.slots, Lens: window.lens}}
	if k.mla.width > 0 {
		at := r.attended()
		a.Compressed = attention.SlotSet{Cache: r.a.Caches.Compressed, Indices: at.Slots, Lens: at.Lens}
	}
	a.Norm = r.queryNorm()
	if !joined && !r.l.unropesToCodes && k.mla.unropes {
		a.InverseRope = attention.InverseRope{Positions: r.step.Positions, Table: r.a.CosSin}
	}
	r.parts, err = k.mla.record(r.rec, a, joined)
	return err
}

// queryNorm is the norm of the queries, if the attention does it.
func (r *recording) queryNorm() (n attention.QueryNorm) {
	if r.k.mla.normsQueries {
		n = attention.QueryNorm{Eps: r.k.cfg.Model.Eps, Positions: r.step.Positions, Table: r.a.CosSin}
	}
	return n
}

// gathered records the attention over rows that are gathered first.
func (r *recording) gathered() error {
	k, tables, caches := r.k, &r.step.Tables, &r.a.Caches
	a := attention.GatheredArgs{Positions: r.step.Positions, Plan: r.step.Plan, Pieces: r.step.Pieces, Sink: r.l.w.Sink,
		Norm:   r.queryNorm(),
		Window: attention.PagedRows{Cache: caches.Window, Table: tables.Window}}
	if a.Workspace = r.step.Workspace; len(a.Workspace.Shape) > 0 && a.Workspace.Shape[0] > k.mla.room.Rows() {
		a.Workspace = a.Workspace.Rows(0, k.mla.room.Rows())
	}
	if k.mla.width > 0 {
		at := r.attended()
		a.Compressed = attention.PagedRows{Cache: caches.Compressed, Table: tables.Compressed}
		a.Slots, a.TopK = at.Slots, at.TopK
	}
	return k.mla.recordRows(r.rec, a)
}

// attended are the slots of the entries that the layer attends.
func (r *recording) attended() PickedSlots {
	switch r.k.cfg.Spec.Picks {
	case model.PickOwn:
		return r.k.indexer.to(r.a)
	case model.PickEarlier:
		return r.a.Picks
	}
	return PickedSlots{Slots: r.k.lists.all.slots, Lens: r.k.lists.all.lens}
}

func (r *recording) unrope() error {
	x, o := &r.k.output, r.k.mla.o
	if !r.l.unropesToCodes {
		return x.unrope.Record(r.rec, projection.InverseRopeArgs{O: o, Positions: r.step.Positions, Table: r.a.CosSin})
	}
	return x.quant.Record(r.rec, projection.InverseRopeQuantArgs{O: o, Positions: r.step.Positions, Table: r.a.CosSin,
		Codes: x.coded.codes, Scales: x.coded.scales})
}

// firstOutput are the arguments of wo_a.
func (r *recording) firstOutput() projection.LinearArgs {
	return r.l.oa.args(r.k.mla.o, r.k.output.z)
}

// chain records wo_a and wo_b in one launch, and the joining of parts where it is part of it.
func (r *recording) chain() error {
	x := &r.k.output
	second := projection.LinearArgs{X: x.z, W: r.l.ob.w, Out: r.a.Out}
	a := projection.LinearChainArgs{First: r.firstOutput(), Second: second, State: x.state}
	if r.l.chain.Joined() {
		a.Parts = projection.AttentionParts{Out: r.parts.Out, State: r.parts.State, Sink: r.l.w.Sink,
			Positions: r.step.Positions, Table: r.a.CosSin}
	}
	return r.l.chain.Record(r.rec, a)
}
