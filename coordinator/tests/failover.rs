//! Several coordinators, each of which takes writes. After any fault of the leader, another
//! coordinator commits, no acknowledged commit is lost, and none is applied twice.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use coppice_env::SystemClock;
use coppice_metadata::{EtcdOptions, EtcdStore, Kind, LeaseId, Member, Metadata, testing::Etcd};
use coppice_proto::{
    Channel, status,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::Params;
use coppice_types::{ErrorKind, Reason};
use coppice_verify::header::Header;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_stream::iter;
use tonic::{
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
    transport::Server,
};

mod common;

use common::{
    CLUSTER, LIMIT, Running, World, absent, at, bytes, commit, get, put, reason,
    team::{NAMES, Team, embedded, fresh_store},
};

/// One client's acknowledged commits, each with the key that it wrote.
type Acknowledged = Vec<(String, v1::CommitResponse)>;

/// Clients that write through every coordinator, each in a session. If a coordinator does not
/// answer, its client goes to another one.
struct Load {
    stop: Arc<AtomicBool>,
    /// When commits were acknowledged.
    times: Arc<Mutex<Vec<Instant>>>,
    clients: Vec<JoinHandle<Acknowledged>>,
}

impl Load {
    fn start(team: &Team) -> Self {
        let (stop, times) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let client = |first: usize| {
            let coordinators: Vec<_> = NAMES.iter().map(|name| team.client(name)).collect();
            tokio::spawn(write(first, coordinators, stop.clone(), times.clone()))
        };
        let clients = (0..NAMES.len()).map(client).collect();
        Self { stop, times, clients }
    }

    fn count(&self) -> usize {
        self.times.lock().expect("no holder panics").len()
    }

    /// Waits for this many more commits.
    async fn more(&self, count: usize) {
        let enough = self.count() + count;
        let wait = async {
            while self.count() < enough {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, wait).await.expect("commits go on");
    }

    /// The longest time without a commit after `since`.
    fn gap_since(&self, since: Instant) -> Duration {
        let times = self.times.lock().expect("no holder panics");
        let after: Vec<_> = std::iter::once(since).chain(times.iter().copied().filter(|time| *time >= since)).collect();
        after.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Ends the load. Checks that every acknowledged commit stands once, under the header that was
    /// shown.
    async fn check(self, mut client: LedgerClient<Channel>) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.clients {
            let answers = timeout(LIMIT, writer).await.expect("it ends").expect("no client panics");
            assert!(!answers.is_empty(), "every client wrote something");
            for (key, answer) in answers {
                let stamp = answer.stamp.expect("a stamp");
                let record = client.get(get(&key, None)).await.expect("it is read").into_inner().record;
                assert_eq!(
                    record.expect("a record").last_changed,
                    Some(stamp),
                    "applied once, where it was acknowledged"
                );
                let which = Some(v1::get_header_request::Which::Version(stamp.version));
                let header = client.get_header(v1::GetHeaderRequest { which }).await.expect("it stands").into_inner();
                assert_eq!(header.header, answer.header, "no version is decided twice");
            }
        }
        check_log(&mut client).await;
    }
}

async fn write(
    first: usize,
    mut coordinators: Vec<LedgerClient<Channel>>,
    stop: Arc<AtomicBool>,
    times: Arc<Mutex<Vec<Instant>>>,
) -> Acknowledged {
    let session_id = bytes::Bytes::from(vec![u8::try_from(first).expect("few") + 1; 16]);
    let mut answers = Acknowledged::new();
    let mut at = first;
    let mut opened = false;
    while !stop.load(Ordering::Relaxed) {
        let api = &mut coordinators[at];
        if !opened {
            let open = api.open_session(v1::OpenSessionRequest { session_id: session_id.clone() });
            opened = matches!(timeout(Duration::from_secs(1), open).await, Ok(Ok(_)));
            at = (at + 1) % NAMES.len();
            continue;
        }
        let number = answers.len() as u64 + 1;
        let key = format!("{}-{first}-{number}", if number.is_multiple_of(2) { "a" } else { "z" });
        // If the batch were applied twice, the second time would be refused.
        let batch = commit(vec![put(&key, "1")], vec![absent(&key)]);
        let request = v1::CommitRequest { session_id: session_id.clone(), number, ..batch };
        // A paused coordinator does not answer, so its clients must ask another one.
        match timeout(Duration::from_millis(800), api.commit(request)).await {
            Ok(Ok(answer)) => {
                times.lock().expect("no holder panics").push(Instant::now());
                answers.push((key, answer.into_inner()));
                sleep(Duration::from_millis(10)).await;
            }
            Ok(Err(error)) => {
                assert_eq!(status::kind(&error), ErrorKind::Unavailable, "{error}");
                at = (at + 1) % NAMES.len();
                sleep(Duration::from_millis(10)).await;
            }
            Err(_) => at = (at + 1) % NAMES.len(),
        }
    }
    answers
}

/// Reads the log, beginning with genesis. Every header follows the one before.
async fn check_log(client: &mut LedgerClient<Channel>) {
    let request = v1::WatchHeadsRequest { from_sequence: 0, ..v1::WatchHeadsRequest::default() };
    let mut stream = client.watch_heads(request).await.expect("served").into_inner();
    let mut before: Option<Header> = None;
    while let Some(message) = stream.message().await.expect("served") {
        let header = Header::decode(&message.header).expect("it is canonical");
        if let Some(before) = &before {
            header.check_follows(before).expect("it follows");
        }
        before = Some(header);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_coordinator_takes_writes_and_tells_of_the_others() {
    let team = Team::new(embedded()).await;
    let leads = team.leader().await;
    for (number, name) in (1..).zip(NAMES) {
        let mut client = team.client(name);
        let answer = client.commit(commit(vec![put("k", name)], Vec::new())).await.expect("committed").into_inner();
        assert_eq!(answer.stamp, Some(at(0, number)), "through {name}");
        let read = client.get(get("k", None)).await.expect("is read").into_inner().record.expect("a record");
        assert_eq!(read.value, bytes(name));
        let staged = client.stage(v1::StageRequest::default()).await.expect_err("a batch is missing");
        assert_eq!(reason(&staged), Reason::InvalidArgument, "the leader's refusal is passed on");
    }
    let all_told = async {
        loop {
            let told = team.told_by("b").await;
            if told.coordinators.len() == NAMES.len() && told.leader == leads {
                return told;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let told = timeout(LIMIT, all_told).await.expect("all are registered in time");
    let names: Vec<_> = told.coordinators.iter().map(|one| (one.name.as_str(), one.address.as_str())).collect();
    assert_eq!(names, NAMES.map(|name| (name, name)));
    // A request is forwarded once: a coordinator that does not lead refuses a forwarded one and
    // names the leader.
    let other = NAMES.into_iter().find(|name| *name != leads).expect("there are three");
    let mut request = tonic::Request::new(commit(vec![put("k", "x")], Vec::new()));
    request.metadata_mut().insert("coppice-forwarded", tonic::metadata::MetadataValue::from_static("1"));
    let refused = team.client(other).commit(request).await.expect_err("it does not lead");
    assert_eq!(reason(&refused), Reason::NotLeader);
    assert_eq!(status::metadata(&refused, status::LEADER).as_deref(), Some(leads));
    assert_eq!(status::metadata(&refused, status::ADDRESS).as_deref(), Some(leads));
}

/// The faults that a leader suffers.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Killed,
    Paused,
    CutFromStore,
    CutFromRoot,
    ClockOff,
    Stopped,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_go_on_through_another_coordinator_whatever_befalls_the_leader() {
    let mut team = Team::new(embedded()).await;
    let load = Load::start(&team);
    load.more(20).await;
    for blow in [Blow::Killed, Blow::Paused, Blow::CutFromStore, Blow::CutFromRoot, Blow::ClockOff, Blow::Stopped] {
        let old = team.leader().await;
        let since = Instant::now();
        match blow {
            Blow::Killed => team.kill(old),
            Blow::Paused => team.pause(old),
            Blow::CutFromStore => team.reach_store(old, false),
            Blow::CutFromRoot => team.reach_nodes(old, false),
            // PROTOCOL 2.7, with a clock that was right at the takeover.
            Blow::ClockOff => team.set_ahead(old, Duration::from_secs(5)),
            Blow::Stopped => team.stop(old),
        }
        let new = team.leader_but(old).await;
        load.more(20).await;
        println!("leader {blow:?}: {old} to {new}, {:?} without a commit", load.gap_since(since));
        match blow {
            Blow::Killed => team.start(old),
            Blow::Paused => team.resume(old),
            Blow::CutFromStore => {}
            Blow::CutFromRoot => team.reach_nodes(old, true),
            Blow::ClockOff => team.set_ahead(old, Duration::ZERO),
            Blow::Stopped => {
                team.kill(old);
                team.start(old);
            }
        }
        // Even a leader that is cut off from the store learns that it was replaced.
        let learnt = async {
            while matches!(blow, Blow::Paused | Blow::CutFromStore | Blow::CutFromRoot)
                && team.leads(old)
                && team.leads(new)
            {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, learnt).await.expect("it learns in time");
        if matches!(blow, Blow::CutFromStore) {
            team.reach_store(old, true);
        }
        load.more(20).await;
    }
    let leads = team.leader().await;
    load.check(team.client(leads)).await;
}

/// The store only picks a candidate. While it is gone, the leader stays. A new empty store changes
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_goes_on_without_the_store_and_the_store_is_filled_again() {
    let team = Team::new(embedded()).await;
    let load = Load::start(&team);
    load.more(20).await;
    let leads = team.leader().await;
    for name in NAMES {
        team.reach_store(name, false);
    }
    let since = Instant::now();
    // Much longer than a lease.
    while since.elapsed() < Duration::from_secs(5) {
        load.more(10).await;
    }
    // Even if the root group is silent too, the leader stays: no other candidate could be picked.
    team.reach_nodes(leads, false);
    sleep(Duration::from_secs(3)).await;
    assert!(team.leads(leads), "silence ends no reign");
    team.reach_nodes(leads, true);
    load.more(20).await;
    assert!(team.leads(leads), "silence ends no reign");
    let fresh = fresh_store();
    // etcd names leases by time, so an old name does not come up again.
    for _ in 0..100 {
        let lease = fresh.grant(Duration::from_secs(1)).await.expect("answers");
        fresh.revoke(lease).await.expect("answers");
    }
    team.replace_store(&fresh);
    for name in NAMES {
        team.reach_store(name, true);
    }
    load.more(20).await;
    let filled = async {
        while team.told_by("a").await.coordinators.len() < NAMES.len() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, filled).await.expect("everyone registers again");
    load.more(20).await;
    let leads = team.leader().await;
    load.check(team.client(leads)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_etcd_is_lost_wiped_and_hands_the_leadership_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut etcd = Etcd::start(directory.path(), 1);
    let endpoints = etcd.endpoints();
    let connect = move || -> Arc<dyn Metadata> {
        let options = EtcdOptions::new(endpoints.clone(), CLUSTER);
        Arc::new(EtcdStore::connect(options).expect("the options are sound"))
    };
    let mut team = Team::new(Box::new(connect)).await;
    let load = Load::start(&team);
    load.more(20).await;
    let old = team.leader().await;
    let since = Instant::now();
    team.kill(old);
    let new = team.leader_but(old).await;
    load.more(20).await;
    println!("leader killed, etcd: {old} to {new}, {:?} without a commit", load.gap_since(since));
    team.start(old);
    // Without etcd the leader stays. A new, empty etcd is told everything again.
    etcd.kill(0);
    load.more(50).await;
    etcd.wipe(0);
    tokio::task::block_in_place(|| etcd.run(0));
    load.more(20).await;
    let filled = async {
        while team.told_by(old).await.coordinators.len() < NAMES.len() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, filled).await.expect("everyone registers again");
    // The candidates of the new etcd can lead.
    let last = team.leader().await;
    team.stop(last);
    let next = team.leader_but(last).await;
    load.more(20).await;
    load.check(team.client(next)).await;
}

/// Batches of a stream, beginning with number `from`. Each would be refused if it were applied a
/// second time.
fn stream_of(from: u64, count: u64) -> impl Iterator<Item = v1::CommitStreamRequest> + Send + 'static {
    (from..=count).map(|number| v1::CommitStreamRequest {
        session_id: vec![9; 16].into(),
        number,
        batch: commit(vec![put(&stream_key(number), "1")], vec![absent(&stream_key(number))]).batch,
        want_receipt: false,
    })
}

fn stream_key(number: u64) -> String {
    format!("{}-stream-{number}", if number.is_multiple_of(2) { "a" } else { "z" })
}

/// Writes a stream through one coordinator, and resumes it with the numbers that were not answered.
async fn write_stream(
    mut through: LedgerClient<Channel>,
    from: u64,
    count: u64,
    told: watch::Sender<u64>,
) -> Vec<v1::CommitResponse> {
    let mut answers = Vec::new();
    let mut next = from;
    let broken = |error: tonic::Status| {
        let kind = status::kind(&error);
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Fenced), "not a refusal: {error:?}");
    };
    while next <= count {
        let mut stream = match through.commit_stream(iter(stream_of(next, count))).await {
            Ok(stream) => stream.into_inner(),
            Err(error) => {
                broken(error);
                sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        loop {
            match stream.message().await {
                Ok(Some(answer)) => {
                    assert_eq!(answer.number, next, "answers come in order");
                    answers.push(answer.commit.expect("a commit"));
                    told.send_replace(next);
                    next += 1;
                }
                Ok(None) => break,
                Err(error) => break broken(error),
            }
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_through_another_coordinator_goes_on_whatever_befalls_the_leader() {
    let mut team = Team::new(embedded()).await;
    let open = v1::OpenSessionRequest { session_id: vec![9; 16].into() };
    team.client("a").open_session(open).await.expect("it is opened");
    let (mut from, mut before) = (1, (0, 0));
    for blow in [Blow::Killed, Blow::Paused] {
        let old = team.leader().await;
        let through = NAMES.into_iter().find(|name| *name != old).expect("there are three");
        let (told, mut answered) = watch::channel(0);
        let writer = tokio::spawn(write_stream(team.client(through), from, from + 499, told));
        let middle = answered.wait_for(|number| *number >= from + 50);
        timeout(LIMIT, middle).await.expect("it is on its way").expect("the writer lives");
        match blow {
            Blow::Killed => team.kill(old),
            _ => team.pause(old),
        }
        let answers = timeout(LIMIT, writer).await.expect("the stream goes on").expect("no writer panics");
        let new = team.leader_but(old).await;
        let mut client = team.client(new);
        for (number, answer) in (from..).zip(&answers) {
            let stamp = answer.stamp.expect("a stamp");
            let record = client.get(get(&stream_key(number), None)).await.expect("it is read").into_inner().record;
            assert_eq!(record.expect("a record").last_changed, Some(stamp), "applied once, where it was answered");
            assert!((stamp.epoch, stamp.version) >= before, "number {number} is applied after the one before it");
            before = (stamp.epoch, stamp.version);
        }
        from += 500;
        match blow {
            Blow::Killed => team.start(old),
            _ => team.resume(old),
        }
    }
    let leads = team.leader().await;
    check_log(&mut team.client(leads)).await;
}

/// A stand-in for a leader, which refuses calls and never reads a stream.
#[derive(Clone, Default)]
struct Deaf {
    /// Paths and headers of the calls that arrived.
    calls: Arc<Mutex<Vec<(String, http::HeaderMap)>>>,
}

impl NamedService for Deaf {
    const NAME: &'static str = "coppice.v1.Ledger";
}

impl Service<http::Request<Body>> for Deaf {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let is_stream = path.ends_with("CommitStream");
        self.calls.lock().expect("no holder panics").push((path, request.headers().clone()));
        Box::pin(async move {
            if is_stream {
                let _unread = request;
                std::future::pending::<()>().await;
            }
            Ok(status::refuse(Reason::ResourceExhausted, "refused").into_http())
        })
    }
}

/// A coordinator that takes `Deaf` for the leader, the store that names `Deaf`, and the leader's
/// lease.
async fn behind_a_deaf_leader() -> (World, Running, Deaf, (Arc<dyn Metadata>, LeaseId)) {
    let world = World::of(1, &[], Params::default()).await;
    let (deaf, store) = (Deaf::default(), fresh_store());
    let lease = store.grant(Duration::from_secs(60)).await.expect("answers");
    let member = Member { kind: Kind::Coordinator, name: "deaf".to_owned(), address: "deaf".to_owned() };
    store.register(lease, member).await.expect("answers");
    store.campaign(lease, "deaf").await.expect("it is the first");
    let incoming = world.net.listen("deaf");
    tokio::spawn(Server::builder().add_service(deaf.clone()).serve_with_incoming(incoming));
    let service = world.joined_service("b", store.clone(), Arc::new(SystemClock::new()));
    let running = world.run("b", service);
    (world, running, deaf, (store, lease))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_write_is_marked_and_takes_its_deadline_along() {
    let (_world, running, deaf, _store) = behind_a_deaf_leader().await;
    let mut client = running.client.clone();
    for asked in [Some(Duration::from_secs(7)), None] {
        let mut request = tonic::Request::new(commit(vec![put("k", "v")], Vec::new()));
        if let Some(asked) = asked {
            request.set_timeout(asked);
        }
        let refused = timeout(LIMIT, client.commit(request)).await.expect("in time").expect_err("the leader refuses");
        assert_eq!(reason(&refused), Reason::ResourceExhausted, "the leader's refusal is passed on");
        let (path, headers) = deaf.calls.lock().expect("no holder panics").pop().expect("it came there");
        assert_eq!(path, "/coppice.v1.Ledger/Commit");
        assert!(headers.contains_key("coppice-forwarded"), "{headers:?}");
        let limit = headers.get("grpc-timeout").and_then(|limit| limit.to_str().ok()).expect("it has a deadline");
        let (digits, unit) = limit.split_at(limit.len() - 1);
        let unit_ns = match unit {
            "S" => 1_000_000_000,
            "m" => 1_000_000,
            "u" => 1_000,
            "n" => 1,
            unit => panic!("{unit}"),
        };
        let left = Duration::from_nanos(digits.parse::<u64>().expect("a number") * unit_ns);
        // The deadline is at most the client's, and at most this coordinator's own limit.
        assert!(left <= asked.unwrap_or(Duration::from_secs(33)) && left > Duration::ZERO, "{left:?} of {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_the_leader_does_not_read_is_held_back_and_ends_with_the_leadership() {
    let (_world, running, deaf, (store, lease)) = behind_a_deaf_leader().await;
    let mut client = running.client.clone();
    client.commit(commit(vec![put("k", "v")], Vec::new())).await.expect_err("it is refused, once there is a leader");
    let pulled = Arc::new(AtomicU64::new(0));
    let count = pulled.clone();
    let value = "v".repeat(256 << 10);
    let batches = (1..=1000).map(move |number| {
        count.fetch_add(1, Ordering::Relaxed);
        let batch = commit(vec![put("k", &value)], Vec::new()).batch;
        v1::CommitStreamRequest { session_id: vec![9; 16].into(), number, batch, want_receipt: false }
    });
    let mut writer = client.clone();
    let stream = tokio::spawn(async move { writer.commit_stream(iter(batches)).await.map(drop) });
    // In this time a reader without bounds would have taken everything. Other calls still work.
    for _ in 0..300 {
        client.commit(commit(vec![put("k", "v")], Vec::new())).await.expect_err("it is refused");
    }
    let came = deaf.calls.lock().expect("no holder panics").iter().any(|(path, _)| path.ends_with("CommitStream"));
    assert!(came, "the stream is opened there");
    let pulled = pulled.load(Ordering::Relaxed);
    assert!((1..=40).contains(&pulled), "{pulled} of 1000 batches were taken");
    assert!(!stream.is_finished(), "nothing has ended it");
    // The connection is sound. Only the store knows that another coordinator leads.
    store.resign(lease).await.expect("answers");
    let ended = timeout(LIMIT, stream).await.expect("the stream ends").expect("no panic").expect_err("without answers");
    assert_eq!(reason(&ended), Reason::Unavailable, "{ended}");
}
