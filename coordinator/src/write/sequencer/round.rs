//! A round makes one version: it is formed, prepared on the shards that it touches, and handed over
//! to be decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use coppice_env::{
    Laps,
    bug::{Bug, planted, strikes},
};
use coppice_proto::{status, v1};
use coppice_types::{ErrorKind, Reason, SessionId, ShardId};
use coppice_verify::ledgers::{AuthorOf, Member};
use futures::future::join_all;
use opentelemetry::context::FutureExt;
use tokio::time::Instant;
use tonic::Status;

use super::{Progress, Sequencer};
use crate::{
    groups::{root::SessionAnswer, shards::Shape, wire},
    metrics::Phase,
    plan::{
        Blocked, Draft, Ground, KeysRead, Leaves, Overlay, Plan, Request, Verdict, form, in_reach, keys_to_read,
        numbers_to_ask, values_to_read,
    },
    write::{
        answer::{Deciding, Held, fail, release},
        command::{Entry, Exit, is_stale, not_committed},
        shard_links::{Prepared, Standing},
        trace::{self, Trace},
    },
};

/// Limit on the number of keys of one read, so that its answer fits a message.
const KEYS_PER_READ_MAX: usize = 1024;

/// The shards that did not prepare, with their errors.
type Failures = BTreeMap<ShardId, Status>;

impl Sequencer {
    /// Forms the next version of the waiting batches and prepares it. Hands it over once the
    /// previous version is decided.
    pub(super) async fn round(&mut self) -> Result<Progress, Exit> {
        let (began, mut laps) = (Instant::now(), Laps::begin(Duration::ZERO));
        let progress = self.make_version(&mut |part| laps.lap(part, began.elapsed())).await;
        if let Some(row) = laps.long(began.elapsed()) {
            tracing::debug!(target: Laps::TARGET, "forming {row}");
        }
        progress
    }

    async fn make_version(&mut self, lap: &mut (impl FnMut(&'static str) + Send)) -> Result<Progress, Exit> {
        let blocked = Blocked { full: self.full(), starting: self.links.with(Standing::Starting) };
        let requests = self.waiting.iter().map(|entry| entry.request.clone());
        let waiting = in_reach(requests, &blocked, self.resources.limits.batches_per_version_max);
        self.ask_sessions(&waiting).await;
        lap("sessions");
        let (overlay, leaves) = (self.head.overlay(), self.head.tip().leaves.clone());
        let reads = self.read_keys(&waiting, &overlay, &leaves, &blocked).await?;
        lap("reads");
        let draft = self.judge(&waiting, &overlay, &reads, &blocked);
        if draft.taken() == 0 {
            return self.answer_draft(draft).await;
        }
        let (stamp, began) = (self.head.tip().next_stamp(), Instant::now());
        let taken = self.waiting.iter().zip(&draft.verdicts).filter(|(_, verdict)| **verdict == Verdict::Taken);
        let (batches, traces): (Vec<_>, Vec<_>) = taken.map(|(entry, _)| (entry.request.clone(), &entry.trace)).unzip();
        let trace = trace::version(traces.into_iter(), stamp);
        let merges = self.links.merges(&leaves);
        let plan = Plan::new(stamp, batches, &draft, &leaves, &merges);
        lap("judge");
        let prepared = self.prepare(&plan).with_context(trace.clone()).await?;
        lap("prepare");
        match prepared {
            Ok(prepared) => {
                self.resources.metrics.took(Phase::Prepare, began.elapsed());
                let handed = self.hand_over(&plan, prepared, draft, (began, trace)).await;
                lap("hand over");
                handed
            }
            Err(failures) => {
                self.refuse_taken(&draft, &failures);
                Ok(Progress::Made)
            }
        }
    }

    /// Limit on the bytes of a version's operations.
    pub(super) fn bytes_max(&self) -> u64 {
        u64::from(self.params.batch_bytes_max)
    }

    /// Asks the root group for unknown session numbers, and again for those known as committed: no
    /// client is answered only from memory.
    async fn ask_sessions(&mut self, waiting: &[Arc<Request>]) {
        self.sessions.forget_ended();
        waiting.iter().filter_map(|request| request.session).for_each(|(id, number)| self.sessions.doubt(&id, number));
        let asked: Vec<_> = numbers_to_ask(waiting, &self.sessions).into_iter().collect();
        let root = &self.resources.log.root;
        let answers = join_all(asked.iter().map(|&(id, number)| root.session(id, number))).await;
        for ((id, number), answer) in asked.into_iter().zip(answers) {
            if let Err(error) = self.learn_session(id, number, answer).await {
                // The batch waits, and its number is asked for again.
                tracing::debug!(%error, "a session could not be looked up");
            }
        }
    }

    async fn learn_session(
        &mut self,
        id: SessionId,
        number: u64,
        answer: Result<SessionAnswer, Status>,
    ) -> Result<(), Status> {
        let answer = answer?;
        if answer == SessionAnswer::Ended {
            self.sessions.end(id);
            return Ok(());
        }
        if !self.sessions.knows(&id) {
            // Opening the session again returns its highest number.
            let highest = self.resources.log.root.open_session(id).await?.highest_number;
            self.sessions.open(id, highest);
        }
        match answer {
            SessionAnswer::Known(done) => self.sessions.learn(id, number, done),
            SessionAnswer::Expired | SessionAnswer::Ended => self.sessions.expire(id, number),
        }
        Ok(())
    }

    /// Reads the keys of preconditions, and the records of ledgers that requests are judged by, at
    /// the newest staged version. Shards that don't answer are marked as down.
    pub(super) async fn read_keys(
        &mut self,
        waiting: &[Arc<Request>],
        overlay: &Overlay,
        leaves: &Leaves,
        blocked: &Blocked,
    ) -> Result<KeysRead, Exit> {
        let by_shard = |keys: BTreeSet<Bytes>| {
            let mut by_shard: BTreeMap<ShardId, Vec<Bytes>> = BTreeMap::new();
            for key in keys {
                by_shard.entry(leaves.route(&key)).or_default().push(key);
            }
            by_shard.retain(|shard, _| self.links.is_up(*shard));
            // One call for all of them could have an answer that no message holds.
            let parts = |(shard, keys): (ShardId, Vec<Bytes>)| {
                keys.chunks(KEYS_PER_READ_MAX).map(|keys| (shard, keys.to_vec())).collect::<Vec<_>>()
            };
            by_shard.into_iter().flat_map(parts).collect::<Vec<_>>()
        };
        let deadline = Instant::now() + self.resources.limits.prepare_timeout;
        let shards = &self.resources.shards;
        let at =
            |shard| (self.head.shard_context(shard), leaves.state(shard).expect("keys are routed by these leaves"));
        let states = by_shard(keys_to_read(waiting, overlay, blocked))
            .into_iter()
            .map(|(shard, keys)| async move { (shard, shards.key_states(shard, at(shard), keys, deadline).await) });
        let values = by_shard(values_to_read(waiting, overlay, blocked))
            .into_iter()
            .map(|(shard, keys)| async move { (shard, shards.key_values(shard, at(shard), keys, deadline).await) });
        let (states, values) = tokio::join!(join_all(states), join_all(values));
        let mut found = KeysRead::default();
        let mut failed = Vec::new();
        for (shard, answer) in states {
            match answer {
                Ok(states) => found.states.extend(states),
                Err(error) => failed.push((shard, error)),
            }
        }
        for (shard, answer) in values {
            match answer {
                Ok(values) => {
                    found.values.extend(values.into_iter().map(|(key, value)| (key, value.map(forgotten))));
                }
                Err(error) => failed.push((shard, error)),
            }
        }
        for (shard, error) in failed {
            if is_stale(&error) {
                return Err(Exit::Deposed);
            }
            self.set_down(shard, &error);
        }
        Ok(found)
    }

    fn judge(&self, waiting: &[Arc<Request>], overlay: &Overlay, reads: &KeysRead, blocked: &Blocked) -> Draft {
        let empty = BTreeSet::new();
        let tip = self.head.tip();
        let orders = waiting.iter().any(|request| request.is_order());
        form(
            waiting,
            &Ground {
                stamp: tip.next_stamp(),
                now_ms: self.resources.clock.wall_ms(),
                below: tip.header.stamp,
                overlay,
                reads,
                sessions: &self.sessions,
                in_flight: self.head.numbers().unwrap_or(&empty),
                blocked,
                down: &self.links.with(Standing::Down),
                erasures_left: &if orders { self.links.erasures_left() } else { BTreeMap::new() },
                bytes_max: self.bytes_max(),
            },
        )
    }

    /// Answers a draft that takes no batch. Refusals are sent once the version that they were
    /// judged on is decided.
    async fn answer_draft(&mut self, draft: Draft) -> Result<Progress, Exit> {
        let (taken, held) = self.remove(draft);
        assert!(taken.is_empty(), "a draft that took something is prepared");
        if held.is_empty() {
            return Ok(Progress::None);
        }
        if let Err(exit) = self.settle_in_flight().await {
            fail(held, &not_committed());
            return Err(exit);
        }
        let (log, term) = (self.resources.log.clone(), self.head.term());
        tokio::spawn(async move { release(&log, term, held).await });
        Ok(Progress::Made)
    }

    /// Takes the batches with a final verdict out of the queue.
    fn remove(&mut self, draft: Draft) -> (Vec<Entry>, Vec<Held>) {
        let rest = self.waiting.split_off(draft.verdicts.len());
        let judged = std::mem::replace(&mut self.waiting, rest);
        let (mut taken, mut held, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, verdict) in judged.into_iter().zip(draft.verdicts) {
            match verdict {
                Verdict::Taken => taken.push(entry),
                Verdict::Waits => waits.push(entry),
                Verdict::Known(done) => held.push(Held::Known(entry, done)),
                Verdict::Refused(refusal) => held.push(Held::Refused(entry, refusal)),
            }
        }
        waits.into_iter().rev().for_each(|entry| self.waiting.push_front(entry));
        (taken, held)
    }

    /// Prepares a plan on every shard that it touches, under a new attempt number. Aborts it if one
    /// of them fails.
    pub(super) async fn prepare(&mut self, plan: &Plan) -> Result<Result<Prepared, Failures>, Exit> {
        let attempt = self.head.next_attempt();
        let deadline = Instant::now() + self.resources.limits.prepare_timeout;
        let shards = &self.resources.shards;
        let calls = plan.shards.iter().map(|(&shard, part)| {
            let lists = if self.params.journals_kept { part.lists.clone() } else { Vec::new() };
            let request = wire::prepare_out(shard, part, lists, (plan.stamp, attempt), self.head.shard_context(shard));
            async move { (shard, shards.prepare(shard, request, deadline).await) }
        });
        let answers = join_all(calls).await;
        let (mut prepared, mut failures) = (Prepared { attempt, ..Prepared::default() }, Failures::new());
        for (shard, answer) in answers {
            match answer.and_then(|answer| Ok((wire::digest_in(&answer.digest)?, Shape::read(answer.shape.as_ref())?)))
            {
                Ok((digest, shape)) => {
                    prepared.digests.insert(shard, digest);
                    prepared.shapes.insert(shard, shape);
                }
                Err(error) if is_stale(&error) => return Err(Exit::Deposed),
                Err(error) => {
                    failures.insert(shard, error);
                }
            }
        }
        for shard in prepared.digests.keys() {
            self.links.set_told(*shard, self.head.decided().leaves.state(*shard));
        }
        if failures.is_empty() {
            return Ok(Ok(prepared));
        }
        self.abort(plan, attempt);
        for (shard, error) in &failures {
            match status::kind(error) {
                ErrorKind::Unavailable => self.set_down(*shard, error),
                // The shard is in a different state than this leader assumes.
                ErrorKind::Fenced => return Err(Exit::Reset(format!("shard {shard} refused a prepare: {error}"))),
                _ => tracing::warn!(%shard, %error, "a shard does not take a version"),
            }
        }
        Ok(Err(failures))
    }

    fn set_down(&mut self, shard: ShardId, error: &Status) {
        tracing::warn!(%shard, %error, "a shard does not answer in time");
        self.links.set_down(shard);
    }

    /// Drops a prepare by its name, in the background. If the abort is lost, settling a sibling
    /// drops it too.
    pub(super) fn abort(&self, plan: &Plan, attempt: u64) {
        let abort = v1::AbortCommand {
            version: plan.stamp.version.0,
            prepare_term: self.head.term().0,
            prepare_attempt: attempt,
        };
        for &shard in plan.shards.keys() {
            let command = v1::shard_command_request::Command::Abort(abort);
            let (context, shards) = (self.head.shard_context(shard), self.resources.shards.clone());
            let deadline = Instant::now() + self.resources.limits.prepare_timeout;
            tokio::spawn(async move {
                if let Err(error) = shards.command(shard, &context, command, deadline).await {
                    tracing::debug!(%shard, %error, "an abort was not answered");
                }
            });
        }
    }

    /// Refuses the taken batches that involve failed shards. All other batches are judged again;
    /// some that the draft did not take may have been committed before.
    fn refuse_taken(&mut self, draft: &Draft, failures: &Failures) {
        let verdicts = draft.verdicts.iter().map(Some).chain(std::iter::repeat(None));
        for (entry, verdict) in std::mem::take(&mut self.waiting).into_iter().zip(verdicts) {
            let failed = entry.request.involved.iter().find_map(|&shard| Some((shard, failures.get(&shard)?)));
            match failed {
                Some((shard, error)) if verdict == Some(&Verdict::Taken) => entry.answer(Err(of_shard(shard, error))),
                _ => self.waiting.push_back(entry),
            }
        }
    }

    /// Makes the header of a prepared version, and starts to decide it once the previous version
    /// is decided.
    async fn hand_over(
        &mut self,
        plan: &Plan,
        prepared: Prepared,
        mut draft: Draft,
        (began, trace): (Instant, Trace),
    ) -> Result<Progress, Exit> {
        // On an error the batches are still in the queue, where the next leader judges them again.
        self.settle_in_flight().await?;
        self.drop_stages("another commit");
        let overlay = draft.overlay.clone();
        let ledgers = (std::mem::take(&mut draft.appended), std::mem::take(&mut draft.closed));
        let (entries, held) = self.remove(draft);
        for entry in &entries {
            self.resources.metrics.took(Phase::Queue, began.saturating_duration_since(entry.came));
        }
        let commit = plan.commit(&prepared.digests, self.head.decided(), self.resources.clock.wall_ms());
        for (shard, shape) in prepared.shapes {
            self.links.set_shape(shard, shape, commit.tail.leaves.state(shard));
        }
        let deciding = Deciding { commit, batches: plan.batches.clone(), entries, ledgers, held, trace };
        let (log, metrics) = (self.resources.log.clone(), self.resources.metrics.clone());
        self.head.start(deciding.start(log, metrics, self.head.term(), overlay));
        Ok(Progress::Made)
    }
}

/// The value of a reserved key, from which planted bugs take a member's lanes or its journals.
fn forgotten(value: Bytes) -> Bytes {
    if planted(Bug::AffectedMissed) {
        return match AuthorOf::decode(&value) {
            Ok(author) if strikes(Bug::AffectedMissed, 2) => AuthorOf { first_jsn: u64::MAX, ..author }.encode().into(),
            _ => value,
        };
    }
    if !planted(Bug::LaneForgotten) {
        return value;
    }
    match Member::decode(&value) {
        Ok(member) if strikes(Bug::LaneForgotten, 16) => Member { lanes: Vec::new(), ..member }.encode().into(),
        _ => value,
    }
}

/// The answer to a client whose shard did not prepare.
fn of_shard(shard: ShardId, error: &Status) -> Status {
    let reason = match status::kind(error) {
        ErrorKind::Exhausted => status::reason(error).unwrap_or(Reason::ResourceExhausted),
        ErrorKind::Unavailable => Reason::Unavailable,
        _ => Reason::Internal,
    };
    status::refuse(reason, format!("not committed: shard {shard}: {}", error.message()))
}
