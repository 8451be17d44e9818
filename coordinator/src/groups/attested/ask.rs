//! The questions to the root group's voters, each over its own connection.
//!
//! Voters are asked until a majority says the same. A verdict is never based on one replica's claim
//! about another one's log.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{Backoff, Digest, GroupId, Reason};
use coppice_verify::merkle;
use futures::future::join_all;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use tonic::Status;

use super::{Attested, PAUSE, ROUND_MAX, SizedRoot, unconfirmed};
use crate::groups::{frontier::Frontier, wire};

/// Longest pause before a replica is asked again.
const PAUSE_MAX: Duration = Duration::from_millis(320);
/// How often all replicas are asked about the last signed log, and how long each may take.
const LOOK: Duration = Duration::from_secs(1);

/// The name of the node that answered an append, and its log.
pub type Word = (String, SizedRoot);

/// The leading replica's answer to an append, which is still to come. Until it comes, the node is
/// not asked.
struct LeaderWord {
    node: String,
    word: oneshot::Receiver<Word>,
    /// The channel for answers. The node is asked after all if its answer was about another log.
    tell: mpsc::Sender<(String, v1::AttestResponse)>,
}

/// A question to replicas about a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) head: SizedRoot,
    /// The log that this one must extend.
    pub(super) old: Option<SizedRoot>,
    /// The hash of the newest entry, whose place is to be proven.
    pub(super) newest: Option<Digest>,
}

/// The result of a question.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A majority has the log. Holds its frontier, if that was requested.
    Has(Option<Frontier>),
    /// A majority has another root of this size.
    HasNot(Digest),
    /// A majority has the log but can't give the requested proof: that it extends the old log, or
    /// the place of its newest entry.
    Unproven,
}

impl Attested {
    /// Asks until a majority has the log and gives the requested proofs.
    pub(super) async fn proven(
        self: &Arc<Self>,
        question: Question,
        deadline: Instant,
    ) -> Result<Option<Frontier>, Status> {
        let (size, root) = question.head;
        loop {
            let until = deadline.min(Instant::now() + ROUND_MAX);
            match timeout_at(until, self.ask(question, None)).await {
                Ok(Verdict::Has(frontier)) => return Ok(frontier),
                Ok(Verdict::HasNot(other)) => {
                    tracing::error!(size, shown = %root, majority = %other, "a replica of the root group showed a different log than the majority has");
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

    /// Asks each voter over its own connection until a majority says the same. Never returns if no
    /// majority forms. If `word` is given, the leading replica's node is not asked, unless `word`
    /// brings an answer about another log.
    pub(super) async fn ask(self: &Arc<Self>, question: Question, word: Option<oneshot::Receiver<Word>>) -> Verdict {
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

    /// The next answer, which may be the leading replica's answer to the append. `None` if no more
    /// will come.
    async fn next(
        self: &Arc<Self>,
        question: Question,
        answers: &mut mpsc::Receiver<(String, v1::AttestResponse)>,
        leader: &mut Option<LeaderWord>,
    ) -> Option<(String, v1::AttestResponse)> {
        let Some(LeaderWord { word, .. }) = leader else { return answers.recv().await };
        let word = tokio::select! {
            biased;
            answer = answers.recv() => return answer,
            word = word => word,
        };
        let LeaderWord { node, tell, .. } = leader.take()?;
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

    /// Asks each voter in its own task, except for the leading replica if `word` is given.
    fn ask_each(
        self: &Arc<Self>,
        question: Question,
        word: Option<oneshot::Receiver<Word>>,
    ) -> (mpsc::Receiver<(String, v1::AttestResponse)>, Option<LeaderWord>) {
        let nodes = self.state().voters.believed().clone();
        let (tell, answers) = mpsc::channel(nodes.len());
        let leads = self.links.leader(GroupId::Root);
        let word = word.filter(|_| nodes.contains(leads));
        let is_asked = |node: &String| word.is_none() || node != leads;
        for node in nodes.iter().filter(|node| is_asked(node)) {
            self.ask_one(node.clone(), question.request(), tell.clone());
        }
        (answers, word.map(|word| LeaderWord { node: leads.to_owned(), word, tell }))
    }

    /// Asks a voter in a task that outlives the caller's wait: a call that is cut off would count
    /// as failed, and late answers are examined too. Does not ask a node that has
    /// [`QUESTIONS_MAX`](super::QUESTIONS_MAX) open questions.
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
        let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
        loop {
            match self.links.attest(node, request).await {
                Ok(answer) => {
                    self.state().voters.note(node, &answer.voters);
                    return answer;
                }
                Err(error) => tracing::trace!(node, %error, "a replica of the root group does not attest"),
            }
            sleep(backoff.next_pause()).await;
        }
    }

    /// Examines an answer that came after the verdict.
    fn take_late(&self, node: String, size: u64, answer: &v1::AttestResponse) {
        let known = self.state().root_of(size);
        if let (Some(root), Some(theirs)) = (known, Digest::from_slice(&answer.log_root)) {
            self.note_others((size, root), &BTreeMap::from([(node, theirs)]));
        }
    }

    /// Reports the replicas whose root differs from the one that a majority has.
    fn note_others(&self, (size, root): SizedRoot, said: &BTreeMap<String, Digest>) {
        for (node, other) in said.iter().filter(|(_, other)| **other != root) {
            tracing::error!(
                node, size, %root, %other,
                "a replica of the root group has a different log than the majority: keep its directory, it is evidence"
            );
            self.contradictions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks all nodes, again and again, which voters they know and which root they have for the
    /// last signed log. Never returns.
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

    /// Checks the proofs in the answer. Returns the frontier, if that was requested.
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
