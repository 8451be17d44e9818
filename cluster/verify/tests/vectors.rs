//! The test vectors in `vectors/` for second implementations: computed here, and compared with the
//! files.
//!
//! `COPPICE_WRITE_VECTORS=1 cargo test -p coppice-verify --test vectors` writes them again. Hex is
//! lower-case. A value that is neither a number nor a name is hex, unless the name of its field
//! says otherwise.

mod common;

use common::{
    Sample, attacks, params,
    vectors::{compare, stored, text},
};
use coppice_types::{
    Batch, Change, Condition, Digest, Epoch, Operation, Params, Precondition, ShardId, Stamp, Version, codec::Writer,
};
use coppice_verify::{
    check::{Answer, Claim, Verified},
    checkpoint::Checkpoint,
    epochs::Epochs,
    hash::{self, RecordBody},
    header::{Body, Header},
    journal::Entry,
    merkle,
    note::{self, SignerKey, VerifierKey},
    proof::ProofFile,
    replay::Forest,
    rules::{self, Filter},
    shard_map::{ShardMap, StateLeaf},
    verify,
};
use serde_json::{Value, json};

fn stamp(stamp: Stamp) -> Value {
    json!([stamp.epoch.0, stamp.version.0])
}

fn digests(list: &[Digest]) -> Value {
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn hashes() {
    let (key, version) = (b"key".as_slice(), Stamp::new(1, 258));
    let put = RecordBody::put(b"value");
    let (a, b, c) = (hash::sha256(b"a"), hash::sha256(b"b"), hash::sha256(b"c"));
    let operations = [(key, put), (b"other".as_slice(), RecordBody::Tombstone)];
    let batch = Batch {
        operations: vec![
            Operation { key: key.to_vec().into(), change: Change::Put(b"value".to_vec().into()) },
            Operation { key: b"other".to_vec().into(), change: Change::Delete },
        ],
        preconditions: vec![
            Precondition { key: key.to_vec(), condition: Condition::Absent },
            Precondition { key: b"x".to_vec(), condition: Condition::LastChanged(version) },
            Precondition { key: b"y".to_vec(), condition: Condition::ValueHash(a) },
        ],
        metadata: b"metadata".to_vec(),
        ..Batch::default()
    };
    let filter = hash::filter_hash(key);
    let leaf = |high| hash::state_leaf_hash(ShardId(3), b"low", high, Version(77), &a).to_string();
    compare(
        "hashes.json",
        &json!({
            "about": "One hash of each kind. Texts are ASCII; a, b, c are the SHA-256 of the letters; the stamp is epoch 1, version 258.",
            "a": a.to_string(), "b": b.to_string(), "c": c.to_string(),
            "root of no leaves": merkle::empty_root().to_string(),
            "log entry 'entry'": hash::log_entry_hash(b"entry").to_string(),
            "list node of a, b": hash::list_node_hash(&a, &b).to_string(),
            "list of a, b, c": merkle::mth(&[a, b, c]).to_string(),
            "put of 'key' = 'value' at the stamp": hash::record_hash(key, version, &put).to_string(),
            "tombstone of 'key' at the stamp": hash::record_hash(key, version, &RecordBody::Tombstone).to_string(),
            "leaf node without records": hash::empty_root_hash().to_string(),
            "leaf node of records with hashes a, b, c": hash::leaf_node_hash(&[a, b, c]).to_string(),
            "inner entry 'key' with child a": hash::entry_hash(key, &a).to_string(),
            "inner node at level 2 of entries with hashes a, b": hash::inner_node_hash(2, &[a, b]).to_string(),
            "empty tree": hash::empty_tree_digest().to_string(),
            "tree with root a at level 2 of 1000 entries": hash::tree_digest(2, 1000, &a).to_string(),
            "forest of an empty tree": hash::empty_shard_digest().to_string(),
            "forest of trees a, b": hash::shard_digest(&[a, b]).to_string(),
            "filter hash of 'key': first and second u64": [filter.0.to_string(), filter.1.to_string()],
            "state leaf of shard 3, 'low' to 'top', version 77, digest a": leaf(Some(b"top")),
            "state leaf of shard 3, 'low' to the end, version 77, digest a": leaf(None),
            "epoch leaf of epoch 2, base 7": hash::epoch_leaf_hash(Epoch(2), Version(7)).to_string(),
            "journal leaf of 'entry'": hash::journal_leaf_hash(b"entry").to_string(),
            "operation list: put of 'key' = 'value', delete of 'other'": hash::operation_list_hash(operations).to_string(),
            "metadata 'metadata'": hash::metadata_hash(b"metadata").to_string(),
            "batch: these operations; 'key' absent, 'x' last changed at the stamp, 'y' has value hash a; this metadata":
                hash::batch_hash(&batch).to_string(),
            "checksum of 'file' as u64": hash::file_checksum(b"file").to_string(),
        }),
    );
}

#[test]
fn list_proofs() {
    let leaves: Vec<Digest> = (0..7_u8).map(|index| hash::sha256(&[index])).collect();
    let mut valid = Vec::new();
    for size in [1, 2, 5, 7_usize] {
        for subset in (1..1_u64 << size).step_by(3) {
            let indices: Vec<u64> = (0..size as u64).filter(|index| subset >> index & 1 == 1).collect();
            let proof = merkle::list_proof(&leaves[..size], &indices);
            let root = merkle::mth(&leaves[..size]).to_string();
            valid.push(json!({ "size": size, "revealed": indices, "hashes": digests(&proof), "root": root }));
        }
    }
    let shown = |indices: &[u64]| indices.iter().map(|index| (*index, leaves[*index as usize % 7])).collect::<Vec<_>>();
    let invalid: Vec<Value> = [
        ("nothing revealed", 5, vec![], merkle::list_proof(&leaves[..5], &[])),
        ("index beyond the list", 5, vec![5], merkle::list_proof(&leaves[..5], &[4])),
        ("indices that do not ascend", 5, vec![3, 1], merkle::list_proof(&leaves[..5], &[1, 3])),
        ("an index twice", 5, vec![3, 3], merkle::list_proof(&leaves[..5], &[3])),
        ("a hash too few", 5, vec![3], merkle::list_proof(&leaves[..5], &[2, 3])),
        ("a hash too many", 5, vec![2, 3], merkle::list_proof(&leaves[..5], &[3])),
        ("an element of an empty list", 0, vec![0], vec![]),
        ("hashes of an empty list", 0, vec![], vec![leaves[0]]),
    ]
    .into_iter()
    .map(|(why, size, indices, hashes)| {
        assert!(merkle::list_root(size, &shown(&indices), &hashes).is_err(), "{why}");
        json!({ "why": why, "size": size, "revealed": indices, "hashes": digests(&hashes) })
    })
    .collect();
    compare(
        "list-proofs.json",
        &json!({
            "about": "Lists of the first `size` leaves; `revealed` are indices into `leaves` (modulo 7, where the index is invalid).",
            "leaves": digests(&leaves), "valid": valid, "invalid": invalid,
        }),
    );
}

#[test]
fn rule_numbers() {
    let params = params();
    let ranges = |pieces: Vec<std::ops::Range<usize>>| -> Value {
        pieces.into_iter().map(|piece| json!([piece.start, piece.end])).collect()
    };
    let lists: Vec<Vec<u32>> = vec![
        vec![92; 4],
        vec![92; 5],
        vec![100; 13],
        vec![92, 300, 92, 92, 300, 120, 92, 92, 310],
        vec![10, 5000, 10],
        vec![200, 169],
        (0..40).map(|index| 92 + index * 7919 % 97).collect(),
    ];
    let lists: Vec<Value> = lists
        .iter()
        .map(|list| json!({ "weights": list, "split": ranges(rules::split(&params, list)), "packing": ranges(rules::pack(&params, list)) }))
        .collect();
    let weights: Vec<Value> = [(1, None), (8, Some(0)), (20, Some(16)), (20, Some(17)), (20, None), (9, Some(12))]
        .into_iter()
        .map(|(key, value)| {
            let (record, entry) = (rules::record_weight(&params, key, value), rules::entry_weight(&params, key));
            json!({ "key length": key, "value length": value, "record": record, "inner entry": entry })
        })
        .collect();
    let separators: Vec<Value> =
        [("a", "b"), ("a", "ab"), ("key-19", "key-20"), ("key-2", "key-20"), ("abc", "abd"), ("ab", "b0")]
            .into_iter()
            .map(|(left, right)| {
                let separator = rules::separator(left.as_bytes(), right.as_bytes());
                json!({ "left": left, "right": right, "separator": str::from_utf8(separator).expect("a text") })
            })
            .collect();
    let filters: Vec<Value> = [0_u64, 1, 51, 52, 1000]
        .into_iter()
        .map(|entries| {
            let blocks = rules::filter_blocks(&params, entries);
            let (block, bits) = rules::filter_position(hash::filter_hash(b"key"), blocks);
            json!({ "entries": entries, "blocks": blocks, "block of 'key'": block, "bits of 'key'": bits })
        })
        .collect();
    let mut filter = Filter::new(&params, 60);
    (0..60).for_each(|index| filter.insert(format!("key-{index}").as_bytes()));
    let admitted: Vec<String> =
        (60..400).map(|index| format!("key-{index}")).filter(|key| filter.admits(key.as_bytes())).collect();
    let tiers: Vec<Value> =
        [vec![8], vec![8, 8], vec![8, 16], vec![8, 17], vec![8, 17, 50], vec![8, 17, 51], vec![8, 8, 33]]
            .into_iter()
            .map(|frozen| json!({ "entries, youngest first": frozen, "merged": rules::plan_merge(&params, &frozen) }))
            .collect();
    compare(
        "rules.json",
        &json!({
            "about": "Weights, splits, packings, separators, filters and tiers under these parameters; pieces are [first, end) of entries.",
            "parameters": encoded(&params),
            "lists": lists, "weights": weights, "separators": separators, "filters": filters,
            "false positives of a filter of key-0 .. key-59 among key-60 .. key-399": admitted,
            "tiers": tiers,
        }),
    );
}

fn encoded(params: &Params) -> Value {
    let mut out = Writer::new();
    params.encode(&mut out);
    json!({
        "encoded": text(&out.into_bytes()), "fanout": params.fanout, "node_bytes": params.node_bytes, "capacity": params.capacity,
        "inline_bytes": params.inline_bytes, "filter_bits": params.filter_bits, "tree_limit": params.tree_limit, "tier_ratio": params.tier_ratio,
    })
}

/// The replay of one shard: writes, deletes with and without tombstones, freezes, merges.
#[test]
fn replay() {
    let params = params();
    let mut sample = Sample::new(&params, 11);
    let mut forest = Forest::new(&params);
    let mut prepares = Vec::new();
    for version in 1..=60 {
        let version = Stamp::new(version / 25, version);
        let operations: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..sample.random(9))
            .map(|_| {
                let value = vec![b'v'; sample.random(40) as usize];
                (format!("key-{}", sample.random(60)).into_bytes(), (sample.random(3) > 0).then_some(value))
            })
            .collect();
        let merges: Vec<_> = forest.planned_merge().into_iter().collect();
        let bodies = operations.iter().map(|(key, value)| {
            (key.as_slice(), value.as_ref().map_or(RecordBody::Tombstone, |value| RecordBody::put(value)))
        });
        forest.prepare(version, &merges, bodies).expect("the model follows its own rules");
        let trees: Vec<Value> = forest
            .trees()
            .iter()
            .map(|tree| json!({ "level": tree.root.level(), "entries": tree.records().len(), "digest": tree.digest().to_string() }))
            .collect();
        let shown: Vec<Value> = operations
            .iter()
            .map(|(key, value)| json!([String::from_utf8_lossy(key), value.as_ref().map(|value| value.len())]))
            .collect();
        let merges: Vec<Value> = merges
            .iter()
            .map(|(inputs, output)| json!({ "inputs": digests(inputs), "output": output.to_string() }))
            .collect();
        prepares.push(json!({
            "stamp": stamp(version), "operations": shown, "merges": merges, "trees": trees, "shard digest": forest.digest().to_string(),
        }));
    }
    let levels = forest.trees().iter().map(|tree| tree.root.level()).max();
    assert!(levels >= Some(2) && forest.trees().len() >= 2, "{levels:?}");
    compare(
        "replay.json",
        &json!({
            "about": "Prepares of one shard from its beginning, in order. An operation is a key (as text) and the length of the value that is put, which is so many letters 'v', or null for a delete. Trees are youngest first.",
            "parameters": encoded(&params), "prepares": prepares,
        }),
    );
}

#[test]
fn log() {
    let sample = Sample::standard();
    let entries: Vec<Value> = sample
        .ledger
        .headers
        .iter()
        .map(|header| {
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes).as_ref(), Ok(header));
            json!({
                "kind": header.kind_name(), "bytes": text(&bytes), "sequence": header.sequence.0, "stamp": stamp(header.stamp),
                "entry hash": header.hash().to_string(), "state root": header.state_root.to_string(),
            })
        })
        .collect();
    let journals: Vec<Value> = sample
        .ledger
        .versions
        .values()
        .map(|version| {
            let entries: Vec<String> = version.journal.iter().map(|entry| text(&entry.encode())).collect();
            assert!(version.journal.iter().all(|entry| Entry::decode(&entry.encode()).as_ref() == Ok(entry)));
            let leaves: Vec<String> = version.leaves.iter().map(|leaf| leaf.hash().to_string()).collect();
            json!({ "stamp": stamp(version.header.stamp), "journal": entries, "state leaves": leaves })
        })
        .collect();
    let sizes: Vec<u64> = (1..=sample.ledger.headers.len() as u64).step_by(9).collect();
    let checkpoints: Vec<Value> = sizes
        .iter()
        .map(|size| json!({ "size": size, "root": sample.ledger.checkpoint(*size).root.to_string() }))
        .collect();
    let invalid: Vec<Value> = broken_headers(&sample)
        .into_iter()
        .map(|(why, bytes)| {
            assert!(Header::decode(&bytes).is_err(), "{why}");
            json!({ "why": why, "bytes": text(&bytes) })
        })
        .collect();
    let map = &sample.ledger.shard_map;
    compare(
        "log.json",
        &json!({
            "about": "The root log of a small ledger with a rollback to version 20, a prune, and a header of kind 9, which a reader of this format reads as far as it can.",
            "shard map": text(&map.encode()), "shard map hash": map.hash().to_string(),
            "entries": entries, "versions": journals, "checkpoints": checkpoints,
            "epochs": epoch_vectors(), "invalid headers": invalid,
        }),
    );
}

fn epoch_vectors() -> Value {
    let mut epochs = Epochs::new();
    let mut steps = Vec::new();
    for (epoch, target) in [(1, 30), (2, 12), (3, 40), (4, 40), (7, 0), (8, 5)] {
        epochs.roll_back(Epoch(epoch), Version(target));
        let pairs: Vec<Value> = epochs.pairs().iter().map(|pair| json!([pair.epoch.0, pair.base.0])).collect();
        steps.push(json!({ "epoch": epoch, "target": target, "pairs": pairs, "root": epochs.root().to_string() }));
    }
    steps.into()
}

fn broken_headers(sample: &Sample) -> Vec<(&'static str, Vec<u8>)> {
    let changed = |index: usize, change: &dyn Fn(&mut Header)| {
        let mut header = sample.ledger.headers[index].clone();
        change(&mut header);
        header.encode()
    };
    let commit = sample.ledger.headers[1].encode();
    let mut format = commit.clone();
    format[0] = 2;
    vec![
        ("another format", format),
        ("cut short", commit[..commit.len() - 1].to_vec()),
        ("a byte too many", [&commit[..], &[0]].concat()),
        ("a commit at sequence 0", changed(1, &|header| header.sequence.0 = 0)),
        ("a commit of version 0", changed(1, &|header| header.stamp.version.0 = 0)),
        ("no state leaves", changed(1, &|header| header.state_leaves = 0)),
        ("no epoch pairs", changed(1, &|header| header.epoch_pairs = 0)),
        ("genesis at sequence 1", changed(0, &|header| header.sequence.0 = 1)),
        ("genesis after another entry", changed(0, &|header| header.previous.0[0] = 1)),
        ("genesis with another shard map's hash", changed(0, &|header| header.shard_map.0[0] ^= 1)),
        ("a rollback that does not raise the epoch", changed(31, &|header| header.stamp.epoch.0 = 0)),
        ("a rollback with a journal", changed(31, &|header| header.journal_leaves = 1)),
        ("a prune above head", {
            changed(44, &|header| match &mut header.body {
                Body::Prune(prune) => prune.boundary = Version(1000),
                other => panic!("not a prune: {other:?}"),
            })
        }),
    ]
}

#[test]
fn notes() {
    let sample = Sample::standard();
    let key = &sample.ledger.key;
    let foreign = SignerKey::from_seed(key.name(), &[8; 32]).expect("a name");
    let checkpoint = sample.ledger.checkpoint(5);
    let good = checkpoint.sign(key).expect("the key's origin");
    let (body, line) = good.split_once("\n\n").expect("a note");
    let stranger = foreign.sign_note(&checkpoint.text()).expect("a text");
    let (_, strange_line) = stranger.split_once("\n\n").expect("a note");
    let wrong = key.sign_note("other\n").expect("a text");
    let (_, wrong_line) = wrong.split_once("\n\n").expect("a note");
    let notes = [
        ("valid", good.clone()),
        ("valid: with a line of an unknown key", format!("{good}{strange_line}")),
        ("valid: with a line of an unknown key first", format!("{body}\n\n{strange_line}{line}")),
        ("signed by an unknown key only", stranger.clone()),
        ("a second line of the key that does not verify", format!("{good}{wrong_line}")),
        ("another size", good.replacen("\n5\n", "\n6\n", 1)),
        ("no signature", format!("{body}\n\n")),
        ("no empty line", format!("{body}\n{line}")),
        ("no line feed at the end", good.trim_end().to_owned()),
        ("carriage returns", good.replace('\n', "\r\n")),
        ("101 signature lines", format!("{good}{}", strange_line.repeat(100))),
        ("an extension line", key.sign_note(&format!("{}more\n", checkpoint.text())).expect("a text")),
        ("a leading zero", key.sign_note(&checkpoint.text().replacen("\n5\n", "\n05\n", 1)).expect("a text")),
        ("another origin", key.sign_note(&checkpoint.text().replacen("ledger", "edger", 1)).expect("a text")),
    ];
    let notes: Vec<Value> = notes
        .iter()
        .map(|(name, note)| {
            let opened = Checkpoint::open(note.as_bytes(), key.verifier());
            assert_eq!(opened.is_ok(), name.starts_with("valid"), "{name}");
            json!({ "name": name, "note": note, "valid": opened.is_ok(), "error": opened.err().map(|error| error.to_string()) })
        })
        .collect();
    let vkey = key.verifier().to_string();
    let keys = [
        ("valid", vkey.clone()),
        ("another key id", vkey.replacen("+e", "+f", 1)),
        ("upper-case hex", vkey.replacen("+e2058db3", "+E2058DB3", 1)),
        ("cut short", vkey[..vkey.len() - 4].to_owned()),
        ("no name", vkey[vkey.find('+').expect("a plus")..].to_owned()),
        ("a small-order key", small_order_key()),
    ];
    let keys: Vec<Value> = keys
        .iter()
        .map(|(name, key)| {
            assert_eq!(VerifierKey::parse(key).is_ok(), *name == "valid", "{name}");
            json!({ "name": name, "vkey": key, "valid": *name == "valid" })
        })
        .collect();
    let error = note::open(stranger.as_bytes(), key.verifier()).expect_err("an unknown key");
    assert_eq!(error, note::Error::Unsigned);
    compare(
        "notes.json",
        &json!({
            "about": "Checkpoints as signed notes, and keys. The seed of the key is 32 bytes of 07, that of the unknown key of the same name 32 bytes of 08.",
            "vkey": vkey, "notes": notes, "keys": keys,
        }),
    );
}

/// The identity point as a key, with the right key id.
fn small_order_key() -> String {
    let mut point = [0; 32];
    point[0] = 1;
    let id = hash::key_id("ledger.example/x", 1, &point);
    // Base64 of 01 || 01 00 .. 00.
    format!("ledger.example/x+{}+AQE{}", hex::encode(id), "A".repeat(41))
}

#[test]
fn proofs() {
    let sample = Sample::standard();
    let key = sample.ledger.key.verifier();
    let mut cases = Vec::new();
    for (name, file, newer) in honest(&sample) {
        let bytes = file.encode().expect("it fits");
        let verified = verify(&bytes, key, newer.as_deref()).expect("an honest proof");
        let newer = newer.map(|newer| text(&newer));
        cases.push(
            json!({ "name": name, "file": text(&bytes), "newer": newer, "valid": true, "claim": claim(&verified) }),
        );
    }
    for attack in attacks::attacks(&sample) {
        let bytes = attack.file.encode().expect("it fits");
        let newer = attack.newer.as_ref().map(|newer| text(newer));
        cases.push(json!({ "name": attack.name, "file": text(&bytes), "newer": newer, "valid": false, "failed step": attack.step }));
    }
    compare(
        "proofs.json",
        &json!({
            "about": "Proof files of the ledger in log.json, honest ones and lies; a lie fails at the named step. `newer` is a newer checkpoint (section 13, step 11).",
            "vkey": key.to_string(), "cases": cases,
        }),
    );
}

type Honest = (&'static str, ProofFile<'static>, Option<Vec<u8>>);

fn honest(sample: &Sample) -> Vec<Honest> {
    let ledger = &sample.ledger;
    let targets = attacks::targets(sample);
    let size = ledger.headers.len() as u64;
    let head = ledger.epochs.stamp_of(ledger.head().version);
    let keys = [&targets.updated[..], &targets.old, &targets.absent, b"key-01"];
    let join = ledger.standing(size, size).encode().expect("it fits");
    vec![
        ("a key changed last in the active tree", ledger.prove_keys(targets.stamp, &[&targets.updated], true), None),
        ("a key changed last in a frozen tree", ledger.prove_keys(targets.stamp, &[&targets.old], true), None),
        ("a key without a value", ledger.prove_keys(targets.stamp, &[&targets.absent], true), None),
        ("keys in two shards, without values", ledger.prove_keys(targets.stamp, &keys, false), None),
        ("a key at version 9", ledger.prove_keys(Stamp::new(0, 9), &[&targets.old], true), Some(join)),
        ("a range", ledger.prove_range(head, b"key-30", Some(b"key-45"), true), None),
        ("a range over all shards", ledger.prove_range(head, b"", None, false), None),
        ("a range without records", ledger.prove_range(head, b"zz", None, true), None),
        ("genesis", ledger.prove_range(Stamp::default(), b"", None, true), None),
        ("a receipt", ledger.receipt(targets.stamp, 1), None),
        ("a standing proof", ledger.standing(20, size), None),
    ]
}

/// The content that a reader must find in a valid file.
fn claim(verified: &Verified<'_>) -> Value {
    let record = |key: &[u8], record: Option<&coppice_verify::check::Record<'_>>| {
        let found = record.map(|record| {
            let value = record.value.as_ref().map(|value| text(value));
            json!({ "stamp": stamp(record.stamp), "value_sha256": record.value_hash.to_string(), "length": record.value_len, "value": value })
        });
        json!({ "key": text(key), "found": found })
    };
    let what = match &verified.claim {
        Claim::Query(claim) => match &claim.answer {
            Answer::Keys(keys) => {
                let keys: Vec<Value> = keys.iter().map(|(key, found)| record(key, found.as_ref())).collect();
                json!({ "kind": "keys", "version": stamp(claim.header.stamp), "keys": keys })
            }
            Answer::Range { low, high, records } => {
                let records: Vec<Value> = records.iter().map(|found| record(&found.key, Some(found))).collect();
                let high = high.as_ref().map(|high| text(high));
                json!({ "kind": "range", "version": stamp(claim.header.stamp), "low": text(low), "high": high, "records": records })
            }
        },
        Claim::Receipt(claim) => {
            let entry = text(&Entry::Batch(claim.batch.clone()).encode());
            json!({ "kind": "receipt", "version": stamp(claim.header.stamp), "index": claim.index, "entry": entry })
        }
        Claim::Journals(_) | Claim::Time(_) | Claim::Lineage(_) | Claim::Interval(_) => {
            panic!("other files have these kinds")
        }
        Claim::Standing(claim) => {
            let pairs: Vec<Value> =
                claim.epochs.pairs().iter().map(|pair| json!([pair.epoch.0, pair.base.0])).collect();
            json!({ "kind": "standing", "old size": claim.old_size, "old root": claim.old_root.to_string(), "pairs": pairs })
        }
    };
    let checkpoint = &verified.checkpoint;
    json!({
        "cluster": verified.cluster.to_string(), "size": checkpoint.size, "root": checkpoint.root.to_string(),
        "head": stamp(verified.newest.stamp), "what": what,
    })
}

/// Verifies the files alone, as a stranger would, independently of the model.
#[test]
fn stored_proofs_are_judged_as_stored() {
    let stored = stored("proofs.json");
    let key = VerifierKey::parse(stored["vkey"].as_str().expect("a text")).expect("a key");
    let cases = stored["cases"].as_array().expect("a list");
    assert!(cases.len() > 90);
    let bytes = |value: &Value| value.as_str().map(|text| hex::decode(text).expect("hex"));
    for case in cases {
        let (file, newer) = (bytes(&case["file"]).expect("a file"), bytes(&case["newer"]));
        match verify(&file, &key, newer.as_deref()) {
            Ok(verified) => assert_eq!(claim(&verified), case["claim"], "{}", case["name"]),
            Err(failure) => assert_eq!(failure.step.name(), case["failed step"], "{}: {failure}", case["name"]),
        }
    }
}

#[test]
fn the_state_roots_of_the_log_follow_from_its_leaves() {
    let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let leaves: Vec<Digest> = map.genesis_leaves().iter().map(StateLeaf::hash).collect();
    assert_eq!(coppice_verify::shard_map::state_root(&map.genesis_leaves()), merkle::mth(&leaves));
}
