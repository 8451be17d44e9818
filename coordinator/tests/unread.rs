//! Callers that request large answers and never read them do not delay other callers.

mod common;

use std::{future::Future, time::Duration};

use bytes::Bytes;
use common::{LIMIT, World, commit, put, team};
use coppice_proto::{
    Channel, status,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{Params, Reason};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Streams of each kind: more than the windows of one connection can hold.
const UNREAD: usize = 24;
/// How long other callers may wait for an answer. Unread streams are cut off much later.
const PATIENCE: Duration = Duration::from_secs(10);

async fn in_time<T>(what: &str, call: impl Future<Output = Result<T, tonic::Status>>) -> T {
    let answer = timeout(PATIENCE, call).await.unwrap_or_else(|_| panic!("{what} takes too long"));
    answer.unwrap_or_else(|status| panic!("{what}: {status}"))
}

/// A client with its own connection.
fn client(world: &World, name: &str) -> LedgerClient<Channel> {
    LedgerClient::new(world.net.connector("client").channel(name)).max_decoding_message_size(16 << 20)
}

/// Fills both shards with 12 MiB each.
async fn fill(client: &mut LedgerClient<Channel>) {
    let value = "x".repeat(512 << 10);
    for at in 0..12 {
        let operations = ["a", "z"].map(|shard| put(&format!("{shard}{at:02}"), &value)).to_vec();
        let more = ["b", "y"].map(|shard| put(&format!("{shard}{at:02}"), &value));
        in_time("a load", client.commit(commit([operations, more.to_vec()].concat(), Vec::new()))).await;
    }
}

/// Opens a stream and takes only its first message, which shows that it has begun.
async fn begin<T>(
    what: &str,
    stream: impl Future<Output = Result<tonic::Response<Streaming<T>>, tonic::Status>>,
) -> Streaming<T> {
    let mut stream = in_time(what, stream).await.into_inner();
    in_time(what, stream.message()).await.expect("there is something in it");
    stream
}

/// Another caller reads and writes, several times over.
async fn everybody_goes_on(world: &World, name: &str) {
    let mut other = client(world, name);
    for at in 0..20 {
        in_time("a head", other.head(v1::HeadRequest::default())).await;
        let get = v1::GetRequest { key: Bytes::from_static(b"a00"), read: None };
        let record = in_time("a get", other.get(get)).await.into_inner().record.expect("a record");
        assert!(record.found);
        let operations = vec![put(&format!("c{at}"), "1"), put(&format!("x{at}"), "1")];
        in_time("a commit", other.commit(commit(operations, Vec::new()))).await;
        let range = v1::RangeRequest { low: "c".into(), high: Some("d".into()), ..v1::RangeRequest::default() };
        begin("a range", other.range(range)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_streams_delay_no_other_caller() {
    let world = World::new(Params { journals_kept: true, ..Params::default() }).await;
    let mut running = world.leader().await;
    fill(&mut running.client).await;
    // Each stream has its own connection, so a full window delays that stream alone.
    let mut ranges = Vec::new();
    for _ in 0..UNREAD {
        let mut client = client(&world, "a");
        ranges.push(begin("a range", client.range(v1::RangeRequest::default())).await);
    }
    everybody_goes_on(&world, "a").await;
    let mut diffs = Vec::new();
    for _ in 0..UNREAD {
        let mut client = client(&world, "a");
        let from = Some(v1::Stamp { epoch: 0, version: 0 });
        diffs.push(begin("a diff", client.diff(v1::DiffRequest { from, ..v1::DiffRequest::default() })).await);
    }
    everybody_goes_on(&world, "a").await;
    let mut journals = Vec::new();
    for _ in 0..UNREAD {
        let mut client = client(&world, "a");
        journals.push(begin("a journal", client.journal(v1::JournalRequest::default())).await);
    }
    let mut watches = Vec::new();
    for _ in 0..UNREAD {
        let mut client = client(&world, "a");
        let want = v1::WatchHeadsRequest { want_changed_values: true, ..v1::WatchHeadsRequest::default() };
        watches.push(begin("a watch", client.watch_heads(want)).await);
    }
    everybody_goes_on(&world, "a").await;
    // Unread messages are still there for a reader that comes late.
    let mut bytes = 0;
    let mut first = ranges.swap_remove(0);
    while let Some(message) = in_time("the rest", first.message()).await {
        bytes += message.records.iter().map(|record| record.value.len()).sum::<usize>();
    }
    assert!(bytes > 20 << 20, "all of it comes: {bytes}");
}

/// The reason why a stream ended.
async fn ended<T>(answers: &mut Streaming<T>) -> tonic::Status {
    loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return tonic::Status::ok("there was no more to answer"),
            Err(status) => return status,
        }
    }
}

/// Opens a stream of writes. The leader may change at any time on a busy machine, so a writer whose
/// stream met the old leader opens another one.
async fn open(
    writer: &mut LedgerClient<Channel>,
) -> Result<(mpsc::Sender<v1::CommitStreamRequest>, Streaming<v1::CommitStreamResponse>), tonic::Status> {
    loop {
        let (batches, requests) = mpsc::channel(1);
        match writer.commit_stream(ReceiverStream::new(requests)).await {
            Ok(answers) => return Ok((batches, answers.into_inner())),
            Err(refused) if status::reason(&refused) == Some(Reason::NotLeader) => {}
            Err(other) => return Err(other),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_of_a_writer_delay_no_other_forwarded_write() {
    let team = team::Team::new(team::embedded()).await;
    let leader = team.leader().await;
    let passes = team::NAMES.into_iter().find(|name| *name != leader).expect("there are three");
    let mut first = client(&team.world, passes);
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut writer = client(&team.world, passes);
        let session_id = Bytes::copy_from_slice(&[u8::try_from(streams.len()).expect("few") + 1; 16]);
        in_time("a session", first.open_session(v1::OpenSessionRequest { session_id: session_id.clone() })).await;
        let (batches, mut answers) = in_time("a stream", open(&mut writer)).await;
        // Reads until the budget is full of answers that nobody takes.
        let key = format!("k{}", streams.len());
        let mut number = 0;
        loop {
            number += 1;
            // Answers must not be too small: the HTTP/2 library treats many small unread ones as an
            // attack and ends the connection.
            let batch = v1::Batch { operations: vec![put(&key, &"1".repeat(1 << 10))], ..v1::Batch::default() };
            let session_id = session_id.clone();
            let message = v1::CommitStreamRequest { session_id, number, batch: Some(batch), want_receipt: true };
            match timeout(Duration::from_secs(2), batches.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => panic!("the stream ended: {:?}", ended(&mut answers).await),
                Err(_) => break,
            }
        }
        streams.push((batches, answers));
    }
    for at in 0..20 {
        let operations = vec![put(&format!("c{at}"), "1")];
        in_time("a commit", first.commit(commit(operations, Vec::new()))).await;
    }
    drop(streams);
    assert!(timeout(LIMIT, team.leader()).await.is_ok());
}
