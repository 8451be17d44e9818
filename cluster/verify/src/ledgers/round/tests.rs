//! A round against a naive ledger: lists of leaves, maps of clues, and a signer for each member.

mod purges;

use alloc::{collections::BTreeMap, format, string::ToString, vec};

use coppice_types::{ClusterId, Epoch, Version};

use super::*;
use crate::ledgers::key_consent;
use crate::{
    hash::{clue_hash, sha256},
    ledgers::{
        Action, Approval, DATA, Envelope, FOUNDING, Grant, Item, MEMBERS, Mark, ORDER, Order, Ordered, Policy, Request,
        Signed, Target, mark_key,
    },
    note::SignerKey,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn key(seed: u8) -> SignerKey {
    SignerKey::from_seed("member", &[seed; 32]).expect("a sound name")
}

fn public(seed: u8) -> [u8; 32] {
    key(seed).verifier().public_key()
}

/// A cluster with its reserved records, and the ledger that it should be.
#[derive(Default)]
struct World {
    records: BTreeMap<Vec<u8>, Bytes>,
    version: u64,
    /// The timestamp of the next version's header, and those of the versions so far.
    now_ms: u64,
    times: BTreeMap<Version, u64>,
    leaves: Vec<Digest>,
    ledger: LedgerId,
}

fn item(kind: u8, clues: &[&str], payload: &[u8]) -> Item {
    let clues = clues.iter().map(|clue| clue.as_bytes().to_vec()).collect();
    Item { kind, envelope: Envelope { nonce: [1; 32], clues, payload: payload.to_vec() } }
}

/// A request that a member signs, with the fields that tests change.
fn signed(ledger: LedgerId, name: &str, number: u64) -> Signed {
    Signed {
        cluster: CLUSTER,
        ledger,
        member: member_id(name),
        agent: None,
        lane: 0,
        number,
        epoch: Epoch(0),
        seen_size: 1,
        seen_root: sha256(b"seen"),
        conditions: Vec::new(),
        items: 0,
        items_root: Digest::default(),
    }
}

fn request(signed: Signed, seed: u8, items: Vec<Item>) -> Checked {
    let bytes = signed.over(&items).encode();
    let signature = key(seed).sign(&bytes);
    let mut checked = Request { signed: bytes, signature, items }.check(CLUSTER).expect("a sound request");
    assert!(checked.verify(&public(seed)));
    checked
}

fn grant(name: &str, roles: Roles, seed: u8) -> Grant {
    Grant { name: name.to_string(), roles, key: public(seed), certificate: Vec::new() }
}

fn founding(name: &str) -> Founding {
    Founding {
        name: name.to_string(),
        spread: false,
        policy: Policy { occult: 1, ..Policy::default() },
        members: vec![
            grant("bank", Roles::OWNER.and(Roles::WRITER), 1),
            grant("mill", Roles::WRITER, 2),
            grant("court", Roles::REGULATOR, 3),
        ],
        authorities: Vec::new(),
        time_authorities: Vec::new(),
    }
}

fn founds(name: &str) -> Checked {
    request(signed(LedgerId::default(), "bank", 1), 1, vec![item(FOUNDING, &[], &founding(name).encode())])
}

impl World {
    fn founded() -> Self {
        let mut world = Self::default();
        let appended = world.commit(&[founds("grain")]).remove(0).expect("it founds");
        world.ledger = appended.ledger;
        world.leaves = appended.leaves.iter().map(Leaf::hash).collect();
        world
    }

    /// Commits requests as one version.
    fn commit(&mut self, requests: &[Checked]) -> Vec<Result<Appended, Refusal>> {
        self.version += 1;
        let records = self.records.clone();
        let reads: alloc::collections::BTreeSet<Vec<u8>> = requests.iter().flat_map(Checked::reads).collect();
        let ground = |key: &[u8]| {
            assert!(reads.contains(key), "a request names all records that it reads");
            records.get(key).cloned()
        };
        let mut round = Round::new(&ground, Stamp::new(0, self.version), self.now_ms);
        self.times.insert(Version(self.version), self.now_ms);
        let answers: Vec<_> = requests.iter().map(|request| round.append(request)).collect();
        let closed = round.close();
        let operations = answers.iter().flatten().flat_map(|it| &it.operations);
        for operation in operations.chain(closed.iter().flat_map(|it| &it.operations)) {
            match &operation.change {
                Change::Put(value) => drop(self.records.insert(operation.key.to_vec(), value.clone())),
                Change::Delete => assert!(self.records.remove(&operation.key[..]).is_some(), "only what is there goes"),
            }
        }
        answers
    }

    fn one(&mut self, request: Checked) -> Result<Appended, Refusal> {
        let before = self.records.clone();
        let answer = self.commit(&[request]).remove(0);
        if answer.is_err() {
            assert_eq!(self.records, before, "a refused request changes nothing");
        }
        answer
    }

    fn member(&self, name: &str) -> Member {
        let record = &self.records[&member_key(self.ledger, member_id(name))];
        Member::decode(record).expect("a member")
    }

    fn size(&self) -> u64 {
        Head::decode(&self.records[&head_key(self.ledger)]).expect("a head").edge.size()
    }

    fn change(&mut self, changes: &[MemberChange], name: &str, seed: u8) -> Result<Appended, Refusal> {
        let number = self.member(name).lane(0) + 1;
        let items = vec![item(MEMBERS, &[], &MemberChange::encode_all(changes))];
        self.one(request(signed(self.ledger, name, number), seed, items))
    }

    fn data(&mut self, name: &str, seed: u8) -> Result<Appended, Refusal> {
        let number = self.member(name).lane(0) + 1;
        self.one(request(signed(self.ledger, name, number), seed, vec![item(DATA, &["lot-7"], b"flour")]))
    }
}

impl World {
    fn leaf(&self, jsn: u64) -> Leaf {
        Leaf::decode(&self.records[&leaf_key(self.ledger, jsn)]).expect("a leaf")
    }

    fn order_of(&self, journals: &[u64]) -> Order {
        let target = |jsn: &u64| Target { jsn: *jsn, leaf: self.leaf(*jsn).hash() };
        Order { until: self.size(), action: Action::Occult(journals.iter().map(target).collect()) }
    }

    /// The request of an order, with the approvals of members by their keys.
    fn ordered(&self, order: Order, author: (&str, u8), others: &[(&str, u8)]) -> Checked {
        let approval = |(name, seed): &(&str, u8)| order.approval(CLUSTER, self.ledger, member_id(name), &key(*seed));
        let mut approvals: Vec<Approval> = others.iter().map(approval).collect();
        approvals.sort_by_key(|approval| approval.member);
        let payload = Ordered { order, approvals }.encode();
        let number = self.member(author.0).lane(0) + 1;
        let mut checked = request(signed(self.ledger, author.0, number), author.1, vec![item(ORDER, &[], &payload)]);
        let keys: BTreeMap<MemberId, [u8; 32]> =
            others.iter().map(|(name, seed)| (member_id(name), public(*seed))).collect();
        checked.verify_approvals(|member| keys.get(&member).copied().into_iter().collect());
        checked.take_facts(|jsn| self.leaf_of(jsn), |version| self.times.get(&version).copied());
        checked
    }

    fn leaf_of(&self, jsn: u64) -> Option<Leaf> {
        let record = self.records.get(&leaf_key(self.ledger, jsn));
        record.map(|record| Leaf::decode(record).expect("a leaf"))
    }
}

#[test]
fn lists_clues_and_members_are_those_of_a_naive_ledger() {
    let mut world = World::founded();
    let ledger = world.ledger;
    let (mut cells, mut numbers) = (BTreeMap::<Digest, Vec<(u64, Digest)>>::new(), [1, 0]);
    for round in 0_usize..60 {
        let mut requests = Vec::new();
        for at in 0..1 + round % 4 {
            let who = (round + at) % 2;
            numbers[who] += 1;
            let clues: Vec<_> = (0..(round + at) % 4).map(|clue| format!("lot-{}", (round * clue + at) % 9)).collect();
            let mut clues: Vec<&str> = clues.iter().map(|clue| clue.as_str()).collect();
            clues.sort_unstable();
            clues.dedup();
            let items = (0..1 + (round * 7 + at) % 5).map(|at| item(DATA, &clues, &[at as u8])).collect();
            requests.push(request(signed(ledger, ["bank", "mill"][who], numbers[who]), 1 + who as u8, items));
        }
        for answer in world.commit(&requests) {
            let appended = answer.expect("a sound request");
            assert_eq!(appended.first_jsn, world.leaves.len() as u64, "numbers without gaps");
            for leaf in &appended.leaves {
                assert_eq!(leaf.jsn, world.leaves.len() as u64);
                assert_eq!(leaf.stamp, Stamp::new(0, world.version));
                assert_eq!(world.records[&leaf_key(ledger, leaf.jsn)], leaf.encode());
                for LeafClue { clue, ordinal } in &leaf.clues {
                    let known = cells.entry(*clue).or_default();
                    known.push((leaf.jsn, leaf.hash()));
                    assert_eq!(*ordinal, known.len() as u64);
                }
                world.leaves.push(leaf.hash());
            }
        }
        let head = Head::decode(&world.records[&head_key(ledger)]).expect("a head");
        assert_eq!((head.edge.size(), head.edge.root()), (world.leaves.len() as u64, mth(&world.leaves)));
    }
    for (clue, journals) in &cells {
        let chain = journals.iter().fold(Digest::default(), |chain, (jsn, leaf)| clue_chain(&chain, *jsn, leaf));
        let last_jsn = journals.last().expect("one at least").0;
        let record = Clue { count: journals.len() as u64, last_jsn, chain, ..Clue::default() };
        assert_eq!(Clue::decode(&world.records[&clue_key(ledger, clue)]), Ok(record));
        for (ordinal, (jsn, leaf)) in (1..).zip(journals) {
            let cell = Cell { jsn: *jsn, leaf: *leaf };
            assert_eq!(Cell::decode(&world.records[&cell_key(ledger, clue, ordinal)]), Ok(cell));
        }
    }
    let members = ["bank", "mill"].map(|name| world.member(name).journals.expect("it appended"));
    assert_eq!(members[0].2 + members[1].2, world.leaves.len() as u64);
    assert_eq!(numbers, ["bank", "mill"].map(|name| world.member(name).lane(0)));
}

#[test]
fn requests_that_may_not_be_applied_are_refused_with_their_reason() {
    let mut world = World::founded();
    let ledger = world.ledger;
    let clue = clue_hash(ledger, b"lot-7");
    let data = || vec![item(DATA, &["lot-7"], b"flour")];
    let with = |change: &dyn Fn(&mut Signed)| {
        let mut fields = signed(ledger, "mill", 1);
        change(&mut fields);
        request(fields, 2, data())
    };
    let other = LedgerId([8; 16]);
    let cases = [
        (Refusal::NoLedger, with(&|it| it.ledger = other)),
        (Refusal::NotAMember, with(&|it| it.member = member_id("shop"))),
        (Refusal::NotAMember, with(&|it| it.agent = Some(member_id("scale-1")))),
        (Refusal::NotAMember, with(&|it| it.agent = Some(member_id("bank")))),
        (Refusal::Signature, request(signed(ledger, "mill", 1), 3, data())),
        (Refusal::Signature, request(signed(ledger, "mill", 1), 9, data())),
        (Refusal::Role("a writer"), request(signed(ledger, "court", 1), 3, data())),
        (Refusal::Lane(1), with(&|it| it.number = 2)),
        (Refusal::Epoch, with(&|it| it.epoch = Epoch(1))),
        (Refusal::Size(1), with(&|it| it.conditions = vec![Condition::Size(2)])),
        (Refusal::Count(0), with(&|it| it.conditions = vec![Condition::Size(1), Condition::Count(clue, 1)])),
        (Refusal::NameTaken, founds("grain")),
    ];
    for (refusal, request) in cases {
        assert_eq!(world.one(request), Err(refusal));
    }
    assert!(world.data("mill", 2).is_ok());
    assert_eq!(world.one(with(&|_| {})), Err(Refusal::Lane(2)), "no request is applied twice");
    let met = with(&|it| {
        it.number = 2;
        it.conditions = vec![Condition::Size(2), Condition::Count(clue, 1)];
    });
    assert!(world.one(met).is_ok());
}

#[test]
fn a_request_without_a_verified_signature_is_never_applied() {
    let mut world = World::founded();
    let items = vec![item(DATA, &[], b"flour")];
    let bytes = signed(world.ledger, "mill", 1).over(&items).encode();
    let forged = Request { signed: bytes, signature: [0; 64], items };
    let mut checked = forged.check(CLUSTER).expect("a sound form");
    assert!(!checked.verify(&public(2)));
    assert_eq!(world.one(checked), Err(Refusal::Signature));
}

#[test]
fn what_is_refused_in_a_version_leaves_what_follows_as_it_would_be_alone() {
    let mut world = World::founded();
    let ledger = world.ledger;
    let data = |number| request(signed(ledger, "mill", number), 2, vec![item(DATA, &["lot-7"], b"flour")]);
    let answers = world.commit(&[data(2), data(1), data(1), data(2), founds("grain"), founds("oats"), founds("oats")]);
    let refused: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().cloned()).collect();
    let (lane, name) = (|next| Some(Refusal::Lane(next)), Some(Refusal::NameTaken));
    assert_eq!(refused, [lane(1), None, lane(2), None, name.clone(), None, name]);
    assert_eq!(world.size(), 3);
}

#[test]
fn keys_change_by_number_with_the_consent_of_the_new_one() {
    let mut world = World::founded();
    let (ledger, mill) = (world.ledger, member_id("mill"));
    let consent = |seed: u8| key(seed).sign(&key_consent(CLUSTER, ledger, mill, &public(seed)));
    let change =
        |seed: u8, consent| MemberChange::Key { member: mill, key: public(seed), certificate: vec![], consent };
    let stranger = world.change(&[change(5, consent(5))], "court", 3);
    assert_eq!(stranger, Err(Refusal::Role("an owner, or the member itself")));
    let lifted = world.change(&[change(5, consent(6))], "mill", 2);
    assert_eq!(lifted, Err(Refusal::Members("the new key has not signed that it agrees")));
    for taken in [1, 2, 3] {
        let known = world.change(&[change(taken, consent(taken))], "mill", 2);
        assert_eq!(known, Err(Refusal::Members("the new key was a member's before")));
    }
    let changed = world.change(&[change(5, consent(5))], "mill", 2).expect("its own key");
    assert_eq!(changed.leaves[0].key, public(2), "the old key signs the change");
    assert_eq!(world.data("mill", 2), Err(Refusal::Signature));
    assert!(world.data("mill", 5).is_ok());
    assert!(world.change(&[MemberChange::Revoke(mill)], "bank", 1).is_ok());
    assert_eq!(world.data("mill", 5), Err(Refusal::Signature));
    let back = world.change(&[change(2, consent(2))], "bank", 1);
    assert_eq!(back, Err(Refusal::Members("the new key was a member's before")), "not even an own key of before");
    assert!(world.change(&[change(6, consent(6)), MemberChange::Dispute(mill, 2)], "bank", 1).is_ok());
    assert_eq!(world.member("mill").disputed_from, Some(2));
    assert!(world.data("mill", 6).is_ok());
}

#[test]
fn owners_change_members_and_nobody_else_does() {
    let mut world = World::founded();
    let shop = || MemberChange::Grant(grant("shop", Roles::WRITER, 4));
    assert_eq!(world.change(&[shop()], "mill", 2), Err(Refusal::Role("an owner, or the member itself")));
    assert!(world.change(&[shop()], "bank", 1).is_ok());
    let taken = Err(Refusal::Members("a member or agent of this name exists"));
    assert_eq!(world.change(&[MemberChange::Grant(grant("shop", Roles::WRITER, 5))], "bank", 1), taken);
    let demote = || MemberChange::Roles(member_id("shop"), Roles::READER);
    assert!(world.data("shop", 4).is_ok());
    assert!(world.change(&[demote()], "bank", 1).is_ok());
    assert_eq!(world.data("shop", 4), Err(Refusal::Role("a writer")));
    let nobody = MemberChange::Revoke(member_id("nobody"));
    assert_eq!(world.change(&[nobody], "bank", 1), Err(Refusal::Members("there is no such member")));
    // The last change fails, so none holds.
    let half = [MemberChange::Roles(member_id("shop"), Roles::WRITER), shop()];
    assert!(world.change(&half, "bank", 1).is_err());
    assert_eq!(world.member("shop").roles, Roles::READER);
}

#[test]
fn agents_append_for_their_member_within_their_bounds() {
    let mut world = World::founded();
    let (ledger, scale) = (world.ledger, member_id("scale-1"));
    let until = Some(world.size() + 4);
    let agent = MemberChange::Agent { name: "scale-1".into(), key: public(4), prefix: b"lot-".to_vec(), until };
    assert!(world.change(&[agent], "mill", 2).is_ok());
    let weigh = |number: u64, clues: &[&str], member: &str| {
        let fields = Signed { agent: Some(scale), ..signed(ledger, member, number) };
        request(fields, 4, vec![item(DATA, clues, b"40 kg")])
    };
    let scope = Err(Refusal::Role("an agent for these clues"));
    assert_eq!(world.one(weigh(1, &["bill-3"], "mill")), scope);
    assert_eq!(world.one(weigh(1, &["lot-3", "bill-3"], "mill")), scope);
    assert_eq!(world.one(weigh(1, &[], "mill")), scope);
    assert_eq!(world.one(weigh(1, &["lot-3"], "bank")), Err(Refusal::NotAMember));
    let appended = world.one(weigh(1, &["lot-3", "lot-4"], "mill")).expect("within its bounds");
    assert_eq!((appended.leaves[0].member, appended.leaves[0].agent), (member_id("mill"), Some(scale)));
    assert_eq!(world.member("mill").lane(0), 1, "an agent has lanes of its own");
    assert!(world.one(weigh(2, &["lot-3"], "mill")).is_ok());
    assert!(world.one(weigh(3, &["lot-3"], "mill")).is_ok());
    assert_eq!(world.one(weigh(4, &["lot-3"], "mill")), Err(Refusal::Role("an agent any more")));
    let direct = request(signed(ledger, "scale-1", 1), 4, vec![item(DATA, &["lot-3"], b"x")]);
    assert_eq!(world.one(direct), Err(Refusal::NotAMember), "an agent is no member");
    assert!(world.change(&[MemberChange::Revoke(scale)], "mill", 2).is_ok(), "its member may end it");
    assert_eq!(world.member("scale-1").key_at(world.size()), None);
}

const BANK: (&str, u8) = ("bank", 1);
const MILL: (&str, u8) = ("mill", 2);
const COURT: (&str, u8) = ("court", 3);

#[test]
fn owner_and_regulator_occult_data_and_the_list_stays() {
    let mut world = World::founded();
    for _ in 0..3 {
        assert!(world.data("mill", 2).is_ok());
    }
    let before = world.records.clone();
    let order = world.order_of(&[1, 3]);
    let appended = world.one(world.ordered(order, BANK, &[COURT])).expect("both have signed");
    assert_eq!((appended.first_jsn, appended.leaves[0].kind), (4, ORDER));
    for jsn in [1, 3] {
        let mark = Mark::decode(&world.records[&mark_key(world.ledger, jsn)]).expect("a mark");
        assert_eq!(mark, Mark { order: 4 });
    }
    assert!(!world.records.contains_key(&mark_key(world.ledger, 2)));
    for key in
        before.keys().filter(|key| ![head_key(world.ledger), member_key(world.ledger, member_id("bank"))].contains(key))
    {
        assert_eq!(world.records[key], before[key], "an order changes no other record");
    }
    // The regulator may send it as well.
    let order = world.order_of(&[2]);
    assert!(world.one(world.ordered(order, COURT, &[BANK])).is_ok());
    assert!(world.data("mill", 2).is_ok());
}

#[test]
fn orders_that_lack_a_signature_or_a_reason_are_refused() {
    let mut world = World::founded();
    for _ in 0..2 {
        assert!(world.data("mill", 2).is_ok());
    }
    let sound = world.order_of(&[1]);
    let order = || sound.clone();
    let incomplete = Refusal::Incomplete;
    let in_force = incomplete("the key in force of a member that it names");
    let mut stolen = world.ordered(order(), BANK, &[COURT]);
    stolen.verify_approvals(|_| Vec::new());
    let lifted = world.ordered(Order { until: 99, ..order() }, BANK, &[("court", 2)]);
    let with =
        |targets: Vec<Target>| world.ordered(Order { action: Action::Occult(targets), ..order() }, BANK, &[COURT]);
    let target = |jsn: u64| Target { jsn, leaf: world.leaf(1).hash() };
    let cases = [
        (incomplete("a regulator"), world.ordered(order(), BANK, &[])),
        (incomplete("a regulator"), world.ordered(order(), BANK, &[MILL])),
        (incomplete("an owner"), world.ordered(order(), COURT, &[])),
        (incomplete("a member that it names"), world.ordered(order(), BANK, &[("nobody", 3)])),
        (in_force.clone(), stolen),
        (in_force.clone(), lifted),
        (in_force, world.ordered(order(), BANK, &[("court", 7)])),
        (Refusal::Role("an owner or a regulator"), world.ordered(order(), MILL, &[BANK, COURT])),
        (
            Refusal::Order("the ledger has more journals than the order allows"),
            world.ordered(Order { until: 2, ..order() }, BANK, &[COURT]),
        ),
        (Refusal::Order("a journal of the order has another leaf"), with(vec![target(2)])),
        (
            Refusal::Order("the ledger had no journal of such a number before"),
            with(vec![sound.targets()[0], target(3)]),
        ),
        (
            Refusal::Order("only journals with data are occulted"),
            with(vec![Target { jsn: 0, leaf: world.leaf(0).hash() }]),
        ),
    ];
    for (refusal, request) in cases {
        assert_eq!(world.one(request), Err(refusal));
    }
    // Within one version, too, a journal is occulted only once. A journal of the order's own
    // version can't be occulted.
    let (first, second) = (order(), Order { until: 9, ..order() });
    let both = [world.ordered(first, BANK, &[COURT]), world.ordered(second, COURT, &[BANK])];
    let answers = world.commit(&both);
    assert!(answers[0].is_ok());
    assert_eq!(answers[1], Err(Refusal::Order("a journal of the order is occulted already")));
    let again = world.ordered(Order { until: 9, ..world.order_of(&[1]) }, BANK, &[COURT]);
    assert_eq!(world.one(again), Err(Refusal::Order("a journal of the order is occulted already")));
    let own = world.order_of(&[3]);
    let own = world.ordered(own, BANK, &[COURT]);
    assert_eq!(world.one(own), Err(Refusal::Order("only journals with data are occulted")), "no order goes");
}

#[test]
fn a_policy_says_who_may_occult() {
    let found = |occult: u8, members: Vec<Grant>| {
        let founding = Founding { policy: Policy { occult, ..Policy::default() }, members, ..founding("grain") };
        let mut world = World::default();
        let items = vec![item(FOUNDING, &[], &founding.encode())];
        let answer = world.commit(&[request(signed(LedgerId::default(), "bank", 1), 1, items)]).remove(0);
        world.ledger = answer.expect("it founds").ledger;
        assert!(world.data("bank", 1).is_ok());
        world
    };
    let owner = || grant("bank", Roles::OWNER.and(Roles::WRITER), 1);
    let mut nobody = found(0, vec![owner(), grant("court", Roles::REGULATOR, 3)]);
    let order = nobody.ordered(nobody.order_of(&[1]), BANK, &[COURT]);
    assert_eq!(nobody.one(order), Err(Refusal::Order("the ledger's policy lets nobody occult")));
    let mut alone = found(2, vec![owner()]);
    let join = MemberChange::Grant(grant("shop", Roles::READER, 4));
    let others = Refusal::Members("an owner that may occult alone has no other members");
    assert_eq!(alone.change(&[join], "bank", 1), Err(others));
    let order = alone.ordered(alone.order_of(&[1]), BANK, &[]);
    assert!(alone.one(order).is_ok());
}

#[test]
fn a_request_is_of_one_kind_and_covers_its_items() {
    let check = |fields: Signed, items: Vec<Item>| {
        let bytes = fields.over(&items).encode();
        Request { signed: bytes, signature: [0; 64], items }.check(CLUSTER).map(drop)
    };
    let ledger = LedgerId([2; 16]);
    let (data, members) = (
        item(DATA, &[], b""),
        item(MEMBERS, &[], &MemberChange::encode_all(&[MemberChange::Revoke(member_id("mill"))])),
    );
    let kinds = Err(coppice_types::codec::Error::Malformed("kinds of a request's items"));
    assert!(check(signed(ledger, "mill", 1), vec![data.clone(), data.clone()]).is_ok());
    assert!(check(signed(ledger, "mill", 1), vec![members.clone()]).is_ok());
    assert_eq!(check(signed(ledger, "mill", 1), vec![data.clone(), members.clone()]), kinds);
    assert_eq!(check(signed(ledger, "mill", 1), vec![members.clone(), members.clone()]), kinds);
    let by_agent = Signed { agent: Some(member_id("scale-1")), ..signed(ledger, "mill", 1) };
    assert_eq!(check(by_agent, vec![members]), kinds);
    assert_eq!(check(signed(LedgerId::default(), "mill", 1), vec![data.clone()]), kinds);
    let found = item(FOUNDING, &[], &founding("grain").encode());
    assert_eq!(check(signed(ledger, "bank", 1), vec![found]), kinds);
    let elsewhere = Signed { cluster: ClusterId([8; 16]), ..signed(ledger, "mill", 1) };
    let cluster = Err(coppice_types::codec::Error::Malformed("cluster of a request"));
    assert_eq!(check(elsewhere, vec![data.clone()]), cluster);
    let bytes = signed(ledger, "mill", 1).over(core::slice::from_ref(&data)).encode();
    let other = Request { signed: bytes, signature: [0; 64], items: vec![item(DATA, &[], b"x")] };
    let items = Err(coppice_types::codec::Error::Malformed("items of a request"));
    assert_eq!(other.check(CLUSTER).map(drop), items);
}
