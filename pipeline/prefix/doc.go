// Package prefix keeps what sessions remember of prompts in a store that several engines, processes
// and machines share, so that a prompt is computed once for all of them.
//
//	folder, err := prefix.OpenFolder("/var/cache/vkmla", 100<<30)
//	...
//	k, err := prefix.New(engine, folder, prefix.Options{})
//	...
//	s, n, err := k.Open(ctx, prompt) // the session has the first n tokens already
//	... // steps for prompt[n:], at least one token
//	err = k.Keep(ctx, s, prompt)
//
// # What is kept
//
// Tokens are divided into blocks of [Block]. A span object has what stays of one block: compressed
// entries and index keys, some 4 KB a token of DeepSeek-V4. A state object has what else a session
// of some length needs, windows and states of compressors: of DeepSeek-V4-Flash 4 MB after whole
// blocks, up to 16 elsewhere, where it also has the block that is not full. A session is opened
// from a state and all spans in front of it. A longer prompt adds its own spans to those that are
// there, and prompts that differ after some block share the spans up to it. To open one there, the
// state is needed too: call [Keeper.KeepBlocks] where [Keeper.Parting] says that prompts part, and
// every few thousand tokens.
//
// # Names and trust
//
// An object's name is a hash of all tokens up to its end, by a chain over the blocks, and of
// [pipeline.Engine.Fingerprint]: weights, configuration and formats. So engines of several models
// can share a store, and no object ever changes. Objects have checksums over name and content: what
// is damaged, cut short, or put under another name is as good as absent, and what a session gets is
// what another one computed, bit for bit. With [pipeline.EngineOptions.Invariant] that is also what
// it would have computed itself.
//
// Who can write to the store can forge objects, and who can list it can guess prompts, unless
// [Options] have a Key: names and checksums are HMACs by it. With it objects are still not secret.
//
// The fingerprint does not know the device: another one may compute other low bits. A program that
// minds adds the device to [pipeline.EngineOptions] as part of Identity.
package prefix
