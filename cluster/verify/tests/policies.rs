//! Policies: which are accepted, and every way in which cosignatures can be too few, wrong, or of
//! another key or log.

mod common;

use common::Sample;
use coppice_types::Stamp;
use coppice_verify::{
    Step,
    check::{Cause, verify_under},
    checkpoint::Checkpoint,
    cosignature::{Cosigner, add_lines},
    merkle,
    note::{self, SignerKey},
    policy::{LOGS_MAX, NAMES_MAX, POLICY_BYTES_MAX, Policy},
    proof::Proof,
};

const ORIGIN: &str = "ledger.example/x";

fn log() -> SignerKey {
    SignerKey::from_seed(ORIGIN, &[1; 32]).expect("a name")
}

/// Witness number `seed`, from 2 on; number 1 is the log.
fn witness(seed: u16) -> Cosigner {
    Cosigner::from_seed(&format!("w{seed}.example"), &witness_seed(seed)).expect("a name")
}

fn witness_seed(seed: u16) -> [u8; 32] {
    let mut bytes = [9; 32];
    bytes[..2].copy_from_slice(&seed.to_le_bytes());
    bytes
}

fn checkpoint() -> Checkpoint {
    Checkpoint { origin: ORIGIN.to_owned(), size: 0, root: merkle::empty_root() }
}

/// The checkpoint with cosignatures of these witnesses.
fn note(witnesses: &[u16]) -> Vec<u8> {
    let note = checkpoint().sign(&log()).expect("its own log");
    let lines: Vec<String> = witnesses.iter().map(|seed| witness(*seed).cosign(&checkpoint().text(), 7)).collect();
    add_lines(note.as_bytes(), &lines).expect("lines")
}

/// A policy with the log, witnesses `w2` to `w9`, and these further lines.
fn policy_text(rest: &str) -> String {
    let mut text = format!("log {} http://127.0.0.1/\n", log().verifier());
    for seed in 2..10 {
        text.push_str(&format!("witness w{seed} {}\n", witness(seed).verifier()));
    }
    text + rest
}

fn policy(rest: &str) -> Policy {
    Policy::parse(policy_text(rest).as_bytes()).expect("a policy")
}

fn reached(policy: &Policy, witnesses: &[u16]) -> bool {
    policy.examine(&note(witnesses)).expect("signed by the log").quorum
}

#[test]
fn groups_count_their_members_however_nested() {
    let two_of_three = policy("group g 2 w2 w3 w4\nquorum g\n");
    for (witnesses, enough) in [
        (&[][..], false),
        (&[2], false),
        (&[2, 2, 2], false),
        (&[2, 5, 6, 7, 8, 9], false),
        (&[2, 4], true),
        (&[4, 3, 2], true),
    ] {
        assert_eq!(reached(&two_of_three, witnesses), enough, "{witnesses:?}");
    }
    // As in the draft: two witnesses of one party, and any of the other.
    let nested = policy("group x 2 w2 w3 w4\ngroup y any w5 w6\ngroup both all x y\nquorum both\n");
    for (witnesses, enough) in
        [(&[2, 3][..], false), (&[5, 6], false), (&[2, 5], false), (&[2, 3, 6], true), (&[2, 3, 4, 5, 6], true)]
    {
        assert_eq!(reached(&nested, witnesses), enough, "{witnesses:?}");
    }
    let single = policy("quorum w7\n");
    assert!(reached(&single, &[7]) && !reached(&single, &[2, 3, 4, 5, 6, 8, 9]));
    assert!(reached(&policy("quorum none\n"), &[]));
    let deep: String = (0..100)
        .map(|at| format!("group g{} all {}\n", at + 1, if at == 0 { "w2".to_owned() } else { format!("g{at}") }))
        .collect();
    let deep = policy(&(deep + "quorum g100\n"));
    assert!(reached(&deep, &[2]) && !reached(&deep, &[3]));
}

#[test]
fn a_wrong_line_of_a_known_witness_condemns_the_checkpoint() {
    let any = policy("group g any w2 w3\nquorum g\n");
    let other = Checkpoint { size: 1, ..checkpoint() };
    let wrong = witness(3).cosign(&other.text(), 7);
    let spoiled = add_lines(&note(&[2]), std::slice::from_ref(&wrong)).expect("a line");
    assert_eq!(any.examine(&spoiled), Err(note::Error::BadSignature));
    // A line of a witness that the policy does not know is skipped, even if it is wrong.
    let stranger = add_lines(&note(&[2]), &[witness(77).cosign(&other.text(), 7)]).expect("a line");
    assert!(any.examine(&stranger).expect("a checkpoint").quorum);
    // A cosignature of a right key on another checkpoint condemns the note.
    let (first, _) = wrong.rsplit_once(' ').expect("a line");
    assert!(first.ends_with("w3.example"));
    let moved = add_lines(&note(&[]), &[wrong]).expect("a line");
    assert_eq!(any.examine(&moved), Err(note::Error::BadSignature));
}

/// The line is sound, but does not say what the witness had seen. It does not count for the quorum.
#[test]
fn a_cosignature_without_a_time_does_not_count() {
    let any = policy("group g any w2 w3\nquorum g\n");
    let timeless = witness(2).cosign(&checkpoint().text(), 0);
    let examined = any.examine(&add_lines(&note(&[]), std::slice::from_ref(&timeless)).expect("a line"));
    let examined = examined.expect("a checkpoint");
    assert!(!examined.quorum && examined.cosignatures.is_empty());
    let both = any.examine(&add_lines(&note(&[2]), &[timeless]).expect("a line")).expect("a checkpoint");
    assert!(both.quorum && both.cosignatures[0].time == 7);
}

#[test]
fn another_logs_signature_does_not_count() {
    // The policy trusts two logs; neither may speak for the other.
    let second = SignerKey::from_seed("ledger.example/y", &[5; 32]).expect("a name");
    let both = policy(&format!("log {}\nquorum none\n", second.verifier()));
    assert!(both.examine(&note(&[])).is_ok());
    let foreign = second.sign_note(&checkpoint().text()).expect("a text");
    assert_eq!(both.examine(foreign.as_bytes()), Err(note::Error::Unsigned));
    let unknown = SignerKey::from_seed(ORIGIN, &[6; 32]).expect("a name");
    let forged = checkpoint().sign(&unknown).expect("its name");
    assert_eq!(both.examine(forged.as_bytes()), Err(note::Error::Unsigned));
    // Cosignatures do not replace the log's signature.
    let (text, lines) = (checkpoint().text(), witness(2).cosign(&checkpoint().text(), 7));
    let bare = format!("{text}\n{lines}\n");
    assert_eq!(policy("quorum w2\n").examine(bare.as_bytes()), Err(note::Error::Unsigned));
}

#[test]
fn what_is_not_a_policy_is_refused_at_its_line() {
    let vkey = witness(50).verifier().to_string();
    let weak = {
        let mut point = [0; 32];
        point[0] = 1;
        let id = coppice_verify::hash::key_id("weak", 4, &point);
        format!("weak+{}+BAE{}", hex::encode(id), "A".repeat(41))
    };
    for rest in [
        "",
        "quorum nobody\n",
        "quorum w2\nquorum w2\n",
        "quorum none\nquorum none\n",
        "quorum\n",
        "quorum w2 w3\n",
        "group g 0 w2\nquorum g\n",
        "group g 2 w2\nquorum g\n",
        "group g 01 w2\nquorum g\n",
        "group g +1 w2\nquorum g\n",
        "group g some w2\nquorum g\n",
        "group g any\nquorum g\n",
        "group g all\nquorum g\n",
        "group g any w2 w2\nquorum g\n",
        "group g any w2\ngroup h any w2\nquorum h\n",
        "group g any none\nquorum g\n",
        "group g any g\nquorum g\n",
        "group g any h\ngroup h any w2\nquorum g\n",
        "group w2 any w3\nquorum w2\n",
        "group none any w3\nquorum none\n",
        "group g any w2\ngroup g any w3\nquorum g\n",
        &format!("witness w2 {vkey}\nquorum none\n"),
        &format!("witness none {vkey}\nquorum none\n"),
        &format!("witness again {}\nquorum none\n", witness(2).verifier()),
        &format!("witness x {}\nquorum none\n", log().verifier()),
        &format!("witness x {}\nquorum none\n", Cosigner::from_seed("x", &[1; 32]).expect("a name").verifier()),
        &format!("log {}\nquorum none\n", SignerKey::from_seed("x", &witness_seed(2)).expect("a name").verifier()),
        &format!("witness x {vkey} a b\nquorum none\n"),
        &format!("witness x {}\nquorum none\n", vkey.replace('+', "-")),
        &format!("witness x {weak}\nquorum none\n"),
        &format!("log {vkey}\nquorum none\n"),
        &format!("log {}\nquorum none\n", log().verifier()),
        "quorum w2\r\n",
        "quorum\u{b}w2\n",
        "\0quorum w2\n",
        "policy v1\nquorum w2\n",
        "QUORUM w2\n",
        "quorum w2 # one of them\n",
    ] {
        let refused = Policy::parse(policy_text(rest).as_bytes()).expect_err(rest);
        assert!(refused.line == 0 || refused.line >= 10, "{rest}: {refused}");
    }
    for fine in ["\n\n \t\n  # a comment\nquorum\t w2 \n", "quorum w2", "# quorum w3\nquorum w2\n"] {
        assert!(reached(&policy(fine), &[2]), "{fine}");
    }
}

#[test]
fn policies_are_bounded() {
    let long = format!("#{}\nquorum none\n", "x".repeat(POLICY_BYTES_MAX));
    assert!(Policy::parse(long.as_bytes()).is_err());
    let witnesses = |count: usize| -> String {
        let line = |seed: usize| format!("witness w{seed} {}\n", witness(u16::try_from(seed).expect("few")).verifier());
        (0..count).map(line).collect::<String>() + "quorum none\n"
    };
    assert_eq!(
        Policy::parse(witnesses(NAMES_MAX).as_bytes()).expect("as many as may be").witnesses().count(),
        NAMES_MAX
    );
    assert!(Policy::parse(witnesses(NAMES_MAX + 1).as_bytes()).is_err());
    let logs = |count: usize| -> String {
        let log = |seed: usize| {
            let mut bytes = [3; 32];
            bytes[..2].copy_from_slice(&u16::try_from(seed).expect("few").to_le_bytes());
            format!("log {}\n", SignerKey::from_seed("log.example", &bytes).expect("a name").verifier())
        };
        (0..count).map(log).collect::<String>() + "quorum none\n"
    };
    assert!(Policy::parse(logs(LOGS_MAX).as_bytes()).is_ok());
    assert!(Policy::parse(logs(LOGS_MAX + 1).as_bytes()).is_err());
}

/// The proof file of a key in the sample ledger, cosigned by these witnesses.
fn proof(sample: &Sample, witnesses: &[u16]) -> Vec<u8> {
    let stamp = *sample.standing().last().expect("it has versions");
    let mut file = sample.ledger.prove_keys(stamp, &[b"key-25"], true);
    let Proof::Query(proof) = &mut file.proof else { panic!("a query was asked") };
    proof.log.checkpoint = cosigned(&proof.log.checkpoint, witnesses).into();
    file.encode().expect("it fits")
}

fn cosigned(note: &[u8], witnesses: &[u16]) -> Vec<u8> {
    let text = std::str::from_utf8(note).expect("a note").split_once("\n\n").expect("a note").0.to_owned() + "\n";
    let lines: Vec<String> = witnesses.iter().map(|seed| witness(*seed).cosign(&text, 7)).collect();
    add_lines(note, &lines).expect("lines")
}

#[test]
fn a_proof_needs_the_quorum_on_the_newest_checkpoint_shown() {
    let sample = Sample::standard();
    let text = policy_text("group g 2 w2 w3 w4\nquorum g\n");
    let (_, rest) = text.split_once('\n').expect("a log line");
    let mut policy = Policy::parse(rest.as_bytes()).expect("a policy may have no logs");
    assert!(policy.believe_only(sample.ledger.key.verifier()));
    assert!(!policy.believe_only(log().verifier()), "it has its log");
    let step = |file: &[u8], newer: Option<&[u8]>| verify_under(file, &policy, newer).map(drop).map_err(|it| it.step);
    assert_eq!(step(&proof(&sample, &[2, 4]), None), Ok(()));
    assert_eq!(step(&proof(&sample, &[2]), None), Err(Step::Cosignatures));
    assert_eq!(step(&proof(&sample, &[]), None), Err(Step::Cosignatures));
    // A newer cosigned checkpoint vouches for the older one that it extends. The reverse does not
    // hold.
    let size = sample.ledger.headers.len() as u64;
    let mut standing = sample.ledger.standing(size, size);
    let Proof::Standing(inner) = &mut standing.proof else { panic!("a standing proof") };
    let bare = inner.log.checkpoint.to_vec();
    inner.log.checkpoint = cosigned(&bare, &[3, 4]).into();
    let newer = standing.encode().expect("it fits");
    assert_eq!(step(&proof(&sample, &[]), Some(&newer)), Ok(()));
    assert_eq!(step(&proof(&sample, &[2, 3, 4]), Some(&bare)), Err(Step::Cosignatures));
    // Without its log, the policy trusts nothing.
    let stranger = Policy::parse(rest.as_bytes()).expect("a policy");
    let failure = verify_under(&proof(&sample, &[2, 4]), &stranger, None).expect_err("no log");
    assert_eq!((failure.step, failure.cause), (Step::Checkpoint, Cause::Note(note::Error::Unsigned)));
    // A file that proves nothing is refused, however many witnesses have cosigned it.
    let lie = {
        let mut file = sample.ledger.prove_keys(Stamp::default(), &[b"key-25"], true);
        let Proof::Query(inner) = &mut file.proof else { panic!("a query was asked") };
        inner.log.checkpoint = cosigned(&inner.log.checkpoint, &[2, 3, 4]).into();
        inner.state_hashes.clear();
        file.encode().expect("it fits")
    };
    assert_eq!(step(&lie, None), Err(Step::State));
}
