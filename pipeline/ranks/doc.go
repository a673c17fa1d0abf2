// Package ranks runs one model on several GPUs that share its heads: tensor-parallel attention, for
// weights that are too large for one. It looks like an engine of package pipeline with
// EngineOptions.LayerByLayer:
//
//	e, err := ranks.New(ctx, dir, devices, model.CheckpointOptions{}, pipeline.EngineOptions{...})
//	...
//	s, err := e.Open()
//	...
//	st, err := e.Begin(ctx, ranks.Chunk{Session: s, Tokens: 1})
//	...
//	defer st.Abort() // does nothing after Commit
//	for i := range e.Layers() {
//		err = st.SetInput(i, 0, x)
//		...
//		err = st.RunLayer(ctx, i)
//		...
//		err = st.ReadOutput(i, 0, y)
//	}
//	err = st.Commit()
//
// # What is divided
//
// Of R ranks each has H/R heads: the rows of wq_b and the sinks of its heads, the rows of wo_a of
// its groups, the columns of wo_b that take them. R divides o_groups, so that no group is cut.
// Every rank has wq_a, wkv, compressors and indexer, and computes all entries and picks: heads
// share them. So every rank has all pages of all sessions, with the same bits, and a snapshot of
// one is a snapshot of the session: [Session.Save] and [Engine.Restore] exchange it with engines of
// package pipeline.
//
// Every rank gives the sum over its own groups in f32. The host adds these up,
//
//	y = bf16(((p_0 + p_1) + p_2) + ...)
//
// in f32, in the order of the ranks, and rounds once, so that the same devices give the same bits.
// Of one engine's outputs they differ by the order of sums within f32, and where the attention of
// fewer heads takes another kernel, by the rounding of its outputs to bf16.
//
// Ranks wait for each other in every layer and hidden states pass through host memory. Where the
// weights fit into one GPU, package replicas makes more of two.
package ranks
