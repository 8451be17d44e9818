//! The `Shard` service: commands go through raft, reads to the local engine.

use std::sync::Arc;

use bytes::Bytes;
use coppice_engine::{HistoryPage, KeyChange, RangePage, ShardState, View};
use coppice_proto::v1::{self, shard_scan_request::Scan, shard_server::Shard};
use coppice_types::{GroupId, Reason, Version};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{
    convert,
    hosted::Hosted,
    limits::{SCAN_CHUNK_BYTES, STREAM_QUEUE_MAX},
    refusal::Refusal,
    replica::ReplicaHandle,
    shard::{Command, Context, ShardMachine, decode_journal},
};

/// Most records of one page of a scan.
const PAGE_RECORDS_MAX: usize = 1024;

type Handle = ReplicaHandle<ShardMachine>;
type Sender = mpsc::Sender<Result<v1::ShardScanResponse, Status>>;

/// Serves the shards of one node.
#[derive(Clone, Debug)]
pub struct ShardService {
    /// The replicas.
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
    type ScanStream = ReceiverStream<Result<v1::ShardScanResponse, Status>>;

    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
        let request = request.into_inner();
        let group = request.group;
        let command = convert::prepare(request)?;
        let reply = self.run(group, command).await?;
        Ok(Response::new(convert::to_prepare_response(&reply)?))
    }

    async fn command(
        &self,
        request: Request<v1::ShardCommandRequest>,
    ) -> Result<Response<v1::ShardCommandResponse>, Status> {
        let request = request.into_inner();
        let reply = self.run(request.group, convert::command(&request)?).await?;
        Ok(Response::new(convert::to_command_response(&reply)))
    }

    async fn read(&self, request: Request<v1::ShardReadRequest>) -> Result<Response<v1::ShardReadResponse>, Status> {
        let request = request.into_inner();
        let context = convert::context(request.context.as_ref())?;
        let state = convert::state(request.state.as_ref(), "state")?;
        let replica = self.replica(request.group)?;
        let bytes_max = self.hosted.message_bytes_max;
        let read = move |machine: &ShardMachine| {
            machine.readable(&context, &state)?;
            let view = machine.engine().view(&state).map_err(refused)?;
            read_keys(&view, &request, bytes_max)
        };
        Ok(Response::new(replica.read_when(read).await?))
    }

    async fn scan(&self, request: Request<v1::ShardScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let request = request.into_inner();
        let context = convert::context(request.context.as_ref())?;
        let state = convert::state(request.state.as_ref(), "state")?;
        let replica = self.replica(request.group)?;
        let Some(scan) = request.scan else {
            return Err(Refusal::new(Reason::InvalidArgument, "scan is missing").into());
        };
        let source = Source { replica, context, state };
        // The first look decides whether there is a stream at all, so that refusals come as the call's own status.
        source.replica.read_when(move |machine| machine.readable(&context, &state)).await?;
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE_MAX);
        tokio::spawn(async move {
            let done = match scan {
                Scan::Range(range) => source.range(range, &sender).await,
                Scan::History(history) => source.history(history, &sender).await,
                Scan::Diff(diff) => source.diff(diff, &sender).await,
                Scan::Journal(journal) => source.journal(journal, &sender).await,
            };
            if let Err(refusal) = done {
                // A caller that has gone needs no error.
                let _ = sender.send(Err(refusal.into())).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn refused(error: coppice_engine::Error) -> Refusal {
    Refusal::new(error.reason(), error.to_string())
}

fn read_keys(
    view: &View<'_>,
    request: &v1::ShardReadRequest,
    bytes_max: usize,
) -> Result<v1::ShardReadResponse, Refusal> {
    let mut records = Vec::with_capacity(request.keys.len().min(PAGE_RECORDS_MAX));
    let mut bytes = 0_usize;
    for key in &request.keys {
        let record = match view.get(key, request.want_values).map_err(refused)? {
            Some(record) => convert::to_record(record),
            None => convert::to_absent(key.clone(), None),
        };
        bytes += record_bytes(&record);
        check_answer(bytes, bytes_max)?;
        records.push(record);
    }
    let mut trees = Bytes::new();
    if request.want_proof {
        let keys: Vec<&[u8]> = request.keys.iter().map(AsRef::as_ref).collect();
        trees = view.prove_keys(&keys).map_err(refused)?.into();
        check_answer(bytes + trees.len(), bytes_max)?;
    }
    Ok(v1::ShardReadResponse { records, trees })
}

fn check_answer(bytes: usize, bytes_max: usize) -> Result<(), Refusal> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Refusal::new(Reason::LimitExceeded, format!("the answer is over the message limit of {bytes_max} bytes")))
}

/// About what a record takes in a message.
fn record_bytes(record: &v1::ShardRecord) -> usize {
    record.key.len() + record.value.len() + 80
}

/// What a scan reads from: named exactly, looked up anew for every page, so that nothing is held while the caller is slow.
#[derive(Clone)]
struct Source {
    replica: Handle,
    context: Context,
    state: ShardState,
}

impl Source {
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&View<'_>) -> Result<T, coppice_engine::Error> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Self { context, state, .. } = *self;
        let read = move |machine: &ShardMachine| {
            machine.readable(&context, &state)?;
            read(&machine.engine().view(&state).map_err(refused)?).map_err(refused)
        };
        self.replica.read(read).await
    }

    async fn range(&self, range: v1::RangeScan, sender: &Sender) -> Result<(), Refusal> {
        let limit = if range.limit == 0 { usize::MAX } else { range.limit as usize };
        let (mut low, mut left) = (range.low.clone(), limit);
        let more = loop {
            let (from, high, want) = (low.clone(), range.high.clone(), left.min(PAGE_RECORDS_MAX));
            let read = move |view: &View<'_>| view.range_part(&from, high.as_deref(), want, SCAN_CHUNK_BYTES, true);
            let RangePage { records, more } = self.read(read).await?;
            left -= records.len();
            let records: Vec<_> = records.into_iter().map(convert::to_record).collect();
            if let Some(last) = records.last() {
                low = after(&last.key);
            }
            if !send(sender, records, Vec::new(), None).await {
                return Ok(());
            }
            if !more || left == 0 {
                break more;
            }
        };
        let mut trees = Bytes::new();
        if range.want_proof {
            let high = if more { Some(low) } else { range.high };
            trees = self.read(move |view| view.prove_range(&range.low, high.as_deref())).await?.into();
        }
        send(sender, Vec::new(), Vec::new(), Some(v1::ScanEnd { trees, more })).await;
        Ok(())
    }

    async fn history(&self, history: v1::HistoryScan, sender: &Sender) -> Result<(), Refusal> {
        let mut left = if history.limit == 0 { usize::MAX } else { history.limit as usize };
        let mut below = None;
        let more = loop {
            let (key, want) = (history.key.clone(), left.min(PAGE_RECORDS_MAX));
            let read = move |view: &View<'_>| view.history_part(&key, below, want, SCAN_CHUNK_BYTES);
            let HistoryPage { changes, more } = self.read(read).await?;
            left -= changes.len();
            below = changes.last().map(|change| change.stamp.version).or(below);
            let wire = |change: KeyChange| match change.record {
                Some(record) => convert::to_record(record),
                None => convert::to_absent(history.key.clone(), Some(change.stamp)),
            };
            if !send(sender, changes.into_iter().map(wire).collect(), Vec::new(), None).await {
                return Ok(());
            }
            if !more || left == 0 {
                break more;
            }
        };
        send(sender, Vec::new(), Vec::new(), Some(v1::ScanEnd { trees: Bytes::new(), more })).await;
        Ok(())
    }

    async fn diff(&self, diff: v1::DiffScan, sender: &Sender) -> Result<(), Refusal> {
        let from = convert::state(diff.from.as_ref(), "from")?;
        let Self { context, state, .. } = *self;
        let mut next = Some(Vec::from(diff.low));
        while let Some(low) = next {
            let high = diff.high.clone();
            let read = move |machine: &ShardMachine| {
                machine.readable(&context, &state)?;
                let view = machine.engine().view(&state).map_err(refused)?;
                let before = machine.engine().view(&from).map_err(refused)?;
                let high = high.as_deref();
                view.diff_part(&before, &low, high, PAGE_RECORDS_MAX, SCAN_CHUNK_BYTES).map_err(refused)
            };
            let page = self.replica.read(read).await?;
            next = page.next;
            let (mut befores, mut afters) = (Vec::new(), Vec::new());
            for (before, after) in page.differences {
                let record = before.as_ref().or(after.as_ref());
                let key = record.map(|record| Bytes::copy_from_slice(&record.key)).unwrap_or_default();
                let wire = |record: Option<_>| {
                    record.map_or_else(|| convert::to_absent(key.clone(), None), convert::to_record)
                };
                befores.push(wire(before));
                afters.push(wire(after));
            }
            if !send(sender, afters, befores, None).await {
                return Ok(());
            }
        }
        send(sender, Vec::new(), Vec::new(), Some(v1::ScanEnd::default())).await;
        Ok(())
    }

    /// Kept journals of the versions that the state builds on, page by page.
    async fn journal(&self, scan: v1::JournalScan, sender: &Sender) -> Result<(), Refusal> {
        let Self { context, state, .. } = *self;
        let to = Version(scan.to_version).min(state.version);
        let mut from = Version(scan.from_version);
        while from <= to {
            let read = move |machine: &ShardMachine| {
                machine.readable(&context, &state)?;
                machine.engine().journals(&state, from, to, SCAN_CHUNK_BYTES).map_err(refused)
            };
            let page = self.replica.read(read).await?;
            let Some(last) = page.last().map(|kept| kept.version) else { break };
            let mut journals = Vec::with_capacity(page.len());
            for kept in page {
                let broken = |_| Refusal::new(Reason::Corrupted, "a kept journal is malformed");
                let lists = decode_journal(&kept.bytes).map_err(broken)?.into_iter().map(Bytes::from).collect();
                journals.push(v1::ShardJournal { version: kept.version.0, lists });
            }
            let message = v1::ShardScanResponse { journals, ..v1::ShardScanResponse::default() };
            if sender.send(Ok(message)).await.is_err() {
                return Ok(());
            }
            from = last.next();
        }
        send(sender, Vec::new(), Vec::new(), Some(v1::ScanEnd::default())).await;
        Ok(())
    }
}

/// The least key above `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}

/// Sends one message; `false` if the caller has gone.
async fn send(
    sender: &Sender,
    records: Vec<v1::ShardRecord>,
    before: Vec<v1::ShardRecord>,
    end: Option<v1::ScanEnd>,
) -> bool {
    let message = v1::ShardScanResponse { records, before, end, journals: Vec::new() };
    sender.send(Ok(message)).await.is_ok()
}
