//! The stages of a leader: versions that are prepared but not decided (PROTOCOL 5.6).
//!
//! Invariants: a stage's parent is head, or another stage in this list; the newest finalized stages
//! are remembered, so that a finalization whose answer was lost can be repeated. Stages that leave
//! are returned, since their prepares have to be aborted.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use coppice_types::{Digest, MergeName, Params, Reason, Sequence, ShardId, ShardState, Stamp};
use tokio::time::Instant;

use super::{
    command::StageId,
    shard_links::{Prepared, ShardLinks},
};
use crate::{
    groups::{shards::Shape, wire::Digests},
    plan::{Done, Leaves, LogTail, Overlay, Plan, Refusal, state_of},
    quotas::Slot,
};

/// Limit on the number of finalized stages that are remembered.
const FINALIZED_MAX: usize = 64;

/// Forests after a stage, of the shards that it or its parents touch.
type Shapes = BTreeMap<ShardId, (ShardState, Shape)>;

/// A staged version.
#[derive(Debug)]
pub struct Stage {
    parent: Option<StageId>,
    pub plan: Plan,
    /// The name of the stage's prepares.
    pub attempt: u64,
    pub digests: Digests,
    /// The state leaves after the stage.
    leaves: Leaves,
    /// Undecided writes up to and including the stage.
    pub overlay: Overlay,
    pub shapes: Shapes,
    since: Instant,
    _slot: Slot,
}

/// All stages of a leader.
#[derive(Debug, Default)]
pub struct Stages {
    stages: BTreeMap<StageId, Stage>,
    finalized: VecDeque<(StageId, Done)>,
}

/// The state that a stage is built on.
#[derive(Debug)]
pub struct Base {
    pub below: Stamp,
    pub leaves: Leaves,
    pub overlay: Overlay,
    shapes: Shapes,
}

impl Base {
    /// The shape of a shard's forest, and the state that it describes: as of the stages below, or
    /// as the leader knows it.
    fn shape<'a>(&'a self, shard: ShardId, links: &'a ShardLinks) -> (Option<ShardState>, &'a Shape) {
        match self.shapes.get(&shard) {
            Some((of, shape)) => (Some(*of), shape),
            None => links.shape(shard),
        }
    }

    /// Whether a stage below touches one of these shards.
    pub fn touches(&self, shards: &BTreeSet<ShardId>) -> bool {
        shards.iter().any(|shard| self.shapes.contains_key(shard))
    }

    /// The shards that can't take writes on the base until a merge is installed.
    pub fn full(&self, links: &ShardLinks, params: &Params) -> BTreeSet<ShardId> {
        let is_full = |shard: &ShardId| {
            let (of, shape) = self.shape(*shard, links);
            shape.is_full(params.capacity, params.tree_limit, of == self.leaves.state(*shard))
        };
        links.shards().filter(is_full).collect()
    }

    /// The merges that can be installed on the base.
    pub fn merges(&self, links: &ShardLinks) -> BTreeMap<ShardId, MergeName> {
        let installable = |leaf: &coppice_verify::shard_map::StateLeaf| {
            let (of, shape) = self.shape(leaf.shard, links);
            let merge = shape.ready.first().filter(|_| of == Some(state_of(leaf)))?;
            Some((leaf.shard, merge.clone()))
        };
        self.leaves.all().iter().filter_map(installable).collect()
    }
}

impl Stages {
    pub fn count(&self) -> usize {
        self.stages.len()
    }

    /// The base of a new stage on `parent`, or on head if there is none. `None` if the parent is
    /// gone.
    pub fn base(&self, parent: Option<StageId>, decided: &LogTail) -> Option<Base> {
        match parent {
            None => Some(Base {
                below: decided.header.stamp,
                leaves: decided.leaves.clone(),
                overlay: Overlay::default(),
                shapes: BTreeMap::new(),
            }),
            Some(id) => self.stages.get(&id).map(|stage| Base {
                below: stage.plan.stamp,
                leaves: stage.leaves.clone(),
                overlay: stage.overlay.clone(),
                shapes: stage.shapes.clone(),
            }),
        }
    }

    /// Adds a prepared stage. Returns its state root.
    pub fn add(
        &mut self,
        id: StageId,
        (parent, slot): (Option<StageId>, Slot),
        base: Base,
        plan: Plan,
        prepared: Prepared,
    ) -> Digest {
        let Prepared { attempt, digests, shapes: new } = prepared;
        let state = |shard| digests.get(&shard).map(|&digest| ShardState { version: plan.stamp.version, digest });
        let (leaves, _) = base.leaves.with(state);
        let mut shapes = base.shapes;
        shapes.extend(new.into_iter().filter_map(|(shard, shape)| Some((shard, (state(shard)?, shape)))));
        let mut overlay = base.overlay;
        plan.batches.iter().for_each(|batch| overlay.apply(batch, plan.stamp));
        let (root, since) = (leaves.root(), Instant::now());
        let stage = Stage { parent, plan, attempt, digests, leaves, overlay, shapes, since, _slot: slot };
        self.stages.insert(id, stage);
        root
    }

    /// The outcome of a stage that was finalized before, if it is remembered.
    pub fn finalized(&self, id: &StageId) -> Option<Done> {
        self.finalized.iter().find(|(of, _)| of == id).map(|(_, done)| *done)
    }

    /// Takes out a stage in order to commit it.
    ///
    /// # Errors
    /// `STAGE_LOST` if the stage is gone; `PRECONDITION_FAILED` if its parent is not head.
    pub fn take(&mut self, id: &StageId) -> Result<Stage, Refusal> {
        match self.stages.get(id) {
            None => Err(Refusal::new(Reason::StageLost, "the stage is gone")),
            Some(stage) if stage.parent.is_some() => {
                Err(Refusal::new(Reason::PreconditionFailed, "the stage's parent is not head"))
            }
            Some(_) => Ok(self.stages.remove(id).expect("the stage was found above")),
        }
    }

    /// Notes that a stage, taken out before, becomes head: its children are built on head from now
    /// on. Returns all stages that do not descend from it; they are lost.
    pub fn finalize(&mut self, id: StageId, done: Done) -> Vec<Stage> {
        let kept = self.descendants(id);
        let lost: Vec<StageId> = self.stages.keys().filter(|other| !kept.contains(*other)).copied().collect();
        let lost = self.remove(lost);
        for stage in self.stages.values_mut().filter(|stage| stage.parent == Some(id)) {
            stage.parent = None;
        }
        if self.finalized.len() >= FINALIZED_MAX {
            self.finalized.pop_front();
        }
        self.finalized.push_back((id, done));
        lost
    }

    /// Drops a stage and its descendants.
    pub fn discard(&mut self, id: StageId) -> Vec<Stage> {
        let mut ids = self.descendants(id);
        ids.insert(id);
        self.remove(ids)
    }

    /// Drops all stages.
    pub fn drop_all(&mut self) -> Vec<Stage> {
        std::mem::take(&mut self.stages).into_values().collect()
    }

    /// Drops the stages that are older than `age_max`, and their descendants.
    pub fn expire(&mut self, age_max: Duration) -> Vec<Stage> {
        let old = |(_, stage): &(&StageId, &Stage)| stage.since.elapsed() > age_max;
        let ids: Vec<StageId> = self.stages.iter().filter(old).map(|(id, _)| *id).collect();
        ids.into_iter().flat_map(|id| self.discard(id)).collect()
    }

    /// Forgets the finalized stages after this header, which a rollback has undone.
    pub fn roll_back(&mut self, target: Sequence) {
        self.finalized.retain(|(_, done)| done.sequence <= target);
    }

    fn remove(&mut self, ids: impl IntoIterator<Item = StageId>) -> Vec<Stage> {
        ids.into_iter().filter_map(|id| self.stages.remove(&id)).collect()
    }

    fn descendants(&self, id: StageId) -> BTreeSet<StageId> {
        let mut found = BTreeSet::new();
        let mut last = BTreeSet::from([id]);
        while !last.is_empty() {
            let next: BTreeSet<StageId> = self
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
}
