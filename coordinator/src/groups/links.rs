//! Calls to shard-nodes: to the leader of a group, or to any of its replicas.
//!
//! Only voters get commands. A read of a shard names the state that it wants, so any replica may
//! answer it, and readers do so first: those in the coordinator's zone before all others. A replica
//! that lags or fails is passed over for a while.
//!
//! All requests are idempotent: a prepare has a name, an append has a place in the log. So a call
//! of unknown outcome is made again until its deadline, to the replica that leads by then.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use coppice_proto::{
    Channel, status,
    v1::{
        AttestRequest, AttestResponse, LeadsRequest, ShardReadRequest, ShardReadResponse, node_client::NodeClient,
        root_client::RootClient, shard_client::ShardClient,
    },
};
use coppice_types::{Backoff, ErrorKind, GroupId, Reason};
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Response, Status};

use crate::{
    lock::held,
    options::{Connect, Routing},
};

/// A node that is silent for this long may be dead, so others are asked too.
const SILENCE_MAX: Duration = Duration::from_millis(300);
/// A reader that does not answer a single question within this time may lag, so another replica is
/// asked too.
const LAG_MAX: Duration = Duration::from_millis(50);
/// How long a replica that lagged or failed comes after all others.
const PASSED_OVER: Duration = Duration::from_secs(1);
/// The deadline of a page leaves time for this many attempts.
const ATTEMPTS_MIN: u32 = 3;
/// First and longest pause before a group is asked again.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A kind of call to a node. Each kind has its own connection, so that none waits for the bytes of
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Prepares, appends, and the reads that judge preconditions.
    Commits,
    /// Answers to single questions.
    Reads,
    /// Pages of scans.
    Bulk,
}

/// The channels to one node.
#[derive(Debug)]
struct Node {
    name: String,
    commits: Channel,
    reads: Channel,
    bulk: Channel,
    /// Whether the node hosts readers.
    reader: bool,
    /// Whether no node is nearer.
    near: bool,
    /// The groups whose replica here comes after all others, and until when.
    passed_over: Mutex<BTreeMap<GroupId, Instant>>,
}

impl Node {
    fn channel(&self, lane: Lane) -> &Channel {
        match lane {
            Lane::Commits => &self.commits,
            Lane::Reads => &self.reads,
            Lane::Bulk => &self.bulk,
        }
    }

    fn is_passed_over(&self, group: GroupId, now: Instant) -> bool {
        held(&self.passed_over).get(&group).is_some_and(|until| now < *until)
    }
}

/// Channels to all nodes, and the last known leader of each group.
///
/// **Invariant.** A slow client never blocks a connection to a node: each call has one answer,
/// which the caller takes from the connection at once.
pub struct Links {
    /// The nodes with voters, and then those with readers.
    nodes: Vec<Node>,
    /// How many nodes have voters.
    voters: usize,
    /// Whether some replicas are preferred for reads.
    prefers: bool,
    /// The number of reads that readers took turns for.
    turn: AtomicUsize,
    /// The reads that voters and readers answered.
    reads: [AtomicU64; 2],
    passed_over: AtomicU64,
    /// Node index of the leader by group number. This is only a hint: the nodes' answers correct
    /// it.
    leaders: Mutex<BTreeMap<u32, usize>>,
    message_bytes: usize,
    /// How long one attempt may take before another node is asked.
    attempt_max: Duration,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("nodes", &self.node_names().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl Links {
    /// Channels to these nodes. None is opened yet.
    pub fn new(
        nodes: &[String],
        routing: &Routing,
        connect: &Connect,
        message_bytes: usize,
        attempt_max: Duration,
    ) -> Self {
        let node = |name: &String| Node {
            name: name.clone(),
            commits: connect(name),
            reads: connect(name),
            bulk: connect(name),
            reader: routing.readers.contains(name),
            near: routing.is_near(name),
            passed_over: Mutex::default(),
        };
        let mut nodes: Vec<Node> = nodes.iter().map(node).collect();
        nodes.sort_by_key(|node| node.reader);
        let voters = nodes.iter().filter(|node| !node.reader).count();
        assert!(voters > 0, "a cluster has at least one node with voters");
        let prefers = voters < nodes.len() || routing.zone.is_some();
        let leaders = Mutex::default();
        let (turn, reads, passed_over) = (AtomicUsize::new(0), Default::default(), AtomicU64::new(0));
        Self { nodes, voters, prefers, turn, reads, passed_over, leaders, message_bytes, attempt_max }
    }

    /// How many reads of shards were answered by readers, or by voters.
    pub fn reads(&self, by_readers: bool) -> u64 {
        self.reads[usize::from(by_readers)].load(Ordering::Relaxed)
    }

    /// How often a preferred replica lagged or failed.
    pub fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    /// The names of the nodes with voters.
    pub fn voter_names(&self) -> impl Iterator<Item = &str> {
        self.nodes[..self.voters].iter().map(|node| node.name.as_str())
    }

    pub fn node_names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    /// A client of the root group's replicas.
    pub fn root(&self, channel: Channel) -> RootClient<Channel> {
        RootClient::new(channel)
            .max_decoding_message_size(self.message_bytes)
            .max_encoding_message_size(self.message_bytes)
    }

    /// A client of shard replicas.
    pub fn shard(&self, channel: Channel) -> ShardClient<Channel> {
        ShardClient::new(channel)
            .max_decoding_message_size(self.message_bytes)
            .max_encoding_message_size(self.message_bytes)
    }

    /// The channels to the nodes with voters, with the nodes' names.
    pub fn voters(&self) -> impl Iterator<Item = (&str, Channel)> {
        self.nodes[..self.voters].iter().map(|node| (node.name.as_str(), node.commits.clone()))
    }

    /// Asks the root group's replica on one node about its log.
    ///
    /// # Errors
    /// The replica's refusal; `UNAVAILABLE` if it does not answer, or there is no such node.
    pub async fn attest(&self, node: &str, request: AttestRequest) -> Result<AttestResponse, Status> {
        let no_node = || status::refuse(Reason::Unavailable, format!("no node {node} is configured"));
        let at = self.index(node).ok_or_else(no_node)?;
        let call = |channel| async move { RootClient::new(channel).attest(request).await };
        self.attempt((GroupId::Root, Lane::Commits), at, Instant::now() + self.attempt_max, &call).await
    }

    /// A client of each node's `Node` service, with the node's name.
    pub fn all_nodes(&self) -> impl Iterator<Item = (&str, NodeClient<Channel>)> {
        self.nodes.iter().map(|node| (node.name.as_str(), NodeClient::new(node.commits.clone())))
    }

    /// Calls the leader of a group until it answers or the deadline passes.
    ///
    /// # Errors
    /// The leader's refusal; `UNAVAILABLE` after the deadline, and then the outcome is unknown.
    pub async fn to_leader<T, F, Fut>(&self, group: GroupId, deadline: Instant, call: F) -> Result<T, Status>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        Ok(self.of_leader(group, deadline, call).await?.1)
    }

    /// Like [`Links::to_leader`], but also returns the name of the node that answered.
    ///
    /// # Errors
    /// Those of [`Links::to_leader`].
    pub async fn of_leader<T, F, Fut>(&self, group: GroupId, deadline: Instant, call: F) -> Result<(&str, T), Status>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let mut at = self.hint(group);
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let until = deadline.min(Instant::now() + self.attempt_max);
            let attempt = tokio::select! {
                biased;
                answer = self.attempt((group, Lane::Commits), at, until, &call) => answer,
                other = self.another_leads(group, at) => {
                    at = other;
                    self.set_hint(group, at);
                    continue;
                }
            };
            let error = match attempt {
                Ok(answer) => {
                    self.set_hint(group, at);
                    return Ok((&self.nodes[at].name, answer));
                }
                Err(error) => error,
            };
            if !moves_on(&error) {
                self.set_hint(group, at);
                return Err(error);
            }
            let named = status::metadata(&error, status::LEADER).and_then(|name| self.index(&name));
            let named = named.filter(|index| *index < self.voters);
            let told = named.is_some_and(|index| index != at);
            at = named.filter(|_| told).unwrap_or((at + 1) % self.voters);
            let pause = backoff.next_pause();
            if !told || pause > PAUSE_MIN {
                if Instant::now() + pause >= deadline {
                    return Err(overdue(group, &error));
                }
                sleep(pause).await;
            }
        }
    }

    /// Asks the replicas of a group in turn, each once, in the order of [`Self::order`]. While one
    /// replica is silent, the next one is asked.
    ///
    /// # Errors
    /// The last replica's error, if none answers. An error that every replica would give is
    /// returned at once, if a voter gives it.
    pub async fn to_any<T, F, Fut>(&self, lane: Lane, group: GroupId, deadline: Instant, call: F) -> Result<T, Status>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let call = &call;
        let ask =
            |at: usize| async move { (at, self.attempt((group, lane), at, self.until(lane, deadline), call).await) };
        let mut places = self.order(lane, group).into_iter();
        let mut asked = FuturesUnordered::new();
        let mut last = None;
        loop {
            let next = places.next();
            asked.extend(next.map(ask));
            let more = places.len() > 0;
            let lags_soon = lane != Lane::Bulk && next.is_some_and(|at| self.nodes[at].reader);
            let patience = if lags_soon { LAG_MAX } else { SILENCE_MAX };
            let answer = tokio::select! {
                biased;
                answer = asked.next() => answer,
                () = sleep(patience.min(self.attempt_max / 4)), if more => {
                    if let Some(at) = next {
                        self.pass_over(at, group);
                    }
                    continue;
                }
            };
            match answer {
                Some((at, Err(error))) if self.nodes[at].reader || !is_final(&error) => {
                    // What a caller asks too much of keeps no reader away from others.
                    if !is_final(&error) {
                        self.pass_over(at, group);
                    }
                    last = Some(error);
                }
                Some((at, answer)) => {
                    if group != GroupId::Root && answer.is_ok() {
                        self.reads[usize::from(self.nodes[at].reader)].fetch_add(1, Ordering::Relaxed);
                    }
                    return answer;
                }
                None => return Err(last.expect("there is at least one node")),
            }
        }
    }

    /// The nodes that may answer a read, in the order in which they are asked. Readers have shards
    /// alone, and take turns. Of voters, the last known leader comes first, since it never lags.
    /// Commits depend on no reader as long as a voter answers.
    fn order(&self, lane: Lane, group: GroupId) -> Vec<usize> {
        let (now, first) = (Instant::now(), self.hint(group));
        let count = if group == GroupId::Root { self.voters } else { self.nodes.len() };
        let routed = self.prefers && lane != Lane::Commits && group != GroupId::Root;
        let rank = |at: usize| {
            let node = &self.nodes[at];
            match routed {
                true => (node.is_passed_over(group, now), !node.near, !node.reader),
                false => (false, false, node.reader),
            }
        };
        let from_first = |at: usize| if at < self.voters { (at + self.voters - first) % self.voters } else { at };
        let mut places: Vec<_> = (0..count).map(|at| (rank(at), from_first(at), at)).collect();
        places.sort_unstable();
        let best = places[0].0;
        let equals = places.iter().take_while(|(rank, ..)| *rank == best).count();
        if self.nodes[places[0].2].reader {
            places[..equals].rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % equals);
        }
        places.into_iter().map(|(_, _, at)| at).collect()
    }

    /// Lets a replica that was preferred come after all others for a while.
    fn pass_over(&self, at: usize, group: GroupId) {
        if self.prefers && group != GroupId::Root {
            self.passed_over.fetch_add(1, Ordering::Relaxed);
            held(&self.nodes[at].passed_over).insert(group, Instant::now() + PASSED_OVER);
        }
    }

    /// Reads keys of a shard at an exact state, from any replica.
    ///
    /// # Errors
    /// The last replica's error, if none has the state.
    pub async fn read_shard(
        &self,
        lane: Lane,
        request: &ShardReadRequest,
        deadline: Instant,
    ) -> Result<ShardReadResponse, Status> {
        let call = |channel| {
            let (mut client, request) = (self.shard(channel), request.clone());
            async move { client.read(request).await }
        };
        self.to_any(lane, GroupId::from_number(request.group), deadline, call).await
    }

    /// The time at which an attempt ends. A page may take longer than a single answer. In both
    /// cases there is time before the deadline to send a lost request again.
    fn until(&self, lane: Lane, deadline: Instant) -> Instant {
        let now = Instant::now();
        let part = deadline.saturating_duration_since(now) / ATTEMPTS_MIN;
        let most = if lane == Lane::Bulk { self.attempt_max.max(part) } else { self.attempt_max };
        deadline.min(now + most)
    }

    /// How long a node may be silent before others are asked.
    fn silence_max(&self) -> Duration {
        SILENCE_MAX.min(self.attempt_max / 4)
    }

    /// Waits until a node other than the silent `at` claims to lead the group. If `at` claims to
    /// lead in a newer term, the wait goes on.
    async fn another_leads(&self, group: GroupId, at: usize) -> usize {
        loop {
            sleep(self.silence_max()).await;
            let asked = (0..self.voters).map(|node| async move {
                let mut client = NodeClient::new(self.nodes[node].commits.within(self.silence_max()));
                let answer = client.leads(LeadsRequest { group: group.number() });
                let answer = timeout_at(Instant::now() + self.silence_max(), answer).await.ok()?.ok()?.into_inner();
                answer.leads.then_some((answer.term, node))
            });
            let leader = join_all(asked).await.into_iter().flatten().max();
            if let Some((_, leader)) = leader.filter(|(_, leader)| *leader != at) {
                return leader;
            }
        }
    }

    /// Asks one node. If time runs out, the error is the same whichever side noticed first: the
    /// transport gives no reason.
    async fn attempt<T, F, Fut>(
        &self,
        (group, lane): (GroupId, Lane),
        at: usize,
        until: Instant,
        call: &F,
    ) -> Result<T, Status>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let late = |error: &Status| {
            matches!(error.code(), Code::Cancelled | Code::DeadlineExceeded) && status::reason(error).is_none()
        };
        match timeout_at(until, call(self.channel(at, lane, until))).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(error)) if !late(&error) => Err(error),
            _ => Err(status::refuse(Reason::Unavailable, format!("{group} on {} did not answer", self.nodes[at].name))),
        }
    }

    /// The channel to a node for a call with the deadline `until`.
    fn channel(&self, at: usize, lane: Lane, until: Instant) -> Channel {
        self.nodes[at].channel(lane).within(until.saturating_duration_since(Instant::now()))
    }

    /// The node that led a group last, as far as is known.
    pub fn leader(&self, group: GroupId) -> &str {
        &self.nodes[self.hint(group)].name
    }

    fn hint(&self, group: GroupId) -> usize {
        let spread = group.number() as usize % self.voters;
        held(&self.leaders).get(&group.number()).copied().unwrap_or(spread)
    }

    fn set_hint(&self, group: GroupId, at: usize) {
        held(&self.leaders).insert(group.number(), at);
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }
}

/// Whether another node, or the same node later, may answer differently.
pub fn moves_on(error: &Status) -> bool {
    match status::reason(error) {
        Some(Reason::MissedAdmin | Reason::FencedForRollback) => false,
        Some(Reason::Corrupted) => true,
        _ => matches!(status::kind(error), ErrorKind::Unavailable | ErrorKind::Internal),
    }
}

/// Whether every replica would give this answer.
fn is_final(error: &Status) -> bool {
    matches!(status::kind(error), ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Exhausted)
}

fn overdue(group: GroupId, error: &Status) -> Status {
    status::refuse(Reason::Unavailable, format!("{group} does not answer: {}", error.message()))
}
