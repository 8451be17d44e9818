//! A simulated time ledger: a ledger of another cluster that takes in the checkpoints that it is
//! shown, whichever they are. It is a model in memory, behind the lossy network.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use coppice_proto::{
    Channel, HttpRequest, HttpResponse,
    v1::{self, operation::Change as Told},
};
use coppice_types::{Change, ClusterId, Digest, Operation, Params};
use coppice_verify::{
    note::VerifierKey,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};
use tonic::{Request, Response, Status, codegen::BoxFuture, server::Grpc};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::{
    history::{Moment, Scribe},
    life::Life,
    net::Net,
};

const NAME: &str = "time-ledger";

/// The time ledger of a run. Clones share it.
#[derive(Clone, Debug)]
pub struct TimeLedger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    net: Net,
    scribe: Scribe,
    key: VerifierKey,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    /// The hash of each version's header, with the moment at which the version was committed.
    taken_in: Vec<(Digest, Moment)>,
}

impl TimeLedger {
    #[must_use]
    pub fn new(net: Net, scribe: Scribe) -> Self {
        let map = ShardMap::from_splits(&[]).expect("one shard is a map");
        let ledger = Ledger::new("time.coppice.test", ClusterId([9; 16]), &[0x3c; 32], &Params::default(), map);
        let key = ledger.key.verifier().clone();
        Self(Arc::new(Inner { net, scribe, key, state: Mutex::new(State { ledger, taken_in: Vec::new() }) }))
    }

    /// The time ledger as a coordinator of this process is configured with it.
    #[must_use]
    pub fn of(&self, life: &Life) -> coppice_coordinator::TimeLedger {
        let door = Door { inner: self.0.clone(), life: life.clone() };
        let open = Arc::new(move || Ok(Channel::new(door.clone())));
        coppice_coordinator::TimeLedger { name: NAME.to_owned(), key: self.0.key.clone(), open }
    }

    /// The key by which its receipts are judged.
    #[must_use]
    pub fn key(&self) -> &VerifierKey {
        &self.0.key
    }

    /// The moment at which the version of a header was committed; `None` if it never was.
    #[must_use]
    pub fn moment_of(&self, header: &Digest) -> Option<Moment> {
        self.0.lock().taken_in.iter().find(|(taken_in, _)| taken_in == header).map(|(_, moment)| *moment)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn commit(&self, life: &Life, asked: v1::CommitRequest) -> Result<v1::CommitResponse, Status> {
        let lost = || Status::unavailable("the connection broke");
        if !self.net.errand(life, &format!("> {NAME}")).await {
            return Err(lost());
        }
        let receipt = self.take_in(asked)?;
        let back = self.net.errand(life, &format!("< {NAME}")).await;
        let answer = v1::CommitResponse { receipt, ..v1::CommitResponse::default() };
        if back { Ok(answer) } else { Err(lost()) }
    }

    /// Commits a batch. Returns its receipt.
    fn take_in(&self, asked: v1::CommitRequest) -> Result<Bytes, Status> {
        let operation = |it: v1::Operation| match it.change {
            Some(Told::Put(value)) => {
                Some(Operation { key: it.key.to_vec().into(), change: Change::Put(value.to_vec().into()) })
            }
            _ => None,
        };
        let operations = asked.batch.unwrap_or_default().operations.into_iter().map(operation);
        let wrong = || Status::invalid_argument("a time ledger takes puts");
        let operations = operations.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        let moment = self.scribe.now();
        let mut state = self.lock();
        let stamp = state.ledger.commit(&[Commit { operations, ..Commit::default() }]).map_err(|_| wrong())?;
        let header = state.ledger.newest().hash();
        state.taken_in.push((header, moment));
        Ok(state.ledger.receipt(stamp, 0).encode().map_err(|_| wrong())?.into())
    }
}

/// A process's way to the time ledger, which serves one method.
#[derive(Clone)]
struct Door {
    inner: Arc<Inner>,
    life: Life,
}

impl Service<HttpRequest> for Door {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = BoxFuture<HttpResponse, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        let door = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<v1::CommitResponse, v1::CommitRequest>::default();
            Ok(Grpc::new(codec).unary(Takes(door), request).await)
        })
    }
}

struct Takes(Door);

impl tonic::server::UnaryService<v1::CommitRequest> for Takes {
    type Response = v1::CommitResponse;
    type Future = BoxFuture<Response<v1::CommitResponse>, Status>;

    fn call(&mut self, request: Request<v1::CommitRequest>) -> Self::Future {
        let Door { inner, life } = self.0.clone();
        Box::pin(async move { inner.commit(&life, request.into_inner()).await.map(Response::new) })
    }
}
