// Package state is a cache of a ledger's state that follows the ledger's log and checks what it is
// told.
//
// A [Cache] holds values with the versions for which they hold. [Cache.Follow] reads the root log
// and moves the frontier, which is the newest version whose changes are all known. [Cache.Head]
// gives a [View] of that version, and [Cache.At] one of any version. A view reads a key from the
// cache if it can, and otherwise from the ledger at exactly its version. So all reads of a view are
// of one state, however the ledger goes on.
//
//	cache, err := state.New(client, state.Options{})
//	go func() { failed <- cache.Follow(ctx) }()
//	view, err := cache.Head(ctx)
//	err = view.Prefetch(ctx, keys)
//	value, err := view.Get(ctx, key)
//
// # What is checked
//
// At the level [Proofs], each read from the ledger comes with a proof. A version on the stream is
// taken once its header is in the log under a signed checkpoint, and its journal comes to the hash
// in that header. The journal names every key that the version wrote, with the hash of its value: a
// key that is left out and a value that is altered break a hash. What the journal does not show is
// that the state follows from it. An audit shows that, and so do proofs of cached keys
// (Options.Samples).
//
// If two things contradict each other, everything is dropped. Reads and Follow then fail with an
// [Evidence], which errors.Is finds as coppice.ErrUntrusted, until Follow or Begin is called again.
//
// # Own writes
//
// A program that is the only writer needs no stream. It calls [Cache.Begin] with the head that it
// found, [Cache.Apply] after each commit, and [Cache.RolledBack] after each rollback. Beside other
// writers, a program follows the log and calls [Cache.Apply] as well, perhaps with
// [Options.KeysOnly]. A batch that is staged and not committed is a view over its parent:
// [View.Over].
//
// docs/state-backend.md in the repository has the rules of the cache in full.
package state
