//! The one gate for signing: no other part of a coordinator signs checkpoints.
//!
//! A checkpoint is signed only over a log that meets two conditions. It extends the last log that
//! this coordinator signed, and a majority of the root group's voters has it.
//!
//! The first condition is computed: the coordinator computes the roots of logs that it appends to
//! ([`Frontier`]), and checks a consistency proof for any other log. For the second condition, each
//! replica is asked over a connection to its own node; the leading replica's answer to an append
//! counts as well. A replica attests only entries that it has applied, which are durable there. So
//! one replica's attestation is never enough, unless it is the only voter. Of two voters, both are
//! needed.
//!
//! Invariants: no size is signed with two roots, and a log that is smaller than the last signed one
//! is never signed, unless it was signed before. A coordinator keeps nothing on disk: when it
//! starts, it believes the log that a majority has. A replica that contradicts a signed log is
//! named in the log output and counted.

mod ask;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{Digest, Reason, Stamp};
use coppice_verify::{checkpoint::Checkpoint, hash, merkle};
use tokio::{
    sync::{Semaphore, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use tonic::Status;

pub use self::ask::Word;
use self::ask::{Question, Verdict};
use super::{
    frontier::Frontier,
    keys::KeyRing,
    links::Links,
    voters::Voters,
    wire::{self, View},
};
use crate::{
    lock::held,
    plan::{Leaves, LogTail},
};

/// Limit on the number of signed notes that are remembered, and on that of computed roots.
const NOTES_MAX: usize = 1024;
/// First pause before a replica that gave no answer is asked again. Each further pause is twice as
/// long.
const PAUSE: Duration = Duration::from_millis(20);
/// Limit on the number of questions to one node at a time.
const QUESTIONS_MAX: usize = 16;
/// How long the replicas may take to reach a majority before they are asked again, since the voters
/// may have changed by then.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// How often signing is repeated because another log was signed first.
const TRIES_MAX: usize = 16;

/// The size and the root of a log.
type SizedRoot = (u64, Digest);

/// The reason why there is no signature.
#[derive(Debug)]
enum Unsigned {
    /// A larger log was signed meanwhile.
    Outrun,
    Refused(Status),
}

/// The next step of signing a log.
#[derive(Debug)]
enum Step {
    Done(Result<Bytes, Unsigned>),
    /// Replicas must show that the log extends this smaller one, the largest that is signed.
    Ask(Option<SizedRoot>),
}

#[derive(Debug)]
struct State {
    voters: Voters,
    /// The largest signed log.
    signed: Option<SizedRoot>,
    /// Signed notes by size.
    notes: BTreeMap<u64, (Digest, Bytes)>,
    /// The newest log that this coordinator leads or led.
    own: Option<Frontier>,
    /// Roots by size of logs that extend each other. A majority has the largest.
    chain: BTreeMap<u64, Digest>,
}

/// The gate: the only part that signs checkpoints.
#[derive(Debug)]
pub struct Attested {
    links: Arc<Links>,
    keys: Arc<KeyRing>,
    state: Mutex<State>,
    /// Held while replicas are asked for a signature. A caller that waited for it finds the
    /// signature made.
    asking: tokio::sync::Mutex<()>,
    /// Limits the open questions to each node.
    open: BTreeMap<String, Arc<Semaphore>>,
    /// How often replicas contradicted a signed log, or each other.
    contradictions: AtomicU64,
}

fn insert<T>(map: &mut BTreeMap<u64, T>, size: u64, what: T) {
    map.insert(size, what);
    if map.len() > NOTES_MAX {
        map.pop_first();
    }
}

impl State {
    /// The existing signature, or the reason why there can be none. `None` if there may be one.
    fn decided(&self, (size, root): SizedRoot) -> Option<Result<Bytes, Unsigned>> {
        if let Some((signed, note)) = self.notes.get(&size) {
            return Some(if *signed == root { Ok(note.clone()) } else { Err(two_roots(size, signed, &root)) });
        }
        self.signed.filter(|(signed, _)| *signed >= size).map(|_| Err(Unsigned::Outrun))
    }

    /// The root of this size that is signed, or that a majority has.
    fn root_of(&self, size: u64) -> Option<Digest> {
        self.notes.get(&size).map(|(root, _)| *root).or_else(|| self.chain.get(&size).copied())
    }

    /// Whether this coordinator computed the log's root, the log extends all that was signed, and a
    /// majority is known to have it.
    fn is_established(&self, (size, root): SizedRoot) -> bool {
        let has = |(size, root): SizedRoot| self.chain.get(&size) == Some(&root);
        has((size, root)) && self.signed.is_none_or(has)
    }
}

fn two_roots(size: u64, signed: &Digest, other: &Digest) -> Unsigned {
    tracing::error!(size, %signed, %other, "the root log has two roots of the same size: the second is not signed");
    let message = format!("the root log has two roots at size {size}: the second is not signed");
    Unsigned::Refused(status::refuse(Reason::Internal, message))
}

fn unconfirmed(size: u64) -> Status {
    let message = format!("a majority of the root group does not confirm {size} entries of the log: ask again");
    status::refuse(Reason::Unavailable, message)
}

impl Attested {
    /// A gate that has signed nothing yet. It believes that all nodes vote but the readers.
    pub fn new(links: Arc<Links>, keys: Arc<KeyRing>) -> Self {
        let state = State {
            voters: Voters::new(links.voter_names()),
            signed: None,
            notes: BTreeMap::new(),
            own: None,
            chain: BTreeMap::new(),
        };
        let open = links.node_names().map(|node| (node.to_owned(), Arc::new(Semaphore::new(QUESTIONS_MAX)))).collect();
        let (state, asking) = (Mutex::new(state), tokio::sync::Mutex::default());
        Self { links, keys, state, asking, open, contradictions: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    /// How often a replica contradicted a signed log, or the log of a majority.
    pub fn contradictions(&self) -> u64 {
        self.contradictions.load(Ordering::Relaxed)
    }

    /// Whether `are` holds for a majority of the nodes that are believed to vote in the root group.
    pub fn is_majority(&self, are: impl Fn(&str) -> bool) -> bool {
        self.state().voters.majority(are)
    }

    /// Signs a log by the key in force at its size. Two signatures of the same log have the same
    /// bytes. `None` if a larger log was signed meanwhile.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the key is not here, or no majority confirms the log by the deadline.
    /// `INTERNAL` if another root was signed for this size, or if the log does not extend the
    /// signed one: then a replica lies, or the log was rewritten.
    pub async fn sign(self: &Arc<Self>, size: u64, root: Digest, deadline: Instant) -> Result<Option<Bytes>, Status> {
        match timeout_at(deadline, self.try_sign((size, root), deadline)).await {
            Ok(Ok(note)) => Ok(Some(note)),
            Ok(Err(Unsigned::Outrun)) => Ok(None),
            Ok(Err(Unsigned::Refused(error))) => Err(error),
            Err(_) => Err(unconfirmed(size)),
        }
    }

    /// The signed note of this log, if it is remembered.
    pub fn note(&self, size: u64, root: &Digest) -> Option<Bytes> {
        self.state().notes.get(&size).filter(|(signed, _)| signed == root).map(|(_, note)| note.clone())
    }

    async fn try_sign(self: &Arc<Self>, head: SizedRoot, deadline: Instant) -> Result<Bytes, Unsigned> {
        if let Step::Done(done) = self.step(head) {
            return done;
        }
        let _one_at_a_time = self.asking.lock().await;
        for _ in 0..TRIES_MAX {
            let old = match self.step(head) {
                Step::Done(done) => return done,
                Step::Ask(old) => old,
            };
            let question = Question { head, old, newest: None };
            self.proven(question, deadline).await.map_err(Unsigned::Refused)?;
            let mut state = self.state();
            // If another log was signed meanwhile, this one must extend it, so the proof starts
            // again.
            if state.signed == old {
                return self.put_signature(&mut state, head);
            }
        }
        Err(Unsigned::Outrun)
    }

    /// Signs an established log, or returns the decided result, or says what to ask replicas. The
    /// lock is taken once. Otherwise another caller could sign the log between two looks at the
    /// state, and the replicas would be asked whether the log extends itself.
    fn step(&self, head: SizedRoot) -> Step {
        let mut state = self.state();
        if let Some(done) = state.decided(head) {
            return Step::Done(done);
        }
        if state.is_established(head) {
            return Step::Done(self.put_signature(&mut state, head));
        }
        Step::Ask(state.signed)
    }

    /// The only place where a checkpoint is signed. The caller has shown that `head` extends the
    /// signed log in `state`, and that a majority has it.
    fn put_signature(&self, state: &mut State, (size, root): SizedRoot) -> Result<Bytes, Unsigned> {
        assert!(state.signed.is_none_or(|(signed, _)| signed < size), "only a larger log is signed for the first time");
        let key = self.keys.signer(size).map_err(|refusal| Unsigned::Refused(refusal.into()))?;
        let checkpoint = Checkpoint { origin: key.name().to_owned(), size, root };
        let note = Bytes::from(checkpoint.sign(key).expect("the origin is the key's name").into_bytes());
        state.signed = Some((size, root));
        insert(&mut state.notes, size, (root, note.clone()));
        Ok(note)
    }

    /// Checks the log of a new term, and accepts it as this coordinator's own. The log must extend
    /// the signed one, a majority must have it, its newest header must be that of the view, and
    /// that header must cover the view's leaves and epochs.
    ///
    /// # Errors
    /// `UNAVAILABLE` if no majority confirms it by the deadline; `INTERNAL` if a check fails.
    pub async fn establish(self: &Arc<Self>, view: &View, deadline: Instant) -> Result<(), Status> {
        let tail = &view.tail;
        if tail.leaves.root() != tail.header.state_root || tail.epochs.root() != tail.header.epochs_root {
            return Err(wire::broken("root view: its leaves or epochs are not those of its newest header"));
        }
        let head = (view.log_size, view.log_root);
        let old = self.state().signed;
        if let Some((signed, root)) = old
            && (signed > head.0 || signed == head.0 && root != head.1)
        {
            tracing::error!(shown = head.0, signed, "the root group shows a log that does not extend what is signed");
            self.contradictions.fetch_add(1, Ordering::Relaxed);
            return Err(unconfirmed(signed));
        }
        let question = Question { head, old, newest: Some(tail.hash) };
        let frontier = self.proven(question, deadline).await?.expect("the newest entry's place was asked for");
        let mut state = self.state();
        state.chain = old.into_iter().chain([head]).collect();
        state.own = Some(frontier);
        Ok(())
    }

    /// The state leaves of a version in a replica's answer. The answer must show that the version's
    /// header is in this coordinator's log and has its state root over these leaves.
    ///
    /// # Errors
    /// `INTERNAL` if it does not show that; `UNAVAILABLE` if the answer is of a different log than
    /// this coordinator's.
    pub fn leaves(&self, stamp: Stamp, answer: &v1::ReadRootResponse) -> Result<Leaves, Status> {
        let shown = answer.view.as_ref().map_or(0, |view| view.log_size);
        let root = self.state().chain.get(&shown).copied().ok_or_else(|| unconfirmed(shown))?;
        let (header, sequence) = (wire::header_in(&answer.header)?, answer.header_sequence);
        let path = wire::path_in(answer.inclusion.first().ok_or_else(|| wire::broken("version"))?)?;
        let entry = hash::log_entry_hash(&answer.header);
        let leaves = wire::leaves_in(answer.leaves.clone())?;
        let stands = merkle::verify_inclusion(sequence, shown, &entry, &path, &root).is_ok();
        if !stands || header.stamp != stamp || leaves.root() != header.state_root {
            return Err(wire::broken("version: its leaves are not those of its header in the log"));
        }
        Ok(leaves)
    }

    /// This coordinator's log with one more header. `None` if the header does not follow it.
    pub fn grown(&self, tail: &LogTail) -> Option<Frontier> {
        let state = self.state();
        let own = state.own.as_ref()?;
        let follows = own.size() == tail.header.sequence.0 && own.newest() == tail.header.previous;
        follows.then(|| own.push(tail.hash))
    }

    /// Waits, without a limit, until a majority of the voters has this coordinator's log. Returns
    /// false if a majority has another log, so that it will never have this one. `word` is the
    /// leading replica's answer to the append, which counts as its attestation.
    pub async fn confirm(self: &Arc<Self>, grown: &Frontier, word: oneshot::Receiver<Word>) -> bool {
        let head = (grown.size(), grown.root());
        let question = Question { head, old: None, newest: None };
        let mut word = Some(word);
        let has = loop {
            match timeout(ROUND_MAX, self.ask(question, word.take())).await {
                Ok(Verdict::Has(_)) => break true,
                Ok(Verdict::HasNot(_)) => break false,
                Ok(Verdict::Unproven) | Err(_) => sleep(PAUSE).await,
            }
        };
        let mut state = self.state();
        if has && state.own.as_ref().is_some_and(|own| own.size() < head.0) {
            insert(&mut state.chain, head.0, head.1);
            state.own = Some(grown.clone());
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::{super::keys::tests::ring, *};

    /// A gate whose node is never asked.
    fn gate() -> Attested {
        let connect = Arc::new(|_: &str| Endpoint::from_static("http://127.0.0.1:1").connect_lazy().into());
        let links = Links::new(
            &["node-1".to_owned()],
            &crate::Routing::default(),
            &(connect as _),
            1 << 20,
            Duration::from_secs(1),
        );
        Attested::new(Arc::new(links), Arc::new(ring()))
    }

    fn root(size: u64) -> Digest {
        Digest([(size % 251) as u8; 32])
    }

    /// Several callers sign the same logs while a writer establishes them. Replicas are asked only
    /// about logs that are larger than the signed one.
    #[tokio::test]
    async fn replicas_are_asked_only_about_logs_larger_than_the_signed_one() {
        const ROUNDS: usize = 16;
        const SIZES: u64 = NOTES_MAX as u64;
        let sign_all = |gate: &Attested| {
            for size in 1..=SIZES {
                while let Step::Ask(old) = gate.step((size, root(size))) {
                    assert!(old.is_none_or(|(signed, _)| signed < size), "{size} follows {old:?}");
                }
            }
        };
        for _ in 0..ROUNDS {
            let gate = &gate();
            std::thread::scope(|scope| {
                scope.spawn(|| (1..=SIZES).for_each(|size| insert(&mut gate.state().chain, size, root(size))));
                for _ in 0..3 {
                    scope.spawn(|| sign_all(gate));
                }
            });
            assert_eq!(gate.state().signed, Some((SIZES, root(SIZES))));
        }
    }
}
