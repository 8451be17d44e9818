//! The duties of every implementation of [`Metadata`], as tests. An implementation's own tests call
//! [`run`] with a [`Harness`] that makes empty stores, moves their time, and restarts them.

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    Change, Changes, Error, Kind, LEASE_TTL_MAX, Leader, LeaseId, Member, Metadata, Revision, TEXT_BYTES_MAX, Watch,
    follow,
};

/// Duration of the leases in these tests.
pub const TTL: Duration = Duration::from_secs(3);
/// A wait longer than this is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// An empty store, and the means to control it.
#[async_trait]
pub trait Harness: Send {
    /// A handle to the store. All handles since the last restart stay usable.
    fn store(&self) -> Arc<dyn Metadata>;
    /// Lets this much time pass for leases. In a store that counts coarsely, a lease may last a
    /// little longer.
    async fn pass(&self, time: Duration);
    /// Stops and starts the store. Older handles may stop working.
    async fn restart(&mut self);
    /// Makes the store drop its history.
    async fn compact(&self);
}

/// Runs every test, each on a store of its own.
///
/// # Panics
/// If the implementation fails a test.
pub async fn run<H, F>(mut make: impl FnMut() -> F)
where
    H: Harness,
    F: Future<Output = H>,
{
    leases_end_by_time(make().await).await;
    a_revoked_lease_is_gone_at_once(make().await).await;
    a_process_replaces_its_older_self(make().await).await;
    candidates_are_picked_in_line(make().await).await;
    a_dead_leader_is_replaced(make().await).await;
    a_campaign_of_the_same_lease_is_the_same(make().await).await;
    a_campaign_of_the_same_name_replaces(make().await).await;
    a_campaign_without_lease_fails(make().await).await;
    many_candidates_lead_one_at_a_time(make().await).await;
    a_watch_misses_and_repeats_nothing(make().await).await;
    a_follower_learns_where_processes_are(make().await).await;
    a_watch_from_a_forgotten_revision_says_so(make().await).await;
    a_restart_keeps_the_store(make().await).await;
    limits_are_named(make().await).await;
}

fn member(kind: Kind, name: &str) -> Member {
    Member { kind, name: name.to_owned(), address: format!("{name}.example:4000") }
}

async fn patient<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

async fn names(store: &Arc<dyn Metadata>) -> Vec<String> {
    let snapshot = store.snapshot().await.expect("answers");
    snapshot.members.into_iter().map(|member| member.name).collect()
}

async fn leader(store: &Arc<dyn Metadata>) -> Option<Leader> {
    store.snapshot().await.expect("answers").leader
}

async fn lease(store: &Arc<dyn Metadata>) -> LeaseId {
    store.grant(TTL).await.expect("answers")
}

/// A process that was started again elsewhere is found there, although the lease of its old self
/// still lives.
async fn a_follower_learns_where_processes_are(harness: impl Harness) {
    let store = harness.store();
    let (tell, mut told) = tokio::sync::watch::channel(vec![member(Kind::Coordinator, "nobody")]);
    let following = tokio::spawn(follow(Arc::clone(&store), move |snapshot| drop(tell.send(snapshot.members))));
    let mut hears = async |expected: &[Member]| {
        patient("to hear of a change", told.wait_for(|members| members == expected)).await.expect("it follows");
    };
    hears(&[]).await;
    let (older, newer) = (lease(&store).await, lease(&store).await);
    let here = member(Kind::Node, "a");
    store.register(older, here.clone()).await.expect("registers");
    hears(std::slice::from_ref(&here)).await;
    let there = Member { address: "elsewhere.example:4001".to_owned(), ..here };
    store.register(newer, there.clone()).await.expect("registers");
    hears(std::slice::from_ref(&there)).await;
    store.revoke(older).await.expect("answers");
    store.revoke(newer).await.expect("answers");
    hears(&[]).await;
    following.abort();
}

type Campaign = tokio::task::JoinHandle<Result<Leader, Error>>;

fn campaign(store: &Arc<dyn Metadata>, lease: LeaseId, name: &str) -> Campaign {
    let (store, name) = (Arc::clone(store), name.to_owned());
    tokio::spawn(async move { store.campaign(lease, &name).await })
}

async fn picked(campaign: Campaign) -> Leader {
    patient("for a campaign", campaign).await.expect("does not panic").expect("is picked")
}

/// Waits until exactly these nodes are registered, while one lease is kept alive.
async fn left_are(store: &Arc<dyn Metadata>, kept: Option<LeaseId>, expected: &[&str]) {
    patient("for leases to end", async {
        while names(store).await != expected {
            if let Some(kept) = kept {
                store.keep_alive(kept).await.expect("is alive");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Waits until the store has seen `count` new candidates after `since`. Each takes a revision.
async fn in_line(store: &Arc<dyn Metadata>, since: Revision, count: u64) {
    patient("for candidates to stand in line", async {
        while store.snapshot().await.expect("answers").revision.0 < since.0 + count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn leases_end_by_time(harness: impl Harness) {
    let store = harness.store();
    let (kept, left) = (lease(&store).await, lease(&store).await);
    store.register(kept, member(Kind::Node, "kept")).await.expect("registers");
    store.register(left, member(Kind::Node, "left")).await.expect("registers");
    for _ in 0..3 {
        harness.pass(TTL / 2).await;
        store.keep_alive(kept).await.expect("is alive");
    }
    left_are(&store, Some(kept), &["kept"]).await;
    assert!(matches!(store.keep_alive(left).await, Err(Error::LeaseLost(lost)) if lost == left));
    let late = store.register(left, member(Kind::Node, "late")).await;
    assert!(matches!(late, Err(Error::LeaseLost(_))));
    harness.pass(TTL * 2).await;
    left_are(&store, None, &[]).await;
    assert!(matches!(store.keep_alive(kept).await, Err(Error::LeaseLost(_))));
}

async fn a_revoked_lease_is_gone_at_once(harness: impl Harness) {
    let store = harness.store();
    let lease = lease(&store).await;
    store.register(lease, member(Kind::Node, "a")).await.expect("registers");
    store.register(lease, member(Kind::Coordinator, "b")).await.expect("registers");
    let leads = store.campaign(lease, "b").await.expect("is picked");
    assert_eq!(leader(&store).await, Some(leads));
    let before = store.snapshot().await.expect("answers").revision;
    store.revoke(lease).await.expect("ends");
    let after = store.snapshot().await.expect("answers");
    assert_eq!((after.members, after.leader), (Vec::new(), None));
    assert!(after.revision > before);
    store.revoke(lease).await.expect("one that has ended is not an error");
    assert!(matches!(store.keep_alive(lease).await, Err(Error::LeaseLost(_))));
}

async fn a_process_replaces_its_older_self(harness: impl Harness) {
    let store = harness.store();
    let (old, new) = (lease(&store).await, lease(&store).await);
    store.register(old, member(Kind::Node, "a")).await.expect("registers");
    store.register(old, member(Kind::Coordinator, "a")).await.expect("registers");
    let moved = Member { address: "elsewhere".to_owned(), ..member(Kind::Node, "a") };
    store.register(new, moved.clone()).await.expect("registers");
    // The node belongs to the new lease now, the coordinator still to the old one.
    store.revoke(old).await.expect("ends");
    assert_eq!(store.snapshot().await.expect("answers").members, [moved]);
}

async fn candidates_are_picked_in_line(harness: impl Harness) {
    let store = harness.store();
    let first = (lease(&store).await, "first");
    let leads = patient("for the first", store.campaign(first.0, first.1)).await.expect("is picked");
    assert_eq!(leads.name, "first");
    let mut since = store.snapshot().await.expect("answers").revision;
    let mut line = Vec::new();
    for name in ["second", "third", "fourth"] {
        let lease = lease(&store).await;
        line.push((lease, name, campaign(&store, lease, name)));
        in_line(&store, since, 1).await;
        since = store.snapshot().await.expect("answers").revision;
    }
    // A candidate in the middle gives up, and is skipped.
    let (gave_up, _, waits) = line.remove(1);
    store.resign(gave_up).await.expect("answers");
    let given_up = patient("for the one that gave up", waits).await.expect("does not panic");
    assert!(matches!(given_up, Err(Error::LeaseLost(_))));
    let mut last = (first.0, leads);
    for (lease, name, waits) in line {
        assert!(!waits.is_finished(), "{name} waits for its turn");
        assert_eq!(leader(&store).await.as_ref(), Some(&last.1));
        store.resign(last.0).await.expect("answers");
        let leads = picked(waits).await;
        assert_eq!(leads.name, name);
        assert!(leads.token > last.1.token, "fencing tokens grow");
        assert_eq!(leader(&store).await.as_ref(), Some(&leads));
        last = (lease, leads);
    }
    store.resign(last.0).await.expect("answers");
    assert_eq!(leader(&store).await, None);
    store.resign(last.0).await.expect("without a candidate nothing happens");
}

async fn a_dead_leader_is_replaced(harness: impl Harness) {
    let store = harness.store();
    let (dies, lives) = (lease(&store).await, lease(&store).await);
    let old = store.campaign(dies, "old").await.expect("is picked");
    let since = store.snapshot().await.expect("answers").revision;
    let waits = campaign(&store, lives, "new");
    in_line(&store, since, 1).await;
    for _ in 0..4 {
        harness.pass(TTL / 2).await;
        store.keep_alive(lives).await.expect("is alive");
    }
    let new = picked(waits).await;
    assert_eq!(new.name, "new");
    assert!(new.token > old.token);
}

async fn a_campaign_of_the_same_lease_is_the_same(harness: impl Harness) {
    let store = harness.store();
    let lease = lease(&store).await;
    let first = store.campaign(lease, "a").await.expect("is picked");
    assert_eq!(store.campaign(lease, "a").await.expect("leads already"), first);
    let other = store.grant(TTL).await.expect("answers");
    let since = store.snapshot().await.expect("answers").revision;
    // A candidate whose call is dropped keeps its place in the line.
    let dropped = campaign(&store, other, "b");
    in_line(&store, since, 1).await;
    dropped.abort();
    let again = campaign(&store, other, "b");
    store.resign(lease).await.expect("answers");
    assert_eq!(picked(again).await.name, "b");
}

async fn a_campaign_of_the_same_name_replaces(harness: impl Harness) {
    let store = harness.store();
    let (old, new) = (lease(&store).await, lease(&store).await);
    let before = store.campaign(old, "a").await.expect("is picked");
    let after = patient("for its older self", store.campaign(new, "a")).await.expect("is picked");
    assert!(after.token > before.token);
    store.revoke(old).await.expect("ends");
    assert_eq!(leader(&store).await, Some(after));
}

async fn a_campaign_without_lease_fails(harness: impl Harness) {
    let store = harness.store();
    let (leads, waits, dead) = (lease(&store).await, lease(&store).await, lease(&store).await);
    store.revoke(dead).await.expect("ends");
    assert!(matches!(store.campaign(dead, "dead").await, Err(Error::LeaseLost(_))));
    store.campaign(leads, "leads").await.expect("is picked");
    let since = store.snapshot().await.expect("answers").revision;
    let waiting = campaign(&store, waits, "waits");
    in_line(&store, since, 1).await;
    store.revoke(waits).await.expect("ends");
    let lost = patient("for the lost lease", waiting).await.expect("does not panic");
    assert!(matches!(lost, Err(Error::LeaseLost(_))));
}

async fn many_candidates_lead_one_at_a_time(harness: impl Harness) {
    const CANDIDATES: usize = 8;
    let store = harness.store();
    let tasks: Vec<_> = (0..CANDIDATES)
        .map(|number| {
            let store = harness.store();
            tokio::spawn(async move {
                let lease = store.grant(TTL * 10).await.expect("answers");
                let mine = store.campaign(lease, &format!("candidate-{number}")).await.expect("is picked");
                assert_eq!(leader(&store).await.as_ref(), Some(&mine), "nobody else leads");
                tokio::task::yield_now().await;
                assert_eq!(leader(&store).await.as_ref(), Some(&mine), "nobody else leads");
                store.resign(lease).await.expect("answers");
                mine.token
            })
        })
        .collect();
    let mut tokens = BTreeSet::new();
    for task in tasks {
        tokens.insert(patient("for a turn", task).await.expect("does not panic"));
    }
    assert_eq!(tokens.len(), CANDIDATES, "no token is used twice");
    assert_eq!(leader(&store).await, None);
}

/// A copy of the store, kept up to date by its changes.
#[derive(Debug, Default)]
struct Mirror {
    revision: Revision,
    members: std::collections::BTreeMap<(Kind, String), Member>,
    leader: Option<Leader>,
}

impl Mirror {
    async fn of(store: &Arc<dyn Metadata>) -> Self {
        let snapshot = store.snapshot().await.expect("answers");
        let members = snapshot.members.into_iter().map(|member| ((member.kind, member.name.clone()), member));
        Self { revision: snapshot.revision, members: members.collect(), leader: snapshot.leader }
    }

    fn take(&mut self, changes: Changes) {
        assert!(changes.revision > self.revision, "changes come in order and once");
        assert!(!changes.changes.is_empty(), "every revision that is shown changed something");
        self.revision = changes.revision;
        for change in changes.changes {
            match change {
                Change::Joined(member) => drop(self.members.insert((member.kind, member.name.clone()), member)),
                Change::Left { kind, name } => {
                    assert!(self.members.remove(&(kind, name)).is_some(), "only a member leaves");
                }
                Change::Leader(leader) => {
                    assert_ne!(self.leader, leader, "a change changes something");
                    self.leader = leader;
                }
            }
        }
    }

    async fn follow(&mut self, watch: &mut Box<dyn Watch>, until: Revision) {
        while self.revision < until {
            let changes = patient("for changes", watch.next()).await.expect("are kept");
            self.take(changes);
        }
    }

    async fn check(&self, store: &Arc<dyn Metadata>) {
        let snapshot = store.snapshot().await.expect("answers");
        assert_eq!(self.members.values().cloned().collect::<Vec<_>>(), snapshot.members);
        assert_eq!(self.leader, snapshot.leader);
    }
}

async fn a_watch_misses_and_repeats_nothing(harness: impl Harness) {
    let store = harness.store();
    let (one, two) = (lease(&store).await, lease(&store).await);
    store.register(one, member(Kind::Node, "early")).await.expect("registers");
    let mut mirror = Mirror::of(&store).await;
    let mut watch = store.watch(mirror.revision).await.expect("watches");
    for round in 0..10 {
        let name = format!("node-{}", round % 3);
        store.register([one, two][round % 2], member(Kind::Node, &name)).await.expect("registers");
        store.campaign([one, two][round % 2], "leads").await.expect("is picked");
        if round % 4 == 3 {
            store.resign([one, two][round % 2]).await.expect("answers");
        }
        if round == 5 {
            // A watch that is made again continues where the last one ended, including changes in
            // between.
            let revision = store.snapshot().await.expect("answers").revision;
            mirror.follow(&mut watch, revision).await;
            drop(watch);
            store.register(one, member(Kind::Coordinator, "meanwhile")).await.expect("registers");
            watch = store.watch(mirror.revision).await.expect("watches");
        }
    }
    harness.pass(TTL / 2).await;
    store.keep_alive(one).await.expect("is alive");
    harness.pass(TTL * 2 / 3).await;
    // The other lease ends, and with it node-0, node-1 and the candidate.
    left_are(&store, Some(one), &["early", "node-2", "meanwhile"]).await;
    let end = store.register(one, member(Kind::Node, "late")).await.expect("registers");
    mirror.follow(&mut watch, end).await;
    mirror.check(&store).await;
    assert!(mirror.members.contains_key(&(Kind::Node, "late".to_owned())));
    // A change during the wait wakes the watch.
    let waits = tokio::spawn(async move { (watch.next().await, watch) });
    let woken = store.register(one, member(Kind::Node, "later")).await.expect("registers");
    let (changes, _watch) = patient("for the change", waits).await.expect("does not panic");
    let changes = changes.expect("are kept");
    assert_eq!(changes.revision, woken);
    assert_eq!(changes.changes, [Change::Joined(member(Kind::Node, "later"))]);
}

async fn a_watch_from_a_forgotten_revision_says_so(harness: impl Harness) {
    let store = harness.store();
    let lease = lease(&store).await;
    let start = store.snapshot().await.expect("answers").revision;
    for name in ["a", "b", "c"] {
        store.register(lease, member(Kind::Node, name)).await.expect("registers");
    }
    let mut old = store.watch(start).await.expect("all is kept");
    harness.compact().await;
    let forgotten = match store.watch(start).await {
        Ok(mut watch) => watch.next().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(forgotten, Err(Error::Compacted { asked, .. }) if asked == start), "{forgotten:?}");
    // An older watch has the changes already, or it reports that too, but it skips none.
    match old.next().await {
        Ok(changes) => assert_eq!(changes.changes, [Change::Joined(member(Kind::Node, "a"))]),
        Err(error) => assert!(matches!(error, Error::Compacted { .. }), "{error}"),
    }
    let mut mirror = Mirror::of(&store).await;
    let mut watch = store.watch(mirror.revision).await.expect("a snapshot is always a start");
    let end = store.register(lease, member(Kind::Node, "d")).await.expect("registers");
    mirror.follow(&mut watch, end).await;
    mirror.check(&store).await;
}

async fn a_restart_keeps_the_store(mut harness: impl Harness) {
    let store = harness.store();
    let (kept, left) = (lease(&store).await, lease(&store).await);
    store.register(kept, member(Kind::Node, "kept")).await.expect("registers");
    store.register(left, member(Kind::Node, "left")).await.expect("registers");
    let leads = store.campaign(left, "old").await.expect("is picked");
    let before = store.snapshot().await.expect("answers");
    harness.pass(TTL / 2).await;
    drop(store);
    harness.restart().await;
    let store = harness.store();
    let after = store.snapshot().await.expect("answers");
    assert_eq!((&after.members, &after.leader), (&before.members, &before.leader));
    // The store may have other users.
    assert!(after.revision >= before.revision);
    // Every lease has its full time again, but not more.
    harness.pass(TTL * 2 / 3).await;
    store.keep_alive(kept).await.expect("is alive");
    assert_eq!(names(&store).await, ["kept", "left"]);
    harness.pass(TTL * 2 / 3).await;
    store.keep_alive(kept).await.expect("is alive");
    left_are(&store, Some(kept), &["kept"]).await;
    let new = lease(&store).await;
    assert!(new != left && new != kept, "names of leases are not used again");
    let next = store.campaign(new, "new").await.expect("is picked");
    assert!(next.token > leads.token, "tokens grow over restarts");
    assert!(store.snapshot().await.expect("answers").revision > before.revision);
}

async fn limits_are_named(harness: impl Harness) {
    let store = harness.store();
    let lease = lease(&store).await;
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    for ttl in [Duration::ZERO, LEASE_TTL_MAX + Duration::from_secs(1)] {
        assert!(matches!(store.grant(ttl).await, Err(Error::Invalid(_))), "{ttl:?}");
    }
    for name in ["", &long] {
        assert!(matches!(store.register(lease, member(Kind::Node, name)).await, Err(Error::Invalid(_))));
        assert!(matches!(store.campaign(lease, name).await, Err(Error::Invalid(_))));
    }
    let address = Member { address: long.clone(), ..member(Kind::Node, "a") };
    assert!(matches!(store.register(lease, address).await, Err(Error::Invalid(_))));
    let snapshot = store.snapshot().await.expect("answers");
    assert_eq!((snapshot.members, snapshot.leader), (Vec::new(), None));
}
