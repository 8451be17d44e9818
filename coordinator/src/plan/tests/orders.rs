//! Orders to occult journals, in shards that have little room for erased keys.

use std::{collections::BTreeMap, sync::Arc};

use coppice_types::{Change, ClusterId, Digest, Epoch, LedgerId, Operation, Params, Reason, ShardId, Stamp};
use coppice_verify::{
    hash::member_id,
    ledgers::{
        Action, Checked, DATA, Envelope, FOUNDING, Founding, Grant, Item, Leaf, ORDER, Order, Ordered, Policy, Roles,
        Signed, Target, leaf_key,
    },
    note::SignerKey,
};

use super::{World, reason, tail};
use crate::plan::{Request, Verdict, form::values_to_read};

const CLUSTER: ClusterId = ClusterId([1; 16]);

fn key() -> SignerKey {
    SignerKey::from_seed("bank", &[9; 32]).expect("a name")
}

/// A request of the only member, signed over one item.
fn request(ledger: LedgerId, (lane, number): (u8, u64), kind: u8, payload: Vec<u8>) -> Checked {
    let signed = Signed {
        cluster: CLUSTER,
        ledger,
        member: member_id("bank"),
        agent: None,
        lane,
        number,
        epoch: Epoch(0),
        seen_size: 1,
        seen_root: Digest::default(),
        conditions: Vec::new(),
        items: 0,
        items_root: Digest::default(),
    };
    let envelope = Envelope { nonce: [1; 32], clues: Vec::new(), payload };
    let mut checked = signed.sign(&key(), vec![Item { kind, envelope }]).check(CLUSTER).expect("its form is right");
    assert!(checked.verify(&key().verifier().public_key()));
    checked
}

fn routed(checked: Checked) -> Arc<Request> {
    Arc::new(Request::append(checked, &tail().leaves, &Params::default()).expect("it is small"))
}

impl World {
    /// Notes that the reserved keys of these requests have no records, unless some are known.
    fn read(&mut self, waiting: &[Arc<Request>]) {
        for key in values_to_read(waiting, &self.overlay, &self.blocked) {
            self.reads.values.entry(key).or_insert(None);
        }
    }

    /// Applies a request in a version of its own. Returns what follows from it.
    fn apply(&mut self, request: &Checked) -> Vec<Operation> {
        let waiting = [routed(request.clone())];
        self.read(&waiting);
        let draft = self.form(&waiting);
        assert_eq!(draft.verdicts, [Verdict::Taken]);
        self.below = Stamp { version: self.below.version.next(), ..self.below };
        let written: Vec<Operation> =
            [draft.appended[0].operations.clone(), draft.closed[0].operations.clone()].concat();
        for Operation { key, change } in &written {
            let Change::Put(value) = change else { panic!("all records are put") };
            self.reads.values.insert(key.clone(), Some(value.clone()));
        }
        written
    }
}

#[test]
fn an_order_is_refused_if_a_shard_has_no_room_for_what_it_erases() {
    let mut world = World::new();
    let founding = Founding {
        name: "grain".to_owned(),
        spread: false,
        policy: Policy { occult: 2, ..Policy::default() },
        members: vec![Grant {
            name: "bank".to_owned(),
            roles: Roles::OWNER.and(Roles::WRITER),
            key: key().verifier().public_key(),
            certificate: Vec::new(),
        }],
        authorities: Vec::new(),
        time_authorities: Vec::new(),
    };
    let founding = request(LedgerId::default(), (0, 1), FOUNDING, founding.encode());
    let ledger = founding.ledger;
    world.apply(&founding);
    let targets: Vec<Target> = (1..=3)
        .map(|jsn| {
            let written = world.apply(&request(ledger, (0, jsn + 1), DATA, vec![7; 9]));
            let leaf = written.iter().find(|it| it.key == leaf_key(ledger, jsn)).expect("a leaf");
            let Change::Put(leaf) = &leaf.change else { panic!("a leaf is put") };
            Target { jsn, leaf: Leaf::decode(leaf).expect("a leaf").hash() }
        })
        .collect();
    let order = |lane, targets: &[Target]| {
        let order = Order { until: 99, action: Action::Occult(targets.to_vec()) };
        let payload = Ordered { order, approvals: Vec::new() }.encode();
        routed(request(ledger, (lane, 1), ORDER, payload))
    };
    let waiting = [order(1, &targets[..2]), order(2, &targets[2..])];
    world.read(&waiting);
    let verdicts = |world: &mut World, left| {
        world.erasures_left = BTreeMap::from([(ShardId(0), left), (ShardId(1), 0)]);
        world.form(&waiting).verdicts
    };
    assert_eq!(verdicts(&mut world, 3), [Verdict::Taken, Verdict::Taken]);
    // The orders of one version share the room.
    let judged = verdicts(&mut world, 2);
    assert_eq!((&judged[0], reason(&judged[1])), (&Verdict::Taken, Reason::QuotaExceeded));
    let judged = verdicts(&mut world, 1);
    assert_eq!((reason(&judged[0]), &judged[1]), (Reason::QuotaExceeded, &Verdict::Taken));
    // A repeated order is refused by its lane even without room, so its author learns that it was
    // applied.
    world.erasures_left = BTreeMap::from([(ShardId(0), 0)]);
    let applied = request(ledger, (0, 4), DATA, b"again".to_vec());
    assert_eq!(reason(&world.form(&[routed(applied)]).verdicts[0]), Reason::Lane);
    let mut repeated = (*waiting[0]).clone();
    repeated.append.as_mut().expect("a request of a member").signed.number = 0;
    assert_eq!(reason(&world.form(&[Arc::new(repeated)]).verdicts[0]), Reason::Lane);
}
