//! Several coordinators of one ledger, and a metadata store that can be cut off, wiped and brought
//! back. Each coordinator has its own thread, so that it can be paused at any point.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc as blocking,
    },
    thread,
    time::Duration,
};

use coppice_coordinator::Handle;
use coppice_env::{Clock, SimStorage, SystemClock};
use coppice_metadata::{EmbeddedStore, Error, Leader, LeaseId, Member, Metadata, Revision, Snapshot, Watch};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::Params;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use super::{LIMIT, World, proxy::proxy_of};

pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// An empty embedded store.
pub fn fresh_store() -> Arc<dyn Metadata> {
    let clock = Arc::new(SystemClock::new());
    Arc::new(EmbeddedStore::open(SimStorage::new().storage(), clock).expect("the disk is empty"))
}

/// All coordinators share one embedded store.
pub fn embedded() -> Connect {
    let store = fresh_store();
    Box::new(move || store.clone())
}

/// The store as one coordinator reaches it. While it is cut off, no call ends.
#[derive(Clone, Debug)]
struct Reached {
    store: Arc<Mutex<Arc<dyn Metadata>>>,
    open: watch::Receiver<bool>,
}

impl Reached {
    async fn pass(&self) -> Arc<dyn Metadata> {
        let mut open = self.open.clone();
        open.wait_for(|open| *open).await.expect("the team outlives its coordinators");
        self.store.lock().expect("no holder panics").clone()
    }

    /// An answer does not reach a coordinator that was cut off meanwhile.
    async fn answer<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        self.pass().await;
        answer
    }
}

#[tonic::async_trait]
impl Metadata for Reached {
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        let answer = self.pass().await.grant(ttl).await;
        self.answer(answer).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let answer = self.pass().await.keep_alive(lease).await;
        self.answer(answer).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let answer = self.pass().await.revoke(lease).await;
        self.answer(answer).await
    }

    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error> {
        let answer = self.pass().await.register(lease, member).await;
        self.answer(answer).await
    }

    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error> {
        let answer = self.pass().await.campaign(lease, name).await;
        self.answer(answer).await
    }

    async fn resign(&self, lease: LeaseId) -> Result<(), Error> {
        let answer = self.pass().await.resign(lease).await;
        self.answer(answer).await
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        let answer = self.pass().await.snapshot().await;
        self.answer(answer).await
    }

    async fn watch(&self, _after: Revision) -> Result<Box<dyn Watch>, Error> {
        // A coordinator that watches polls too, since a store need not support watching.
        Err(Error::Unavailable(std::io::ErrorKind::Unsupported.into()))
    }
}

/// The clock of one coordinator. It may be ahead.
#[derive(Clone, Debug)]
struct Wrong {
    right: SystemClock,
    ahead_ms: Arc<AtomicU64>,
}

impl Clock for Wrong {
    fn now(&self) -> Duration {
        self.right.now()
    }

    fn wall_ms(&self) -> u64 {
        self.right.wall_ms() + self.ahead_ms.load(Ordering::Relaxed)
    }
}

/// An order to a coordinator's thread.
enum Order {
    /// Pause until the other end is dropped.
    Pause(blocking::Receiver<()>),
    /// Stop at once, without another step.
    Kill,
}

/// A coordinator in its own thread.
struct Seat {
    handle: Handle,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<thread::JoinHandle<()>>,
    store: Arc<Mutex<Arc<dyn Metadata>>>,
    store_open: watch::Sender<bool>,
    ahead_ms: Arc<AtomicU64>,
    resume: Option<blocking::Sender<()>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.resume = None;
        let _ = self.orders.send(Order::Kill);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the coordinator does not panic");
        }
    }
}

/// Connects a coordinator to its store: to a clone of a shared one, or by connections that end with
/// the coordinator's thread.
pub type Connect = Box<dyn Fn() -> Arc<dyn Metadata> + Send + Sync>;

/// Three coordinators of one world.
pub struct Team {
    pub world: World,
    connect: Connect,
    seats: BTreeMap<&'static str, Seat>,
}

impl Team {
    pub async fn new(connect: Connect) -> Self {
        let world = World::new(Params::default()).await;
        let mut team = Self { world, connect, seats: BTreeMap::new() };
        for name in NAMES {
            team.start(name);
        }
        team.leader().await;
        team
    }

    /// Starts a coordinator that does not run yet.
    #[expect(clippy::disallowed_methods, reason = "the thread stands for a process: it can be stopped and killed")]
    pub fn start(&mut self, name: &'static str) {
        let (store_open, open) = watch::channel(true);
        let store = Arc::new(Mutex::new((self.connect)()));
        let metadata = Reached { store: store.clone(), open };
        let clock = Wrong { right: SystemClock::new(), ahead_ms: Arc::default() };
        let ahead_ms = clock.ahead_ms.clone();
        let incoming = self.world.net.listen(name);
        let (orders, mut received) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (service, handle) = {
            let _inside = runtime.enter();
            self.world.joined_service(name, Arc::new(metadata), Arc::new(clock))
        };
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::spawn(service.run(incoming, std::future::pending()));
                while let Some(Order::Pause(until)) = received.recv().await {
                    // Blocks the coordinator's only thread, so none of its tasks runs.
                    let _ = until.recv();
                }
            });
            // Ends the runtime without letting tasks clean up.
            runtime.shutdown_background();
        });
        let seat = Seat { handle, orders, thread: Some(thread), store, store_open, ahead_ms, resume: None };
        assert!(self.seats.insert(name, seat).is_none(), "{name} does not run yet");
    }

    /// A client of one coordinator.
    pub fn client(&self, name: &str) -> LedgerClient<Channel> {
        LedgerClient::new(self.world.net.connector("client").channel(name))
    }

    /// Waits until a coordinator that is not cut off leads. Returns its name.
    pub async fn leader(&self) -> &'static str {
        self.leader_but("").await
    }

    /// Waits until a coordinator other than `old` leads.
    pub async fn leader_but(&self, old: &str) -> &'static str {
        let found = async {
            loop {
                let leads =
                    |(name, seat): &(&&'static str, &Seat)| **name != old && seat.handle.leadership().term.is_some();
                if let Some((name, _)) = self.seats.iter().find(leads) {
                    return *name;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, found).await.expect("one leads in time")
    }

    /// Whether the coordinator believes that it leads.
    pub fn leads(&self, name: &str) -> bool {
        self.seats[name].handle.leadership().term.is_some()
    }

    /// Ends the coordinator at once, like `kill -9`.
    pub fn kill(&mut self, name: &str) {
        drop(self.seats.remove(name).expect("it runs"));
    }

    /// Asks the coordinator to stop gracefully.
    pub fn stop(&self, name: &str) {
        self.seats[name].handle.stop();
    }

    /// Pauses the coordinator, like `SIGSTOP`.
    pub fn pause(&mut self, name: &str) {
        let seat = self.seats.get_mut(name).expect("it runs");
        let (resume, until) = blocking::channel();
        seat.orders.send(Order::Pause(until)).expect("its thread lives");
        seat.resume = Some(resume);
    }

    /// Resumes the coordinator, like `SIGCONT`.
    pub fn resume(&mut self, name: &str) {
        self.seats.get_mut(name).expect("it runs").resume = None;
    }

    /// Sets the coordinator's wall clock this far ahead.
    pub fn set_ahead(&self, name: &str, time: Duration) {
        let time_ms = u64::try_from(time.as_millis()).expect("it is short");
        self.seats[name].ahead_ms.store(time_ms, Ordering::Relaxed);
    }

    /// Cuts the coordinator off from the metadata store, or lets it through again.
    pub fn reach_store(&self, name: &str, open: bool) {
        self.seats[name].store_open.send_replace(open);
    }

    /// Cuts the coordinator off from all nodes, and so from the root group, or lets it through
    /// again.
    pub fn reach_nodes(&self, name: &str, open: bool) {
        for node in 1..=self.world.nodes.len() {
            let proxy = proxy_of(&super::name_of(u32::try_from(node).expect("few")));
            if open { self.world.net.heal(name, &proxy) } else { self.world.net.cut(name, &proxy) }
        }
    }

    /// Replaces the metadata store by another one.
    pub fn replace_store(&self, store: &Arc<dyn Metadata>) {
        for seat in self.seats.values() {
            *seat.store.lock().expect("no holder panics") = store.clone();
        }
    }

    /// The status that this coordinator reports.
    pub async fn told_by(&self, name: &str) -> v1::StatusResponse {
        let mut client = self.client(name);
        client.status(v1::StatusRequest {}).await.expect("answers").into_inner()
    }
}
