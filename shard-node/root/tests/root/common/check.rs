//! A comparison of every answer of a machine with the model.

use coppice_env::{Rng, SimRng};
use coppice_root::{Error, Operation, Root, StateLeaf};
use coppice_types::{Epoch, Sequence, Stamp, Term, Version};
use coppice_verify::merkle;

use super::{Model, WINDOW};

pub fn check(root: &Root, model: &mut Model) {
    check_view(root, model);
    check_versions(root, model);
    check_times(root, model);
    check_log(root, model);
    check_sessions(root, model);
    check_admin(root, model);
    assert_eq!(root.pins(0).collect::<Vec<_>>(), model.living_pins());
    let oldest = model.living_pins().into_iter().min_by_key(|pin| (pin.version, pin.id));
    assert_eq!(root.oldest_pin(0), oldest);
}

pub fn check_view(root: &Root, model: &Model) {
    let view = root.view().expect("founded");
    assert_eq!(&*view.genesis, model.headers[0].as_slice());
    assert_eq!(&*view.newest, model.headers.last().expect("founded").as_slice());
    assert_eq!((view.log_size, view.log_root), (model.size(), merkle::mth(&model.hashes())));
    assert_eq!((view.head, view.pruned_boundary.0), (model.head(), model.boundary));
    assert_eq!(view.epochs, model.epochs.pairs());
    assert_eq!(&view.leaves, model.leaves.last().expect("founded"));
    assert_eq!(view.term, Term(model.term));
}

fn check_versions(root: &Root, model: &Model) {
    let head = model.head();
    for (version, standing) in model.standing.iter().enumerate() {
        let version = version as u64;
        for epoch in [None, Some(standing.stamp.epoch)] {
            let found = root.version(Version(version), epoch);
            if version < model.boundary {
                assert!(matches!(found, Err(Error::Pruned { .. })), "version {version} is pruned");
                continue;
            }
            let found = found.expect("stands");
            assert_eq!(found.stamp, standing.stamp);
            assert_eq!(found.sequence.0, standing.sequence);
            assert_eq!(found.header, model.headers[standing.sequence as usize]);
            assert_eq!(found.leaves, model.leaves[standing.sequence as usize]);
        }
    }
    for Stamp { epoch, version } in &model.dead {
        let found = root.version(*version, Some(*epoch));
        assert!(matches!(found, Err(Error::RolledBack { .. })), "({epoch}, {version}) is dead");
    }
    // Without an epoch, a number above head was rolled back if it ever existed, and otherwise is
    // still to come.
    let highest = model.decoded.iter().map(|header| header.stamp.version).max().expect("founded");
    for above in [head.version.next(), highest.next()] {
        match root.version(above, None) {
            Err(Error::RolledBack { epoch: None, .. }) => assert!(above <= highest, "{above} never was"),
            Err(Error::NotYet { .. }) => assert!(above > highest, "{above} was rolled back"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(root.version(above, Some(head.epoch)), Err(Error::NotYet { .. })));
    }
    let later = root.version(head.version, Some(Epoch(head.epoch.0 + 1)));
    assert!(matches!(later, Err(Error::NotYet { .. })));
    let alias = root.version(head.version, Some(head.epoch)).expect("head is readable by its own name");
    assert_eq!(alias.stamp, model.standing.last().expect("founded").stamp);
}

/// Compares the newest version of some times with a naive search.
fn check_times(root: &Root, model: &Model) {
    // The model's own numbers are those of its commands.
    let mut rng = SimRng::new(model.size());
    let times: Vec<u64> =
        model.standing.iter().map(|version| model.decoded[version.sequence as usize].timestamp_ms).collect();
    let header = |version: usize| {
        let sequence = model.standing[version].sequence;
        (Sequence(sequence), model.headers[sequence as usize].clone())
    };
    let mut asked = vec![times[0], u64::MAX, model.newest().timestamp_ms];
    for _ in 0..20 {
        let time = times[rng.below(times.len() as u64) as usize];
        asked.extend([time, time + 1, (time - 1).max(times[0])]);
    }
    for time_ms in asked {
        let version = times.partition_point(|time| *time <= time_ms) - 1;
        let found = root.version_at(time_ms).expect("there is one");
        assert_eq!((found.stamp, found.header), (model.standing[version].stamp, header(version)), "at {time_ms}");
        assert_eq!(found.next, (version + 1 < times.len()).then(|| header(version + 1)), "at {time_ms}");
    }
    assert!(matches!(root.version_at(times[0] - 1), Err(Error::BeforeGenesis { .. })));
}

fn check_log(root: &Root, model: &mut Model) {
    let hashes = model.hashes();
    let size = model.size();
    let mut read = Vec::new();
    while read.len() < model.headers.len() {
        let more = root.headers(Sequence(read.len() as u64), 100).expect("readable");
        assert!(!more.is_empty(), "headers go on to the end of the log");
        read.extend(more);
    }
    assert_eq!(read, model.headers);
    assert!(root.headers(Sequence(size), 5).expect("readable").is_empty());
    for sequence in 0..size {
        let journal = root.journal(Sequence(sequence)).expect("readable");
        assert_eq!(journal, model.journals[sequence as usize]);
    }
    assert!(matches!(root.journal(Sequence(size)), Err(Error::NoEntry { .. })));
    for _ in 0..20 {
        let new = 1 + model.rng.below(size);
        let old = model.rng.below(new + 1);
        let index = model.rng.below(new);
        let (old_root, new_root) = (root.root_at(old).expect("known"), root.root_at(new).expect("known"));
        assert_eq!(old_root, merkle::mth(&hashes[..old as usize]));
        assert_eq!(new_root, merkle::mth(&hashes[..new as usize]));
        let path = root.consistency(old, new).expect("provable");
        assert_eq!(merkle::verify_consistency(old, new, &old_root, &new_root, &path), Ok(()));
        let path = root.inclusion(Sequence(index), new).expect("provable");
        assert_eq!(merkle::verify_inclusion(index, new, &hashes[index as usize], &path, &new_root), Ok(()));
    }
    assert!(matches!(root.inclusion(Sequence(0), size + 1), Err(Error::NoEntry { .. })));
    assert!(matches!(root.consistency(size, size - 1), Err(Error::NoEntry { .. })));
}

fn check_sessions(root: &Root, model: &Model) {
    assert_eq!(root.sessions().count(), model.sessions.len());
    for (id, numbers) in &model.sessions {
        let session = root.session(*id).expect("open");
        let highest = numbers.keys().last().copied().unwrap_or(0);
        assert_eq!(session.highest_number(), highest);
        for (number, expected) in numbers {
            let expired = highest - number >= u64::from(WINDOW);
            assert_eq!(session.is_expired(*number), expired);
            match session.batch(*number) {
                None => assert!(expired, "number {number} is remembered"),
                Some(batch) => {
                    assert!(!expired, "number {number} is forgotten");
                    assert_eq!((batch.batch_hash, batch.sequence.0), (expected.hash, expected.sequence));
                    assert_eq!(batch.journal_index, expected.journal_index);
                    assert_eq!(batch.rolled_back, expected.rolled_back);
                }
            }
        }
    }
}

fn check_admin(root: &Root, model: &Model) {
    let found = root.admin_after(0, usize::MAX).expect("readable");
    assert_eq!(found.len(), model.admins.len());
    for (at, (found, expected)) in found.iter().zip(&model.admins).enumerate() {
        assert_eq!((found.admin_sequence, found.sequence.0), (at as u64 + 1, expected.sequence));
        let operation = match (expected.rollback_to, expected.prune_before) {
            (Some(to), _) => Operation::Rollback { to, epoch: model.decoded[expected.sequence as usize].stamp.epoch },
            (None, before) => Operation::Prune { before: Version(before.expect("one of both")) },
        };
        assert_eq!(found.operation, operation);
        let state = |leaf: &StateLeaf| (leaf.shard, leaf.version, leaf.digest);
        let shards = found.shards.iter();
        assert!(
            shards
                .clone()
                .map(|shard| (shard.shard, shard.boundary.version, shard.boundary.digest))
                .eq(expected.boundary.iter().map(state))
        );
        assert!(
            shards
                .clone()
                .map(|shard| (shard.shard, shard.newest.version, shard.newest.digest))
                .eq(expected.newest.iter().map(state))
        );
    }
    let rest = root.admin_after(model.admins.len() as u64, 5).expect("readable");
    assert!(rest.is_empty());
}
