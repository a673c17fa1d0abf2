package pipeline

import (
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// besideTokens is from how many tokens on the queries of heads are computed beside the
// indexer's scores. On an H100 the step of 32 tokens gains 4 %, for so many scores wait
// for memory while the product does not; at 8 it is the same, and with fewer both want
// what the compute units can issue: a step of one token loses 2 %.
const besideTokens = 16

// normTokens is the most tokens of a step without a level of norms: wq_a|wkv norms the
// bottleneck, and states are stored by what makes entries of them. On an H100 steps of 1, 8
// and 16 tokens gain 2 %, and one of 32 a fifth of a per cent.
const normTokens = 32

// gateTokens is from how many tokens on what entries are made of may be computed later than
// the bottleneck.
const gateTokens = 3

// layerRun is a layer being recorded.
type layerRun struct {
	*Layer
	rec    *vk.Recorder
	step   SparseStepArgs
	a      WholeLayerArgs
	sparse SparseLayerArgs
	at     layerPlaces
	parts  attention.Parts // of the attention, where what follows it joins them
	beside func(*vk.Recorder) error
}

// layerLevel is one of the levels of a layer that have a choice of what they do.
type layerLevel int

const (
	atQueries  layerLevel = iota // the bottleneck is there, normed
	atRotated                    // the indexer's queries are there
	atScores                     // and quantised
	atSelected                   // the last before the attention
)

// layerPlaces says at which levels the queries of heads are computed, KV rows stored and
// compressed entries made, for which nothing but the attention waits; and whether what the
// entries are made of is computed beside the queries, not with the bottleneck.
type layerPlaces struct {
	heads, insert, entries layerLevel
	gateLate               bool
}

// places is the rule. Without an indexer wq_b is the level before the attention, where the
// attention norms and turns queries: then KV rows are stored beside it, else in a level of
// their own, with the norm and the rotation. With an indexer the level before the attention
// is the end of the selection, a launch of few workgroups: there wq_b takes the least time,
// and KV rows beside it. From besideTokens on wq_b is recorded with the scores, and what
// follows it with the end of the selection. Entries, which take long without keeping much of
// the device busy, are made beside wq_b then, so that the scores do not wait for them: an
// H100's step gains 1 to 1.7 % with 1 token, 0.6 with 4, 8 and 16, 2 with 32. Where their
// pool is touched at that level they stay in front of the scores.
//
// What entries are made of is wanted a level later then, too: beside keys, which wait for
// memory most of the time, a product takes less than beside the others of the hidden states.
// Steps of 4, 8 and 32 tokens gain 0.4 to 0.8 % where it is recorded there; 16 lose as much,
// one loses 0.5 %.
func (l *Layer) places() layerPlaces {
	tokens := l.kind.cfg.Tokens
	late, many := l.kind.normsLate(), tokens >= besideTokens
	switch {
	case l.w.Indexer == nil && late:
		return layerPlaces{}
	case l.w.Indexer == nil:
		return layerPlaces{insert: atRotated}
	case many:
		// Entries are in front of wq_b, or they would end after it.
		return layerPlaces{heads: atScores, insert: atSelected, entries: atScores, gateLate: l.norms() && tokens > besideTokens}
	case late:
		p := layerPlaces{heads: atSelected, insert: atSelected}
		if !l.kind.sparse.touches(l.kind.cfg.Caches.Compressed.Pool) {
			p.entries, p.gateLate = atSelected, l.norms() && tokens >= gateTokens
		}
		return p
	}
	return layerPlaces{insert: atRotated}
}

// schedule records the layer's operations by levels. A barrier waits for all that was
// recorded before it, so that what does not depend on each other is recorded side by
// side, in as few levels as the longest chain has links:
//
//	wq_a|wkv with the norm of the bottleneck; wkv|wgate of the compressors; the indexer's weights of heads
//	wq_b and the indexer's; the compressors' states, compressed entries, indexer keys
//	norm and rotation of queries, KV rows; quantised queries of the indexer
//	scores, selection, attention (one to three levels each), wo_a, wo_b
//
// For up to chainTokens the attention's parts are joined by the launch of wo_a and wo_b, where
// projection.JoinedParts says so.
//
// Where the attention norms and turns queries, the third level has none of it, and without
// an indexer there is no such level: see places. Nor is there where the kernel of the scores
// quantises the indexer's queries.
//
// With more than normTokens tokens, or where wq_a|wkv has no kernel that norms, a level of
// norms lies behind the first. With more than normTokens states are stored there, of which the
// next level makes entries.
//
// The recorder derives the barriers: an order of calls can be slow, but not wrong.
//
// beside, unless nil, records what the layer's first products do not wait for, behind them.
func (l *Layer) schedule(rec *vk.Recorder, step SparseStepArgs, a WholeLayerArgs, beside func(*vk.Recorder) error) error {
	x := &layerRun{Layer: l, rec: rec, step: step, a: a, sparse: l.sparseArgs(a), at: l.places(), beside: beside}
	for _, level := range []func() error{x.inputs, x.besides, x.norms, x.queries, x.rotated, x.attention} {
		if err := level(); err != nil {
			return err
		}
	}
	return x.recordOutput(rec, step, a, x.parts)
}

func (l *Layer) sparseArgs(a WholeLayerArgs) SparseLayerArgs {
	k := l.kind
	args := SparseLayerArgs{CosSin: a.CosSin, LayerArgs: LayerArgs{
		Q: k.q, Sink: l.w.Sink, Window: a.Caches.Window, Compressed: a.Caches.Compressed, Out: k.o}}
	if c := l.w.Compressor; c != nil {
		args.Compressor = CompressorArgs{KvScore: k.kvScore, Ape: c.Ape, Norm: c.Norm, State: a.Caches.State}
	}
	if x := l.w.Indexer; x != nil {
		args.Index = IndexArgs{Keys: a.Caches.Keys, Q: k.iq, Weights: k.iw, CompressorArgs: CompressorArgs{
			KvScore: k.idxScores, Ape: x.Compressor.Ape, Norm: x.Compressor.Norm, State: a.Caches.IndexState}}
	}
	return args
}

// inputs records the products of the hidden states: the bottleneck of queries with KV
// rows, the compressors' inputs, the indexer's weights of heads. The bottleneck comes first,
// so that its norm, which one workgroup does, is done while others multiply: else an H100's
// step of 32 tokens takes 0.9 % more. Where it is not normed and a multiprocessor has room for
// one of their workgroups at a time, from besideTokens on, those that take longest come first:
// 0.4 %.
func (x *layerRun) inputs() error {
	bottleneck := func() error {
		x.rec.Section("wq_a|wkv")
		args := projection.LinearArgs{X: x.a.Hidden, W: x.qkv.w, Out: x.kind.qkv, Scratch: x.qkv.scratch}
		if x.Layer.norms() {
			args.Norm, args.Normed, args.Arrived = x.w.QNorm, x.kind.qr, x.kind.arrived
		}
		return x.qkv.op.Record(x.rec, args)
	}
	order := []func() error{bottleneck, x.gateAt(false)}
	if x.kind.cfg.Tokens >= besideTokens && !x.Layer.norms() {
		slices.Reverse(order)
	}
	if err := inOrder(order...); err != nil || x.w.Indexer == nil {
		return err
	}
	x.rec.Section("indexer.compressor.wkv|wgate")
	if err := x.idxKVGate.record(x.rec, x.a.Hidden, x.kind.idxScores); err != nil {
		return err
	}
	x.rec.Section("indexer.weights_proj")
	return x.recordWeights(x.rec, x.a.Hidden)
}

// besides records what is not the layer's.
func (x *layerRun) besides() error {
	if x.beside == nil {
		return nil
	}
	return x.beside(x.rec)
}

// gateAt records what compressed entries are made of, if it is its place: late or not.
func (x *layerRun) gateAt(late bool) func() error {
	return func() error {
		if x.w.Compressor == nil || x.at.gateLate != late {
			return nil
		}
		x.rec.Section("compressor.wkv|wgate")
		return x.kvGate.record(x.rec, x.a.Hidden, x.kind.kvScore)
	}
}

// norms records those of the bottleneck and of KV rows, and how the compressors' states
// are stored, where that is not part of other operations.
func (x *layerRun) norms() error {
	k := x.kind
	if x.norm != nil {
		x.rec.Section("q_kv_norm")
		if err := x.norm.Record(x.rec, projection.QKVNormArgs{QR: k.qkv, KV: k.qkv, KVAt: k.cfg.Model.QRank,
			QRWeight: x.w.QNorm, KVWeight: x.w.KVNorm, QROut: k.qr, KVOut: k.kv}); err != nil {
			return err
		}
	}
	if err := k.sparse.recordSave(x.rec, x.step, x.sparse); err != nil {
		return err
	}
	return k.sparse.recordKeySave(x.rec, x.step, x.sparse)
}

// queries records the queries of heads and indexer, if it is their level, and what the compressors make of
// their states. What is recorded first begins first, and products leave little room beside
// them: what is short, or takes long in few workgroups, comes first, or it would end after
// them. An H100's step of 8 tokens loses 2 % where KV rows are stored behind wq_b, and one of
// 16, 32 or 64 tokens of which one completes an entry of the C128A layers 3, 2 or 2.5 % where
// these are made behind it.
func (x *layerRun) queries() error {
	switch {
	case x.kind.cfg.Tokens < besideTokens || x.w.Indexer == nil:
		return inOrder(x.entriesAt(atQueries), x.keys, x.insertAt(atQueries), x.products, x.gateAt(true))
	case x.at.gateLate:
		return inOrder(x.keys, x.gateAt(true), x.products)
	}
	return inOrder(x.products, x.entriesAt(atQueries), x.keys, x.insertAt(atQueries))
}

// inOrder records one after the other.
func inOrder(list ...func() error) error {
	for _, record := range list {
		if err := record(); err != nil {
			return err
		}
	}
	return nil
}

// entriesAt records compressed entries if it is their level.
func (x *layerRun) entriesAt(level layerLevel) func() error {
	return func() error {
		if x.at.entries != level {
			return nil
		}
		return x.kind.sparse.recordCompress(x.rec, x.step, x.sparse)
	}
}

// keys records the indexer's.
func (x *layerRun) keys() error {
	return x.kind.sparse.recordKeyCompress(x.rec, x.step, x.sparse)
}

// products records the queries of heads, if it is their level, and of the indexer.
func (x *layerRun) products() error {
	if err := x.headsAt(atQueries)(); err != nil || x.w.Indexer == nil {
		return err
	}
	x.rec.Section("indexer.wq_b")
	return x.idxQB.record(x.rec, x.kind.qr, x.kind.iq)
}

// headsAt records the queries of heads if it is their level.
func (x *layerRun) headsAt(level layerLevel) func() error {
	return func() error {
		if x.at.heads != level {
			return nil
		}
		x.rec.Section("wq_b")
		return x.qb.record(x.rec, x.kind.qr, x.kind.q)
	}
}

// insertAt records what insert does if it is its level.
func (x *layerRun) insertAt(level layerLevel) func() error {
	return func() error {
		if x.at.insert != level {
			return nil
		}
		return x.insert()
	}
}

// rotated records what norms, rotates and quantises queries, and how KV rows are stored.
func (x *layerRun) rotated() error {
	return inOrder(x.insertAt(atRotated), func() error { return x.kind.sparse.recordQuery(x.rec, x.step, x.sparse) })
}

// insert records the norm and the rotation of the queries of heads, unless the attention
// does it, and how KV rows are stored.
func (x *layerRun) insert() error {
	k := x.kind
	x.rec.Section("q_norm_rope_kv_insert")
	a := projection.QInsertArgs{KV: k.kv, Slots: k.sparse.decode.slots, Positions: x.step.Positions, Table: x.a.CosSin, Cache: x.a.Caches.Window}
	if !k.normsLate() {
		a.Q = k.q
	}
	if x.Layer.norms() {
		a.KV, a.KVAt, a.KVWeight = k.qkv, k.cfg.Model.QRank, x.w.KVNorm
	}
	return x.Layer.insert.Record(x.rec, a)
}

// attention records the selection and the attention.
func (x *layerRun) attention() error {
	s := x.kind.sparse
	beside := func() error { return inOrder(x.entriesAt(atScores), x.headsAt(atScores)) }
	return inOrder(
		func() error { return s.recordPick(x.rec, x.step, x.sparse.Index, x.sparse.CosSin, beside) },
		func() error { return s.recordTouch(x.rec, x.sparse.Compressed.Pool) },
		x.entriesAt(atSelected), x.insertAt(atSelected), x.headsAt(atSelected),
		func() (err error) {
			if x.chain.Joined() {
				x.parts, err = s.recordParts(x.rec, x.sparse, x.kind.queryNorm(x.step, x.a))
				return err
			}
			return s.recordAttention(x.rec, x.sparse, x.kind.outputTurn(x.step, x.a), x.kind.queryNorm(x.step, x.a))
		})
}
