//! The `Shard` service: commands go through raft, reads to the local engine.

use std::sync::Arc;

use bytes::Bytes;
use coppice_engine::View;
use coppice_env::bug::{Bug, planted};
use coppice_proto::{
    convert,
    v1::{self, shard_server::Shard},
};
use coppice_types::{GroupId, Reason, ShardState};
use tonic::{Request, Response, Status};

use crate::{
    hosted::Hosted,
    limits::{PAGE_RECORDS_MAX, READ_PARTS_MAX},
    pim::Prover,
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
        let request = Arc::new(request.into_inner());
        let context = messages::context(request.context.as_ref())?;
        let state = convert::state(request.state.as_ref(), "state").map_err(Refusal::from)?;
        let replica = self.replica(request.group)?;
        let bytes_max = match request.bytes_max {
            0 => self.hosted.message_bytes_max,
            wanted => self.hosted.message_bytes_max.min(wanted as usize),
        };
        let any = planted(Bug::ReaderServesAny) && self.hosted.hosts_readers();
        let prover = self.hosted.prover(replica.group).filter(|_| request.want_proof && !any);
        let single = prover.as_ref().map(|prover| single_keys(prover, &state, &request)).unwrap_or_default();
        let (part, unproven) = (Arc::clone(&request), single.clone());
        let read = move |machine: &ShardMachine| {
            let state = if any { machine.engine().decided() } else { state };
            machine.readable(&context, &state)?;
            let view = machine.engine().view(&state).map_err(refused)?;
            read_parts(&view, &part, &unproven, bytes_max)
        };
        let mut answer = replica.read_when(read).await?;
        if let Some(prover) = prover.filter(|_| !single.is_empty()) {
            add_proofs(&prover, &replica, state, &request, single, &mut answer).await?;
            check_answer(answer.answers.iter().map(answer_bytes).sum(), bytes_max)?;
        }
        Ok(Response::new(answer))
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

/// The parts of one key, if the prover takes them.
fn single_keys(prover: &Prover, state: &ShardState, request: &v1::ShardReadRequest) -> Vec<usize> {
    let parts = request.parts.iter().enumerate().filter(|(_, part)| part.keys.len() == 1);
    let single: Vec<usize> = parts.map(|(number, _)| number).collect();
    if single.len() <= READ_PARTS_MAX && prover.takes(state, single.len()) { single } else { Vec::new() }
}

/// Adds the proofs of parts of one key, whose records were read. What the prover has not in time,
/// the engine proves: the bytes are the same.
async fn add_proofs(
    prover: &Prover,
    replica: &Handle,
    state: ShardState,
    request: &v1::ShardReadRequest,
    parts: Vec<usize>,
    answer: &mut v1::ShardReadResponse,
) -> Result<(), Refusal> {
    let key = |number: &usize| request.parts[*number].keys[0].clone();
    let proofs = prover.prove(state, parts.iter().map(key).collect()).await;
    let mut missing = Vec::new();
    for (number, proof) in parts.into_iter().zip(proofs) {
        match proof {
            Some(proof) => answer.answers[number].trees = proof,
            None => missing.push(number),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let keys: Vec<Bytes> = missing.iter().map(key).collect();
    let prove = move |machine: &ShardMachine| {
        let view = machine.engine().view(&state).map_err(refused)?;
        let prove = |key: &Bytes| view.prove_keys(&[key.as_ref()]).map_err(refused);
        keys.iter().map(prove).collect::<Result<Vec<_>, _>>()
    };
    let proofs = replica.read(prove).await?;
    missing.into_iter().zip(proofs).for_each(|(number, proof)| answer.answers[number].trees = proof.into());
    Ok(())
}

/// Reads the parts of a request, and proves them but for the listed ones.
fn read_parts(
    view: &View<'_>,
    request: &v1::ShardReadRequest,
    unproven: &[usize],
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
    for (number, part) in request.parts.iter().enumerate() {
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
        if request.want_proof && !unproven.contains(&number) {
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
    Err(Refusal::new(Reason::LimitExceeded, format!("the answer is over its limit of {bytes_max} bytes")))
}

fn answer_bytes(answer: &v1::ReadAnswer) -> usize {
    answer.trees.len() + answer.records.iter().map(record_bytes).sum::<usize>()
}

/// The approximate size of a record in a message.
fn record_bytes(record: &v1::ShardRecord) -> usize {
    record.key.len() + record.value.len() + 80
}

#[cfg(test)]
mod tests;
