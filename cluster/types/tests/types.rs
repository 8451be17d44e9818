//! The codec refuses bytes that no writer produces. Parameters and names keep their limits.

use std::collections::BTreeSet;

use coppice_types::{
    Bytes, Change, ClusterId, Condition, Digest, ErrorKind, GroupId, Operation, Params, Precondition, Reason,
    SessionId, ShardId, Stamp, Version, causes, chain,
    codec::{Error, Reader, Writer},
};

#[test]
fn values_are_read_as_they_were_written() {
    let mut out = Writer::new();
    out.u8(1);
    out.u16(0x0203);
    out.u32(0x0405_0607);
    out.u64(0x0809_0a0b_0c0d_0e0f);
    out.flag(true);
    out.str16(b"short");
    out.str32(b"long");
    out.digest(&Digest([7; 32]));
    out.stamp(Stamp::new(1, 2));
    out.raw(&[9; 16]);
    assert!(!out.is_empty());
    let (len, bytes) = (out.len(), out.into_bytes());
    assert_eq!(len, bytes.len());
    assert_eq!(bytes[..7], [1, 3, 2, 7, 6, 5, 4], "little-endian");
    let mut input = Reader::new(&bytes);
    assert_eq!(input.u8(), Ok(1));
    assert_eq!(input.u16(), Ok(0x0203));
    assert_eq!(input.u32(), Ok(0x0405_0607));
    assert_eq!(input.u64(), Ok(0x0809_0a0b_0c0d_0e0f));
    assert_eq!(input.flag("flag"), Ok(true));
    assert_eq!(input.str16(), Ok(&b"short"[..]));
    assert_eq!(input.str32(), Ok(&b"long"[..]));
    assert_eq!(input.digest(), Ok(Digest([7; 32])));
    assert_eq!(input.stamp(), Ok(Stamp::new(1, 2)));
    assert_eq!(input.remaining(), 16);
    assert_eq!(input.clone().finish(), Err(Error::Trailing));
    assert_eq!(input.bytes16(), Ok([9; 16]));
    assert_eq!(input.finish(), Ok(()));
}

#[test]
fn lengths_beyond_the_bytes_at_hand_are_refused() {
    assert_eq!(Reader::new(&[0xff, 0xff, 1]).str16(), Err(Error::Truncated));
    assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 1]).str32(), Err(Error::Truncated));
    assert_eq!(Reader::new(&[1]).u16(), Err(Error::Truncated));
    assert_eq!(Reader::new(&[0; 31]).digest(), Err(Error::Truncated));
    assert_eq!(Reader::new(&[0; 15]).stamp(), Err(Error::Truncated));
    assert_eq!(Reader::new(&[2]).flag("flag"), Err(Error::Malformed("flag")));
    assert_eq!(Reader::new(&[]).u8(), Err(Error::Truncated));
}

#[test]
fn operations_survive_encoding() {
    for change in [Change::Put(b"value".to_vec().into()), Change::Put(Vec::new().into()), Change::Delete] {
        let operation = Operation { key: b"key".to_vec().into(), change };
        let mut out = Writer::new();
        operation.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(operation.encoded_bytes(), bytes.len());
        assert_eq!(Operation::decode(&mut Reader::new(&bytes), Bytes::copy_from_slice), Ok(operation));
        for len in 0..bytes.len() {
            assert!(Operation::decode(&mut Reader::new(&bytes[..len]), Bytes::copy_from_slice).is_err());
        }
    }
    assert_eq!(
        Operation::decode(&mut Reader::new(&[2, 0, 0]), Bytes::copy_from_slice),
        Err(Error::Malformed("operation kind"))
    );
}

#[test]
fn preconditions_have_different_bytes() {
    let conditions =
        [Condition::Absent, Condition::LastChanged(Stamp::new(1, 2)), Condition::ValueHash(Digest([1; 32]))];
    let encodings: BTreeSet<Vec<u8>> = conditions
        .into_iter()
        .map(|condition| {
            let mut out = Writer::new();
            Precondition { key: b"key".to_vec(), condition }.encode(&mut out);
            out.into_bytes()
        })
        .collect();
    assert_eq!(encodings.iter().map(Vec::len).collect::<Vec<_>>(), [22, 6, 38]);
}

#[test]
fn short_numbers_have_one_spelling() {
    let spelled = |number: u64| {
        let mut out = Writer::new();
        out.short(number);
        out.into_bytes()
    };
    for bits in 0..=64_u32 {
        for number in [1_u64.checked_shl(bits).unwrap_or(0), 1_u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1)] {
            let bytes = spelled(number);
            assert_eq!(bytes.len() as u32, (u64::BITS - number.leading_zeros()).div_ceil(7).max(1));
            let mut input = Reader::new(&bytes);
            assert_eq!((input.short(), input.finish()), (Ok(number), Ok(())));
            for len in 0..bytes.len() {
                assert_eq!(Reader::new(&bytes[..len]).short(), Err(Error::Truncated));
            }
            let mut longer = bytes.clone();
            *longer.last_mut().expect("at least a byte") |= 0x80;
            longer.push(0);
            assert_eq!(Reader::new(&longer).short(), Err(Error::Malformed("short number")), "{number}");
        }
    }
    assert_eq!(spelled(300), [0xac, 2]);
    let refused: [&[u8]; 3] = [&[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], &[0x80; 11]];
    for bytes in refused {
        assert_eq!(Reader::new(bytes).short(), Err(Error::Malformed("short number")));
    }
    assert_eq!(Reader::new(&[0xac, 2]).short_as::<u16>("count"), Ok(300));
    assert_eq!(Reader::new(&[0xac, 2]).short_as::<u8>("count"), Err(Error::Malformed("count")));
}

#[test]
fn parameters_survive_encoding() {
    for ledgers in [false, true] {
        let params = Params { capacity: 99, journals_kept: true, ledgers, ..Params::default() };
        assert_eq!(params.check(), Ok(()));
        let own = params.protocol_version();
        let mut out = Writer::new();
        params.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(Params::decode(&mut Reader::new(&bytes)), Ok(params));
        for len in 0..bytes.len() {
            assert_eq!(Params::decode(&mut Reader::new(&bytes[..len])), Err(Error::Truncated));
        }
        let mut other = bytes.clone();
        other[0] = 3;
        assert_eq!(Params::decode(&mut Reader::new(&other)), Err(Error::Malformed("parameter format")));
        for version in (0..5).filter(|version| u32::from(*version) != own) {
            let mut other = bytes.clone();
            other[1] = version;
            let decoded = Params::decode(&mut Reader::new(&other));
            let Err(Error::Malformed(what)) = decoded else { panic!("another protocol") };
            assert!(what.starts_with("protocol version: this build follows only versions 2 and 3"), "{what}");
        }
    }
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let refused = |params: Params| params.check().expect_err("out of range").0;
    let good = Params::default;
    let ledgers = || Params { ledgers: true, journals_kept: true, ..good() };
    assert_eq!(ledgers().check(), Ok(()));
    let without = Params { journals_kept: false, ..ledgers() };
    assert_eq!(refused(without), "ledgers without journals_kept");
    assert_eq!(refused(Params { key_bytes_max: 255, ..ledgers() }), "ledgers with key_bytes_max below 256");
    let small = Params { value_bytes_max: 65_535, ..ledgers() };
    assert_eq!(refused(small), "ledgers with value_bytes_max below 65536");
    assert_eq!(refused(Params { inline_bytes: 129, ..ledgers() }), "ledgers with inline_bytes above 128");
    assert_eq!(refused(Params { key_bytes_max: 0, ..good() }), "key_bytes_max");
    assert_eq!(refused(Params { key_bytes_max: u32::MAX, ..good() }), "key_bytes_max");
    assert_eq!(refused(Params { value_bytes_max: 0, ..good() }), "value_bytes_max");
    assert_eq!(refused(Params { batch_bytes_max: 1, ..good() }), "batch_bytes_max");
    assert_eq!(refused(Params { message_bytes_max: 1, ..good() }), "message_bytes_max");
    assert_eq!(refused(Params { session_window: 0, ..good() }), "session_window");
    assert_eq!(refused(Params { capacity: 7, ..good() }), "capacity");
    assert_eq!(refused(Params { fanout: 3, ..good() }), "fanout");
    assert_eq!(refused(Params { node_bytes: 2335, ..good() }), "node_bytes");
    assert_eq!(refused(Params { node_bytes: 8193, ..good() }), "node_bytes");
    assert_eq!(refused(Params { inline_bytes: 1025, ..good() }), "inline_bytes");
    assert_eq!(refused(Params { filter_bits: 3, ..good() }), "filter_bits");
    assert_eq!(refused(Params { tree_limit: 2, ..good() }), "tree_limit");
    assert_eq!(refused(Params { tier_ratio: 1, ..good() }), "tier_ratio");
    assert_eq!(Params { node_bytes: 2336, ..good() }.check(), Ok(()));
    assert_eq!(Params { node_bytes: 4033, ..good() }.entry_weight_min(), 64);
}

#[test]
fn groups_have_numbers() {
    assert_eq!(GroupId::Root.number(), 0);
    assert_eq!(GroupId::Shard(ShardId(0)).number(), 1);
    for number in [0, 1, 77, u32::MAX] {
        assert_eq!(GroupId::from_number(number).number(), number);
    }
    assert_eq!(GroupId::Shard(ShardId(4)).to_string(), "shard-4");
    assert_eq!(GroupId::Root.to_string(), "root");
}

#[test]
fn names_are_shown_in_hex_and_stamps_as_epoch_and_version() {
    assert_eq!(ClusterId([0xab; 16]).to_string(), "ab".repeat(16));
    assert_eq!(format!("{:?}", SessionId([1; 16])), "01".repeat(16));
    assert_eq!(Digest::from_slice(&[0; 31]), None);
    assert_eq!(Digest::from_slice(&[3; 32]), Some(Digest([3; 32])));
    assert_eq!(Stamp::new(1, 22).to_string(), "1.22");
    assert_eq!(Version(4).next(), Version(5));
    assert!(Stamp::new(1, 3) > Stamp::new(0, 9), "a later epoch is newer");
}

#[test]
fn reasons_have_names_of_their_own() {
    let names: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
    for reason in Reason::ALL {
        assert_eq!(Reason::from_name(reason.name()), Some(*reason));
        assert_eq!(reason.to_string(), reason.name());
    }
    assert_eq!(Reason::from_name("NO_SUCH_REASON"), None);
    assert_eq!(Reason::Pruned.kind(), ErrorKind::Conflict);
}

#[test]
fn an_error_is_told_with_all_that_caused_it() {
    #[derive(Debug)]
    struct Because(&'static str, Option<Box<Because>>);
    impl std::fmt::Display for Because {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }
    impl std::error::Error for Because {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }
    let because = |words, cause| Because(words, Some(Box::new(cause)));
    let error = because("no answer", because("no connection", Because("no route", None)));
    assert_eq!(chain(&error), "no answer: no connection: no route");
    assert_eq!(causes(&error).filter_map(|cause| cause.downcast_ref::<Because>()).count(), 3);
}
