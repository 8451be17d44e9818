//! Stages: versions that are prepared but not decided, for blockchains that need the root before consensus (PROTOCOL 5.6).
//!
//! A stage lives in this leader's memory and in the shards' staged versions. Any commit but its own finalization, a
//! rollback, a `TakeOver`, or its age ends it: `STAGE_LOST`. The newest finalized stages are remembered, so that a
//! finalization whose answer was lost can be repeated.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{Reason, ShardId, Stamp};
use tokio::{sync::oneshot, time::Instant};
use tonic::Status;

use super::{
    answer::{Deciding, Held, release, replay},
    round::Prepared,
    sequencer::{Entry, Exit, Permit, Sequencer, id_bytes},
    shards::Shape,
    standing::Link,
    trace,
    wire::Digests,
};
use crate::plan::{
    Blocked, BuiltMerge, Done, Ground, Leaves, Overlay, Plan, Refusal, Request, ShardState, Verdict, form,
};
use crate::quotas::Place;

/// Most finalized stages that are remembered.
const FINALIZED_MAX: usize = 64;

/// Name of a stage.
pub type StageId = [u8; 16];

/// What is asked of stages.
#[derive(Debug)]
pub enum StageCommand {
    /// Stage a batch on head or on another stage.
    Stage {
        request: Arc<Request>,
        parent: Option<StageId>,
        reply: oneshot::Sender<Result<v1::StageResponse, Status>>,
        /// Its place in the queue, and its bytes there, until it is answered.
        _permits: [Permit; 2],
        /// Its place among the stages of its caller, for as long as it lives.
        place: Place,
    },
    /// Commit a stage whose parent is head.
    Finalize { id: StageId, entry: Entry },
    /// Drop a stage and what builds on it.
    Discard { id: StageId, reply: oneshot::Sender<Result<v1::DiscardResponse, Status>> },
}

/// A staged version.
#[derive(Debug)]
struct Stage {
    parent: Option<StageId>,
    plan: Plan,
    attempt: u64,
    digests: Digests,
    /// The state after it.
    leaves: Leaves,
    /// Undecided writes up to and including it.
    overlay: Overlay,
    /// Forests after it, of the shards that it or its parents touch.
    shapes: BTreeMap<ShardId, (ShardState, Shape)>,
    since: Instant,
    _place: Place,
}

/// All stages of this leader.
#[derive(Debug, Default)]
pub struct Stages {
    stages: BTreeMap<StageId, Stage>,
    finalized: VecDeque<(StageId, Done)>,
}

/// What a stage is built on.
struct Base {
    below: Stamp,
    leaves: Leaves,
    overlay: Overlay,
    shapes: BTreeMap<ShardId, (ShardState, Shape)>,
}

impl Sequencer {
    /// Serves one command; no version is under way.
    pub async fn on_stage_command(&mut self, command: StageCommand) -> Result<(), Exit> {
        assert!(self.in_flight.is_none(), "the pipeline is drained first");
        self.expire_stages();
        match command {
            // The caller has gone: nobody would learn of the stage.
            StageCommand::Stage { reply, .. } if reply.is_closed() => Ok(()),
            StageCommand::Stage { request, parent, reply, _permits, place } => {
                let answer = self.stage(request, parent, place).await;
                let (answer, exit) = match answer {
                    Ok(Ok(answer)) => (Ok(answer), Ok(())),
                    Ok(Err(error)) => (Err(error), Ok(())),
                    Err(exit) => (Err(super::sequencer::not_committed()), Err(exit)),
                };
                let _ = reply.send(answer);
                exit
            }
            StageCommand::Finalize { id, entry } => {
                self.finalize(id, entry);
                self.settle_in_flight().await
            }
            StageCommand::Discard { id, reply } => {
                let discarded = self.discard(id);
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
        place: Place,
    ) -> Result<Result<v1::StageResponse, Status>, Exit> {
        let Some(base) = self.base(parent) else { return Ok(Err(lost())) };
        let max = self.context.limits.stages_max;
        if self.stages.stages.len() >= max {
            return Ok(Err(status::refuse(
                Reason::QuotaExceeded,
                format!("there are {max} stages, as many as there may be: finalize or discard some"),
            )));
        }
        let waiting = std::slice::from_ref(&request);
        let stamp = Stamp { epoch: base.below.epoch, version: base.below.version.next() };
        let blocked =
            Blocked { full: self.wait_for_merges(&request, &base).await?, starting: self.standing(Link::Starting) };
        // Last: a shard that comes up after this was not read, and would no longer be known to be down.
        let reads = self.read_keys(waiting, &base.overlay, &base.leaves, &blocked).await?;
        let draft = form(
            waiting,
            &Ground {
                stamp,
                below: base.below,
                overlay: &base.overlay,
                reads: &reads,
                sessions: &self.sessions,
                in_flight: &BTreeSet::new(),
                blocked: &blocked,
                down: &self.standing(Link::Down),
                bytes_max: self.bytes_max(),
            },
        );
        match draft.verdicts.into_iter().next() {
            Some(Verdict::Taken) => {}
            Some(Verdict::Refused(refusal)) => return Ok(Err(self.checked(refusal).await)),
            _ if !blocked.full.is_empty() => {
                let staged = blocked.full.iter().any(|shard| base.shapes.contains_key(shard));
                let way = if staged { "finalize the stages below and stage again" } else { "try again later" };
                let message = format!("tree_limit is {}, and no merge is built yet: {way}", self.params.tree_limit);
                return Ok(Err(status::refuse(Reason::ResourceExhausted, message)));
            }
            _ => return Ok(Err(status::refuse(Reason::Unavailable, "a shard is not ready yet"))),
        }
        let merges = self.merges_on(&base);
        let plan = Plan::new(stamp, vec![request], &base.leaves, &merges, self.params.journals_kept);
        let prepared = match self.prepare(&plan).await? {
            Ok(prepared) => prepared,
            Err(failures) => {
                let error = failures.into_values().next().expect("a failed prepare has a failure");
                return Ok(Err(error));
            }
        };
        Ok(Ok(self.add((parent, place), base, plan, prepared)))
    }

    /// A refusal leaves only under a term that is still in force.
    async fn checked(&self, refusal: Refusal) -> Status {
        match self.context.view().await {
            Ok(view) if view.term == self.term => refusal.into(),
            Ok(_) => super::sequencer::not_committed(),
            Err(error) => error,
        }
    }

    fn base(&self, parent: Option<StageId>) -> Option<Base> {
        match parent {
            None => Some(Base {
                below: self.decided.header.stamp,
                leaves: self.decided.leaves.clone(),
                overlay: Overlay::default(),
                shapes: BTreeMap::new(),
            }),
            Some(id) => self.stages.stages.get(&id).map(|stage| Base {
                below: stage.plan.stamp,
                leaves: stage.leaves.clone(),
                overlay: stage.overlay.clone(),
                shapes: stage.shapes.clone(),
            }),
        }
    }

    fn full_on(&self, base: &Base) -> BTreeSet<ShardId> {
        let is_full = |shard: &&ShardId| {
            let link = &self.links[*shard];
            let (of, shape) = match base.shapes.get(*shard) {
                Some((of, shape)) => (Some(*of), shape),
                None => (link.shape_of, &link.shape),
            };
            shape.is_full(self.params.capacity, self.params.tree_limit, of == base.leaves.state(**shard))
        };
        self.links.keys().filter(is_full).copied().collect()
    }

    /// Waits a while for merges of forests on head that a write would make too large; gives those that stay so.
    ///
    /// A forest that a stage has made full is not waited for. Shards build merges of the trees of decided states only, so what it lacks comes
    /// with the finalization of the stages below, and that has to pass here, too: to wait would hold up the very thing that is waited for.
    /// Whoever stages is told so at once.
    async fn wait_for_merges(&mut self, request: &Request, base: &Base) -> Result<BTreeSet<ShardId>, Exit> {
        let deadline = Instant::now() + self.context.limits.prepare_timeout;
        loop {
            let mut full = self.full_on(base);
            full.retain(|shard| request.writes.contains_key(shard));
            let staged = full.iter().any(|shard| base.shapes.contains_key(shard));
            if full.is_empty() || staged || Instant::now() >= deadline {
                return Ok(full);
            }
            self.poll_shapes(&full).await?;
        }
    }

    fn merges_on(&self, base: &Base) -> BTreeMap<ShardId, BuiltMerge> {
        let installable = |leaf: &coppice_verify::shard_map::StateLeaf| {
            let link = &self.links[&leaf.shard];
            let (of, shape) = match base.shapes.get(&leaf.shard) {
                Some((of, shape)) => (Some(*of), shape),
                None => (link.shape_of, &link.shape),
            };
            let merge = shape.ready.first().filter(|_| of == Some(ShardState::from(leaf)))?;
            Some((leaf.shard, merge.clone()))
        };
        base.leaves.all().iter().filter_map(installable).collect()
    }

    fn add(
        &mut self,
        (parent, place): (Option<StageId>, Place),
        base: Base,
        plan: Plan,
        prepared: Prepared,
    ) -> v1::StageResponse {
        let Prepared { digests, shapes: new } = prepared;
        let state = |shard| digests.get(&shard).map(|&digest| ShardState { version: plan.stamp.version, digest });
        let (leaves, _) = base.leaves.with(state);
        let mut shapes = base.shapes;
        shapes.extend(new.into_iter().filter_map(|(shard, shape)| Some((shard, (state(shard)?, shape)))));
        let mut overlay = base.overlay;
        plan.batches.iter().for_each(|batch| overlay.apply(batch, plan.stamp));
        let id = self.context.random_id();
        let answer = v1::StageResponse {
            stage_id: id_bytes(&id),
            stamp: Some(super::wire::stamp_out(plan.stamp)),
            state_root: super::wire::bytes_of(&leaves.root()),
        };
        let (attempt, since) = (self.attempt, Instant::now());
        let stage = Stage { parent, plan, attempt, digests, leaves, overlay, shapes, since, _place: place };
        self.stages.stages.insert(id, stage);
        answer
    }

    fn finalize(&mut self, id: StageId, entry: Entry) {
        if let Some((_, done)) = self.stages.finalized.iter().find(|(of, _)| *of == id) {
            let (context, done) = (self.context.clone(), *done);
            tokio::spawn(async move {
                let answer = replay(&context, done, entry.want_receipt).await;
                entry.answer(answer);
            });
            return;
        }
        let refusal = match self.stages.stages.get(&id) {
            None => Some(Refusal::new(Reason::StageLost, "the stage is gone")),
            Some(stage) if stage.parent.is_some() => {
                Some(Refusal::new(Reason::PreconditionFailed, "the stage's parent is not head"))
            }
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            let (context, term) = (self.context.clone(), self.term);
            tokio::spawn(async move { release(&context, term, vec![Held::Refused(entry, refusal)]).await });
            return;
        }
        let stage = self.stages.stages.remove(&id).expect("the stage was found above");
        let commit = stage.plan.commit(&stage.digests, &self.decided, self.context.clock.wall_ms());
        let done = Done {
            batch_hash: stage.plan.batches[0].batch_hash,
            sequence: commit.tail.header.sequence,
            journal_index: 0,
            rolled_back: false,
        };
        for (shard, (of, shape)) in &stage.shapes {
            let link = self.links.get_mut(shard).expect("the shard is one of the links");
            link.shape = shape.clone();
            link.shape_of = Some(*of);
        }
        self.keep_children(id);
        if self.stages.finalized.len() >= FINALIZED_MAX {
            self.stages.finalized.pop_front();
        }
        self.stages.finalized.push_back((id, done));
        let trace = trace::version(std::iter::once(&entry.trace), stage.plan.stamp);
        let batches = stage.plan.batches;
        let deciding = Deciding { commit, batches, entries: vec![entry], held: Vec::new(), trace };
        self.in_flight = Some(deciding.start(self.context.clone(), self.term, stage.overlay));
    }

    /// A stage becomes head: its children build on head from now on, all others are lost.
    fn keep_children(&mut self, id: StageId) {
        let kept = self.descendants(id);
        let lost: Vec<StageId> = self.stages.stages.keys().filter(|other| !kept.contains(*other)).copied().collect();
        for other in lost {
            self.remove_stage(other);
        }
        for stage in self.stages.stages.values_mut().filter(|stage| stage.parent == Some(id)) {
            stage.parent = None;
        }
    }

    fn discard(&mut self, id: StageId) -> u32 {
        let mut ids = self.descendants(id);
        ids.insert(id);
        let known: Vec<StageId> = ids.into_iter().filter(|id| self.stages.stages.contains_key(id)).collect();
        for id in &known {
            self.remove_stage(*id);
        }
        u32::try_from(known.len()).expect("stages are few")
    }

    fn descendants(&self, id: StageId) -> BTreeSet<StageId> {
        let mut found = BTreeSet::new();
        let mut last = BTreeSet::from([id]);
        while !last.is_empty() {
            let next: BTreeSet<StageId> = self
                .stages
                .stages
                .iter()
                .filter(|(_, stage)| stage.parent.is_some_and(|parent| last.contains(&parent)))
                .map(|(id, _)| *id)
                .collect();
            found.extend(next.iter().copied());
            last = next;
        }
        found
    }

    fn remove_stage(&mut self, id: StageId) {
        if let Some(stage) = self.stages.stages.remove(&id) {
            self.abort(&stage.plan, stage.attempt);
        }
    }

    /// A version that is no stage's finalization, or a rollback, ends all stages.
    pub fn drop_stages(&mut self, why: &str) {
        if !self.stages.stages.is_empty() {
            tracing::info!(why, stages = self.stages.stages.len(), "stages are dropped");
        }
        for id in self.stages.stages.keys().copied().collect::<Vec<_>>() {
            self.remove_stage(id);
        }
    }

    /// A rollback undid what was finalized after this header.
    pub fn forget_finalized(&mut self, target: coppice_types::Sequence) {
        self.stages.finalized.retain(|(_, done)| done.sequence <= target);
    }

    /// Drops stages that are too old.
    pub fn expire_stages(&mut self) {
        let max = self.context.limits.stage_age_max;
        let old = |(_, stage): &(&StageId, &Stage)| stage.since.elapsed() > max;
        let ids: Vec<StageId> = self.stages.stages.iter().filter(old).map(|(id, _)| *id).collect();
        for id in ids {
            self.discard(id);
        }
    }
}

/// The stage is unknown, or was dropped.
fn lost() -> Status {
    status::refuse(Reason::StageLost, "the stage is gone")
}

/// Reads a stage id.
///
/// # Errors
/// If it has not 16 bytes.
pub fn stage_id(bytes: &Bytes) -> Result<StageId, Refusal> {
    bytes.as_ref().try_into().map_err(|_| Refusal::invalid("a stage id has 16 bytes"))
}
