//! The leader's one task. It puts all writes into one order.
//!
//! At most two versions are under way: one whose header is being appended, and one that is being
//! prepared on top of it. The second starts when all prepares of the first were answered, so a
//! failed prepare never fails a version that builds on it. If the term can't be continued (another
//! term began, an append was refused, a shard lost its base), the task ends. A new `TakeOver` then
//! finds out which versions stand, and undecided batches go back to the queue.
//!
//! ```text
//! commands ─► waiting ─► round: judge ─► prepare ─► hand over ─► answer: append, sign, reply
//!        └──► tasks ───► staging, admin: while no version is under way
//! questions: adopt, finalize, poll shards in the background
//! ```

mod admin;
mod gather;
mod questions;
mod round;
mod staging;

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use coppice_proto::status;
use coppice_types::{Params, Reason, SessionId, ShardId, Stamp, Term, Version};
use tokio::{sync::mpsc, time::Instant};
use tonic::Status;

use self::gather::Gather;
use super::{
    answer::{Outcome, open_outcome},
    command::{Command, Entry, Exit, TASKS_MAX, Task, not_committed, refuse},
    head::Head,
    resources::Resources,
    shard_links::{ShardLinks, Standing},
    stages::Stages,
};
use crate::{
    groups::wire::View,
    plan::{Done, LogTail, Refusal, Sessions},
};

/// How often a shard is asked again if it does not answer or its trees are full.
const POLL: Duration = Duration::from_millis(20);
/// How long the task sleeps if nothing happens.
const IDLE: Duration = Duration::from_millis(500);
/// The leader's state in one term.
#[derive(Debug)]
pub struct Sequencer {
    resources: Resources,
    params: Params,
    /// The oldest version that can be read.
    boundary: Version,
    head: Head,
    links: ShardLinks,
    sessions: Sessions,
    stages: Stages,
    waiting: VecDeque<Entry>,
    gather: Gather,
    tasks: VecDeque<Task>,
    /// The time of the next look at the shards.
    look_at: Instant,
}

/// The result of a round.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// Something changed: there may be more to do.
    Made,
    /// Nothing can be done now.
    None,
}

impl Sequencer {
    /// The state after a `TakeOver`.
    pub fn new(resources: Resources, view: &View, term: Term, sessions: Sessions, waiting: VecDeque<Entry>) -> Self {
        Self {
            params: view.genesis.params.clone(),
            boundary: view.boundary,
            head: Head::new(term, view.tail.clone()),
            links: ShardLinks::new(view.tail.leaves.all().iter().map(|leaf| leaf.shard)),
            sessions,
            stages: Stages::default(),
            waiting,
            gather: Gather::default(),
            tasks: VecDeque::new(),
            look_at: Instant::now(),
            resources,
        }
    }

    pub fn term(&self) -> Term {
        self.head.term()
    }

    /// The newest decided version.
    pub fn stamp(&self) -> Stamp {
        self.head.stamp()
    }

    /// Works until it can't continue. Returns the reason; waiting batches stay in the queue.
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
        while let Some(event) = self.links.ready_event() {
            self.on_event(event)?;
        }
        self.expire();
        // Shards are asked by time, not when the task is idle: a stream of commands must not
        // prevent it.
        if self.look_at <= Instant::now() {
            self.expire_stages();
            self.ask_shards();
            self.look_at = Instant::now() + POLL;
        }
        if let Some(task) = self.tasks.pop_front() {
            self.settle_in_flight().await?;
            return self.perform(task).await;
        }
        let bytes = || self.waiting.iter().map(|entry| entry.request.bytes).sum();
        let (in_flight, waiting) = (self.head.batches_in_flight(), self.waiting.len());
        let gathers = self.gather.until(Instant::now(), in_flight, waiting, bytes);
        if gathers.is_none() && !self.waiting.is_empty() && self.round().await? == Progress::Made {
            return Ok(());
        }
        let wake = gathers.unwrap_or_else(|| Instant::now() + self.patience());
        tokio::select! {
            biased;
            outcome = self.head.outcome() => self.on_outcome(outcome)?,
            event = self.links.next_event() => self.on_event(event)?,
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
        // A shard serves a term only after it was adopted.
        while !self.links.with(Standing::Starting).is_empty() {
            self.ask_shards();
            let event = self.links.next_event().await;
            self.on_event(event)?;
        }
        match task {
            Task::Stage(command) => self.on_stage_command(command).await,
            Task::Admin(request) => self.on_admin(request).await,
        }
    }

    /// How long the task may sleep.
    fn patience(&self) -> Duration {
        if !self.waiting.is_empty() || !self.links.all_up() {
            return POLL;
        }
        if self.untold().next().is_some() {
            let due = self.head.decided_at() + self.resources.limits.finalize_after;
            return due.saturating_duration_since(Instant::now()).max(Duration::from_millis(5));
        }
        IDLE
    }

    /// The shards that were not told their decided state.
    fn untold(&self) -> impl Iterator<Item = ShardId> {
        self.links.untold(&self.head.decided().leaves)
    }

    /// The shards that can't take writes until a merge is installed.
    fn full(&self) -> BTreeSet<ShardId> {
        self.links.full(&self.head.tip().leaves, &self.params)
    }

    /// Refuses batches that waited too long, and drops those whose clients have gone. None of them
    /// is part of a version.
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
            let blocked = entry.request.written().any(|shard| full.contains(shard));
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

    /// Gives back the undecided batches, for the next term. Stage and admin commands end with this
    /// one.
    pub fn give_back(&mut self) -> VecDeque<Entry> {
        self.tasks.drain(..).for_each(|task| refuse(task.into()));
        std::mem::take(&mut self.waiting)
    }

    /// Waits until the version whose header is being appended is decided.
    pub async fn settle_in_flight(&mut self) -> Result<(), Exit> {
        while !self.head.is_settled() {
            let outcome = self.head.outcome().await;
            self.on_outcome(outcome)?;
        }
        Ok(())
    }

    fn on_outcome(&mut self, outcome: Outcome) -> Result<(), Exit> {
        let in_flight = self.head.finish();
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

    /// Answers the batches of a refused version. If the leader's view of their sessions was wrong,
    /// they are judged again instead.
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

    /// Moves the state on to a header that is in the log.
    fn on_committed(&mut self, tail: LogTail, commits: Vec<(SessionId, u64, Done)>) {
        for (id, number, done) in commits {
            self.sessions.record(id, number, done);
        }
        let size = tail.header.sequence.0 + 1;
        self.head.advance(tail);
        self.resources.log.note_size(size);
    }
}
