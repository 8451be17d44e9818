//! Commands to shards and reads of them, with the repair of a shard that missed an operation of the
//! root log.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use coppice_proto::{convert, status, v1};
use coppice_types::{GroupId, MergeName, Reason, ShardId, ShardState};
use tokio::time::Instant;
use tonic::Status;

use super::{
    gathered::Gathered,
    links::{Lane, Links},
    root::Root,
    wire,
};
use crate::plan::KeyState;

/// Limit on the number of repairs within one call. Each one advances the shard by at least one
/// operation.
const REPAIRS_MAX: usize = 3;

/// The sizes of a shard's trees, and the merges that it could install.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Entries of each tree, the youngest (active) tree first.
    pub entries: Vec<u64>,
    /// The merges that a majority has built.
    pub ready: Vec<MergeName>,
    /// Number of keys that further versions may erase.
    pub erasures_left: u64,
}

impl Shape {
    /// Reads the shape in a message.
    ///
    /// # Errors
    /// If it does not parse.
    pub fn read(shape: Option<&v1::ForestShape>) -> Result<Self, Status> {
        let shape = shape.ok_or_else(|| wire::broken("forest shape"))?;
        let ready = wire::read(shape.ready.iter().map(convert::merge).collect())?;
        Ok(Self { entries: shape.entries.clone(), ready, erasures_left: shape.erasures_left })
    }

    /// Whether the next write would freeze the active tree and so exceed the tree limit. A ready
    /// merge counts if it is `installable`.
    pub fn is_full(&self, capacity: u32, tree_limit: u8, installable: bool) -> bool {
        let freezes = self.entries.first().is_some_and(|active| *active >= u64::from(capacity));
        let ready = self.ready.first().filter(|_| installable);
        let replaced = ready.map_or(0, |merge| merge.inputs.len().saturating_sub(1));
        freezes && self.entries.len() - replaced.min(self.entries.len()) + 1 > usize::from(tree_limit)
    }
}

/// Calls to shards.
#[derive(Clone, Debug)]
pub struct Shards {
    links: Arc<Links>,
    gathered: Arc<Gathered>,
    root: Root,
}

impl Shards {
    /// Calls over these links.
    pub fn new(links: Arc<Links>, root: Root) -> Self {
        Self { gathered: Arc::new(Gathered::new(links.clone())), links, root }
    }

    /// Sends a command to the shard's leader.
    ///
    /// # Errors
    /// The shard's refusal; `UNAVAILABLE` after the deadline, and then the outcome is unknown.
    pub async fn command(
        &self,
        shard: ShardId,
        context: &v1::ShardContext,
        command: v1::shard_command_request::Command,
        deadline: Instant,
    ) -> Result<v1::ShardCommandResponse, Status> {
        let call = || self.command_once(shard, context, command.clone(), deadline);
        self.repaired(shard, context, deadline, call).await
    }

    async fn command_once(
        &self,
        shard: ShardId,
        context: &v1::ShardContext,
        command: v1::shard_command_request::Command,
        deadline: Instant,
    ) -> Result<v1::ShardCommandResponse, Status> {
        let call = |channel| {
            let mut client = self.links.shard(channel);
            let request = v1::ShardCommandRequest {
                group: wire::group_number(shard),
                context: Some(context.clone()),
                command: Some(command.clone()),
            };
            async move { client.command(request).await }
        };
        self.links.to_leader(GroupId::Shard(shard), deadline, call).await
    }

    /// Prepares a version on the shard.
    ///
    /// # Errors
    /// Those of [`Shards::command`].
    pub async fn prepare(
        &self,
        shard: ShardId,
        request: v1::PrepareRequest,
        deadline: Instant,
    ) -> Result<v1::PrepareResponse, Status> {
        let call = |channel| {
            let (mut client, request) = (self.links.shard(channel), request.clone());
            async move { client.prepare(request).await }
        };
        let context = request.context.clone().unwrap_or_default();
        let once = || self.links.to_leader(GroupId::Shard(shard), deadline, call);
        self.repaired(shard, &context, deadline, once).await
    }

    /// Makes a call. If the shard missed operations of the root log, sends them and repeats the
    /// call.
    async fn repaired<T, F: Future<Output = Result<T, Status>>>(
        &self,
        shard: ShardId,
        context: &v1::ShardContext,
        deadline: Instant,
        call: impl Fn() -> F,
    ) -> Result<T, Status> {
        let mut repairs = 0;
        loop {
            match call().await {
                Err(error) if missed(&error) && repairs < REPAIRS_MAX => {
                    repairs += 1;
                    self.repair(shard, context, &error, deadline).await?;
                }
                answer => return answer,
            }
        }
    }

    /// Sends a shard the operations that it missed, in order (PROTOCOL 8.2).
    async fn repair(
        &self,
        shard: ShardId,
        context: &v1::ShardContext,
        error: &Status,
        deadline: Instant,
    ) -> Result<(), Status> {
        let executed = status::metadata(error, "executed").and_then(|number| number.parse().ok()).unwrap_or(0);
        tracing::info!(%shard, executed, newest = context.admin_sequence, "a shard missed operations of the root log");
        let answer = self.root.read(v1::read_root_request::Read::AdminAfter(executed)).await?;
        for operation in answer.admin.into_iter().filter(|operation| operation.shard == shard.0) {
            let command = operation.command.ok_or_else(|| wire::broken("admin operation"))?;
            let execute = v1::shard_command_request::Command::Execute(command);
            self.command_once(shard, context, execute, deadline).await?;
        }
        Ok(())
    }

    /// Reads keys of a shard at the state of `request`, which has no parts, from any replica.
    ///
    /// # Errors
    /// The last replica's error, if none has the state.
    pub async fn read(
        &self,
        request: v1::ShardReadRequest,
        keys: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<v1::ReadAnswer, Status> {
        self.gathered.read(request, v1::ReadPart { keys }, deadline).await
    }

    /// Reads one page of a scan at an exact state, from any replica.
    ///
    /// # Errors
    /// The last replica's error, if none has the state.
    pub async fn scan(
        &self,
        request: &v1::ShardScanRequest,
        deadline: Instant,
    ) -> Result<v1::ShardScanResponse, Status> {
        let call = |channel| {
            let (mut client, request) = (self.links.shard(channel), request.clone());
            async move { client.scan(request).await }
        };
        self.links.to_any(Lane::Bulk, GroupId::from_number(request.group), deadline, call).await
    }

    /// Reads the states of one shard's keys that preconditions depend on, at an exact state.
    ///
    /// # Errors
    /// Those of [`Shards::read`].
    pub async fn key_states(
        &self,
        shard: ShardId,
        at: (v1::ShardContext, ShardState),
        keys: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<BTreeMap<Bytes, KeyState>, Status> {
        let records = self.records(shard, at, keys, deadline, false).await?;
        records.iter().map(|record| Ok((record.key.clone(), wire::key_state_in(record)?))).collect()
    }

    /// Reads the values of one shard's keys at an exact state, for requests that depend on them.
    /// `None` for a key without a record.
    ///
    /// # Errors
    /// Those of [`Shards::read`].
    pub async fn key_values(
        &self,
        shard: ShardId,
        at: (v1::ShardContext, ShardState),
        keys: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<BTreeMap<Bytes, Option<Bytes>>, Status> {
        let records = self.records(shard, at, keys, deadline, true).await?;
        Ok(records.into_iter().map(|record| (record.key, record.found.then_some(record.value))).collect())
    }

    /// The records of these keys, in their order.
    async fn records(
        &self,
        shard: ShardId,
        (context, state): (v1::ShardContext, ShardState),
        keys: Vec<Bytes>,
        deadline: Instant,
        want_values: bool,
    ) -> Result<Vec<v1::ShardRecord>, Status> {
        let request = v1::ShardReadRequest {
            group: wire::group_number(shard),
            context: Some(context),
            state: Some(convert::to_state(state)),
            parts: vec![v1::ReadPart { keys: keys.clone() }],
            want_proof: false,
            want_values,
            bytes_max: 0,
        };
        let mut answer = self.links.read_shard(Lane::Commits, &request, deadline).await?;
        let records = answer.answers.pop().filter(|_| answer.answers.is_empty()).ok_or_else(|| wire::broken("read"))?;
        let fits = records.records.iter().map(|record| &record.key).eq(&keys);
        if fits { Ok(records.records) } else { Err(wire::broken("read")) }
    }
}

fn missed(error: &Status) -> bool {
    status::reason(error) == Some(Reason::MissedAdmin)
}

#[cfg(test)]
mod tests {
    use coppice_types::Digest;

    use super::*;

    #[test]
    fn a_shard_is_full_when_the_next_write_would_make_a_tree_too_many() {
        let merge = |inputs: usize| MergeName { inputs: vec![Digest([1; 32]); inputs], output: Digest([2; 32]) };
        let shape = |entries: &[u64], ready: &[usize]| Shape {
            entries: entries.to_vec(),
            ready: ready.iter().map(|inputs| merge(*inputs)).collect(),
            erasures_left: 0,
        };
        for (shape, full) in [
            (shape(&[8], &[]), false),
            (shape(&[8, 8, 8], &[]), false),
            (shape(&[7, 8, 8, 8], &[]), false),
            (shape(&[8, 8, 8, 8], &[]), true),
            (shape(&[8, 8, 8, 8], &[2]), false),
            (shape(&[8, 8, 8, 8], &[9]), false),
            (shape(&[], &[]), false),
        ] {
            assert_eq!(shape.is_full(8, 4, true), full, "{shape:?}");
        }
    }
}
