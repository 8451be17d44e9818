// Package coppice is a client of a Coppice ledger that believes only what is proven.
//
// A [Client] knows the ledger's public key (Options.Trust). Then [Client.Commit], [Client.Get],
// [Client.BatchGet] and [Client.Range] give an answer only with a proof that it is the answer to
// what was asked, at the version that was asked for, under a checkpoint that is not older than what
// the client has seen. Package verify judges the proofs. The client keeps the newest checkpoint and
// moves it forward only by a proof that the log grew from it. It follows changes of the ledger's
// key. If the ledger shows two logs, the error is a [ForkError] that has both signed checkpoints.
// [Client.Memory] is what to keep from one run of a program to the next.
//
// Read.AtTime reads the newest version at a time, and [Client.VersionAt] proves which one that is.
// [Client.EntryInterval] proves which time stamps of independent authorities lie around an entry of
// the log. It does not judge their tokens.
//
// [Client.QueryBatch] answers many queries, each at its own version or time, and walks through all
// states of keys. It is a stream whose parts are proven one by one.
//
// Histories, differences, watched headers, heads, stages, pins, lists of ledgers and members,
// erasures and the status are a coordinator's word.
//
// A client goes around coordinators that are dead or silent, and repeats what may be repeated for a
// bounded time. A [Session] numbers its batches, so that a commit whose answer was lost is sent
// again and applied once. [CommitStream] does not wait for each answer.
//
// In a ledger of members, an [Author] signs the journals of a [Draft] for one member. Its appends,
// [Client.FindLedger], [Client.LedgerMember], [Client.LedgerJournals] and [Client.Lineage] are
// proven as well.
//
// [Client.Audit] recomputes all state roots of the log from its journals. [Client.AuditLedger]
// judges all requests of a ledger of members again, and names the first that is wrong.
//
// An [Error] has the ledger's [Reason]: errors.Is(err, coppice.PreconditionFailed).
// [OutcomeUnknown] tells whether a write may have happened all the same.
package coppice
