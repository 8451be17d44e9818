// Package verify judges proofs of a Coppice ledger without trusting any server.
//
// It is an implementation of docs/verification.md of its own, written from that page alone: it
// shares no code with the server. Beside the standard library it needs filippo.io/mldsa, which is
// what crypto/mldsa of Go 1.27 is, for cosignatures by ML-DSA-44. A verifier trusts the public key
// of a ledger, which it has as a C2SP vkey, or a policy that names logs and witnesses.
//
// [Verify] and [VerifyUnder] judge a proof file, as coordinators make them, and give what it says.
// Compare that with what was asked by [Verified.Answers]. A refusal is an [*Error], which names the
// step.
//
// An interval proof shows which anchors lie around an entry of the log. This package checks where
// they lie, and what their tokens are to stamp. It does not judge tokens, which are signed by
// authorities of RFC 3161. Their times are claims until they are judged by certificates of these
// authorities, as `coppice verify --tsa-root` does.
//
// [HeaderLog] and [Replay] audit a whole ledger: the headers in order, then the journal of each
// version, from which the state roots follow. [LedgerAuditor] judges the requests of one ledger of
// members again, and [Round] those of one version.
//
// No input makes the package panic. It takes memory in proportion to its input: a parsed proof file
// has at most some ten times its size, and files above 64 MiB are refused.
package verify
