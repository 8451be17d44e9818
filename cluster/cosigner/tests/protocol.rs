//! C2SP `tlog-witness`: each status and its reason, equal lines, and the race of the specification.

mod common;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use common::{ask, clock, cosigned, cosigner, grow, key, ledger_signer, log, means, note, request, signed_by_line};
use coppice_cosigner::{
    convict::Judged,
    record::{Record, Slots},
    witness::{Answer, Means, Outcome, Witness},
};
use coppice_env::{Rng, SimRng, SimStorage};
use coppice_types::Digest;
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{self, WitnessKey, add_lines},
    evidence::{self, Ground},
    header::{Body, Header},
    keys::KeyChange,
    merkle,
    note::SignerKey,
};

fn told(witness: &mut Witness, body: &[u8]) -> Answer {
    match witness.add_checkpoint(body).expect("the disk is well") {
        Outcome::Done(answer) => answer,
        Outcome::Behind(_) => panic!("the mirror is ahead"),
    }
}

#[test]
fn each_status_has_its_reason() {
    let (disk, clock, good) = (SimStorage::new(), clock(), log(1, 20));
    let mut witness = cosigner(&disk, &clock, &good, 20);
    let origin = good.key.name();
    // 404 comes before the signature, 403 before the sizes, 400 before 409, 409 before 422.
    let elsewhere = SignerKey::from_seed("elsewhere/09", &[1; 32]).expect("a name");
    let foreign = Checkpoint { origin: "elsewhere/09".to_owned(), ..good.checkpoint(9) };
    let body = cosignature::request(30, &[], foreign.sign(&elsewhere).expect("its name").as_bytes());
    assert_eq!(told(&mut witness, &body), Answer::Unknown);
    let stranger = good.checkpoint(9).sign(&ledger_signer(7)).expect("its name");
    assert_eq!(told(&mut witness, &cosignature::request(30, &[], stranger.as_bytes())), Answer::Untrusted);
    // A line of the known key that does not verify, beside one that does.
    let signed = String::from_utf8(note(&good, 9)).expect("text");
    let other = String::from_utf8(note(&good, 8)).expect("text");
    let bad_line = other.lines().last().expect("a line");
    let mixed = cosignature::request(0, &[], format!("{signed}{bad_line}\n").as_bytes());
    assert_eq!(told(&mut witness, &mixed), Answer::Untrusted);
    assert!(matches!(told(&mut witness, &cosignature::request(10, &[], &note(&good, 9))), Answer::Malformed(_)));
    assert_eq!(told(&mut witness, &request(&good, 4, 9)), Answer::Conflict(0));
    let proof = [Digest([1; 32])];
    let unasked = cosignature::request(0, &proof, &note(&good, 9));
    assert!(matches!(told(&mut witness, &unasked), Answer::Inconsistent(_)));
    let Answer::Line(line) = told(&mut witness, &request(&good, 0, 9)) else { panic!("a line") };
    assert_eq!(signed_by_line(&good, 9, &line), Some(good.checkpoint(9)));
    assert_eq!(told(&mut witness, &request(&good, 0, 12)), Answer::Conflict(9));
    assert_eq!(told(&mut witness, &request(&good, 8, 12)), Answer::Conflict(9));
    assert!(matches!(told(&mut witness, &cosignature::request(9, &proof, &note(&good, 12))), Answer::Inconsistent(_)));
    assert!(matches!(told(&mut witness, &request(&good, 9, 12)), Answer::Line(_)));
    // An empty log has one root.
    let empty = |root: Digest, seed| {
        let text = format!("{origin}\n0\n{}\n", base64(&root));
        let note = ledger_signer(seed).sign_note(&text).expect("a text");
        cosignature::request(0, &[], note.as_bytes())
    };
    assert!(matches!(told(&mut witness, &empty(Digest([1; 32]), 1)), Answer::Inconsistent(_)));
    assert_eq!(told(&mut witness, &empty(Digest([1; 32]), 7)), Answer::Untrusted);
    assert_eq!(told(&mut witness, &empty(merkle::empty_root(), 1)), Answer::Conflict(12));
    assert!(!witness.is_halted());
}

/// The base64 text of a hash, by the one public writer of it.
fn base64(hash: &Digest) -> String {
    let checkpoint = Checkpoint { origin: "o".to_owned(), size: 1, root: *hash };
    checkpoint.text().lines().nth(2).expect("three lines").to_owned()
}

#[test]
fn malformed_bodies_are_called_so_and_change_nothing() {
    let (disk, clock, good) = (SimStorage::new(), clock(), log(1, 20));
    let mut witness = cosigner(&disk, &clock, &good, 20);
    let body = String::from_utf8(request(&good, 0, 9)).expect("text");
    let (head, note) = body.split_once("\n\n").expect("a head");
    let (text, lines) = note.split_once("\n\n").expect("a note");
    let hash = base64(&Digest([1; 32]));
    let heads = [
        "",
        "old",
        "old ",
        "old  0",
        "old 0 ",
        " old 0",
        "old 00",
        "old 01",
        "old +0",
        "old -1",
        "old 0x0",
        "old 1e3",
        "old 9223372036854775808",
        "old 99999999999999999999",
        "OLD 0",
        "old\t0",
        "old 0\r",
        "size 0",
        "old 0\nAAAA",
        "old 0\n====",
    ];
    let bodies = heads.iter().map(|head| format!("{head}\n\n{note}"));
    let more = [
        String::new(),
        "\n\n\n".to_owned(),
        head.to_owned(),
        format!("{head}\n{note}"),
        format!("{head}\n\n{text}\n"),
        format!("{head}\n\n{text}\n{lines}"),
        format!("{head}\n\n{text}\nextension\n\n{lines}"),
        format!("{head}\n\n{}", note.replace("\n9\n", "\n09\n")),
        format!("{head}\n\n{}", note.trim_end()),
        format!("{head}\n{}\n\n{note}", hash.trim_end_matches('=')),
        format!("{head}\n{}\n\n{note}", format!("{hash}\n").repeat(64).trim_end()),
        format!("{head}\n\n{note}{}", "x".repeat(64 << 10)),
        format!("{head}\n\n{}", note.replace('\u{2014}', "-")),
    ];
    let bodies: Vec<String> = bodies.chain(more).collect();
    assert!(bodies.len() >= 30);
    let before = disk.io_count();
    for body in bodies {
        let answer = told(&mut witness, body.as_bytes());
        assert!(matches!(answer, Answer::Malformed(_)), "{answer:?}: {body:?}");
    }
    assert_eq!((disk.io_count(), witness.cosigned_size()), (before, 0));
    assert!(matches!(told(&mut witness, body.as_bytes()), Answer::Line(_)), "the sound body");
}

#[test]
fn a_repeated_request_gets_the_stored_line_until_a_minute_is_over() {
    let (disk, clock, good) = (SimStorage::new(), clock(), log(1, 20));
    let mut witness = cosigner(&disk, &clock, &good, 20);
    let first = ask(&mut witness, &good, 0, 9).expect("the disk is well");
    let before = disk.io_count();
    clock.advance(std::time::Duration::from_secs(59));
    assert_eq!(ask(&mut witness, &good, 9, 9).expect("the disk is well"), first);
    assert_eq!(disk.io_count(), before);
    drop(witness);
    let mut witness = Witness::open(common::means(&disk.process_loss(), &clock, 0)).expect("a sound state");
    assert!(witness.asked(0).expect("the disk is well"));
    assert_eq!(ask(&mut witness, &good, 9, 9).expect("the disk is well"), first, "after a restart, too");
    clock.advance(std::time::Duration::from_secs(1));
    let Answer::Line(line) = ask(&mut witness, &good, 9, 9).expect("the disk is well") else { panic!("a line") };
    assert_ne!(Answer::Line(line.clone()), first);
    assert!(signed_by_line(&good, 9, &line).is_some());
    // The wall clock goes back: the time in lines does not.
    drop(witness);
    let past = coppice_env::SimClock::new(1_700_000_000_000);
    let mut witness = Witness::open(common::means(&disk.process_loss(), &past, 0)).expect("a sound state");
    assert!(witness.asked(0).expect("the disk is well"));
    let time =
        |witness: &Witness| WitnessKey::from(key()).cosigned(&witness.cosigned().expect("it signed")).expect("sound");
    let newest = time(&witness);
    assert!(matches!(ask(&mut witness, &good, 9, 12), Ok(Answer::Line(_))));
    assert!(time(&witness) >= newest);
}

#[test]
fn another_root_of_the_same_size_is_evidence_and_halts() {
    let (disk, clock) = (SimStorage::new(), clock());
    let (good, evil) = (log(1, 20), log(2, 20));
    let mut witness = cosigner(&disk, &clock, &good, 20);
    assert!(matches!(ask(&mut witness, &good, 0, 12), Ok(Answer::Line(_))));
    assert!(matches!(told(&mut witness, &cosignature::request(12, &[], &note(&evil, 12))), Answer::Inconsistent(_)));
    assert!(witness.is_halted());
    assert!(matches!(ask(&mut witness, &good, 12, 14), Ok(Answer::NotNow(_))), "no signature any more");
    let names = witness.evidence().expect("the disk is well");
    let file = witness.evidence_file(&names[0]).expect("the disk is well").expect("it is listed");
    let verdict = evidence::verify(&file, &common::ledger_key(), None).expect("it proves the fork");
    assert!(matches!(verdict.ground, Ground::Contradiction { .. }) && verdict.is_one_key());
    // A restart changes nothing; a person does.
    drop(witness);
    let mut witness = Witness::open(common::means(&disk.process_loss(), &clock, 0)).expect("a sound state");
    assert!(witness.asked(0).expect("the disk is well") && witness.is_halted());
    assert!(matches!(ask(&mut witness, &good, 12, 14), Ok(Answer::NotNow(_))));
    assert!(witness.resume(b"another file").is_err());
    witness.resume(&file).expect("it is the file");
    assert!(matches!(ask(&mut witness, &good, 12, 14), Ok(Answer::Line(_))));
    // The same fork does not halt again, however it is dressed; another one does.
    let dressed = add_lines(&note(&evil, 12), &[common::signer().cosign("x\n", 1)]).expect("a line");
    for same in [note(&evil, 12), dressed] {
        assert!(matches!(witness.show(&same), Ok(Judged::Evidence(_))));
    }
    assert!(!witness.is_halted());
    assert!(matches!(witness.show(&note(&evil, 13)), Ok(Judged::Evidence(_))));
    assert!(witness.is_halted());
}

#[test]
fn a_fork_that_is_shown_early_is_found_when_the_log_has_grown() {
    let (disk, clock) = (SimStorage::new(), clock());
    let (good, evil) = (log(1, 30), log(2, 30));
    let mut witness = cosigner(&disk, &clock, &good, 4);
    witness.put_off(&note(&evil, 20)).expect("the disk is well");
    drop(witness);
    let mut witness = Witness::open(common::means(&disk.process_loss(), &clock, 0)).expect("a sound state");
    grow(&mut witness, &good, 19).expect("an honest log");
    assert!(!witness.is_halted(), "nothing contradicts yet");
    grow(&mut witness, &good, 25).expect("an honest log");
    assert!(witness.is_halted());
}

#[test]
fn a_proof_of_a_fork_is_refused_and_never_signed() {
    let (disk, clock) = (SimStorage::new(), clock());
    let (good, evil) = (log(1, 30), log(2, 30));
    let mut witness = cosigner(&disk, &clock, &good, 10);
    assert!(matches!(ask(&mut witness, &good, 0, 10), Ok(Answer::Line(_))));
    assert!(matches!(told(&mut witness, &request(&evil, 10, 20)), Answer::Inconsistent(_)));
    assert_eq!(witness.cosigned_size(), 10);
    grow(&mut witness, &good, 20).expect("an honest log");
    assert!(witness.is_halted(), "the refused checkpoint was kept until the log told");
}

/// Requests by their old and new size.
type Bodies = BTreeMap<(u64, u64), Vec<u8>>;

#[test]
fn sixteen_writers_never_get_two_lines_from_one_size() {
    const WRITERS: u64 = 16;
    const ROUNDS: u64 = 1000;
    let (disk, clock) = (SimStorage::new(), clock());
    let good = Arc::new(log(1, 400));
    let witness = Arc::new(Mutex::new(cosigner(&disk, &clock, &good, 400)));
    let bodies: Arc<Mutex<Bodies>> = Arc::default();
    let writers = (0..WRITERS).map(|writer| {
        let (witness, good, bodies) = (witness.clone(), good.clone(), bodies.clone());
        std::thread::spawn(move || {
            let (mut rng, mut old, mut given) = (SimRng::new(writer), 0, Vec::new());
            for _ in 0..ROUNDS {
                let size = (old + rng.below(3)).clamp(1, 400);
                let body = {
                    let mut bodies = bodies.lock().expect("no holder panics");
                    bodies.entry((old, size)).or_insert_with(|| request(&good, old, size)).clone()
                };
                let answer = told(&mut witness.lock().expect("no holder panics"), &body);
                match answer {
                    Answer::Line(line) => {
                        given.push((old, size, line));
                        old = size;
                    }
                    Answer::Conflict(size) => old = size,
                    other => panic!("{other:?}"),
                }
            }
            given
        })
    });
    let writers: Vec<_> = writers.collect();
    let given: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect();
    let mut steps: Vec<(u64, u64)> =
        given.iter().filter(|(old, size, _)| old < size).map(|(old, size, _)| (*old, *size)).collect();
    steps.sort_unstable();
    assert!(steps.len() > 100, "the log was cosigned in many steps");
    assert_eq!(steps[0].0, 0);
    assert!(steps.windows(2).all(|pair| pair[0].1 == pair[1].0), "each step goes on from the one before");
    for (_, size, line) in given.iter().step_by(97) {
        assert!(signed_by_line(&good, *size, line).is_some());
    }
}

#[test]
fn a_line_of_this_key_that_was_not_given_here_is_a_twins() {
    let (disk, clock, good) = (SimStorage::new(), clock(), log(1, 30));
    let mut witness = cosigner(&disk, &clock, &good, 20);
    assert!(matches!(ask(&mut witness, &good, 0, 10), Ok(Answer::Line(_))));
    let known = witness.cosigned().expect("it signed");
    assert_eq!(witness.own(&known).expect("the disk is well"), coppice_cosigner::witness::Own::Known);
    assert_eq!(witness.own(&note(&good, 20)).expect("well"), coppice_cosigner::witness::Own::Known, "no line");
    assert!(!witness.is_halted());
    let twin = cosigned(&good, 15, 1_800_000_000);
    assert_eq!(witness.own(&twin).expect("the disk is well"), coppice_cosigner::witness::Own::Halted);
    assert!(witness.is_halted());
    let names = witness.evidence().expect("the disk is well");
    assert!(names[0].ends_with(".twin"));
    assert!(matches!(ask(&mut witness, &good, 10, 12), Ok(Answer::NotNow(_))));
    // A person stops the twin. After a restart, the cosigner goes on from the twin's line.
    witness.resume(&twin).expect("it is the file");
    drop(witness);
    let mut witness = Witness::open(common::means(&disk.process_loss(), &clock, 0)).expect("a sound state");
    common::adopt(&mut witness, &good, &twin).expect("it is of the log");
    assert!(witness.asked(0).expect("the disk is well"));
    assert_eq!(ask(&mut witness, &good, 10, 12).expect("the disk is well"), Answer::Conflict(15));
}

#[test]
fn nothing_is_cosigned_that_the_mirror_does_not_hold() {
    let (disk, clock, good) = (SimStorage::new(), clock(), log(1, 30));
    let mut witness = cosigner(&disk, &clock, &good, 10);
    assert!(matches!(ask(&mut witness, &good, 0, 10), Ok(Answer::Line(_))));
    let body = request(&good, 10, 20);
    assert_eq!(witness.add_checkpoint(&body).expect("well"), Outcome::Behind(note(&good, 20)));
    assert_eq!(witness.cosigned_size(), 10);
    grow(&mut witness, &good, 20).expect("an honest log");
    assert!(matches!(told(&mut witness, &body), Answer::Line(_)));
}

#[test]
fn a_key_change_needs_the_signatures_of_both_keys() {
    for broken in 0..3 {
        let (disk, clock, mut forged) = (SimStorage::new(), clock(), log(1, 10));
        let mut witness = cosigner(&disk, &clock, &forged, 10);
        let mut change = KeyChange::sign(1, &forged.cluster, &ledger_signer(1), &ledger_signer(2));
        match broken {
            0 => change.by_old[0] ^= 1,
            1 => change.by_new[0] ^= 1,
            _ => {}
        }
        let state_root = forged.newest().state_root;
        let header = forged.next_header(forged.head(), state_root, &[], Body::Key(change));
        let entry = header.encode();
        forged.append(header);
        let mut extension = witness.mirror().extension(10).expect("the mirror is sound");
        extension.push(&[&entry]).expect("the disk is well");
        forged.append_unknown(9, Vec::new());
        extension.push(&[&forged.newest().encode()]).expect("the disk is well");
        let by_new = forged.checkpoint(12).sign(&ledger_signer(2)).expect("its name").into_bytes();
        let advanced = witness.advance(&by_new, &extension.grown(10));
        assert_eq!(advanced.is_ok(), broken == 2, "{advanced:?}");
        let answer = witness.add_checkpoint(&cosignature::request(0, &[], &by_new)).expect("well");
        assert_eq!(matches!(answer, Outcome::Done(Answer::Line(_))), broken == 2, "{answer:?}");
    }
}

#[test]
fn a_key_change_in_a_log_of_other_people_is_just_an_entry() {
    let foreign = SignerKey::from_seed("tessera.example/log", &[3; 32]).expect("a name");
    let disk = SimStorage::new();
    Slots::create(&disk, &Record::new(foreign.name(), key().public_key())).expect("a new disk");
    let mut witness =
        Witness::open(Means { ledger: foreign.verifier().clone(), ..means(&disk, &clock(), 0) }).expect("a new state");
    assert!(witness.asked(0).expect("the disk is well"));
    // Anybody may add entries to such a log, even one that changes the key of some ledger.
    let mut ledger = log(1, 3);
    ledger.rotate(&[2; 32]);
    let entries: Vec<Vec<u8>> = ledger.headers.iter().map(Header::encode).collect();
    let mut extension = witness.mirror().extension(0).expect("an empty mirror");
    extension.push(&entries.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("the disk is well");
    assert_eq!(extension.changes().len(), 1);
    let signed = Checkpoint { origin: foreign.name().to_owned(), ..ledger.checkpoint(4) }.sign(&foreign);
    let signed = signed.expect("its own origin");
    witness.advance(signed.as_bytes(), &extension.grown(0)).expect("the entries lead to the root");
    let answer = told(&mut witness, &cosignature::request(0, &[], signed.as_bytes()));
    assert!(matches!(answer, Answer::Line(_)), "{answer:?}");
    // The state is sound after a restart.
    drop(witness);
    let ledger = foreign.verifier().clone();
    let witness = Witness::open(Means { ledger, ..means(&disk, &clock(), 0) }).expect("the state is sound");
    assert_eq!(witness.size(), 4);
}
