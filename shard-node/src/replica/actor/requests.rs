//! Requests to a replica: messages of peers, commands, changes of members, and the order to retire.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use coppice_consensus::{Change as RaftChange, Error as ConsensusError, Message, Peer, RaftId};
use coppice_env::{
    Shortage,
    bug::{Bug, planted},
};
use coppice_proto::{
    convert,
    v1::{PeerMessage, peer_message::Body},
};
use coppice_types::{Digest, ErrorKind, Reason};
use opentelemetry::Context;

use super::{Actor, to_report};
use crate::{
    Error,
    limits::BUILT_MERGES_MAX,
    refusal::Refusal,
    replica::{
        input::{Answer, Change},
        machine::StateMachine,
        status::Member,
        trace::Way,
    },
};

/// Commands are refused while this many entries wait to be applied.
const BACKLOG_MAX: usize = 1024;

/// How many ticks a retiring leader waits for a successor.
const RETIRE_TICKS_MAX: u64 = 40;

impl<M: StateMachine> Actor<M> {
    pub(super) fn peer(&mut self, message: PeerMessage, node: &str) -> Result<(), Error> {
        let from = RaftId(message.from_raft_id);
        self.config.site.learn_node(from, node);
        self.fitness.note_other(from, message.unfit);
        match message.body {
            Some(Body::Raft(bytes)) => match Message::decode(&bytes) {
                // Raft would give a learner that asks for it its vote, and follow one that leads.
                Ok(message) if !self.may_send(from, &message) => {
                    tracing::warn!(from = from.0, node, kind = message.kind(), "a reader sent what only voters send");
                }
                Ok(message) if message.from() == from && message.to() == self.config.identity.raft_id => {
                    self.raft_message(message)?;
                }
                Ok(_) => tracing::warn!(from = from.0, node, "a message whose envelope names other replicas"),
                Err(error) => tracing::warn!(from = from.0, node, %error, "a message that cannot be read"),
            },
            // Reports on the group's state count only if they are from members.
            Some(Body::Digest(_) | Body::Merge(_)) if !self.members.contains(&from) => {
                tracing::debug!(from = from.0, node, "a report of a replica that is not in the group");
            }
            Some(Body::Digest(report)) => {
                let Some(digest) = Digest::from_slice(&report.digest) else { return Ok(()) };
                self.agreements.note_report(from, report.raft_index, digest);
                self.touched.insert(report.raft_index);
                if let (true, Some(own)) = (report.want_answer, self.agreements.own(report.raft_index)) {
                    self.send_to(from, Body::Digest(to_report(report.raft_index, own, false)));
                }
            }
            Some(Body::Merge(report)) => {
                // If a reader has the state machine now, a later report has the same merges.
                if let Some(mut machine) = self.shared.try_machine()
                    && let Some(machine) = machine.as_mut()
                {
                    let built = report.built.iter().take(BUILT_MERGES_MAX);
                    machine.note_built(from, built.filter_map(|merge| convert::merge(merge).ok()).collect());
                }
            }
            Some(Body::Sleep(sleep)) => self.rest_with(from, sleep),
            // The node took it.
            Some(Body::Beat(_)) => {}
            Some(Body::Refused(refused)) => self.refused(from, refused.snapshot_id),
            None => {}
        }
        Ok(())
    }

    /// Whether a replica may send a message: it is no reader, or the message is one of a learner. A
    /// voter whose node is wrongly named a reader keeps its vote.
    fn may_send(&self, from: RaftId, message: &Message) -> bool {
        let votes = self.voters.incoming.contains(&from) || self.voters.outgoing.contains(&from);
        votes || !self.config.site.is_reader(from) || message.is_from_listener(self.group.status().term)
    }

    /// Steps raft. If there is no room for entries, they are neither taken nor acknowledged, and
    /// the leader sends them again. Commands that make room may use the reserve.
    fn raft_message(&mut self, message: Message) -> Result<(), Error> {
        let (group, from) = (self.config.identity.group, message.from());
        let makes_room = message.proposals().any(|command| !M::grows(command));
        let bytes: usize = message.proposals().map(<[u8]>::len).sum();
        if bytes > 0 && !makes_room && !self.flushing.covers(bytes as u64)? {
            tracing::debug!(%group, %from, "entries are refused, because the reserve does not cover them");
            return Ok(());
        }
        let again = makes_room.then(|| message.clone());
        let mut stepped = self.group.step(message);
        if let Some(short_of) = stepped.as_ref().err().and_then(shortage) {
            self.flushing.note_shortage(short_of);
            if let (Shortage::Space, Some(message)) = (short_of, again) {
                self.flushing.release_reserve()?;
                stepped = self.group.step(message);
            }
        }
        if let Err(error) = stepped {
            tracing::debug!(%group, %from, %error, "a message was refused");
        }
        Ok(())
    }

    /// The refusal of a version during a shortage.
    fn shortage_refusal(&self, short_of: Shortage) -> Refusal {
        match (self.heir(), short_of) {
            (Some(_), _) => {
                Refusal::new(Reason::Unavailable, format!("{short_of}: another replica takes over, ask again"))
            }
            (None, Shortage::Space) => {
                Refusal::new(Reason::DiskFull, format!("{short_of}: reads, prune and rollback go on"))
            }
            (None, Shortage::Handles) => Refusal::new(Reason::Unavailable, format!("{short_of}: ask again")),
        }
    }

    fn not_leader(&self) -> Refusal {
        let leader = self.group.status().leader.filter(|leader| *leader != self.config.identity.raft_id);
        Refusal::not_leader(&leader.and_then(|leader| self.config.site.node_of(leader)).unwrap_or_default())
    }

    pub(super) fn propose(&mut self, command: Vec<u8>, answer: Answer<M::Reply>, sender: Context) -> Result<(), Error> {
        if answer.is_closed() {
            // The caller has gone. It repeats the command if it still needs it.
            return Ok(());
        }
        let grows = M::grows(&command);
        if grows && self.leading && self.flushing.short_of().is_none() {
            self.flushing.covers(command.len() as u64)?;
        }
        let short_of = self.flushing.short_of().filter(|_| grows);
        let admitted = match self.shared.read_machine().as_ref() {
            _ if !self.leading || self.retiring.is_some() => Err(self.not_leader()),
            None => Err(Refusal::new(Reason::Unavailable, "the leading replica does not serve")),
            Some(machine) => match short_of {
                Some(short_of) => Err(self.shortage_refusal(short_of)),
                None => machine.admit(&command),
            },
        };
        let refusal = if let Err(refusal) = admitted {
            refusal
        } else if self.backlog.len() >= BACKLOG_MAX || !self.waiters.has_room() {
            Refusal::new(Reason::ResourceExhausted, "too many commands wait for their outcome")
        } else {
            let command = Bytes::from(command);
            let mut proposed = self.group.propose(command.clone());
            if let Some(short_of) = proposed.as_ref().err().and_then(shortage) {
                self.flushing.note_shortage(short_of);
                if !grows && short_of == Shortage::Space {
                    self.flushing.release_reserve()?;
                    proposed = self.group.propose(command);
                }
            }
            match proposed {
                Ok(position) => {
                    self.shared.counts.proposals.fetch_add(1, Ordering::Relaxed);
                    let way = Way::begin(sender, self.config.identity.group, position.index);
                    self.waiters.command(position, answer, way);
                    return Ok(());
                }
                Err(error) => match shortage(&error) {
                    Some(short_of) => self.shortage_refusal(short_of),
                    None => self.refusal(&error),
                },
            }
        };
        // A caller that has gone needs no answer.
        drop(answer.send(Err(refusal)));
        Ok(())
    }

    fn refusal(&self, error: &ConsensusError) -> Refusal {
        match (error, error.kind()) {
            (ConsensusError::NotLeader { .. }, _) => self.not_leader(),
            (_, ErrorKind::Exhausted) => Refusal::new(Reason::ResourceExhausted, error.to_string()),
            (_, ErrorKind::Invalid | ErrorKind::Conflict) => Refusal::new(Reason::InvalidArgument, error.to_string()),
            _ => Refusal::new(Reason::Unavailable, error.to_string()),
        }
    }

    pub(super) fn change(&mut self, change: Change, answer: Answer<()>) {
        if !self.leading {
            drop(answer.send(Err(self.not_leader())));
            return;
        }
        let membership = self.group.status().membership;
        let done = match &change {
            Change::AddLearner(member) => membership.contains(member.raft_id),
            Change::Promote(id) => membership.is_voter(*id),
            Change::Remove(id) => !membership.contains(*id),
            Change::Lead(id) => *id == self.config.identity.raft_id,
        };
        if done && !membership.is_joint() {
            return drop(answer.send(Ok(())));
        }
        let change = match change {
            Change::AddLearner(Member { raft_id, node }) => {
                self.config.site.learn_node(raft_id, &node);
                RaftChange::AddLearner(raft_id)
            }
            Change::Promote(id) => match self.may_get_vote(id) {
                Ok(()) => RaftChange::Promote(id),
                Err(refusal) => return drop(answer.send(Err(refusal))),
            },
            Change::Remove(id) => RaftChange::Remove(id),
            Change::Lead(id) => {
                let asked = self.group.transfer_leader(id).map_err(|error| self.refusal(&error));
                return drop(answer.send(asked));
            }
        };
        match self.group.change_membership(&[change]) {
            Ok(position) => self.waiters.change(position, answer),
            Err(error) => drop(answer.send(Err(self.refusal(&error)))),
        }
    }

    /// Refuses to promote a reader, and a learner that has no state: it would only raise the
    /// majority that is needed. Raft itself checks how far the learner is behind.
    fn may_get_vote(&self, id: RaftId) -> Result<(), Refusal> {
        if self.config.site.is_reader(id) && !planted(Bug::ReaderPromoted) {
            return Err(Refusal::new(
                Reason::Unavailable,
                "the configuration names its node a reader, which never votes",
            ));
        }
        let status = self.group.status();
        match status.peers.iter().find(|peer| peer.id == id) {
            Some(peer) if peer.learner && (peer.matched == 0 || peer.snapshotting) => {
                Err(Refusal::new(Reason::Unavailable, "the learner has not taken in a snapshot yet"))
            }
            _ => Ok(()),
        }
    }

    /// Removes a learner that has been silent for long, if its node is not configured any more.
    pub(super) fn forget_the_gone(&mut self) {
        let (raft, site) = (self.group.status(), &self.config.site);
        let is_silent = |peer: &&Peer| peer.learner && !peer.active && site.node_at(peer.id.ordinal()).is_none();
        let silent = raft.peers.iter().filter(is_silent).map(|peer| peer.id).collect();
        let Some(id) = self.gone.note(&silent, self.now()) else { return };
        match self.group.change_membership(&[RaftChange::Remove(id)]) {
            Ok(_) => {
                tracing::info!(group = %self.config.identity.group, %id, "a learner whose node is not configured leaves");
            }
            // The next look tries again.
            Err(error) => tracing::debug!(%id, %error, "a learner that is gone can't leave yet"),
        }
    }

    /// Hands leadership over, if `hand_over` is set and there is an heir. The replica ends when it
    /// follows another leader, or has waited long enough.
    pub(super) fn retire(&mut self, hand_over: bool, answer: Answer<()>) {
        let patience = match self.any_heir() {
            Some(heir) if self.leading && hand_over => match self.group.transfer_leader(heir) {
                Ok(()) => RETIRE_TICKS_MAX,
                Err(error) => {
                    tracing::debug!(%error, "leadership could not be handed over");
                    0
                }
            },
            _ => 0,
        };
        self.retiring = Some((self.ticks + patience, answer));
    }
}

/// The resource that the storage is short of; `None` if one of raft's own bounds is reached.
fn shortage(error: &ConsensusError) -> Option<Shortage> {
    Shortage::behind(error)
}
