//! Rollbacks, prunes, key changes and anchors (PROTOCOL 8). They are headers like commits. Every
//! shard executes rollbacks and prunes before it serves anything newer.
//!
//! If a rollback stops before its header is in the log, nothing has happened; the fences are lifted
//! by name, or by the next `TakeOver`. Once the header is in the log, the rollback is decided. A
//! shard that has not executed it answers the next message with `MISSED_ADMIN`, and is sent the
//! operation then.

use std::collections::BTreeSet;

use coppice_env::bug::{Bug, planted};
use coppice_proto::{convert, status, v1};
use coppice_types::{Reason, Sequence, ShardId, Stamp, Version};
use coppice_verify::{
    anchor::Stamps,
    header::Body,
    keys::{KEY_CHANGES_MAX, KeyChange},
};
use futures::future::join_all;
use tokio::time::Instant;
use tonic::Status;

use super::Sequencer;
use crate::{
    groups::{keys::PublicKey, root::Decision, shards::Shape},
    plan::{Admin, Commit, Leaves, Refusal, resolve},
    write::{
        answer::open_outcome,
        command::{AdminRequest, Exit, Wanted, hex, not_committed},
        shard_links::Standing,
    },
};

impl Sequencer {
    /// Performs a rollback, prune or key change, or keeps an anchor. No version may be under way.
    pub(super) async fn on_admin(&mut self, request: AdminRequest) -> Result<(), Exit> {
        assert!(self.head.is_settled(), "the pipeline is drained first");
        if request.reply.is_closed() {
            // The caller gave up before the operation began, and may have changed its mind.
            return Ok(());
        }
        let answer = self.administer(&request).await;
        let (answer, exit) = match answer {
            Ok(answer) => (Ok(answer), Ok(())),
            Err(Failure::Refused(error)) => (Err(error), Ok(())),
            Err(Failure::Over(error, exit)) => (Err(error), Err(exit)),
        };
        // A caller that has gone needs no answer: the log shows the outcome.
        let _ = request.reply.send(answer);
        exit
    }

    async fn administer(&mut self, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        // The view also shows that this leader's term is in force, so a refusal may be answered.
        let view = self.resources.log.view().await.map_err(Failure::Refused)?;
        if view.term != self.head.term() {
            return Err(Failure::Over(not_committed(), Exit::Deposed));
        }
        check_expected_head(request.expected_head, view.head())?;
        self.boundary = view.boundary;
        match &request.wanted {
            &Wanted::Rollback(to) => {
                check_floor(view.ledger_floor, to)?;
                self.roll_back(to, request).await
            }
            &Wanted::Prune(before) => {
                check_pin(view.oldest_pin.as_ref(), before)?;
                self.prune(before, request).await
            }
            Wanted::Key(key) => self.rotate_key(key, request).await,
            Wanted::Anchor(stamps) => self.anchor(stamps).await,
        }
    }

    async fn roll_back(&mut self, to: Version, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        let head = self.head.stamp();
        let at = Stamp { epoch: head.epoch, version: to };
        let target = match resolve(Some(at), true, &self.head.decided().epochs, head, self.boundary) {
            Ok(target) => target,
            // Only the root group knows whether a version above head existed and was rolled back.
            Err(refusal) if refusal.reason == Reason::NotYet => {
                let read = v1::VersionRead { version: to.0, epoch: None, header_only: false };
                let asked = self.resources.log.root.read(v1::read_root_request::Read::Version(read)).await;
                return Err(asked.err().map_or(refusal.into(), Failure::Refused));
            }
            Err(refusal) => return Err(refusal.into()),
        };
        if to == head.version {
            return Err(Refusal::invalid(format!("head is version {to} already")).into());
        }
        let (leaves, target_sequence) = self.version_leaves(target).await?;
        self.drop_stages("a rollback");
        let deadline = Instant::now() + self.resources.limits.admin_timeout;
        self.fence(target.version, deadline).await?;
        let admin = Admin::Rollback { target, leaves: leaves.clone() };
        let commit =
            self.head.decided().admin(&admin, &request.principal, &request.reason, self.resources.clock.wall_ms());
        let newest = self.head.decided().leaves.clone();
        let answer = self.append_admin(commit).await?;
        self.sessions.roll_back(target_sequence);
        self.stages.roll_back(target_sequence);
        let operation = v1::execute_command::Operation::RollbackTo(convert::to_stamp(target));
        // All shards were fenced, so all are expected to answer.
        let shards = self.links.shards().collect();
        self.execute(&shards, operation, (&leaves, &newest), deadline).await;
        self.resources.metrics.administered("rollback");
        Ok(answer)
    }

    async fn prune(&mut self, boundary: Version, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        let head = self.head.stamp();
        let at = Stamp { epoch: head.epoch, version: boundary };
        let stamp = resolve(Some(at), true, &self.head.decided().epochs, head, self.boundary)?;
        if boundary == self.boundary {
            return Err(Refusal::invalid(format!("the pruned boundary is {boundary} already")).into());
        }
        let (leaves, _) = self.version_leaves(stamp).await?;
        let admin = Admin::Prune { boundary };
        let commit =
            self.head.decided().admin(&admin, &request.principal, &request.reason, self.resources.clock.wall_ms());
        let newest = self.head.decided().leaves.clone();
        let old_boundary = std::mem::replace(&mut self.boundary, boundary);
        let answer = self.append_admin(commit).await.inspect_err(|_| self.boundary = old_boundary)?;
        let operation = v1::execute_command::Operation::PruneBefore(boundary.0);
        // Commits wait for this, so it may take no longer than a prepare.
        let deadline = Instant::now() + self.resources.limits.prepare_timeout;
        self.execute(&self.links.with(Standing::Up), operation, (&leaves, &newest), deadline).await;
        self.resources.metrics.administered("prune");
        Ok(answer)
    }

    /// Changes the key by a header. The new key signs the checkpoint over that header. Shards don't
    /// learn of it.
    async fn rotate_key(&mut self, key: &PublicKey, request: &AdminRequest) -> Result<v1::AdminResponse, Failure> {
        let keys = self.resources.log.keys.clone();
        let current = keys.signer(u64::MAX)?;
        if current.verifier().public_key() == *key {
            return Err(Refusal::invalid("it is the ledger's key already").into());
        }
        let missing = "the leading coordinator has no such key: name its file as next_signing_key_file of every coordinator, \
                       start them again one after the other, and repeat this";
        let new = keys.own(key).ok_or_else(|| Refusal::new(Reason::PreconditionFailed, missing.to_owned()))?;
        if keys.changes() >= KEY_CHANGES_MAX {
            return Err(Refusal::invalid(format!("a ledger's key can change at most {KEY_CHANGES_MAX} times")).into());
        }
        let number = u32::try_from(keys.changes() + 1).expect("key changes are few");
        let change = KeyChange {
            principal: request.principal.clone(),
            reason: request.reason.clone(),
            ..KeyChange::sign(number, &self.head.decided().header.cluster, current, new)
        };
        let commit = self.head.decided().change_key(change, self.resources.clock.wall_ms());
        let answer = self.append_admin(commit).await?;
        tracing::info!(key = keys.current(), "the ledger's key was changed");
        self.resources.metrics.administered("rotate_key");
        Ok(answer)
    }

    /// Keeps time stamps by a header. Shards don't learn of it.
    async fn anchor(&mut self, stamps: &Stamps) -> Result<v1::AdminResponse, Failure> {
        let commit = self.head.decided().anchor(stamps.clone(), self.resources.clock.wall_ms());
        let answer = self.append_admin(commit).await?;
        self.resources.metrics.administered("anchor");
        Ok(answer)
    }

    /// The state leaves of a version that stands, and the sequence of its header.
    async fn version_leaves(&self, stamp: Stamp) -> Result<(Leaves, Sequence), Failure> {
        let read = v1::VersionRead { version: stamp.version.0, epoch: Some(stamp.epoch.0), header_only: false };
        let answer = self.resources.log.root.read(v1::read_root_request::Read::Version(read)).await;
        let answer = answer.map_err(Failure::Refused)?;
        let leaves = self.resources.log.attested.leaves(stamp, &answer).map_err(Failure::Refused)?;
        Ok((leaves, Sequence(answer.header_sequence)))
    }

    /// Fences every shard. If one of them does not answer, lifts the fences again.
    async fn fence(&mut self, target: Version, deadline: Instant) -> Result<(), Failure> {
        use v1::shard_command_request::Command as Wire;
        let attempt = self.head.next_attempt();
        let next_epoch = self.head.stamp().epoch.next().0;
        let fence = Wire::Fence(v1::FenceCommand { attempt, next_epoch, target_version: target.0 });
        let Some(error) = self.tell_all(&fence, deadline).await else { return Ok(()) };
        let until = Instant::now() + self.resources.limits.prepare_timeout;
        let lifted = self.tell_all(&Wire::Unfence(v1::UnfenceCommand { attempt }), until).await;
        let refusal = status::refuse(
            Reason::Unavailable,
            format!("nothing was rolled back: a shard could not be fenced: {}", error.message()),
        );
        match lifted {
            None => Err(Failure::Refused(refusal)),
            // A fence that is left is lifted by the adoption of the next term.
            Some(_) => Err(Failure::Over(refusal, Exit::Reset("a fence could not be lifted".to_owned()))),
        }
    }

    /// Sends a command to all shards. Returns one of the errors.
    async fn tell_all(&self, command: &v1::shard_command_request::Command, deadline: Instant) -> Option<Status> {
        let calls = self.links.shards().map(|shard| {
            let (context, command) = (self.head.shard_context(shard), command.clone());
            async move { self.resources.shards.command(shard, &context, command, deadline).await }
        });
        join_all(calls).await.into_iter().find_map(Result::err)
    }

    /// Appends the header. If it is committed, the operation has happened.
    async fn append_admin(&mut self, commit: Commit) -> Result<v1::AdminResponse, Failure> {
        match self.resources.log.root.append(&commit, self.head.term()).await {
            Decision::Committed { size, root, .. } => {
                let header = commit.header.clone();
                let head = commit.tail.header.stamp;
                let signed = self.resources.log.signed_at(size, root).await;
                self.on_committed(commit.tail, Vec::new());
                Ok(v1::AdminResponse {
                    header: header.into(),
                    head: Some(convert::to_stamp(head)),
                    pruned_boundary: self.boundary.0,
                    checkpoint: signed.map_err(Failure::Refused)?,
                })
            }
            Decision::Deposed => Err(Failure::Over(not_committed(), Exit::Deposed)),
            Decision::Unconfirmed => {
                let exit = Exit::Reset("no majority of the root group confirms a header".to_owned());
                Err(Failure::Over(open_outcome(), exit))
            }
            // The pin was set after the view was taken. Nothing else is wrong with the header.
            Decision::Refused(error) if status::reason(&error) == Some(Reason::Pinned) => Err(Failure::Refused(error)),
            // Only the root group knows that the key was the ledger's before, or that a larger log
            // was stamped meanwhile. Nothing else is wrong with the header.
            Decision::Refused(error) if matches!(commit.tail.header.body, Body::Key(_) | Body::Anchor(_)) => {
                Err(Failure::Refused(error))
            }
            Decision::Refused(error) => {
                let exit = Exit::Reset(format!("the root group refused a header: {error}"));
                Err(Failure::Over(error, exit))
            }
        }
    }

    /// Makes shards execute the newest operation. It is decided, so shards that don't answer get it
    /// with their next adoption.
    async fn execute(
        &mut self,
        those: &BTreeSet<ShardId>,
        operation: v1::execute_command::Operation,
        (boundary, newest): (&Leaves, &Leaves),
        deadline: Instant,
    ) {
        let state = |of: &Leaves, shard: ShardId| of.state(shard).map(convert::to_state);
        let (admin_sequence, epoch) = (self.head.decided().header.admin_sequence, self.head.stamp().epoch.0);
        let shards = &self.resources.shards;
        let calls = those.iter().map(|&shard| {
            let command = v1::shard_command_request::Command::Execute(v1::ExecuteCommand {
                admin_sequence,
                operation: Some(operation),
                epoch,
                boundary: state(boundary, shard),
                newest: state(newest, shard),
            });
            let context = self.head.shard_context(shard);
            async move { (shard, shards.command(shard, &context, command, deadline).await) }
        });
        for (shard, answer) in join_all(calls).await {
            match answer {
                // The finalize that follows returns the new shape of the forest.
                Ok(_) => self.links.forget(shard),
                Err(error) => {
                    tracing::warn!(%shard, %error, "a shard has not executed an operation of the root log yet");
                    self.links.set_down(shard);
                }
            }
        }
        self.settle_shapes().await;
    }

    /// Learns the shape of every forest after an operation that changed it.
    async fn settle_shapes(&mut self) {
        let deadline = Instant::now() + self.resources.limits.prepare_timeout;
        let finalize = v1::shard_command_request::Command::Finalize(v1::FinalizeCommand {});
        let up: Vec<ShardId> = self.links.with(Standing::Up).into_iter().collect();
        let shards = &self.resources.shards;
        let calls = up.iter().map(|&shard| {
            let (context, command) = (self.head.shard_context(shard), finalize.clone());
            async move { (shard, shards.command(shard, &context, command, deadline).await) }
        });
        for (shard, answer) in join_all(calls).await {
            let told = self.head.decided().leaves.state(shard);
            let shape = answer.and_then(|answer| Shape::read(answer.shape.as_ref()));
            match shape {
                Ok(shape) => {
                    self.links.set_shape(shard, shape, told);
                    self.links.set_told(shard, told);
                }
                Err(error) => {
                    tracing::warn!(%shard, %error, "a shard does not answer");
                    self.links.set_down(shard);
                }
            }
        }
    }
}

/// The failure of an operation.
enum Failure {
    /// Nothing happened, and the leader continues.
    Refused(Status),
    /// The leader can't continue.
    Over(Status, Exit),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

/// Allows a prune up to the version that the oldest pin holds, but not beyond.
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

/// Allows a rollback to the newest version that appended to a ledger of members, but not below it.
fn check_floor(floor: Version, to: Version) -> Result<(), Refusal> {
    if to >= floor || planted(Bug::FloorLeftOut) {
        return Ok(());
    }
    let message = format!("version {floor} appended to a ledger of members, and journals are never taken back");
    Err(Refusal::new(Reason::LedgerFloor, message))
}

/// Checks the `expected_head` of a request.
fn check_expected_head(expected: Option<v1::Stamp>, head: Stamp) -> Result<(), Refusal> {
    match expected.map(convert::from_stamp) {
        Some(expected) if expected != head => Err(Refusal::new(
            Reason::PreconditionFailed,
            format!("head is expected to be {expected}, but it is {head}"),
        )),
        _ => Ok(()),
    }
}
