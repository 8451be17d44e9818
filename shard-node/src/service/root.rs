//! The `Root` service: the decision log. Commands go through raft. One ReadIndex serves all reads
//! that wait.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use coppice_env::bug::{Bug, planted};
use coppice_process::{
    access::{Action, Caller, Claimant, noted},
    ledger,
};
use coppice_proto::{
    convert,
    v1::{self, read_root_request::Read, root_client::RootClient, root_server::Root},
};
use coppice_root::Outcome;
use coppice_types::{Reason, Term};
use coppice_verify::header::{Body, Header};
use futures::future::join_all;
use tonic::{Request, Response, Status};

use crate::{
    hosted::Hosted,
    refusal::Refusal,
    replica::ReplicaHandle,
    root::{self, RootMachine},
};

const TAKE_OVER: &str = "/coppice.v1.Root/TakeOver";
/// How long another root replica may take to report its clock.
const CLOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// Serves the root group's replica of one node.
#[derive(Clone, Debug)]
pub struct RootService {
    pub hosted: Arc<Hosted>,
}

impl RootService {
    fn replica(&self) -> Result<ReplicaHandle<RootMachine>, Refusal> {
        self.hosted.root()
    }

    async fn run(&self, command: Vec<u8>) -> Result<Outcome, Refusal> {
        if command.len() > self.hosted.message_bytes_max {
            let message = format!("a command may have at most {} bytes", self.hosted.message_bytes_max);
            return Err(Refusal::new(Reason::LimitExceeded, message));
        }
        self.replica()?.command(command).await?
    }

    async fn begin_term(&self, request: v1::TakeOverRequest) -> Result<Term, Refusal> {
        self.check_genesis(&request.genesis)?;
        let clock_ms = self.hosted.clock.wall_ms();
        match self.run(root::take_over(request, clock_ms)?).await? {
            Outcome::TookOver { term } => Ok(term),
            _ => Err(unexpected()),
        }
    }

    /// Refuses a coordinator whose parameters or first shards differ from the nodes' configuration:
    /// digests depend on them.
    fn check_genesis(&self, genesis: &[u8]) -> Result<(), Refusal> {
        let ledger = self.hosted.forming.read().unwrap_or_else(PoisonError::into_inner).ledger;
        let (Some(ledger), false) = (ledger, genesis.is_empty()) else { return Ok(()) };
        let header =
            Header::decode(genesis).map_err(|error| Refusal::new(Reason::InvalidArgument, error.to_string()))?;
        match header.body {
            Body::Genesis(genesis) if ledger::digest(&genesis.params, &genesis.shard_map) == ledger => Ok(()),
            _ => Err(Refusal::new(Reason::InvalidArgument, "the coordinator's [ledger] is not that of the nodes")),
        }
    }

    /// This node's clock, then the clocks of the other root replicas that answer in time.
    async fn clocks(&self) -> Result<Vec<u64>, Refusal> {
        let status = self.replica()?.status();
        let others = status.voters.iter().filter(|member| member.node != self.hosted.node);
        let calls = others.map(|member| {
            let mut client = RootClient::new(self.hosted.connector.channel(&member.node));
            let request = v1::ReadRootRequest { stale_ok: true, read: Some(v1::read_root_request::Read::View(true)) };
            async move {
                let answer = tokio::time::timeout(CLOCK_TIMEOUT, client.read_root(request)).await.ok()?.ok()?;
                Some(answer.into_inner().view?.clock_ms)
            }
        });
        let theirs = join_all(calls).await.into_iter().flatten();
        Ok(std::iter::once(self.hosted.clock.wall_ms()).chain(theirs).collect())
    }
}

fn unexpected() -> Refusal {
    Refusal::new(Reason::Internal, "the root group gave the outcome of another command")
}

#[tonic::async_trait]
impl Root for RootService {
    async fn take_over(&self, request: Request<v1::TakeOverRequest>) -> Result<Response<v1::TakeOverResponse>, Status> {
        // A term carries the name of the coordinator that leads in it.
        if let Some(claimant) = Claimant::of(request.extensions()) {
            claimant.must_be(TAKE_OVER, &request.get_ref().candidate)?;
        }
        let (caller, log) = Caller::from(&request);
        let request = request.into_inner();
        let action = Action::new("take over", format!("the root group, as {}", request.candidate));
        let answer = self.begin_term(request).await.map_err(Status::from);
        noted(log.as_ref(), &caller, action, &answer);
        let term = answer?;
        let clocks_ms = self.clocks().await?;
        let clock = Arc::clone(&self.hosted.clock);
        let read = move |machine: &RootMachine| Ok((machine.view(clock.wall_ms())?, machine.sessions()));
        let (view, sessions) = self.replica()?.read(read).await?;
        Ok(Response::new(v1::TakeOverResponse { term: term.0, view: Some(view), sessions, clocks_ms }))
    }

    async fn append_header(
        &self,
        request: Request<v1::AppendHeaderRequest>,
    ) -> Result<Response<v1::AppendHeaderResponse>, Status> {
        let Outcome::Appended { log_size, log_root, path, .. } =
            self.run(root::append_header(request.into_inner())?).await?
        else {
            return Err(unexpected().into());
        };
        let inclusion = Some(convert::to_path(&path));
        Ok(Response::new(v1::AppendHeaderResponse { log_size, log_root: convert::to_digest(&log_root), inclusion }))
    }

    async fn open_root_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let command = root::open_session(&request.into_inner(), self.hosted.clock.wall_ms())?;
        let Outcome::SessionOpened { highest_number, batch_hash, window } = self.run(command).await? else {
            return Err(unexpected().into());
        };
        let batch_hash = batch_hash.as_ref().map(convert::to_digest).unwrap_or_default();
        Ok(Response::new(v1::OpenSessionResponse { highest_number, batch_hash, window }))
    }

    async fn set_pin(&self, request: Request<v1::PinRequest>) -> Result<Response<v1::PinResponse>, Status> {
        let command = root::set_pin(&request.into_inner(), self.hosted.clock.wall_ms())?;
        let Outcome::Pinned(pin) = self.run(command).await? else { return Err(unexpected().into()) };
        Ok(Response::new(v1::PinResponse { pin: Some(root::to_pin(&pin)) }))
    }

    async fn drop_pin(&self, request: Request<v1::UnpinRequest>) -> Result<Response<v1::UnpinResponse>, Status> {
        let command = root::drop_pin(&request.into_inner(), self.hosted.clock.wall_ms())?;
        let Outcome::Unpinned { found } = self.run(command).await? else { return Err(unexpected().into()) };
        Ok(Response::new(v1::UnpinResponse { found }))
    }

    async fn read_root(&self, request: Request<v1::ReadRootRequest>) -> Result<Response<v1::ReadRootResponse>, Status> {
        let request = request.into_inner();
        let replica = self.replica()?;
        if !request.stale_ok && !planted(Bug::StaleLeaderRead) {
            replica.read_index().await?;
        }
        let clock = Arc::clone(&self.hosted.clock);
        let in_memory = matches!(request.read, None | Some(Read::View(_) | Read::ViewUnless(_) | Read::Session(_)));
        let read = move |machine: &RootMachine| machine.answer(request.read.as_ref(), clock.wall_ms());
        let answer = if in_memory { replica.read_memory(read).await } else { replica.read(read).await };
        Ok(Response::new(answer?))
    }

    async fn attest(&self, request: Request<v1::AttestRequest>) -> Result<Response<v1::AttestResponse>, Status> {
        let request = request.into_inner();
        // Without a replica, the answer is empty.
        let Ok(replica) = self.replica() else { return Ok(Response::new(v1::AttestResponse::default())) };
        let mut answer = match request.size {
            0 => v1::AttestResponse::default(),
            _ => replica.read_when(move |machine: &RootMachine| machine.attest(request)).await?,
        };
        answer.voters = replica.status().voters.into_iter().map(|member| member.node).collect();
        Ok(Response::new(answer))
    }
}

#[cfg(test)]
mod tests;
