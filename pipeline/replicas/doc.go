// Package replicas spreads sessions over the GPUs of a host: data-parallel attention. Every GPU has
// an engine with all weights and with the caches of its own sessions, so that two of them take
// twice the sessions, and no step of one waits for another.
//
//	on := []replicas.Replica{{Engine: e0, Device: dev0}, {Engine: e1, Device: dev1}}
//	g, err := replicas.New(on, replicas.Options{})
//	...
//	s, n, err := g.Open(ctx, prompt) // on one of the GPUs; it has the first n tokens already
//	...
//	err = g.Step(ctx, run, replicas.Chunk{Session: s, Tokens: prompt[n:]}) // and chunks of others
//
// # Where a session goes
//
// [Group.Open] knows the tokens of all open sessions. It forks the one that has the longest
// beginning of the prompt, on its replica. Where that replica has no room it copies the beginning
// to another one. Without such a session, or where [Options.Store] has more, the session goes to
// the replica that has the most free memory for each session. [Session.Move] takes a session to
// another replica, with the same bits; [Group.Relieve] chooses one to move from a replica that is
// full.
//
// # Steps
//
// [Group.Step] divides chunks by replica and runs the steps side by side, a goroutine each. They
// begin together, so the slowest says when the next ones begin. A program with a loop for each
// replica instead calls Step with the sessions of one ([Session.Replica]);
// such calls do not wait for each other.
//
// # A lost device
//
// The sessions of a lost device are lost, those of the others go on. [Session.Tokens] still says
// what they were: Open opens them elsewhere, with what other sessions and the store have of them.
// Whoever kept a snapshot ([Session.Save]) restores it with [Group.Restore].
package replicas
