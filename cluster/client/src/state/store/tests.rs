//! The store and its lineage without a ledger.

use super::{
    super::{
        lineage::CUTS_MAX,
        window::{KEYS_MAX, VERSIONS_MAX},
    },
    *,
};

fn store(bytes_max: usize) -> Store {
    let mut store = Store::new(bytes_max, Arc::default());
    store.begin(Stamp::default(), 0);
    store
}

fn put(key: &str, value: &str) -> Writes {
    Writes::from([(Bytes::copy_from_slice(key.as_bytes()), Some(Bytes::copy_from_slice(value.as_bytes())))])
}

fn write(store: &mut Store, at: Stamp, key: &str, value: &str) {
    assert_eq!(store.commit(at, Written::Values(&put(key, value)), false), Ok(true), "{at}");
}

#[test]
fn last_changes_are_compared() {
    for (value, changed, held) in [("1", 1, true), ("1", 2, false), ("1", 0, false), ("1", 3, false), ("2", 1, false)] {
        let mut store = store(1 << 20);
        write(&mut store, Stamp::new(0, 1), "a", "1");
        write(&mut store, Stamp::new(0, 2), "b", "1");
        let place = store.line().place(Stamp::new(0, 2));
        let filled = store.fill(b"a", place, Some(Bytes::from(value)), changed);
        assert_eq!(filled.is_ok(), held, "{value}, changed in version {changed}");
    }
}

#[test]
fn old_rollbacks_are_forgotten_with_their_views() {
    let mut store = store(1 << 20);
    write(&mut store, Stamp::new(0, 1), "k", "1");
    let old = store.line().place(Stamp::new(0, 1));
    for epoch in 0..=CUTS_MAX as u64 {
        assert!(store.get(b"k", old, 1).is_some(), "behind {epoch} rollbacks nothing is known");
        write(&mut store, Stamp::new(epoch, epoch + 2), "other", "1");
        write(&mut store, Stamp::new(epoch, epoch + 3), "other", "2");
        assert!(store.roll_back(Stamp::new(epoch + 1, epoch + 2)));
    }
    assert!(store.get(b"k", old, 1).is_none() && store.line().cuts() <= CUTS_MAX);
    let (place, confirmed) = (store.line().place(Stamp::new(0, 1)), store.line().confirmed());
    assert_eq!(store.get(b"k", place, confirmed), Some(Some(Bytes::from_static(b"1"))));
    store.check();
}

#[test]
fn the_memory_is_bounded() {
    let mut store = store(40_000);
    for version in 1..=3 * VERSIONS_MAX as u64 {
        let key = |at: u32| Bytes::from(format!("{version} {at}"));
        let writes: Writes = (0..700).map(|at| (key(at), Some(Bytes::from_static(&[0; 10])))).collect();
        assert_eq!(store.commit(Stamp::new(0, version), Written::Values(&writes), false), Ok(true));
        store.check();
        let (versions, keys, _) = store.window.size();
        assert!(versions <= VERSIONS_MAX && keys <= KEYS_MAX, "{versions} versions, {keys} keys");
    }
    let (_, _, floor) = store.window.size();
    assert!(floor > 0 && store.size().0 > 0);
    assert!(!store.window.is_untouched(b"none", floor - 1) && store.window.is_untouched(b"none", floor));
}

#[test]
fn the_key_that_was_not_used_for_the_longest_time_goes_first() {
    let mut store = store(3 * (ENTRY_BYTES + 2));
    for (version, key) in (1..).zip(["a", "b", "c"]) {
        write(&mut store, Stamp::new(0, version), key, "1");
    }
    let at = store.line().place(Stamp::new(0, 3));
    assert!(store.get(b"a", at, 0).is_some());
    write(&mut store, Stamp::new(0, 4), "d", "1");
    assert!(store.get(b"b", at, 0).is_none() && store.get(b"a", at, 0).is_some());
    store.check();
}
