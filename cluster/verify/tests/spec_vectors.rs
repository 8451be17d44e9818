//! Vectors of the specifications that the verifier builds on: notes, keys, checkpoints,
//! cosignatures, policies, tile paths, Merkle proofs and Ed25519. They are in
//! `tests/spec-vectors.json`.

use coppice_types::Digest;
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{self, Cosigner, CosignerKey, WitnessKey},
    hash, merkle,
    note::{self, Error, SignerKey, VerifierKey},
    policy::Policy,
    tile::{Content, TileName},
};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("spec-vectors.json")).expect("the vectors are JSON")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is a text"))
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} is a number"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} is a list"))
}

fn bytes(value: &Value, field: &str) -> Vec<u8> {
    hex::decode(text(value, field)).expect("hex")
}

fn digest(hex_text: &Value) -> Digest {
    let bytes = hex::decode(hex_text.as_str().expect("a text")).expect("hex");
    Digest::from_slice(&bytes).expect("32 bytes")
}

fn digests(value: &Value, field: &str) -> Vec<Digest> {
    list(value, field).iter().map(digest).collect()
}

fn log_key(vectors: &Value) -> VerifierKey {
    VerifierKey::parse(text(&vectors["keys"]["log"], "vkey_01")).expect("a vkey")
}

fn verdict(note: &[u8], key: &VerifierKey) -> &'static str {
    match note::open(note, key) {
        Ok(_) => "ok",
        Err(Error::Unsigned) => "unverified",
        Err(Error::BadSignature) => "invalid_signature",
        Err(_) => "malformed",
    }
}

#[test]
fn keys_and_signatures_are_those_of_the_specification() {
    let vectors = vectors();
    for key in vectors["keys"].as_object().expect("an object").values() {
        let seed: [u8; 32] = bytes(key, "seed_hex").try_into().expect("32 bytes");
        let signer = SignerKey::from_seed(text(key, "name"), &seed).expect("a name");
        assert_eq!(*signer.to_private_text(), text(key, "skey"));
        assert_eq!(signer.verifier().to_string(), text(key, "vkey_01"));
        assert_eq!(signer.verifier().public_key().to_vec(), bytes(key, "public_hex"));
        assert!(SignerKey::parse(text(key, "skey")).is_ok());
        assert!(VerifierKey::parse(text(key, "vkey_04")).is_err(), "cosigner keys sign other messages");
    }
    let signer = SignerKey::parse(text(&vectors["keys"]["log"], "skey")).expect("a key");
    let notes = &vectors["notes"];
    assert_eq!(signer.sign_note(text(notes, "text")).expect("a text"), text(notes, "signed_note"));
}

#[test]
fn vkeys_are_taken_or_refused_as_specified() {
    let vectors = vectors();
    for case in vectors["vkeys"].as_array().expect("a list") {
        let taken = VerifierKey::parse(text(case, "vkey")).is_ok();
        // A text that only Go accepts is not canonical, and refused here.
        assert_eq!(taken, text(case, "expect") == "ok", "{case}");
    }
}

#[test]
fn notes_are_taken_or_refused_as_specified() {
    let vectors = vectors();
    let key = log_key(&vectors);
    let notes = &vectors["notes"];
    for case in list(notes, "cases") {
        let verdict = verdict(text(case, "note").as_bytes(), &key);
        match text(case, "expect") {
            "ok_in_go" => assert_ne!(verdict, "ok", "{case}: a reader may refuse, and this one does"),
            expected => assert_eq!(verdict, expected, "{case}"),
        }
    }
    for case in list(notes, "limits") {
        let times = usize::try_from(number(case, "times")).expect("a count");
        let note = format!("{}{}{}", text(case, "before"), text(case, "repeat").repeat(times), text(case, "after"));
        let taken = verdict(note.as_bytes(), &key) == "ok";
        assert_eq!(taken, text(case, "expect") == "ok", "{}", text(case, "name"));
    }
    for case in list(notes, "cases_bytes") {
        assert_eq!(verdict(&bytes(case, "note_hex"), &key), text(case, "expect"));
    }
}

#[test]
fn checkpoints_are_taken_or_refused_as_specified() {
    let vectors = vectors();
    let key = log_key(&vectors);
    let signer = SignerKey::parse(text(&vectors["keys"]["log"], "skey")).expect("a key");
    let checkpoints = &vectors["checkpoints"];
    for (name, size) in [("size_0", 0), ("size_7", 7), ("size_8", 8), ("size_600", 600)] {
        let signed = text(&checkpoints[name], "signed");
        let checkpoint = Checkpoint::open(signed.as_bytes(), &key).expect("a checkpoint");
        assert_eq!((checkpoint.size, checkpoint.text().as_str()), (size, text(&checkpoints[name], "body")));
        assert_eq!(checkpoint.sign(&signer).as_deref(), Ok(signed));
    }
    let extended = &checkpoints["size_8_with_extension"];
    assert!(note::open(text(extended, "signed").as_bytes(), &key).is_ok());
    assert!(Checkpoint::open(text(extended, "signed").as_bytes(), &key).is_err(), "the ledger signs no extensions");
    for body in list(checkpoints, "malformed_bodies") {
        assert!(Checkpoint::parse(body.as_str().expect("a text")).is_err(), "{body}");
    }
    let cosigned = vectors["cosigned_checkpoint"].as_str().expect("a text");
    assert_eq!(Checkpoint::open(cosigned.as_bytes(), &key).expect("cosignatures are skipped").size, 8);
}

#[test]
fn cosignatures_and_policies_are_those_of_the_specification() {
    let vectors = vectors();
    let checkpoints = &vectors["checkpoints"];
    for case in vectors["cosignatures"].as_array().expect("a list") {
        let key = &vectors["keys"][text(case, "key")];
        let seed: [u8; 32] = bytes(key, "seed_hex").try_into().expect("32 bytes");
        let member = Cosigner::from_seed(text(key, "name"), &seed).expect("a name");
        assert_eq!(member.verifier().to_string(), text(key, "vkey_04"));
        assert_eq!(CosignerKey::parse(text(key, "vkey_04")).as_ref(), Ok(member.verifier()));
        assert!(CosignerKey::parse(text(key, "vkey_01")).is_err());
        let (checkpoint, time) = (&checkpoints[text(case, "checkpoint")], number(case, "timestamp"));
        let line = member.cosign(text(checkpoint, "body"), time);
        assert_eq!(format!("{line}\n"), text(case, "line"));
        let note = cosignature::add_lines(text(checkpoint, "signed").as_bytes(), &[line]).expect("a line");
        assert_eq!(WitnessKey::from(member.verifier().clone()).cosigned(&note), Ok(Some(time)));
    }
    let policy = Policy::parse(vectors["policy"].as_str().expect("a text").as_bytes()).expect("a policy");
    let cosigned = policy.examine(vectors["cosigned_checkpoint"].as_str().expect("a text").as_bytes());
    let cosigned = cosigned.expect("a checkpoint of the log");
    assert!(cosigned.quorum);
    let times: Vec<_> = cosigned.cosignatures.iter().map(|it| (it.witness.as_slice(), it.time)).collect();
    assert_eq!(times, [(&b"a"[..], 1_700_000_000), (&b"b"[..], 1_700_000_001)]);
    let bare = policy.examine(text(&checkpoints["size_8"], "signed").as_bytes()).expect("a checkpoint of the log");
    assert!(!bare.quorum && bare.cosignatures.is_empty());
    let (seven, eight) = (text(&checkpoints["size_7"], "signed"), text(&checkpoints["size_8"], "signed"));
    let small = &vectors["merkle_small"]["consistency"];
    let join = |case: &&Value| (number(case, "old"), number(case, "new")) == (7, 8);
    let proof = digests(small.as_array().expect("a list").iter().find(join).expect("it is there"), "proof_hex");
    let requests = &vectors["witness"];
    assert_eq!(cosignature::request(0, &[], seven.as_bytes()), text(requests, "first").as_bytes());
    assert_eq!(cosignature::request(7, &proof, eight.as_bytes()), text(requests, "second").as_bytes());
    let mldsa = format!("witness m {}\nquorum m\n", text(&vectors["mldsa"], "vkey_06"));
    let log = format!("log {}\n", text(&vectors["keys"]["log"], "vkey_01"));
    let policy = Policy::parse((log + &mldsa).as_bytes()).expect("a policy");
    let examine = |note: &[u8]| policy.examine(note).map(|it| (it.quorum, it.cosignatures.len()));
    let line = text(&vectors["mldsa"], "line").trim_end().to_owned();
    let with =
        |name: &str| cosignature::add_lines(text(&checkpoints[name], "signed").as_bytes(), std::slice::from_ref(&line));
    assert_eq!(examine(&with("size_8").expect("a line")), Ok((true, 1)));
    assert_eq!(examine(text(&checkpoints["size_8"], "signed").as_bytes()), Ok((false, 0)));
    assert_eq!(examine(&with("size_7").expect("a line")), Err(Error::BadSignature), "of another checkpoint");
    let checkpoint = Checkpoint::parse(text(&checkpoints["size_8"], "body")).expect("a checkpoint");
    let time = number(&vectors["mldsa"], "timestamp");
    let message = cosignature::mldsa44_message(text(&vectors["mldsa"], "name"), time, &checkpoint);
    assert_eq!(message, Some(bytes(&vectors["mldsa"], "message_hex")));
}

#[test]
fn merkle_proofs_of_small_logs_are_those_of_the_specification() {
    let vectors = vectors();
    let small = &vectors["merkle_small"];
    let leaves: Vec<Digest> = list(small, "leaves")
        .iter()
        .map(|leaf| {
            let hash = hash::log_entry_hash(&bytes(leaf, "data_hex"));
            assert_eq!(hash, digest(&leaf["leaf_hash_hex"]));
            hash
        })
        .collect();
    let roots = digests(small, "roots_hex");
    for (size, root) in roots.iter().enumerate() {
        assert_eq!(merkle::mth(&leaves[..size]), *root);
    }
    for case in list(small, "inclusion") {
        let (size, index, proof) = (number(case, "size"), number(case, "index"), digests(case, "proof_hex"));
        let (leaf, root) = (&leaves[index as usize], &roots[size as usize]);
        assert_eq!(merkle::inclusion_path(&leaves[..size as usize], index), proof);
        assert_eq!(merkle::verify_inclusion(index, size, leaf, &proof, root), Ok(()));
    }
    for case in list(small, "consistency") {
        let (old, new, proof) = (number(case, "old"), number(case, "new"), digests(case, "proof_hex"));
        let (old_root, new_root) = (&roots[old as usize], &roots[new as usize]);
        assert_eq!(merkle::consistency_path(&leaves[..new as usize], old), proof);
        assert_eq!(merkle::verify_consistency(old, new, old_root, new_root, &proof), Ok(()));
    }
}

#[test]
fn merkle_proofs_of_large_logs_are_those_of_the_specification() {
    let vectors = vectors();
    let large = &vectors["merkle_entries"];
    let leaves: Vec<Digest> =
        (0..70_000).map(|index| hash::log_entry_hash(format!("entry {index}").as_bytes())).collect();
    let root = |size: u64| merkle::mth(&leaves[..size as usize]);
    for case in list(large, "roots") {
        assert_eq!(root(number(case, "size")), digest(&case["root_hex"]));
    }
    for case in list(large, "inclusion") {
        let (size, index, proof) = (number(case, "size"), number(case, "index"), digests(case, "proof_hex"));
        assert_eq!(merkle::inclusion_path(&leaves[..size as usize], index), proof);
        assert_eq!(merkle::verify_inclusion(index, size, &leaves[index as usize], &proof, &root(size)), Ok(()));
    }
    for case in list(large, "consistency") {
        let (old, new, proof) = (number(case, "old"), number(case, "new"), digests(case, "proof_hex"));
        assert_eq!(merkle::consistency_path(&leaves[..new as usize], old), proof);
        assert_eq!(merkle::verify_consistency(old, new, &root(old), &root(new), &proof), Ok(()));
    }
}

#[test]
fn tile_paths_are_read_or_refused_as_specified() {
    let vectors = vectors();
    for case in list(&vectors["tile_paths"], "valid") {
        let level = case["level"].as_u64();
        let name = TileName {
            content: level
                .map_or(Content::Entries, |level| Content::Hashes { level: level.try_into().expect("small") }),
            number: number(case, "index"),
            width: number(case, "width").try_into().expect("at most 256"),
        };
        assert_eq!(name.to_string(), text(case, "path"));
        assert_eq!(TileName::parse(text(case, "path")), Some(name));
    }
    for path in list(&vectors["tile_paths"], "invalid") {
        assert_eq!(TileName::parse(path.as_str().expect("a text")), None, "{path}");
    }
}

#[test]
fn ed25519_is_strict() {
    let vectors = vectors();
    for case in vectors["ed25519_edge"].as_array().expect("a list") {
        let public: [u8; 32] = bytes(case, "public_hex").try_into().expect("32 bytes");
        let taken = VerifierKey::new("x", &public)
            .is_ok_and(|key| key.verifies(&bytes(case, "message_hex"), &bytes(case, "signature_hex")));
        assert_eq!(taken, case["verify_strict"].as_bool().expect("a flag"), "{}", text(case, "name"));
    }
}
