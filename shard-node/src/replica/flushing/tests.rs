use super::*;
use crate::replica::{
    config::Bootstrap,
    tests::{Parts, Rig, Toy, damage, full, no_handles},
};

/// A leading replica whose state machine is flushed as a test needs it.
struct Scene {
    rig: Rig,
    parts: Parts,
    flushing: Flushing<Toy>,
}

impl Scene {
    fn new() -> Self {
        let tune = |tuning: &mut crate::Tuning| {
            (tuning.flush_interval, tuning.flush_entries_max) = (Duration::from_secs(5), 10);
            tuning.runner = crate::Runner::Inline(Arc::new(Duration::default));
        };
        let rig = Rig::tuned(Bootstrap::Join, tune);
        let mut parts = rig.parts(1);
        parts.lead();
        let flushing = Flushing::new(Arc::clone(&rig.config), Arc::clone(&parts.shared));
        Self { rig, parts, flushing }
    }

    /// Commits entries and notes that they were applied.
    fn apply(&mut self, entries: usize) {
        self.parts.commit(entries);
        (0..entries).for_each(|_| self.flushing.note_entry());
    }

    fn try_go_on(&mut self) -> Result<Option<Error>, Error> {
        let mut laps = Laps::begin(Duration::ZERO);
        self.flushing.go_on(&self.parts.home, &mut self.parts.group, self.parts.applied, &mut laps)
    }

    /// Applies entries that fill segments of the log, and begins a flush.
    fn flush_segments(&mut self) {
        self.parts.commit_large(3);
        self.flushing.note_entry();
        self.pass(5);
        assert_eq!(self.go_on(), ["begin_flush"]);
    }

    /// Lets the next note of a floor fail.
    fn refuse_floor(&self, kind: std::io::ErrorKind) {
        let path_part = "group-0/floor".to_owned();
        let fault = coppice_env::Fault { operation: coppice_env::Operation::Write, path_part, skip: 0, kind };
        self.rig.disk.inject(fault);
    }

    fn floor(&self) -> Position {
        self.parts.home.floor().expect("it is sound")
    }

    /// Takes one step. Returns the names of the calls that reached the state machine.
    #[track_caller]
    fn go_on(&mut self) -> Vec<String> {
        let failed = self.try_go_on().expect("the directory is sound");
        assert!(failed.is_none(), "{failed:?}");
        let name = |call: String| call.split(' ').next().unwrap_or_default().to_owned();
        self.rig.script.take_calls().into_iter().map(name).collect()
    }

    fn pass(&self, seconds: u64) {
        self.rig.clock.advance(Duration::from_secs(seconds));
    }

    fn has_reserve(&self) -> bool {
        self.rig.reserve_bytes() > 0
    }
}

#[tokio::test]
async fn a_flush_is_due_by_time_or_entries_or_bytes_and_only_if_something_was_applied() {
    let mut scene = Scene::new();
    scene.pass(60);
    assert!(scene.go_on().is_empty(), "nothing was applied");
    scene.apply(1);
    assert_eq!(scene.go_on(), ["begin_flush"], "it is late");
    scene.apply(9);
    scene.pass(4);
    assert!(scene.go_on().is_empty());
    scene.pass(1);
    assert_eq!(scene.go_on(), ["begin_flush"]);
    scene.apply(10);
    assert_eq!(scene.go_on(), ["begin_flush"]);
    assert!(scene.go_on().is_empty(), "the count begins again");
    scene.apply(1);
    scene.rig.script.acts().unflushed_bytes = (1 << 20) - 1;
    assert!(scene.go_on().is_empty());
    scene.rig.script.acts().unflushed_bytes += 1;
    assert_eq!(scene.go_on(), ["begin_flush"]);
    scene.apply(1);
    (scene.rig.script.acts().unflushed_bytes, scene.rig.script.acts().much_waits) = (0, true);
    assert_eq!(scene.go_on(), ["begin_flush"]);
}

#[tokio::test]
async fn a_snapshot_that_was_installed_needs_no_flush() {
    let mut scene = Scene::new();
    scene.apply(10);
    scene.flushing.note_installed();
    scene.pass(60);
    assert!(scene.go_on().is_empty());
}

#[tokio::test]
async fn a_flush_waits_for_a_running_write_until_it_is_late() {
    let mut scene = Scene::new();
    scene.rig.script.acts().disk = Disk::Busy;
    scene.apply(10);
    scene.pass(9);
    assert!(scene.go_on().is_empty());
    scene.rig.script.acts().unflushed_bytes = 2 << 20;
    assert_eq!(scene.go_on(), ["begin_flush"], "too many bytes wait");
    scene.rig.script.acts().unflushed_bytes = 0;
    scene.apply(10);
    assert!(scene.go_on().is_empty());
    scene.pass(10);
    assert_eq!(scene.go_on(), ["begin_flush"], "two intervals are over");
}

#[tokio::test]
async fn a_write_that_has_ended_is_taken_in_before_the_flush_that_is_due() {
    let mut scene = Scene::new();
    scene.rig.script.acts().disk = Disk::Due;
    scene.try_go_on().expect("the directory is sound");
    assert_eq!(scene.rig.script.take_calls(), ["write_on false"]);
    scene.apply(10);
    scene.try_go_on().expect("the directory is sound");
    assert_eq!(scene.rig.script.take_calls(), ["write_on true"]);
    scene.rig.script.acts().disk = Disk::Idle;
    assert_eq!(scene.go_on(), ["begin_flush"], "the write did not count as the flush");
}

#[tokio::test]
async fn a_flush_that_a_reader_was_in_the_way_of_is_due_again_at_once() {
    let mut scene = Scene::new();
    scene.apply(10);
    let shared = Arc::clone(&scene.parts.shared);
    let reader = shared.read_machine();
    assert!(scene.go_on().is_empty());
    drop(reader);
    assert_eq!(scene.go_on(), ["begin_flush"]);
}

#[tokio::test]
async fn the_log_is_cut_behind_the_older_superblock_and_never_behind_the_newer_one() {
    let mut scene = Scene::new();
    scene.flush_segments();
    let flushed = scene.parts.applied;
    assert_eq!(scene.floor(), Position { index: 1, term: 1 });
    scene.flush_segments();
    assert_eq!(scene.floor(), flushed, "the floor is noted before the log is cut");
    assert!(scene.parts.group.status().base < flushed);
    scene.go_on();
    assert_eq!(scene.parts.group.status().base, flushed, "the next step takes the cut in");
}

#[tokio::test]
async fn a_flush_that_frees_no_whole_segment_notes_no_floor() {
    let mut scene = Scene::new();
    let before = (scene.floor(), scene.parts.group.status().base);
    for _ in 0..3 {
        scene.apply(10);
        assert_eq!(scene.go_on(), ["begin_flush"]);
    }
    assert_eq!((scene.floor(), scene.parts.group.status().base), before);
}

#[tokio::test]
async fn a_flush_of_a_durable_state_writes_nothing() {
    let mut scene = Scene::new();
    scene.apply(1);
    for expected in [vec![format!("flush {}", scene.parts.applied.index)], Vec::new()] {
        let Parts { home, group, applied, .. } = &mut scene.parts;
        let mut laps = Laps::begin(Duration::ZERO);
        assert!(scene.flushing.flush(home, group, *applied, &mut laps).expect("the directory is sound").is_none());
        assert_eq!(scene.rig.script.take_calls(), expected);
    }
}

#[tokio::test]
async fn a_full_disk_gives_the_reserve_up_and_takes_it_back_with_the_first_flush_that_succeeds() {
    let mut scene = Scene::new();
    scene.flushing.take_reserve().expect("there is room");
    assert!(scene.has_reserve() && scene.flushing.short_of().is_none());
    scene.apply(10);
    scene.rig.script.fail("begin_flush", full());
    assert_eq!(scene.go_on(), ["begin_flush"]);
    assert_eq!(scene.flushing.short_of(), Some(Shortage::Space));
    assert!(!scene.has_reserve());
    // Only the time causes the next attempt, however many entries come.
    scene.apply(30);
    assert!(scene.go_on().is_empty());
    scene.pass(1);
    scene.rig.script.fail("flush", full());
    assert_eq!(scene.go_on(), ["flush"]);
    assert_eq!(scene.flushing.short_of(), Some(Shortage::Space));
    scene.pass(1);
    assert_eq!(scene.go_on(), ["flush"]);
    assert_eq!(scene.flushing.short_of(), None);
    assert!(scene.has_reserve());
}

#[tokio::test]
async fn a_shortage_ends_only_when_the_reserve_is_back() {
    let mut scene = Scene::new();
    scene.apply(10);
    scene.rig.script.fail("begin_flush", full());
    scene.go_on();
    scene.rig.disk.set_capacity(Some(scene.rig.disk.used_bytes() + (64 << 10)));
    scene.pass(1);
    assert_eq!(scene.go_on(), ["flush"], "the flush itself finds room");
    assert_eq!(scene.flushing.short_of(), Some(Shortage::Space));
    scene.rig.disk.set_capacity(None);
    scene.pass(1);
    scene.go_on();
    assert_eq!(scene.flushing.short_of(), None);
}

#[tokio::test]
async fn a_lack_of_descriptors_is_waited_out_with_the_reserve_in_place() {
    let mut scene = Scene::new();
    scene.flushing.take_reserve().expect("there is room");
    scene.apply(10);
    scene.rig.script.fail("begin_flush", no_handles());
    scene.go_on();
    assert_eq!(scene.flushing.short_of(), Some(Shortage::Handles));
    assert!(scene.has_reserve());
    scene.pass(1);
    scene.go_on();
    assert_eq!(scene.flushing.short_of(), None);
}

#[tokio::test]
async fn a_failure_that_does_not_pass_is_handed_to_the_caller() {
    let mut scene = Scene::new();
    scene.apply(10);
    scene.rig.script.fail("begin_flush", damage());
    assert!(matches!(scene.try_go_on(), Ok(Some(Error::Damaged { .. }))), "it is the state machine's");
    scene.rig.script.take_calls();
    scene.flush_segments();
    scene.refuse_floor(std::io::ErrorKind::PermissionDenied);
    scene.flush_segments();
    assert!(matches!(scene.try_go_on(), Err(Error::Storage { .. })), "it is the directory's");
}

#[tokio::test]
async fn a_floor_that_finds_no_room_leaves_a_longer_log_and_stops_nothing() {
    let mut scene = Scene::new();
    scene.flush_segments();
    let before = (scene.floor(), scene.parts.group.status().base);
    scene.refuse_floor(std::io::ErrorKind::StorageFull);
    scene.flush_segments();
    assert!(scene.go_on().is_empty());
    assert_eq!((scene.floor(), scene.parts.group.status().base), before);
    scene.flush_segments();
    scene.go_on();
    assert!(scene.floor() > before.0 && scene.parts.group.status().base > before.1, "the next flush cuts it");
}

#[tokio::test]
async fn the_share_of_the_reserve_grows_before_entries_are_taken_in_and_shrinks_when_all_is_quiet() {
    let mut scene = Scene::new();
    scene.flushing.take_reserve().expect("there is room");
    let quiet = scene.rig.reserve_bytes();
    assert!(scene.flushing.covers(1 << 10).expect("the disk is sound"));
    assert_eq!(scene.rig.reserve_bytes(), quiet, "a small entry needs no more");
    assert!(scene.flushing.covers(256 << 10).expect("the disk is sound"));
    let grown = scene.rig.reserve_bytes();
    assert!(grown >= 512 << 10, "{grown} bytes");
    scene.flushing.lower_share().expect("the disk is sound");
    assert_eq!(scene.rig.reserve_bytes(), grown, "the entry may not be applied yet");
    scene.rig.script.acts().unflushed_bytes = 64 << 10;
    scene.flushing.note_all_applied();
    scene.flushing.lower_share().expect("the disk is sound");
    assert!((quiet + 1..grown).contains(&scene.rig.reserve_bytes()), "what it became waits for a flush");
    scene.rig.script.acts().unflushed_bytes = 0;
    scene.flushing.lower_share().expect("the disk is sound");
    assert_eq!(scene.rig.reserve_bytes(), quiet);
}

#[tokio::test]
async fn entries_that_the_reserve_can_not_cover_are_not_taken_in() {
    let mut scene = Scene::new();
    scene.flushing.take_reserve().expect("there is room");
    scene.rig.disk.set_capacity(Some(scene.rig.disk.used_bytes() + (64 << 10)));
    assert!(scene.flushing.covers(1 << 10).expect("the disk is sound"), "the share covers it as it is");
    assert!(!scene.flushing.covers(256 << 10).expect("the disk is sound"));
    assert_eq!(scene.flushing.short_of(), Some(Shortage::Space));
    assert!(!scene.flushing.covers(1).expect("the disk is sound"), "nothing is taken in during the shortage");
    scene.rig.disk.set_capacity(None);
    scene.apply(1);
    scene.pass(1);
    scene.go_on();
    assert!(scene.flushing.covers(256 << 10).expect("the disk is sound"));
}

#[tokio::test]
async fn a_shard_lacks_space_as_long_as_another_replica_of_its_node_does_and_the_root_group_goes_on() {
    let scene = Scene::new();
    let shard = coppice_types::GroupId::Shard(coppice_types::ShardId(0));
    scene.rig.config.site.reserve.release(shard).expect("the disk is sound");
    assert_eq!(scene.flushing.short_of(), None, "it is the root group's");
    let identity = crate::replica::home::Identity { group: shard, ..scene.rig.config.identity };
    let (machine, site) = (scene.rig.script.clone(), Arc::clone(&scene.rig.config.site));
    let config = Config { identity, bootstrap: Bootstrap::Join, machine, site };
    let flushing = Flushing::new(Arc::new(config), Arc::clone(&scene.parts.shared));
    assert_eq!(flushing.short_of(), Some(Shortage::Space));
    scene.rig.config.site.reserve.take(shard, 1).expect("there is room");
    assert_eq!(flushing.short_of(), None);
}
