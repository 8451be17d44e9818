//! Requests of members: what they append, what is proven of it, and every way to be refused.

#[path = "../common/mod.rs"]
mod common;
mod occult;
mod purge;
mod trusted;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::{World, reason};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{ClusterId, Digest, Epoch, LedgerId, MemberId, Params, Reason};
use coppice_verify::{
    check::{Claim, Question, Subject, verify_known},
    checkpoint::Checkpoint,
    hash::{clue_hash, ledger_id, member_id, sha256},
    keys::Keys,
    ledgers::{
        Action, Condition, DATA, Envelope, FOUNDING, Founding, Grant, Item, Leaf, MEMBERS, Member, MemberChange, ORDER,
        Order, Ordered, Policy, Request, Roles, Signed, Target,
    },
    note::SignerKey,
    proof::ProofFile,
};
use tonic::Status;

async fn world() -> World {
    let params = Params { ledgers: true, journals_kept: true, ..Params::default() };
    World::of(1, &[vec![0, 0x80], vec![1]], params).await
}

fn key(name: &str) -> SignerKey {
    SignerKey::from_seed(name, &sha256(name.as_bytes()).0).expect("it is a name")
}

fn grant(name: &str, roles: &[Roles]) -> Grant {
    let roles = roles.iter().copied().fold(Roles(0), Roles::and);
    Grant { name: name.to_owned(), roles, key: key(name).verifier().public_key(), certificate: Vec::new() }
}

fn item(kind: u8, clues: &[&str], payload: &[u8]) -> Item {
    let clues = clues.iter().map(|clue| clue.as_bytes().to_vec()).collect();
    Item { kind, envelope: Envelope { nonce: [7; 32], clues, payload: payload.to_vec() } }
}

fn data(clues: &[&str], payload: &str) -> Item {
    item(DATA, clues, payload.as_bytes())
}

/// The facts about its cluster that a request names.
#[derive(Clone)]
struct Place {
    cluster: ClusterId,
    ledger: LedgerId,
    epoch: Epoch,
    seen: Checkpoint,
}

impl Place {
    async fn of(client: &mut LedgerClient<Channel>, ledger: LedgerId) -> Self {
        let head = client.head(v1::HeadRequest::default()).await.expect("a head").into_inner();
        let epoch = Epoch(head.stamp.expect("a stamp").epoch);
        let seen = Checkpoint::claimed(&head.checkpoint).expect("a checkpoint");
        Self { cluster: common::CLUSTER, ledger, epoch, seen }
    }

    fn signed(&self, member: &str, (lane, number): (u8, u64)) -> Signed {
        Signed {
            cluster: self.cluster,
            ledger: self.ledger,
            member: member_id(member),
            agent: None,
            lane,
            number,
            epoch: self.epoch,
            seen_size: self.seen.size,
            seen_root: self.seen.root,
            conditions: Vec::new(),
            items: 0,
            items_root: Digest::default(),
        }
    }
}

fn out(request: &Request) -> v1::AppendRequest {
    let item = |item: &Item| v1::LedgerItem { kind: item.kind.into(), envelope: item.envelope.encode().into() };
    v1::AppendRequest {
        signed: request.signed.clone().into(),
        signature: request.signature.to_vec().into(),
        items: request.items.iter().map(item).collect(),
        want_receipt: true,
    }
}

fn founding(name: &str, spread: bool) -> Founding {
    Founding {
        name: name.to_owned(),
        spread,
        policy: Policy { occult: 1, ..Policy::default() },
        members: vec![
            grant("bank", &[Roles::OWNER, Roles::WRITER]),
            grant("mill", &[Roles::WRITER]),
            grant("shop", &[Roles::WRITER, Roles::READER]),
            grant("court", &[Roles::REGULATOR]),
        ],
        authorities: Vec::new(),
        time_authorities: Vec::new(),
    }
}

/// The leaf of a journal.
async fn leaf(client: &mut LedgerClient<Channel>, ledger: LedgerId, jsn: u64) -> Leaf {
    let request = v1::GetJournalsRequest { ledger: named(ledger), from_jsn: jsn, limit: 1, ..Default::default() };
    let told = client.get_journals(request).await.expect("it is read").into_inner();
    Leaf::decode(&told.journals[0].leaf).expect("a leaf")
}

async fn append(client: &mut LedgerClient<Channel>, request: &Request) -> Result<v1::AppendResponse, Status> {
    client.append(out(request)).await.map(tonic::Response::into_inner)
}

async fn found(client: &mut LedgerClient<Channel>, founding: &Founding) -> LedgerId {
    let place = Place::of(client, LedgerId::default()).await;
    let request = place.signed("bank", (0, 1)).sign(&key("bank"), vec![item(FOUNDING, &[], &founding.encode())]);
    let done = append(client, &request).await.expect("it is founded");
    let id = LedgerId::from_slice(&done.ledger).expect("an id");
    assert_eq!((id, done.first_jsn), (ledger_id(common::CLUSTER, &request.signed, founding.spread), 0));
    id
}

fn named(ledger: LedgerId) -> Option<v1::LedgerName> {
    Some(v1::LedgerName { which: Some(v1::ledger_name::Which::Id(Bytes::copy_from_slice(ledger.as_bytes()))) })
}

const PROVEN: v1::ReadOptions = v1::ReadOptions {
    at: None,
    any_epoch: false,
    want_proof: true,
    stale_ok: false,
    values_in_proof: false,
    cosigned: false,
    at_time_ms: None,
};

/// Verifies a proof file, which must be about this subject. Returns what it shows.
fn check(world: &World, proof: &[u8], subject: Subject<'_>, then: impl FnOnce(&Claim<'_>)) {
    let file = ProofFile::decode(proof).expect("a proof file");
    let keys = Keys::new(world.key().verifier().clone());
    then(&verify_known(&file, &keys, None, &Question::about(subject)).expect("the proof holds").claim);
}

/// Appends to a ledger through three members, each in its own lanes, and compares everything that
/// can be asked for with what was appended.
async fn all_is_found_and_proven(world: &World, client: &mut LedgerClient<Channel>, ledger: LedgerId) {
    let mut expected: Vec<(MemberId, Vec<&str>, String)> = Vec::new();
    let members = ["mill", "shop", "bank"];
    // The founding was the first request of its lane.
    let mut numbers: BTreeMap<(&str, u8), u64> = BTreeMap::from([(("bank", 0), 1)]);
    for round in 0..12_u64 {
        let place = Place::of(client, ledger).await;
        let member = members[round as usize % 3];
        let lane = u8::try_from(round % 2).expect("it is small");
        let number = numbers.entry((member, lane)).or_insert(0);
        *number += 1;
        let clues: &[&str] = [&["lot-7"][..], &["lot-7", "lot-8"], &[], &["lot-8"]][round as usize % 4];
        let items: Vec<Item> = (0..=round % 5).map(|at| data(clues, &format!("round {round}, item {at}"))).collect();
        let count = items.len() as u64;
        expected.extend((0..count).map(|at| (member_id(member), clues.to_vec(), format!("round {round}, item {at}"))));
        let request = place.signed(member, (lane, *number)).sign(&key(member), items);
        let done = append(client, &request).await.expect("it is appended");
        assert_eq!(done.first_jsn + count, 1 + expected.len() as u64, "numbers have no gaps");
        assert!(!done.replayed);
        check(world, &done.receipt, Subject::Request(sha256(&request.signed)), |claim| {
            let Claim::Journals(claim) = claim else { panic!("a receipt shows journals") };
            assert_eq!(claim.journals[0].leaf.jsn, done.first_jsn);
            assert!(claim.journals.iter().all(|journal| journal.signed.is_some()));
        });
        // Its newest request of a lane may be sent again, and is applied once.
        let again = append(client, &request).await.expect("it was appended");
        assert_eq!((again.first_jsn, again.stamp, again.replayed), (done.first_jsn, done.stamp, true));
    }
    let size = 1 + expected.len() as u64;
    let describe = v1::DescribeLedgerRequest { ledger: named(ledger), read: Some(PROVEN) };
    let told = client.describe_ledger(describe).await.expect("it is described").into_inner();
    assert_eq!(told.size, size);
    assert_eq!(Founding::decode(&told.founding).expect("it decodes").members.len(), 4);
    for (from, limit, known) in [(0, 1024, 0), (1, 3, 1), (size - 1, 1, size / 2), (5, 2, size)] {
        let request = v1::GetJournalsRequest {
            ledger: named(ledger),
            from_jsn: from,
            limit,
            want_payload: true,
            want_request: true,
            known_size: known,
            anchor_size: 0,
            read: Some(PROVEN),
        };
        let told = client.get_journals(request).await.expect("they are read").into_inner();
        let numbers: Vec<u64> = (from..size.min(from + u64::from(limit))).collect();
        let subject = Subject::Journals { ledger, numbers: numbers.clone(), known: None };
        check(world, &told.proof, subject, |claim| {
            let Claim::Journals(claim) = claim else { panic!("it shows journals") };
            assert_eq!((claim.size, claim.known.map(|(size, _)| size)), (size, (known > 0).then_some(known)));
            for (journal, jsn) in claim.journals.iter().zip(&numbers).filter(|(_, jsn)| **jsn > 0) {
                let (member, clues, payload) = &expected[*jsn as usize - 1];
                let envelope = journal.envelope.as_ref().expect("it was asked for");
                assert_eq!((journal.leaf.member, &envelope.payload[..]), (*member, payload.as_bytes()));
                assert!(envelope.clues.iter().eq(clues.iter().map(|clue| clue.as_bytes())));
                assert!(journal.signed.is_some());
            }
        });
        assert_eq!(told.journals.len(), numbers.len());
    }
    for (clue, newest) in [("lot-7", 0), ("lot-7", 3), ("lot-8", 0), ("lot-8", 1), ("lot-9", 0), ("lot-7", 1000)] {
        let with: Vec<u64> = (1..size).rev().filter(|jsn| expected[*jsn as usize - 1].1.contains(&clue)).collect();
        let request = v1::GetLineageRequest {
            ledger: named(ledger),
            clue: Bytes::from_static(clue.as_bytes()),
            newest,
            want_payload: newest > 0,
            want_request: newest == 0,
            read: Some(PROVEN),
        };
        let told = client.get_lineage(request).await.expect("it is read").into_inner();
        let shown = if newest == 0 { with.len() } else { with.len().min(newest as usize) };
        assert_eq!(told.count, with.len() as u64, "{clue}");
        assert!(told.journals.iter().map(|journal| journal.jsn).eq(with[..shown].iter().copied()), "{clue}");
        let newest = (newest > 0).then_some(u64::from(newest));
        let subject = Subject::Lineage { ledger, clue: clue_hash(ledger, clue.as_bytes()), newest };
        check(world, &told.proof, subject, |claim| {
            let Claim::Lineage(claim) = claim else { panic!("it shows a lineage") };
            assert_eq!((claim.count, claim.journals.len()), (with.len() as u64, shown));
        });
    }
    let request = v1::GetMemberRequest {
        ledger: named(ledger),
        member: "mill".to_owned(),
        read: Some(PROVEN),
        ..Default::default()
    };
    let told = client.get_member(request).await.expect("it is read").into_inner();
    let member = Member::decode(&told.record).expect("a record");
    assert_eq!(member.lane(0), numbers[&("mill", 0)]);
    let own = expected.iter().filter(|(of, ..)| *of == member_id("mill")).count() as u64;
    assert_eq!(member.journals.map(|(_, _, count)| count), Some(own));
}

#[tokio::test]
async fn what_members_append_is_numbered_found_and_proven() {
    let world = world().await;
    let mut running = world.leader().await;
    for spread in [false, true] {
        let name = if spread { "wide" } else { "grain" };
        let ledger = found(&mut running.client, &founding(name, spread)).await;
        all_is_found_and_proven(&world, &mut running.client, ledger).await;
    }
    let list = v1::ListLedgersRequest::default();
    let mut list = running.client.list_ledgers(list).await.expect("a list").into_inner();
    let mut names = Vec::new();
    while let Some(found) = list.message().await.expect("a message") {
        names.push(found.name);
    }
    assert_eq!(names, ["grain", "wide"]);
}

/// A ledger with members of every role, a member without a key, and agents.
struct Scene {
    ledger: LedgerId,
    place: Place,
    size: u64,
    /// The journal with data, number 3.
    first: Leaf,
    /// The journal that ended a member's key, number 1.
    revoked: Leaf,
}

impl Scene {
    async fn new(client: &mut LedgerClient<Channel>) -> Self {
        let mut founding = founding("grain", false);
        founding.members.push(grant("gone", &[Roles::WRITER]));
        founding.members.push(grant("view", &[Roles::READER]));
        let ledger = found(client, &founding).await;
        let place = Place::of(client, ledger).await;
        let agent = |name: &str, prefix: &str, until| MemberChange::Agent {
            name: name.to_owned(),
            key: key(name).verifier().public_key(),
            prefix: prefix.as_bytes().to_vec(),
            until,
        };
        let agents = [agent("bot", "lot-", None), agent("late", "", Some(4))];
        let changes = [
            ("bank", (0, 2), item(MEMBERS, &[], &MemberChange::encode_all(&[MemberChange::Revoke(member_id("gone"))]))),
            ("mill", (3, 1), item(MEMBERS, &[], &MemberChange::encode_all(&agents))),
            ("mill", (0, 1), data(&["lot-7"], "first")),
        ];
        for (member, lane, item) in changes {
            append(client, &place.signed(member, lane).sign(&key(member), vec![item])).await.expect("it is appended");
        }
        let (first, revoked) = (leaf(client, ledger, 3).await, leaf(client, ledger, 1).await);
        Self { place: Place::of(client, ledger).await, ledger, size: 4, first, revoked }
    }

    fn order_for(&self, jsn: u64, leaf: Digest) -> Order {
        Order { until: self.size, action: Action::Occult(vec![Target { jsn, leaf }]) }
    }

    /// An order that can be done.
    fn sound(&self) -> Order {
        self.order_for(3, self.first.hash())
    }

    fn order(&self, author: &str, lane: (u8, u64), order: Order, others: &[&str]) -> v1::AppendRequest {
        out(&occult::request(&self.place, (author, lane), order, others))
    }

    fn of_both(&self, order: Order) -> v1::AppendRequest {
        self.order("bank", (0, 3), order, &["court"])
    }

    /// An order with an approval of another one.
    fn lifted(&self) -> v1::AppendRequest {
        let other = Order { until: 99, ..self.sound() };
        let approval = other.approval(common::CLUSTER, self.ledger, member_id("court"), &key("court"));
        let payload = Ordered { order: self.sound(), approvals: vec![approval] }.encode();
        out(&self.place.signed("bank", (0, 3)).sign(&key("bank"), vec![item(ORDER, &[], &payload)]))
    }

    /// The next request of the mill.
    fn signed(&self) -> Signed {
        self.place.signed("mill", (0, 2))
    }

    /// A request that holds.
    fn good(&self) -> Request {
        self.signed().sign(&key("mill"), vec![data(&["lot-7"], "second")])
    }

    /// A request that is signed as it is, however wrong it is.
    fn raw(&self, signed: &Signed, items: Vec<Item>) -> v1::AppendRequest {
        let bytes = signed.encode();
        out(&Request { signature: key("mill").sign(&bytes), signed: bytes, items })
    }

    /// Changes the members by the hand of the bank.
    fn change(&self, change: MemberChange) -> v1::AppendRequest {
        let items = vec![item(MEMBERS, &[], &MemberChange::encode_all(&[change]))];
        out(&self.place.signed("bank", (0, 3)).sign(&key("bank"), items))
    }

    fn malformed(&self) -> Vec<(&'static str, v1::AppendRequest)> {
        let good = out(&self.good());
        let of = |change: &dyn Fn(&mut Signed)| {
            let mut signed = self.signed().over(&[data(&[], "x")]);
            change(&mut signed);
            self.raw(&signed, vec![data(&[], "x")])
        };
        let items = |items: Vec<Item>| out(&self.signed().sign(&key("mill"), items));
        let clues = |clues: Vec<Vec<u8>>| {
            let envelope = Envelope { nonce: [7; 32], clues, payload: Vec::new() };
            items(vec![Item { kind: DATA, envelope }])
        };
        let envelope = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut request = good.clone();
            let mut bytes = request.items[0].envelope.to_vec();
            change(&mut bytes);
            request.items[0].envelope = bytes.into();
            request
        };
        let signed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.signed.to_vec();
            change(&mut bytes);
            v1::AppendRequest {
                signature: key("mill").sign(&bytes).to_vec().into(),
                signed: bytes.into(),
                ..good.clone()
            }
        };
        let other = |items: Vec<Item>| v1::AppendRequest {
            items: out(&Request { items, ..self.good() }).items,
            ..good.clone()
        };
        let founded = |item: Item| {
            let place = Place { ledger: LedgerId::default(), ..self.place.clone() };
            out(&place.signed("bank", (0, 1)).sign(&key("bank"), vec![item]))
        };
        let new = founding("new", false).encode();
        let by_agent = |item: Item| {
            let signed = Signed { agent: Some(member_id("bot")), ..self.place.signed("mill", (0, 1)) };
            out(&signed.sign(&key("bot"), vec![item]))
        };
        let revoke = MemberChange::encode_all(&[MemberChange::Revoke(member_id("view"))]);
        vec![
            ("nothing at all", v1::AppendRequest { signature: good.signature.clone(), ..v1::AppendRequest::default() }),
            ("a text that was cut", signed(&|bytes| bytes.truncate(bytes.len() - 1))),
            ("a text that goes on", signed(&|bytes| bytes.push(0))),
            ("what was signed for another purpose", signed(&|bytes| bytes[9] ^= 1)),
            ("lane 16", of(&|signed| signed.lane = 16)),
            ("number 0", of(&|signed| signed.number = 0)),
            ("a log of no entries", of(&|signed| signed.seen_size = 0)),
            ("no items", of(&|signed| signed.items = 0)),
            ("one item more than there are", of(&|signed| signed.items = 2)),
            ("the root of other items", of(&|signed| signed.items_root = sha256(b"other"))),
            ("65 conditions", of(&|signed| signed.conditions = vec![Condition::Size(4); 65])),
            ("another cluster", of(&|signed| signed.cluster = ClusterId([1; 16]))),
            ("an item left out", other(Vec::new())),
            ("an item added", other(vec![data(&["lot-7"], "second"), data(&[], "third")])),
            ("another payload", other(vec![data(&["lot-7"], "Second")])),
            ("another clue", other(vec![data(&["lot-8"], "second")])),
            ("kind 4", items(vec![item(4, &[], b"x")])),
            ("an order that does not decode", items(vec![item(ORDER, &[], b"x")])),
            ("an order that its author approves", self.order("bank", (0, 3), self.sound(), &["bank"])),
            (
                "an order of no journals",
                self.order("bank", (0, 3), Order { action: Action::Occult(Vec::new()), ..self.sound() }, &[]),
            ),
            ("an order beside data", items(vec![data(&[], "x"), item(ORDER, &[], b"x")])),
            ("two kinds", items(vec![data(&[], "x"), item(MEMBERS, &[], &revoke)])),
            ("a kind beyond a byte", {
                let mut request = good.clone();
                request.items[0].kind = 256;
                request
            }),
            ("an envelope that was cut", envelope(&|bytes| bytes.truncate(100))),
            ("an envelope that goes on", envelope(&|bytes| bytes.push(0))),
            ("an empty envelope", envelope(&|bytes| bytes.clear())),
            ("17 clues", clues((0..17).map(|at| vec![at + 1]).collect())),
            ("an empty clue", clues(vec![Vec::new()])),
            ("a clue of 257 bytes", clues(vec![vec![1; 257]])),
            ("a clue twice", clues(vec![vec![1], vec![1]])),
            ("data that founds", founded(data(&[], "x"))),
            ("a founding with a clue", founded(item(FOUNDING, &["lot"], &new))),
            ("a founding that does not decode", founded(item(FOUNDING, &[], &new[1..]))),
            ("a founding in a ledger", items(vec![item(FOUNDING, &[], &new)])),
            ("no changes", items(vec![item(MEMBERS, &[], &MemberChange::encode_all(&[]))])),
            ("changes that do not decode", items(vec![item(MEMBERS, &[], &[9])])),
            ("changes by an agent", by_agent(item(MEMBERS, &[], &revoke))),
        ]
    }

    /// Requests of sound form, with the reasons why they are refused.
    fn refused(&self) -> Vec<(&'static str, Reason, v1::AppendRequest)> {
        use Reason::{
            BadSignature, ClueChanged, Lane, LedgerChanged, LimitExceeded, NotAMember, NotFound, NotPossible,
            OrderIncomplete, RoleMissing, StaleView,
        };
        let good = out(&self.good());
        let one = || vec![data(&["lot-7"], "x")];
        let by = |member: &str, lane, hand: &str| out(&self.place.signed(member, lane).sign(&key(hand), one()));
        let of = |change: &dyn Fn(&mut Signed)| {
            let mut signed = self.signed();
            change(&mut signed);
            out(&signed.sign(&key("mill"), one()))
        };
        let by_agent = |agent: &str, member: &str, items: Vec<Item>| {
            let signed = Signed { agent: Some(member_id(agent)), ..self.place.signed(member, (0, 1)) };
            out(&signed.sign(&key(agent), items))
        };
        let signature = |signature: Vec<u8>| v1::AppendRequest { signature: signature.into(), ..good.clone() };
        let mut flipped = good.signature.to_vec();
        flipped[40] ^= 1;
        let grown = item(DATA, &[], &vec![0; 2 << 20]);
        let many = (0..1025).map(|at| data(&[], &at.to_string())).collect();
        let consent =
            |ledger, member: &str| MemberChange::to_key(common::CLUSTER, ledger, member_id(member), &key("another"));
        let founding_of = |name: &str, hand: &str, author: &str| {
            let place = Place { ledger: LedgerId::default(), ..self.place.clone() };
            let items = vec![item(FOUNDING, &[], &founding(name, true).encode())];
            out(&place.signed(author, (0, 1)).sign(&key(hand), items))
        };
        vec![
            ("no signature", BadSignature, signature(Vec::new())),
            ("a signature of 63 bytes", BadSignature, signature(good.signature[..63].to_vec())),
            ("a flipped bit", BadSignature, signature(flipped)),
            (
                "the signature of another request",
                BadSignature,
                signature(by("mill", (0, 3), "mill").signature.to_vec()),
            ),
            ("another member's key", BadSignature, by("mill", (0, 2), "shop")),
            ("a key of nobody", BadSignature, by("mill", (0, 2), "nobody")),
            ("a key that was ended", BadSignature, by("gone", (0, 1), "gone")),
            ("a founding by another's key", BadSignature, founding_of("new", "mill", "bank")),
            ("a member that is none", NotAMember, by("nobody", (0, 1), "nobody")),
            ("an agent as a member", NotAMember, by("bot", (0, 1), "bot")),
            ("another's agent", NotAMember, by_agent("bot", "shop", one())),
            ("an agent that is none", NotAMember, by_agent("nobody", "mill", one())),
            ("a member as an agent", NotAMember, by_agent("shop", "mill", one())),
            ("a founder that is no member", NotAMember, founding_of("new", "view", "view")),
            ("a ledger that is none", NotFound, of(&|signed| signed.ledger = LedgerId([6; 16]))),
            ("a regulator that appends", RoleMissing, by("court", (0, 1), "court")),
            ("a reader that appends", RoleMissing, by("view", (0, 1), "view")),
            ("a founder that is no owner", RoleMissing, founding_of("new", "mill", "mill")),
            ("a writer that grants", RoleMissing, {
                let change = MemberChange::encode_all(&[MemberChange::Grant(grant("new", &[Roles::WRITER]))]);
                out(&self.signed().sign(&key("mill"), vec![item(MEMBERS, &[], &change)]))
            }),
            ("a member that revokes another", RoleMissing, {
                let change = MemberChange::encode_all(&[MemberChange::Revoke(member_id("shop"))]);
                out(&self.signed().sign(&key("mill"), vec![item(MEMBERS, &[], &change)]))
            }),
            ("an agent beyond its prefix", RoleMissing, by_agent("bot", "mill", vec![data(&["lot-7", "bin-1"], "x")])),
            ("an agent without a clue", RoleMissing, by_agent("bot", "mill", vec![data(&[], "x")])),
            ("an agent after its end", RoleMissing, by_agent("late", "mill", one())),
            ("a number left out", Lane, of(&|signed| signed.number = 3)),
            ("a number of before for something else", Lane, of(&|signed| signed.number = 1)),
            ("a new lane that begins with 2", Lane, of(&|signed| signed.lane = 1)),
            ("a founding with number 2", Lane, {
                let place = Place { ledger: LedgerId::default(), ..self.place.clone() };
                let items = vec![item(FOUNDING, &[], &founding("new", false).encode())];
                out(&place.signed("bank", (0, 2)).sign(&key("bank"), items))
            }),
            ("another epoch", StaleView, of(&|signed| signed.epoch = Epoch(1))),
            ("a log of the future", StaleView, of(&|signed| signed.seen_size = 1 << 40)),
            ("a log that never was", StaleView, of(&|signed| signed.seen_root = sha256(b"forked"))),
            (
                "an older log that never was",
                StaleView,
                of(&|signed| {
                    (signed.seen_size, signed.seen_root) = (1, sha256(b"forked"));
                }),
            ),
            ("another size", LedgerChanged, of(&|signed| signed.conditions = vec![Condition::Size(3)])),
            (
                "a clue with fewer",
                ClueChanged,
                of(&|signed| {
                    signed.conditions = vec![Condition::Count(clue_hash(signed.ledger, b"lot-7"), 0)];
                }),
            ),
            (
                "a clue that nobody has",
                ClueChanged,
                of(&|signed| {
                    signed.conditions =
                        vec![Condition::Size(4), Condition::Count(clue_hash(signed.ledger, b"lot-9"), 1)];
                }),
            ),
            (
                "a name that is taken",
                NotPossible,
                self.change(MemberChange::Grant(Grant {
                    key: key("another").verifier().public_key(),
                    ..grant("mill", &[Roles::WRITER])
                })),
            ),
            (
                "a key that was somebody's",
                NotPossible,
                self.change(MemberChange::Grant(Grant {
                    key: key("gone").verifier().public_key(),
                    ..grant("another", &[Roles::WRITER])
                })),
            ),
            ("roles of nobody", NotPossible, self.change(MemberChange::Roles(member_id("nobody"), Roles::READER))),
            ("roles of an agent", NotPossible, self.change(MemberChange::Roles(member_id("bot"), Roles::READER))),
            (
                "a key without consent",
                NotPossible,
                self.change(match consent(self.ledger, "mill") {
                    MemberChange::Key { member, key, certificate, .. } => {
                        MemberChange::Key { member, key, certificate, consent: [0; 64] }
                    }
                    _ => unreachable!("it changes a key"),
                }),
            ),
            (
                "a key that agreed for another ledger",
                NotPossible,
                match consent(LedgerId([6; 16]), "mill") {
                    change @ MemberChange::Key { .. } => self.change(change),
                    _ => unreachable!("it changes a key"),
                },
            ),
            ("an order by a writer", RoleMissing, self.order("mill", (0, 2), self.sound(), &["bank", "court"])),
            ("an order without the regulator", OrderIncomplete, self.order("bank", (0, 3), self.sound(), &[])),
            ("an order without the owner", OrderIncomplete, self.order("court", (0, 1), self.sound(), &[])),
            ("an order with another member", OrderIncomplete, self.order("bank", (0, 3), self.sound(), &["shop"])),
            ("an order that nobody signs", OrderIncomplete, self.order("bank", (0, 3), self.sound(), &["nobody"])),
            ("an order by an agent's hand", OrderIncomplete, self.order("bank", (0, 3), self.sound(), &["bot"])),
            ("an ended key's order", OrderIncomplete, self.order("bank", (0, 3), self.sound(), &["court", "gone"])),
            ("an order with a lifted approval", OrderIncomplete, self.lifted()),
            ("an order that has expired", NotPossible, self.of_both(Order { until: 3, ..self.sound() })),
            ("an order for another leaf", NotPossible, self.of_both(self.order_for(3, sha256(b"another")))),
            ("an order for a journal to come", NotPossible, self.of_both(self.order_for(9, self.first.hash()))),
            ("an order for members", NotPossible, self.of_both(self.order_for(1, self.revoked.hash()))),
            ("a name of a ledger that is taken", NotPossible, founding_of("grain", "bank", "bank")),
            ("1,025 items", LimitExceeded, out(&self.signed().sign(&key("mill"), many))),
            ("a payload above the limit", LimitExceeded, out(&self.signed().sign(&key("mill"), vec![grown]))),
        ]
    }
}

#[tokio::test]
async fn every_wrong_request_has_its_reason_and_changes_nothing() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    let scene = Scene::new(client).await;
    let before = client.head(v1::HeadRequest::default()).await.expect("a head").into_inner();
    let malformed = scene.malformed().into_iter().map(|(name, request)| (name, Reason::InvalidArgument, request));
    let mut cases = 0;
    for (name, expected, request) in malformed.chain(scene.refused()) {
        let refused = client.append(request).await.expect_err(name);
        assert_eq!(reason(&refused), expected, "{name}: {}", refused.message());
        cases += 1;
    }
    assert!(cases >= 80, "{cases}");
    let after = client.head(v1::HeadRequest::default()).await.expect("a head").into_inner();
    assert_eq!((before.log_size, before.state_root), (after.log_size, after.state_root), "nothing has changed");
    // The same request without a fault is applied, and it is not applied again by a repetition.
    let good = scene.good();
    assert_eq!(append(client, &good).await.expect("it holds").first_jsn, scene.size);
    let next = scene.place.signed("mill", (0, 3)).sign(&key("mill"), vec![data(&[], "third")]);
    assert_eq!(append(client, &next).await.expect("it holds").first_jsn, scene.size + 1);
    let old = append(client, &good).await.expect_err("a newer one of its lane was applied");
    assert_eq!(reason(&old), Reason::Lane);
    let agent = Signed { agent: Some(member_id("bot")), ..scene.place.signed("mill", (0, 1)) };
    let agent = agent.sign(&key("bot"), vec![data(&["lot-7", "lot-1"], "by an agent")]);
    assert_eq!(append(client, &agent).await.expect("an agent appends").first_jsn, scene.size + 2);
}

#[tokio::test]
async fn a_cluster_without_ledgers_takes_no_request() {
    let world = World::of(1, &[], Params::default()).await;
    let mut running = world.leader().await;
    let place = Place::of(&mut running.client, LedgerId::default()).await;
    let items = vec![item(FOUNDING, &[], &founding("grain", false).encode())];
    let request = place.signed("bank", (0, 1)).sign(&key("bank"), items);
    let refused = append(&mut running.client, &request).await.expect_err("it keeps no ledgers");
    assert_eq!(reason(&refused), Reason::InvalidArgument);
}

#[tokio::test]
async fn a_new_key_signs_from_the_next_journal_on() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    let ledger = found(client, &founding("grain", false)).await;
    let place = Place::of(client, ledger).await;
    let new = SignerKey::from_seed("mill", &[77; 32]).expect("a key");
    let first = place.signed("mill", (0, 1)).sign(&key("mill"), vec![data(&[], "by the old key")]);
    append(client, &first).await.expect("it holds");
    let change = MemberChange::to_key(common::CLUSTER, ledger, member_id("mill"), &new);
    let items = || vec![item(MEMBERS, &[], &MemberChange::encode_all(std::slice::from_ref(&change)))];
    let changed = append(client, &place.signed("mill", (0, 2)).sign(&key("mill"), items())).await.expect("it holds");
    // The coordinator remembers the old key, and must not believe it.
    let old = place.signed("mill", (0, 3)).sign(&key("mill"), vec![data(&[], "by the old key")]);
    assert_eq!(reason(&append(client, &old).await.expect_err("its key has ended")), Reason::BadSignature);
    // An applied request of the old key is answered again, as long as it is the newest.
    let again =
        append(client, &place.signed("mill", (0, 2)).sign(&key("mill"), items())).await.expect("it was applied");
    assert_eq!((again.first_jsn, again.replayed), (changed.first_jsn, true));
    let newer = place.signed("mill", (0, 3)).sign(&new, vec![data(&[], "by the new key")]);
    assert_eq!(append(client, &newer).await.expect("it holds").first_jsn, changed.first_jsn + 1);
    // A rollback begins an epoch, for which nobody has signed. The newest request is known.
    let head = newer_version(client).await;
    client.commit(common::commit(vec![common::put("k", "v")], Vec::new())).await.expect("a batch");
    client.rollback(common::roll_back(head)).await.expect("it takes no journal back");
    let again = append(client, &newer).await.expect("it was applied");
    assert_eq!((again.first_jsn, again.replayed), (changed.first_jsn + 1, true));
    let late = place.signed("mill", (0, 4)).sign(&new, vec![data(&[], "for the epoch before")]);
    assert_eq!(reason(&append(client, &late).await.expect_err("of another epoch")), Reason::StaleView);
    // No rollback goes below a journal.
    let below = common::roll_back(head - 1);
    assert_eq!(reason(&client.rollback(below).await.expect_err("a journal is there")), Reason::LedgerFloor);
}

#[tokio::test]
async fn journals_of_pruned_versions_are_read_and_proven() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    let ledger = found(client, &founding("grain", false)).await;
    let place = Place::of(client, ledger).await;
    for number in 1..=3 {
        let request = place.signed("mill", (0, number)).sign(&key("mill"), vec![data(&["lot-7"], "old")]);
        append(client, &request).await.expect("it holds");
    }
    for at in 0..3 {
        let batch = common::commit(vec![common::put(&format!("k{at}"), "v")], Vec::new());
        client.commit(batch).await.expect("a batch");
    }
    let newest = newer_version(client).await;
    client.prune(common::prune_before(newest)).await.expect("it prunes");
    // Another coordinator remembers none of the versions.
    running.kill();
    let mut running = world.coordinator("b");
    world.picked.pick("b");
    running.handle.leading().await;
    let client = &mut running.client;
    let request = v1::GetJournalsRequest {
        ledger: named(ledger),
        from_jsn: 0,
        limit: 9,
        want_payload: true,
        want_request: true,
        known_size: 2,
        anchor_size: 0,
        read: Some(PROVEN),
    };
    let told = client.get_journals(request).await.expect("headers and journals outlive a prune").into_inner();
    let subject = Subject::Journals { ledger, numbers: vec![0, 1, 2, 3], known: None };
    check(&world, &told.proof, subject, |claim| {
        let Claim::Journals(claim) = claim else { panic!("it shows journals") };
        assert!(claim.journals.iter().all(|journal| journal.signed.is_some()));
    });
    let again = place.signed("mill", (0, 3)).sign(&key("mill"), vec![data(&["lot-7"], "old")]);
    assert!(append(client, &again).await.expect("it was applied, and its receipt is made").replayed);
}

#[tokio::test]
async fn names_of_any_length_are_refused_and_break_nothing() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    let ledger = found(client, &founding("grain", false)).await;
    for length in [0, 65, 65_536, 200_000] {
        let member = "x".repeat(length);
        let request = v1::GetMemberRequest { ledger: named(ledger), member: member.clone(), ..Default::default() };
        assert_eq!(reason(&client.get_member(request).await.expect_err("no name")), Reason::InvalidArgument);
        let which = Some(v1::ledger_name::Which::Name(member));
        let request = v1::DescribeLedgerRequest { ledger: Some(v1::LedgerName { which }), read: None };
        assert_eq!(reason(&client.describe_ledger(request).await.expect_err("no name")), Reason::InvalidArgument);
        let clue = vec![7; if length == 65 { 257 } else { length }].into();
        let request = v1::GetLineageRequest { ledger: named(ledger), clue, ..v1::GetLineageRequest::default() };
        assert_eq!(reason(&client.get_lineage(request).await.expect_err("no clue")), Reason::InvalidArgument);
    }
}

/// The number of the newest version.
async fn newer_version(client: &mut LedgerClient<Channel>) -> u64 {
    client.head(v1::HeadRequest::default()).await.expect("a head").into_inner().stamp.expect("a stamp").version
}

/// Members append while coordinators die. Each request that was answered is there once, at its
/// number; each lane is whole; and the numbers of the ledger have no gaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_have_no_gaps_and_lanes_stay_whole_when_coordinators_die() {
    let world = world().await;
    let mut running = world.leader().await;
    let ledger = found(&mut running.client, &founding("grain", false)).await;
    let mut answered: BTreeMap<u64, Digest> = BTreeMap::new();
    let mut numbers: BTreeMap<(&str, u8), u64> = BTreeMap::from([(("bank", 0), 1)]);
    for term in 0..4_u8 {
        let place = Place::of(&mut running.client, ledger).await;
        let mut writers = tokio::task::JoinSet::new();
        for member in ["bank", "mill", "shop"] {
            for lane in 0..2_u8 {
                let (mut client, place) = (running.client.clone(), place.clone());
                let mut number = numbers.get(&(member, lane)).copied().unwrap_or(0);
                writers.spawn(async move {
                    let mut done = Vec::new();
                    loop {
                        let items = vec![data(&["lot-7"], &format!("{member} {lane} {}", number + 1)); 2];
                        let request = place.signed(member, (lane, number + 1)).sign(&key(member), items);
                        match append(&mut client, &request).await {
                            Ok(answer) => done.push((answer.first_jsn, sha256(&request.signed))),
                            // The coordinator has died, and the outcome is unknown.
                            Err(_) => return ((member, lane), done, request),
                        }
                        number += 1;
                    }
                });
            }
        }
        // Every lane has applied something before the coordinator dies.
        let mut watched = running.client.clone();
        loop {
            let request = v1::DescribeLedgerRequest { ledger: named(ledger), read: None };
            let size = watched.describe_ledger(request).await.expect("it is described").into_inner().size;
            if size >= 60 * (u64::from(term) + 1) {
                break;
            }
            tokio::task::yield_now().await;
        }
        running.kill();
        let name = ["b", "c", "d", "e"][usize::from(term)];
        running = world.coordinator(name);
        world.picked.pick(name);
        running.handle.leading().await;
        while let Some(writer) = writers.join_next().await {
            let (lane, done, last) = writer.expect("no writer panics");
            let number = numbers.entry(lane).or_insert(0);
            *number += done.len() as u64;
            answered.extend(done);
            // The request of unknown outcome is sent again. It is applied once, before or now.
            let again = append(&mut running.client, &last).await.expect("it is answered by the next leader");
            answered.insert(again.first_jsn, sha256(&last.signed));
            *number += 1;
        }
    }
    let request = v1::DescribeLedgerRequest { ledger: named(ledger), read: None };
    let size = running.client.describe_ledger(request).await.expect("it is described").into_inner().size;
    let mut next = 0;
    let mut lanes: BTreeMap<(MemberId, u8), u64> = BTreeMap::new();
    while next < size {
        let request = v1::GetJournalsRequest {
            ledger: named(ledger),
            from_jsn: next,
            limit: 500,
            read: Some(PROVEN),
            ..v1::GetJournalsRequest::default()
        };
        let told = running.client.get_journals(request).await.expect("they are read").into_inner();
        let numbers = (next..size.min(next + 500)).collect();
        check(&world, &told.proof, Subject::Journals { ledger, numbers, known: None }, |claim| {
            let Claim::Journals(claim) = claim else { panic!("it shows journals") };
            for journal in &claim.journals {
                let leaf = &journal.leaf;
                let number = lanes.entry((leaf.member, leaf.lane)).or_insert(0);
                *number += u64::from(leaf.index == 0);
                assert_eq!(leaf.number, *number, "each number of a lane is there once");
                if leaf.index == 0 && leaf.jsn > 0 {
                    assert_eq!(answered.remove(&leaf.jsn), Some(leaf.request), "journal {}", leaf.jsn);
                }
                next += 1;
            }
        });
    }
    assert!(answered.is_empty(), "these were answered, and are not there: {answered:?}");
}
