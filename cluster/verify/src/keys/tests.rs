//! Key changes that are forged, out of order or of a fork are refused.

use super::*;

const CLUSTER: ClusterId = ClusterId([5; 16]);

fn signer(seed: u8) -> SignerKey {
    SignerKey::from_seed("ledger.example/x", &[seed; 32]).expect("the name is fine")
}

fn key(seed: u8) -> VerifierKey {
    signer(seed).verifier().clone()
}

fn change(number: u32, old: u8, new: u8) -> KeyChange {
    KeyChange::sign(number, &CLUSTER, &signer(old), &signer(new))
}

/// Keys 1, 2, 3 in this order, changed at sequences 10 and 20.
fn changes() -> [(Sequence, KeyChange); 2] {
    [(Sequence(10), change(1, 1, 2)), (Sequence(20), change(2, 2, 3))]
}

fn follow(trusted: u8, changes: &[(Sequence, KeyChange)]) -> Result<Keys, &'static str> {
    Keys::new(key(trusted)).follow(changes.iter().map(|(at, change)| (*at, change)))
}

#[test]
fn a_key_change_survives_encoding_and_fails_with_any_bit_flipped() {
    let change = change(1, 1, 2);
    assert_eq!(change.check(&CLUSTER), Ok(()));
    let mut out = Writer::new();
    change.encode(&mut out);
    let bytes = out.into_bytes();
    let decode = |bytes: &[u8]| {
        let mut input = Reader::new(bytes);
        let change = KeyChange::decode(&mut input)?;
        input.finish().map(|()| change)
    };
    assert_eq!(decode(&bytes), Ok(change));
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let holds = decode(&flipped).is_ok_and(|change| change.check(&CLUSTER).is_ok());
        assert!(!holds, "bit {bit}");
    }
}

#[test]
fn a_key_change_of_another_ledger_or_to_itself_is_refused() {
    let rule = |change: &KeyChange, cluster| change.check(cluster).expect_err("it breaks a rule").0;
    assert_eq!(rule(&change(1, 1, 2), &ClusterId([6; 16])), "signature of the old key");
    assert_eq!(rule(&change(1, 1, 1), &CLUSTER), "a key change to the same key");
    assert_eq!(rule(&change(0, 1, 2), &CLUSTER), "number of a key change");
    let swapped = KeyChange { by_old: change(1, 1, 2).by_new, ..change(1, 1, 2) };
    assert_eq!(rule(&swapped, &CLUSTER), "signature of the old key");
    let half = KeyChange { by_new: change(1, 1, 3).by_new, ..change(1, 1, 2) };
    assert_eq!(rule(&half, &CLUSTER), "signature of the new key");
    let mut weak = change(1, 1, 2);
    weak.new = [0; 32];
    weak.new[0] = 1;
    assert_eq!(rule(&weak, &CLUSTER), "keys of a key change");
}

#[test]
fn every_key_of_a_ledger_leads_to_the_others_and_signs_its_own_sizes() {
    for trusted in [1, 2, 3] {
        let keys = follow(trusted, &changes()).expect("a key of the ledger");
        for (size, seed) in [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (u64::MAX, 3)] {
            assert_eq!(*keys.in_force(size), key(seed), "size {size}");
            assert_eq!(keys.believes(size), seed >= trusted, "size {size}, key {trusted} is trusted");
        }
        assert_eq!((keys.first(), keys.newest()), (&key(1), &key(3)));
        assert!(keys.advanced().believes(21));
    }
    let keys = follow(1, &changes()).expect("a key of the ledger").advanced();
    assert!(!keys.believes(20), "only the newest key is trusted");
}

#[test]
fn a_note_of_another_known_key_is_recognized() {
    let keys = follow(1, &changes()).expect("a key of the ledger");
    let note = signer(1).sign_note("text\n").expect("a text");
    assert!(keys.another_signed(note.as_bytes(), 11));
    assert!(!keys.another_signed(note.as_bytes(), 10), "it is the key in force");
    let strange = signer(9).sign_note("text\n").expect("a text");
    assert!(!keys.another_signed(strange.as_bytes(), 11));
}

#[test]
fn changes_that_are_missing_or_out_of_order_are_refused() {
    let [first, second] = changes();
    let refused = |changes: &[(Sequence, KeyChange)]| follow(1, changes).expect_err("it breaks a rule");
    let order = "the key changes are not all there, or not in order";
    assert_eq!(refused(core::slice::from_ref(&second)), order);
    assert_eq!(refused(&[second.clone(), first.clone()]), order);
    assert_eq!(refused(&[first.clone(), first.clone()]), order);
    assert_eq!(refused(&[first.clone(), (Sequence(10), change(2, 2, 3))]), order);
    assert_eq!(refused(&[first.clone(), (Sequence(9), change(2, 2, 3))]), order);
    let other = "a key change from a different key than the one before";
    assert_eq!(refused(&[first.clone(), (Sequence(20), change(2, 1, 3))]), other);
    let again = [first, (Sequence(20), change(2, 2, 1))];
    assert_eq!(refused(&again), "a key change to an earlier key");
    assert_eq!(follow(9, &changes()), Err(STRANGE));
}

#[test]
fn the_number_of_key_changes_is_bounded() {
    let changes: Vec<(Sequence, KeyChange)> = (1..=257_u32)
        .map(|number| {
            let key = |number: u32| {
                let mut seed = [0; 32];
                seed[..4].copy_from_slice(&number.to_le_bytes());
                SignerKey::from_seed("ledger.example/x", &seed).expect("the name is fine")
            };
            (Sequence(number.into()), KeyChange::sign(number, &CLUSTER, &key(number), &key(number + 1)))
        })
        .collect();
    let trusted = VerifierKey::new("ledger.example/x", &changes[0].1.old).expect("a key");
    let follow = |count: usize| Keys::new(trusted.clone()).follow(changes[..count].iter().map(|(at, it)| (*at, it)));
    assert!(follow(KEY_CHANGES_MAX).is_ok());
    assert!(follow(KEY_CHANGES_MAX + 1).is_err());
}

#[test]
fn known_changes_and_those_of_a_fork_do_not_join() {
    let known = follow(1, &changes()).expect("a key of the ledger");
    let [first, _] = changes();
    assert_eq!(known.join(follow(1, core::slice::from_ref(&first)).expect("a prefix")), Ok(known.clone()));
    assert_eq!(known.join(Keys::new(key(2))), Ok(known.clone()));
    assert_eq!(known.join(Keys::new(key(9))), Err(STRANGE));
    for fork in [
        [first.clone(), (Sequence(20), change(2, 2, 4))],
        [first, (Sequence(21), change(2, 2, 3))],
        [(Sequence(10), change(1, 1, 4)), (Sequence(20), change(2, 4, 3))],
    ] {
        let fork = follow(1, &fork).expect("a chain of its own");
        assert!(known.join(fork).is_err_and(|rule| rule.contains("evidence of a fork")));
    }
}

#[test]
fn trust_stays_where_it_was_when_more_changes_are_shown() {
    let [first, second] = changes();
    let known = follow(2, core::slice::from_ref(&first)).expect("a key of the ledger");
    let more = [first, second];
    let keys = known.follow(more.iter().map(|(at, change)| (*at, change))).expect("it goes on");
    assert!(!keys.believes(10) && keys.believes(11) && keys.believes(21));
    assert_eq!(keys.changes().map(|(at, _)| at.0).collect::<Vec<_>>(), [10, 20]);
}
