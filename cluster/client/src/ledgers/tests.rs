//! A model keeps a ledger and answers honestly; then it lies in every way that a proof of something
//! else could cover.

use std::sync::{Arc, Mutex};

use coppice_proto::convert;
use coppice_types::{ErrorKind, Params};
use coppice_verify::{
    ledgers::{
        Action, Approval, Checked, Grant, Head, ORDER, Order, Ordered, Policy, PurgeOrder, Roles, Target,
        TrustedAnchor, founding_key, head_key, leaf_key, mark_key, member_key, name_key,
    },
    replay::{self, Shown},
    shard_map::ShardMap,
};

use super::*;
use crate::{
    fake::{self, Fake},
    options::Options,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const SHOWN: Shown = Shown { request: true, envelope: true };

fn hand(name: &str) -> SignerKey {
    SignerKey::from_seed(name, &sha256(name.as_bytes()).0).expect("a name")
}

/// A model with a ledger of three journals, and another ledger.
struct Scene {
    model: replay::Ledger,
    ledger: LedgerId,
    other: LedgerId,
    /// The version before the newest.
    before: Stamp,
}

impl Scene {
    fn new() -> Self {
        let params = Params { ledgers: true, journals_kept: true, ..Params::default() };
        let map = ShardMap::from_splits(&[vec![1]]).expect("one split");
        let model = replay::Ledger::new("model", CLUSTER, &[1; 32], &params, map);
        let (ledger, other, before) = (LedgerId::default(), LedgerId::default(), Stamp::default());
        let mut scene = Self { model, ledger, other, before };
        scene.ledger = scene.found("grain");
        scene.other = scene.found("other");
        for (number, data) in [(2, "first"), (3, "second")] {
            scene.before = scene.model.head();
            scene.append(number, data);
        }
        scene
    }

    fn signed(&self, ledger: LedgerId, number: u64) -> Signed {
        let size = self.model.headers.len() as u64;
        Signed {
            cluster: CLUSTER,
            ledger,
            member: member_id("bank"),
            agent: None,
            lane: 0,
            number,
            epoch: Epoch(0),
            seen_size: size,
            seen_root: self.model.checkpoint(size).root,
            conditions: Vec::new(),
            items: 0,
            items_root: Digest::default(),
        }
    }

    fn take(&mut self, request: Request) -> Checked {
        let mut checked = request.check(CLUSTER).expect("its form is right");
        assert!(checked.verify(&hand("bank").verifier().public_key()));
        let (_, done) = self.model.append_requests(std::slice::from_ref(&checked));
        done.into_iter().next().expect("an answer").expect("it holds");
        checked
    }

    fn found(&mut self, name: &str) -> LedgerId {
        let roles = Roles::OWNER.and(Roles::WRITER);
        let key = hand("bank").verifier().public_key();
        let founding = Founding {
            name: name.to_owned(),
            spread: false,
            policy: Policy { occult: 2, retain_max: 1, ..Policy::default() },
            members: vec![Grant { name: "bank".to_owned(), roles, key, certificate: Vec::new() }],
            authorities: Vec::new(),
            time_authorities: Vec::new(),
        };
        let envelope = Envelope { nonce: [1; 32], clues: Vec::new(), payload: founding.encode() };
        let items = vec![Item { kind: FOUNDING, envelope }];
        self.take(self.signed(LedgerId::default(), 1).sign(&hand("bank"), items)).ledger
    }

    fn request(&self, number: u64, data: &str) -> Request {
        let envelope = Envelope { nonce: [2; 32], clues: vec![b"lot".to_vec()], payload: data.as_bytes().to_vec() };
        self.signed(self.ledger, number).sign(&hand("bank"), vec![Item { kind: DATA, envelope }])
    }

    fn append(&mut self, number: u64, data: &str) {
        let request = self.request(number, data);
        self.take(request);
    }

    fn told(&self, stamp: Stamp, ledger: LedgerId, jsn: u64) -> v1::LedgerJournal {
        let file = self.model.prove_journals(stamp, ledger, &[jsn], None, SHOWN);
        let coppice_verify::proof::Proof::Journals(proof) = file.proof else { unreachable!("it proves journals") };
        let (part, _) = &proof.journals[0];
        v1::LedgerJournal {
            jsn,
            leaf: part.leaf.to_vec().into(),
            envelope: part.envelope.as_ref().expect("it is shown").to_vec().into(),
            occulted_by: None,
            path: bytes::Bytes::new(),
        }
    }

    /// Appends an order. Returns its number.
    fn order(&mut self, number: u64, action: Action) -> u64 {
        let order = Order { until: 99, action };
        let payload = Ordered { order, approvals: Vec::new() }.encode();
        let envelope = Envelope { nonce: [3; 32], clues: Vec::new(), payload };
        let request = self.signed(self.ledger, number).sign(&hand("bank"), vec![Item { kind: ORDER, envelope }]);
        self.take(request);
        self.model.size_of(self.model.head(), self.ledger) - 1
    }

    /// Occults a journal. Returns the number of the order.
    fn occult(&mut self, number: u64, jsn: u64) -> u64 {
        let leaf = self.model.value(self.model.head(), &leaf_key(self.ledger, jsn)).expect("a leaf");
        let leaf = Leaf::decode(leaf).expect("a leaf").hash();
        self.order(number, Action::Occult(vec![Target { jsn, leaf }]))
    }

    /// Purges what lies below a number, but for what is retained, by the next three requests.
    fn purge(&mut self, number: u64, (before, retained): (u64, u64)) {
        let head = self.model.value(self.model.head(), &head_key(self.ledger)).expect("a head");
        let Head { edge, .. } = Head::decode(head).expect("a head");
        let (size, root) = (edge.size(), edge.root());
        let order = PurgeOrder { before, closes: false, size, root, authors: 1, absent: Vec::new() };
        let purge = self.order(number, Action::Purge(order));
        self.order(number + 1, Action::Retain { purge, journals: vec![retained] });
        self.order(number + 2, Action::Sweep { purge, from: 0, to: before });
    }

    /// The answer to a read of records in a version.
    fn records(&self, stamp: Stamp, keys: &[&[u8]]) -> v1::GetLedgerRecordsResponse {
        let value = |key: &[u8]| self.model.value(stamp, key).map(|value| value.to_vec().into());
        let record = |key: &&[u8]| v1::LedgerRecord { key: key.to_vec().into(), value: value(key) };
        let proof = self.model.prove_keys(stamp, keys, true).encode().expect("a small file").into();
        let read_at = Some(convert::to_stamp(stamp));
        v1::GetLedgerRecordsResponse { records: keys.iter().map(record).collect(), read_at, proof }
    }

    /// The answer to a read of one occulted journal, with a proof of marks from a version.
    fn occulted(&self, jsn: u64, order: u64, marks: (Stamp, u64)) -> v1::GetJournalsResponse {
        let head = self.model.head();
        let shown = Shown { request: true, envelope: false };
        let file = self.model.prove_journals(head, self.ledger, &[jsn], None, shown);
        let marks = self.model.prove_keys(marks.0, &[&mark_key(self.ledger, marks.1)], true);
        let mut told = self.journals(head, &[jsn], None);
        told.journals[0].envelope = bytes::Bytes::new();
        told.journals[0].occulted_by = Some(order);
        let encode = |file: coppice_verify::proof::ProofFile<'_>| file.encode().expect("a small file").into();
        v1::GetJournalsResponse { proof: encode(file), marks_proof: encode(marks), ..told }
    }

    /// The answer to a read of the newest journals with the clue, in a version.
    fn lineage(&self, stamp: Stamp, newest: Option<u64>) -> v1::GetLineageResponse {
        let clue = clue_hash(self.ledger, b"lot");
        let file = self.model.prove_lineage(stamp, self.ledger, clue, newest, SHOWN);
        let size = self.model.size_of(stamp, self.ledger);
        let shown = newest.map_or(1, |newest| size.saturating_sub(newest).max(1));
        v1::GetLineageResponse {
            gone: 0,
            journals: (shown..size).rev().map(|jsn| self.told(stamp, self.ledger, jsn)).collect(),
            count: size - 1,
            read_at: Some(convert::to_stamp(stamp)),
            proof: file.encode().expect("a small file").into(),
            marks_proof: bytes::Bytes::new(),
        }
    }

    fn journals(&self, stamp: Stamp, numbers: &[u64], known: Option<u64>) -> v1::GetJournalsResponse {
        let file = self.model.prove_journals(stamp, self.ledger, numbers, known, SHOWN);
        let coppice_verify::proof::Proof::Journals(proof) = &file.proof else { unreachable!("it proves journals") };
        let entry = coppice_verify::journal::Entry::decode(&proof.entry).expect("an entry");
        let coppice_verify::journal::Entry::Head(head) = entry else { unreachable!("it is a head") };
        v1::GetJournalsResponse {
            journals: numbers.iter().map(|jsn| self.told(stamp, self.ledger, *jsn)).collect(),
            size: head.size,
            root: convert::to_digest(&head.root),
            read_at: Some(convert::to_stamp(stamp)),
            proof: file.encode().expect("a small file").into(),
            marks_proof: bytes::Bytes::new(),
        }
    }

    fn description(&self, stamp: Stamp, ledger: LedgerId, name: &str) -> v1::DescribeLedgerResponse {
        let (head, founding, name) = (head_key(ledger), founding_key(ledger), name_key(name));
        let value = |key: &[u8]| self.model.value(stamp, key).expect("a record").to_vec();
        let edge = Head::decode(&value(&head)).expect("a head").edge;
        let proof = self.model.prove_keys(stamp, &[&name, &head, &founding], true);
        v1::DescribeLedgerResponse {
            id: ledger.0.to_vec().into(),
            size: edge.size(),
            root: convert::to_digest(&edge.root()),
            purged: 0,
            closed: false,
            founding: value(&founding).into(),
            read_at: Some(convert::to_stamp(stamp)),
            proof: proof.encode().expect("a small file").into(),
        }
    }

    fn member(&self, stamp: Stamp, name: &str) -> v1::GetMemberResponse {
        let key = member_key(self.ledger, member_id(name));
        let proof = self.model.prove_keys(stamp, &[&key], true);
        v1::GetMemberResponse {
            id: member_id(name).0.to_vec().into(),
            record: self.model.value(stamp, &key).unwrap_or_default().to_vec().into(),
            read_at: Some(convert::to_stamp(stamp)),
            proof: proof.encode().expect("a small file").into(),
        }
    }

    /// A client that trusts the model's key, of a coordinator that gives these answers.
    fn client(&self, fake: &Fake) -> Client {
        let options = Options { trust: Some(self.model.key.verifier().clone()), ..Options::new("http://model:1") };
        fake::client(&[fake], &options)
    }
}

fn is_lie<T: std::fmt::Debug>(what: &str, answer: Result<T, Error>) {
    let error = answer.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{what}: {error}");
}

const WANTED: Wanted = Wanted { payload: true, request: true, proof: true };

#[tokio::test]
async fn a_lineage_is_believed_only_whole_and_at_head() {
    let scene = Scene::new();
    let head = scene.model.head();
    let play = async |told: v1::GetLineageResponse, newest: Option<u32>| {
        let fake = Fake::default();
        fake.get_lineage.set(move |_| Ok(told.clone()));
        scene.client(&fake).lineage(scene.ledger, b"lot", newest, WANTED).await
    };
    let told = play(scene.lineage(head, None), None).await.expect("an honest answer");
    assert_eq!(told.journals.iter().map(|journal| journal.leaf.jsn).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(play(scene.lineage(head, Some(1)), Some(1)).await.expect("an honest answer").count, 2);
    is_lie("a version of before, which has fewer", play(scene.lineage(scene.before, None), None).await);
    is_lie("the newest for all", play(scene.lineage(head, Some(1)), None).await);
    let mut shorter = scene.lineage(head, None);
    shorter.journals.pop();
    shorter.count = 1;
    is_lie("one journal left out", play(shorter, None).await);
    let mut swapped = scene.lineage(head, None);
    swapped.journals[0].envelope = swapped.journals[1].envelope.clone();
    is_lie("another payload", play(swapped, None).await);
    let mut bare = scene.lineage(head, None);
    bare.proof = bytes::Bytes::new();
    is_lie("no proof", play(bare, None).await);
}

#[tokio::test]
async fn journals_are_believed_only_as_they_were_signed_and_if_the_list_has_only_grown() {
    let scene = Scene::new();
    let head = scene.model.head();
    let play = async |told: v1::GetJournalsResponse, range: (u64, u32), known: Option<(u64, Digest)>| {
        let fake = Fake::default();
        fake.get_journals.set(move |_| Ok(told.clone()));
        scene.client(&fake).journals(scene.ledger, range, WANTED, known).await
    };
    let told = play(scene.journals(head, &[1, 2], None), (1, 9), None).await.expect("an honest answer");
    assert_eq!(told.journals[1].envelope.as_ref().expect("it was asked for").payload, b"second");
    let leaves: Vec<Digest> =
        (0..2).map(|jsn| Leaf::decode(&scene.told(head, scene.ledger, jsn).leaf).expect("a leaf").hash()).collect();
    let known = (2, coppice_verify::merkle::mth(&leaves));
    play(scene.journals(head, &[2], Some(2)), (2, 1), Some(known)).await.expect("the list has only grown");
    is_lie("no word of the known list", play(scene.journals(head, &[2], None), (2, 1), Some(known)).await);
    let forked = (2, sha256(b"forked"));
    is_lie("another known list", play(scene.journals(head, &[2], Some(2)), (2, 1), Some(forked)).await);
    is_lie("other journals", play(scene.journals(head, &[1], None), (2, 1), None).await);
    let mut grown = scene.journals(head, &[2], None);
    grown.size = 9;
    is_lie("another size", play(grown, (2, 1), None).await);
    let mut moved = scene.journals(head, &[2], None);
    moved.journals[0].leaf = scene.told(head, scene.ledger, 1).leaf;
    is_lie("another leaf", play(moved, (2, 1), None).await);
    let other = scene.model.prove_journals(scene.model.head(), scene.ledger, &[1], None, SHOWN);
    let mut covered = scene.journals(head, &[2], None);
    covered.proof = other.encode().expect("a small file").into();
    is_lie("the proof of another journal", play(covered, (2, 1), None).await);
    let unsigned = scene.model.prove_journals(head, scene.ledger, &[2], None, Shown { request: false, envelope: true });
    let mut bare = scene.journals(head, &[2], None);
    bare.proof = unsigned.encode().expect("a small file").into();
    is_lie("no signature, though it was asked for", play(bare, (2, 1), None).await);
}

#[tokio::test]
async fn content_is_missing_only_if_an_order_under_proof_names_it() {
    let mut scene = Scene::new();
    let before = scene.model.head();
    let order = scene.occult(4, 1);
    let marked = scene.model.head();
    let other = scene.occult(5, 2);
    let head = scene.model.head();
    // The journals of the two orders, and the record of their author, are given as they are.
    let orders = [order, other].map(|jsn| (jsn, scene.journals(head, &[jsn], None)));
    let author = scene.member(head, "bank");
    let described = scene.description(head, scene.ledger, "grain");
    let play = async |told: v1::GetJournalsResponse, jsn: u64| {
        let (fake, orders, author, described) = (Fake::default(), orders.clone(), author.clone(), described.clone());
        fake.describe_ledger.set(move |_| Ok(described.clone()));
        fake.get_journals.set(move |asked| {
            let is_order = |(jsn, _): &&(u64, v1::GetJournalsResponse)| {
                *jsn == asked.from_jsn && told.journals[0].jsn != asked.from_jsn
            };
            let given = orders.iter().find(is_order).map(|(_, given)| given.clone());
            Ok(given.unwrap_or_else(|| told.clone()))
        });
        fake.get_member.set(move |_| Ok(author.clone()));
        scene.client(&fake).journals(scene.ledger, (jsn, 1), WANTED, None).await
    };
    let honest = play(scene.occulted(1, order, (head, 1)), 1).await.expect("an honest answer");
    assert_eq!((&honest.journals[0].envelope, honest.journals[0].occulted_by), (&None, Some(order)));
    is_lie("a mark of a version before", play(scene.occulted(1, order, (before, 1)), 1).await);
    is_lie("an old version that has the mark", play(scene.occulted(1, order, (marked, 1)), 1).await);
    is_lie("the mark of another journal", play(scene.occulted(1, other, (head, 2)), 1).await);
    is_lie("another order", play(scene.occulted(1, other, (head, 1)), 1).await);
    is_lie("a journal as its order", play(scene.occulted(1, 0, (head, 1)), 1).await);
    let mut bare = scene.occulted(1, order, (head, 1));
    bare.marks_proof = bytes::Bytes::new();
    is_lie("no proof of the mark", play(bare, 1).await);
    let mut silent = scene.occulted(1, order, (head, 1));
    silent.journals[0].occulted_by = None;
    is_lie("no word of an order", play(silent, 1).await);
    let mut of_order = scene.occulted(order, other, (head, 1));
    of_order.journals[0].occulted_by = Some(order);
    is_lie("an order that hides itself", play(of_order, order).await);
}

#[tokio::test]
async fn a_journal_is_purged_only_if_its_leaf_is_gone_from_head() {
    let mut scene = Scene::new();
    let before = scene.model.head();
    scene.purge(4, (3, 2));
    let head = scene.model.head();
    let play = async |jsn: u64, stamp: Stamp, leaf: u64| {
        let fake = Fake::default();
        fake.get_journals.set(|_| Err(coppice_proto::status::refuse(Reason::PurgedJournal, "")));
        let told = scene.records(stamp, &[&head_key(scene.ledger), &leaf_key(scene.ledger, leaf)]);
        fake.get_ledger_records.set(move |_| Ok(told.clone()));
        scene.client(&fake).journals(scene.ledger, (jsn, 1), WANTED, None).await
    };
    let purged = play(1, head, 1).await.expect_err("it is swept");
    assert_eq!(purged.reason(), Some(Reason::PurgedJournal), "{purged}");
    is_lie("a founding, which every purge keeps", play(0, head, 0).await);
    is_lie("a journal that a member retains", play(2, head, 2).await);
    is_lie("a journal above the purge", play(3, head, 3).await);
    is_lie("a version before the sweep", play(1, before, 1).await);
    let fake = Fake::default();
    fake.get_journals.set(|_| Err(coppice_proto::status::refuse(Reason::PurgedJournal, "")));
    fake.get_ledger_records.set(|_| Err(coppice_proto::status::refuse(Reason::PurgedJournal, "")));
    let refused = scene.client(&fake).journals(scene.ledger, (2, 1), WANTED, None).await;
    is_lie("a journal whose leaf is refused, too", refused);
    let other = play(2, head, 1).await.expect_err("it is retained");
    assert!(matches!(other, Error::Malformed(_)), "the leaf of another journal: {other}");
}

#[test]
fn the_author_of_an_order_signs_once_in_time_and_by_its_key() {
    let mut scene = Scene::new();
    let jsn = scene.occult(4, 1);
    let told = scene.told(scene.model.head(), scene.ledger, jsn);
    let leaf = Leaf::decode(&told.leaf).expect("a leaf");
    let payload = Envelope::decode(&told.envelope).expect("an envelope").payload;
    let ordered = Ordered::decode(&payload).expect("an order");
    let author = Member::decode(&scene.member(scene.model.head(), "bank").record).expect("a member");
    let judged = |change: &dyn Fn(&mut Leaf, &mut Ordered)| {
        let (mut leaf, mut ordered) = (leaf.clone(), ordered.clone());
        change(&mut leaf, &mut ordered);
        orders::check_author(&leaf, &ordered, &author)
    };
    judged(&|_, _| {}).expect("an honest order");
    judged(&|leaf, ordered| ordered.order.until = leaf.jsn).expect("the last number is in time");
    is_lie("a key that is not in force", judged(&|leaf, _| leaf.key = [7; 32]));
    is_lie("an order that has expired", judged(&|leaf, ordered| ordered.order.until = leaf.jsn - 1));
    let itself = |leaf: &mut Leaf, ordered: &mut Ordered| {
        ordered.approvals.push(Approval { member: leaf.member, signature: [1; 64] });
    };
    is_lie("an author that approves its order", judged(&itself));
}

#[tokio::test]
async fn an_anchor_moves_only_to_a_list_that_continues_its_own_and_journals_are_held_against_it() {
    let scene = Scene::new();
    let head = scene.model.head();
    let leaves: Vec<Leaf> =
        (0..3).map(|jsn| Leaf::decode(&scene.told(head, scene.ledger, jsn).leaf).expect("a leaf")).collect();
    let hashes: Vec<Digest> = leaves.iter().map(Leaf::hash).collect();
    let told = |known: Option<u64>| {
        let file = scene.model.prove_journals(head, scene.ledger, &[2], known, SHOWN);
        v1::GetLedgerHashesResponse {
            size: 3,
            root: convert::to_digest(&coppice_verify::merkle::mth(&hashes)),
            rest: hashes.iter().flat_map(|hash| hash.0).collect::<Vec<_>>().into(),
            proof: file.encode().expect("a small file").into(),
            ..v1::GetLedgerHashesResponse::default()
        }
    };
    let play = async |anchor: &TrustedAnchor, told: v1::GetLedgerHashesResponse| {
        let fake = Fake::default();
        fake.get_ledger_hashes.set(move |_| Ok(told.clone()));
        scene.client(&fake).advance_anchor(anchor).await
    };
    let empty = TrustedAnchor::new(CLUSTER, scene.ledger);
    let whole = play(&empty, told(None)).await.expect("an honest answer");
    assert_eq!(whole.size(), 3);
    let two = empty.grown(2, &[], &hashes[..2], &coppice_verify::merkle::mth(&hashes[..2])).expect("its hashes");
    assert_eq!(play(&two, told(Some(2))).await.expect("the list has grown"), whole);
    is_lie("no word of the known list", play(&two, told(None)).await);
    let forked = [hashes[1], hashes[0]];
    let fork = empty.grown(2, &[], &forked, &coppice_verify::merkle::mth(&forked)).expect("its hashes");
    is_lie("a list that does not continue the anchor's", play(&fork, told(Some(2))).await);
    let other = TrustedAnchor::new(ClusterId([8; 16]), scene.ledger);
    is_lie("another cluster", play(&other, told(None)).await);
    let swapped = [hashes[1], hashes[0], hashes[2]].iter().flat_map(|hash| hash.0).collect::<Vec<_>>();
    let lie = v1::GetLedgerHashesResponse { rest: swapped.into(), ..told(None) };
    is_lie("other hashes", play(&empty, lie).await);
    let lie = v1::GetLedgerHashesResponse { size: 2, ..told(None) };
    is_lie("another size", play(&empty, lie).await);
    let lie = v1::GetLedgerHashesResponse { blocks: vec![7; 32].into(), ..told(None) };
    assert!(matches!(play(&empty, lie).await, Err(Error::Malformed(_))), "blocks that the list does not have");

    let play = async |told: Vec<v1::LedgerJournal>| {
        let fake = Fake::default();
        fake.get_journals.set(move |_| Ok(v1::GetJournalsResponse { journals: told.clone(), ..Default::default() }));
        // Nothing is purged.
        let answer = scene.records(head, &[&head_key(scene.ledger), &leaf_key(scene.ledger, 2)]);
        fake.get_ledger_records.set(move |_| Ok(answer.clone()));
        scene.client(&fake).journals_below(&whole, (1, 9), true).await
    };
    let honest: Vec<_> = (1..3).map(|jsn| scene.told(head, scene.ledger, jsn)).collect();
    let read = play(honest.clone()).await.expect("they are in the list");
    assert_eq!(read.iter().map(|journal| journal.leaf.jsn).collect::<Vec<_>>(), [1, 2]);
    is_lie(
        "a path too long",
        play(vec![honest[0].clone(), { v1::LedgerJournal { path: vec![7; 32].into(), ..honest[1].clone() } }]).await,
    );
    let mut altered = leaves[2].clone();
    altered.lane = 3;
    let altered = v1::LedgerJournal { leaf: altered.encode().into(), ..honest[1].clone() };
    is_lie("an altered leaf", play(vec![honest[0].clone(), altered]).await);
    is_lie("another order", play(vec![honest[1].clone(), honest[0].clone()]).await);
    is_lie("a journal that is withheld", play(vec![honest[0].clone()]).await);
    let none = play(Vec::new()).await;
    assert!(matches!(none, Err(Error::Malformed(_))), "{none:?}");
}

#[tokio::test]
async fn a_verdict_is_of_the_journal_that_was_asked_for() {
    let scene = Scene::new();
    let shown = scene.model.prove_journals(scene.model.head(), scene.ledger, &[1], None, SHOWN);
    let told = |jsn: u64| v1::VerifyJournalResponse {
        valid: true,
        leaf: scene.told(scene.model.head(), scene.ledger, jsn).leaf,
        checkpoint: shown.proof.log().checkpoint.to_vec().into(),
        ..v1::VerifyJournalResponse::default()
    };
    let play = async |told: v1::VerifyJournalResponse| {
        let fake = Fake::default();
        fake.verify_journal.set(move |_| Ok(told.clone()));
        scene.client(&fake).journal_verdict(scene.ledger, 1, Some(b"one")).await
    };
    assert_eq!(play(told(1)).await.expect("a verdict").failed, None);
    let refused = v1::VerifyJournalResponse { valid: false, failed: "payload".to_owned(), ..told(1) };
    assert_eq!(play(refused).await.expect("a verdict").failed.as_deref(), Some("payload"));
    for (what, told) in [
        ("of another journal", told(2)),
        ("that contradicts itself", v1::VerifyJournalResponse { failed: "list".to_owned(), ..told(1) }),
        ("without a leaf", v1::VerifyJournalResponse { leaf: bytes::Bytes::new(), ..told(1) }),
        ("without a checkpoint", v1::VerifyJournalResponse { checkpoint: bytes::Bytes::new(), ..told(1) }),
    ] {
        assert!(matches!(play(told).await, Err(Error::Malformed(_))), "a verdict {what}");
    }
}

#[tokio::test]
async fn what_a_ledger_is_and_who_its_members_are_is_believed_only_at_head() {
    let scene = Scene::new();
    let head = scene.model.head();
    let named = |name: &str| Some(v1::LedgerName { which: Some(v1::ledger_name::Which::Name(name.to_owned())) });
    let play = async |told: v1::DescribeLedgerResponse, ledger: Option<v1::LedgerName>| {
        let fake = Fake::default();
        fake.describe_ledger.set(move |_| Ok(told.clone()));
        scene.client(&fake).describe_ledger(v1::DescribeLedgerRequest { ledger, read: None }).await
    };
    let honest = || scene.description(head, scene.ledger, "grain");
    assert_eq!(play(honest(), named("grain")).await.expect("an honest answer").size, 3);
    play(honest(), Some(ledger_name(scene.ledger))).await.expect("an honest answer");
    is_lie("another ledger of that name", play(scene.description(head, scene.other, "other"), named("grain")).await);
    is_lie("another ledger's id", play(honest(), Some(ledger_name(scene.other))).await);
    is_lie("an older version", play(scene.description(scene.before, scene.ledger, "grain"), named("grain")).await);
    is_lie("another size", play(v1::DescribeLedgerResponse { size: 2, ..honest() }, named("grain")).await);
    is_lie(
        "another root",
        play(v1::DescribeLedgerResponse { root: vec![7; 32].into(), ..honest() }, named("grain")).await,
    );
    let founding = scene.description(head, scene.other, "other").founding;
    is_lie("another founding", play(v1::DescribeLedgerResponse { founding, ..honest() }, named("grain")).await);

    let member = async |told: v1::GetMemberResponse, name: &str| {
        let fake = Fake::default();
        fake.get_member.set(move |_| Ok(told.clone()));
        scene.client(&fake).ledger_member(scene.ledger, name).await
    };
    let found = member(scene.member(head, "bank"), "bank").await.expect("an honest answer").expect("a member");
    assert_eq!(found.lane(0), 3);
    assert_eq!(member(scene.member(head, "mill"), "mill").await.expect("an honest answer"), None);
    is_lie("a member that is hidden", member(scene.member(head, "mill"), "bank").await);
    is_lie("an older record", member(scene.member(scene.before, "bank"), "bank").await);
    let key = member_key(scene.ledger, member_id("bank"));
    let without_values = scene.model.prove_keys(head, &[&key], false).encode().expect("a small file").into();
    let hidden =
        v1::GetMemberResponse { record: bytes::Bytes::new(), proof: without_values, ..scene.member(head, "bank") };
    is_lie("a record without its value, called absent", member(hidden, "bank").await);
    let record = scene.member(scene.before, "bank").record;
    is_lie("another record", member(v1::GetMemberResponse { record, ..scene.member(head, "bank") }, "bank").await);
}

#[tokio::test]
async fn an_append_is_believed_only_by_the_receipt_of_this_request() {
    let scene = Arc::new(Mutex::new(Scene::new()));
    let lock = || scene.lock().expect("nobody panics");
    let receipt = |scene: &Scene, jsn| {
        let file = scene.model.prove_journals(scene.model.head(), scene.ledger, &[jsn], None, SHOWN);
        file.encode().expect("a small file")
    };
    let checkpoint = |scene: &Scene| scene.model.log_part(scene.model.headers.len() as u64).checkpoint.to_vec();
    let (request, honest) = {
        let mut scene = lock();
        let request = scene.request(4, "third");
        scene.append(4, "third");
        let told = v1::AppendResponse {
            stamp: Some(convert::to_stamp(scene.model.head())),
            ledger: scene.ledger.0.to_vec().into(),
            first_jsn: 3,
            checkpoint: checkpoint(&scene).into(),
            receipt: receipt(&scene, 3).into(),
            ..v1::AppendResponse::default()
        };
        (request, told)
    };
    let play = async |told: v1::AppendResponse| {
        let fake = Fake::default();
        fake.append.set(move |_| Ok(told.clone()));
        let client = lock().client(&fake);
        client.append(&request, false).await
    };
    assert_eq!(play(honest.clone()).await.expect("an honest answer").first_jsn, 3);
    let older = receipt(&lock(), 2);
    let other = lock().other.0.to_vec();
    let unsigned = {
        let scene = lock();
        let shown = Shown { request: false, envelope: true };
        scene.model.prove_journals(scene.model.head(), scene.ledger, &[3], None, shown).encode().expect("a small file")
    };
    for (what, told) in [
        ("no receipt", v1::AppendResponse { receipt: Vec::new().into(), ..honest.clone() }),
        ("a receipt that shows no signature", v1::AppendResponse { receipt: unsigned.into(), ..honest.clone() }),
        ("the receipt of another request", v1::AppendResponse { receipt: older.into(), ..honest.clone() }),
        ("another number", v1::AppendResponse { first_jsn: 4, ..honest.clone() }),
        ("another version", v1::AppendResponse { stamp: Some(v1::Stamp { epoch: 0, version: 1 }), ..honest.clone() }),
        ("another ledger", v1::AppendResponse { ledger: other.into(), ..honest.clone() }),
    ] {
        let error = play(told).await.expect_err(what);
        assert!(error.kind() == ErrorKind::Corrupted && error.outcome_unknown(), "{what}: {error}");
    }
}
