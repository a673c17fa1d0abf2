// Package pipeline puts the operations of packages cache, indexer, attention and
// projection together into the steps of DeepSeek-V4's attention, so that a server says
// what is in a step and not which kernels run.
//
// # A decode step
//
// [Decode] is the attention of one kind of layer for a batch of T decode tokens,
// from rotated queries and KV rows to attention outputs:
//
//	slots[t]  = WindowTable[r][p / page] * page + p % page   r, p: request and position of token t
//	window    : slots[t] = quantised KV[t]
//	rows of t = positions max(p-127, 0) to p of the window cache
//	            and, by the layer's ratio: none (1), those that TopK names (4),
//	            or the first (p+1)/128 (128) of the compressed cache
//	s_j = dot(Q[t][h], row_j) / sqrt(512)
//	Out[t][h] = sum_j exp(s_j) row_j / (sum_j exp(s_j) + exp(Sink[h]))
//	LSE[t][h] = ln sum_j exp(s_j)
//
// All new rows of a step are stored before any is attended, so the several tokens
// of a request in one step (a draft to be verified) see those before them, and
// each other only as the cache holds them. A padding token stores nothing; its Out
// is 0 and its LSE +inf.
//
// What fills the compressed cache and what picks from it is not part of a Decode.
//
// # A sparse layer
//
// [Sparse] puts that before the attention: from what the projections of a layer
// give (queries, KV rows, the kv values and gate scores of the compressors, indexer
// queries and weights) to the attention's output. In a C4A layer:
//
//	states of the step's tokens are saved, KV rows and quantised queries stored
//	every 4th token pools the last 8 states into a K entry and an indexer key
//	entry n of token t scores sum_h relu(q[t][h] . k[n]) * w[t][h], n < (p+1)/4
//	the TopK best are attended, with the window
//
// A C128A layer pools 128 states into a K entry and attends all entries; a window
// layer does neither. Decode and prefill in chunks are the same thing here: a step
// has any number of consecutive tokens of each request.
//
// The projections around all this are not part of either.
//
// # A whole layer
//
// [Layer] puts the projections around that: from hidden states [T, Hidden] to hidden
// states, with the weights of a checkpoint as they are stored. What the layers of one
// ratio share for steps of T tokens is a [LayerKind].
//
// # Sessions
//
// [Engine] does the rest, for many sequences: it keeps caches that grow, pages and block
// tables, and the recorded commands of steps. A [Session] is a sequence; it can be
// forked (pages are shared until they are written), truncated, saved and restored. A
// [Step] takes the next tokens of some sessions, any number of each, through all layers,
// here one after the other, since what enters a layer depends on what the one before gave:
//
//	e, err := pipeline.NewEngine(ctx, dev, c.Config, layers, pipeline.EngineOptions{
//		MaxTokens: 65536, MaxSessions: 32, MaxStep: 2048, LayerByLayer: true})
//	...
//	s, err := e.Open()
//	...
//	st, err := e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}) // and chunks of other sessions
//	...
//	defer st.Abort() // does nothing after Commit
//	for i := range e.Layers() {
//		// What enters the layer goes to st.Input(i), a tensor on the device, or there
//		// from host memory:
//		err = st.SetInput(i, 0, x)
//		...
//		err = st.RunLayer(ctx, i)
//		...
//		// What it gave lies in st.Output(i) and, where its input came so, in host memory:
//		err = st.ReadOutput(i, 0, y)
//	}
//	err = st.Commit()
//
// [Session.Append] does everything for a session whose inputs of all layers are there
// before, for measurements and tests. The folder examples/attention has a program.
//
// # A whole model in one submission
//
// Every submission costs: on an H100 some 20 us pass between one and the next, and a model
// has dozens of layers. A program that runs the rest of its model through package vk, too,
// gives the engine a function that records it between the layers. Then [Step.Run] takes
// everything at once, and the host only says what is in a step:
//
//	e, err := pipeline.NewEngine(ctx, dev, c.Config, layers, pipeline.EngineOptions{
//		MaxTokens: 65536, MaxSessions: 32, MaxStep: 2048,
//		Between: func(rec *vk.Recorder, at pipeline.Between) error {
//			switch at.Layer {
//			case 0:
//				// Embed the tokens and norm them: to at.Input.
//			case len(layers):
//				// What follows the last attention, and the head: from at.Output.
//			default:
//				// From at.Output to at.Input: residual, norm, experts, norm.
//			}
//			return rec.Dispatch(vk.Dispatch{Kernel: k, Bind: []vk.View{at.Output.View(), x, at.Input.View()}, ...})
//		}})
//	...
//	st, err := e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1})
//	...
//	copy(ids.Mapped(), tokens) // memory of the program's own, or st.SetInput(0, 0, x)
//	err = st.Run(ctx)
//	...
//	err = st.Commit()
//
// The example of EngineOptions.Between is a whole program.
//
// # A server
//
// Steps are best begun by one goroutine, with what requests want by then: the next token of
// each session that decodes, and in the same step a piece of a prompt. A step is not
// interrupted, so that the most tokens of prompts in one are how long the others wait for
// theirs. It is padded to the next power of two, and costs as much. Requests come and go
// between steps: [Session.Close] and the like give ErrInStep meanwhile. Its context ends
// a step for all of them.
//
//   - Before the first request, [Engine.Prepare] for each power of two below MaxStep, and for
//     MaxStep.
//   - A beginning that many requests share is a session that is kept and forked. It has to end
//     where they part: a session cannot be forked at an earlier length than it has, but
//     for [EngineOptions.Rewind].
//   - Drafts that were refused are taken back with [Session.Truncate], as far as Rewind allows.
//   - After cache.ErrPoolFull nothing has changed. The step can be begun with fewer chunks, or
//     after sessions were closed, whose requests start again later or were saved
//     with [Session.Save], which needs no page. [EngineMemory] says how much is held,
//     before it comes to that.
//   - [Session.Save] and [Engine.Restore] are for goroutines of their own: steps go on beside
//     them.
//
// # A checkpoint
//
// [model.LoadConfig] reads a model's config.json. [model.Open] maps its weight files,
// checks that they are complete and consistent, and describes each layer's weights as
// [LayerWeights], in the formats they are stored in; [Checkpoint.Upload] puts them on a
// device as they are, to be dequantised by the kernels that use them:
//
//	c, err := model.Open(dir, pipeline.CheckpointOptions{})
//	if err != nil {
//		return err
//	}
//	defer c.Close() // what was uploaded stays
//	layers, err := c.Upload(ctx, dev, func(done, total int64) { show(done, total) })
//
// Nothing in a file is believed unchecked: the error for a damaged or hostile one
// matches ErrConfig or ErrCheckpoint and names the field or tensor.
//
// # Record once, submit for every step
//
// RecordStep (of [Decode], [Sparse] or [LayerKind]) records what all layers of a step share,
// RecordLayer (of a [Layer]: Record) one layer. The recording fixes T and which buffers are used; everything that
// changes from step to step (lengths, positions, block tables, picks, queries) is
// read from those buffers when the commands run. A server therefore records one
// command buffer for each number of tokens it wants to be ready for, pads a step up
// to the next of them, and per step only writes buffers and submits.
//
// # Arguments
//
// Everything is checked before anything is recorded: shapes, types, page sizes,
// that tensors lie in open buffers of the device, at offsets that it can bind. The
// error is a *vk.ArgumentError (vk.ErrArgument) that names the field, or vk.ErrClosed.
// Values in device memory are not errors: an index, request or page that is not
// there reads nothing and writes nothing.
//
// Alphabet of the shapes, as in the packages below: T tokens, R requests, H query
// heads, 512 numbers of a row, W entries of a row of a block table, page slots of a
// cache page. Lengths and positions count tokens from 0; a compressed entry e
// covers the tokens e*ratio to e*ratio+ratio-1.
//
// Sources: vLLM vllm/models/deepseek_v4/attention.py (order of a layer),
// vllm/v1/attention/backends/mla/sparse_swa.py and flashmla_sparse.py (index
// lists, padding); FlashMLA flash_mla/flash_mla_interface.py and tests/ref.py
// (attention).
package pipeline
