//! Checker `times`: each replica of the root group finds the newest version at any time.

use std::collections::BTreeSet;

use coppice_root::Root;
use coppice_shard_node::Replica;
use coppice_types::Sequence;
use coppice_verify::header::{Body, Header};

use crate::{history::Finding, world::World};

/// Compares what the replicas find with a search of all headers.
pub fn check(world: &World) -> Result<(), Finding> {
    for (group, ordinals) in &world.site.shape.groups {
        for ordinal in ordinals {
            let Some(Replica::Root(replica)) = world.replica(*ordinal, *group) else { continue };
            // A replica that does not serve finds nothing.
            let compared = replica.read_now(|machine| Ok(compare(machine.root()))).unwrap_or(Ok(()));
            compared.map_err(|why| format!("times: {group} on node-{ordinal}: {why}"))?;
        }
    }
    Ok(())
}

fn compare(root: &Root) -> Result<(), String> {
    let mut standing = Vec::new();
    for sequence in 0..root.log_size() {
        // If a byte of this replica went bad, another one has the header.
        let Ok(bytes) = root.header(Sequence(sequence)) else { return Ok(()) };
        let header = Header::decode(&bytes).map_err(|error| format!("header {sequence}: {error}"))?;
        match &header.body {
            Body::Genesis(_) | Body::Commit => standing.push((header.stamp, header.timestamp_ms)),
            Body::Rollback(rollback) => {
                standing.truncate(usize::try_from(rollback.target.version.0 + 1).map_err(|error| error.to_string())?);
            }
            _ => {}
        }
    }
    let Some((_, genesis_ms)) = standing.first().copied() else { return Ok(()) };
    let around = standing.iter().flat_map(|(_, ms)| [ms.saturating_sub(1), *ms, ms.saturating_add(1)]);
    let times: BTreeSet<u64> = around.filter(|ms| *ms >= genesis_ms).collect();
    for ms in times {
        let later = standing.partition_point(|(_, time)| *time <= ms);
        let expected = standing[later - 1].0;
        let Ok(found) = root.version_at(ms) else { return Ok(()) };
        if found.stamp != expected || found.next.is_some() != (later < standing.len()) {
            return Err(format!("at {ms} ms the newest version is {expected}, not {}", found.stamp));
        }
    }
    Ok(())
}
