//! The store on real etcd: the suite for every implementation, and events that only etcd has. Its
//! members are killed, paused, wiped, set back to an older state, compacted under a watch, or lost.

use std::{fs, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use coppice_metadata::{
    Candidate, Change, Error, EtcdOptions, EtcdStore, EtcdTls, EtcdTlsSource, Kind, Leader, LeaseId, Member, Metadata,
    Presence, Revision,
    suite::{self, Harness, TTL},
    testing::{Etcd, certify},
};
use coppice_types::ClusterId;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tempfile::TempDir;

/// A wait longer than this is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// An etcd of its own, and the part of it for one ledger.
#[derive(Debug)]
struct World {
    etcd: Etcd,
    directory: TempDir,
    cluster: ClusterId,
    tls: Option<EtcdTls>,
}

/// The authority in a directory, and the certificate of this name.
fn identity(directory: &Path, name: Option<&str>) -> EtcdTls {
    let read = |file: String| fs::read(directory.join(file)).expect("the script made it");
    let identity = name.map(|name| (read(format!("{name}.pem")), read(format!("{name}.key"))));
    EtcdTls { ca: read("ca.pem".to_owned()), identity, domain: None }
}

impl World {
    fn new(members: usize) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let etcd = Etcd::start(directory.path(), members);
        Self { etcd, directory, cluster: ClusterId([1; 16]), tls: None }
    }

    /// An etcd that asks for certificates, with one for the store.
    fn with_tls() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let etcd = Etcd::start_with_tls(directory.path(), 1);
        certify(&etcd.certificates(), "client", "client.example");
        let tls = Some(identity(&etcd.certificates(), Some("client")));
        Self { etcd, directory, cluster: ClusterId([1; 16]), tls }
    }

    fn store(&self) -> Arc<dyn Metadata> {
        Arc::new(EtcdStore::connect(self.options()).expect("the options are sound"))
    }

    fn options(&self) -> EtcdOptions {
        EtcdOptions {
            tls: self.tls.clone().map(EtcdTls::fixed),
            // On a machine that is busy with other tests, a sync of etcd takes seconds.
            call_max: Duration::from_secs(20),
            ..EtcdOptions::new(self.etcd.endpoints(), self.cluster)
        }
    }

    async fn client(&self) -> Client {
        let secured = |tls: &EtcdTls| {
            let (certificate, key) = tls.identity.as_ref().expect("ours has one");
            let options = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
            ConnectOptions::new().with_tls(options.identity(Identity::from_pem(certificate, key)))
        };
        Client::connect(self.etcd.endpoints(), self.tls.as_ref().map(secured)).await.expect("connects")
    }

    /// Makes etcd drop its history.
    async fn compact(&self) {
        let mut client = self.client().await;
        let now = client.get("x", None).await.expect("answers");
        let now = now.header().expect("a header").revision();
        // At times there is nothing to compact.
        let _ = client.compact(now, None).await;
    }
}

/// One etcd for all tests of the suite. Each test has a cluster id of its own.
#[derive(Debug)]
struct Shared(Arc<tokio::sync::Mutex<World>>, Arc<dyn Metadata>);

#[async_trait]
impl Harness for Shared {
    fn store(&self) -> Arc<dyn Metadata> {
        self.1.clone()
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn restart(&mut self) {
        let mut world = self.0.lock().await;
        world.etcd.kill(0);
        world.etcd.run(0);
    }

    async fn compact(&self) {
        self.0.lock().await.compact().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes() {
    run_suite(World::new(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_over_tls_with_client_certificates() {
    run_suite(World::with_tls()).await;
}

async fn run_suite(world: World) {
    let world = Arc::new(tokio::sync::Mutex::new(world));
    let mut number = 0;
    suite::run(|| {
        number += 1;
        let world = world.clone();
        async move {
            let mut held = world.lock().await;
            held.cluster = ClusterId([number; 16]);
            let store = held.store();
            drop(held);
            Shared(world, store)
        }
    })
    .await;
}

fn member(name: &str) -> Member {
    Member { kind: Kind::Node, name: name.to_owned(), address: format!("{name}.example:4000") }
}

async fn patient<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// Repeats a call until it succeeds, within a limit: etcd may not answer yet.
async fn at_last<T>(what: &str, mut call: impl AsyncFnMut() -> Result<T, Error>) -> T {
    patient(what, async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{what}: {error}"),
            }
        }
    })
    .await
}

async fn long_lease(store: &Arc<dyn Metadata>) -> LeaseId {
    store.grant(TTL * 20).await.expect("answers")
}

type Campaign = tokio::task::JoinHandle<Result<Leader, Error>>;

fn campaign(store: &Arc<dyn Metadata>, lease: LeaseId, name: &str) -> Campaign {
    let (store, name) = (store.clone(), name.to_owned());
    tokio::spawn(async move { store.campaign(lease, &name).await })
}

/// Waits until the store has reached the revision `at`.
async fn revision_reaches(store: &Arc<dyn Metadata>, at: Revision) {
    patient("for a revision", async {
        while store.snapshot().await.map_or(Revision(0), |snapshot| snapshot.revision) < at {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_killed_etcd_is_met_again_and_nothing_is_missed() {
    let mut world = World::new(1);
    let store = world.store();
    let (leads, waits) = (long_lease(&store).await, long_lease(&store).await);
    store.campaign(leads, "leads").await.expect("is picked");
    let before = store.snapshot().await.expect("answers");
    let mut watch = store.watch(before.revision).await.expect("watches");
    let waiting = campaign(&store, waits, "waits");
    revision_reaches(&store, Revision(before.revision.0 + 1)).await;
    world.etcd.kill(0);
    let refused = store.register(leads, member("meanwhile")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(!waiting.is_finished(), "the waiting candidate goes on waiting");
    world.etcd.run(0);
    at_last("to register", || store.register(leads, member("after"))).await;
    store.resign(leads).await.expect("answers");
    let picked = patient("for the campaign", waiting).await.expect("does not panic").expect("is picked");
    assert_eq!(picked.name, "waits");
    let first = patient("for changes", watch.next()).await.expect("the watch goes on by itself");
    assert_eq!(first.changes, [Change::Joined(member("after"))]);
    let second = patient("for changes", watch.next()).await.expect("the watch goes on by itself");
    assert_eq!(second.changes, [Change::Leader(Some(picked))]);
}

#[tokio::test]
async fn a_compaction_under_a_watch_is_reported_or_skips_nothing() {
    let mut world = World::new(1);
    let store = world.store();
    let lease = long_lease(&store).await;
    store.register(lease, member("first")).await.expect("registers");
    let start = store.snapshot().await.expect("answers").revision;
    let mut behind = store.watch(start).await.expect("watches");
    let mut current = store.watch(start).await.expect("watches");
    store.register(lease, member("a")).await.expect("registers");
    assert_eq!(current.next().await.expect("is kept").changes, [Change::Joined(member("a"))]);
    store.register(lease, member("b")).await.expect("registers");
    world.compact().await;
    // The watch that has seen all changes continues after a restart. The other one, which never
    // began, can't.
    assert_eq!(current.next().await.expect("is kept").changes, [Change::Joined(member("b"))]);
    world.etcd.kill(0);
    world.etcd.run(0);
    let told = patient("for the answer", behind.next()).await;
    assert!(matches!(told, Err(Error::Compacted { asked, .. }) if asked == start), "{told:?}");
    at_last("to register", || store.register(lease, member("c"))).await;
    assert_eq!(current.next().await.expect("is kept").changes, [Change::Joined(member("c"))]);
}

#[tokio::test]
async fn a_wiped_etcd_is_filled_again_by_the_living_processes() {
    let mut world = World::new(1);
    let store = world.store();
    let lease = long_lease(&store).await;
    for name in ["a", "b", "c", "d"] {
        store.register(lease, member(name)).await.expect("registers");
    }
    let old = store.campaign(lease, "leads").await.expect("is picked");
    let before = store.snapshot().await.expect("answers");
    let mut watch = store.watch(before.revision).await.expect("watches");
    let waits = long_lease(&store).await;
    let waiting = campaign(&store, waits, "waits");
    revision_reaches(&store, Revision(before.revision.0 + 1)).await;
    world.etcd.kill(0);
    world.etcd.wipe(0);
    world.etcd.run(0);
    // Revisions went back. A watch that waited for the next one would wait for ever.
    let told = patient("for the watch", watch.next()).await;
    assert!(matches!(told, Err(Error::Compacted { .. })), "{told:?}");
    let again = store.watch(before.revision).await.map(drop);
    assert!(matches!(again, Err(Error::Compacted { .. })), "{again:?}");
    assert!(matches!(store.keep_alive(lease).await, Err(Error::LeaseLost(_))));
    let lost = patient("for the campaign", waiting).await.expect("does not panic");
    assert!(matches!(lost, Err(Error::LeaseLost(_))), "{lost:?}");
    let empty = store.snapshot().await.expect("answers");
    assert_eq!((empty.members, empty.leader), (Vec::new(), None));
    let lease = long_lease(&store).await;
    store.register(lease, member("a")).await.expect("registers");
    let new = store.campaign(lease, "leads").await.expect("is picked");
    assert!(new.token < old.token, "this is why terms are not from here");
}

/// The store does not fence: a leader continues while it is silent, and ends when it says so.
#[tokio::test]
async fn a_tenure_outlasts_an_outage_and_ends_with_a_wiped_etcd() {
    let mut world = World::new(1);
    let store = world.store();
    let ttl = Duration::from_secs(2);
    let candidate = Candidate::new(store.clone(), ttl);
    let tenure = candidate.campaign("leads").await.expect("is picked");
    let address = Member { kind: Kind::Coordinator, ..member("leads") };
    let _presence = Presence::keep(store.clone(), ttl, address.clone());
    is_registered(&store, &address).await;
    let mut lost = tenure.lost();
    world.etcd.kill(0);
    let silent = tokio::time::timeout(ttl * 2, lost.wait_for(|lost| *lost)).await.is_err();
    assert!(silent, "silence ends no tenure");
    world.etcd.run(0);
    is_registered(&store, &address).await;
    let kept = store.snapshot().await.expect("answers").leader;
    assert_eq!(kept.as_ref(), Some(tenure.leader()), "a restart gives leases their time again");
    world.etcd.kill(0);
    world.etcd.wipe(0);
    world.etcd.run(0);
    patient("for the tenure to end", lost.wait_for(|lost| *lost)).await.expect("the keeper says so");
    is_registered(&store, &address).await;
    candidate.campaign("leads").await.expect("is picked again");
}

async fn is_registered(store: &Arc<dyn Metadata>, member: &Member) {
    patient("for the registration", async {
        while !store.snapshot().await.is_ok_and(|snapshot| snapshot.members.contains(member)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_etcd_that_was_set_back_is_read_as_it_is_now() {
    let mut world = World::new(1);
    let store = world.store();
    let (old, new) = (long_lease(&store).await, long_lease(&store).await);
    store.register(old, member("old")).await.expect("registers");
    let led = store.campaign(old, "old").await.expect("is picked");
    world.etcd.kill(0);
    let saved = world.directory.path().join("saved");
    world.etcd.copy_data(0, &saved).expect("copies");
    world.etcd.run(0);
    at_last("to end the old lease", || store.revoke(old)).await;
    store.register(new, member("new")).await.expect("registers");
    let now = store.campaign(new, "new").await.expect("is picked");
    let after = store.snapshot().await.expect("answers");
    let mut watch = store.watch(after.revision).await.expect("watches");
    world.etcd.kill(0);
    world.etcd.wipe(0);
    coppice_metadata::testing::copy(&saved, &world.etcd.data(0)).expect("copies");
    world.etcd.run(0);
    let told = patient("for the watch", watch.next()).await;
    assert!(matches!(told, Err(Error::Compacted { .. })), "{told:?}");
    // The past is back: the store takes the old leader for the leader, and the new one must stand
    // behind it.
    let snapshot = store.snapshot().await.expect("answers");
    assert_eq!(snapshot.leader, Some(led));
    assert_eq!(snapshot.members, [member("old")]);
    store.keep_alive(new).await.expect("both leases were open then");
    let waiting = campaign(&store, new, "new");
    revision_reaches(&store, Revision(snapshot.revision.0 + 1)).await;
    store.revoke(old).await.expect("ends");
    let picked = patient("for the campaign", waiting).await.expect("does not panic").expect("is picked");
    assert!(picked.token < now.token, "tokens go back with the store");
}

#[tokio::test]
async fn three_members_serve_without_the_one_that_leads_them() {
    let mut world = World::new(3);
    let store = world.store();
    let lease = store.grant(TTL * 20).await.expect("answers");
    store.register(lease, member("a")).await.expect("registers");
    let before = store.snapshot().await.expect("answers").revision;
    let mut watch = store.watch(before).await.expect("watches");
    let leads = leader_of(&world).await;
    world.etcd.kill(leads);
    at_last("to register", || store.register(lease, member("b"))).await;
    let seen = patient("for the watch", watch.next()).await.expect("goes on with another member");
    assert_eq!(seen.changes, [Change::Joined(member("b"))]);
    world.etcd.run(leads);
    // A member that hangs is worse than one that is dead: calls to it must end.
    let leads = leader_of(&world).await;
    world.etcd.pause(leads);
    at_last("to register", || store.register(lease, member("c"))).await;
    at_last("to keep alive", || store.keep_alive(lease)).await;
    world.etcd.resume(leads);
    let seen = patient("for the watch", watch.next()).await.expect("goes on with another member");
    assert_eq!(seen.changes, [Change::Joined(member("c"))]);
    // Without a majority, no call is answered, early or late.
    world.etcd.kill(0);
    world.etcd.kill(1);
    let refused = patient("for the refusal", store.snapshot()).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
}

/// The member that leads the cluster of etcd.
async fn leader_of(world: &World) -> usize {
    for (index, url) in world.etcd.endpoints().iter().enumerate() {
        let mut client = Client::connect([url], None).await.expect("connects");
        let status = client.status().await.expect("answers");
        if status.leader() == status.header().expect("a header").member_id() {
            return index;
        }
    }
    panic!("a healthy cluster has a leader");
}

#[tokio::test]
async fn clusters_of_one_etcd_do_not_see_each_other() {
    let mut world = World::new(1);
    let one = world.store();
    world.cluster = ClusterId([2; 16]);
    let other = world.store();
    let lease = long_lease(&one).await;
    one.register(lease, member("a")).await.expect("registers");
    one.campaign(lease, "a").await.expect("is picked");
    let snapshot = other.snapshot().await.expect("answers");
    assert_eq!((snapshot.members, snapshot.leader), (Vec::new(), None));
    // Foreign keys with the same prefix do no harm.
    let mut client = world.client().await;
    let base = format!("/coppice/{}/", ClusterId([1; 16]));
    for key in ["", "members/node/", "members/x", "candidates/zz/a", "else"] {
        client.put(format!("{base}{key}"), [0xff, 0xfe], None).await.expect("puts");
    }
    client.put(format!("{base}members/node/bad-address"), [0xff, 0xfe], None).await.expect("puts");
    let snapshot = one.snapshot().await.expect("answers");
    assert_eq!(snapshot.members, [member("a")]);
}

#[tokio::test]
async fn an_etcd_with_passwords_serves_clients_that_have_one_even_after_a_restart() {
    let mut world = World::new(1);
    let mut admin = world.client().await;
    admin.user_add("root", "secret", None).await.expect("added");
    admin.user_grant_role("root", "root").await.expect("granted");
    admin.auth_enable().await.expect("enabled");
    let stranger = world.store().snapshot().await;
    assert!(matches!(stranger, Err(Error::Unavailable(_))), "{stranger:?}");
    let user = |password: &str| Some(("root".to_owned(), password.to_owned()));
    let wrong = EtcdStore::connect(EtcdOptions { user: user("guess"), ..world.options() }).expect("connects later");
    assert!(matches!(wrong.snapshot().await, Err(Error::Unavailable(_))));
    let store = EtcdStore::connect(EtcdOptions { user: user("secret"), ..world.options() }).expect("connects later");
    let store: Arc<dyn Metadata> = Arc::new(store);
    let lease = long_lease(&store).await;
    store.register(lease, member("a")).await.expect("registers");
    // A restart makes etcd forget who has shown a password.
    world.etcd.kill(0);
    world.etcd.run(0);
    at_last("to keep alive", || store.keep_alive(lease)).await;
    at_last("to register", || store.register(lease, member("b"))).await;
    assert_eq!(store.snapshot().await.expect("answers").members, [member("a"), member("b")]);
}

/// Both sides demand a certificate of their authority, and the name by which etcd is reached.
#[tokio::test]
async fn etcd_and_its_client_trust_only_each_others_certificates() {
    let world = World::with_tls();
    let store = world.store();
    let lease = long_lease(&store).await;
    store.register(lease, member("a")).await.expect("registers");
    let ours = world.tls.clone().expect("it has TLS");
    let elsewhere = tempfile::tempdir().expect("a directory");
    certify(elsewhere.path(), "client", "client.example");
    let strange = identity(elsewhere.path(), Some("client"));
    let refused = [
        ("no certificate", EtcdTls { identity: None, ..ours.clone() }),
        ("a certificate of another authority", EtcdTls { identity: strange.identity.clone(), ..ours.clone() }),
        ("another authority is trusted", EtcdTls { ca: strange.ca, ..ours.clone() }),
        ("another name is expected", EtcdTls { domain: Some("etcd.example".to_owned()), ..ours }),
    ];
    for (case, tls) in refused {
        let store =
            EtcdStore::connect(EtcdOptions { tls: Some(tls.fixed()), ..world.options() }).expect("connects later");
        let answer = store.snapshot().await;
        assert!(matches!(answer, Err(Error::Unavailable(_))), "{case}: {answer:?}");
    }
    assert_eq!(store.snapshot().await.expect("answers").members, [member("a")]);
}

#[tokio::test]
async fn other_certificates_count_for_the_next_call_while_a_watch_goes_on() {
    let world = World::with_tls();
    let ours = Arc::new(world.tls.clone().expect("it has TLS"));
    let stranger = Arc::new(EtcdTls { identity: None, ..(*ours).clone() });
    let now = Arc::new(std::sync::Mutex::new(Arc::clone(&ours)));
    let source = Arc::clone(&now);
    let tls: EtcdTlsSource = Arc::new(move || source.lock().expect("nobody panics").clone());
    let store: Arc<dyn Metadata> =
        Arc::new(EtcdStore::connect(EtcdOptions { tls: Some(tls), ..world.options() }).expect("connects later"));
    let before = store.snapshot().await.expect("answers");
    let mut watch = store.watch(before.revision).await.expect("watches");
    let other = world.store();
    let lease = long_lease(&other).await;
    other.register(lease, member("a")).await.expect("registers");
    let changes = patient("the watch begins", watch.next()).await.expect("it is open");
    assert_eq!(changes.changes, [Change::Joined(member("a"))]);
    *now.lock().expect("nobody panics") = stranger;
    assert!(matches!(store.snapshot().await, Err(Error::Unavailable(_))), "etcd asks for a certificate");
    other.register(lease, member("b")).await.expect("registers");
    let changes = patient("the watch goes on", watch.next()).await.expect("it is open");
    assert_eq!(changes.changes, [Change::Joined(member("b"))]);
    *now.lock().expect("nobody panics") = ours;
    assert_eq!(store.snapshot().await.expect("answers").members, [member("a"), member("b")]);
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_at_once() {
    let cluster = ClusterId([1; 16]);
    let tls = EtcdTls { ca: Vec::new(), identity: None, domain: None };
    let none = EtcdOptions::new(Vec::new(), cluster);
    let bare = EtcdOptions::new(vec!["host:2379".to_owned()], cluster);
    let plain =
        EtcdOptions { tls: Some(tls.fixed()), ..EtcdOptions::new(vec!["http://host:2379".to_owned()], cluster) };
    for options in [none, bare, plain] {
        assert!(matches!(EtcdStore::connect(options), Err(Error::Invalid(_))));
    }
    let secret = EtcdOptions {
        user: Some(("root".to_owned(), "secret".to_owned())),
        ..EtcdOptions::new(vec!["http://host:2379".to_owned()], cluster)
    };
    assert!(!format!("{secret:?}").contains("secret"));
}

#[tokio::test]
async fn a_call_to_nobody_ends_in_time() {
    // A port that nobody listens on, and an address that swallows packets.
    for endpoint in ["http://127.255.255.254:1", "http://192.0.2.1:2379"] {
        let options = EtcdOptions::new(vec![endpoint.to_owned()], ClusterId([1; 16]));
        let limit = options.call_max * 2;
        let store = EtcdStore::connect(options).expect("the options are sound");
        let refused = tokio::time::timeout(limit, store.snapshot()).await.expect("ends in time");
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    }
}
