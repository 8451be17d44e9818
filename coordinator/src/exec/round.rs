//! One version: judged, prepared on the shards it touches, handed over to be decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{ErrorKind, Reason, SessionId, ShardId};
use futures::future::join_all;
use opentelemetry::context::FutureExt;
use tokio::time::Instant;
use tonic::Status;

use super::{
    answer::{Deciding, Held, release},
    root::SessionAnswer,
    sequencer::{Entry, Exit, Progress, Sequencer, is_stale},
    shards::Shape,
    standing::{Link, ShardLink},
    trace::{self, Trace},
    wire::{self, Digests},
};
use crate::{
    metrics::Stage,
    plan::{
        Blocked, BuiltMerge, Draft, Ground, KeyState, Leaves, Overlay, Plan, Request, Verdict, form, in_reach,
        keys_to_read, numbers_to_ask,
    },
};

/// Shards that did not prepare, and why.
pub type Failures = BTreeMap<ShardId, Status>;

/// What the touched shards answered.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Digest of each shard's new forest.
    pub digests: Digests,
    /// What it looks like.
    pub shapes: BTreeMap<ShardId, Shape>,
}

impl Sequencer {
    /// Forms the next version of what waits and prepares it; hands it over once the one before is decided.
    pub async fn round(&mut self) -> Result<Progress, Exit> {
        let blocked = Blocked { full: self.full(), starting: self.standing(Link::Starting) };
        let requests = self.waiting.iter().map(|entry| entry.request.clone());
        let waiting = in_reach(requests, &blocked, self.context.limits.batches_per_version_max);
        self.ask_sessions(&waiting).await;
        let (overlay, leaves) = (self.overlay(), self.tip().leaves.clone());
        let reads = self.read_keys(&waiting, &overlay, &leaves, &blocked).await?;
        let draft = self.judge(&waiting, &overlay, &reads, &blocked);
        if draft.taken() == 0 {
            return self.answer_draft(draft).await;
        }
        let (stamp, began) = (self.tip().next_stamp(), Instant::now());
        let taken = self.waiting.iter().zip(&draft.verdicts).filter(|(_, verdict)| **verdict == Verdict::Taken);
        let (batches, traces): (Vec<_>, Vec<_>) = taken.map(|(entry, _)| (entry.request.clone(), &entry.trace)).unzip();
        let trace = trace::version(traces.into_iter(), stamp);
        let merges = self.merges();
        let plan = Plan::new(stamp, batches, &leaves, &merges, self.params.journals_kept);
        match self.prepare(&plan).with_context(trace.clone()).await? {
            Ok(prepared) => {
                self.context.metrics.took(Stage::Prepare, began.elapsed());
                self.hand_over(&plan, prepared, draft, (began, trace)).await
            }
            Err(failures) => {
                self.refuse_taken(&draft, &failures);
                Ok(Progress::Made)
            }
        }
    }

    /// Most bytes of a version's operations.
    pub fn bytes_max(&self) -> u64 {
        u64::from(self.params.batch_bytes_max)
    }

    /// Undecided writes below the next version.
    fn overlay(&self) -> Overlay {
        self.in_flight.as_ref().map(|in_flight| in_flight.overlay.clone()).unwrap_or_default()
    }

    /// Merges that can be installed on the tip.
    fn merges(&self) -> BTreeMap<ShardId, BuiltMerge> {
        let tip = &self.tip().leaves;
        let installable = |(shard, link): (&ShardId, &ShardLink)| {
            let merge = link.shape.ready.first().filter(|_| link.shape_of == tip.state(*shard))?;
            Some((*shard, merge.clone()))
        };
        self.links.iter().filter_map(installable).collect()
    }

    /// Asks the root group for session numbers of which nothing is known, and for those that were committed: nobody is answered from
    /// memory alone.
    async fn ask_sessions(&mut self, waiting: &[Arc<Request>]) {
        self.sessions.forget_ended();
        waiting.iter().filter_map(|request| request.session).for_each(|(id, number)| self.sessions.doubt(&id, number));
        let asked: Vec<_> = numbers_to_ask(waiting, &self.sessions).into_iter().collect();
        let root = &self.context.root;
        let answers = join_all(asked.iter().map(|&(id, number)| root.session(id, number))).await;
        for ((id, number), answer) in asked.into_iter().zip(answers) {
            if let Err(error) = self.learn_session(id, number, answer).await {
                // The batch waits and is asked for again.
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
            // Finding it again tells its highest number.
            let highest = self.context.root.open_session(id).await?.highest_number;
            self.sessions.open(id, highest);
        }
        match answer {
            SessionAnswer::Known(done) => self.sessions.learn(id, number, done),
            SessionAnswer::Expired | SessionAnswer::Ended => self.sessions.expire(id, number),
        }
        Ok(())
    }

    /// Reads the keys of preconditions at the newest staged version; shards that don't answer are down.
    pub async fn read_keys(
        &mut self,
        waiting: &[Arc<Request>],
        overlay: &Overlay,
        leaves: &Leaves,
        blocked: &Blocked,
    ) -> Result<BTreeMap<Bytes, KeyState>, Exit> {
        let mut by_shard: BTreeMap<ShardId, Vec<Bytes>> = BTreeMap::new();
        for key in keys_to_read(waiting, overlay, blocked) {
            by_shard.entry(leaves.route(&key)).or_default().push(key);
        }
        let unasked = |shard: &ShardId| self.links[shard].link == Link::Up;
        by_shard.retain(|shard, _| unasked(shard));
        let deadline = Instant::now() + self.context.limits.prepare_timeout;
        let shards = &self.context.shards;
        let reads = by_shard.into_iter().map(|(shard, keys)| {
            let state = leaves.state(shard).expect("keys are routed by these leaves");
            let context = self.shard_context(shard);
            async move { (shard, shards.key_states(shard, context, state, keys, deadline).await) }
        });
        let answers = join_all(reads).await;
        let mut found = BTreeMap::new();
        for (shard, answer) in answers {
            match answer {
                Ok(states) => found.extend(states),
                Err(error) if is_stale(&error) => return Err(Exit::Deposed),
                Err(error) => self.set_down(shard, &error),
            }
        }
        Ok(found)
    }

    fn judge(
        &self,
        waiting: &[Arc<Request>],
        overlay: &Overlay,
        reads: &BTreeMap<Bytes, KeyState>,
        blocked: &Blocked,
    ) -> Draft {
        let empty = BTreeSet::new();
        let tip = self.tip();
        form(
            waiting,
            &Ground {
                stamp: tip.next_stamp(),
                below: tip.header.stamp,
                overlay,
                reads,
                sessions: &self.sessions,
                in_flight: self.in_flight.as_ref().map_or(&empty, |in_flight| &in_flight.numbers),
                blocked,
                down: &self.standing(Link::Down),
                bytes_max: self.bytes_max(),
            },
        )
    }

    /// No version comes of the draft: what was refused leaves once the ground that it was judged on is decided.
    async fn answer_draft(&mut self, draft: Draft) -> Result<Progress, Exit> {
        let (taken, held) = self.remove(draft);
        assert!(taken.is_empty(), "a draft that took something is prepared");
        if held.is_empty() {
            return Ok(Progress::None);
        }
        if let Err(exit) = self.settle_in_flight().await {
            super::answer::fail(held, &super::sequencer::not_committed());
            return Err(exit);
        }
        let (context, term) = (self.context.clone(), self.term);
        tokio::spawn(async move { release(&context, term, held).await });
        Ok(Progress::Made)
    }

    /// Takes what a draft decided out of the queue.
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

    /// Prepares a plan on every shard that it touches, under a new name; aborts it if one of them fails.
    pub async fn prepare(&mut self, plan: &Plan) -> Result<Result<Prepared, Failures>, Exit> {
        self.attempt += 1;
        let attempt = self.attempt;
        let deadline = Instant::now() + self.context.limits.prepare_timeout;
        let shards = &self.context.shards;
        let calls = plan.shards.iter().map(|(&shard, part)| {
            let request = wire::prepare_out(shard, part, plan.stamp, attempt, self.shard_context(shard));
            async move { (shard, shards.prepare(shard, request, deadline).await) }
        });
        let answers = join_all(calls).await;
        let (mut prepared, mut failures) = (Prepared::default(), Failures::new());
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
            let told = self.decided.leaves.state(*shard);
            self.links.get_mut(shard).expect("a plan's shards are those of the map").told = told;
        }
        if failures.is_empty() {
            return Ok(Ok(prepared));
        }
        self.abort(plan, attempt);
        for (shard, error) in &failures {
            match status::kind(error) {
                ErrorKind::Unavailable => self.set_down(*shard, error),
                // The shard is not in the state that this leader thinks it is in.
                ErrorKind::Fenced => return Err(Exit::Reset(format!("shard {shard} refused a prepare: {error}"))),
                _ => tracing::warn!(%shard, %error, "a shard does not take a version"),
            }
        }
        Ok(Err(failures))
    }

    fn set_down(&mut self, shard: ShardId, error: &Status) {
        tracing::warn!(%shard, %error, "a shard does not answer in time");
        self.links.get_mut(&shard).expect("the shard is one of the links").link = Link::Down;
    }

    /// Drops a prepare by its name, in the background: settling a sibling would drop it, too.
    pub fn abort(&self, plan: &Plan, attempt: u64) {
        let abort =
            v1::AbortCommand { version: plan.stamp.version.0, prepare_term: self.term, prepare_attempt: attempt };
        for &shard in plan.shards.keys() {
            let command = v1::shard_command_request::Command::Abort(abort);
            let (context, shards) = (self.shard_context(shard), self.context.shards.clone());
            let deadline = Instant::now() + self.context.limits.prepare_timeout;
            tokio::spawn(async move {
                if let Err(error) = shards.command(shard, &context, command, deadline).await {
                    tracing::debug!(%shard, %error, "an abort was not answered");
                }
            });
        }
    }

    /// Refuses the batches of a draft that have to do with these shards; all else is judged again. Of those that it did not take, some may have been
    /// committed before.
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

    /// Every prepare is answered: the header is made, and decided once the one before is.
    async fn hand_over(
        &mut self,
        plan: &Plan,
        prepared: Prepared,
        draft: Draft,
        (began, trace): (Instant, Trace),
    ) -> Result<Progress, Exit> {
        // On an error the batches are still in the queue: they are judged again by whoever leads next.
        self.settle_in_flight().await?;
        self.drop_stages("another commit");
        let overlay = draft.overlay.clone();
        let (entries, held) = self.remove(draft);
        for entry in &entries {
            self.context.metrics.took(Stage::Queue, began.saturating_duration_since(entry.came));
        }
        let commit = plan.commit(&prepared.digests, &self.decided, self.context.clock.wall_ms());
        for (shard, shape) in prepared.shapes {
            let link = self.links.get_mut(&shard).expect("a plan's shards are those of the map");
            link.shape = shape;
            link.shape_of = commit.tail.leaves.state(shard);
        }
        let deciding = Deciding { commit, batches: plan.batches.clone(), entries, held, trace };
        self.in_flight = Some(deciding.start(self.context.clone(), self.term, overlay));
        Ok(Progress::Made)
    }
}

/// What a client hears whose shard did not prepare.
fn of_shard(shard: ShardId, error: &Status) -> Status {
    let reason = match status::kind(error) {
        ErrorKind::Exhausted => status::reason(error).unwrap_or(Reason::ResourceExhausted),
        ErrorKind::Unavailable => Reason::Unavailable,
        _ => Reason::Internal,
    };
    status::refuse(reason, format!("not committed: shard {shard}: {}", error.message()))
}
