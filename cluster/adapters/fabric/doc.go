// Package fabric gives Hyperledger Fabric 3.1 a Coppice ledger as its state database.
//
// [New] makes a statedb.VersionedDBProvider of a client. Each channel is a database of its own in
// the ledger. A block is one commit of one batch, with its savepoint, and the versions that its
// validation needs are read at once. Reads are proven. A cache that follows the ledger's journals
// answers those that come again.
//
// Each database has one writer. Its record changes with every commit, and every commit names the
// change that it follows. So a commit whose answer was lost is not applied twice, and a second
// writer is refused with [ErrMoved], not merged.
//
// A file in the directory of the state database names the state's generation. Fabric deletes that
// directory to rebuild the state. The next start then begins an empty generation.
package fabric
