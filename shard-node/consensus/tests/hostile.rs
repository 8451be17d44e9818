//! Peers that send anything: well-formed messages with made-up numbers, old messages, and messages
//! for others. The group may then agree on anything, but no replica may panic or stop.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_consensus::{Error, Group, Message, Options, Payload, Position, RaftId};
use coppice_env::{Rng, SimRng, SimStorage};
use coppice_types::{ClusterId, GroupId};

/// Where a message's numbers lie in its encoding, after format, kind, group, sender and receiver.
const NUMBERS: std::ops::Range<usize> = 22..78;

fn options(id: RaftId) -> Options {
    let mut options = Options::new(ClusterId([7; 16]), GroupId::Root, id);
    (options.segment_bytes, options.fill_bytes, options.cache_bytes) = (8 << 10, 2 << 10, 1 << 10);
    options
}

struct Replica {
    group: Group,
    disk: SimStorage,
    delivered: Position,
}

fn pick<T: Copy>(rng: &mut SimRng, of: &[T]) -> T {
    of[usize::try_from(rng.below(of.len() as u64)).expect("small")]
}

/// Changes a few numbers of a message to nearby ones.
fn twist(bytes: &[u8], ids: &[RaftId], rng: &mut SimRng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if rng.chance(300) {
        bytes[6..14].copy_from_slice(&pick(rng, ids).0.to_le_bytes());
    }
    if rng.chance(700) {
        bytes[14..22].copy_from_slice(&pick(rng, ids).0.to_le_bytes());
    }
    if rng.chance(200) {
        bytes[1] = u8::try_from(1 + rng.below(12)).expect("small");
    }
    for _ in 0..rng.below(4) {
        let at = NUMBERS.start + 8 * usize::try_from(rng.below(7)).expect("small");
        let old = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let new = match rng.below(6) {
            0 => old.wrapping_add(rng.below(4)),
            1 => old.saturating_sub(rng.below(4)),
            2 => 0,
            3 => (1 << 61) - 1 - rng.below(2),
            4 => rng.next_u64(),
            _ => rng.below(100),
        };
        bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
    }
    if rng.chance(200) {
        let at = usize::try_from(rng.below(bytes.len() as u64)).expect("small");
        bytes[at] = u8::try_from(rng.below(256)).expect("a byte");
    }
    bytes
}

fn settle(replica: &mut Replica, sent: &mut Vec<Vec<u8>>) {
    while replica.group.has_ready() {
        let output = replica.group.advance(&mut |message| sent.push(message.encode())).expect("the disk works");
        if let Some(install) = output.install {
            replica.delivered = install.position;
        }
        for committed in output.committed {
            assert_eq!(committed.position.index, replica.delivered.index + 1, "in order, whatever it is");
            replica.delivered = committed.position;
            assert!(!matches!(committed.payload, Payload::Data(data) if data.is_empty()));
        }
        replica.group.applied(replica.delivered.index);
        if let Some(offer) = output.snapshot_offer {
            replica.group.accept_snapshot(offer.position).expect("it was offered");
        }
        if output.snapshot_wanted.is_some() {
            let index = replica.delivered.index;
            // The call is refused if the state is not that of a group.
            let _ = replica.group.set_snapshot(index, Bytes::from_static(b"manifest"));
        }
    }
}

fn run(seed: u64) -> (u64, u64) {
    let mut rng = SimRng::new(seed);
    let ids = [RaftId::new(1, 1), RaftId::new(2, 1), RaftId::new(3, 1)];
    let mut replicas = BTreeMap::new();
    for id in ids {
        let disk = SimStorage::new();
        let group = Group::create(disk.storage(), options(id), Box::new(SimRng::new(rng.next_u64())), &ids);
        replicas.insert(id, Replica { group: group.expect("makes"), disk, delivered: Position::START });
    }
    let (mut said, mut taken) = (Vec::new(), 0);
    let (mut old, mut twisted) = (Vec::new(), 0);
    for _ in 0..400 {
        for (id, replica) in &mut replicas {
            replica.group.tick();
            if rng.chance(300) {
                // Replicas that do not lead refuse the call.
                let _ = replica.group.propose(Bytes::from_static(b"entry"));
                let _ = replica.group.read_index();
            }
            if rng.chance(20) {
                let to = replica.delivered.index.saturating_sub(3);
                if let Some(mut cut) = replica.group.begin_cut(to).expect("usable") {
                    cut.run::<Error>(|| Ok(())).expect("the disk works");
                    replica.group.end_cut(cut).remove().expect("the disk works");
                }
            }
            if rng.chance(10) {
                let disk = replica.disk.power_loss(rng.next_u64());
                let rng = Box::new(SimRng::new(rng.next_u64()));
                replica.group = Group::open(disk.storage(), options(*id), rng, replica.delivered).expect("opens");
                replica.disk = disk;
            }
            settle(replica, &mut said);
        }
        let honest = std::mem::take(&mut said);
        let mut spoken: Vec<Vec<u8>> = honest.iter().filter(|_| rng.chance(900)).cloned().collect();
        old.extend(honest);
        for _ in 0..if rng.chance(300) { rng.below(6) } else { 0 } {
            if let Some(at) = rng.next_u64().checked_rem(old.len() as u64) {
                spoken.push(twist(&old[usize::try_from(at).expect("small")], &ids, &mut rng));
                twisted += 1;
            }
        }
        for bytes in spoken {
            let Ok(message) = Message::decode(&bytes) else { continue };
            let Some(replica) = replicas.get_mut(&message.to()) else { continue };
            taken += u64::from(replica.group.step(message).is_ok());
            settle(replica, &mut said);
        }
    }
    (taken, twisted)
}

#[test]
fn no_replica_panics_whatever_its_peers_say() {
    let (mut taken, mut twisted) = (0, 0);
    for seed in 0..80 {
        let (more, of_them) = run(seed);
        taken += more;
        twisted += of_them;
    }
    assert!(taken > 10_000 && twisted > 5_000, "{taken} messages were taken, {twisted} made up");
}
