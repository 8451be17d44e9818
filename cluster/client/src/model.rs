//! A ledger in memory that keeps its journals, and its API as far as an auditor needs it. Tests use
//! it in place of a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use coppice_proto::{Channel, HttpRequest, convert, status, v1};
use coppice_types::{Change, ClusterId, Digest, Operation, Params, Reason, Stamp, Version, codec::Writer};
use coppice_verify::{
    audit::Chain,
    hash::sha256,
    header::Body,
    journal::Entry,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};
use tokio_stream::Stream;
use tonic::{
    Request, Response, Status,
    server::{Grpc, ServerStreamingService},
};
use tonic_prost::ProstCodec;

use crate::{Client, Options};

/// A ledger, and what was asked of it.
#[derive(Debug)]
pub struct Served {
    /// The ledger.
    pub log: Ledger,
    /// The operations of each version.
    operations: BTreeMap<Stamp, Vec<Operation>>,
    /// Versions below this one can't be read.
    pub boundary: Version,
    /// The versions whose lists were sent.
    pub sent: BTreeSet<Stamp>,
    /// How often the state was read from its beginning.
    pub states: u64,
    /// The journals break off after so many versions.
    pub breaks: Option<usize>,
}

/// The API of a ledger. Clones share it.
#[derive(Clone, Debug)]
pub struct Api(Arc<Mutex<Served>>);

impl Default for Api {
    fn default() -> Self {
        Self::new()
    }
}

impl Api {
    /// A new ledger with one shard. The seed of its key has ones alone.
    ///
    /// # Panics
    /// Never: one shard is a map.
    #[must_use]
    pub fn new() -> Self {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let log = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
        Self(Arc::new(Mutex::new(Served {
            log,
            operations: BTreeMap::new(),
            boundary: Version(0),
            sent: BTreeSet::new(),
            states: 0,
            breaks: None,
        })))
    }

    /// The ledger.
    ///
    /// # Panics
    /// If another holder has panicked.
    pub fn served(&self) -> MutexGuard<'_, Served> {
        self.0.lock().expect("no holder panics")
    }

    /// Number of entries of its log.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.served().log.headers.len() as u64
    }

    /// Commits a put of a key.
    ///
    /// # Panics
    /// Never: a put follows the rules.
    pub fn commit(&self, key: u64, value: u64) {
        let mut served = self.served();
        let change = Change::Put(value.to_le_bytes().to_vec().into());
        let operations = vec![Operation { key: format!("key {key}").into_bytes().into(), change }];
        let batch = Commit { operations: operations.clone(), ..Commit::default() };
        let stamp = served.log.commit(&[batch]).expect("it follows");
        served.operations.insert(stamp, operations);
    }

    /// Commits a version whose state root does not follow from its batch.
    ///
    /// # Panics
    /// Never: the version was committed.
    pub fn commit_wrongly(&self) {
        self.commit(1, 77);
        let mut served = self.served();
        let header = served.log.headers.pop().expect("it was committed");
        served.log.epochs_at.pop();
        let journal: Vec<Entry> = served.log.versions[&header.stamp].journal.clone();
        let wrong = served.log.next_header(header.stamp, Digest([5; 32]), &journal, Body::Commit);
        served.log.versions.get_mut(&header.stamp).expect("it is there").header = wrong.clone();
        served.log.append(wrong);
    }

    /// A client that calls this API.
    #[must_use]
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: HttpRequest| {
            let api = api.clone();
            async move {
                let mut journals = Grpc::new(ProstCodec::<v1::JournalResponse, v1::JournalRequest>::default());
                let mut ranges = Grpc::new(ProstCodec::<v1::RangeResponse, v1::RangeRequest>::default());
                Ok::<_, Infallible>(match request.uri().path() {
                    "/coppice.v1.Ledger/Journal" => journals.server_streaming(api, request).await,
                    "/coppice.v1.Ledger/Range" => ranges.server_streaming(api, request).await,
                    _ => Status::unimplemented("an auditor does not need it").into_http(),
                })
            }
        });
        Client::over(vec![("http://api:1".to_owned(), Channel::new(service))], 1, &Options::new("fake"))
    }
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Ready<Result<Response<Messages<T>>, Status>>;

fn answer<T: Send + 'static>(messages: Result<Vec<Result<T, Status>>, Status>) -> Answer<T> {
    ready(messages.map(|messages| Response::new(Box::pin(tokio_stream::iter(messages)) as Messages<T>)))
}

impl ServerStreamingService<v1::JournalRequest> for Api {
    type Response = v1::JournalResponse;
    type ResponseStream = Messages<v1::JournalResponse>;
    type Future = Answer<v1::JournalResponse>;

    fn call(&mut self, request: Request<v1::JournalRequest>) -> Self::Future {
        let v1::JournalRequest { from_version, to_version } = request.into_inner();
        let mut served = self.served();
        let mut messages = Vec::new();
        for (count, version) in (from_version..=to_version).enumerate() {
            if served.breaks.is_some_and(|most| count >= most) {
                messages.push(Err(Status::unavailable("the stream breaks")));
                break;
            }
            let stamp = served.log.epochs.stamp_of(Version(version));
            let stands = version <= served.log.head().version.0;
            let Some(found) = served.log.versions.get(&stamp).filter(|_| stands) else {
                messages.push(Err(status::refuse(Reason::NotYet, "there is no such version")));
                break;
            };
            let entries = found.journal.iter().map(|entry| entry.encode().into()).collect();
            messages.push(Ok(v1::JournalResponse {
                header: found.header.encode().into(),
                entries,
                ..v1::JournalResponse::default()
            }));
            let lists = vec![list(&served.operations[&stamp]).into()];
            messages.push(Ok(v1::JournalResponse { shard: 0, lists, ..v1::JournalResponse::default() }));
            served.sent.insert(stamp);
        }
        answer(Ok(messages))
    }
}

impl ServerStreamingService<v1::RangeRequest> for Api {
    type Response = v1::RangeResponse;
    type ResponseStream = Messages<v1::RangeResponse>;
    type Future = Answer<v1::RangeResponse>;

    fn call(&mut self, request: Request<v1::RangeRequest>) -> Self::Future {
        let request = request.into_inner();
        let mut served = self.served();
        let at = convert::stamp(request.read.and_then(|read| read.at), "at").expect("a version is named");
        if at.version < served.boundary {
            return answer(Err(status::refuse(Reason::Pruned, "it is pruned")));
        }
        if !served.log.epochs.stands(at) || !served.log.versions.contains_key(&at) {
            return answer(Err(status::refuse(Reason::NotYet, "there is no such version")));
        }
        served.states += u64::from(request.low.is_empty());
        let proof = served.log.prove_range(at, &request.low, None, false).encode().expect("a small file").into();
        let end = v1::RangeEnd { more: false, read_at: Some(convert::to_stamp(at)), proof };
        answer(Ok(vec![Ok(v1::RangeResponse { records: Vec::new(), end: Some(end) })]))
    }
}

/// An operation list as a shard keeps it.
fn list(operations: &[Operation]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(u32::try_from(operations.len()).expect("few"));
    for operation in operations {
        let Change::Put(value) = &operation.change else { panic!("puts alone") };
        out.u8(0);
        out.str16(&operation.key);
        out.u32(u32::try_from(value.len()).expect("short"));
        out.raw(sha256(value).as_bytes());
    }
    out.into_bytes()
}

/// The stamps of the versions that stand in the first entries of a log, without genesis.
///
/// # Panics
/// If the log breaks a rule.
#[must_use]
pub fn standing(log: &Ledger, size: u64) -> Vec<Stamp> {
    let mut chain = Chain::default();
    for header in log.headers.iter().take(usize::try_from(size).expect("a small log")) {
        chain.take(header.clone()).expect("the model follows the rules");
    }
    chain.lines()[1..].iter().map(|line| line.stamp).collect()
}
