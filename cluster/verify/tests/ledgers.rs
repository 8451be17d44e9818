//! Proofs of ledgers of members: honest ones hold and say what is true, and lies are refused, also
//! those of a coordinator that holds the cluster's key.

mod common;
#[path = "common/orders.rs"]
mod orders;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use common::{
    grain::{Sent, World, clue, fields, founds, item, key, member},
    vectors::{compare, stored, text},
};
use coppice_types::{Bytes, Change, ClusterId, Digest, LedgerId, Operation, Stamp};
use coppice_verify::{
    audit::{Finding, LedgerAuditor, LogSeen, Told},
    check::{Claim, Failure, Journal, Question, Step, Subject, Verified},
    hash::{file_checksum, sha256},
    journal::{AppendEntry, Entry, HeadEntry},
    ledgers::{
        Action, Cell, Closed, Clue, DATA, Edge, Envelope, Head, Item, Leaf, LeafClue, MEMBERS, MemberChange, ORDER,
        Order, Ordered, Purge, PurgeState, Refusal, Request, Round, Target, cell_key, clue_key, envelope_key, leaf_key,
        purge_key,
    },
    merkle,
    note::VerifierKey,
    proof::{JournalsProof, LineageProof, Proof, ProofFile},
    replay::Shown,
    verify, verify_answer,
};
use orders::{next_of_bank, ordered};
use serde_json::{Value, json};

const ALL: Shown = Shown { request: true, envelope: true };
const NONE: Shown = Shown { request: false, envelope: false };

fn encode(file: &ProofFile<'_>) -> Vec<u8> {
    file.encode().expect("it fits")
}

fn trusted(world: &World) -> VerifierKey {
    world.cluster.key.verifier().clone()
}

fn journals<'a>(file: &'a mut ProofFile<'static>) -> &'a mut JournalsProof<'static> {
    let Proof::Journals(proof) = &mut file.proof else { panic!("not of journals") };
    proof
}

fn lineage<'a>(file: &'a mut ProofFile<'static>) -> &'a mut LineageProof<'static> {
    let Proof::Lineage(proof) = &mut file.proof else { panic!("not a lineage") };
    proof
}

fn step(world: &World, file: &ProofFile<'_>) -> Option<Step> {
    verify(&encode(file), &trusted(world), None).err().map(|failure| failure.step)
}

/// The newest version that appended to a ledger.
fn last(world: &World, ledger: LedgerId) -> Stamp {
    let appended = |stamp: &&Stamp| {
        let journal = &world.cluster.versions[stamp].journal;
        journal.iter().any(|entry| matches!(entry, Entry::Head(head) if head.ledger == ledger))
    };
    *world.cluster.versions.keys().rev().find(appended).expect("it was founded")
}

#[test]
fn every_journal_of_every_version_is_proven_and_answers_its_question() {
    let world = World::new();
    for ledger in [world.compact, world.spread] {
        let stamp = last(&world, ledger);
        let size = world.cluster.size_of(stamp, ledger);
        assert!(size > 30);
        for jsn in 0..size {
            let known = (jsn % 3 == 0).then_some(jsn / 2 + 1);
            let file = encode(&world.cluster.prove_journals(stamp, ledger, &[jsn], known, ALL));
            let root = |size: u64| {
                let leaf = |jsn| Leaf::decode(world.cluster.value(stamp, &leaf_key(ledger, jsn)).expect("there"));
                merkle::mth(&(0..size).map(|jsn| leaf(jsn).expect("a leaf").hash()).collect::<Vec<_>>())
            };
            let known = known.map(|known| (known, root(known)));
            let subject = Subject::Journals { ledger, numbers: vec![jsn], known };
            let verified = verify_answer(&file, &trusted(&world), None, &Question::about(subject)).expect("it holds");
            let Claim::Journals(claim) = &verified.claim else { panic!("of journals") };
            assert_eq!((claim.size, claim.root), (size, root(size)));
            let [Journal { leaf, signed: Some(signed), envelope: Some(_) }] = &claim.journals[..] else {
                panic!("all of one journal is shown")
            };
            assert_eq!((leaf.jsn, leaf.member), (jsn, signed.member));
        }
    }
}

#[test]
fn lineages_are_complete_and_newest_ones_are_the_newest() {
    let world = World::new();
    let stamp = world.head();
    for ledger in [world.compact, world.spread] {
        for name in ["lot-7", "lot-8", "bill-1", "x", "never"] {
            let clue = clue(ledger, name);
            let naive: Vec<u64> = (0..world.cluster.size_of(stamp, ledger))
                .filter(|jsn| {
                    let leaf = world.cluster.value(stamp, &leaf_key(ledger, *jsn)).expect("there");
                    Leaf::decode(leaf).expect("a leaf").clues.iter().any(|own| own.clue == clue)
                })
                .rev()
                .collect();
            assert!(naive.len() > 3 || name == "never");
            for newest in [None, Some(1), Some(4), Some(naive.len() as u64), Some(1000)] {
                let file = encode(&world.cluster.prove_lineage(stamp, ledger, clue, newest, ALL));
                let question = Question::about(Subject::Lineage { ledger, clue, newest });
                let verified = verify_answer(&file, &trusted(&world), None, &question).expect("it holds");
                let Claim::Lineage(claim) = &verified.claim else { panic!("a lineage") };
                let shown: Vec<u64> = claim.journals.iter().map(|journal| journal.leaf.jsn).collect();
                let wanted = newest.map_or(naive.len(), |newest| naive.len().min(newest as usize));
                assert_eq!((claim.count, &shown[..]), (naive.len() as u64, &naive[..wanted]));
            }
        }
    }
}

#[test]
fn a_proof_answers_no_other_question() {
    let world = World::new();
    let (ledger, stamp) = (world.compact, last(&world, world.compact));
    let lot = clue(ledger, "lot-7");
    let of_journals = encode(&world.cluster.prove_journals(stamp, ledger, &[3, 4], Some(2), NONE));
    let of_lineage = encode(&world.cluster.prove_lineage(stamp, ledger, lot, Some(3), NONE));
    let asked = |file: &[u8], subject: Subject<'_>| {
        let answer = verify_answer(file, &trusted(&world), None, &Question::about(subject));
        answer.map(drop).map_err(|failure: Failure| failure.to_string())
    };
    let journals = |ledger, numbers: &[u64], known| Subject::Journals { ledger, numbers: numbers.to_vec(), known };
    assert_eq!(asked(&of_journals, journals(ledger, &[3, 4], None)), Ok(()));
    for (subject, why) in [
        (journals(world.spread, &[3, 4], None), "question: the proof is for another ledger"),
        (journals(ledger, &[3], None), "question: the proof is for other journals"),
        (
            journals(ledger, &[3, 4], Some((2, Digest([1; 32])))),
            "question: the proof continues another state of the ledger than the known one",
        ),
        (Subject::Request(Digest([1; 32])), "question: the proof is not for all journals of the request"),
        (Subject::Growth(1), "question: the proof is of another kind"),
    ] {
        assert_eq!(asked(&of_journals, subject), Err(why.to_owned()));
    }
    let about = |clue, newest| Subject::Lineage { ledger, clue, newest };
    assert_eq!(asked(&of_lineage, about(lot, Some(3))), Ok(()));
    for (subject, why) in [
        (about(clue(ledger, "lot-8"), Some(3)), "question: the proof is for another clue"),
        (about(lot, None), "question: the proof shows another number of journals"),
        (about(lot, Some(4)), "question: the proof shows another number of journals"),
        (journals(ledger, &[3], None), "question: the proof is of another kind"),
    ] {
        assert_eq!(asked(&of_lineage, subject), Err(why.to_owned()));
    }
}

#[test]
fn a_receipt_is_for_all_journals_of_a_request() {
    let world = World::new();
    let ledger = world.compact;
    for (stamp, requests) in &world.rounds[2..10] {
        for (request, _) in requests.iter().take(2) {
            let hash = sha256(&request.signed);
            let leaves = (0..world.cluster.size_of(*stamp, ledger)).filter(|jsn| {
                let leaf = world.cluster.value(*stamp, &leaf_key(ledger, *jsn)).expect("there");
                Leaf::decode(leaf).expect("a leaf").request == hash
            });
            let numbers: Vec<u64> = leaves.collect();
            assert_eq!(numbers.len(), request.items.len());
            let receipt = encode(&world.cluster.prove_journals(*stamp, ledger, &numbers, None, NONE));
            let question = Question::about(Subject::Request(hash));
            assert!(verify_answer(&receipt, &trusted(&world), None, &question).is_ok());
            if let Some((_, few)) = numbers.split_last().filter(|(_, few)| !few.is_empty()) {
                let part = encode(&world.cluster.prove_journals(*stamp, ledger, few, None, NONE));
                assert!(verify_answer(&part, &trusted(&world), None, &question).is_err());
            }
        }
    }
}

/// Every bit of a file, with a checksum that fits: it is refused, or says the same.
#[test]
fn no_flipped_bit_proves_anything_else() {
    let world = World::new();
    let (ledger, stamp) = (world.compact, last(&world, world.compact));
    let lot = clue(ledger, "lot-8");
    for file in [
        world.cluster.prove_journals(stamp, ledger, &[5, 6], Some(3), ALL),
        world.cluster.prove_lineage(stamp, ledger, lot, Some(2), ALL),
    ] {
        let bytes = encode(&file);
        let content = bytes.len() - 8;
        let honest = verify(&bytes, &trusted(&world), None).expect("it holds").claim;
        for bit in 0..content * 8 {
            let mut flipped = bytes[..content].to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped.extend(file_checksum(&flipped).to_le_bytes());
            if let Ok(verified) = verify(&flipped, &trusted(&world), None) {
                assert_eq!(verified.claim, honest, "bit {bit}");
            }
        }
    }
}

type Lie = (&'static str, ProofFile<'static>, Step);

/// Lies of a server that does not hold the cluster's key.
fn lies(world: &World) -> Vec<Lie> {
    let (ledger, stamp) = (world.compact, last(world, world.compact));
    let (lot, bill) = (clue(ledger, "lot-7"), clue(ledger, "bill-1"));
    let of = |numbers: &[u64], known| world.cluster.prove_journals(stamp, ledger, numbers, known, ALL);
    let line = || world.cluster.prove_lineage(stamp, ledger, lot, None, ALL);
    let mut lies = Vec::new();
    let mut journal_lie = |name, step, change: &dyn Fn(&mut JournalsProof<'static>)| {
        let mut file = of(&[3, 4], Some(2));
        change(journals(&mut file));
        lies.push((name, file, step));
    };
    journal_lie("no journal", Step::List, &|it| it.journals.clear());
    journal_lie("journals in another order", Step::Leaf, &|it| it.journals.reverse());
    journal_lie("a journal twice", Step::Leaf, &|it| it.journals[1] = it.journals[0].clone());
    journal_lie("the path of another journal", Step::List, &|it| it.journals[0].1 = it.journals[1].1.clone());
    journal_lie("a path that is cut short", Step::List, &|it| assert!(it.journals[0].1.pop().is_some()));
    journal_lie("a leaf with another number", Step::List, &|it| {
        let mut leaf = Leaf::decode(&it.journals[1].0.leaf).expect("a leaf");
        leaf.jsn += 1;
        it.journals[1].0.leaf = Cow::Owned(leaf.encode());
    });
    journal_lie("a leaf of another ledger", Step::Leaf, &|it| {
        let other = world.cluster.value(stamp, &leaf_key(world.spread, 3)).expect("there");
        it.journals[0].0.leaf = Cow::Owned(other.to_vec());
    });
    journal_lie("another known root", Step::List, &|it| it.known.as_mut().expect("known").root = Digest([1; 32]));
    journal_lie("a known size above the size", Step::List, &|it| it.known.as_mut().expect("known").size = 1 << 40);
    journal_lie("a head of a larger size", Step::Journal, &|it| {
        let Ok(Entry::Head(head)) = Entry::decode(&it.entry) else { panic!("a head") };
        it.entry = Cow::Owned(Entry::Head(HeadEntry { size: head.size + 1, ..head }).encode());
    });
    journal_lie("an append in place of the head", Step::Journal, &|it| {
        let entries = &world.cluster.versions[&stamp].journal;
        let hashes: Vec<Digest> = entries.iter().map(Entry::hash).collect();
        (it.index, it.entry, it.hashes) = (0, Cow::Owned(entries[0].encode()), merkle::list_proof(&hashes, &[0]));
    });
    journal_lie("the request of another journal", Step::Request, &|it| {
        let other = world.cluster.prove_journals(stamp, ledger, &[9], None, ALL);
        let Proof::Journals(other) = other.proof else { panic!("of journals") };
        it.journals[0].0.request = other.journals[0].0.request.clone();
    });
    journal_lie("an item path that is cut short", Step::Request, &|it| {
        let request = it.journals[1].0.request.as_mut().expect("shown");
        assert!(request.path.pop().is_some());
    });
    journal_lie("the envelope of another journal", Step::Envelope, &|it| {
        it.journals[0].0.envelope = it.journals[1].0.envelope.clone();
    });
    journal_lie("the header of another version", Step::Journal, &|it| {
        let size = world.cluster.headers.len() as u64;
        let before = world.rounds[9].0;
        (it.header, it.epoch) = (world.cluster.header_part(before, size), world.cluster.epoch_part(before, size));
    });
    let mut line_lie = |name, step, change: &dyn Fn(&mut LineageProof<'static>)| {
        let mut file = line();
        change(lineage(&mut file));
        lies.push((name, file, step));
    };
    line_lie("a journal left out", Step::Lineage, &|it| drop(it.journals.remove(2)));
    line_lie("two journals changed over", Step::Lineage, &|it| it.journals.swap(1, 2));
    line_lie("a journal twice", Step::Lineage, &|it| it.journals[2] = it.journals[1].clone());
    line_lie("another clue", Step::Lineage, &|it| it.clue = bill);
    line_lie("another ledger", Step::Lineage, &|it| it.ledger = world.spread);
    line_lie("without values", Step::Lineage, &|it| it.query.values = None);
    line_lie("the newest as if they were all", Step::Lineage, &|it| {
        let few = world.cluster.prove_range(stamp, &clue_key(ledger, &lot), Some(&cell_key(ledger, &lot, 4)), true);
        let Proof::Query(query) = few.proof else { panic!("a query") };
        it.query = query;
    });
    line_lie("without the clue's record", Step::Lineage, &|it| {
        let low = cell_key(ledger, &lot, u64::MAX);
        let cells = world.cluster.prove_range(stamp, &low, Some(&cell_key(ledger, &lot, 0)), true);
        let Proof::Query(query) = cells.proof else { panic!("a query") };
        it.query = query;
    });
    line_lie("keys in place of a range", Step::Lineage, &|it| {
        let keys = world.cluster.prove_keys(stamp, &[&clue_key(ledger, &lot)], true);
        let Proof::Query(query) = keys.proof else { panic!("a query") };
        it.query = query;
    });
    line_lie("an envelope of another journal", Step::Envelope, &|it| {
        it.journals[0].envelope = it.journals[1].envelope.clone();
    });
    lies
}

#[test]
fn lies_of_a_server_are_refused() {
    let world = World::new();
    for (name, lie, step_of) in lies(&world) {
        assert_eq!(step(&world, &lie), Some(step_of), "{name}");
    }
}

fn put(key: Vec<u8>, value: Vec<u8>) -> Operation {
    Operation { key: key.into(), change: Change::Put(value.into()) }
}

/// A version by which the holder of the cluster's key changes records of a ledger at will.
fn forge(world: &mut World, operations: &[Operation]) -> Stamp {
    world.cluster.write(Vec::new(), &operations.iter().collect::<Vec<_>>()).expect("merges apply")
}

/// Lies that the holder of the cluster's key has signed: state roots over records that no requests
/// lead to.
fn signed_lies() -> Vec<(World, Lie)> {
    let mut lies = Vec::new();
    let mut lie = |name, change: &dyn Fn(&World, LedgerId, Digest, Clue) -> Vec<Operation>| {
        let mut world = World::new();
        let (ledger, stamp) = (world.compact, world.head());
        let lot = clue(ledger, "lot-7");
        let record = Clue::decode(world.cluster.value(stamp, &clue_key(ledger, &lot)).expect("a clue"));
        let honest = world.cluster.prove_lineage(stamp, ledger, lot, None, ALL);
        let operations = change(&world, ledger, lot, record.expect("a record"));
        let forged = forge(&mut world, &operations);
        let high = cell_key(ledger, &lot, 0);
        let query = world.cluster.prove_range(forged, &clue_key(ledger, &lot), Some(&high), true);
        let (Proof::Query(query), Proof::Lineage(honest)) = (query.proof, honest.proof) else { panic!("as made") };
        let file =
            ProofFile { cluster: world.cluster.cluster, proof: Proof::Lineage(LineageProof { query, ..honest }) };
        lies.push((world, (name, file, Step::Lineage)));
    };
    let cell = |world: &World, ledger, clue: Digest, ordinal| {
        let value = world.cluster.value(world.head(), &cell_key(ledger, &clue, ordinal)).expect("a cell");
        Cell::decode(value).expect("a cell")
    };
    lie("a cell that was deleted", &|_, ledger, clue, _| {
        vec![Operation { key: cell_key(ledger, &clue, 2).into(), change: Change::Delete }]
    });
    lie("a count that hides the oldest", &|_, ledger, clue, record| {
        vec![put(clue_key(ledger, &clue), Clue { count: record.count - 1, ..record }.encode())]
    });
    lie("two cells changed over", &|world, ledger, clue, _| {
        let [one, two] = [1, 2].map(|ordinal| cell(world, ledger, clue, ordinal));
        vec![put(cell_key(ledger, &clue, 1), two.encode()), put(cell_key(ledger, &clue, 2), one.encode())]
    });
    lie("a cell of another leaf", &|world, ledger, clue, _| {
        let forged = Cell { leaf: Digest([5; 32]), ..cell(world, ledger, clue, 3) };
        vec![put(cell_key(ledger, &clue, 3), forged.encode())]
    });
    lie("another chain", &|_, ledger, clue, record| {
        vec![put(clue_key(ledger, &clue), Clue { chain: Digest([5; 32]), ..record }.encode())]
    });
    lie("another last number", &|_, ledger, clue, record| {
        vec![put(clue_key(ledger, &clue), Clue { last_jsn: record.last_jsn + 1, ..record }.encode())]
    });
    lie("a clue's record that is none", &|_, ledger, clue, _| vec![put(clue_key(ledger, &clue), vec![9])]);
    lie("a cell that is said to be gone", &|_, ledger, clue, record| {
        vec![put(clue_key(ledger, &clue), Clue { gone: 1, chain_gone: Digest([5; 32]), ..record }.encode())]
    });
    lie("more gone than there were", &|_, ledger, clue, record| {
        let gone = record.count + 1;
        vec![put(clue_key(ledger, &clue), Clue { gone, chain_gone: record.chain, ..record }.encode())]
    });
    lies
}

/// A journal that a coordinator appended without its author's signature.
fn unsigned() -> (World, Lie) {
    let mut world = World::new();
    let (ledger, stamp) = (world.compact, world.cluster.next_stamp());
    // The coordinator signs with a key of its own, and puts the author's into the leaf.
    let request = fields(ledger, "bank", 4).sign(&key(99), vec![item(DATA, &[], b"never sent")]);
    let Ok(checked) = request.check(world.cluster.cluster) else { panic!("a sound form") };
    let first = world.cluster.size_of(world.head(), ledger);
    let leaf = Leaf {
        kind: DATA,
        ledger,
        jsn: first,
        stamp,
        member: member("bank"),
        agent: None,
        key: common::grain::public(0),
        lane: 0,
        number: 4,
        index: 0,
        of: 1,
        request: checked.hash,
        signature: checked.signature,
        commitment: checked.items[0].commitment,
        envelope_bytes: checked.items[0].envelope_bytes,
        clues: Vec::new(),
    };
    let head = world.cluster.value(world.head(), &coppice_verify::ledgers::head_key(ledger)).expect("a head");
    let mut head = Head::decode(head).expect("a head");
    head.edge.push(leaf.hash(), &mut Vec::new());
    let (size, root) = (head.edge.size(), head.edge.root());
    let operations =
        [put(leaf_key(ledger, first), leaf.encode()), put(coppice_verify::ledgers::head_key(ledger), head.encode())];
    let shards = world.cluster.lists(&operations);
    let append = Entry::Append(coppice_verify::journal::AppendEntry {
        ledger,
        signed: checked.bytes.clone(),
        signature: checked.signature,
        first_jsn: first,
        count: 1,
        leaves_root: leaf.hash(),
        shards: shards.clone(),
    });
    let entries = vec![append, Entry::Head(HeadEntry { ledger, size_before: first, size, root, shards })];
    let forged = world.cluster.write(entries, &operations.iter().collect::<Vec<_>>()).expect("merges apply");
    let shown = Shown { request: true, envelope: false };
    let file = world.cluster.prove_journals(forged, ledger, &[first], None, shown);
    (world, ("a journal that its author never signed", file, Step::Request))
}

#[test]
fn lies_that_the_cluster_signed_are_refused() {
    for (world, (name, lie, step_of)) in signed_lies().into_iter().chain([unsigned()]) {
        assert_eq!(step(&world, &lie), Some(step_of), "{name}");
    }
}

/// The thief of a replaced key signs the ledger's own newest log, and hides the change of the key.
fn stolen() -> (World, ProofFile<'static>) {
    let mut world = World::new();
    let ledger = world.compact;
    world.cluster.rotate(&[8; 32]);
    let (stamp, size) = (last(&world, ledger), world.cluster.headers.len() as u64);
    let mut file = world.cluster.prove_journals(stamp, ledger, &[3], None, NONE);
    // The newest header is behind the change, so that it does not show the change itself.
    world.cluster.append_unknown(9, Vec::new());
    let part = &mut journals(&mut file).log;
    *part = world.cluster.log_part(size + 1);
    part.checkpoint = Cow::Owned(
        world.cluster.checkpoint(size + 1).sign(&world.cluster.old_keys[0].0).expect("the same name").into_bytes(),
    );
    part.key_changes.clear();
    let entries: Vec<Digest> = world.cluster.headers.iter().map(coppice_verify::header::Header::hash).collect();
    let proof = journals(&mut file);
    let sequence = world.cluster.versions[&stamp].header.sequence.0;
    proof.header.path = merkle::inclusion_path(&entries, sequence);
    (world, file)
}

#[test]
fn a_replaced_key_signs_nothing_behind_its_change_though_the_change_is_hidden() {
    let (mut world, file) = stolen();
    let first = VerifierKey::parse(&world.cluster.old_keys[0].0.verifier().to_string()).expect("a key");
    let failure = verify(&encode(&file), &first, None).expect_err("the newest header counts the change");
    assert_eq!(failure.to_string(), "newest_header: it counts other key changes than those that are shown");
    // With the change shown, and the new key's signature, the same holds.
    let size = world.cluster.headers.len() as u64;
    let mut honest = file;
    journals(&mut honest).log = world.cluster.log_part(size);
    assert!(verify(&encode(&honest), &first, None).is_ok());
    // An honest server that leaves the changes out is refused, too: they are part of the file.
    journals(&mut honest).log.key_changes.clear();
    world.cluster.append_unknown(9, Vec::new());
    assert!(verify(&encode(&honest), world.cluster.key.verifier(), None).is_err());
}

/// A server's answer to an auditor about a version's appends to a ledger.
fn told(world: &World, stamp: Stamp, ledger: LedgerId) -> Vec<Told> {
    let before = world.cluster.versions.range(..stamp).next_back().map_or(stamp, |(before, _)| *before);
    let leaf = |stamp, jsn: u64| {
        let leaf = world.cluster.value(stamp, &leaf_key(ledger, jsn))?;
        Some(Leaf::decode(leaf).expect("a leaf"))
    };
    let of = |append: &AppendEntry| {
        let jsns = append.first_jsn..append.first_jsn + u64::from(append.count);
        let leaves: Vec<Leaf> = jsns.map(|jsn| leaf(stamp, jsn).expect("there")).collect();
        let value = |leaf: &Leaf| world.cluster.value(stamp, &envelope_key(ledger, leaf.jsn)).expect("there");
        let envelope = leaves.first().filter(|leaf| leaf.kind != DATA).map(|leaf| value(leaf).to_vec());
        let payload = envelope.as_ref().map(|bytes| Envelope::decode(bytes).expect("an envelope").payload);
        let order = payload.filter(|_| leaves[0].kind == ORDER).map(|payload| Ordered::decode(&payload));
        let judged_by = order.map(|order| order.expect("an order").order.action.judged_by()).unwrap_or_default();
        let targets = judged_by.into_iter().filter_map(|jsn| leaf(before, jsn)).collect();
        Told { targets, leaves, envelope }
    };
    let entries = &world.cluster.versions[&stamp].journal;
    entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Append(append) if append.ledger == ledger => Some(of(append)),
            _ => None,
        })
        .collect()
}

/// The root that all requests of the world have seen.
fn seen(size: u64) -> Option<Digest> {
    (size == 1).then_some(Digest([9; 32]))
}

/// Lets an auditor take a version of the world, or one that would be the next.
fn take(
    world: &World,
    auditor: &mut LedgerAuditor,
    stamp: Stamp,
    entries: &[Entry],
    told: &[Told],
) -> Result<(), Finding> {
    let time = |version| {
        let known = world.cluster.versions.iter().find(|(stamp, _)| stamp.version == version);
        Some(known.map_or(world.cluster.next_time_ms(), |(_, version)| version.header.timestamp_ms))
    };
    auditor.take(stamp, entries, told, LogSeen { root: &seen, time: &time })
}

/// Audits a ledger up to the version before `until`, and returns that version's entries with what
/// is told of them.
fn audited(world: &World, ledger: LedgerId, until: Option<Stamp>) -> (LedgerAuditor, Vec<Entry>, Vec<Told>) {
    let mut auditor = LedgerAuditor::new(world.cluster.cluster, ledger, world.cluster.shard_map.clone());
    for (stamp, version) in &world.cluster.versions {
        let told = told(world, *stamp, ledger);
        if Some(*stamp) == until {
            return (auditor, version.journal.clone(), told);
        }
        assert_eq!(take(world, &mut auditor, *stamp, &version.journal, &told), Ok(()), "version {stamp}");
    }
    (auditor, Vec::new(), Vec::new())
}

/// A world with orders, and the versions that have something for an auditor to find.
fn with_orders() -> World {
    let mut world = World::new();
    more_rounds(&mut world);
    world
}

#[test]
fn an_auditor_finds_honest_ledgers_sound() {
    let world = with_orders();
    for (ledger, occulted) in [(world.compact, [1, 2, 3, 4, 5, 6, 7, 8, 49].to_vec()), (world.spread, vec![2])] {
        let (auditor, ..) = audited(&world, ledger, None);
        let head = world.cluster.value(world.head(), &coppice_verify::ledgers::head_key(ledger)).expect("a head");
        let edge = Head::decode(head).expect("a head").edge;
        assert_eq!((auditor.size(), auditor.root()), (edge.size(), edge.root()));
        assert_eq!(auditor.occulted().iter().copied().collect::<Vec<_>>(), occulted);
    }
}

/// Each field of an entry, and all that is told beside it, is changed in turn.
#[test]
fn an_auditor_finds_whatever_a_coordinator_changes() {
    let world = with_orders();
    let ledger = world.compact;
    let stamps: Vec<Stamp> = world.cluster.versions.keys().copied().collect();
    let orders = |stamp: &Stamp| told(&world, *stamp, ledger).iter().any(|told| !told.targets.is_empty());
    let (data, order) = (stamps[4], *stamps.iter().rev().find(|stamp| orders(stamp)).expect("one"));
    type Change<'c> = &'c dyn Fn(&mut Vec<Entry>, &mut Vec<Told>);
    fn append(entries: &mut [Entry]) -> &mut AppendEntry {
        let found = entries.iter_mut().find_map(|entry| match entry {
            Entry::Append(append) => Some(append),
            _ => None,
        });
        found.expect("an append")
    }
    fn head(entries: &mut [Entry]) -> &mut HeadEntry {
        let found = entries.iter_mut().find_map(|entry| match entry {
            Entry::Head(head) => Some(head),
            _ => None,
        });
        found.expect("a head")
    }
    let changes: [(&str, &str, Change<'_>); 14] = [
        ("a cell left out", "its records", &|entries, _| append(entries).shards[0].1 = Digest([1; 32])),
        ("records in another shard", "its records", &|entries, _| append(entries).shards[0].0.0 += 1),
        ("another signature", "signed", &|entries, _| append(entries).signature[5] ^= 1),
        ("another request", "signed", &|entries, _| append(entries).signed[60] ^= 1),
        ("another first number", "", &|entries, _| append(entries).first_jsn += 1),
        ("another count", "", &|entries, _| append(entries).count += 1),
        ("other leaves", "its leaves", &|entries, _| append(entries).leaves_root = Digest([1; 32])),
        ("an append twice", "", &|entries, told| {
            let again = append(entries).clone();
            entries.insert(0, Entry::Append(again));
            told.insert(0, told[0].clone());
        }),
        ("an append of which nothing is told", "other appends", &|_, told| drop(told.pop())),
        ("a head of another root", "its head", &|entries, _| head(entries).root = Digest([1; 32])),
        ("a head of another size", "its head", &|entries, _| head(entries).size += 1),
        ("a tile left out", "its head", &|entries, _| head(entries).shards[0].1 = Digest([1; 32])),
        ("no head", "has a head", &|entries, _| entries.retain(|entry| !matches!(entry, Entry::Head(_)))),
        ("an envelope of another journal", "", &|_, told| told[0].envelope = Some(vec![0; 129])),
    ];
    for stamp in [data, order] {
        for (name, expected, change) in &changes {
            let (mut auditor, mut entries, mut told) = audited(&world, ledger, Some(stamp));
            entries.retain(|entry| match entry {
                Entry::Append(append) => append.ledger == ledger,
                Entry::Head(head) => head.ledger == ledger,
                _ => true,
            });
            change(&mut entries, &mut told);
            let finding = take(&world, &mut auditor, stamp, &entries, &told).expect_err(name);
            assert!(finding.what.contains(expected), "{name}: {finding:?}");
        }
    }
    // A leaf that another one stands for, and a log that the author has not seen.
    let (mut auditor, entries, mut told) = audited(&world, ledger, Some(data));
    told[0].leaves[0].commitment = Digest([1; 32]);
    assert!(take(&world, &mut auditor, data, &entries, &told).is_err());
    let (mut auditor, entries, told) = audited(&world, ledger, Some(data));
    let finding =
        auditor.take(data, &entries, &told, LogSeen { root: &|_| None, time: &|_| Some(0) }).expect_err("a fork");
    assert_eq!(finding.what, "its author had seen another log");
    let (mut auditor, entries, mut told) = audited(&world, ledger, Some(order));
    told[0].targets[0].lane ^= 1;
    assert!(take(&world, &mut auditor, order, &entries, &told).is_err());
}

/// A coordinator applies what honest ones refuse, with all records that would follow.
#[test]
fn an_auditor_finds_requests_that_should_have_been_refused() {
    let world = with_orders();
    let (ledger, head) = (world.compact, world.head());
    let size = world.cluster.size_of(head, ledger);
    let number = next_of_bank(&world);
    let next = || fields(ledger, "bank", number);
    let data = || vec![item(DATA, &["lot-7"], b"never allowed")];
    let target = Target { jsn: 9, leaf: Digest([1; 32]) };
    let order = Order { until: 999, action: Action::Occult(vec![target]) };
    let mut conditional = next();
    conditional.conditions = vec![coppice_verify::ledgers::Condition::Size(1)];
    let forged: [(&str, Sent, &str); 5] = [
        ("a condition that does not hold", (conditional.sign(&key(0), data()), Some(0)), "journals"),
        ("a number of its lane left out", (fields(ledger, "bank", number + 3).sign(&key(0), data()), Some(0)), "lane"),
        ("a member without the role", (fields(ledger, "court", 2).sign(&key(3), data()), Some(3)), "writer"),
        ("an order without the regulator", ordered(ledger, ("bank", 0), number, &order, &[]), "regulator"),
        ("an order for another leaf", ordered(ledger, ("bank", 0), number, &order, &[("court", 3)]), "leaf"),
    ];
    for (name, (request, seed), expected) in forged {
        let (mut auditor, ..) = audited(&world, ledger, None);
        let checked = common::grain::admit(request.clone(), seed.expect("a key"));
        let stamp = world.cluster.next_stamp();
        let leaf = Leaf {
            kind: request.items[0].kind,
            ledger,
            jsn: size,
            stamp,
            member: checked.signed.member,
            agent: None,
            key: *checked.verified().expect("it is signed"),
            lane: 0,
            number: checked.signed.number,
            index: 0,
            of: 1,
            request: checked.hash,
            signature: checked.signature,
            commitment: checked.items[0].commitment,
            envelope_bytes: checked.items[0].envelope_bytes,
            clues: checked.items[0].clues.iter().map(|clue| LeafClue { clue: *clue, ordinal: 1 }).collect(),
        };
        let entries = [
            Entry::Append(AppendEntry {
                ledger,
                signed: checked.bytes.clone(),
                signature: checked.signature,
                first_jsn: size,
                count: 1,
                leaves_root: leaf.hash(),
                shards: Vec::new(),
            }),
            Entry::Head(HeadEntry { ledger, size_before: size, size: size + 1, root: leaf.hash(), shards: Vec::new() }),
        ];
        let envelope = (leaf.kind != DATA).then(|| request.items[0].envelope.encode());
        let shown = Leaf::decode(world.cluster.value(head, &leaf_key(ledger, 9)).expect("there")).expect("a leaf");
        let targets = if leaf.kind == ORDER { vec![shown] } else { Vec::new() };
        let told = [Told { leaves: vec![leaf], envelope, targets }];
        let finding = take(&world, &mut auditor, stamp, &entries, &told).expect_err(name);
        assert!(finding.what.contains(expected), "{name}: {finding:?}");
        assert_eq!(finding.jsn, Some(size));
    }
}

fn stamp_json(stamp: Stamp) -> Value {
    json!([stamp.epoch.0, stamp.version.0])
}

fn refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoLedger => "ledger",
        Refusal::Closed => "closed",
        Refusal::NameTaken => "name",
        Refusal::NotAMember => "member",
        Refusal::Signature => "signature",
        Refusal::Role(_) => "role",
        Refusal::Lane(_) => "lane",
        Refusal::Epoch => "epoch",
        Refusal::Size(_) => "size",
        Refusal::Count(_) => "count",
        Refusal::Members(_) => "change",
        Refusal::Incomplete(_) => "approval",
        Refusal::Order(_) => "order",
        Refusal::Damaged => "damaged",
    }
}

fn operations_json(operations: &[Operation]) -> Value {
    let one = |operation: &Operation| match &operation.change {
        Change::Put(value) => json!([text(&operation.key), text(value)]),
        Change::Delete => json!([text(&operation.key), null]),
    };
    operations.iter().map(one).collect()
}

fn head_json(head: &Closed) -> Value {
    json!({
        "ledger": head.ledger.to_string(), "before": head.size_before, "size": head.size,
        "root": head.root.to_string(), "operations": operations_json(&head.operations),
    })
}

fn claim(verified: &Verified<'_>) -> Value {
    let journal = |journal: &Journal| {
        let payload = journal.envelope.as_ref().map(|envelope| text(&envelope.payload));
        json!({ "jsn": journal.leaf.jsn, "leaf": text(&journal.leaf.encode()), "signed": journal.signed.is_some(), "payload": payload })
    };
    match &verified.claim {
        Claim::Journals(claim) => json!({
            "kind": "journals", "version": stamp_json(claim.header.stamp), "ledger": claim.ledger.to_string(),
            "size": claim.size, "root": claim.root.to_string(),
            "known": claim.known.map(|(size, root)| json!([size, root.to_string()])),
            "journals": claim.journals.iter().map(journal).collect::<Vec<_>>(),
        }),
        Claim::Lineage(claim) => json!({
            "kind": "lineage", "version": stamp_json(claim.header.stamp), "ledger": claim.ledger.to_string(),
            "clue": claim.clue.to_string(), "count": claim.count, "after": claim.after, "gone": claim.gone,
            "journals": claim.journals.iter().map(journal).collect::<Vec<_>>(),
        }),
        _ => panic!("a proof of a ledger"),
    }
}

/// A request that no coordinator admits, and the world that refuses all others.
fn more_rounds(world: &mut World) {
    let ledger = world.compact;
    let data = |kind| vec![item(kind, &["lot-7"], b"data")];
    let other = |change: &dyn Fn(&mut coppice_verify::ledgers::Signed)| {
        let mut fields = fields(ledger, "bank", 4);
        change(&mut fields);
        (fields.sign(&key(0), data(DATA)), Some(0))
    };
    use coppice_verify::ledgers::Condition;
    let lot = clue(ledger, "lot-7");
    let mut swapped = fields(ledger, "bank", 4).sign(&key(0), data(DATA));
    swapped.items = vec![item(DATA, &["lot-8"], b"data")];
    let change = MemberChange::encode_all(&[MemberChange::Revoke(member("nobody"))]);
    let nobody = (fields(ledger, "bank", 4).sign(&key(0), vec![item(MEMBERS, &[], &change)]), Some(0));
    world.round(vec![
        other(&|it| it.ledger = LedgerId([4; 16])),
        other(&|it| it.epoch = coppice_types::Epoch(3)),
        other(&|it| it.number = 5),
        other(&|it| it.conditions = vec![Condition::Size(1)]),
        other(&|it| it.conditions = vec![Condition::Count(lot, 1)]),
        other(&|it| it.cluster = coppice_types::ClusterId([1; 16])),
        (fields(ledger, "bank", 4).sign(&key(0), data(7)), Some(0)),
        (swapped, Some(0)),
        (fields(ledger, "bank", 4).sign(&key(3), data(DATA)), None),
        (founds("grain", false), Some(0)),
        nobody,
        other(&|_| ()),
        other(&|_| ()),
    ]);
    orders::all(world);
}

/// Rounds that were written by the second implementation, with requests that break each rule in
/// turn.
#[test]
fn stored_requests_are_judged_and_applied_as_stored() {
    let stored = stored("appends.json");
    let bytes = |value: &Value| hex::decode(value.as_str().expect("a text")).expect("hex");
    let cluster = ClusterId::from_slice(&bytes(&stored["cluster"])).expect("an id");
    let mut records: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for case in stored["rounds"].as_array().expect("a list") {
        let ground = |key: &[u8]| records.get(key).cloned();
        let numbers: Vec<u64> = case["stamp"].as_array().expect("two").iter().filter_map(Value::as_u64).collect();
        let mut round = Round::new(&ground, Stamp::new(numbers[0], numbers[1]), 0);
        let mut puts = Vec::new();
        for request in case["requests"].as_array().expect("a list") {
            let item = |item: &Value| {
                let kind = item["kind"].as_u64().and_then(|kind| kind.try_into().ok()).expect("a small number");
                Envelope::decode(&bytes(&item["envelope"])).map(|envelope| Item { kind, envelope })
            };
            let items = request["items"].as_array().expect("a list").iter().map(item).collect::<Result<Vec<_>, _>>();
            let signature = bytes(&request["signature"]).try_into().expect("64 bytes");
            let checked =
                items.and_then(|items| Request { signed: bytes(&request["signed"]), signature, items }.check(cluster));
            let (refused, operations) = match checked {
                Err(_) => (json!("form"), Vec::new()),
                Ok(mut checked) => {
                    let key = request["key"].as_str().map(|_| bytes(&request["key"]));
                    assert!(key.is_none_or(|key| checked.verify(&key.try_into().expect("32 bytes"))));
                    assert!(checked.approving().is_empty(), "no order is among them");
                    match round.append(&checked) {
                        Ok(appended) => (Value::Null, appended.operations),
                        Err(why) => (json!(refusal(&why)), Vec::new()),
                    }
                }
            };
            assert_eq!(refused, request["refused"], "{}", request["note"]);
            seen.extend(refused.as_str().map(str::to_owned));
            let expected = request["append"]["operations"].as_array().map_or(json!([]), |all| json!(all));
            assert!(operations_json(&operations) == expected, "{}", request["note"]);
            puts.extend(operations);
        }
        let heads = round.close();
        let of_heads: Vec<Value> = heads.iter().map(head_json).collect();
        assert!(json!(of_heads) == case["heads"], "the heads of {}", case["stamp"]);
        puts.extend(heads.into_iter().flat_map(|head| head.operations));
        for operation in puts {
            let Change::Put(value) = operation.change else { panic!("no order is among them") };
            records.insert(operation.key.to_vec(), value);
        }
    }
    let words = ["change", "count", "epoch", "form", "lane", "member", "name", "role", "signature", "size"];
    assert!(words.iter().all(|word| seen.contains(*word)), "{seen:?}");
}

#[test]
fn vectors_of_ledgers() {
    let mut world = World::new();
    more_rounds(&mut world);
    let mut rounds = Vec::new();
    let mut records: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
    for (at, ((stamp, requests), answers)) in world.rounds.iter().zip(&world.answers).enumerate() {
        let asked = |((request, seed), answer): (&(Request, Option<u8>), &Option<_>)| {
            let items: Vec<Value> = request
                .items
                .iter()
                .map(|item| json!({ "kind": item.kind, "envelope": text(&item.envelope.encode()) }))
                .collect();
            let (refused, append) = match answer {
                None => (json!("form"), Value::Null),
                Some(Err(why)) => (json!(refusal(why)), Value::Null),
                Some(Ok(appended)) => {
                    let appended: &coppice_verify::ledgers::Appended = appended;
                    let append = json!({
                        "ledger": appended.ledger.to_string(), "first_jsn": appended.first_jsn,
                        "leaves_root": appended.leaves_root.to_string(), "operations": operations_json(&appended.operations),
                    });
                    (Value::Null, append)
                }
            };
            json!({
                "signed": text(&request.signed), "signature": text(&request.signature),
                "key": seed.map(|seed| text(&common::grain::public(seed))), "items": items,
                "refused": refused, "append": append,
            })
        };
        let ground = |key: &[u8]| records.get(key).cloned();
        // A round that applied nothing is no version, and the next one has its number.
        let applied = answers.iter().flatten().any(Result::is_ok);
        let now_ms = world.times[at];
        let mut round = Round::new(&ground, *stamp, now_ms);
        let before = world.cluster.versions.range(..*stamp).next_back().expect("genesis").0;
        for (request, seed) in requests {
            if let Ok(mut checked) = request.clone().check(world.cluster.cluster) {
                seed.map(|seed| checked.verify(&common::grain::public(seed)));
                checked.verify_approvals(common::grain::keys_of);
                drop(round.append(&world.cluster.with_facts(*before, &checked)));
            }
        }
        let heads = round.close();
        assert_eq!(heads.is_empty(), !applied);
        rounds.push(json!({
            "stamp": stamp_json(*stamp), "now_ms": now_ms,
            "requests": requests.iter().zip(answers).map(asked).collect::<Vec<_>>(),
            "heads": heads.iter().map(head_json).collect::<Vec<_>>(),
        }));
        let appended = answers.iter().flatten().flatten().flat_map(|appended| &appended.operations);
        for operation in appended.chain(heads.iter().flat_map(|head| &head.operations)) {
            match &operation.change {
                Change::Put(value) => drop(records.insert(operation.key.to_vec(), value.clone())),
                Change::Delete => drop(records.remove(&operation.key[..])),
            }
        }
    }
    let list = |size: u64| {
        let mut edge = Edge::default();
        (0..size).for_each(|at| edge.push(sha256(&at.to_le_bytes()), &mut Vec::new()));
        json!({ "leaves": size, "root": edge.root().to_string(), "head": text(&Head { edge, ..Head::default() }.encode()) })
    };
    compare(
        "ledgers.json",
        &json!({
            "about": "Ledgers of members (section 18): lists, requests with what follows from them, and proofs of journals and lineages. In `lists`, leaf i is the SHA-256 of i as u64; `head` has purged 0 and no authors. In `rounds`, `key` is the one under which the signature was verified, `now_ms` is the timestamp of the header, and an operation without a value deletes. The last rounds have orders.",
            "cluster": world.cluster.cluster.to_string(),
            "vkey": trusted(&world).to_string(),
            "lists": Vec::from([0, 1, 15, 16, 17, 255, 256, 257, 300, 4096, 4097].map(list)),
            "rounds": rounds,
            "cases": cases(),
        }),
    );
}

/// The version of the last sweep of the first purge.
fn first_purge(world: &World) -> Stamp {
    let swept = |stamp: &&Stamp| {
        let record = world.cluster.value(**stamp, &purge_key(world.spread)).map(Purge::decode);
        record.is_some_and(|purge| purge.expect("a purge").state == PurgeState::Swept)
    };
    *world.cluster.versions.keys().find(swept).expect("there is one")
}

fn cases() -> Vec<Value> {
    let world = World::new();
    let mut cases = Vec::new();
    for (ledger, kind) in [(world.compact, "compact"), (world.spread, "spread")] {
        let stamp = last(&world, ledger);
        let lot = clue(ledger, "lot-7");
        let shown = Shown { request: kind == "compact", envelope: true };
        for (name, file) in [
            (
                "the founding",
                world.cluster.prove_journals(world.rounds[usize::from(kind == "spread")].0, ledger, &[0], None, ALL),
            ),
            ("two journals and what was known", world.cluster.prove_journals(stamp, ledger, &[3, 9], Some(5), shown)),
            ("a lineage", world.cluster.prove_lineage(world.head(), ledger, lot, None, shown)),
            ("the newest of a lineage", world.cluster.prove_lineage(world.head(), ledger, lot, Some(2), NONE)),
            (
                "a lineage of nothing",
                world.cluster.prove_lineage(world.head(), ledger, clue(ledger, "never"), None, NONE),
            ),
        ] {
            let bytes = encode(&file);
            let verified = verify(&bytes, &trusted(&world), None).expect("it holds");
            let claim = claim(&verified);
            cases.push(
                json!({ "name": format!("{kind}: {name}"), "file": text(&bytes), "failed step": null, "claim": claim }),
            );
        }
    }
    let signed = signed_lies().into_iter().chain([unsigned()]).map(|(_, lie)| lie);
    let swept = with_orders();
    for (name, clue_text, newest) in [
        ("a lineage behind a purge", "lot-7", None),
        ("a lineage behind a purge, with a journal that was kept", "bill-1", None),
        ("the newest of a lineage behind a purge", "bill-1", Some(2)),
    ] {
        let stamp = first_purge(&swept);
        let file = swept.cluster.prove_lineage(stamp, swept.spread, clue(swept.spread, clue_text), newest, NONE);
        let bytes = encode(&file);
        let verified = verify(&bytes, &trusted(&swept), None).expect("it holds");
        cases.push(json!({ "name": name, "file": text(&bytes), "failed step": null, "claim": claim(&verified) }));
    }
    for (name, file, step) in lies(&world).into_iter().chain(signed) {
        cases.push(json!({ "name": name, "file": text(&encode(&file)), "failed step": step.name(), "claim": null }));
    }
    let hidden = "a checkpoint of a replaced key, whose change is hidden";
    let file = text(&encode(&stolen().1));
    cases.push(json!({ "name": hidden, "file": file, "failed step": "newest_header", "claim": null }));
    cases
}
