//! The judges of a run. Each finding begins with the name of its checker.
//! - `log`: there is one root log. It is append-only, its headers follow each other, and every
//!   checkpoint ever shown is of a prefix of it.
//! - `audit`: every state root follows from the batches and events, by a naive model.
//! - `commits`: every acknowledged batch stands where its client was told, applied once, and its
//!   preconditions held. No refused batch is in the log.
//! - `appends`: each request of a member that is in the log holds, judged again. Every acknowledged
//!   one stands where its author was told, applied once.
//! - `order`: every answer fits one moment of the log between question and answer
//!   (linearizability).
//! - `reads`: records that were read are those of the model at that state. `proofs` and
//!   `checkpoints` are judged as they come.
//! - `replicas`: no replica is quarantined except for a byte that went bad. All replicas of a group
//!   compute the same digest of every entry, have the same states at any time, and are equal at the
//!   end.
//! - `anchors`: each anchor holds what the time ledger took in, and its bounds on the time of other
//!   entries are true.
//! - `times`: each replica of the root group finds the newest version at any time.
//! - `erasures`: no disk has a byte of what an order has occulted, and nothing else is gone.
//! - `rot`: a byte that goes bad is found by `fsck`, or dead. `fsck`: every image that a crash left
//!   was sound.
//! - `progress`: once the faults have stopped, everything works again.

mod anchors;
mod commits;
mod conditions;
mod ledger;
mod order;
mod times;

use std::collections::BTreeSet;

use coppice_env::{OpenMode, Storage};
use coppice_root::Root;
use coppice_shard_node::Replica;
use coppice_types::Sequence;
use coppice_verify::hash;

use self::ledger::Ledger;
use crate::{
    history::{Finding, Scribe},
    world::World,
};

/// Judges a run after its faults have stopped.
pub async fn all(world: &World) {
    if let Err(finding) = judge(world) {
        world.site.scribe.wrong(finding);
    }
}

fn judge(world: &World) -> Result<(), Finding> {
    let ledger = Ledger::read(world)?;
    let history = world.site.scribe.lock();
    ledger.check_checkpoints(&history)?;
    ledger.check_appends(&history)?;
    let placed = commits::check(&history, &ledger)?;
    order::check(&history, &ledger, &placed)?;
    anchors::check(world, &history, &ledger)?;
    // `replicas` may record findings of its own, so the lock is released first.
    drop(history);
    replicas(world)?;
    times::check(world)?;
    erasures(world)
}

/// Checks that no disk has the nonce of an occulted journal, which nothing else begins with.
fn erasures(world: &World) -> Result<(), Finding> {
    let nonces: BTreeSet<[u8; 32]> = world.site.scribe.lock().occulted.iter().copied().collect();
    if nonces.is_empty() {
        return Ok(());
    }
    // Few places of a disk have the first two bytes of a nonce.
    let mut begins = vec![false; 1 << 16];
    let head = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    nonces.iter().for_each(|nonce| begins[head(nonce)] = true);
    for machine in world.machines.values() {
        for name in machine.disk.files() {
            let Ok(file) = machine.disk.open(&name, OpenMode::Existing) else { continue };
            let mut bytes = vec![0; usize::try_from(file.len().unwrap_or_default()).unwrap_or(0)];
            if file.read_exact_at(&mut bytes, 0).is_err() {
                continue;
            }
            if bytes.windows(32).any(|window| begins[head(window)] && nonces.contains(window)) {
                return Err(format!("erasures: {name} of {} has the content of an occulted journal", machine.name));
            }
        }
    }
    Ok(())
}

/// Compares all replicas as they are now. Two with a state of one version, or a log of the same
/// size, must agree on it, and every checkpoint must be of the one log.
pub fn observe(world: &World) {
    let scribe = &world.site.scribe;
    for group in world.site.shape.groups.keys() {
        for ordinal in world.site.shape.hosts(*group) {
            let replica = world.replica(ordinal, *group);
            let status = replica.as_ref().map(Replica::status);
            if let Some(status) = status.filter(|status| status.role.as_str() == "quarantined")
                && !world.machines[&ordinal].rotten.contains(group)
            {
                scribe.wrong(format!(
                    "replicas: {group} on node-{ordinal} is quarantined without a bad byte: {}",
                    status.note
                ));
            }
            // A replica that does not serve has nothing to compare.
            let _ = match replica {
                Some(Replica::Shard(replica)) => replica.read_now(|machine| {
                    scribe.lock().state(*group, machine.protocol().executed, machine.engine().decided());
                    Ok(())
                }),
                Some(Replica::Root(replica)) => replica.read_now(|machine| {
                    observe_log(scribe, machine.root());
                    Ok(())
                }),
                None => Ok(()),
            };
        }
    }
}

fn observe_log(scribe: &Scribe, root: &Root) {
    let mut history = scribe.lock();
    let leaf = |sequence| root.header(Sequence(sequence)).map(|header| hash::log_entry_hash(&header));
    // If a byte of this replica went bad, another one has these headers.
    if let Ok(leaves) = (history.log_size()..root.log_size()).map(leaf).collect::<Result<Vec<_>, _>>() {
        history.log_grows(&leaves);
    }
    if root.log_size() > 0 {
        history.checkpoint(root.log_size(), root.log_root());
    }
}

/// Checks that all replicas of a group are equal, and their disks sound.
fn replicas(world: &World) -> Result<(), Finding> {
    for group in world.site.shape.groups.keys() {
        let mut states = Vec::new();
        for ordinal in world.site.shape.hosts(*group) {
            let state = match world.replica(ordinal, *group) {
                Some(Replica::Root(replica)) => replica
                    .read_now(|machine| Ok(format!("{} {}", machine.root().log_size(), machine.root().log_root()))),
                Some(Replica::Shard(replica)) => replica.read_now(|machine| {
                    let state = machine.engine().decided();
                    Ok(format!("{} {}", state.version, state.digest))
                }),
                None => return Err(format!("replicas: {group} does not run on node-{ordinal}")),
            };
            states.push(state.map_err(|refusal| format!("replicas: {group} on node-{ordinal}: {}", refusal.message))?);
        }
        // A shard may not have been told the last decision. All of its replicas know the same ones.
        if states.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("replicas: {group} is {states:?}"));
        }
    }
    for machine in world.machines.values() {
        machine.check_image(&world.site);
    }
    Ok(())
}
