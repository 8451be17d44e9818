// Package geth keeps the state of an Ethereum chain in a Coppice ledger, for go-ethereum.
//
// A [State] is the ledger's side. Each block that changes anything is one version of the ledger:
// its accounts, storage slots and codes, and a record that names the version by the state root. So
// the state of each height can be read at the cost of head, with the ledger's proofs. A rollback
// of the ledger follows a reorganization of the chain: a state is known by its root, and never by
// its height, so what was reorganized away is refused with [ErrUnknownRoot].
//
// [NewDatabase] is a state.Database for programs that run blocks by themselves, with StateDB and
// StateProcessor. Ethereum's tries stay, so roots are Ethereum's. Reads of known roots are the
// ledger's, and each is proven.
//
// A [Feed] is for a whole node: its hooks are those of a live tracer, and write its blocks to the
// ledger. The node goes on to read its own database.
//
// The ledger belongs to one chain and one writer, since a rollback is the whole ledger's. Another
// writer is found by the expected head of each commit; a [State] then reads the head again, and
// forgets all that it held.
package geth
