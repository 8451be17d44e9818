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
    use coppice_env::{SimRng, SimStorage};
    use coppice_types::{ClusterId, RaftId, ShardId};

    use super::*;

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
}
