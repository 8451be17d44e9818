//! Several coordinators: any takes writes, and whatever happens to the one that leads, commits go on through another, nothing that was
//! acknowledged is lost, and nothing is applied twice.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coppice_metadata::{EtcdOptions, EtcdStore, Metadata, testing::Etcd};
use coppice_proto::{
    Channel, status,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{ErrorKind, Reason};
use coppice_verify::header::Header;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

mod common;

use common::{
    CLUSTER, LIMIT, absent, at, bytes, commit, get, put, reason,
    team::{NAMES, Team, embedded, fresh_store},
};

/// One client's acknowledged commits, each with the key that it wrote.
type Acknowledged = Vec<(String, v1::CommitResponse)>;

/// Clients that write through every coordinator, each in a session, and go to another where one does not answer.
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

    /// Waits for so many more commits.
    async fn more(&self, count: usize) {
        let enough = self.count() + count;
        let wait = async {
            while self.count() < enough {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, wait).await.expect("commits go on");
    }

    /// The longest time without a commit since then.
    fn gap_since(&self, since: Instant) -> Duration {
        let times = self.times.lock().expect("no holder panics");
        let after: Vec<_> = std::iter::once(since).chain(times.iter().copied().filter(|time| *time >= since)).collect();
        after.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Ends the load; everything that was acknowledged stands, once, under the header that was shown.
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
        // Applied a second time it would be refused.
        let batch = commit(vec![put(&key, "1")], vec![absent(&key)]);
        let request = v1::CommitRequest { session_id: session_id.clone(), number, ..batch };
        // A coordinator that stands still answers nobody: its clients must ask elsewhere.
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

/// The log from genesis on: every header follows on the one before.
async fn check_log(client: &mut LedgerClient<Channel>) {
    let request = v1::WatchHeadsRequest { from_sequence: 0, ..v1::WatchHeadsRequest::default() };
    let mut stream = client.watch_heads(request).await.expect("served").into_inner();
    let mut before: Option<Header> = None;
    while let Some(message) = stream.message().await.expect("served") {
        let header = Header::decode(&message.header).expect("it is canonical");
        if let Some(before) = &before {
            header.check_follows(before).expect("it follows on");
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
    // One hop and no more: what was forwarded already is refused by one that does not lead, which says who does.
    let other = NAMES.into_iter().find(|name| *name != leads).expect("there are three");
    let mut request = tonic::Request::new(commit(vec![put("k", "x")], Vec::new()));
    request.metadata_mut().insert("coppice-forwarded", tonic::metadata::MetadataValue::from_static("1"));
    let refused = team.client(other).commit(request).await.expect_err("it does not lead");
    assert_eq!(reason(&refused), Reason::NotLeader);
    assert_eq!(status::metadata(&refused, status::LEADER).as_deref(), Some(leads));
    assert_eq!(status::metadata(&refused, status::ADDRESS).as_deref(), Some(leads));
}

/// What can befall the leader.
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
async fn commits_go_on_through_another_whatever_befalls_the_leader() {
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
            // PROTOCOL 2.7, though its clock was right when it took over.
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
        // Even one that the store tells nothing learns that it was replaced.
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

/// The store picks a candidate and no more: while it is gone the leader goes on, and a new empty one changes nothing.
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
    // Well over the time of a lease.
    while since.elapsed() < Duration::from_secs(5) {
        load.more(10).await;
    }
    // Not even silence of the root group on top ends it: nobody could be picked in its place.
    team.reach_nodes(leads, false);
    sleep(Duration::from_secs(3)).await;
    assert!(team.leads(leads), "silence ends no reign");
    team.reach_nodes(leads, true);
    load.more(20).await;
    assert!(team.leads(leads), "silence ends no reign");
    let fresh = fresh_store();
    // etcd names leases by time: an old name is not met again.
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
    // Without etcd the leader goes on; an etcd that knows nothing is told everything again.
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
    // And its candidates can lead.
    let last = team.leader().await;
    team.stop(last);
    let next = team.leader_but(last).await;
    load.more(20).await;
    load.check(team.client(next)).await;
}
