//! The command against a server that lies: each command ends in time and in bounded memory, with an
//! error that says what was wrong.

use std::{
    fs,
    net::SocketAddr,
    pin::Pin,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use coppice_proto::v1::{self, ledger_server::LedgerServer};
use coppice_types::{ClusterId, Params, Sequence};
use coppice_verify::{header::Header, replay::Ledger as Model, shard_map::ShardMap};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// Longest time of a command, in a debug build on a busy machine: an attempt waits for 30 s.
const LIMIT: Duration = Duration::from_secs(100);
/// Most memory that a command may have at its peak.
const MEMORY_KIB_MAX: u64 = 512 << 10;
/// A name and key that no ledger here has: commands that trust it accept nothing.
const VKEY: &str = "ledger.example/09090909090909090909090909090909";

type Many<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;
type Flow<T> = Answer<Many<T>>;

/// A coordinator that answers as the name of its lie says.
struct Liar(&'static str);

fn endless<T: Send + 'static>(make: impl Fn(u64) -> T + Send + 'static) -> Flow<T> {
    Ok(Response::new(Box::pin(tokio_stream::iter(0..).map(move |at| Ok(make(at))))))
}

fn silent<T: Send + 'static>() -> Flow<T> {
    Ok(Response::new(Box::pin(tokio_stream::pending())))
}

fn once<T: Send + 'static>(message: T) -> Flow<T> {
    Ok(Response::new(Box::pin(tokio_stream::once(Ok(message)))))
}

fn record(key: String, value: usize) -> v1::Record {
    let last_changed = Some(v1::Stamp { epoch: 0, version: 1 });
    v1::Record { key: key.into_bytes().into(), found: true, value: vec![b'v'; value].into(), last_changed }
}

fn records(records: Vec<v1::Record>) -> v1::RangeResponse {
    v1::RangeResponse { records, end: None }
}

fn headers() -> Vec<Header> {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut model = Model::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
    (0..3).for_each(|_| model.append_unknown(9, Vec::new()));
    model.headers
}

/// More parts than any message of a ledger has.
const PARTS: usize = 300_000;

macro_rules! refused {
    ($($name:ident: $request:ty => $response:ty;)*) => {
        $(fn $name<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<$response>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(Status::unimplemented("not in this play")) })
        })*
    };
}

#[tonic::async_trait]
impl v1::ledger_server::Ledger for Liar {
    type CommitStreamStream = Many<v1::CommitStreamResponse>;
    type QueryBatchStream = Many<v1::QueryBatchResponse>;
    type RangeStream = Many<v1::RangeResponse>;
    type HistoryStream = Many<v1::HistoryResponse>;
    type DiffStream = Many<v1::DiffResponse>;
    type WatchHeadsStream = Many<v1::WatchHeadsResponse>;
    type JournalStream = Many<v1::JournalResponse>;
    type WitnessStream = Many<v1::WitnessRequest>;
    type ListLedgersStream = Many<v1::ListLedgersResponse>;
    type ListMembersStream = Many<v1::ListMembersResponse>;

    async fn open_session(&self, _: Request<v1::OpenSessionRequest>) -> Answer<v1::OpenSessionResponse> {
        let highest_number = if self.0 == "numbers used up" { u64::MAX } else { 0 };
        Ok(Response::new(v1::OpenSessionResponse { highest_number, ..Default::default() }))
    }

    async fn commit(&self, _: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        Ok(Response::new(v1::CommitResponse {
            header: vec![7; 99].into(),
            stamp: Some(Default::default()),
            ..Default::default()
        }))
    }

    async fn commit_stream(&self, _: Request<Streaming<v1::CommitStreamRequest>>) -> Flow<v1::CommitStreamResponse> {
        endless(|at| v1::CommitStreamResponse { number: 1 + at / 2, commit: Some(v1::CommitResponse::default()) })
    }

    async fn range(&self, _: Request<v1::RangeRequest>) -> Flow<v1::RangeResponse> {
        match self.0 {
            "one key again and again" => endless(|_| records(vec![record("k".to_owned(), 1)])),
            "keys that fall" => endless(|at| records(vec![record(format!("k{:09}", 999_999_999 - at), 1)])),
            "nothing again and again" => endless(|_| records(Vec::new())),
            "ever more" => endless(|at| records(vec![record(format!("k{at:09}"), 1 << 20)])),
            "silence" => silent(),
            "many parts" => once(records(vec![v1::Record::default(); PARTS])),
            _ => Err(Status::unknown("x".repeat(100_000))),
        }
    }

    async fn history(&self, _: Request<v1::HistoryRequest>) -> Flow<v1::HistoryResponse> {
        match self.0 {
            "silence" => silent(),
            _ => endless(|_| v1::HistoryResponse { change: Some(record("k".to_owned(), 1)), truncated: false }),
        }
    }

    async fn diff(&self, _: Request<v1::DiffRequest>) -> Flow<v1::DiffResponse> {
        let pair =
            || v1::Difference { before: Some(record("k".to_owned(), 1)), after: Some(record("k".to_owned(), 2)) };
        match self.0 {
            "silence" => silent(),
            "many parts" => once(v1::DiffResponse { differences: vec![pair()] }),
            _ => endless(move |_| v1::DiffResponse { differences: vec![pair()] }),
        }
    }

    async fn query_batch(&self, _: Request<v1::QueryBatchRequest>) -> Flow<v1::QueryBatchResponse> {
        let record = || record("k".to_owned(), 1);
        let part = move |at: u64| v1::QueryBatchResponse {
            places: vec![0],
            records: vec![record()],
            unchanged_since: vec![1],
            read_at: Some(v1::Stamp { epoch: 0, version: u64::MAX - at }),
            ..Default::default()
        };
        match self.0 {
            "silence" => silent(),
            "many parts" => once(v1::QueryBatchResponse { records: vec![v1::Record::default(); PARTS], ..part(0) }),
            _ => endless(part),
        }
    }

    async fn batch_get(&self, _: Request<v1::BatchGetRequest>) -> Answer<v1::BatchGetResponse> {
        Ok(Response::new(v1::BatchGetResponse { records: vec![v1::Record::default(); PARTS], ..Default::default() }))
    }

    async fn head(&self, _: Request<v1::HeadRequest>) -> Answer<v1::HeadResponse> {
        std::future::pending().await
    }

    async fn get_header(&self, request: Request<v1::GetHeaderRequest>) -> Answer<v1::GetHeaderResponse> {
        let _ = request;
        Ok(Response::new(v1::GetHeaderResponse { header: headers()[0].encode().into() }))
    }

    async fn watch_heads(&self, request: Request<v1::WatchHeadsRequest>) -> Flow<v1::WatchHeadsResponse> {
        let from = request.into_inner().from_sequence;
        match self.0 {
            "silence" => silent(),
            _ => endless(move |_| {
                let which = usize::from(from > 0);
                let header = Header { sequence: Sequence(from), ..headers()[which].clone() };
                v1::WatchHeadsResponse { header: header.encode().into(), ..Default::default() }
            }),
        }
    }

    async fn rotate_key(&self, _: Request<v1::RotateKeyRequest>) -> Answer<v1::AdminResponse> {
        let header = Header { sequence: Sequence(u64::MAX), ..headers()[1].clone() };
        Ok(Response::new(v1::AdminResponse {
            header: header.encode().into(),
            head: Some(Default::default()),
            ..Default::default()
        }))
    }

    async fn anchor(&self, _: Request<v1::AnchorRequest>) -> Answer<v1::AnchorResponse> {
        Ok(Response::new(v1::AnchorResponse { header: vec![7; 1 << 20].into() }))
    }

    async fn get_interval(&self, _: Request<v1::GetIntervalRequest>) -> Answer<v1::GetIntervalResponse> {
        Ok(Response::new(v1::GetIntervalResponse { proof: vec![7; 1 << 20].into() }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let replicas = vec![v1::ReplicaStatus { note: "x".repeat(100), ..Default::default() }; PARTS / 10];
        let groups = vec![v1::GroupStatus { replicas, ..Default::default() }];
        Ok(Response::new(v1::StatusResponse { groups, ..Default::default() }))
    }

    async fn list_pins(&self, _: Request<v1::ListPinsRequest>) -> Answer<v1::ListPinsResponse> {
        Ok(Response::new(v1::ListPinsResponse { pins: vec![v1::VersionPin::default(); PARTS] }))
    }

    async fn get_checkpoint(&self, _: Request<v1::GetCheckpointRequest>) -> Answer<v1::GetCheckpointResponse> {
        Ok(Response::new(v1::GetCheckpointResponse { standing: vec![7; 1 << 20].into(), ..Default::default() }))
    }

    async fn time(&self, _: Request<v1::TimeRequest>) -> Answer<v1::TimeResponse> {
        Ok(Response::new(v1::TimeResponse { is_final: true, proof: vec![7; 1 << 20].into(), ..Default::default() }))
    }

    async fn witness(&self, _: Request<Streaming<v1::WitnessAnswer>>) -> Flow<v1::WitnessRequest> {
        Err(Status::unimplemented("nothing is asked"))
    }

    async fn journal(&self, _: Request<v1::JournalRequest>) -> Flow<v1::JournalResponse> {
        endless(|_| v1::JournalResponse::default())
    }

    async fn list_ledgers(&self, _: Request<v1::ListLedgersRequest>) -> Flow<v1::ListLedgersResponse> {
        match self.0 {
            "silence" => silent(),
            _ => endless(|_| v1::ListLedgersResponse { name: "grain".to_owned(), ..Default::default() }),
        }
    }

    async fn describe_ledger(&self, _: Request<v1::DescribeLedgerRequest>) -> Answer<v1::DescribeLedgerResponse> {
        Ok(Response::new(v1::DescribeLedgerResponse { id: vec![7; 16].into(), size: u64::MAX, ..Default::default() }))
    }

    async fn list_members(&self, _: Request<v1::ListMembersRequest>) -> Flow<v1::ListMembersResponse> {
        endless(|at| v1::ListMembersResponse { id: at.to_be_bytes().to_vec().into(), ..Default::default() })
    }

    async fn get_member(&self, _: Request<v1::GetMemberRequest>) -> Answer<v1::GetMemberResponse> {
        Ok(Response::new(v1::GetMemberResponse { record: vec![7; 1 << 20].into(), ..Default::default() }))
    }

    async fn get_journals(&self, _: Request<v1::GetJournalsRequest>) -> Answer<v1::GetJournalsResponse> {
        let journals = match self.0 {
            "many parts" => vec![v1::LedgerJournal::default(); PARTS],
            // The ledger has more journals, and none of them comes.
            _ => Vec::new(),
        };
        Ok(Response::new(v1::GetJournalsResponse { journals, size: u64::MAX, ..Default::default() }))
    }

    async fn get_lineage(&self, _: Request<v1::GetLineageRequest>) -> Answer<v1::GetLineageResponse> {
        Ok(Response::new(v1::GetLineageResponse { count: u64::MAX, ..Default::default() }))
    }

    async fn get_ledger_hashes(&self, _: Request<v1::GetLedgerHashesRequest>) -> Answer<v1::GetLedgerHashesResponse> {
        Ok(Response::new(v1::GetLedgerHashesResponse { size: u64::MAX, ..Default::default() }))
    }

    async fn verify_journal(&self, _: Request<v1::VerifyJournalRequest>) -> Answer<v1::VerifyJournalResponse> {
        Ok(Response::new(v1::VerifyJournalResponse { valid: true, ..Default::default() }))
    }

    async fn get_ledger_records(
        &self,
        _: Request<v1::GetLedgerRecordsRequest>,
    ) -> Answer<v1::GetLedgerRecordsResponse> {
        Ok(Response::new(v1::GetLedgerRecordsResponse::default()))
    }

    async fn erasure_status(&self, _: Request<v1::ErasureStatusRequest>) -> Answer<v1::ErasureStatusResponse> {
        Ok(Response::new(v1::ErasureStatusResponse { done: true, ..Default::default() }))
    }

    refused! {
        stage: v1::StageRequest => v1::StageResponse;
        finalize: v1::FinalizeRequest => v1::CommitResponse;
        discard: v1::DiscardRequest => v1::DiscardResponse;
        get: v1::GetRequest => v1::GetResponse;
        prune: v1::PruneRequest => v1::AdminResponse;
        rollback: v1::RollbackRequest => v1::AdminResponse;
        pin: v1::PinRequest => v1::PinResponse;
        unpin: v1::UnpinRequest => v1::UnpinResponse;
        append: v1::AppendRequest => v1::AppendResponse;
        transfer_leader: v1::TransferLeaderRequest => v1::TransferLeaderResponse;
    }
}

/// Serves a lie until the runtime ends. Returns its endpoint.
async fn serve(lie: &'static str) -> String {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
    let address = listener.local_addr().expect("it listens");
    let ledger = LedgerServer::new(Liar(lie)).max_encoding_message_size(usize::MAX);
    tokio::spawn(Server::builder().add_service(ledger).serve_with_incoming(TcpListenerStream::new(listener)));
    format!("http://{address}")
}

/// The peak memory of a process so far.
fn peak_kib(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a command to its end; fails if it takes too long or too much memory.
#[expect(clippy::disallowed_methods, reason = "a real process is watched: its memory is looked at again and again")]
fn run(lie: &str, endpoint: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice"));
    command.args(args).env_clear().env("COPPICE_ENDPOINT", endpoint).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
    let (began, mut peak) = (Instant::now(), 0);
    while child.try_wait().expect("it is ours").is_none() {
        peak = peak.max(peak_kib(&child).unwrap_or(0));
        if began.elapsed() > LIMIT {
            // The process is this test's own child.
            let _ = child.kill();
            panic!("{lie}: `{}` goes on after {LIMIT:?}", args.join(" "));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let (ms, mib) = (began.elapsed().as_millis(), peak >> 10);
    println!("| {lie} | `{}` | {ms} ms | {mib} MiB |", args.join(" "));
    assert!(peak < MEMORY_KIB_MAX, "{lie}: `{}` had {peak} KiB in memory", args.join(" "));
    child.wait_with_output().expect("it has ended")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_command_ends_in_time_and_memory_and_says_what_was_wrong_with_the_answers() {
    let dir = tempfile::tempdir().expect("a directory");
    let lines = dir.path().join("lines");
    fs::write(&lines, "{\"put\":[[\"a\",\"1\"]]}\n").expect("written");
    let lines = lines.to_str().expect("a path");
    let queries = dir.path().join("queries");
    fs::write(&queries, format!("{{\"key\":\"k\",\"version\":{},\"since_version\":0}}\n", u64::MAX)).expect("written");
    let queries = queries.to_str().expect("a path");
    let last = u64::MAX.to_string();
    let key = coppice_verify::note::SignerKey::from_seed(VKEY, &[1; 32]).expect("a key").verifier().to_string();
    let plays: Vec<(&'static str, Vec<&str>, &str)> = vec![
        ("numbers used up", vec!["commit", "--put", "a=1"], "numbers are used up"),
        ("numbers used up", vec!["load", lines], "numbers are used up"),
        ("nonsense", vec!["load", lines], "makes no sense"),
        ("nonsense", vec!["commit", "--put", "a=1"], "makes no sense"),
        ("one key again and again", vec!["range", "", ""], "keys out of order"),
        ("one key again and again", vec!["range", "", "", "--trust", &key], "keys out of order"),
        ("keys that fall", vec!["range", "", ""], "keys out of order"),
        ("keys that fall", vec!["range", "x", "y"], "outside of what was asked for"),
        ("nothing again and again", vec!["range", "", ""], "neither goes on nor ends"),
        ("ever more", vec!["range", "", "", "--limit", "3"], "more than was asked for"),
        ("ever more", vec!["range", "", "", "--trust", &key], "128 MiB"),
        ("many parts", vec!["range", "", ""], "more parts"),
        ("many parts", vec!["merge", "--base", "0", "--left", "0", "--right", "0"], "more parts"),
        ("many parts", vec!["pins"], "more parts"),
        ("many parts", vec!["status"], "longer than any"),
        ("a long message", vec!["range", "", ""], ""),
        ("repeated", vec!["history", "k"], "do not go back"),
        ("repeated", vec!["diff", "1", "2"], "keys out of order"),
        ("repeated", vec!["query", queries], "an answer of another version"),
        ("repeated", vec!["query", queries, "--trust", &key], "proof"),
        ("many parts", vec!["query", queries], "more parts"),
        ("silence", vec!["query", queries], "sent nothing"),
        ("repeated", vec!["log"], "leave one out or repeat one"),
        ("repeated", vec!["log", "--from", &last], "leave one out or repeat one"),
        ("repeated", vec!["log", "--follow"], "leave one out or repeat one"),
        ("repeated", vec!["audit", "--key", &key], "proof"),
        ("the last entry", vec!["rotate-key", &key, "--reason", "r"], ""),
        ("silence", vec!["range", "", ""], "sent nothing"),
        ("silence", vec!["history", "k"], "sent nothing"),
        ("silence", vec!["diff", "1", "2"], "sent nothing"),
        ("silence", vec!["log"], "sent nothing"),
        ("silence", vec!["head"], "no answer"),
        ("nonsense", vec!["time", "--at", "1"], "no version"),
        ("nonsense", vec!["time", "--at", "1", "--trust", &key], "proof"),
        ("nonsense", vec!["get", "k", "--at-time", "1", "--trust", &key], "proof"),
        ("silence", vec!["ledger", "list"], "sent nothing"),
        ("repeated", vec!["ledger", "list"], "names that do not ascend"),
        ("many parts", vec!["ledger", "get", "grain", "1"], "more parts"),
        ("nonsense", vec!["ledger", "journals", "grain"], "more than was asked for"),
        ("nonsense", vec!["ledger", "lineage", "grain", "lot-7"], "makes no sense"),
        ("nonsense", vec!["ledger", "show", "grain"], "makes no sense"),
        ("nonsense", vec!["ledger", "members", "grain"], "makes no sense"),
        ("nonsense", vec!["ledger", "journals", "grain", "--trust", &key], "proof"),
    ];
    let mut running = Vec::new();
    for (lie, args, says) in plays {
        let endpoint = serve(lie).await;
        let (args, says): (Vec<String>, String) = (args.into_iter().map(str::to_owned).collect(), says.to_owned());
        running.push(tokio::task::spawn_blocking(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let output = run(lie, &endpoint, &args);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            let name = format!("{lie}: `{}`", args.join(" "));
            assert!(!error.contains("panicked"), "{name}: {error}");
            let code = output.status.code();
            assert!(
                code.is_some_and(|code| (1..=5).contains(&code)) || args[0] == "rotate-key",
                "{name}: {code:?}, {error}"
            );
            assert!(error.contains(&says), "{name}: {error}");
            assert!(error.len() < 32 << 10, "{name}: an error of {} bytes", error.len());
        }));
    }
    for play in running {
        play.await.expect("it holds");
    }
}
