//! Routes writes to the coordinator that leads: this one serves them itself, or forwards them over
//! one lasting connection. A stream of writes has its own connection, so a writer that does not
//! take its answers delays no other calls.
//!
//! - A request is forwarded once. It is marked, and a coordinator that receives it without leading
//!   refuses it with `NOT_LEADER` and the leader's name and address. It carries the name of the
//!   caller that this coordinator has authenticated.
//! - A request that was certainly not carried out (`NOT_LEADER`, no connection) is tried again
//!   until its deadline, with the coordinator that leads by then. The same holds for a request that
//!   may have been carried out and is repeatable. Otherwise the client gets the error that the
//!   outcome is unknown.
//! - A stream of writes is passed on unchanged, without reading ahead of the leader. It ends when
//!   the leader is lost or replaced, and its writer resumes it.
//! - Forwarded requests are bounded in number and bytes, and carry their deadline.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{Arc, Mutex},
    time::Duration,
};

use coppice_process::access::Caller;
use coppice_proto::{
    Channel, status,
    timeout::asked,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{Backoff, ErrorKind, Reason, causes};
use prost::Message;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    lock::held,
    options::Limits,
    random::Random,
    shown::{Leadership, Shown},
};

/// Connects to the coordinator with a name, at an address; `None` if the address is malformed. The
/// channel connects when it is first used, and reconnects by itself.
///
/// The address comes from the metadata store and is not trusted: nothing may be sent before the
/// other end has proven that it is the coordinator with this name.
pub type Dial = Arc<dyn Fn(&str, &str) -> Option<Channel> + Send + Sync>;

/// The address at which other coordinators reach this one, and the function that connects to them.
pub struct Others {
    pub address: String,
    pub dial: Dial,
}

impl fmt::Debug for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Others").field("address", &self.address).finish_non_exhaustive()
    }
}

/// How long a replaced leader may still take to answer.
const GRACE: Duration = Duration::from_millis(300);
/// The pauses before the next attempt.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// Sends writes to the leader. Clones share it.
#[derive(Clone)]
pub struct Forward {
    shared: Arc<Shared>,
}

struct Shared {
    shown: Arc<Shown>,
    limits: Arc<Limits>,
    random: Arc<Random>,
    /// `None` if no other coordinators can be reached.
    dial: Option<Dial>,
    /// The leader's name and address, and the connection to it.
    link: Mutex<Option<(String, String, Channel)>>,
    message_bytes: usize,
    /// Limits the requests that are being forwarded.
    slots: Semaphore,
    /// Limits their bytes.
    bytes: Semaphore,
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward").field("others", &self.shared.dial.is_some()).finish_non_exhaustive()
    }
}

/// The destination of a write.
enum Way {
    Here,
    There(String, Channel),
    /// No leader is known.
    Nowhere,
}

/// The location of the leader.
enum Location<'a> {
    Here,
    There {
        name: String,
        address: String,
        dial: &'a Dial,
    },
    /// No leader is known.
    Nowhere,
}

/// The failure of an attempt.
enum Failure {
    /// The request was not carried out, so another attempt is safe.
    NotDone(Status),
    /// The request may have been carried out.
    Unknown(Status),
    /// The leader's answer.
    Final(Status),
}

impl Forward {
    /// If `dial` is `None`, nothing is forwarded. `message_bytes` is the size of the largest
    /// message.
    pub fn new(
        shown: Arc<Shown>,
        limits: Arc<Limits>,
        random: Arc<Random>,
        dial: Option<Dial>,
        message_bytes: usize,
    ) -> Self {
        let slots = Semaphore::new(limits.queue_max);
        let bytes = Semaphore::new(message_bytes.max(limits.queue_bytes_max as usize));
        let link = Mutex::default();
        Self { shared: Arc::new(Shared { shown, limits, random, dial, link, message_bytes, slots, bytes }) }
    }

    /// Passes a write to the leader, and returns the leader's answer.
    ///
    /// A `repeatable` request has one effect however often it is sent.
    ///
    /// # Errors
    /// The leader's refusal; `UNAVAILABLE` if there is no leader before the deadline, or if the
    /// outcome is unknown.
    pub async fn route<Q, A, H>(
        &self,
        request: Request<Q>,
        repeatable: bool,
        here: impl Fn(Q) -> H,
        there: impl AsyncFn(&mut LedgerClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<Response<A>, Status>
    where
        Q: Message + Clone,
        H: Future<Output = Result<Response<A>, Status>>,
    {
        let shared = &*self.shared;
        let limits = &shared.limits;
        let own = limits.commit_timeout + limits.root_timeout;
        let asked = asked(request.metadata());
        let deadline = Instant::now() + asked.map_or(own, |asked| asked.min(own));
        let caller = Caller::of(request.extensions(), request.metadata());
        let forwarded = caller.forwarded;
        let request = request.into_inner();
        let mut backoff = PAUSES;
        // Set once an attempt may have had an effect, or may still have one.
        let mut unknown = false;
        loop {
            let leader = shared.shown.leadership.borrow().clone();
            let failure = match shared.way(&leader, forwarded)? {
                Way::Here => match here(request.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) if is_not_leader(&error) => Failure::NotDone(error),
                    Err(error) => Failure::Final(error),
                },
                Way::There(name, channel) => {
                    match shared.send((&name, channel), (&request, &caller), deadline, &there).await {
                        Ok(answer) => return Ok(answer),
                        Err(failure) => failure,
                    }
                }
                Way::Nowhere => {
                    let message = "no leading coordinator could be reached; the request was not carried out";
                    Failure::NotDone(status::refuse(Reason::Unavailable, message))
                }
            };
            if forwarded && matches!(failure, Failure::NotDone(_)) {
                return Err(shared.not_leader());
            }
            let error = match after(failure, repeatable && !forwarded, &mut unknown) {
                ControlFlow::Continue(error) => error,
                ControlFlow::Break(answer) => return Err(answer),
            };
            let pause = backoff.next_pause();
            if Instant::now() + pause >= deadline {
                return Err(if unknown { may_be_done(&error) } else { error });
            }
            shared.pause(&leader, pause).await;
        }
    }
}

/// The connection to another coordinator that leads.
pub struct Leader {
    name: String,
    client: LedgerClient<Channel>,
}

impl Forward {
    /// The coordinator that a stream of writes goes to; `None` if it is this one. Waits up to
    /// `limit` while no leader is known.
    ///
    /// # Errors
    /// `NOT_LEADER` for a stream that was forwarded before, or if no leader can be reached.
    pub async fn leader(&self, caller: &Caller, limit: Duration) -> Result<Option<Leader>, Status> {
        let shared = &*self.shared;
        let deadline = Instant::now() + limit;
        let mut backoff = PAUSES;
        loop {
            let leader = shared.shown.leadership.borrow().clone();
            match shared.location(&leader, caller.forwarded)? {
                Location::Here => return Ok(None),
                Location::There { name, address, dial } => {
                    let channel = dial(&name, &address).ok_or_else(|| shared.not_leader())?;
                    return Ok(Some(Leader { name, client: shared.client(channel) }));
                }
                Location::Nowhere => {}
            }
            let pause = backoff.next_pause();
            if Instant::now() + pause >= deadline {
                return Err(shared.not_leader());
            }
            shared.pause(&leader, pause).await;
        }
    }

    /// Passes a stream of writes on, and returns the leader's answers. A broken stream is not tried
    /// again, since only the writer knows which batches were answered.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the leader is lost before it answers.
    pub async fn pass(
        &self,
        Leader { name, mut client }: Leader,
        caller: &Caller,
        batches: Streaming<v1::CommitStreamRequest>,
    ) -> Result<impl Stream<Item = Result<v1::CommitStreamResponse, Status>> + Send + use<>, Status> {
        let shared = self.shared.clone();
        // A leader that hangs does not break its connection, so a change of leader is watched too.
        let mut replaced = Box::pin(async move { shared.replaced(&name).await });
        // If the writer breaks off, the leader sees the end of the stream and answers the batches
        // that it has.
        let batches = batches.map_while(Result::ok);
        let answers = tokio::select! {
            biased;
            answers = client.commit_stream(marked(batches, caller)) => answers.map_err(lost)?.into_inner(),
            () = &mut replaced => return Err(lost(Status::unavailable("another coordinator leads now"))),
        };
        Ok(futures::stream::unfold(Some((answers, replaced)), async |state| {
            let (mut answers, mut replaced) = state?;
            let answer = tokio::select! {
                biased;
                answer = answers.message() => answer.map_err(lost).transpose()?,
                () = &mut replaced => Err(lost(Status::unavailable("another coordinator leads now"))),
            };
            let open = answer.is_ok();
            Some((answer, open.then_some((answers, replaced))))
        }))
    }
}

/// The error for the writer of a stream: the leader's refusal, or that the leader was lost.
fn lost(error: Status) -> Status {
    match judge(error) {
        Failure::Unknown(error) | Failure::NotDone(error) if status::reason(&error).is_none() => {
            let message = format!("the leading coordinator was lost, resume the stream: {}", error.message());
            status::refuse(Reason::Unavailable, message)
        }
        Failure::NotDone(error) | Failure::Unknown(error) | Failure::Final(error) => error,
    }
}

/// A request that is marked as forwarded and names its caller.
fn marked<T>(message: T, caller: &Caller) -> Request<T> {
    let mut request = Request::new(message);
    caller.vouch(request.metadata_mut());
    request
}

impl Shared {
    fn way(&self, leadership: &Leadership, forwarded: bool) -> Result<Way, Status> {
        let (name, address, dial) = match self.location(leadership, forwarded)? {
            Location::Here => return Ok(Way::Here),
            Location::Nowhere => return Ok(Way::Nowhere),
            Location::There { name, address, dial } => (name, address, dial),
        };
        let mut link = held(&self.link);
        if link.as_ref().is_none_or(|(known, linked, _)| (known, linked) != (&name, &address)) {
            *link = dial(&name, &address).map(|channel| (name.clone(), address, channel));
        }
        Ok(match &*link {
            Some((_, _, channel)) => Way::There(name, channel.clone()),
            None => Way::Nowhere,
        })
    }

    fn location(&self, leadership: &Leadership, forwarded: bool) -> Result<Location<'_>, Status> {
        if leadership.term.is_some() {
            return Ok(Location::Here);
        }
        if forwarded {
            return Err(self.not_leader());
        }
        let name = leadership.leader.clone();
        if name.is_empty() {
            // If there are no other coordinators, the request waits in the queue, since this one
            // may be about to lead.
            return Ok(if self.dial.is_some() { Location::Nowhere } else { Location::Here });
        }
        let Some(dial) = &self.dial else { return Err(self.not_leader()) };
        Ok(match self.shown.address_of(&name) {
            Some(address) => Location::There { name, address, dial },
            None => Location::Nowhere,
        })
    }

    /// The refusal that names the leader, as far as this coordinator knows it.
    fn not_leader(&self) -> Status {
        let leader = self.shown.leadership.borrow().leader.clone();
        let address = self.shown.address_of(&leader).unwrap_or_default();
        let message = match leader.as_str() {
            "" => "this coordinator does not lead; the request was not carried out".to_owned(),
            leader => format!("{leader} leads; the request was not carried out"),
        };
        let facts = [(status::LEADER, leader), (status::ADDRESS, address)];
        status::with_metadata(Reason::NotLeader, message, facts)
    }

    async fn send<Q, A>(
        &self,
        (leader, channel): (&str, Channel),
        (request, caller): (&Q, &Caller),
        deadline: Instant,
        there: &impl AsyncFn(&mut LedgerClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<Response<A>, Failure>
    where
        Q: Message + Clone,
    {
        let full = |_| {
            let message = "too many writes wait for the leading coordinator";
            Failure::Final(status::refuse(Reason::ResourceExhausted, message))
        };
        let _slot = self.slots.try_acquire().map_err(full)?;
        let bytes = u32::try_from(request.encoded_len().max(1)).unwrap_or(u32::MAX);
        let _bytes = self.bytes.try_acquire_many(bytes).map_err(full)?;
        let mut marked = marked(request.clone(), caller);
        marked.set_timeout(deadline.saturating_duration_since(Instant::now()));
        let mut client = self.client(channel);
        let answer = tokio::select! {
            biased;
            answer = timeout_at(deadline, there(&mut client, marked)) => answer,
            () = self.replaced(leader) => Ok(Err(status::refuse(Reason::Unavailable, "another coordinator leads now"))),
        };
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(judge(error)),
            Err(_) => Err(Failure::Unknown(status::refuse(Reason::Unavailable, "it did not answer in time"))),
        }
    }

    fn client(&self, channel: Channel) -> LedgerClient<Channel> {
        LedgerClient::new(channel)
            .max_decoding_message_size(self.message_bytes)
            .max_encoding_message_size(self.message_bytes)
    }

    /// Waits until another coordinator leads, and then for a grace period.
    async fn replaced(&self, leader: &str) {
        let mut leadership = self.shown.leadership.subscribe();
        // The sender lives as long as `shown`.
        let _ = leadership.wait_for(|now| !now.leader.is_empty() && now.leader != leader).await;
        sleep(GRACE).await;
    }

    /// Waits for a random part of `time` before the next attempt, or until the leadership changes.
    async fn pause(&self, tried: &Leadership, time: Duration) {
        let [chance, ..] = self.random.id();
        let time = time.mul_f64(0.5 + f64::from(chance) / 512.0);
        let mut leadership = self.shown.leadership.subscribe();
        let _ = timeout(time, leadership.wait_for(|now| now != tried)).await;
    }
}

/// Judges by another coordinator's error whether the request was carried out.
fn judge(error: Status) -> Failure {
    if is_not_leader(&error) || was_not_sent(&error) {
        return Failure::NotDone(error);
    }
    match status::reason(&error) {
        Some(Reason::Unavailable) => Failure::Unknown(error),
        Some(_) => Failure::Final(error),
        None if status::kind(&error) == ErrorKind::Unavailable || error.code() == Code::Internal => {
            Failure::Unknown(error)
        }
        None => Failure::Final(error),
    }
}

/// The consequence of a failed attempt: an answer, or the reason for another attempt. `unknown` is
/// set if an attempt may have had its effect.
fn after(failure: Failure, repeatable: bool, unknown: &mut bool) -> ControlFlow<Status, Status> {
    match failure {
        Failure::NotDone(error) => ControlFlow::Continue(error),
        Failure::Unknown(error) if repeatable => {
            *unknown = true;
            ControlFlow::Continue(error)
        }
        Failure::Unknown(error) => ControlFlow::Break(may_be_done(&error)),
        // This refusal came before the leader looked for the outcome of earlier attempts.
        Failure::Final(error) if *unknown && status::kind(&error) == ErrorKind::Exhausted => {
            ControlFlow::Break(may_be_done(&error))
        }
        Failure::Final(error) => ControlFlow::Break(error),
    }
}

/// The answer to a request of unknown outcome.
fn may_be_done(error: &Status) -> Status {
    let message = format!("the leading coordinator was lost, the outcome is unknown: {}", error.message());
    status::refuse(Reason::Unavailable, message)
}

fn is_not_leader(error: &Status) -> bool {
    status::reason(error) == Some(Reason::NotLeader)
}

/// Whether there was no connection over which the request could be sent.
fn was_not_sent(error: &Status) -> bool {
    causes(error).any(|cause| cause.is::<tonic::ConnectError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_without_a_connection_was_not_carried_out() {
        let nobody = tonic::transport::Endpoint::from_static("http://127.255.255.254:1").connect_lazy();
        let mut client = LedgerClient::new(Channel::from(nobody));
        let refused = client.commit(coppice_proto::v1::CommitRequest::default()).await.expect_err("nobody is there");
        assert!(was_not_sent(&refused), "{refused:?}");
    }

    #[test]
    fn a_busy_coordinator_says_nothing_about_earlier_attempts() {
        let busy = || Failure::Final(status::refuse(Reason::ResourceExhausted, ""));
        let lost = || Failure::Unknown(Status::unavailable(""));
        let reason_after = |failures: Vec<Failure>, repeatable| {
            let mut unknown = false;
            let steps = failures.into_iter().map(|failure| after(failure, repeatable, &mut unknown));
            let answer = steps.filter_map(ControlFlow::break_value).next();
            answer.and_then(|answer| status::reason(&answer))
        };
        assert_eq!(reason_after(vec![busy()], true), Some(Reason::ResourceExhausted), "nothing was done");
        assert_eq!(reason_after(vec![lost(), busy()], true), Some(Reason::Unavailable));
        let not_leader = || Failure::NotDone(status::refuse(Reason::NotLeader, ""));
        assert_eq!(reason_after(vec![lost(), not_leader(), busy()], true), Some(Reason::Unavailable));
        assert_eq!(reason_after(vec![lost()], false), Some(Reason::Unavailable));
        // The next leader looks for the session number before anything else.
        let refused = Failure::Final(status::refuse(Reason::PreconditionFailed, ""));
        assert_eq!(reason_after(vec![lost(), refused], true), Some(Reason::PreconditionFailed));
    }

    #[test]
    fn a_request_that_was_not_carried_out_differs_from_one_of_unknown_outcome() {
        let not_leader = status::refuse(Reason::NotLeader, "");
        assert!(matches!(judge(not_leader), Failure::NotDone(_)));
        for unknown in [status::refuse(Reason::Unavailable, ""), Status::unavailable(""), Status::cancelled("")] {
            assert!(matches!(judge(unknown), Failure::Unknown(_)));
        }
        for told in [Reason::PreconditionFailed, Reason::RequestExpired, Reason::ResourceExhausted] {
            assert!(matches!(judge(status::refuse(told, "")), Failure::Final(_)));
        }
    }
}
