//! Calls to the root group, whose log decides what is committed and which version is head.
//!
//! One ReadIndex serves all reads that queued before it was sent (PROTOCOL 7.1). `Root::view` hands
//! its question to a task that asks once for all waiting callers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{Backoff, Digest, GroupId, Reason, SessionId, Term};
use coppice_verify::header::Body;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tonic::{Code, Status};

use super::{
    attested::{Attested, Word},
    keys::KeyRing,
    links::{Lane, Links},
    wire::{self, View},
};
use crate::plan::{Commit, Done};

/// How long the answer to an append is waited for after a majority has applied it.
const ANSWER_GRACE: Duration = Duration::from_millis(20);
/// Limit on the number of readers that wait for one ReadIndex.
const READERS_MAX: usize = 4096;

type Answer = oneshot::Sender<Result<Arc<View>, Status>>;

#[derive(Clone, Debug)]
pub struct Root {
    links: Arc<Links>,
    /// The key ring, which learns from every state of the group before a caller sees the state.
    keys: Arc<KeyRing>,
    /// The gate that finds out which log a majority of the group has.
    attested: Arc<Attested>,
    readers: mpsc::Sender<Answer>,
    timeout: Duration,
}

/// The root group's answer about one number of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAnswer {
    /// There is no such session.
    Ended,
    /// The number is below the window.
    Expired,
    /// The number was committed, or not.
    Known(Option<Done>),
}

/// The outcome of an append.
#[derive(Debug)]
pub enum Decision {
    /// The header is the newest entry of a log that a majority has.
    Committed {
        /// Entries of the log.
        size: u64,
        /// The log's root, as computed here.
        root: Digest,
        /// The header's inclusion path in the log.
        path: Vec<Digest>,
    },
    /// The leading replica says that the header is in the log, but no majority confirms that in
    /// time.
    Unconfirmed,
    /// The header is not in the log, and never will be: another leader's term began.
    Deposed,
    /// The root group refused the header for good.
    Refused(Status),
}

/// One replica's answer to an append.
enum Sent {
    /// The header is in the log.
    There,
    /// The header never will be in the log: another leader's term began.
    Deposed,
    /// The header was refused for good.
    Refused(Status),
}

impl Root {
    /// Calls over these links, and the task that batches reads. The task ends with the last `Root`.
    pub fn new(
        links: Arc<Links>,
        keys: Arc<KeyRing>,
        attested: Arc<Attested>,
        timeout: Duration,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (readers, queue) = mpsc::channel(READERS_MAX);
        let task = serve_views(links.clone(), keys.clone(), queue, timeout);
        (Self { links, keys, attested, readers, timeout }, task)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// The state of the root group at some moment after the call.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum.
    pub async fn view(&self) -> Result<Arc<View>, Status> {
        let (answer, receive) = oneshot::channel();
        let full = |_| status::refuse(Reason::ResourceExhausted, format!("{READERS_MAX} readers wait already"));
        self.readers.try_send(answer).map_err(full)?;
        receive.await.map_err(|_| status::refuse(Reason::Unavailable, "the coordinator stops"))?
    }

    /// Asks every voter at once for a linearizable view. Returns the views that came within the
    /// limit, by node.
    pub async fn ask_all(&self, limit: Duration) -> BTreeMap<String, v1::RootView> {
        let asked = self.links.voters().map(|(node, channel)| async move {
            let read = Some(v1::read_root_request::Read::View(true));
            let request = v1::ReadRootRequest { stale_ok: false, read };
            let answer = tokio::time::timeout(limit, self.links.root(channel).read_root(request)).await;
            Some((node.to_owned(), answer.ok()?.ok()?.into_inner().view?))
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Makes a candidate the leader.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum. The term may have begun nevertheless.
    pub async fn take_over(&self, candidate: &str, genesis: Vec<u8>) -> Result<v1::TakeOverResponse, Status> {
        let genesis = Bytes::from(genesis);
        let request = || v1::TakeOverRequest { candidate: candidate.to_owned(), genesis: genesis.clone() };
        let call = |channel| {
            let (mut client, request) = (self.links.root(channel), request());
            async move { client.take_over(request).await }
        };
        let answer: v1::TakeOverResponse = self.links.to_leader(GroupId::Root, self.deadline(), call).await?;
        answer.view.as_ref().map_or(Ok(()), |view| self.keys.learn(view))?;
        Ok(answer)
    }

    /// Opens a session, or finds it again.
    ///
    /// # Errors
    /// The root group's refusal.
    pub async fn open_session(&self, id: SessionId) -> Result<v1::OpenSessionResponse, Status> {
        let call = |channel| {
            let mut client = self.links.root(channel);
            let request = v1::OpenSessionRequest { session_id: Bytes::copy_from_slice(&id.0) };
            async move { client.open_root_session(request).await }
        };
        self.links.to_leader(GroupId::Root, self.deadline(), call).await
    }

    /// Pins a version, or renews its pin.
    ///
    /// # Errors
    /// The root group's refusal; `UNAVAILABLE` without a quorum, and then the pin may exist
    /// nevertheless.
    pub async fn set_pin(&self, request: &v1::PinRequest) -> Result<v1::PinResponse, Status> {
        let call = |channel| {
            let (mut client, request) = (self.links.root(channel), request.clone());
            async move { client.set_pin(request).await }
        };
        self.links.to_leader(GroupId::Root, self.deadline(), call).await
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// Those of [`Root::set_pin`].
    pub async fn drop_pin(&self, request: &v1::UnpinRequest) -> Result<v1::UnpinResponse, Status> {
        let call = |channel| {
            let (mut client, request) = (self.links.root(channel), request.clone());
            async move { client.drop_pin(request).await }
        };
        self.links.to_leader(GroupId::Root, self.deadline(), call).await
    }

    /// Appends a header and waits for its outcome, without a limit.
    ///
    /// The header is committed when a majority of the group's replicas have applied it, as each of
    /// them says itself: the leading replica's answer is not enough. An append of unknown outcome
    /// is never assumed lost; the log is read until it shows the outcome. A header can stand only
    /// in its own place, so appending it again is harmless.
    pub async fn append(&self, commit: &Commit, term: Term) -> Decision {
        // The header was not sent to any replica.
        let Some(grown) = self.attested.grown(&commit.tail) else { return Decision::Deposed };
        let (word, heard) = oneshot::channel();
        let confirmed = self.attested.confirm(&grown, heard);
        let sent = self.send(commit, term, word);
        tokio::pin!(confirmed, sent);
        let stands = tokio::select! {
            biased;
            stands = &mut confirmed => {
                // The answer names the leader, and a call that is cut off counts as failed.
                let _ = tokio::time::timeout(ANSWER_GRACE, sent).await;
                stands
            }
            sent = &mut sent => match sent {
                Sent::There => match tokio::time::timeout(self.timeout, confirmed).await {
                    Ok(stands) => stands,
                    Err(_) => return Decision::Unconfirmed,
                },
                Sent::Deposed => return Decision::Deposed,
                Sent::Refused(error) => return Decision::Refused(error),
            },
        };
        if !stands {
            return Decision::Deposed;
        }
        if let Body::Key(change) = &commit.tail.header.body {
            self.keys.turned(commit.tail.header.sequence.0, change.new);
        }
        Decision::Committed { size: grown.size(), root: grown.root(), path: grown.path().to_vec() }
    }

    /// Sends a header to the group's leader until the outcome is known. The leader's answer about
    /// its own log goes to `word`.
    async fn send(&self, commit: &Commit, term: Term, word: oneshot::Sender<Word>) -> Sent {
        let request = wire::append_out(commit, term);
        let sequence = commit.tail.header.sequence.0;
        loop {
            let call = |channel| {
                let (mut client, request) = (self.links.root(channel), request.clone());
                async move { client.append_header(request).await }
            };
            match self.links.of_leader(GroupId::Root, self.deadline(), call).await {
                Ok((node, answer)) => {
                    if let Some(root) = Digest::from_slice(&answer.log_root) {
                        // The receiver may be gone, if other replicas have confirmed the log.
                        let _ = word.send((node.to_owned(), (answer.log_size, root)));
                    }
                    return Sent::There;
                }
                Err(error) if is_refusal(&error) => return Sent::Refused(error),
                Err(error) => tracing::debug!(%error, sequence, "an append has an unknown outcome"),
            }
            if let Some(sent) = self.look_for(commit, term).await {
                return sent;
            }
        }
    }

    /// Reads the outcome of an append. `None` if it is still open, or the group does not answer.
    async fn look_for(&self, commit: &Commit, term: Term) -> Option<Sent> {
        let sequence = commit.tail.header.sequence.0;
        let read = v1::read_root_request::Read::Headers(v1::HeadersRead { from_sequence: sequence, limit: 1 });
        let answer = self.read(read).await.ok();
        let Some(answer) = answer else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return None;
        };
        let view = answer.view.as_ref()?;
        match answer.headers.first() {
            Some(header) if *header == commit.header => Some(Sent::There),
            Some(_) => Some(Sent::Deposed),
            None if view.term != term.0 => Some(Sent::Deposed),
            None => None,
        }
    }

    /// A linearizable read of the root group.
    ///
    /// # Errors
    /// The root group's refusal; `UNAVAILABLE` after the time-out.
    pub async fn read(&self, read: v1::read_root_request::Read) -> Result<v1::ReadRootResponse, Status> {
        let request = v1::ReadRootRequest { stale_ok: false, read: Some(read) };
        read_root(&self.links, &self.keys, request, self.deadline()).await
    }

    /// Reads a value that never changes once it exists, from any replica. A refusal, or an answer
    /// that `is_there` rejects, may come from a replica that lags. Then the read is repeated
    /// linearizably.
    ///
    /// # Errors
    /// Those of [`Root::read`].
    pub async fn read_settled(
        &self,
        read: v1::read_root_request::Read,
        is_there: impl Fn(&v1::ReadRootResponse) -> bool,
    ) -> Result<v1::ReadRootResponse, Status> {
        let request = v1::ReadRootRequest { stale_ok: true, read: Some(read.clone()) };
        match read_root(&self.links, &self.keys, request, self.deadline()).await {
            Ok(answer) if is_there(&answer) => Ok(answer),
            _ => self.read(read).await,
        }
    }

    /// The state of one number of a session.
    ///
    /// # Errors
    /// Those of [`Root::read`].
    pub async fn session(&self, id: SessionId, number: u64) -> Result<SessionAnswer, Status> {
        let session_id = Bytes::copy_from_slice(&id.0);
        let read = v1::read_root_request::Read::Session(v1::SessionRead { session_id, number });
        match self.read(read).await {
            Ok(answer) if !answer.session_known => Ok(SessionAnswer::Ended),
            Ok(answer) => Ok(SessionAnswer::Known(answer.batch.as_ref().map(wire::done_in).transpose()?)),
            Err(error) if status::reason(&error) == Some(Reason::RequestExpired) => Ok(SessionAnswer::Expired),
            Err(error) => Err(error),
        }
    }
}

/// Whether a refusal is final, however often the append is sent. A stale term or a foreign base is
/// not: it may hide a success.
fn is_refusal(error: &Status) -> bool {
    use coppice_types::ErrorKind;
    match status::reason(error) {
        Some(Reason::UnknownSession | Reason::RequestExpired | Reason::SessionMismatch) => true,
        Some(_) => matches!(status::kind(error), ErrorKind::Invalid | ErrorKind::Conflict),
        None => matches!(error.code(), Code::OutOfRange | Code::Unimplemented),
    }
}

async fn read_root(
    links: &Links,
    keys: &KeyRing,
    request: v1::ReadRootRequest,
    deadline: Instant,
) -> Result<v1::ReadRootResponse, Status> {
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
    loop {
        let pause = backoff.next_pause();
        let call = |channel| {
            let (mut client, request) = (links.root(channel), request.clone());
            async move { client.read_root(request).await }
        };
        match links.to_any(Lane::Reads, GroupId::Root, deadline, call).await {
            Err(error) if crate::groups::links::moves_on(&error) && Instant::now() + pause < deadline => {
                tokio::time::sleep(pause).await;
            }
            answer => {
                let answer = answer?;
                answer.view.as_ref().map_or(Ok(()), |view| keys.learn(view))?;
                return Ok(answer);
            }
        }
    }
}

async fn serve_views(links: Arc<Links>, keys: Arc<KeyRing>, mut queue: mpsc::Receiver<Answer>, timeout: Duration) {
    let mut waiting = Vec::new();
    let mut last: Option<Arc<View>> = None;
    while queue.recv_many(&mut waiting, READERS_MAX).await > 0 {
        let view = next_view(&links, &keys, last.as_ref(), Instant::now() + timeout).await;
        last = view.as_ref().ok().or(last.as_ref()).cloned();
        for reader in waiting.drain(..) {
            // A reader that has gone needs no answer.
            let _ = reader.send(view.clone());
        }
    }
}

/// A linearizable view. It is the last one itself if that has not changed.
async fn next_view(
    links: &Links,
    keys: &KeyRing,
    last: Option<&Arc<View>>,
    deadline: Instant,
) -> Result<Arc<View>, Status> {
    use v1::read_root_request::Read;
    let read = last.map_or(Read::View(true), |last| Read::ViewUnless(wire::mark_out(last)));
    let request = v1::ReadRootRequest { stale_ok: false, read: Some(read) };
    let answer = read_root(links, keys, request, deadline).await?;
    match (last, answer.view) {
        (Some(last), None) => Ok(last.clone()),
        (_, view) => wire::view_in(view).map(Arc::new),
    }
}
