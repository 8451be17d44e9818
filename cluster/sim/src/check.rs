//! The judges of a run. Each finding begins with the name of its checker.
//!
//! - `log`: the root log is one: append-only, its headers follow on, every checkpoint ever shown is a prefix of it.
//! - `audit`: every state root follows from the batches and events, by a naive model.
//! - `commits`: every acknowledged batch stands where it was said to, applied once; refused ones don't; preconditions held.
//! - `order`: every answer fits one moment of the log between its question and itself (linearizable).
//! - `reads`: what was read is what the model holds at that state; `proofs` and `checkpoints` are judged as they come.
//! - `replicas`: all replicas of a group are equal at the end. `fsck`: every image that a crash left was sound.
//! - `progress`: once the faults have stopped, everything works again.

mod commits;
mod ledger;
mod order;

use coppice_shard_node::Replica;
use coppice_types::GroupId;

use self::ledger::Ledger;
use crate::world::World;

/// A checker's finding.
type Finding = String;

/// Judges a run whose faults have stopped.
pub async fn all(world: &World) {
    if let Err(finding) = judge(world) {
        world.site.scribe.wrong(finding);
    }
}

fn judge(world: &World) -> Result<(), Finding> {
    let ledger = Ledger::read(world)?;
    let history = world.site.scribe.lock();
    ledger.check_checkpoints(&history)?;
    let placed = commits::check(&history, &ledger)?;
    order::check(&history, &ledger, &placed)?;
    replicas(world)
}

/// All replicas of a group are equal, and their disks sound.
fn replicas(world: &World) -> Result<(), Finding> {
    for (group, ordinals) in &world.site.shape.groups {
        let mut states = Vec::new();
        for ordinal in ordinals {
            let state = match world.replica(*ordinal, *group) {
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
        // The last decision may not have been told to every shard; what was told is the same for all of its replicas.
        if states.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("replicas: {group} is {states:?}"));
        }
    }
    for machine in world.machines.values().filter(|machine| !machine.rotten) {
        machine.check_image(&world.site);
    }
    let _ = GroupId::Root;
    Ok(())
}
