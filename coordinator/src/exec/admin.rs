//! Rollbacks, prunes and key changes: headers like commits, and the first two executed by every shard before it serves anything newer (PROTOCOL 8).
//!
//! A rollback stops at one of these places: before the header is in the log nothing has happened, and the fences are
//! lifted by name, or by the next `TakeOver`; once it is in the log it is decided, and a shard that did not execute it
//! yet says so (`MISSED_ADMIN`) to the next message and is given it then.

use std::collections::BTreeSet;

use coppice_process::access::Caller;
use coppice_proto::{status, v1};
use coppice_types::{Reason, Sequence, ShardId, Stamp, Version, text::control_in};
use coppice_verify::{
    header::Body,
    keys::{KEY_CHANGES_MAX, KeyChange},
    principal::CLAIM_BYTES_MAX,
};
use futures::future::join_all;
use tokio::{sync::oneshot, time::Instant};
use tonic::Status;

use super::{
    answer::{check_expected_head, open_outcome},
    keys::PublicKey,
    root::Decision,
    sequencer::{Exit, Sequencer, not_committed},
    standing::Link,
    wire,
};
use crate::plan::{Admin, Commit, Leaves, Refusal, resolve};

/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 1024;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Head becomes the state of this version.
    Rollback(Version),
    /// Versions below this one can no longer be read.
    Prune(Version),
    /// This key signs checkpoints from now on.
    Key(PublicKey),
}

/// A rollback, prune or key change that waits; its texts are within their limits.
#[derive(Debug)]
pub struct AdminRequest {
    pub wanted: Wanted,
    pub principal: String,
    pub reason: String,
    pub expected_head: Option<v1::Stamp>,
    pub reply: oneshot::Sender<Result<v1::AdminResponse, Status>>,
}

impl Sequencer {
    /// Performs a rollback, prune or key change; no version is under way.
    pub async fn on_admin(&mut self, request: AdminRequest) -> Result<(), Exit> {
        assert!(self.in_flight.is_none(), "the pipeline is drained first");
        if request.reply.is_closed() {
            // Its caller gave up before it began, and may have thought better of it.
            return Ok(());
        }
        let answer = self.administer(&request).await;
        let (answer, exit) = match answer {
            Ok(answer) => (Ok(answer), Ok(())),
            Err(Failure::Refused(error)) => (Err(error), Ok(())),
            Err(Failure::Over(error, exit)) => (Err(error), Err(exit)),
        };
        // A caller that has gone needs no answer: the log tells what happened.
        let _ = request.reply.send(answer);
        exit
    }

    async fn administer(&mut self, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        // The view also shows that this leader's term is in force: a refusal is an answer.
        let view = self.context.view().await.map_err(Failure::Refused)?;
        if view.term != self.term {
            return Err(Failure::Over(not_committed(), Exit::Deposed));
        }
        check_expected_head(request.expected_head, view.head())?;
        self.boundary = view.boundary;
        match request.wanted {
            Wanted::Rollback(to) => self.roll_back(to, request).await,
            Wanted::Prune(before) => {
                check_pin(view.oldest_pin.as_ref(), before)?;
                self.prune(before, request).await
            }
            Wanted::Key(key) => self.rotate_key(&key, request).await,
        }
    }

    async fn roll_back(&mut self, to: Version, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        let head = self.decided.header.stamp;
        let at = Stamp { epoch: head.epoch, version: to };
        let target = match resolve(Some(at), true, &self.decided.epochs, head, self.boundary) {
            Ok(target) => target,
            // The root group knows whether a version above head was there and is gone.
            Err(refusal) if refusal.reason == Reason::NotYet => {
                let read = v1::VersionRead { version: to.0, epoch: None };
                let asked = self.context.root.read(v1::read_root_request::Read::Version(read)).await;
                return Err(asked.err().map_or(refusal.into(), Failure::Refused));
            }
            Err(refusal) => return Err(refusal.into()),
        };
        if to == head.version {
            return Err(Refusal::invalid(format!("head is version {to} already")).into());
        }
        let (leaves, target_sequence) = self.version_leaves(target).await?;
        self.drop_stages("a rollback");
        let deadline = Instant::now() + self.context.limits.admin_timeout;
        self.fence(target.version, deadline).await?;
        let admin = Admin::Rollback { target, leaves: leaves.clone() };
        let commit = self.decided.admin(&admin, &request.principal, &request.reason, self.context.clock.wall_ms());
        let newest = self.decided.leaves.clone();
        let answer = self.append_admin(commit).await?;
        self.sessions.roll_back(target_sequence);
        self.forget_finalized(target_sequence);
        let operation = v1::execute_command::Operation::RollbackTo(wire::stamp_out(target));
        // All were fenced, so all answer.
        let shards = self.links.keys().copied().collect();
        self.execute(&shards, operation, (&leaves, &newest), deadline).await;
        self.context.metrics.administered("rollback");
        Ok(answer)
    }

    async fn prune(&mut self, boundary: Version, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        let head = self.decided.header.stamp;
        let at = Stamp { epoch: head.epoch, version: boundary };
        let stamp = resolve(Some(at), true, &self.decided.epochs, head, self.boundary)?;
        if boundary == self.boundary {
            return Err(Refusal::invalid(format!("the pruned boundary is {boundary} already")).into());
        }
        let (leaves, _) = self.version_leaves(stamp).await?;
        let admin = Admin::Prune { boundary };
        let commit = self.decided.admin(&admin, &request.principal, &request.reason, self.context.clock.wall_ms());
        let newest = self.decided.leaves.clone();
        let old_boundary = std::mem::replace(&mut self.boundary, boundary);
        let answer = self.append_admin(commit).await.inspect_err(|_| self.boundary = old_boundary)?;
        let operation = v1::execute_command::Operation::PruneBefore(boundary.0);
        // It takes no longer than a prepare, and commits wait for it.
        let deadline = Instant::now() + self.context.limits.prepare_timeout;
        self.execute(&self.standing(Link::Up), operation, (&leaves, &newest), deadline).await;
        self.context.metrics.administered("prune");
        Ok(answer)
    }

    /// The key changes with the header, whose own checkpoint the new one signs. Shards need not know.
    async fn rotate_key(&mut self, key: &PublicKey, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        let keys = self.context.keys.clone();
        let current = keys.signer(u64::MAX)?;
        if current.verifier().public_key() == *key {
            return Err(Refusal::invalid("it is the ledger's key already").into());
        }
        let missing = "the leading coordinator has no such key: name its file as next_signing_key_file of every coordinator, \
                       start them again one after the other, and repeat this";
        let new = keys.own(key).ok_or_else(|| Refusal::new(Reason::PreconditionFailed, missing.to_owned()))?;
        if keys.changes() >= KEY_CHANGES_MAX {
            return Err(Refusal::invalid(format!("a ledger's key changes at most {KEY_CHANGES_MAX} times")).into());
        }
        let number = u32::try_from(keys.changes() + 1).expect("key changes are few");
        let change = KeyChange {
            principal: request.principal.clone(),
            reason: request.reason.clone(),
            ..KeyChange::sign(number, &self.decided.header.cluster, current, new)
        };
        let commit = self.decided.change_key(change, self.context.clock.wall_ms());
        let answer = self.append_admin(commit).await?;
        tracing::info!(key = keys.current(), "the ledger's key was changed");
        self.context.metrics.administered("rotate_key");
        Ok(answer)
    }

    /// State leaves of a version that stands, and the sequence of its header.
    async fn version_leaves(&self, stamp: Stamp) -> Result<(Leaves, Sequence), Failure> {
        let read = v1::VersionRead { version: stamp.version.0, epoch: Some(stamp.epoch.0) };
        let answer = self.context.root.read(v1::read_root_request::Read::Version(read)).await;
        let answer = answer.map_err(Failure::Refused)?;
        let leaves = self.context.attested.leaves(stamp, &answer).map_err(Failure::Refused)?;
        Ok((leaves, Sequence(answer.header_sequence)))
    }

    /// Fences every shard; lifts the fences again if one of them does not answer.
    async fn fence(&mut self, target: Version, deadline: Instant) -> Result<(), Failure> {
        use v1::shard_command_request::Command as Wire;
        self.attempt += 1;
        let attempt = self.attempt;
        let next_epoch = self.decided.header.stamp.epoch.next().0;
        let fence = Wire::Fence(v1::FenceCommand { attempt, next_epoch, target_version: target.0 });
        let Some(error) = self.tell_all(&fence, deadline).await else { return Ok(()) };
        let until = Instant::now() + self.context.limits.prepare_timeout;
        let lifted = self.tell_all(&Wire::Unfence(v1::UnfenceCommand { attempt }), until).await;
        let refusal = status::refuse(
            Reason::Unavailable,
            format!("nothing was rolled back: a shard could not be fenced: {}", error.message()),
        );
        match lifted {
            None => Err(Failure::Refused(refusal)),
            // The fence that may be left is lifted by the adoption of the next term.
            Some(_) => Err(Failure::Over(refusal, Exit::Reset("a fence could not be lifted".to_owned()))),
        }
    }

    /// Sends a command to all shards; gives one of the errors.
    async fn tell_all(&self, command: &v1::shard_command_request::Command, deadline: Instant) -> Option<Status> {
        let calls = self.links.keys().map(|&shard| {
            let (context, command) = (self.shard_context(shard), command.clone());
            async move { self.context.shards.command(shard, &context, command, deadline).await }
        });
        join_all(calls).await.into_iter().find_map(Result::err)
    }

    /// Decides the header: from here on the operation has happened.
    async fn append_admin(&mut self, commit: Commit) -> Result<v1::AdminResponse, Failure> {
        match self.context.root.append(&commit, self.term).await {
            Decision::Committed { size, root, .. } => {
                let header = commit.header.clone();
                let head = commit.tail.header.stamp;
                let signed = self.context.signed_at(size, root).await;
                self.on_committed(commit.tail, Vec::new());
                Ok(v1::AdminResponse {
                    header: header.into(),
                    head: Some(wire::stamp_out(head)),
                    pruned_boundary: self.boundary.0,
                    checkpoint: signed.map_err(Failure::Refused)?,
                })
            }
            Decision::Deposed => Err(Failure::Over(not_committed(), Exit::Deposed)),
            Decision::Unconfirmed => {
                let exit = Exit::Reset("no majority of the root group confirms a header".to_owned());
                Err(Failure::Over(open_outcome(), exit))
            }
            // Set since the view was taken: nothing else is wrong with the header.
            Decision::Refused(error) if status::reason(&error) == Some(Reason::Pinned) => Err(Failure::Refused(error)),
            // A key of before, as only the root group knows: nothing else is wrong with the header.
            Decision::Refused(error) if matches!(commit.tail.header.body, Body::Key(_)) => Err(Failure::Refused(error)),
            Decision::Refused(error) => {
                let exit = Exit::Reset(format!("the root group refused a header: {error}"));
                Err(Failure::Over(error, exit))
            }
        }
    }

    /// Has shards execute the newest operation. It is decided, so those that don't answer are told with their next adoption.
    async fn execute(
        &mut self,
        those: &BTreeSet<ShardId>,
        operation: v1::execute_command::Operation,
        (boundary, newest): (&Leaves, &Leaves),
        deadline: Instant,
    ) {
        let state = |of: &Leaves, shard: ShardId| of.state(shard).map(wire::state_out);
        let (admin_sequence, epoch) = (self.decided.header.admin_sequence, self.decided.header.stamp.epoch.0);
        let shards = &self.context.shards;
        let calls = those.iter().map(|&shard| {
            let command = v1::shard_command_request::Command::Execute(v1::ExecuteCommand {
                admin_sequence,
                operation: Some(operation),
                epoch,
                boundary: state(boundary, shard),
                newest: state(newest, shard),
            });
            let context = self.shard_context(shard);
            async move { (shard, shards.command(shard, &context, command, deadline).await) }
        });
        for (shard, answer) in join_all(calls).await {
            let link = self.links.get_mut(&shard).expect("the shard is one of the links");
            match answer {
                Ok(_) => {
                    // What the forest looks like now is told by the finalize that follows.
                    link.told = None;
                    link.shape_of = None;
                }
                Err(error) => {
                    tracing::warn!(%shard, %error, "a shard has not executed an operation of the root log yet");
                    link.link = Link::Down;
                }
            }
        }
        self.settle_shapes().await;
    }

    /// Learns the shape of every forest after an operation that changed it.
    async fn settle_shapes(&mut self) {
        let deadline = Instant::now() + self.context.limits.prepare_timeout;
        let finalize = v1::shard_command_request::Command::Finalize(v1::FinalizeCommand {});
        let up: Vec<ShardId> = self.standing(Link::Up).into_iter().collect();
        let shards = &self.context.shards;
        let calls = up.iter().map(|&shard| {
            let (context, command) = (self.shard_context(shard), finalize.clone());
            async move { (shard, shards.command(shard, &context, command, deadline).await) }
        });
        for (shard, answer) in join_all(calls).await {
            let told = self.decided.leaves.state(shard);
            let link = self.links.get_mut(&shard).expect("the shard is one of the links");
            let shape = answer.and_then(|answer| super::shards::Shape::read(answer.shape.as_ref()));
            match shape {
                Ok(shape) => {
                    link.shape = shape;
                    link.shape_of = told;
                    link.told = told;
                }
                Err(error) => {
                    tracing::warn!(%shard, %error, "a shard does not answer");
                    link.link = Link::Down;
                }
            }
        }
    }
}

/// How an operation failed.
enum Failure {
    /// Nothing happened; the leader goes on.
    Refused(Status),
    /// The leader can't go on.
    Over(Status, Exit),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

/// A prune up to the version that the oldest pin holds is allowed, and not beyond.
fn check_pin(oldest: Option<&v1::VersionPin>, boundary: Version) -> Result<(), Refusal> {
    match oldest {
        Some(pin) if pin.version < boundary.0 => {
            let id = hex(&pin.id);
            let message = format!("version {} is pinned by {id} until {} ms", pin.version, pin.expires_ms);
            Err(Refusal::new(Reason::Pinned, message))
        }
        _ => Ok(()),
    }
}

/// An id in hex; a longer one than any has is cut.
pub fn hex(id: &[u8]) -> String {
    id.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Who asks for an operation, and why: texts that a header may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub principal: String,
    pub reason: String,
}

impl Asked {
    /// Checks the texts of a request before it waits: they are there, none takes more of the queue than its limit, and they are shown as they
    /// are. The principal becomes the authenticated name, with the claim beside it.
    ///
    /// # Errors
    /// `LIMIT_EXCEEDED` for a text that is too long, `INVALID_ARGUMENT` for one that is missing or has hidden characters.
    pub fn check(caller: &Caller, claim: &str, reason: String) -> Result<Self, Refusal> {
        let texts = [
            ("principal", "principal_bytes_max", CLAIM_BYTES_MAX, claim),
            ("reason", "reason_bytes_max", REASON_BYTES_MAX, &reason),
        ];
        for (name, limit, allowed, text) in texts {
            if text.len() > allowed {
                return Err(Refusal::over_limit(limit, allowed as u64, text.len() as u64));
            }
            if text.trim().is_empty() {
                return Err(Refusal::invalid(format!("{name} is missing: the root log records who asked, and why")));
            }
            if let Some((at, c)) = control_in(text) {
                let message =
                    format!("{name} has a character that is not shown as itself at byte {at}: {}", c.escape_unicode());
                return Err(Refusal::invalid(message));
            }
        }
        let over = || {
            let message = format!(
                "principal has more than {CLAIM_BYTES_MAX} bytes with a backslash before each quote and backslash"
            );
            Refusal::new(Reason::LimitExceeded, message)
        };
        Ok(Self { principal: caller.says(claim).ok_or_else(over)?, reason })
    }
}
