//! Verification of proof files, offline (`docs/verification.md` section 13).
//!
//! The verifier trusts one public key, the keys that it leads to, and nothing else. A failure names
//! the step of section 13 that failed.
//!
//! The level of a tree (at most 32) and 64 halvings of a list bound every recursion. The length of
//! the file bounds time and memory.

mod anchors;
mod claim;
mod failure;
mod ledgers;
mod log;
pub(crate) mod query;
mod question;
mod time;
mod tree;

use alloc::boxed::Box;

use coppice_types::{Digest, Stamp};

pub use self::{
    anchors::verify_time_receipt,
    claim::{
        AnchorClaim, Answer, Claim, IntervalClaim, Journal, JournalsClaim, LineageClaim, QueryClaim, ReceiptClaim,
        Record, StandingClaim, TimeClaim, Verified,
    },
    failure::{Cause, Failure, Step},
    log::ProvenLog,
    question::{Question, Subject},
};
use self::{
    failure::{ensure, fail},
    log::Log,
};
use crate::{
    checkpoint::Checkpoint,
    epochs::Epochs,
    header::{Body, Header},
    journal::Entry,
    keys::Keys,
    merkle,
    note::VerifierKey,
    policy::{Examined, Policy},
    proof::{MAGIC, Proof, ProofFile, Query, QueryProof, ReceiptProof, StandingProof, TreeList},
};

/// Verifies that a proof file answers a question: it holds as in [`verify`], and its claim matches
/// the question.
///
/// # Errors
/// Names the step that failed. Then nothing in the file can be believed.
pub fn verify_answer<'a>(
    file: &'a [u8],
    key: &VerifierKey,
    newer: Option<&[u8]>,
    question: &Question<'_>,
) -> Result<Verified<'a>, Failure> {
    let file = ProofFile::decode(file).map_err(fail(Step::Format))?;
    verify_known(&file, &Keys::new(key.clone()), newer, question)
}

/// Verifies a proof file under the ledger's key, whatever it proves. The caller must compare the
/// claim with its own question; [`verify_answer`] does both.
///
/// `newer` is a standing proof file that starts at this file's checkpoint, or a signed note of the
/// same size. With it, the version must still stand there.
///
/// # Errors
/// Names the step that failed. Then nothing in the file can be believed.
pub fn verify<'a>(file: &'a [u8], key: &VerifierKey, newer: Option<&[u8]>) -> Result<Verified<'a>, Failure> {
    let file = ProofFile::decode(file).map_err(fail(Step::Format))?;
    verify_file(&file, key, newer)
}

/// [`verify`] for a decoded file.
///
/// # Errors
/// Names the step that failed.
pub fn verify_file<'a>(file: &ProofFile<'a>, key: &VerifierKey, newer: Option<&[u8]>) -> Result<Verified<'a>, Failure> {
    verify_known(file, &Keys::new(key.clone()), newer, &Question::default())
}

/// [`verify_answer`] for a decoded file, and for callers that know key changes already.
///
/// # Errors
/// Names the step that failed.
pub fn verify_known<'a>(
    file: &ProofFile<'a>,
    keys: &Keys,
    newer: Option<&[u8]>,
    question: &Question<'_>,
) -> Result<Verified<'a>, Failure> {
    let newer = newer.map(|newer| Newer::decode(newer, keys)).transpose().map_err(Failure::in_newer)?;
    // The newer file may contain key changes. The checkpoint of this file may be signed by a key
    // that is no longer trusted, since the newer one extends it.
    let (keys, joined) = match &newer {
        Some(Newer::Standing { log, .. }) => (&log.keys, true),
        _ => (keys, false),
    };
    let log = Log::check(file.cluster, file.proof.log(), keys, joined)?;
    let mut verified = check_in(file, log)?;
    if let Some(newer) = newer {
        verified.newer = Some(check_newer(&verified, newer).map_err(Failure::in_newer)?);
    }
    verified.answers(question)?;
    Ok(verified)
}

/// [`verify_known`] for a file whose log part was verified before.
///
/// # Errors
/// Names the step that failed. [`Step::Checkpoint`] if the file has another log part.
pub fn verify_in<'a>(
    file: &ProofFile<'a>,
    keys: &Keys,
    log: &ProvenLog,
    question: &Question<'_>,
) -> Result<Verified<'a>, Failure> {
    ensure(log.is_of(file, keys), Step::Checkpoint, "a different log part than the one that was verified")?;
    let verified = check_in(file, log.log.clone())?;
    verified.answers(question)?;
    Ok(verified)
}

/// Checks what a file proves in a verified log.
fn check_in<'a>(file: &ProofFile<'a>, log: Log) -> Result<Verified<'a>, Failure> {
    let claim = match &file.proof {
        Proof::Query(proof) => Claim::Query(check_query(&log, proof)?),
        Proof::Receipt(proof) => Claim::Receipt(check_receipt(&log, proof)?),
        Proof::Standing(proof) => Claim::Standing(check_standing(&log, proof)?),
        Proof::Journals(proof) => Claim::Journals(ledgers::check_journals(&log, proof)?),
        Proof::Time(proof) => Claim::Time(time::check(&log, proof)?),
        Proof::Lineage(proof) => Claim::Lineage(ledgers::check_lineage(&log, proof)?),
        Proof::Interval(proof) => Claim::Interval(anchors::check(&log, proof)?),
    };
    let Log { cluster, checkpoint, keys, newest } = log;
    Ok(Verified { cluster, checkpoint, newest, keys, claim, newer: None })
}

/// Verifies a proof file under a policy (section 10). The newest checkpoint that is shown is that
/// of `newer`, if it is given. It must be signed by a log of the policy and have the quorum of
/// cosignatures. All else is [`verify`] under that log's key.
///
/// The newest checkpoint is enough, since it is shown to extend the other one.
///
/// # Errors
/// Names the step that failed. Then nothing in the file can be believed.
pub fn verify_under<'a>(
    file: &'a [u8],
    policy: &Policy,
    newer: Option<&[u8]>,
) -> Result<(Verified<'a>, Examined), Failure> {
    let file = ProofFile::decode(file).map_err(fail(Step::Format))?;
    let examined = match newer {
        None => log::successors(policy, file.cluster, file.proof.log()).examine(&file.proof.log().checkpoint),
        Some(newer) if newer.starts_with(MAGIC) => {
            let newer = ProofFile::decode(newer).map_err(fail(Step::Standing))?;
            let policy = log::successors(policy, newer.cluster, newer.proof.log());
            policy.examine(&newer.proof.log().checkpoint)
        }
        // The note has the size of the file's checkpoint, so the same key changes lie below both.
        Some(note) => log::successors(policy, file.cluster, file.proof.log()).examine(note),
    };
    let examined = examined.map_err(fail(if newer.is_some() { Step::Standing } else { Step::Checkpoint }))?;
    let verified = verify_file(&file, &examined.log, newer)?;
    ensure(examined.quorum, Step::Cosignatures, "too few witnesses of the policy have cosigned the checkpoint")?;
    Ok((verified, examined))
}

/// The answer of one shard's trees to a query, given the shard digest of the version `stamp`. It is
/// the part of a verification for callers that already have a digest that they trust.
///
/// # Errors
/// Names the step that failed.
pub fn verify_trees<'a>(
    trees: TreeList<'a>,
    digest: &Digest,
    stamp: Stamp,
    query: &Query<'a>,
) -> Result<Answer<'a>, Failure> {
    query::check_trees(trees, digest, stamp, query)
}

fn check_query<'a>(log: &Log, proof: &QueryProof<'a>) -> Result<QueryClaim<'a>, Failure> {
    let header = log.header(&proof.header)?;
    let kind_fits = matches!(header.body, Body::Commit | Body::Genesis(_));
    ensure(kind_fits, Step::Header, "neither a commit nor genesis")?;
    log.stands(&proof.epoch, header.stamp)?;
    let answer = query::check(&header, proof)?;
    Ok(QueryClaim { header, answer })
}

fn check_receipt(log: &Log, proof: &ReceiptProof<'_>) -> Result<ReceiptClaim, Failure> {
    let header = log.header(&proof.header)?;
    ensure(matches!(header.body, Body::Commit), Step::Header, "not a commit")?;
    log.stands(&proof.epoch, header.stamp)?;
    match journal_entry(&header, proof.index, &proof.entry, &proof.hashes)? {
        Entry::Batch(batch) => Ok(ReceiptClaim { header, index: proof.index, batch }),
        _ => Err(Failure::rule(Step::Journal, "not a batch")),
    }
}

/// Decodes an entry, and checks that it is in the version's journal.
fn journal_entry(header: &Header, index: u32, entry: &[u8], hashes: &[Digest]) -> Result<Entry, Failure> {
    let entry = Entry::decode(entry).map_err(fail(Step::Journal))?;
    let revealed = [(u64::from(index), entry.hash())];
    let root = merkle::list_root(u64::from(header.journal_leaves), &revealed, hashes).map_err(fail(Step::Journal))?;
    ensure(root == header.journal_root, Step::Journal, "another journal root")?;
    Ok(entry)
}

fn check_standing(log: &Log, proof: &StandingProof<'_>) -> Result<StandingClaim, Failure> {
    let (old_size, new_size) = (proof.old_size, log.checkpoint.size);
    merkle::verify_consistency(old_size, new_size, &proof.old_root, &log.checkpoint.root, &proof.path)
        .map_err(fail(Step::Standing))?;
    let epochs = Epochs::from_pairs(proof.pairs.clone());
    let epochs = epochs.ok_or(Failure::rule(Step::Standing, log::NO_ROLLBACKS))?;
    let counted = epochs.pairs().len() as u64 == u64::from(log.newest.epoch_pairs);
    ensure(counted && epochs.root() == log.newest.epochs_root, Step::Standing, "other epoch pairs")?;
    if let Some(last) = epochs.pairs().last() {
        log.check_newest_pair(last, 0, Step::Standing)?;
    }
    Ok(StandingClaim { old_size, old_root: proof.old_root, epochs })
}

/// A newer checkpoint, signed by the key in force.
enum Newer<'a> {
    Note(&'a [u8]),
    Standing { log: Box<Log>, proof: StandingProof<'a> },
}

impl<'a> Newer<'a> {
    fn decode(bytes: &'a [u8], keys: &Keys) -> Result<Self, Failure> {
        if !bytes.starts_with(MAGIC) {
            return Ok(Self::Note(bytes));
        }
        let file = ProofFile::decode(bytes).map_err(fail(Step::Standing))?;
        let Proof::Standing(proof) = file.proof else {
            return Err(Failure::rule(Step::Standing, "not a standing proof"));
        };
        let log = Box::new(Log::check(file.cluster, &proof.log, keys, false)?);
        Ok(Self::Standing { log, proof })
    }
}

/// The newer checkpoint, if it extends the verified one and the version stands there.
fn check_newer(old: &Verified<'_>, newer: Newer<'_>) -> Result<Checkpoint, Failure> {
    let same_log = |size: u64, root: &Digest| (size, root) == (old.checkpoint.size, &old.checkpoint.root);
    let (log, proof) = match newer {
        Newer::Standing { log, proof } => (log, proof),
        Newer::Note(note) => {
            let note = log::open(note, &old.keys, false)?;
            let joined = same_log(note.size, &note.root);
            ensure(
                joined,
                Step::Standing,
                "a note shows only its own size and root; ask for a standing proof from this size",
            )?;
            return Ok(note);
        }
    };
    ensure(log.cluster == old.cluster, Step::Standing, "of another cluster")?;
    let claim = check_standing(&log, &proof)?;
    // The proof may show key changes that the newer file hides.
    let size = log.checkpoint.size;
    let in_force = old.keys.in_force(size) == log.keys.in_force(size);
    ensure(in_force, Step::Standing, "it is signed by a key that the proof shows to be replaced")?;
    ensure(
        same_log(claim.old_size, &claim.old_root),
        Step::Standing,
        "it extends a different checkpoint than the proof's",
    )?;
    // An entry of the log stays, whether or not its version stands.
    let is_of_version = !matches!(old.claim, Claim::Interval(_));
    if let Some(header) = old.header().filter(|_| is_of_version) {
        ensure(claim.epochs.stands(header.stamp), Step::Standing, "the version was rolled back")?;
        log.check_not_above(header.stamp, Step::Standing)?;
    }
    if let Claim::Time(claim) = &old.claim {
        let settled = claim.is_final() || log.checkpoint.size == old.checkpoint.size;
        ensure(settled, Step::Standing, "a version after the proof's checkpoint may have the time, too")?;
    }
    Ok(log.checkpoint)
}
