//! The embedded store: the suite for every implementation, and tests of its file.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use coppice_env::{Clock, DiskStorage, Rng, SimClock, SimRng, SimStorage, Storage};
use coppice_metadata::{
    Candidate, EmbeddedStore, Error, HISTORY_MAX, Kind, LEASES_MAX, Member, Metadata, Presence, Snapshot,
    suite::{self, Harness, TTL},
};

#[derive(Debug)]
struct Embedded {
    storage: Arc<dyn Storage>,
    clock: SimClock,
    store: Option<EmbeddedStore>,
}

impl Embedded {
    fn new(storage: Arc<dyn Storage>) -> Self {
        let clock = SimClock::new(0);
        let store = EmbeddedStore::open(Arc::clone(&storage), Arc::new(clock.clone())).expect("new");
        Self { storage, clock, store: Some(store) }
    }

    fn embedded(&self) -> &EmbeddedStore {
        self.store.as_ref().expect("runs")
    }
}

#[async_trait]
impl Harness for Embedded {
    fn store(&self) -> Arc<dyn Metadata> {
        Arc::new(self.embedded().clone())
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    async fn restart(&mut self) {
        self.store = None;
        let clock = Arc::new(self.clock.clone());
        self.store = Some(EmbeddedStore::open(Arc::clone(&self.storage), clock).expect("opens again"));
    }

    async fn compact(&self) {
        self.embedded().compact();
    }
}

fn member(name: &str) -> Member {
    Member { kind: Kind::Node, name: name.to_owned(), address: name.to_owned() }
}

#[tokio::test]
async fn the_suite_passes() {
    suite::run(|| async { Embedded::new(SimStorage::new().storage()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_suite_passes_on_threads_and_a_real_disk() {
    let mut directories = Vec::new();
    suite::run(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let storage: Arc<dyn Storage> = Arc::new(DiskStorage::new(directory.path()));
        directories.push(directory);
        async { Embedded::new(storage) }
    })
    .await;
}

#[tokio::test]
async fn a_directory_is_opened_once() {
    let storage = SimStorage::new().storage();
    let store = Embedded::new(Arc::clone(&storage));
    let clock: Arc<dyn Clock> = Arc::new(SimClock::new(0));
    let second = EmbeddedStore::open(Arc::clone(&storage), Arc::clone(&clock));
    assert!(matches!(second, Err(Error::InUse)));
    drop(store);
    EmbeddedStore::open(storage, clock).expect("opens");
}

/// Makes some calls, each of which changes the store. Stops at the first error.
async fn script(store: &EmbeddedStore, seed: u64, seen: &mut Vec<Snapshot>) -> Result<(), Error> {
    let mut rng = SimRng::new(seed);
    let mut leases = vec![store.grant(TTL).await?];
    seen.push(store.snapshot().await?);
    for _ in 0..12 {
        let lease = leases[rng.below(leases.len() as u64) as usize];
        match rng.below(5) {
            0 => leases.push(store.grant(TTL).await?),
            1 => drop(store.campaign(lease, "leader").await?),
            2 => store.resign(lease).await?,
            3 if leases.len() > 1 => {
                store.revoke(lease).await?;
                leases.retain(|other| *other != lease);
            }
            _ => drop(store.register(lease, member(&format!("node-{}", rng.below(4)))).await?),
        }
        seen.push(store.snapshot().await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_crash_at_every_write_leaves_the_state_before_or_after_a_call() {
    for seed in 0..4 {
        for crash_at in 0.. {
            let disk = SimStorage::new();
            let clock: Arc<dyn Clock> = Arc::new(SimClock::new(0));
            let store = EmbeddedStore::open(disk.storage(), Arc::clone(&clock)).expect("new");
            let mut seen = vec![store.snapshot().await.expect("answers")];
            disk.crash_after(crash_at);
            let ended = script(&store, seed, &mut seen).await;
            // The snapshots that would follow if every call succeeded.
            let mut whole = Vec::new();
            let other = EmbeddedStore::open(SimStorage::new().storage(), Arc::clone(&clock)).expect("new");
            script(&other, seed, &mut whole).await.expect("does not crash");
            for after in [disk.process_loss(), disk.power_loss(crash_at)] {
                let found = EmbeddedStore::open(after.storage(), Arc::clone(&clock)).expect("recovers");
                let found = found.snapshot().await.expect("answers");
                let last = seen.last().expect("at least one");
                let next = whole.get(seen.len() - 1);
                assert!(found == *last || Some(&found) == next, "seed {seed}, crash {crash_at}: {found:?}");
            }
            if ended.is_ok() {
                assert!(crash_at > 20, "only {crash_at} changes of the storage were tried");
                break;
            }
        }
    }
}

#[tokio::test]
async fn every_flipped_bit_is_found() {
    let disk = SimStorage::new();
    let clock: Arc<dyn Clock> = Arc::new(SimClock::new(0));
    let store = EmbeddedStore::open(disk.storage(), Arc::clone(&clock)).expect("new");
    script(&store, 1, &mut Vec::new()).await.expect("runs");
    drop(store);
    let len = disk.open("store", coppice_env::OpenMode::Existing).and_then(|file| file.len()).expect("is there");
    for offset in 0..len {
        for bit in 0..8 {
            disk.flip_bit("store", offset, bit);
            let opened = EmbeddedStore::open(disk.storage(), Arc::clone(&clock));
            assert!(matches!(opened, Err(Error::Corrupted(_))), "bit {bit} of byte {offset}");
            disk.flip_bit("store", offset, bit);
        }
    }
    EmbeddedStore::open(disk.storage(), clock).expect("sound again");
}

#[tokio::test]
async fn a_full_disk_changes_nothing() {
    let disk = SimStorage::new();
    let harness = Embedded::new(disk.storage());
    let store = harness.store();
    let lease = store.grant(TTL).await.expect("answers");
    store.register(lease, member("a")).await.expect("registers");
    let before = store.snapshot().await.expect("answers");
    disk.set_capacity(Some(disk.used_bytes()));
    let refused = store.register(lease, member("a-name-that-needs-more-room-than-there-is")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))));
    assert_eq!(store.snapshot().await.expect("answers"), before);
    disk.set_capacity(None);
    store.register(lease, member("b")).await.expect("there is room again");
}

#[tokio::test]
async fn nothing_grows_without_bound() {
    let harness = Embedded::new(SimStorage::new().storage());
    let store = harness.store();
    for _ in 0..LEASES_MAX {
        store.grant(TTL).await.expect("there is room");
    }
    assert!(matches!(store.grant(TTL).await, Err(Error::Exhausted("leases"))));
    harness.pass(TTL).await;
    let lease = store.grant(TTL * 100).await.expect("the others have ended");
    let start = store.snapshot().await.expect("answers").revision;
    for _ in 0..=HISTORY_MAX {
        store.register(lease, member("a")).await.expect("registers");
    }
    assert!(matches!(store.watch(start).await, Err(Error::Compacted { .. })));
}

/// Waits for a condition, with a limit.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), wait).await.is_ok(), "waited too long for {what}");
}

#[tokio::test]
async fn a_tenure_ends_with_its_lease() {
    let harness = Embedded::new(SimStorage::new().storage());
    let ttl = Duration::from_millis(300);
    let candidate = Candidate::new(harness.store(), ttl);
    let tenure = candidate.campaign("a").await.expect("is picked");
    let mut lost = tenure.lost();
    assert!(!*lost.borrow());
    harness.pass(ttl * 2).await;
    let over = tokio::time::timeout(Duration::from_secs(30), lost.wait_for(|lost| *lost)).await;
    over.expect("within the limit").expect("the keeper says so");
}

#[tokio::test]
async fn a_tenure_is_kept_resigned_and_replaced() {
    let harness = Embedded::new(SimStorage::new().storage());
    let store = harness.store();
    let candidate = Candidate::new(Arc::clone(&store), Duration::from_secs(60));
    let first = candidate.campaign("a").await.expect("is picked");
    let second = {
        let candidate = candidate.clone();
        tokio::spawn(async move { candidate.campaign("b").await })
    };
    first.resign().await.expect("answers");
    let second = second.await.expect("does not panic").expect("is picked");
    assert_eq!(second.leader().name, "b");
    // Dropping a tenure ends it as well, and so does dropping a campaign.
    drop(second);
    until("the dropped tenure to end", async || store.snapshot().await.expect("answers").leader.is_none()).await;
    let third = candidate.campaign("c").await.expect("is picked");
    let waiting = tokio::time::timeout(Duration::from_millis(20), candidate.campaign("d")).await;
    assert!(waiting.is_err(), "c leads");
    drop(third);
    let fifth = candidate.campaign("e").await.expect("the dropped campaign is not in line");
    assert_eq!(fifth.leader().name, "e");
}

#[tokio::test]
async fn a_tenure_that_another_took_is_lost() {
    let harness = Embedded::new(SimStorage::new().storage());
    let store = harness.store();
    let candidate = Candidate::new(Arc::clone(&store), Duration::from_millis(150));
    let first = candidate.campaign("a").await.expect("is picked");
    let other = store.grant(TTL).await.expect("answers");
    store.campaign(other, "a").await.expect("replaces its older self");
    let mut lost = first.lost();
    let over = tokio::time::timeout(Duration::from_secs(30), lost.wait_for(|lost| *lost)).await;
    over.expect("within the limit").expect("the keeper says so");
}

#[tokio::test]
async fn a_presence_is_kept_made_again_and_ended() {
    let harness = Embedded::new(SimStorage::new().storage());
    let store = harness.store();
    let presence = Presence::keep(Arc::clone(&store), Duration::from_millis(300), member("a"));
    let is_there = async || !store.snapshot().await.expect("answers").members.is_empty();
    until("the registration", is_there).await;
    let first = store.snapshot().await.expect("answers").revision;
    // The store's clock jumps, so the lease ends. The process registers again.
    harness.pass(Duration::from_secs(3600)).await;
    until("the second registration", async || {
        let snapshot = store.snapshot().await.expect("answers");
        snapshot.revision > first && !snapshot.members.is_empty()
    })
    .await;
    drop(presence);
    until("the end", async || !is_there().await).await;
}
