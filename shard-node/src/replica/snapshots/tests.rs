use coppice_types::Digest;

use super::*;
use crate::replica::{
    config::Bootstrap,
    tests::{LIMIT, Parts, Rig, Toy, content, damage, full, manifest, no_handles, offered, raft_id},
};

/// A replica, and what it knows of snapshots.
struct Scene {
    rig: Rig,
    parts: Parts,
    flushing: Flushing<Toy>,
    snapshots: Snapshots<Toy>,
}

impl Scene {
    fn of(rig: Rig, parts: Parts) -> Self {
        let flushing = Flushing::new(Arc::clone(&rig.config), Arc::clone(&parts.shared));
        let snapshots = Snapshots::new(Arc::clone(&rig.config), Arc::clone(&parts.shared));
        Self { rig, parts, flushing, snapshots }
    }

    /// A leading replica.
    fn leading() -> Self {
        let rig = Rig::new();
        let mut parts = rig.parts(1);
        parts.lead();
        Self::of(rig, parts)
    }

    /// A leading replica with a pinned snapshot.
    fn pinned() -> Self {
        let mut scene = Self::leading();
        scene.want(1).expect("nothing is damaged");
        assert_eq!(scene.pins(), ["pin 2"]);
        scene
    }

    fn want(&mut self, index: u64) -> Result<(), Error> {
        self.snapshots.want(index, self.parts.applied, &mut self.parts.group)
    }

    fn care(&mut self) -> Result<(), Error> {
        self.snapshots.care(self.parts.applied, &mut self.parts.group)
    }

    /// The pins and unpins since this was last asked.
    fn pins(&self) -> Vec<String> {
        self.rig.script.take_calls().into_iter().filter(|call| call.contains("pin ")).collect()
    }

    fn pass(&self, time: Duration) {
        self.rig.clock.advance(time);
    }

    /// Notes that a part of the snapshot is handed out now.
    fn hand_out(&self) {
        let now_ms = u64::try_from(self.snapshots.now().as_millis()).expect("small");
        self.parts.shared.fetched_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The result of the check that was begun.
    async fn check(&self) -> (Duration, Result<(), Error>) {
        self.parts.shared.mailbox.arrival(LIMIT).await;
        match self.parts.shared.mailbox.take(Duration::ZERO).pop() {
            Some(Input::Checked(began, result)) => (began, result),
            other => panic!("no check has ended: {other:?}"),
        }
    }

    fn take_in(&mut self, offer: &SnapshotOffer) {
        let Parts { home, group, .. } = &mut self.parts;
        self.snapshots.take_in(offer.clone(), home, group, &mut self.flushing).expect("the directory is sound");
    }

    fn fetched(&mut self, position: Position, result: Result<(), Failed>) {
        let Parts { home, group, .. } = &mut self.parts;
        self.snapshots.fetched(position, result, home, group, &mut self.flushing).expect("the directory is sound");
    }

    fn incoming(&self) -> Option<IncomingCopy> {
        self.parts.home.incoming().expect("it is sound")
    }
}

#[tokio::test]
async fn a_snapshot_is_pinned_once_the_entry_that_it_must_cover_is_applied() {
    let mut scene = Scene::leading();
    scene.want(4).expect("nothing is damaged");
    assert!(scene.pins().is_empty());
    scene.parts.commit(2);
    scene.care().expect("nothing is damaged");
    assert_eq!(scene.pins(), ["pin 4"]);
    scene.care().expect("nothing is damaged");
    assert!(scene.pins().is_empty(), "it is wanted no more");
    scene.parts.commit(1);
    scene.want(5).expect("nothing is damaged");
    assert_eq!(scene.pins(), ["unpin 1", "pin 5"], "one snapshot is kept at a time");
}

#[tokio::test]
async fn a_pin_that_fails_is_tried_again_unless_the_state_is_damaged() {
    let mut scene = Scene::leading();
    scene.rig.script.fail("pin", full());
    scene.want(1).expect("a full disk passes");
    scene.care().expect("nothing is damaged");
    assert_eq!(scene.pins(), ["pin 2", "pin 2"]);
    scene.rig.script.fail("pin", damage());
    assert!(matches!(scene.want(1), Err(Error::Damaged { .. })));
}

#[tokio::test]
async fn a_pin_that_nobody_wants_ends_after_a_while_and_not_while_it_is_fetched() {
    let mut scene = Scene::pinned();
    scene.pass(PIN_IDLE);
    scene.hand_out();
    scene.pass(PIN_IDLE);
    scene.care().expect("nothing is damaged");
    assert!(scene.pins().is_empty());
    scene.pass(Duration::from_millis(1));
    scene.care().expect("nothing is damaged");
    assert_eq!(scene.pins(), ["unpin 1"]);
}

#[tokio::test]
async fn a_change_of_members_ends_a_pin_unless_it_is_being_fetched() {
    let mut scene = Scene::pinned();
    scene.pass(2 * FETCH_IDLE);
    scene.hand_out();
    scene.snapshots.unpin_outdated(&mut scene.parts.group);
    assert!(scene.pins().is_empty());
    scene.pass(FETCH_IDLE + Duration::from_millis(1));
    scene.snapshots.unpin_outdated(&mut scene.parts.group);
    assert_eq!(scene.pins(), ["unpin 1"]);
}

#[tokio::test]
async fn a_refusal_is_looked_into_once_and_only_for_the_present_pin() {
    let mut scene = Scene::pinned();
    scene.snapshots.refused(raft_id(2), 7);
    assert!(scene.snapshots.check.is_none(), "a pin that is not there is not checked");
    scene.snapshots.refused(raft_id(2), 1);
    scene.snapshots.refused(raft_id(3), 1);
    let (began, result) = scene.check().await;
    assert!(matches!(scene.snapshots.checked(began, result), Checked::Done), "it is sound");
    assert_eq!(scene.rig.script.take_calls(), ["check 1"]);
    assert_eq!(scene.parts.shared.traffic.checked.load(Ordering::Relaxed), 1);
    // However many refusals come, the next check has to wait.
    scene.pass(CHECK_PAUSE_MIN - Duration::from_millis(1));
    scene.snapshots.refused(raft_id(2), 1);
    assert!(scene.snapshots.check.is_none());
    scene.pass(Duration::from_millis(1));
    scene.snapshots.refused(raft_id(2), 1);
    assert!(scene.snapshots.check.is_some());
}

#[tokio::test]
async fn a_long_check_is_followed_by_a_longer_pause() {
    let mut scene = Scene::pinned();
    scene.snapshots.refused(raft_id(2), 1);
    let (began, result) = scene.check().await;
    scene.pass(Duration::from_secs(7));
    scene.snapshots.checked(began, result);
    scene.pass(Duration::from_secs(69));
    scene.snapshots.refused(raft_id(2), 1);
    assert!(scene.snapshots.check.is_none());
    scene.pass(Duration::from_secs(1));
    scene.snapshots.refused(raft_id(2), 1);
    assert!(scene.snapshots.check.is_some());
}

#[tokio::test]
async fn only_damage_that_a_replica_finds_itself_counts_against_it() {
    for (error, counts) in [(damage(), true), (full(), false), (Error::Overdue("the check"), false)] {
        let mut scene = Scene::pinned();
        scene.rig.script.fail("check", error);
        scene.snapshots.refused(raft_id(2), 1);
        let (began, result) = scene.check().await;
        assert_eq!(matches!(scene.snapshots.checked(began, result), Checked::Damaged(_)), counts);
    }
    // The state that was checked may be gone by now.
    let mut scene = Scene::pinned();
    scene.snapshots.refused(raft_id(2), 1);
    let (began, _) = scene.check().await;
    scene.snapshots.close(&mut scene.parts.group);
    assert!(matches!(scene.snapshots.checked(began, Err(damage())), Checked::Done));
}

#[tokio::test]
async fn a_pin_that_is_being_checked_stays_until_the_check_ends() {
    let mut scene = Scene::pinned();
    scene.snapshots.refused(raft_id(2), 1);
    let (began, result) = scene.check().await;
    scene.snapshots.unpin(&mut scene.parts.group);
    assert_eq!(scene.pins(), Vec::<String>::new());
    scene.snapshots.checked(began, result);
    assert_eq!(scene.pins(), ["unpin 1"]);
}

/// A replica that is offered a snapshot, and the offer.
fn joining() -> (Scene, SnapshotOffer) {
    let rig = Rig::tuned(Bootstrap::Join, |_| ());
    let (parts, offer) = offered(&rig, |position| manifest(3, position, &content(position)));
    (Scene::of(rig, parts), offer)
}

#[tokio::test]
async fn an_offer_is_fetched_once_into_a_directory_of_its_own() {
    let (mut scene, offer) = joining();
    scene.take_in(&offer);
    let copy = scene.incoming().expect("it is noted");
    assert_eq!((copy.position, copy.complete, &copy.manifest[..]), (offer.position, false, &offer.manifest[..]));
    assert_eq!(scene.snapshots.sender(), Some((raft_id(2), 3)), "the sender and its pin");
    scene.take_in(&SnapshotOffer { from: raft_id(3), ..offer });
    assert_eq!(scene.snapshots.sender(), Some((raft_id(2), 3)), "one fetch goes on at a time");
    assert_eq!(scene.incoming(), Some(copy));
}

#[tokio::test]
async fn an_offer_of_an_unknown_node_or_during_a_shortage_is_refused() {
    let (mut scene, offer) = joining();
    scene.take_in(&SnapshotOffer { from: raft_id(44), ..offer });
    assert_eq!((scene.parts.group.snapshot_source(), scene.incoming()), (None, None));
    let (mut scene, offer) = joining();
    scene.flushing.note_shortage(Shortage::Space);
    scene.take_in(&offer);
    assert_eq!((scene.parts.group.snapshot_source(), scene.incoming()), (None, None));
}

#[tokio::test]
async fn a_note_that_finds_no_room_uses_the_reserve_and_gives_the_offer_up_if_that_is_not_enough() {
    for (reserve, taken_in) in [(true, true), (false, false)] {
        let (mut scene, offer) = joining();
        if reserve {
            scene.flushing.take_reserve().expect("there is room");
        }
        scene.rig.disk.set_capacity(Some(scene.rig.disk.used_bytes()));
        scene.take_in(&offer);
        assert_eq!((scene.snapshots.sender().is_some(), scene.incoming().is_some()), (taken_in, taken_in));
        assert_eq!(scene.parts.group.snapshot_source().is_some(), taken_in);
        assert_eq!(scene.flushing.short_of(), Some(Shortage::Space));
    }
}

#[tokio::test]
async fn a_copy_that_was_complete_before_a_crash_is_used_without_another_fetch() {
    let (mut scene, offer) = joining();
    let copy = scene.parts.home.begin_incoming(offer.position, &offer.manifest).expect("there is room");
    scene.parts.home.complete_incoming(&copy).expect("there is room");
    scene.take_in(&offer);
    assert_eq!(scene.snapshots.sender(), None);
    let taken = scene.snapshots.take_incoming(offer.position).expect("it is the one");
    assert_eq!(taken, IncomingCopy { complete: true, ..copy });
}

#[tokio::test]
async fn a_complete_copy_of_another_snapshot_is_no_substitute() {
    let (mut scene, offer) = joining();
    let other = manifest(3, offer.position, b"of another sender");
    let copy = scene.parts.home.begin_incoming(offer.position, &other).expect("there is room");
    scene.parts.home.complete_incoming(&copy).expect("there is room");
    scene.take_in(&offer);
    assert!(scene.snapshots.sender().is_some(), "it is fetched");
    assert_ne!(scene.incoming().expect("it is noted").generation, copy.generation);
}

#[tokio::test]
async fn a_fetched_copy_is_noted_as_complete_before_raft_is_told() {
    let (mut scene, offer) = joining();
    scene.take_in(&offer);
    scene.fetched(offer.position, Ok(()));
    assert!(scene.incoming().expect("it is noted").complete);
    let output = scene.parts.group.advance(&mut |_| ()).expect("the log can be written");
    assert_eq!(output.install.map(|install| install.position), Some(offer.position));
    let other = Position { index: offer.position.index + 1, ..offer.position };
    assert!(matches!(scene.snapshots.take_incoming(other), Err(Error::Damaged { file: "incoming", .. })));
}

#[tokio::test]
async fn a_failed_fetch_keeps_bytes_that_may_be_used_again_and_drops_the_rest() {
    let failures = [(Error::Overdue("a part"), true, None), (damage(), false, None)];
    for (error, kept, short_of) in failures.into_iter().chain([(no_handles(), false, Some(Shortage::Handles))]) {
        let (mut scene, offer) = joining();
        scene.take_in(&offer);
        scene.fetched(offer.position, Err(error.into()));
        assert_eq!((scene.incoming().is_some(), scene.flushing.short_of()), (kept, short_of));
        assert_eq!(scene.parts.group.snapshot_source(), None, "it is offered again");
    }
}

#[tokio::test]
async fn a_copy_that_raft_had_no_use_for_is_dropped_by_its_position() {
    let (mut scene, offer) = joining();
    scene.take_in(&offer);
    scene.fetched(offer.position, Ok(()));
    let other = Position { index: offer.position.index + 1, ..offer.position };
    scene.snapshots.discarded(other, &scene.parts.home).expect("the directory is sound");
    assert!(scene.incoming().is_some());
    scene.snapshots.discarded(offer.position, &scene.parts.home).expect("the directory is sound");
    assert_eq!(scene.incoming(), None);
}

#[tokio::test]
async fn a_sender_is_unknown_while_its_manifest_cannot_be_read() {
    let rig = Rig::tuned(Bootstrap::Join, |_| ());
    let (parts, offer) = offered(&rig, |_| Digest::default().0.to_vec()[..9].to_vec());
    let mut scene = Scene::of(rig, parts);
    scene.take_in(&offer);
    assert_eq!(scene.snapshots.sender(), None);
    assert!(scene.snapshots.leave().is_some(), "the fetch finds out");
}
