//! The offline check of one replica's directory: its small files, its raft log, its state. It
//! changes nothing, except for the repairs that opening a raft log makes.

use std::{fmt::Display, sync::Arc};

use coppice_consensus::Group;
use coppice_env::Storage;
use coppice_types::GroupId;

use crate::{
    Error,
    replica::home::{self, Home, Identity},
};

/// The findings of checking one replica's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Errors, one text for each.
    pub findings: Vec<String>,
    /// Number of leftovers of crashes, which the next start removes.
    pub notes: usize,
    /// The state could not be checked because a part of it is in a cold directory that was not
    /// given.
    pub cold_missing: Option<String>,
    /// Nothing could be checked because another version of the software wrote the directory.
    pub other_format: Option<String>,
    /// There was nothing to check: the replica has no directory, or an empty one.
    pub absent: bool,
}

/// Checks the replica of a group in a stopped node's directory. A file that can't be read is a
/// finding.
#[must_use]
pub fn check(node: &Arc<dyn Storage>, group: GroupId) -> Report {
    let mut report = Report::default();
    match check_parts(node, group, &mut report) {
        Ok(()) => {}
        Err(Error::Engine(error @ coppice_engine::Error::ColdMissing { .. })) => {
            report.cold_missing = Some(error.to_string());
        }
        Err(error @ (Error::OtherFormat { .. } | Error::Engine(coppice_engine::Error::OtherFormat { .. }))) => {
            report.other_format = Some(error.chain());
        }
        Err(error) => report.findings.push(error.chain()),
    }
    report
}

fn check_parts(node: &Arc<dyn Storage>, group: GroupId, report: &mut Report) -> Result<(), Error> {
    let identity = home::stored(node.as_ref(), group)?;
    // A crash before the identity was written leaves an empty directory.
    let Some(identity) = identity else {
        report.absent = true;
        return Ok(());
    };
    let home = Home::open(node.as_ref(), identity)?;
    if !home.started() {
        report.notes += 1;
        return Ok(());
    }
    check_log(&home, identity, report)?;
    if home.floor()?.index == 0 {
        // The replica is joining its group and waits for a snapshot: there is no state yet.
        report.notes += 1;
        return Ok(());
    }
    let state = home.state()?;
    let finding = |file: &str, what: &dyn Display| format!("{file}: {what}");
    match group {
        GroupId::Root => {
            let found = coppice_root::fsck::fsck(&state)?;
            report.notes += found.notes.len();
            report.findings.extend(found.findings.iter().map(|found| finding(&found.file, &found.what)));
        }
        GroupId::Shard(_) => {
            let found = coppice_engine::fsck(state)?;
            report.notes += found.notes.len();
            report.findings.extend(found.findings.iter().map(|found| finding(&found.file, &found.what)));
        }
    }
    Ok(())
}

/// Checks the small files and the raft log.
fn check_log(home: &Home, identity: Identity, report: &mut Report) -> Result<(), Error> {
    let floor = home.floor()?;
    home.incoming()?;
    let raft = home.raft()?;
    let Identity { cluster, group, raft_id } = identity;
    match Group::inspect(raft.as_ref(), cluster, group, raft_id) {
        Ok(Some(log)) if log.last.index < floor.index => {
            report.findings.push(format!("raft: the log ends at {}, before {}", log.last.index, floor.index));
        }
        Ok(Some(log)) => report.notes += log.leftovers + usize::from(log.torn),
        Ok(None) => report.findings.push("raft: there is no log".to_owned()),
        Err(error) => report.findings.push(format!("raft/{error}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use coppice_env::{OpenMode, SimRng, SimStorage};
    use coppice_types::{ClusterId, RaftId, ShardId};

    use super::*;
    use crate::{
        replica::machine::{Position, StateMachine},
        root::RootMachine,
        shard::{ShardMachine, tests::config},
    };

    #[test]
    fn a_replica_that_waits_for_its_first_snapshot_is_sound() {
        let node = SimStorage::new().storage();
        let identity = Identity { cluster: ClusterId([7; 16]), group: GroupId::Shard(ShardId(1)), raft_id: RaftId(5) };
        let mut home = Home::open(node.as_ref(), identity).expect("made");
        let options = coppice_consensus::Options::new(identity.cluster, identity.group, identity.raft_id);
        let raft = home.raft().expect("there is a place for it");
        drop(Group::create_empty(raft, options, Box::new(SimRng::new(1))).expect("made"));
        home.set_started(identity).expect("noted");
        drop(home);
        assert_eq!(check(&node, identity.group).findings, Vec::<String>::new());
    }

    const SHARD: GroupId = GroupId::Shard(ShardId(0));

    fn identity(group: GroupId) -> Identity {
        Identity { cluster: ClusterId([7; 16]), group, raft_id: RaftId::new(1, 1) }
    }

    /// A disk with a founded replica of the group.
    fn founded(group: GroupId) -> SimStorage {
        let disk = SimStorage::new();
        let mut home = Home::open(disk.storage().as_ref(), identity(group)).expect("made");
        let Identity { cluster, raft_id, .. } = identity(group);
        let options = coppice_consensus::Options::new(cluster, group, raft_id);
        let raft = home.raft().expect("made");
        drop(Group::create(raft, options, Box::new(SimRng::new(1)), &[raft_id]).expect("made"));
        let (state, first) = (home.state().expect("made"), Position { index: 1, term: 1 });
        match group {
            GroupId::Root => {
                RootMachine::open(state, &crate::Runner::Threads).and_then(|mut it| it.flush(first)).expect("flushed")
            }
            GroupId::Shard(_) => {
                ShardMachine::open(state, &config()).and_then(|mut it| it.flush(first)).expect("flushed")
            }
        }
        home.set_floor(first).expect("noted");
        home.set_started(identity(group)).expect("noted");
        disk
    }

    fn findings(disk: &SimStorage, group: GroupId) -> Vec<String> {
        check(&disk.storage(), group).findings
    }

    #[test]
    fn a_sound_replica_of_either_kind_has_no_findings() {
        for group in [GroupId::Root, SHARD] {
            let disk = founded(group);
            for _ in 0..2 {
                assert_eq!(check(&disk.storage(), group), Report::default(), "a check changes nothing");
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_any_part_of_a_replica_is_a_finding_that_names_the_part() {
        for (group, path, part) in [
            (GroupId::Root, "group-0/identity", "identity"),
            (GroupId::Root, "group-0/floor", "floor"),
            (GroupId::Root, "group-0/state-1/superblock", "superblock"),
            (SHARD, "group-1/state-1/meta-1", "meta-1"),
            (SHARD, "group-1/raft/meta", "raft/meta"),
        ] {
            let disk = founded(group);
            disk.flip_bit(path, 20, 3);
            let found = findings(&disk, group);
            assert!(found.iter().any(|found| found.contains(part)), "{path}: {found:?}");
        }
    }

    #[test]
    fn a_log_that_is_missing_or_ends_before_the_floor_is_a_finding() {
        let disk = founded(SHARD);
        let home = Home::open(disk.storage().as_ref(), identity(SHARD)).expect("opened");
        home.set_floor(Position { index: 50, term: 1 }).expect("noted");
        drop(home);
        assert_eq!(findings(&disk, SHARD), ["raft: the log ends at 1, before 50"]);
        disk.remove_dir_all("group-1/raft").expect("removed");
        assert_eq!(findings(&disk, SHARD), ["raft: there is no log"]);
    }

    #[test]
    fn nothing_and_a_pledge_are_told_apart_from_a_replica() {
        let disk = SimStorage::new();
        let absent = Report { absent: true, ..Report::default() };
        assert_eq!(check(&disk.storage(), SHARD), absent);
        disk.create_dir_all("group-1").expect("made");
        assert_eq!(check(&disk.storage(), SHARD), absent, "a crash came before the identity was written");
        drop(Home::open(disk.storage().as_ref(), identity(SHARD)).expect("made"));
        assert_eq!(check(&disk.storage(), SHARD), Report { notes: 1, ..Report::default() });
    }

    #[test]
    fn a_directory_of_another_build_is_no_damage_and_one_in_use_is_not_checked() {
        let disk = founded(SHARD);
        let held = Home::open(disk.storage().as_ref(), identity(SHARD)).expect("opened");
        assert_eq!(findings(&disk, SHARD), [Error::InUse.chain()]);
        drop(held);
        let node = disk.storage();
        let file = node.open("group-1/floor", OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes.truncate(bytes.len() - 32);
        bytes[0] = 9;
        let hash = coppice_verify::hash::sha256(&bytes);
        file.write_all_at(&[&bytes[..], hash.as_bytes()].concat(), 0).expect("room");
        let report = check(&node, SHARD);
        assert!(report.findings.is_empty());
        assert!(report.other_format.is_some_and(|what| what.contains("floor has format 9")));
    }
}
