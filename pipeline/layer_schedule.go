package pipeline

import (
	"slices"

	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// besideTokens is from how many tokens on the queries of heads are computed beside the
// indexer's scores. On an H100 the step of 32 tokens gains 4 %, for so many scores wait
// for memory while the product does not; at 8 it is the same, and with fewer both want
// what the compute units can issue: a step of one token loses 2 %.
const besideTokens = 16

// layerRun is a layer being recorded.
type layerRun struct {
	*Layer
	rec    *vk.Recorder
	step   SparseStepArgs
	a      WholeLayerArgs
	sparse SparseLayerArgs
	beside bool // wq_b is recorded with the scores
}

// schedule records the layer's operations by levels. A barrier waits for all that was
// recorded before it, so that what does not depend on each other is recorded side by
// side, in as few levels as the longest chain has links:
//
//	wq_a|wkv; wkv|wgate of the compressors; the indexer's weights of heads
//	norms; the compressors' states
//	wq_b and the indexer's; compressed entries; indexer keys
//	norm and rotation of queries, KV rows; quantised queries of the indexer
//	scores, selection, attention (one to three levels each), wo_a, wo_b
//
// For up to projection.NormTokens tokens the second and the third level are one: compressed
// entries and keys are made by what stores the states.
//
// From besideTokens on wq_b is recorded with the scores, and what follows it with the end
// of the selection. The recorder derives the barriers: an order of calls can be slow, but
// not wrong.
func (l *Layer) schedule(rec *vk.Recorder, step SparseStepArgs, a WholeLayerArgs) error {
	x := &layerRun{Layer: l, rec: rec, step: step, a: a, sparse: l.sparseArgs(a),
		beside: l.w.Indexer != nil && l.kind.cfg.Tokens >= besideTokens}
	for _, level := range []func() error{x.inputs, x.norms, x.queries, x.rotated, x.attention} {
		if err := level(); err != nil {
			return err
		}
	}
	return x.recordOutput(rec, step, a)
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
// rows, the compressors' inputs, the indexer's weights of heads. Where a multiprocessor
// has room for one of their workgroups at a time, from besideTokens on, those that take
// longest come first: an H100's step of 32 tokens gains 0.4 %.
func (x *layerRun) inputs() error {
	bottleneck := func() error {
		x.rec.Section("wq_a|wkv")
		return x.qkv.record(x.rec, x.a.Hidden, x.kind.qkv)
	}
	compressor := func() error {
		if x.w.Compressor == nil {
			return nil
		}
		x.rec.Section("compressor.wkv|wgate")
		return x.kvGate.record(x.rec, x.a.Hidden, x.kind.kvScore)
	}
	order := []func() error{bottleneck, compressor}
	if x.kind.cfg.Tokens >= besideTokens {
		slices.Reverse(order)
	}
	for _, record := range order {
		if err := record(); err != nil {
			return err
		}
	}
	if x.w.Indexer == nil {
		return nil
	}
	x.rec.Section("indexer.compressor.wkv|wgate")
	if err := x.idxKVGate.record(x.rec, x.a.Hidden, x.kind.idxScores); err != nil {
		return err
	}
	x.rec.Section("indexer.weights_proj")
	return x.recordWeights(x.rec, x.a.Hidden)
}

// norms records those of the bottleneck and of KV rows, and how the compressors' states
// are stored.
func (x *layerRun) norms() error {
	k := x.kind
	if k.norm != nil {
		x.rec.Section("q_kv_norm")
		if err := k.norm.Record(x.rec, projection.QKVNormArgs{QR: k.qkv, KV: k.qkv, KVAt: k.cfg.Model.QRank,
			QRWeight: x.w.QNorm, KVWeight: x.w.KVNorm, QROut: k.qr, KVOut: k.kv}); err != nil {
			return err
		}
	}
	if err := k.sparse.recordSave(x.rec, x.step, x.sparse); err != nil {
		return err
	}
	return k.sparse.recordKeySave(x.rec, x.step, x.sparse)
}

// queries records the queries of heads and indexer, and what the compressors make of
// their states.
func (x *layerRun) queries() error {
	k := x.kind
	if !x.beside {
		if err := x.heads(); err != nil {
			return err
		}
	}
	if x.w.Indexer != nil {
		x.rec.Section("indexer.wq_b")
		if err := x.idxQB.record(x.rec, x.bottleneck(), k.iq); err != nil {
			return err
		}
	}
	if err := k.sparse.recordCompress(x.rec, x.step, x.sparse); err != nil {
		return err
	}
	return k.sparse.recordKeyCompress(x.rec, x.step, x.sparse)
}

// bottleneck is what queries are made of: normed, or to be normed by what takes it.
func (x *layerRun) bottleneck() tensor.Tensor {
	if x.kind.norm == nil {
		return x.kind.qkv
	}
	return x.kind.qr
}

// heads records the queries of heads.
func (x *layerRun) heads() error {
	x.rec.Section("wq_b")
	return x.qb.record(x.rec, x.bottleneck(), x.kind.q)
}

// rotated records what norms, rotates and quantises queries, and how KV rows are stored.
func (x *layerRun) rotated() error {
	if !x.beside {
		if err := x.insert(); err != nil {
			return err
		}
	}
	return x.kind.sparse.recordQuery(x.rec, x.step, x.sparse)
}

// insert records the norm and the rotation of the queries of heads, and how KV rows are
// stored.
func (x *layerRun) insert() error {
	k := x.kind
	x.rec.Section("q_norm_rope_kv_insert")
	a := projection.QInsertArgs{Q: k.q, KV: k.kv, Slots: k.sparse.decode.slots, Positions: x.step.Positions, Table: x.a.CosSin, Cache: x.a.Caches.Window}
	if k.norm == nil {
		a.KV, a.KVAt, a.KVWeight = k.qkv, k.cfg.Model.QRank, x.w.KVNorm
	}
	return x.Layer.insert.Record(x.rec, a)
}

// attention records the selection and the attention.
func (x *layerRun) attention() error {
	s := x.kind.sparse
	var beside func() error
	if x.beside {
		beside = x.heads
	}
	if err := s.recordPick(x.rec, x.step, x.sparse.Index, beside); err != nil {
		return err
	}
	if err := s.recordTouch(x.rec, x.sparse.Compressed.Pool); err != nil {
		return err
	}
	if x.beside {
		if err := x.insert(); err != nil {
			return err
		}
	}
	return s.recordAttention(x.rec, x.sparse, x.kind.outputTurn(x.step, x.a))
}
