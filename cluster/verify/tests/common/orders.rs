//! Rounds of orders: those that lack something, and those that are done.

use coppice_types::{Digest, LedgerId};
use coppice_verify::ledgers::{
    Absent, Action, DATA, Head, Leaf, Member, ORDER, Order, Ordered, PurgeOrder, Signed, Target, head_key, leaf_key,
    member_key,
};

use crate::common::grain::{Sent, World, fields, item, key, member};

/// Orders to occult: those that lack something, and those that are done.
pub fn all(world: &mut World) {
    let (ledger, wide, head) = (world.compact, world.spread, world.head());
    let target = |world: &World, ledger, jsn| {
        let leaf = world.cluster.value(head, &leaf_key(ledger, jsn)).expect("there");
        Target { jsn, leaf: Leaf::decode(leaf).expect("a leaf").hash() }
    };
    let data: Vec<u64> = (1..9).collect();
    let occult = |targets: Vec<Target>| Order { until: 999, action: Action::Occult(targets) };
    let sound = occult(data[..3].iter().map(|jsn| target(world, ledger, *jsn)).collect());
    let size = world.cluster.size_of(head, ledger);
    let by_bank = |number, order: &Order, others: &[(&str, u8)]| ordered(ledger, ("bank", 0), number, order, others);
    let court = &[("court", 3)][..];
    let with = occult;
    let expired = Order { until: size - 1, ..sound.clone() };
    let founding = with(vec![target(world, ledger, 0)]);
    let other_leaf = with(vec![Target { jsn: 4, leaf: Digest([4; 32]) }]);
    let to_come = with(vec![Target { jsn: size, leaf: Digest([4; 32]) }]);
    let same_version = by_bank(5, &to_come, court);
    let rest = with(data[3..].iter().map(|jsn| target(world, ledger, *jsn)).collect());
    let of_wide = occult(vec![target(world, wide, 2)]);
    world.round(vec![
        by_bank(5, &sound, &[]),
        by_bank(5, &sound, &[("shop", 2)]),
        by_bank(5, &sound, &[("court", 2)]),
        by_bank(5, &sound, &[("nobody", 3)]),
        by_bank(5, &sound, &[("scale-1", 12)]),
        by_bank(5, &sound, &[("bank", 0), ("court", 3)]),
        ordered(ledger, ("court", 3), 1, &sound, &[]),
        ordered(ledger, ("shop", 2), 1, &sound, &[("bank", 0), ("court", 3)]),
        by_bank(5, &expired, court),
        by_bank(5, &founding, court),
        by_bank(5, &other_leaf, court),
        by_bank(5, &with(Vec::new()), court),
        by_bank(5, &with(vec![sound.targets()[1], sound.targets()[0]]), court),
        same_version,
        by_bank(5, &sound, court),
        by_bank(6, &sound, court),
        ordered(ledger, ("court", 3), 1, &rest, &[("bank", 0)]),
        ordered(wide, ("bank", 0), 2, &of_wide, court),
    ]);
    world.round(vec![by_bank(6, &with(vec![sound.targets()[2]]), court)]);
    // An order holds as long as the ledger has no more journals than it says.
    let size = world.cluster.size_of(world.head(), ledger);
    let more = fields(ledger, "bank", next_of_bank(world)).sign(&key(0), vec![item(DATA, &[], b"more")]);
    world.round(vec![(more, Some(0))]);
    let last = |until| Order { until, action: Action::Occult(vec![target_at(world, ledger, size)]) };
    let (late, timely) = (last(size), last(size + 1));
    world.round(vec![by_bank(next_of_bank(world), &late, court), by_bank(next_of_bank(world), &timely, court)]);
    purges(world);
}

/// A journal at head, as an order to occult names it.
fn target_at(world: &World, ledger: LedgerId, jsn: u64) -> Target {
    let leaf = world.cluster.value(world.head(), &leaf_key(ledger, jsn)).expect("there");
    Target { jsn, leaf: Leaf::decode(leaf).expect("a leaf").hash() }
}

/// Purges of the spread ledger: a recall, journals that are kept, sweeps, and in the end one that
/// closes the ledger. What is refused stands among it.
fn purges(world: &mut World) {
    let ledger = world.spread;
    let order = |action| Order { until: 999, action };
    let by = |world: &World, (name, seed): (&'static str, u8), action, others: &[(&str, u8)]| {
        let record = world.cluster.value(world.head(), &member_key(ledger, member(name))).expect("a member");
        let number = Member::decode(record).expect("a member").lane(0) + 1;
        ordered(ledger, (name, seed), number, &order(action), others)
    };
    let (bank, mill, shop, court) = (("bank", 0), ("mill", 1), ("shop", 2), ("court", 3));
    let purge = |world: &World, before: u64| {
        let head = world.cluster.value(world.head(), &head_key(ledger)).expect("a head");
        let Head { edge, .. } = Head::decode(head).expect("a head");
        let (size, root) = (edge.size(), edge.root());
        PurgeOrder { before, closes: false, size, root, authors: 3, absent: Vec::new() }
    };
    let first = purge(world, 6);
    let with = |change: &dyn Fn(&mut PurgeOrder)| {
        let mut order = first.clone();
        change(&mut order);
        Action::Purge(order)
    };
    let absent = Absent { member: member("mill"), revocation: 3 };
    let all = [mill, shop];
    let at = world.cluster.size_of(world.head(), ledger);
    world.round(vec![
        by(world, bank, with(&|_| ()), &[shop]),
        by(world, bank, with(&|it| it.authors = 2), &all),
        by(world, bank, with(&|it| it.authors = 4), &all),
        by(world, bank, with(&|it| it.root = Digest([1; 32])), &all),
        by(world, bank, with(&|it| it.before = 2), &all),
        by(world, bank, with(&|it| it.closes = true), &all),
        by(world, bank, with(&|it| it.absent = vec![absent]), &[shop, court]),
        by(world, bank, with(&|it| it.before = 0), &all),
        by(world, bank, with(&|it| it.absent = vec![absent]), &[shop]),
        by(world, bank, with(&|it| it.absent = vec![absent, absent]), &[shop, court]),
        by(world, bank, with(&|it| it.absent = vec![Absent { revocation: at, ..absent }]), &[shop, court]),
        by(world, bank, with(&|it| it.size = at + 1), &all),
        by(world, bank, with(&|it| it.before = at + 1), &all),
        by(world, mill, with(&|_| ()), &[bank, shop]),
        by(world, bank, with(&|_| ()), &all),
        by(world, court, Action::Recall { purge: at + 1 }, &[]),
        by(world, court, Action::Recall { purge: at }, &[]),
    ]);
    let again = world.cluster.size_of(world.head(), ledger);
    let second = purge(world, 6);
    world.round(vec![by(world, bank, Action::Purge(second), &all)]);
    let retain = |journals| Action::Retain { purge: again, journals };
    let whole = request_of(world, ledger, 4);
    world.round(vec![
        by(world, shop, retain(vec![0]), &[]),
        by(world, shop, retain(vec![6, 7]), &[]),
        by(world, shop, retain(whole[1..].to_vec()), &[]),
        by(world, shop, retain(Vec::new()), &[]),
        by(world, shop, retain(vec![whole[1], whole[0]]), &[]),
        by(world, shop, retain(whole.clone()), &[]),
        by(world, mill, retain(whole.clone()), &[]),
        by(world, court, Action::Retain { purge: again + 1, journals: whole.clone() }, &[]),
    ]);
    // What is kept is kept once, and each member keeps as many as the rules say.
    world.round(vec![by(world, court, retain(whole), &[])]);
    world.round(vec![by(world, court, retain((1..6).collect()), &[])]);
    let sweep = |from, to| Action::Sweep { purge: again, from, to };
    world.round(vec![by(world, bank, sweep(0, 4), &[])]);
    for number in 1..4 {
        let late = Signed { lane: 9, ..fields(ledger, "shop", number) };
        let late = late.sign(&key(2), vec![item(DATA, &["lot-7", "bill-1"], b"later")]);
        world.round(vec![(late, Some(2))]);
    }
    world.round(vec![
        by(world, bank, sweep(1, 4), &[]),
        by(world, bank, sweep(0, 7), &[]),
        by(world, bank, sweep(0, 0), &[]),
        by(world, bank, sweep(4, 0), &[]),
        by(world, bank, Action::Sweep { purge: again + 1, from: 0, to: 4 }, &[]),
        by(world, shop, sweep(0, 4), &[]),
        by(world, bank, sweep(0, 4), &[]),
        by(world, mill, Action::Recall { purge: again }, &[]),
    ]);
    world.round(vec![by(world, bank, sweep(4, 6), &[])]);
    let size = world.cluster.size_of(world.head(), ledger);
    let last = PurgeOrder { closes: true, authors: 4, ..purge(world, size) };
    world.round(vec![by(world, bank, Action::Purge(last), &[mill, shop, court])]);
    let closed = fields(ledger, "mill", 99).sign(&key(1), vec![item(DATA, &[], b"too late")]);
    for _ in 0..5 {
        let elsewhere = fields(world.compact, "bank", next_of_bank(world)).sign(&key(0), vec![item(DATA, &[], b"on")]);
        world.round(vec![(closed.clone(), Some(1)), (elsewhere, Some(0))]);
    }
    let close = |from, to| Action::Sweep { purge: size, from, to };
    world.round(vec![by(world, bank, close(6, size + 1), &[]), by(world, bank, close(6, 8), &[])]);
    world.round(vec![by(world, bank, close(8, size), &[])]);
    world.round(vec![by(world, bank, close(size, size + 1), &[])]);
}

/// The number of the bank's next request to the compact ledger.
pub fn next_of_bank(world: &World) -> u64 {
    let record = world.cluster.value(world.head(), &member_key(world.compact, member("bank"))).expect("a member");
    Member::decode(record).expect("a member").lane(0) + 1
}

/// All journals of the request of a journal.
fn request_of(world: &World, ledger: LedgerId, jsn: u64) -> Vec<u64> {
    let leaf = world.cluster.value(world.head(), &leaf_key(ledger, jsn)).expect("there");
    let leaf = Leaf::decode(leaf).expect("a leaf");
    let first = jsn - u64::from(leaf.index);
    (first..first + u64::from(leaf.of)).collect()
}

/// A request to occult, by an author and with approvals.
pub fn ordered(ledger: LedgerId, author: (&str, u8), number: u64, order: &Order, others: &[(&str, u8)]) -> Sent {
    let cluster = fields(ledger, "bank", 1).cluster;
    let approval = |(name, seed): &(&str, u8)| order.approval(cluster, ledger, member(name), &key(*seed));
    let mut approvals: Vec<_> = others.iter().map(approval).collect();
    approvals.sort_by_key(|approval| approval.member);
    let payload = Ordered { order: order.clone(), approvals }.encode();
    (fields(ledger, author.0, number).sign(&key(author.1), vec![item(ORDER, &[], &payload)]), Some(author.1))
}
