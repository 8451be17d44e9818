//! The leader's one task: what is to be written goes through here, in one order.
//!
//! At most two versions are under way: one whose header is being appended, and one that is being prepared on top of it.
//! The second starts when all prepares of the first have been answered, so a prepare that fails never takes a child with
//! it. What can't be continued (a foreign term, a refused append, a shard that lost its base) ends the task, and a new
//! `TakeOver` finds out what stands; batches that were not decided go back to the queue then.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{Params, Reason, SessionId, ShardId, Version};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::Instant,
};
use tonic::Status;

use super::{
    admin::AdminRequest,
    answer::{InFlight, Outcome, open_outcome},
    context::Context,
    shards::Shape,
    stages::{StageCommand, Stages},
    standing::{Event, Link, ShardLink},
    trace::Trace,
    wire,
};
use crate::plan::{LogTail, Refusal, Request, Sessions};

/// How often a shard that does not answer, or whose trees are full, is asked again.
pub const POLL: Duration = Duration::from_millis(20);
/// How often the task looks around when nothing happens.
const IDLE: Duration = Duration::from_millis(500);

/// Most stages, rollbacks and prunes that wait; batches have places of their own.
pub const TASKS_MAX: usize = 64;

/// Holds a batch's place in the queue.
pub type Permit = OwnedSemaphorePermit;
/// Where a commit's answer goes.
pub type Reply = oneshot::Sender<Result<v1::CommitResponse, Status>>;

/// A batch that waits to be committed.
#[derive(Debug)]
pub struct Entry {
    /// The batch.
    pub request: Arc<Request>,
    /// Where the answer goes.
    pub reply: Reply,
    /// When it is refused if it is still waiting.
    pub deadline: Instant,
    /// It asks for a receipt.
    pub want_receipt: bool,
    /// When it came.
    pub came: Instant,
    /// The trace that it is a part of.
    pub trace: Trace,
    /// Its place in the queue, and its bytes there.
    pub _permits: [Permit; 2],
}

impl Entry {
    /// Answers; a client that has gone needs no answer.
    pub fn answer(self, answer: Result<v1::CommitResponse, Status>) {
        let _ = self.reply.send(answer);
    }
}

/// What the sequencer is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Commit a batch.
    Commit(Entry),
    /// Stage, finalize or discard.
    Stage(StageCommand),
    /// Roll back or prune.
    Admin(AdminRequest),
    /// A session was opened, or found again, with this highest number.
    SessionOpened(SessionId, u64),
}

/// Why the sequencer ended.
#[derive(Debug)]
pub enum Exit {
    /// Another leader's term began.
    Deposed,
    /// Something can't be continued: take over again.
    Reset(String),
    /// The root group does not answer: others may reach it.
    CutOff,
    /// This coordinator may not lead, for example because of its clock.
    Unfit(String),
    /// Nobody sends commands any more, or the coordinator is to stop.
    Closed,
}

/// The leader's state.
pub struct Sequencer {
    pub context: Arc<Context>,
    pub params: Params,
    pub term: u64,
    pub boundary: Version,
    /// The end of the log that is decided.
    pub decided: LogTail,
    /// The version whose header is being appended.
    pub in_flight: Option<InFlight>,
    pub links: BTreeMap<ShardId, ShardLink>,
    pub sessions: Sessions,
    pub waiting: VecDeque<Entry>,
    pub stages: Stages,
    pub tasks: VecDeque<Task>,
    /// Names prepares of this term.
    pub attempt: u64,
    pub decided_at: Instant,
    /// When shards are looked at again.
    pub look_at: Instant,
    pub events: mpsc::Receiver<Event>,
    pub events_in: mpsc::Sender<Event>,
}

/// What is done with no version under way.
#[derive(Debug)]
pub enum Task {
    Stage(StageCommand),
    Admin(AdminRequest),
}

/// What a round came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something changed: there may be more to do.
    Made,
    /// Nothing can be done now.
    None,
}

impl Sequencer {
    /// The state after a `TakeOver`.
    pub fn new(
        context: Arc<Context>,
        view: &wire::View,
        term: u64,
        sessions: Sessions,
        waiting: VecDeque<Entry>,
    ) -> Self {
        let link = || ShardLink {
            link: Link::Starting,
            shape: Shape::default(),
            shape_of: None,
            told: None,
            busy: false,
            ask_at: Instant::now(),
        };
        let links: BTreeMap<_, _> = view.tail.leaves.all().iter().map(|leaf| (leaf.shard, link())).collect();
        // Each shard has at most one question in the background.
        let (events_in, events) = mpsc::channel(links.len());
        Self {
            params: view.genesis.params.clone(),
            term,
            boundary: view.boundary,
            decided: view.tail.clone(),
            in_flight: None,
            links,
            sessions,
            waiting,
            stages: Stages::default(),
            tasks: VecDeque::new(),
            attempt: 0,
            decided_at: Instant::now(),
            look_at: Instant::now(),
            events,
            events_in,
            context,
        }
    }

    /// Works until it can't: gives why, and leaves what waits in the queue.
    pub async fn run(&mut self, commands: &mut mpsc::Receiver<Command>) -> Exit {
        self.ask_shards();
        loop {
            match self.step(commands).await {
                Ok(()) => {}
                Err(exit) => return exit,
            }
        }
    }

    async fn step(&mut self, commands: &mut mpsc::Receiver<Command>) -> Result<(), Exit> {
        while self.tasks.len() < TASKS_MAX
            && let Ok(command) = commands.try_recv()
        {
            self.take(command);
        }
        while let Ok(event) = self.events.try_recv() {
            self.on_event(event)?;
        }
        self.expire();
        // However busy it is: a stream of commands must not keep shards from being asked.
        if self.look_at <= Instant::now() {
            self.expire_stages();
            self.ask_shards();
            self.look_at = Instant::now() + POLL;
        }
        if let Some(task) = self.tasks.pop_front() {
            self.settle_in_flight().await?;
            return self.perform(task).await;
        }
        if !self.waiting.is_empty() && self.round().await? == Progress::Made {
            return Ok(());
        }
        let wake = Instant::now() + self.patience();
        tokio::select! {
            biased;
            outcome = outcome_of(&mut self.in_flight) => self.on_outcome(outcome)?,
            Some(event) = self.events.recv() => self.on_event(event)?,
            command = commands.recv() => match command {
                Some(command) => self.take(command),
                None => return Err(Exit::Closed),
            },
            () = tokio::time::sleep_until(wake) => {}
        }
        Ok(())
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Commit(entry) => self.waiting.push_back(entry),
            Command::Stage(command) => self.tasks.push_back(Task::Stage(command)),
            Command::Admin(request) => self.tasks.push_back(Task::Admin(request)),
            Command::SessionOpened(id, highest) => self.sessions.open(id, highest),
        }
    }

    async fn perform(&mut self, task: Task) -> Result<(), Exit> {
        // No shard serves a term before it was adopted.
        while !self.standing(Link::Starting).is_empty() {
            self.ask_shards();
            let event = self.events.recv().await.expect("the sequencer keeps a sender");
            self.on_event(event)?;
        }
        match task {
            Task::Stage(command) => self.on_stage_command(command).await,
            Task::Admin(request) => self.on_admin(request).await,
        }
    }

    /// How long nothing needs to be looked at.
    fn patience(&self) -> Duration {
        if !self.waiting.is_empty() || self.links.values().any(|link| link.link != Link::Up) {
            return POLL;
        }
        if self.untold().next().is_some() {
            let due = self.decided_at + self.context.limits.finalize_after;
            return due.saturating_duration_since(Instant::now()).max(Duration::from_millis(5));
        }
        IDLE
    }

    /// Shards that were not told what was decided.
    pub fn untold(&self) -> impl Iterator<Item = ShardId> {
        self.links
            .iter()
            .filter(|(shard, link)| link.told != self.decided.leaves.state(**shard))
            .map(|(shard, _)| *shard)
    }

    /// Refuses batches that waited too long, and drops those whose clients have gone: none of them is part of a version.
    fn expire(&mut self) {
        let now = Instant::now();
        self.waiting.retain(|entry| !entry.reply.is_closed());
        if self.waiting.iter().all(|entry| entry.deadline > now) {
            return;
        }
        let full = self.full();
        for entry in std::mem::take(&mut self.waiting) {
            if entry.deadline > now {
                self.waiting.push_back(entry);
                continue;
            }
            let blocked = entry.request.writes.keys().any(|shard| full.contains(shard));
            let refusal = if blocked {
                let message =
                    format!("tree_limit is {}, and no merge is built yet: try again later", self.params.tree_limit);
                Refusal::new(Reason::ResourceExhausted, message)
            } else {
                Refusal::new(Reason::Unavailable, "the batch could not be committed in time; it was not")
            };
            entry.answer(Err(refusal.into()));
        }
    }

    /// What was not decided, for the next term; stages and admin requests end with this one.
    pub fn give_back(&mut self) -> VecDeque<Entry> {
        for task in self.tasks.drain(..) {
            let command = match task {
                Task::Stage(command) => Command::Stage(command),
                Task::Admin(request) => Command::Admin(request),
            };
            super::leader::refuse(command);
        }
        std::mem::take(&mut self.waiting)
    }

    /// What a shard is told in every message.
    pub fn shard_context(&self, shard: ShardId) -> v1::ShardContext {
        v1::ShardContext {
            term: self.term,
            admin_sequence: self.decided.header.admin_sequence,
            decided: self.decided.leaves.state(shard).map(wire::state_out),
        }
    }

    /// The log's end once all that is under way is decided.
    pub fn tip(&self) -> &LogTail {
        self.in_flight.as_ref().map_or(&self.decided, |in_flight| &in_flight.tail)
    }

    /// Shards that can't take writes until a merge is installed.
    pub fn full(&self) -> BTreeSet<ShardId> {
        let tip = &self.tip().leaves;
        let is_full = |(shard, link): &(&ShardId, &ShardLink)| {
            let installable = link.shape_of == tip.state(**shard);
            link.shape.is_full(self.params.capacity, self.params.tree_limit, installable)
        };
        self.links.iter().filter(is_full).map(|(shard, _)| *shard).collect()
    }

    /// Shards with this standing.
    pub fn standing(&self, standing: Link) -> BTreeSet<ShardId> {
        self.links.iter().filter(|(_, link)| link.link == standing).map(|(shard, _)| *shard).collect()
    }

    /// Waits until the version whose header is being appended is decided.
    pub async fn settle_in_flight(&mut self) -> Result<(), Exit> {
        while self.in_flight.is_some() {
            let outcome = outcome_of(&mut self.in_flight).await;
            self.on_outcome(outcome)?;
        }
        Ok(())
    }

    fn on_outcome(&mut self, outcome: Outcome) -> Result<(), Exit> {
        let in_flight = self.in_flight.take().expect("an outcome is of the version in flight");
        match outcome {
            Outcome::Committed => {
                self.on_committed(in_flight.tail, in_flight.commits);
                Ok(())
            }
            Outcome::Deposed(entries) => {
                for entry in entries {
                    entry.answer(Err(not_committed()));
                }
                Err(Exit::Deposed)
            }
            Outcome::Unconfirmed(entries) => {
                tracing::error!("no majority of the root group confirms a header that its leader says is committed");
                entries.into_iter().for_each(|entry| entry.answer(Err(open_outcome())));
                Err(Exit::Reset("no majority of the root group confirms a header".to_owned()))
            }
            Outcome::Refused(error, entries) => {
                self.requeue(&error, entries);
                Err(Exit::Reset(format!("the root group refused a header: {error}")))
            }
        }
    }

    /// A refused version's batches: they are judged again if the leader's picture of their sessions was wrong.
    fn requeue(&mut self, error: &Status, entries: Vec<Entry>) {
        let sessions = matches!(
            status::reason(error),
            Some(Reason::UnknownSession | Reason::RequestExpired | Reason::SessionMismatch)
        );
        if sessions {
            entries.into_iter().rev().for_each(|entry| self.waiting.push_front(entry));
        } else {
            tracing::error!(%error, "the root group refused a header");
            for entry in entries {
                entry.answer(Err(status::refuse(Reason::Internal, format!("not committed: {}", error.message()))));
            }
        }
    }

    /// A header is in the log: the state moves on.
    pub fn on_committed(&mut self, tail: LogTail, commits: Vec<(SessionId, u64, crate::plan::Done)>) {
        for (id, number, done) in commits {
            self.sessions.record(id, number, done);
        }
        let size = tail.header.sequence.0 + 1;
        self.decided = tail;
        self.decided_at = Instant::now();
        self.context.log_size.send_if_modified(|known| {
            let grown = size > *known;
            *known = size.max(*known);
            grown
        });
    }
}

/// The outcome of the version in flight; never, if there is none.
async fn outcome_of(in_flight: &mut Option<InFlight>) -> Outcome {
    match in_flight {
        // The task that decides ends only with an outcome, unless the runtime stops it.
        Some(in_flight) => match (&mut in_flight.outcome).await {
            Ok(outcome) => outcome,
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Another leader's term began.
pub fn is_stale(error: &Status) -> bool {
    status::reason(error) == Some(Reason::StaleTerm)
}

/// What a client hears whose batch was certainly not committed because another coordinator leads.
pub fn not_committed() -> Status {
    status::with_metadata(
        Reason::NotLeader,
        "another coordinator leads; the batch was not committed",
        [(status::LEADER, String::new())],
    )
}

/// An id on the wire.
pub fn id_bytes(id: &[u8]) -> Bytes {
    Bytes::copy_from_slice(id)
}
