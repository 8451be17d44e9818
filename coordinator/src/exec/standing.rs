//! How the leader stands with each shard, and the questions that it asks in the background: adoptions, finalizes of what
//! was decided a while ago, and whether a merge is built. Each shard has at most one such question under way.

use std::{collections::BTreeSet, time::Duration};

use coppice_proto::v1;
use coppice_types::ShardId;
use tokio::time::Instant;
use tonic::Status;

use super::{
    sequencer::{Exit, POLL, Sequencer, is_stale},
    shards::Shape,
    wire,
};
use crate::plan::ShardState;

/// How long a shard that did not answer is left alone.
const PAUSE: Duration = Duration::from_millis(200);
/// How long one question to a shard in the background may take.
const PROBE: Duration = Duration::from_secs(2);

/// How the leader stands with one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Its adoption is under way.
    Starting,
    /// It answers.
    Up,
    /// It did not answer in time: its batches are refused until it does.
    Down,
}

/// What the leader knows of one shard.
#[derive(Debug)]
pub struct ShardLink {
    /// How it stands.
    pub link: Link,
    /// Its forest at `shape_of`.
    pub shape: Shape,
    /// The state that the shape is of.
    pub shape_of: Option<ShardState>,
    /// The decided state that it was told last.
    pub told: Option<ShardState>,
    /// A question in the background is under way.
    pub busy: bool,
    /// It is not asked before.
    pub ask_at: Instant,
}

/// A background question's answer.
pub struct Event {
    pub shard: ShardId,
    pub told: ShardState,
    pub answer: Result<v1::ShardCommandResponse, Status>,
}

impl Sequencer {
    /// Asks shards in the background: adopts those that are not up, finalizes what was decided a while ago, polls those
    /// that wait for a merge.
    pub fn ask_shards(&mut self) {
        let full = if self.waiting.is_empty() { BTreeSet::new() } else { self.full() };
        let due = self.decided_at + self.context.limits.finalize_after <= Instant::now();
        let untold: BTreeSet<ShardId> = if due { self.untold().collect() } else { BTreeSet::new() };
        let shards: Vec<ShardId> = self.links.keys().copied().collect();
        for shard in shards {
            let link = self.links.get_mut(&shard).expect("the shard is one of the links");
            let wanted = link.link != Link::Up || full.contains(&shard) || untold.contains(&shard);
            if link.busy || !wanted || link.ask_at > Instant::now() {
                continue;
            }
            link.busy = true;
            let adopt = link.link != Link::Up;
            self.ask_shard(shard, adopt);
        }
    }

    /// Learns once more what the forests of some shards look like.
    pub async fn poll_shapes(&mut self, shards: &BTreeSet<ShardId>) -> Result<(), Exit> {
        tokio::time::sleep(POLL).await;
        for &shard in shards {
            let link = self.links.get_mut(&shard).expect("the shard is one of the links");
            if !std::mem::replace(&mut link.busy, true) {
                self.ask_shard(shard, false);
            }
        }
        let event = self.events.recv().await.expect("the sequencer keeps a sender");
        self.on_event(event)
    }

    fn ask_shard(&self, shard: ShardId, adopt: bool) {
        use v1::shard_command_request::Command as Wire;
        let command = if adopt { Wire::Adopt(v1::AdoptCommand {}) } else { Wire::Finalize(v1::FinalizeCommand {}) };
        let told = self.decided.leaves.state(shard).expect("every shard has a leaf");
        let (context, shards) = (self.shard_context(shard), self.context.shards.clone());
        let events = self.events_in.clone();
        tokio::spawn(async move {
            let answer = shards.command(shard, &context, command, Instant::now() + PROBE).await;
            // The sequencer may have ended.
            let _ = events.send(Event { shard, told, answer }).await;
        });
    }

    /// Notes what a shard answered in the background.
    pub fn on_event(&mut self, event: Event) -> Result<(), Exit> {
        let tip = self.tip().leaves.state(event.shard);
        let link = self.links.get_mut(&event.shard).expect("events come of shards that were asked");
        link.busy = false;
        match event.answer {
            Ok(answer) => {
                let state = wire::state_in(answer.decided).map_err(|error| Exit::Reset(error.to_string()))?;
                if link.link != Link::Up || Some(state) == tip {
                    link.shape = Shape::read(answer.shape.as_ref()).map_err(|error| Exit::Reset(error.to_string()))?;
                    link.shape_of = Some(state);
                }
                link.link = Link::Up;
                link.told = Some(event.told);
                Ok(())
            }
            Err(error) if is_stale(&error) => Err(Exit::Deposed),
            Err(error) => {
                if link.link == Link::Starting {
                    link.link = Link::Down;
                }
                link.ask_at = Instant::now() + PAUSE;
                tracing::warn!(shard = %event.shard, %error, "a shard does not answer");
                Ok(())
            }
        }
    }
}
