//! The changes of a version beside its journal.

use bytes::Bytes;
use coppice_proto::v1;

use super::{
    super::{Level, Options, check::writes_of, ledger::Headed},
    model::Model,
    world::words,
};

type Changes = &'static [(&'static str, Option<&'static str>)];

fn at(level: Level) -> Options {
    Options { level, ..Options::default() }
}

/// The header of a version with these writes, and with these changes on the stream.
fn headed(changes: Changes) -> Headed {
    let model = Model::new();
    model.lock().commit(&words([("a", Some("1")), ("b", None), ("c", Some(""))]));
    let headed = model.lock().log[1].clone();
    let change = |(key, value): &(&'static str, Option<&'static str>)| v1::Record {
        key: Bytes::from_static(key.as_bytes()),
        found: value.is_some(),
        value: Bytes::from_static(value.unwrap_or_default().as_bytes()),
        ..v1::Record::default()
    };
    Headed { changes: changes.iter().map(change).collect(), ..headed }
}

#[test]
fn changes_are_those_of_the_journal() {
    let cases: [(&str, Changes, &str); 7] = [
        ("as they are", &[("a", Some("1")), ("b", None), ("c", Some(""))], ""),
        ("without a deletion", &[("a", Some("1")), ("c", Some(""))], ""),
        ("one left out", &[("b", None), ("c", Some(""))], "writes `a`, and the ledger shows no value"),
        ("another value", &[("a", Some("2")), ("c", Some(""))], "another value of `a`"),
        ("a longer value", &[("a", Some("11")), ("c", Some(""))], "another value of `a`"),
        ("a value that is none", &[("a", Some("1")), ("b", Some("1")), ("c", Some(""))], "deletes `b`"),
        ("one too many", &[("a", Some("1")), ("c", Some("")), ("d", Some("1"))], "does not write `d`"),
    ];
    for (what, changes, why) in cases {
        match writes_of(&at(Level::Proofs), &headed(changes)) {
            Ok(writes) => {
                assert_eq!(why, "", "{what} is believed");
                let writes = writes.expect("the changes are known");
                let expected = [("a", Some("1")), ("b", None), ("c", Some(""))];
                let expected = expected.map(|(key, value)| (Bytes::from(key), value.map(Bytes::from)));
                assert_eq!(writes.into_iter().collect::<Vec<_>>(), expected, "{what}");
            }
            Err(found) => assert!(!why.is_empty() && found.contains(why), "{what}: {found}"),
        }
    }
}

#[test]
fn changes_without_lists_are_unknown_and_without_a_journal_refused() {
    let honest = headed(&[("a", Some("1")), ("c", Some(""))]);
    let bare = Headed { journal: None, ..honest.clone() };
    assert!(writes_of(&at(Level::Proofs), &bare).is_err());
    assert!(writes_of(&at(Level::Trusted), &bare).expect("it is believed").is_some());
    let gone = Headed { lists_gone: true, ..bare };
    assert_eq!(writes_of(&at(Level::Proofs), &gone), Ok(None));
    let undone = Headed { rolled_back: true, ..honest };
    assert_eq!(writes_of(&at(Level::Proofs), &undone), Ok(None));
}

/// The keys are those of the journal, or else of the changes. Values count for nothing.
#[test]
fn keys_alone_have_no_values() {
    for (level, keys) in [(Level::Proofs, vec!["a", "b", "c"]), (Level::Trusted, vec!["a", "c"])] {
        let options = Options { keys_only: true, ..at(level) };
        let told = headed(&[("a", Some("another")), ("c", Some(""))]);
        let writes = writes_of(&options, &told).expect("it fits").expect("it is known");
        assert_eq!(writes.keys().collect::<Vec<_>>(), keys);
        assert!(writes.values().all(Option::is_none));
    }
}

/// The changes leave out keys of ledgers of members, which the journal names.
#[test]
fn reserved_keys_are_left_out() {
    let model = Model::new();
    model.lock().commit(&words([("\0key", Some("1")), ("a", Some("1"))]));
    let mut headed = model.lock().log[1].clone();
    headed.changes.remove(0);
    assert!(writes_of(&at(Level::Proofs), &headed).is_err(), "this ledger has no ledgers of members");
    headed.header.key_changes = Some(0);
    let writes = writes_of(&at(Level::Proofs), &headed).expect("it fits").expect("it is known");
    assert_eq!(writes.keys().collect::<Vec<_>>(), ["a"]);
}
