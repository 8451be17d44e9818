//! The leader's background questions to shards: adoptions, finalizes of states that were decided a
//! while ago, and polls for built merges.

use std::{collections::BTreeSet, time::Duration};

use coppice_proto::v1;
use coppice_types::ShardId;
use tokio::time::Instant;

use super::{POLL, Sequencer};
use crate::write::{command::Exit, shard_links::Event};

/// How long one background question may take.
const PROBE: Duration = Duration::from_secs(2);

impl Sequencer {
    /// Starts the background questions that are due: adopts shards that are not up, finalizes
    /// states that were decided a while ago, polls shards that batches wait for, until a merge is
    /// built.
    pub(super) fn ask_shards(&mut self) {
        let full = if self.waiting.is_empty() { BTreeSet::new() } else { self.full() };
        let due = self.head.decided_at() + self.resources.limits.finalize_after <= Instant::now();
        let untold: BTreeSet<ShardId> = if due { self.untold().collect() } else { BTreeSet::new() };
        for shard in self.links.begin_questions(|shard| full.contains(&shard) || untold.contains(&shard)) {
            self.ask_shard(shard, !self.links.is_up(shard));
        }
    }

    /// Asks some shards for the shapes of their forests, and takes over the next answer.
    pub(super) async fn poll_shapes(&mut self, shards: &BTreeSet<ShardId>) -> Result<(), Exit> {
        tokio::time::sleep(POLL).await;
        for &shard in shards {
            if self.links.begin_question(shard) {
                self.ask_shard(shard, false);
            }
        }
        let event = self.links.next_event().await;
        self.on_event(event)
    }

    fn ask_shard(&self, shard: ShardId, adopt: bool) {
        use v1::shard_command_request::Command as Wire;
        let command = if adopt { Wire::Adopt(v1::AdoptCommand {}) } else { Wire::Finalize(v1::FinalizeCommand {}) };
        let told = self.head.decided().leaves.state(shard).expect("every shard has a leaf");
        let (context, shards) = (self.head.shard_context(shard), self.resources.shards.clone());
        let events = self.links.events_in();
        tokio::spawn(async move {
            let answer = shards.command(shard, &context, command, Instant::now() + PROBE).await;
            // The sequencer may have ended.
            let _ = events.send(Event { shard, told, answer }).await;
        });
    }

    /// Takes over a shard's answer to a background question.
    pub(super) fn on_event(&mut self, event: Event) -> Result<(), Exit> {
        let tip = self.head.tip().leaves.state(event.shard);
        self.links.note(event, tip)
    }
}
