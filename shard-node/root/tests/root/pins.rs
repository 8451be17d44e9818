//! Pins: the prunes that they forbid, and how they end.

use crate::common::{Model, check::check, options};
use coppice_env::SimStorage;
use coppice_root::{AppendHeader, Command, Outcome, PIN_TTL_MS_MAX, Refusal, Root, SetPin, Unpin, VERSION_PINS_MAX};
use coppice_types::{PinId, Reason, Version};
use coppice_verify::header::Header;

/// A ledger of ten versions.
fn ten(disk: &SimStorage) -> (Root, Model) {
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(7, &mut root);
    while model.head().version.0 < 10 {
        let command = Command::AppendHeader(model.commit());
        model.accept(&mut root, &command);
    }
    (root, model)
}

fn pin(model: &Model, id: u8, version: u64, ttl_ms: u64) -> Command {
    let clock_ms = model.newest().timestamp_ms;
    Command::SetPin(SetPin { pin: PinId([id; 16]), version: Version(version), ttl_ms, clock_ms })
}

/// A prune whose header has this time.
fn prune_at(model: &mut Model, before: u64, timestamp_ms: u64) -> Command {
    let append = model.prune(before);
    let mut header = Header::decode(&append.header).expect("a header");
    header.timestamp_ms = timestamp_ms;
    Command::AppendHeader(AppendHeader { header: header.encode(), ..append })
}

#[test]
fn a_living_pin_keeps_its_version_from_being_pruned_and_is_named() {
    let (mut root, mut model) = ten(&SimStorage::new());
    let now_ms = model.newest().timestamp_ms;
    let set = pin(&model, 1, 4, 100);
    model.accept(&mut root, &set);
    let refused = prune_at(&mut model, 5, now_ms + 99);
    let refusal = model.refuse(&mut root, &refused);
    assert_eq!(refusal.reason(), Reason::Pinned);
    assert!(refusal.to_string().contains(&PinId([1; 16]).to_string()), "{refusal}");
    let up_to_it = prune_at(&mut model, 4, now_ms + 1);
    model.accept(&mut root, &up_to_it);
    let when_it_is_over = prune_at(&mut model, 5, now_ms + 100);
    model.accept(&mut root, &when_it_is_over);
    check(&root, &mut model);
}

#[test]
fn a_pin_is_renewed_under_its_name_and_taken_back() {
    let (mut root, mut model) = ten(&SimStorage::new());
    for ttl_ms in [10, 5000] {
        let set = pin(&model, 1, 4, ttl_ms);
        model.accept(&mut root, &set);
    }
    let other = pin(&model, 1, 5, 10);
    assert!(matches!(model.refuse(&mut root, &other), Refusal::OtherPin { version: Version(4), .. }));
    let unpin = Command::Unpin(Unpin { pin: PinId([1; 16]), clock_ms: 0 });
    model.accept(&mut root, &unpin);
    assert!(matches!(model.raft.last(), Some((_, _, Outcome::Unpinned { found: true }))));
    model.accept(&mut root, &unpin);
    assert!(matches!(model.raft.last(), Some((_, _, Outcome::Unpinned { found: false }))));
    let prune = Command::AppendHeader(model.prune(5));
    model.accept(&mut root, &prune);
}

#[test]
fn only_versions_that_can_be_read_are_pinned() {
    let (mut root, mut model) = ten(&SimStorage::new());
    let prune = Command::AppendHeader(model.prune(3));
    model.accept(&mut root, &prune);
    let back = Command::AppendHeader(model.rollback(8));
    model.accept(&mut root, &back);
    for (version, reason) in [(2, Reason::Pruned), (9, Reason::RolledBack), (11, Reason::NotYet)] {
        let set = pin(&model, 1, version, 10);
        assert_eq!(model.refuse(&mut root, &set).reason(), reason, "version {version}");
    }
    for ttl_ms in [0, PIN_TTL_MS_MAX + 1, u64::MAX] {
        let set = pin(&model, 1, 5, ttl_ms);
        assert_eq!(model.refuse(&mut root, &set).reason(), Reason::InvalidArgument);
    }
}

#[test]
fn a_rollback_ends_the_pins_of_what_it_takes_away() {
    let (mut root, mut model) = ten(&SimStorage::new());
    for (id, version) in [(1, 9), (2, 6)] {
        let set = pin(&model, id, version, 10_000);
        model.accept(&mut root, &set);
    }
    let back = Command::AppendHeader(model.rollback(6));
    model.accept(&mut root, &back);
    assert_eq!(root.pins(0).map(|pin| pin.version.0).collect::<Vec<_>>(), [6]);
}

#[test]
fn pins_are_bounded_and_survive_a_restart() {
    let disk = SimStorage::new();
    let (mut root, mut model) = ten(&disk);
    for number in 0..VERSION_PINS_MAX {
        let mut id = [9; 16];
        id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let clock_ms = model.newest().timestamp_ms;
        let set = SetPin { pin: PinId(id), version: Version(4), ttl_ms: 1000, clock_ms };
        model.accept(&mut root, &Command::SetPin(set));
    }
    let more = pin(&model, 1, 4, 10);
    assert_eq!(model.refuse(&mut root, &more).reason(), Reason::QuotaExceeded);
    root.flush(model.position()).expect("flushes");
    drop(root);
    let mut root = Root::open_with(disk.storage(), options()).expect("opens again");
    check(&root, &mut model);
    assert_eq!(root.pins(0).count(), VERSION_PINS_MAX);
    let later = SetPin { pin: PinId([1; 16]), version: Version(4), ttl_ms: 10, clock_ms: u64::MAX / 2 };
    let bytes = Command::SetPin(later).encode().expect("within limits");
    assert!(matches!(root.apply(model.index + 1, &bytes), Ok(Outcome::Pinned(_))), "the time of the others is over");
}
