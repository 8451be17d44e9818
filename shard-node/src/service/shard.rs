//! The `Shard` service: commands go through raft, reads to the local engine.

use std::sync::Arc;

use bytes::Bytes;
use coppice_engine::View;
use coppice_env::bug::{Bug, planted};
use coppice_proto::{
    convert,
    v1::{self, shard_server::Shard},
};
use coppice_types::{GroupId, Reason};
use tonic::{Request, Response, Status};

use crate::{
    hosted::Hosted,
    limits::{PAGE_RECORDS_MAX, READ_PARTS_MAX},
    refusal::Refusal,
    replica::ReplicaHandle,
    service::scan,
    shard::{Command, ShardMachine, messages},
};

type Handle = ReplicaHandle<ShardMachine>;

/// Serves the shards of one node.
#[derive(Clone, Debug)]
pub struct ShardService {
    pub hosted: Arc<Hosted>,
}

impl ShardService {
    fn replica(&self, group: u32) -> Result<Handle, Refusal> {
        self.hosted.shard(GroupId::from_number(group))
    }

    async fn run(&self, group: u32, command: Command) -> Result<crate::shard::Reply, Refusal> {
        command.check(&self.hosted.params)?;
        self.replica(group)?.command(command.encode()).await?
    }
}

#[tonic::async_trait]
impl Shard for ShardService {
    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
        let request = request.into_inner();
        let group = request.group;
        let command = messages::prepare(request)?;
        let reply = self.run(group, command).await?;
        Ok(Response::new(messages::to_prepare_response(&reply)?))
    }

    async fn command(
        &self,
        request: Request<v1::ShardCommandRequest>,
    ) -> Result<Response<v1::ShardCommandResponse>, Status> {
        let request = request.into_inner();
        let reply = self.run(request.group, messages::command(&request)?).await?;
        Ok(Response::new(messages::to_command_response(&reply)))
    }

    async fn read(&self, request: Request<v1::ShardReadRequest>) -> Result<Response<v1::ShardReadResponse>, Status> {
        let request = request.into_inner();
        let context = messages::context(request.context.as_ref())?;
        let state = convert::state(request.state.as_ref(), "state").map_err(Refusal::from)?;
        let replica = self.replica(request.group)?;
        let bytes_max = self.hosted.message_bytes_max;
        let any = planted(Bug::ReaderServesAny) && self.hosted.hosts_readers();
        let read = move |machine: &ShardMachine| {
            let state = if any { machine.engine().decided() } else { state };
            machine.readable(&context, &state)?;
            let view = machine.engine().view(&state).map_err(refused)?;
            read_parts(&view, &request, bytes_max)
        };
        Ok(Response::new(replica.read_when(read).await?))
    }

    async fn scan(&self, request: Request<v1::ShardScanRequest>) -> Result<Response<v1::ShardScanResponse>, Status> {
        let request = request.into_inner();
        let context = messages::context(request.context.as_ref())?;
        let state = convert::state(request.state.as_ref(), "state").map_err(Refusal::from)?;
        let replica = self.replica(request.group)?;
        let Some(scan) = request.scan else {
            return Err(Refusal::new(Reason::InvalidArgument, "scan is missing").into());
        };
        let read = move |machine: &ShardMachine| {
            machine.readable(&context, &state)?;
            scan::page(machine.engine(), &state, &scan)
        };
        Ok(Response::new(replica.read_when(read).await?))
    }
}

pub(super) fn refused(error: coppice_engine::Error) -> Refusal {
    Refusal::new(error.reason(), error.to_string())
}

fn read_parts(
    view: &View<'_>,
    request: &v1::ShardReadRequest,
    bytes_max: usize,
) -> Result<v1::ShardReadResponse, Refusal> {
    if request.parts.len() > READ_PARTS_MAX {
        return Err(Refusal::new(Reason::LimitExceeded, format!("a read may have at most {READ_PARTS_MAX} parts")));
    }
    let mut bytes = 0_usize;
    let mut add = |more: usize| {
        bytes += more;
        check_answer(bytes, bytes_max)
    };
    let mut answers = Vec::new();
    for part in &request.parts {
        let mut records = Vec::with_capacity(part.keys.len().min(PAGE_RECORDS_MAX));
        for key in &part.keys {
            let record = match view.get(key, request.want_values).map_err(refused)? {
                Some(record) => messages::to_record(record),
                None => messages::to_absent(key.clone(), None),
            };
            add(record_bytes(&record))?;
            records.push(record);
        }
        let mut trees = Bytes::new();
        if request.want_proof {
            let keys: Vec<&[u8]> = part.keys.iter().map(AsRef::as_ref).collect();
            trees = view.prove_keys(&keys).map_err(refused)?.into();
            add(trees.len())?;
        }
        answers.push(v1::ReadAnswer { records, trees });
    }
    Ok(v1::ShardReadResponse { answers })
}

fn check_answer(bytes: usize, bytes_max: usize) -> Result<(), Refusal> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Refusal::new(Reason::LimitExceeded, format!("the answer is over the message limit of {bytes_max} bytes")))
}

/// The approximate size of a record in a message.
fn record_bytes(record: &v1::ShardRecord) -> usize {
    record.key.len() + record.value.len() + 80
}

#[cfg(test)]
mod tests;
