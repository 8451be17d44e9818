//! One function for each decoder, to be fed with arbitrary bytes. A decoder may refuse them, but
//! never panics, and what it accepts has one encoding only.
//!
//! The functions run as an ordinary test (`tests/fuzz.rs`), and under libFuzzer (`fuzz/`).

use alloc::{string::ToString, vec::Vec};

use coppice_types::{
    Bytes, Operation, Params,
    codec::{Reader, Writer},
};

use crate::{
    check,
    checkpoint::Checkpoint,
    evidence::{self, Evidence},
    hash::file_checksum,
    header::Header,
    journal::{self, Entry},
    ledgers::{Cell, Clue, Envelope, Founding, Head, Leaf, Member, MemberChange, Signed},
    note::{self, VerifierKey},
    policy::Policy,
    proof::{Proof, ProofFile, TreeList},
    shard_map::ShardMap,
};

/// Feeds bytes to one decoder.
pub type Body = fn(&[u8]);

/// All bodies, each with the name of what it decodes.
pub const BODIES: &[(&str, Body)] = &[
    ("proof file", proof_file),
    ("answer", answer),
    ("list of trees", tree_list),
    ("header", header),
    ("journal entry", journal_entry),
    ("shard map", shard_map),
    ("parameters", parameters),
    ("operation", operation),
    ("note", note),
    ("key", key),
    ("policy", policy),
    ("evidence", evidence),
    ("ledger", ledger),
];

/// Public key of the sample ledger in the tests. Its seed is 32 bytes of 7.
const SAMPLE_KEY: &str = include_str!("../vectors/ledger.vkey");

/// Decodes and verifies a proof file, after its checksum was made to fit.
pub fn proof_file(bytes: &[u8]) {
    let Some((content, _)) = bytes.split_last_chunk::<8>() else { return };
    let mut sealed = content.to_vec();
    sealed.extend(file_checksum(content).to_le_bytes());
    let Ok(file) = ProofFile::decode(&sealed) else { return };
    assert_eq!(file.encode().as_deref(), Ok(sealed.as_slice()), "a proof file has one encoding");
    let key = VerifierKey::parse(SAMPLE_KEY.trim()).expect("the sample's key");
    if let Ok(verified) = check::verify_file(&file, &key, None) {
        let again = check::verify_file(&file, &key, Some(&file.proof.log().checkpoint));
        assert_eq!(again.map(|again| again.claim), Ok(verified.claim), "a checkpoint joins itself");
    }
    assert!(check::verify_file(&file, &key, Some(&sealed)).is_err() || matches!(file.proof, Proof::Standing(_)));
}

/// Answers a query from trees as if they had led to the state root. So mutated trees reach the code
/// that reads the answer.
pub fn answer(bytes: &[u8]) {
    let Some((content, _)) = bytes.split_last_chunk::<8>() else { return };
    let mut sealed = content.to_vec();
    sealed.extend(file_checksum(content).to_le_bytes());
    let Ok(ProofFile { proof: Proof::Query(proof), .. }) = ProofFile::decode(&sealed) else { return };
    let Ok(header) = Header::decode(&proof.header.header) else { return };
    if check::query::state_root(&header, &proof).is_ok() {
        let _: Result<_, _> = check::query::answer_with_values(&proof);
    }
}

/// Decodes a list of trees.
pub fn tree_list(bytes: &[u8]) {
    if let Ok(list) = TreeList::decode(bytes) {
        assert_eq!(list.encode(), bytes, "a list of trees has one encoding");
    }
}

/// Decodes a header.
pub fn header(bytes: &[u8]) {
    if let Ok(header) = Header::decode(bytes) {
        assert_eq!(header.encode(), bytes, "a header has one encoding");
        let _: Result<_, _> = header.check_follows(&header);
    }
}

/// Decodes a journal entry and an operation list.
pub fn journal_entry(bytes: &[u8]) {
    if let Ok(entry) = Entry::decode(bytes) {
        assert_eq!(entry.encode(), bytes, "a journal entry has one encoding");
    }
    let _: Result<_, _> = journal::decode_operations(bytes);
}

/// Decodes a shard map.
pub fn shard_map(bytes: &[u8]) {
    if let Ok(map) = ShardMap::decode(bytes) {
        assert_eq!(map.encode(), bytes, "a shard map has one encoding");
    }
}

/// Decodes genesis parameters.
pub fn parameters(bytes: &[u8]) {
    let mut input = Reader::new(bytes);
    if let Ok(params) = Params::decode(&mut input) {
        let mut out = Writer::new();
        params.encode(&mut out);
        let used = bytes.len() - input.remaining();
        assert_eq!(out.into_bytes(), bytes[..used], "parameters have one encoding");
    }
}

/// Decodes what members sign, and the records of a ledger.
pub fn ledger(bytes: &[u8]) {
    let once = |encoded: Option<Vec<u8>>| {
        assert!(encoded.is_none_or(|encoded| encoded == bytes), "a record of a ledger has one encoding");
    };
    once(Signed::decode(bytes).ok().map(|signed| signed.encode()));
    once(Envelope::decode(bytes).ok().map(|envelope| envelope.encode()));
    once(Leaf::decode(bytes).ok().map(|leaf| leaf.encode()));
    once(Founding::decode(bytes).ok().map(|founding| founding.encode()));
    once(MemberChange::decode_all(bytes).ok().map(|changes| MemberChange::encode_all(&changes)));
    once(Member::decode(bytes).ok().map(|member| member.encode()));
    once(Head::decode(bytes).ok().map(|head| head.encode()));
    once(Clue::decode(bytes).ok().map(|clue| clue.encode()));
    once(Cell::decode(bytes).ok().map(|cell| cell.encode()));
}

/// Decodes an operation.
pub fn operation(bytes: &[u8]) {
    let mut input = Reader::new(bytes);
    if let Ok(operation) = Operation::decode(&mut input, Bytes::copy_from_slice) {
        let mut out = Writer::new();
        operation.encode(&mut out);
        let used = bytes.len() - input.remaining();
        assert_eq!(out.into_bytes(), bytes[..used], "an operation has one encoding");
    }
}

/// Opens a note, and parses texts as checkpoints.
pub fn note(bytes: &[u8]) {
    let key = VerifierKey::parse(SAMPLE_KEY.trim()).expect("the sample's key");
    let _: Result<_, _> = note::open(bytes, &key);
    if let Ok(text) = core::str::from_utf8(bytes) {
        let texts: Vec<&str> = text.split("\n\n").collect();
        for text in texts {
            if let Ok(checkpoint) = Checkpoint::parse(text) {
                assert_eq!(checkpoint.text(), text, "a checkpoint has one text");
            }
        }
    }
}

/// Parses a public key.
pub fn key(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    if let Ok(key) = VerifierKey::parse(text) {
        assert_eq!(key.to_string(), text, "a key has one text");
    }
}

/// Parses a policy, and examines the same bytes as a checkpoint under it.
pub fn policy(bytes: &[u8]) {
    if let Ok(mut policy) = Policy::parse(bytes) {
        let _ = policy.believe_only(&VerifierKey::parse(SAMPLE_KEY.trim()).expect("the sample's key"));
        let _: Result<_, _> = policy.examine(bytes);
    }
}

/// Decodes and judges an evidence file.
pub fn evidence(bytes: &[u8]) {
    if let Ok(evidence) = Evidence::decode(bytes) {
        assert_eq!(evidence.encode().as_deref(), Ok(bytes), "an evidence file has one encoding");
    }
    let key = VerifierKey::parse(SAMPLE_KEY.trim()).expect("the sample's key");
    let _: Result<_, _> = evidence::verify(bytes, &key, None);
}
