//! Stage commands, for blockchains that need a version's state root before their consensus
//! (PROTOCOL 5.6).
//!
//! A stage lives in this leader's memory and in the shards' staged versions. A commit other than
//! its own finalization, a rollback, a `TakeOver`, or its age ends it: `STAGE_LOST`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use coppice_proto::{convert, status, v1};
use coppice_types::{Reason, ShardId, Stamp};
use tokio::time::Instant;
use tonic::Status;

use super::Sequencer;
use crate::{
    plan::{Blocked, Done, Ground, Plan, Refusal, Request, Verdict, form},
    quotas::Slot,
    write::{
        answer::{Deciding, Held, release, replay},
        command::{Committed, Entry, Exit, StageCommand, StageId, not_committed},
        shard_links::{Prepared, Standing},
        stages::{Base, Stage},
        trace,
    },
};

impl Sequencer {
    /// Serves one stage command. No version may be under way.
    pub(super) async fn on_stage_command(&mut self, command: StageCommand) -> Result<(), Exit> {
        assert!(self.head.is_settled(), "the pipeline is drained first");
        self.expire_stages();
        match command {
            // The caller has gone, so it would never learn the stage's id.
            StageCommand::Stage { reply, .. } if reply.is_closed() => Ok(()),
            StageCommand::Stage { request, parent, reply, _permits, slot } => {
                let answer = self.stage(request, parent, slot).await;
                let (answer, exit) = match answer {
                    Ok(Ok(answer)) => (Ok(answer), Ok(())),
                    Ok(Err(error)) => (Err(error), Ok(())),
                    Err(exit) => (Err(not_committed()), Err(exit)),
                };
                let _ = reply.send(answer);
                exit
            }
            StageCommand::Finalize { id, entry } => {
                self.finalize(id, entry);
                self.settle_in_flight().await
            }
            StageCommand::Discard { id, reply } => {
                let stages = self.stages.discard(id);
                let discarded = u32::try_from(stages.len()).expect("stages are few");
                self.abort_stages(stages);
                let answer = if discarded == 0 { Err(lost()) } else { Ok(v1::DiscardResponse { discarded }) };
                let _ = reply.send(answer);
                Ok(())
            }
        }
    }

    async fn stage(
        &mut self,
        request: Arc<Request>,
        parent: Option<StageId>,
        slot: Slot,
    ) -> Result<Result<v1::StageResponse, Status>, Exit> {
        let Some(base) = self.stages.base(parent, self.head.decided()) else { return Ok(Err(lost())) };
        let max = self.resources.limits.stages_max;
        if self.stages.count() >= max {
            return Ok(Err(status::refuse(
                Reason::QuotaExceeded,
                format!("there are {max} stages, as many as there may be: finalize or discard some"),
            )));
        }
        let waiting = std::slice::from_ref(&request);
        let stamp = Stamp { epoch: base.below.epoch, version: base.below.version.next() };
        let full = self.wait_for_merges(&request, &base).await?;
        let blocked = Blocked { full, starting: self.links.with(Standing::Starting) };
        // Reads come last: a shard that came up after them would count as up, with none of its keys
        // read.
        let reads = self.read_keys(waiting, &base.overlay, &base.leaves, &blocked).await?;
        let draft = form(
            waiting,
            &Ground {
                stamp,
                now_ms: self.resources.clock.wall_ms(),
                below: base.below,
                overlay: &base.overlay,
                reads: &reads,
                sessions: &self.sessions,
                in_flight: &BTreeSet::new(),
                blocked: &blocked,
                down: &self.links.with(Standing::Down),
                // A stage has no requests of members.
                erasures_left: &BTreeMap::new(),
                bytes_max: self.bytes_max(),
            },
        );
        match draft.verdicts.first() {
            Some(Verdict::Taken) => {}
            Some(Verdict::Refused(refusal)) => return Ok(Err(self.checked(refusal.clone()).await)),
            _ if !blocked.full.is_empty() => {
                let staged = base.touches(&blocked.full);
                let way = if staged { "finalize the stages below and stage again" } else { "try again later" };
                let message = format!("tree_limit is {}, and no merge is built yet: {way}", self.params.tree_limit);
                return Ok(Err(status::refuse(Reason::ResourceExhausted, message)));
            }
            _ => return Ok(Err(status::refuse(Reason::Unavailable, "a shard is not ready yet"))),
        }
        let merges = base.merges(&self.links);
        let plan = Plan::new(stamp, vec![request], &draft, &base.leaves, &merges);
        let prepared = match self.prepare(&plan).await? {
            Ok(prepared) => prepared,
            Err(failures) => {
                let error = failures.into_values().next().expect("a failed prepare has a failure");
                return Ok(Err(error));
            }
        };
        Ok(Ok(self.add(parent, slot, base, plan, prepared)))
    }

    /// The answer for a refusal. It is the refusal itself only if this leader's term is still in
    /// force.
    async fn checked(&self, refusal: Refusal) -> Status {
        match self.resources.log.view().await {
            Ok(view) if view.term == self.head.term() => refusal.into(),
            Ok(_) => not_committed(),
            Err(error) => error,
        }
    }

    /// Waits a while for merges, if the request would make a forest too large without them. Returns
    /// the shards that are still full.
    ///
    /// A forest that a stage has filled is not waited for. Shards merge only trees of decided
    /// states, so that merge comes after the stages below are finalized. The finalization has to
    /// pass through this task, so waiting here would block it. The caller is refused at once.
    async fn wait_for_merges(&mut self, request: &Request, base: &Base) -> Result<BTreeSet<ShardId>, Exit> {
        let deadline = Instant::now() + self.resources.limits.prepare_timeout;
        loop {
            let mut full = base.full(&self.links, &self.params);
            full.retain(|shard| request.writes.contains_key(shard));
            if full.is_empty() || base.touches(&full) || Instant::now() >= deadline {
                return Ok(full);
            }
            self.poll_shapes(&full).await?;
        }
    }

    fn add(
        &mut self,
        parent: Option<StageId>,
        slot: Slot,
        base: Base,
        plan: Plan,
        prepared: Prepared,
    ) -> v1::StageResponse {
        let (id, stamp) = (self.resources.random.id(), plan.stamp);
        let state_root = self.stages.add(id, (parent, slot), base, plan, prepared);
        v1::StageResponse {
            stage_id: Bytes::copy_from_slice(&id),
            stamp: Some(convert::to_stamp(stamp)),
            state_root: convert::to_digest(&state_root),
        }
    }

    fn finalize(&mut self, id: StageId, entry: Entry) {
        let log = self.resources.log.clone();
        if let Some(done) = self.stages.finalized(&id) {
            tokio::spawn(async move {
                let answer = replay(&log, done, entry.want_receipt).await;
                entry.answer(answer.map(Committed::from));
            });
            return;
        }
        let stage = match self.stages.take(&id) {
            Ok(stage) => stage,
            Err(refusal) => {
                let term = self.head.term();
                tokio::spawn(async move { release(&log, term, vec![Held::Refused(entry, refusal)]).await });
                return;
            }
        };
        let commit = stage.plan.commit(&stage.digests, self.head.decided(), self.resources.clock.wall_ms());
        let done = Done {
            batch_hash: stage.plan.batches[0].batch_hash,
            sequence: commit.tail.header.sequence,
            journal_index: 0,
            rolled_back: false,
        };
        for (shard, (of, shape)) in stage.shapes {
            self.links.set_shape(shard, shape, Some(of));
        }
        let lost = self.stages.finalize(id, done);
        self.abort_stages(lost);
        let trace = trace::version(std::iter::once(&entry.trace), stage.plan.stamp);
        let batches = stage.plan.batches;
        // Requests of members are not staged.
        let ledgers = (Vec::new(), Vec::new());
        let deciding = Deciding { commit, batches, entries: vec![entry], ledgers, held: Vec::new(), trace };
        self.head.start(deciding.start(log, self.resources.metrics.clone(), self.head.term(), stage.overlay));
    }

    fn abort_stages(&self, stages: Vec<Stage>) {
        for stage in stages {
            self.abort(&stage.plan, stage.attempt);
        }
    }

    /// Drops all stages, because a rollback or a version that was not staged was decided.
    pub(super) fn drop_stages(&mut self, why: &str) {
        let stages = self.stages.drop_all();
        if !stages.is_empty() {
            tracing::info!(why, stages = stages.len(), "stages are dropped");
        }
        self.abort_stages(stages);
    }

    /// Drops the stages that are too old.
    pub(super) fn expire_stages(&mut self) {
        let stages = self.stages.expire(self.resources.limits.stage_age_max);
        self.abort_stages(stages);
    }
}

/// The answer about a stage that is unknown or was dropped.
fn lost() -> Status {
    status::refuse(Reason::StageLost, "the stage is gone")
}
