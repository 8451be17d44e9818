//! Decoders on made-up bytes: no panic, no second encoding, and nothing accepted that was cut or
//! padded.

use crate::common::{Model, options};
use coppice_env::{Rng, SimRng, SimStorage};
use coppice_root::{COMMAND_BYTES_MAX, Command, CommandError, Manifest, Root};
use proptest::prelude::*;

/// Encodings of valid commands of every kind.
fn commands() -> Vec<Vec<u8>> {
    let mut root = Root::open_with(SimStorage::new().storage(), options()).expect("new");
    let mut model = Model::founded(50, &mut root);
    for _ in 0..60 {
        let command = model.any();
        model.accept(&mut root, &command);
    }
    let mut commands: Vec<Vec<u8>> = model.raft.iter().map(|(_, bytes, _)| bytes.clone()).collect();
    commands.push(Command::AppendHeader(model.key_change(1, 0, 1)).encode().expect("within limits"));
    commands
}

/// Checks that whatever decodes encodes to the same bytes.
fn check(bytes: &[u8]) {
    if let Ok(command) = Command::decode(bytes) {
        assert_eq!(command.encode().expect("decoded commands are within limits"), bytes);
    }
}

#[test]
fn commands_survive_encoding_and_nothing_else_does() {
    for bytes in commands() {
        assert!(Command::decode(&bytes).is_ok());
        check(&bytes);
        for len in 0..bytes.len() {
            assert!(Command::decode(&bytes[..len]).is_err());
        }
        assert!(Command::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}

#[test]
fn mutated_commands_decode_to_themselves_or_not_at_all() {
    let mut rng = SimRng::new(51);
    let good = commands();
    for _ in 0..1_000_000 {
        let mut bytes = good[rng.below(good.len() as u64) as usize].clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0xff][rng.below(4) as usize],
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, rng.below(256) as u8),
            }
        }
        check(&bytes);
    }
}

/// A machine that is given any decodable command stays sound, or says why it stops.
#[test]
fn mutated_commands_never_panic_in_apply() {
    let mut rng = SimRng::new(52);
    let mut root = Root::open_with(SimStorage::new().storage(), options()).expect("new");
    let mut model = Model::founded(53, &mut root);
    let mut index = 1000;
    for _ in 0..20_000 {
        let mut bytes = model.any().encode().expect("within limits");
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        index += 1;
        let before = root.log_root();
        let size = root.log_size();
        match root.apply(index, &bytes) {
            // Only parts that the header does not commit to (a clock, a name, a batch hash of a
            // session) can be changed unnoticed.
            Ok(_) if root.log_size() > size => {
                let append = Command::decode(&bytes).expect("applied");
                let Command::AppendHeader(_) = append else { panic!("{append:?} appended a header") };
                root = Root::open_with(SimStorage::new().storage(), options()).expect("new");
                model = Model::founded(rng.next_u64(), &mut root);
            }
            Ok(_) | Err(_) => assert_eq!((root.log_size(), root.log_root()), (size, before)),
        }
    }
}

#[test]
fn a_count_that_lies_allocates_nothing() {
    // Version, kind, term, a header of 2 bytes, then 2^32-1 changed leaves in no bytes at all.
    let mut bytes = vec![1, 1];
    bytes.extend([0; 8]);
    bytes.extend([2, 0, 1, 1]);
    bytes.extend([0xff; 4]);
    assert!(matches!(Command::decode(&bytes), Err(CommandError::Malformed(_))));
    let large = vec![1; COMMAND_BYTES_MAX + 1];
    assert_eq!(Command::decode(&large), Err(CommandError::TooLarge(COMMAND_BYTES_MAX + 1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0_u8..4) {
        check(&bytes);
        drop(Manifest::decode(&bytes));
        check(&[&[1, kind][..], &bytes].concat());
    }
}
