// Package pipeline runs the sparse attention of DeepSeek-V4 and V4.1 for a server: many sequences,
// with caches that grow, from hidden states to hidden states. Package pipeline/model reads the
// configuration and the weights.
//
// # Sessions
//
// An [Engine] holds the caches, block tables and recorded commands for layers of a model. A
// [Session] is a sequence of tokens; it can be forked (pages are shared until one side writes to
// them), truncated, saved and restored. A [Step] takes the next tokens of some sessions, any
// number of each, through all layers. Here layer by layer, since what enters a layer depends on
// what the one before gave:
//
//	c, err := model.Open(dir, model.CheckpointOptions{}) // a checkpoint's files
//	...
//	layers, err := c.Upload(ctx, dev, nil)
//	...
//	e, err := pipeline.NewEngine(ctx, dev, c.Config, layers, pipeline.EngineOptions{
//		MaxTokens: 65536, MaxSessions: 32, MaxStep: 2048, LayerByLayer: true})
//	...
//	s, err := e.Open()
//	...
//	st, err := e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}) // and chunks of other sessions
//	...
//	defer st.Abort() // does nothing after Commit
//	for i := range e.Layers() {
//		err = st.SetInput(i, 0, x) // or write st.Input(i) on the device
//		...
//		err = st.RunLayer(ctx, i)
//		...
//		err = st.ReadOutput(i, 0, y) // or read st.Output(i) on the device
//	}
//	err = st.Commit()
//
// Decoding, speculative decoding and prefill are the same thing: chunks of one token, of a few,
// or of many. [Session.Append] does all this for inputs that are known beforehand, as in tests.
// The folder examples/attention has a whole program.
//
// # A whole model in one submission
//
// Every submission costs some 20 us, and a model has dozens of layers. A program that runs the
// rest of its model through package vk gives the engine a function that records it between the
// layers: see [Between] and its example. Then [Step.Run] takes everything in one submission.
//
// # A server
//
// One goroutine best begins the steps, with what requests want by then: the next token of each
// session that decodes, and a piece of a prompt. A step cannot be interrupted, so the tokens of
// prompts in it are what the others wait for. Its size is padded to the next power of two.
//
//   - [EngineOptions.Estimate] says how many sessions fit, before weights are uploaded.
//   - Call [Engine.Warm] before the first request. Then no step compiles or records anything.
//   - Put [Engine.Stats] into metrics, and give EngineOptions.Logger a logger.
//   - A beginning that many requests share is a session that is kept and forked where they part.
//   - Take back refused drafts with [Session.Truncate], as far as EngineOptions.Rewind allows.
//   - Where layers of a draft block are there, give them what the model makes of its tokens in each
//     step, take back what was refused, and draft in a step of its own: see [Chunk].
//   - After cache.ErrPoolFull nothing has changed: begin the step with fewer chunks, or close
//     sessions, saved or not, and try again. [Engine.Memory] warns before that.
//   - [Session.Save] and [Engine.Restore] belong in goroutines of their own; steps go on beside
//     them. In files, [Session.SaveFile] keeps the old snapshot until the new one is complete.
//   - A store of snapshots that several models or servers share keeps them by
//     [Engine.Fingerprint]. Package pipeline/prefix is one for prompts.
//
// # Arguments and errors
//
// Everything is checked before anything is recorded or run. A wrong argument is a
// *vk.ArgumentError (vk.ErrArgument), which names it; something closed is vk.ErrClosed. The
// sentinel errors of this package say what to do next: see [ErrSequenceFull] and the others.
//
// Letters in shapes: T tokens of a step, padding included; R sessions; H heads of 512 numbers.
// Lengths and positions count tokens from 0.
package pipeline
