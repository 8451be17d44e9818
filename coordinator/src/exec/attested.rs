//! The one gate through which every signature of a checkpoint goes.
//!
//! A checkpoint is signed only over a log that extends the last one that this coordinator signed,
//! and that a majority of the root group's voters has. The first is shown by computation: of what
//! it appends itself the coordinator computes the roots ([`Frontier`]), of any other log it checks
//! a consistency proof. The second is heard from each replica over a connection to its own node:
//! from the one that leads as its answer to an append, from others by asking. A replica tells of
//! entries that it has applied, which are durable there. So one replica's word is never enough,
//! unless it is the only voter; of two voters both are needed.
//!
//! Invariants: no size is signed with two roots, and nothing smaller than what was signed is signed
//! for the first time. A coordinator keeps nothing: one that begins believes what a majority has. A
//! replica that contradicts what is signed is named in the log and counted.

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
use coppice_types::{Digest, GroupId, Reason, Stamp};
use coppice_verify::{checkpoint::Checkpoint, hash, merkle};
use futures::future::join_all;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use tonic::Status;

use super::{
    frontier::Frontier,
    keys::KeyRing,
    links::Links,
    voters::Voters,
    wire::{self, View},
};
use crate::plan::{Leaves, LogTail};

/// Most signed notes, and most roots of own logs, that are remembered.
const NOTES_MAX: usize = 1024;
/// Pause before a replica that gave no answer is asked again; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest pause before a replica is asked again.
const PAUSE_MAX: Duration = Duration::from_millis(320);
/// Most questions to one node at a time.
const QUESTIONS_MAX: usize = 16;
/// How long all replicas may take to come to a majority before they are asked again: the voters may
/// be others by then.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// How often all replicas are asked for what was signed last, and how long each may take.
const LOOK: Duration = Duration::from_secs(1);
/// How often a signature is tried anew because another one came first.
const TRIES_MAX: usize = 16;

/// A size and the root of a log of so many entries.
type Head = (u64, Digest);

/// What the node that answers an append says of its own log: its name, and the log.
pub type Word = (String, Head);

/// A leader that says what it has when it has appended, and is not asked before.
struct Leader {
    node: String,
    word: oneshot::Receiver<Word>,
    /// To ask it all the same, if it says something else.
    tell: mpsc::Sender<(String, v1::AttestResponse)>,
}

/// What replicas are asked about a log.
#[derive(Clone, Copy, Debug)]
struct Question {
    head: Head,
    /// What it must extend.
    old: Option<Head>,
    /// The hash of the newest entry, whose place is to be shown.
    newest: Option<Digest>,
}

/// What a majority said of a log.
#[derive(Debug)]
enum Verdict {
    /// It has it; with its frontier, if that was asked for.
    Has(Option<Frontier>),
    /// It has another root of this size.
    HasNot(Digest),
    /// It has it, and cannot show what was asked for: that it extends the old one, or where its
    /// newest entry stands.
    Unproven,
}

/// Why there is no signature.
#[derive(Debug)]
enum Unsigned {
    /// A larger log was signed meanwhile.
    Outrun,
    Refused(Status),
}

#[derive(Debug)]
struct State {
    voters: Voters,
    /// The largest log that was signed.
    signed: Option<Head>,
    /// Signed notes by size.
    notes: BTreeMap<u64, (Digest, Bytes)>,
    /// The newest log that this coordinator leads, or led.
    own: Option<Frontier>,
    /// Roots of logs of which each extends the one before: a majority has the largest.
    chain: BTreeMap<u64, Digest>,
}

/// Signs checkpoints.
#[derive(Debug)]
pub struct Attested {
    links: Arc<Links>,
    keys: Arc<KeyRing>,
    state: Mutex<State>,
    /// Held while replicas are asked for a signature: whoever waits finds it made.
    asking: tokio::sync::Mutex<()>,
    /// Questions that may be put to each node.
    open: BTreeMap<String, Arc<Semaphore>>,
    /// Replicas found to contradict what is signed, or each other.
    contradictions: AtomicU64,
}

fn insert<T>(map: &mut BTreeMap<u64, T>, size: u64, what: T) {
    map.insert(size, what);
    if map.len() > NOTES_MAX {
        map.pop_first();
    }
}

impl State {
    /// The signature that there is, or why there can be none; `None` if there may be one.
    fn decided(&self, (size, root): Head) -> Option<Result<Bytes, Unsigned>> {
        if let Some((signed, note)) = self.notes.get(&size) {
            return Some(if *signed == root { Ok(note.clone()) } else { Err(two_roots(size, signed, &root)) });
        }
        self.signed.filter(|(signed, _)| *signed >= size).map(|_| Err(Unsigned::Outrun))
    }

    /// The root of this size that is signed, or that a majority has.
    fn root_of(&self, size: u64) -> Option<Digest> {
        self.notes.get(&size).map(|(root, _)| *root).or_else(|| self.chain.get(&size).copied())
    }

    /// A log whose root this coordinator computed, which extends all that was signed, and which a
    /// majority is known to have.
    fn is_established(&self, (size, root): Head) -> bool {
        let has = |(size, root): Head| self.chain.get(&size) == Some(&root);
        has((size, root)) && self.signed.is_none_or(has)
    }
}

fn two_roots(size: u64, signed: &Digest, other: &Digest) -> Unsigned {
    tracing::error!(size, %signed, %other, "the root log has two roots of one size: the second is not signed");
    let message = format!("the root log has two roots of size {size}: the second is not signed");
    Unsigned::Refused(status::refuse(Reason::Internal, message))
}

fn unconfirmed(size: u64) -> Status {
    let message = format!("a majority of the root group does not confirm {size} entries of the log: ask again");
    status::refuse(Reason::Unavailable, message)
}

impl Attested {
    /// Nothing is signed yet, and all nodes are taken for voters.
    pub fn new(links: Arc<Links>, keys: Arc<KeyRing>) -> Self {
        let state = State {
            voters: Voters::new(links.node_names()),
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
        self.state.lock().expect("no holder of the lock panics")
    }

    /// How often a replica was found to contradict what is signed, or what a majority has.
    pub fn contradictions(&self) -> u64 {
        self.contradictions.load(Ordering::Relaxed)
    }

    /// Whether the nodes of which this holds are a majority of those that are believed to vote in
    /// the root group.
    pub fn is_majority(&self, are: impl Fn(&str) -> bool) -> bool {
        self.state().voters.majority(are)
    }

    /// Signs the head of the log by the key in force there; whoever signs it produces the same
    /// bytes. `None` if a larger log was signed meanwhile.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the key is not here, or no majority confirms the log by the deadline.
    /// `INTERNAL` if another root was signed for this size, or if the log does not extend what was
    /// signed: then a replica lies, or the log was rewritten.
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

    async fn try_sign(self: &Arc<Self>, head: Head, deadline: Instant) -> Result<Bytes, Unsigned> {
        if let Some(done) = self.sign_at_once(head) {
            return done;
        }
        let _one_at_a_time = self.asking.lock().await;
        for _ in 0..TRIES_MAX {
            if let Some(done) = self.sign_at_once(head) {
                return done;
            }
            let old = self.state().signed;
            let question = Question { head, old, newest: None };
            self.proven(question, deadline).await.map_err(Unsigned::Refused)?;
            let mut state = self.state();
            // Another signature may have come first: then it must extend that one.
            if state.signed == old {
                return self.put_signature(&mut state, head);
            }
        }
        Err(Unsigned::Outrun)
    }

    /// Signs what is established, or gives what is decided; `None` if replicas must be asked.
    fn sign_at_once(&self, head: Head) -> Option<Result<Bytes, Unsigned>> {
        let mut state = self.state();
        let decided = state.decided(head);
        decided.or_else(|| state.is_established(head).then(|| self.put_signature(&mut state, head)))
    }

    /// The only place where a checkpoint is signed: `head` extends what `state` says was signed,
    /// and a majority has it.
    fn put_signature(&self, state: &mut State, (size, root): Head) -> Result<Bytes, Unsigned> {
        assert!(state.signed.is_none_or(|(signed, _)| signed < size), "only a larger log is signed for the first time");
        let key = self.keys.signer(size).map_err(|refusal| Unsigned::Refused(refusal.into()))?;
        let checkpoint = Checkpoint { origin: key.name().to_owned(), size, root };
        let note = Bytes::from(checkpoint.sign(key).expect("the origin is the key's name").into_bytes());
        state.signed = Some((size, root));
        insert(&mut state.notes, size, (root, note.clone()));
        Ok(note)
    }

    /// Believes the log of a new term: it extends what was signed, a majority has it, its newest
    /// header is the one that the view shows, and that header's roots are over the view's leaves
    /// and epochs.
    ///
    /// # Errors
    /// `UNAVAILABLE` if no majority confirms it by the deadline; `INTERNAL` if something does not
    /// hold.
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

    /// The state leaves of a version in a replica's answer, which shows that the version's header,
    /// in the own log, has its root over them.
    ///
    /// # Errors
    /// `INTERNAL` if it does not; `UNAVAILABLE` if the answer is of another log than this
    /// coordinator leads.
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

    /// The own log with one more header; `None` if the header does not follow on it.
    pub fn grown(&self, tail: &LogTail) -> Option<Frontier> {
        let state = self.state();
        let own = state.own.as_ref()?;
        let follows = own.size() == tail.header.sequence.0 && own.newest() == tail.header.previous;
        follows.then(|| own.push(tail.hash))
    }

    /// Waits until a majority of the voters has the own log, however long that takes. False if it
    /// has another one: this one will never be. The answer to the append is one of the words.
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

    /// Asks until a majority has the log and shows what is asked for.
    async fn proven(self: &Arc<Self>, question: Question, deadline: Instant) -> Result<Option<Frontier>, Status> {
        let (size, root) = question.head;
        loop {
            let until = deadline.min(Instant::now() + ROUND_MAX);
            match timeout_at(until, self.ask(question, None)).await {
                Ok(Verdict::Has(frontier)) => return Ok(frontier),
                Ok(Verdict::HasNot(other)) => {
                    tracing::error!(size, shown = %root, majority = %other, "a replica of the root group showed another log than the majority has");
                    self.contradictions.fetch_add(1, Ordering::Relaxed);
                    return Err(unconfirmed(size));
                }
                Ok(Verdict::Unproven) => {
                    tracing::error!(size, %root, old = ?question.old, "the root group has a log that does not extend what is signed");
                    self.contradictions.fetch_add(1, Ordering::Relaxed);
                    let message =
                        format!("the root log of {size} entries does not extend what is signed: it is not signed");
                    return Err(status::refuse(Reason::Internal, message));
                }
                Err(_) if Instant::now() >= deadline => return Err(unconfirmed(size)),
                Err(_) => {}
            }
        }
    }

    /// Asks each voter over its own connection until a majority says the same; for ever, if it does
    /// not. With a word of the leader to come, that one is asked only if it says something else.
    async fn ask(self: &Arc<Self>, question: Question, word: Option<oneshot::Receiver<Word>>) -> Verdict {
        let (size, root) = question.head;
        let (mut answers, mut leader) = self.ask_each(question, word);
        let (mut said, mut proof) = (BTreeMap::new(), None);
        while let Some((node, answer)) = self.next(question, &mut answers, &mut leader).await {
            let Some(theirs) = Digest::from_slice(&answer.log_root) else { continue };
            if theirs == root && proof.is_none() {
                proof = question.check(&answer);
            }
            said.insert(node, theirs);
            let has = |root: Digest| self.state().voters.majority(|node| said.get(node) == Some(&root));
            if theirs != root && has(theirs) {
                return Verdict::HasNot(theirs);
            }
            if has(root)
                && let Some(frontier) = proof.take()
            {
                self.note_others((size, root), &said);
                return Verdict::Has(frontier);
            }
        }
        if self.state().voters.majority(|node| said.get(node) == Some(&root)) {
            return Verdict::Unproven;
        }
        std::future::pending().await
    }

    /// The next answer, the leader's word among them; `None` if there is no more to come.
    async fn next(
        self: &Arc<Self>,
        question: Question,
        answers: &mut mpsc::Receiver<(String, v1::AttestResponse)>,
        leader: &mut Option<Leader>,
    ) -> Option<(String, v1::AttestResponse)> {
        let Some(Leader { word, .. }) = leader else { return answers.recv().await };
        let word = tokio::select! {
            biased;
            answer = answers.recv() => return answer,
            word = word => word,
        };
        let Leader { node, tell, .. } = leader.take()?;
        match word {
            Ok((from, (size, root))) if from == node && size == question.head.0 => {
                let log_root = Bytes::copy_from_slice(&root.0);
                Some((node, v1::AttestResponse { log_root, ..v1::AttestResponse::default() }))
            }
            _ => {
                self.ask_one(node, question.request(), tell);
                answers.recv().await
            }
        }
    }

    /// Asks each voter in a task of its own, but for the leader that has a word to say.
    fn ask_each(
        self: &Arc<Self>,
        question: Question,
        word: Option<oneshot::Receiver<Word>>,
    ) -> (mpsc::Receiver<(String, v1::AttestResponse)>, Option<Leader>) {
        let nodes = self.state().voters.believed().clone();
        let (tell, answers) = mpsc::channel(nodes.len());
        let leads = self.links.leader(GroupId::Root);
        let word = word.filter(|_| nodes.contains(leads));
        let is_asked = |node: &String| word.is_none() || node != leads;
        for node in nodes.iter().filter(|node| is_asked(node)) {
            self.ask_one(node.clone(), question.request(), tell.clone());
        }
        (answers, word.map(|word| Leader { node: leads.to_owned(), word, tell }))
    }

    /// Asks a voter in a task, which goes on when the answer is not waited for any more: a call
    /// that is cut off counts as failed, and what comes late is looked at, too. A node that has
    /// [`QUESTIONS_MAX`] questions open is not asked.
    fn ask_one(
        self: &Arc<Self>,
        node: String,
        request: v1::AttestRequest,
        tell: mpsc::Sender<(String, v1::AttestResponse)>,
    ) {
        let open = self.open.get(&node).and_then(|open| open.clone().try_acquire_owned().ok());
        let Some(permit) = open else { return };
        let gate = self.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let Ok(answer) = timeout(ROUND_MAX, gate.insist(&node, request)).await else { return };
            if let Err(mpsc::error::SendError((node, answer))) = tell.send((node, answer)).await {
                gate.take_late(node, request.size, &answer);
            }
        });
    }

    /// Asks one node until it answers.
    async fn insist(&self, node: &str, request: v1::AttestRequest) -> v1::AttestResponse {
        let mut pause = PAUSE;
        loop {
            match self.links.attest(node, request).await {
                Ok(answer) => {
                    self.state().voters.note(node, &answer.voters);
                    return answer;
                }
                Err(error) => tracing::trace!(node, %error, "a replica of the root group does not attest"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Looks at an answer that came when enough others had.
    fn take_late(&self, node: String, size: u64, answer: &v1::AttestResponse) {
        let known = self.state().root_of(size);
        if let (Some(root), Some(theirs)) = (known, Digest::from_slice(&answer.log_root)) {
            self.note_others((size, root), &BTreeMap::from([(node, theirs)]));
        }
    }

    /// Names replicas that say another root than the one that a majority has.
    fn note_others(&self, (size, root): Head, said: &BTreeMap<String, Digest>) {
        for (node, other) in said.iter().filter(|(_, other)| **other != root) {
            tracing::error!(
                node, size, %root, %other,
                "a replica of the root group has another log than the majority: keep its directory, it is evidence"
            );
            self.contradictions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks all nodes now and then what they have of the log that was signed last, and for who
    /// votes; for ever.
    pub async fn look_around(self: Arc<Self>) {
        loop {
            let signed = self.state().signed;
            let request = v1::AttestRequest { size: signed.map_or(0, |(size, _)| size), ..Default::default() };
            let gate = &self;
            let asked = gate.links.node_names().map(|node| async move {
                let answer = timeout(LOOK, gate.links.attest(node, request)).await.ok()?.ok()?;
                gate.state().voters.note(node, &answer.voters);
                Some((node.to_owned(), Digest::from_slice(&answer.log_root)?))
            });
            let said = join_all(asked).await.into_iter().flatten().collect();
            if let Some(signed) = signed {
                self.note_others(signed, &said);
            }
            sleep(LOOK).await;
        }
    }
}

impl Question {
    fn request(&self) -> v1::AttestRequest {
        v1::AttestRequest {
            size: self.head.0,
            old_size: self.old.map_or(0, |(size, _)| size),
            want_newest: self.newest.is_some(),
        }
    }

    /// The answer shows what is asked for; gives the frontier, if that is asked for.
    fn check(&self, answer: &v1::AttestResponse) -> Option<Option<Frontier>> {
        let path = |path: &Option<v1::HashPath>| path.as_ref().map_or(Ok(Vec::new()), wire::path_in).ok();
        let (size, root) = self.head;
        if let Some((old_size, old_root)) = self.old {
            let path = path(&answer.consistency)?;
            merkle::verify_consistency(old_size, size, &old_root, &root, &path).ok()?;
        }
        match self.newest {
            None => Some(None),
            Some(newest) => Frontier::new(size, newest, path(&answer.newest)?, &root).ok().map(Some),
        }
    }
}
