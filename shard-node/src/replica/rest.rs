//! Whether a replica sleeps, and for how long it has had nothing to do.

use coppice_consensus::{Heartbeat, Message};
use coppice_proto::v1::{PeerMessage, peer_message::Body};

use super::{input::Input, machine::StateMachine};

/// A replica's way to sleep.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub asleep: bool,
    /// Ticks since the replica last had something to do.
    pub quiet_ticks: u64,
    /// The tick from which a leader may try to fall asleep.
    pub next_try: u64,
}

impl Rest {
    /// Notes an input. Heartbeats and their answers are no work.
    pub fn note<M: StateMachine>(&mut self, input: &Input<M>) {
        if !matches!(input, Input::Peer(message, _) if beat(message).is_some()) {
            self.quiet_ticks = 0;
        }
    }
}

/// The part of a heartbeat that a message is; `None` for any other message.
pub(super) fn beat(message: &PeerMessage) -> Option<Heartbeat> {
    match &message.body {
        Some(Body::Raft(bytes)) => Message::heartbeat(bytes),
        _ => None,
    }
}
