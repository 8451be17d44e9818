//! The leader's view of each shard: whether it answers, the shape of its forest, and the decided
//! state that it was told.
//!
//! Invariants: each shard has at most one background question under way, so the channel of answers
//! never fills; a merge is installable only on the state that the shard reported it for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use coppice_proto::{convert, v1};
use coppice_types::{MergeName, Params, ShardId, ShardState};
use tokio::{sync::mpsc, time::Instant};
use tonic::Status;

use super::command::{Exit, is_stale};
use crate::{
    groups::{
        shards::Shape,
        wire::{self, Digests},
    },
    plan::Leaves,
};

/// How long a shard that did not answer is left alone.
const PAUSE: Duration = Duration::from_millis(200);

/// Whether a shard serves the leader's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The shard's adoption is under way.
    Starting,
    /// The shard answers.
    Up,
    /// The shard did not answer in time. Its batches are refused until it does.
    Down,
}

#[derive(Debug)]
struct ShardLink {
    standing: Standing,
    /// The shard's forest at `shape_of`.
    shape: Shape,
    /// The state that `shape` describes; `None` if the shape is not known.
    shape_of: Option<ShardState>,
    /// The newest decided state that the shard was told.
    told: Option<ShardState>,
    /// A background question is under way.
    busy: bool,
    /// The next background question comes no earlier.
    ask_at: Instant,
}

/// The answer to a background question.
#[derive(Debug)]
pub struct Event {
    pub shard: ShardId,
    /// The decided state that the question told the shard.
    pub told: ShardState,
    pub answer: Result<v1::ShardCommandResponse, Status>,
}

/// The answers of all shards that a version touches.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The name of the prepares.
    pub attempt: u64,
    /// The digest of each shard's new forest.
    pub digests: Digests,
    /// The shape of each shard's new forest.
    pub shapes: BTreeMap<ShardId, Shape>,
}

/// The links to all shards.
#[derive(Debug)]
pub struct ShardLinks {
    links: BTreeMap<ShardId, ShardLink>,
    events: mpsc::Receiver<Event>,
    events_in: mpsc::Sender<Event>,
}

impl ShardLinks {
    /// Links to these shards, none of which is adopted yet.
    pub fn new(shards: impl Iterator<Item = ShardId>) -> Self {
        let link = || ShardLink {
            standing: Standing::Starting,
            shape: Shape::default(),
            shape_of: None,
            told: None,
            busy: false,
            ask_at: Instant::now(),
        };
        let links: BTreeMap<_, _> = shards.map(|shard| (shard, link())).collect();
        let (events_in, events) = mpsc::channel(links.len());
        Self { links, events, events_in }
    }

    fn link(&mut self, shard: ShardId) -> &mut ShardLink {
        self.links.get_mut(&shard).expect("every shard of the map has a link")
    }

    /// All shards, in ascending order.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.links.keys().copied()
    }

    /// The shards with this standing.
    pub fn with(&self, standing: Standing) -> BTreeSet<ShardId> {
        self.links.iter().filter(|(_, link)| link.standing == standing).map(|(shard, _)| *shard).collect()
    }

    pub fn is_up(&self, shard: ShardId) -> bool {
        self.links[&shard].standing == Standing::Up
    }

    pub fn all_up(&self) -> bool {
        self.links.values().all(|link| link.standing == Standing::Up)
    }

    /// The shards that were not told their decided state.
    pub fn untold(&self, decided: &Leaves) -> impl Iterator<Item = ShardId> {
        self.links.iter().filter(|(shard, link)| link.told != decided.state(**shard)).map(|(shard, _)| *shard)
    }

    /// A shard's newest known shape, and the state that it describes.
    pub fn shape(&self, shard: ShardId) -> (Option<ShardState>, &Shape) {
        let link = &self.links[&shard];
        (link.shape_of, &link.shape)
    }

    /// The shards that can't take writes on `tip` until a merge is installed.
    pub fn full(&self, tip: &Leaves, params: &Params) -> BTreeSet<ShardId> {
        let is_full = |(shard, link): &(&ShardId, &ShardLink)| {
            let installable = link.shape_of == tip.state(**shard);
            link.shape.is_full(params.capacity, params.tree_limit, installable)
        };
        self.links.iter().filter(is_full).map(|(shard, _)| *shard).collect()
    }

    /// Number of keys that further versions may erase in each shard.
    pub fn erasures_left(&self) -> BTreeMap<ShardId, u64> {
        self.links.iter().map(|(shard, link)| (*shard, link.shape.erasures_left)).collect()
    }

    /// The merges that can be installed on `tip`.
    pub fn merges(&self, tip: &Leaves) -> BTreeMap<ShardId, MergeName> {
        let installable = |(shard, link): (&ShardId, &ShardLink)| {
            let merge = link.shape.ready.first().filter(|_| link.shape_of == tip.state(*shard))?;
            Some((*shard, merge.clone()))
        };
        self.links.iter().filter_map(installable).collect()
    }

    pub fn set_down(&mut self, shard: ShardId) {
        self.link(shard).standing = Standing::Down;
    }

    /// Notes the shape of a shard's forest at a state.
    pub fn set_shape(&mut self, shard: ShardId, shape: Shape, of: Option<ShardState>) {
        let link = self.link(shard);
        link.shape = shape;
        link.shape_of = of;
    }

    /// Notes the decided state that a shard was told.
    pub fn set_told(&mut self, shard: ShardId, told: Option<ShardState>) {
        self.link(shard).told = told;
    }

    /// Forgets the told state and the shape of a shard, since an operation changed both.
    pub fn forget(&mut self, shard: ShardId) {
        let link = self.link(shard);
        link.told = None;
        link.shape_of = None;
    }

    /// Notes that a background question to the shard begins. Returns false if one is under way.
    pub fn begin_question(&mut self, shard: ShardId) -> bool {
        !std::mem::replace(&mut self.link(shard).busy, true)
    }

    /// Begins background questions to the shards that are due for one: those that are not up, and
    /// those that are `wanted`.
    pub fn begin_questions(&mut self, wanted: impl Fn(ShardId) -> bool) -> Vec<ShardId> {
        let now = Instant::now();
        let due = |(shard, link): &(&ShardId, &mut ShardLink)| {
            !link.busy && link.ask_at <= now && (link.standing != Standing::Up || wanted(**shard))
        };
        let begin = |(shard, link): (&ShardId, &mut ShardLink)| {
            link.busy = true;
            *shard
        };
        self.links.iter_mut().filter(due).map(begin).collect()
    }

    /// The channel for the answers to background questions.
    pub fn events_in(&self) -> mpsc::Sender<Event> {
        self.events_in.clone()
    }

    /// Waits for the next answer to a background question, or for ever if there is none.
    pub async fn next_event(&mut self) -> Event {
        self.events.recv().await.expect("the links keep a sender")
    }

    /// An answer that has already arrived.
    pub fn ready_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Takes over a shard's answer to a background question. `tip` is the shard's newest state,
    /// decided or not.
    ///
    /// # Errors
    /// If the leader can't continue: another term began, or the answer does not parse.
    pub fn note(&mut self, Event { shard, told, answer }: Event, tip: Option<ShardState>) -> Result<(), Exit> {
        let link = self.link(shard);
        link.busy = false;
        match answer {
            Ok(answer) => {
                let state = wire::read(convert::state(answer.decided.as_ref(), "decided"))
                    .map_err(|error| Exit::Reset(error.to_string()))?;
                if link.standing != Standing::Up || Some(state) == tip {
                    link.shape = Shape::read(answer.shape.as_ref()).map_err(|error| Exit::Reset(error.to_string()))?;
                    link.shape_of = Some(state);
                }
                link.standing = Standing::Up;
                link.told = Some(told);
                Ok(())
            }
            Err(error) if is_stale(&error) => Err(Exit::Deposed),
            Err(error) => {
                if link.standing == Standing::Starting {
                    link.standing = Standing::Down;
                }
                link.ask_at = Instant::now() + PAUSE;
                tracing::warn!(%shard, %error, "a shard does not answer");
                Ok(())
            }
        }
    }
}
