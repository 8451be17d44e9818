use alloc::vec;

use super::*;

fn grant(name: &str, roles: Roles, key: u8) -> Grant {
    Grant { name: name.into(), roles, key: [key; 32], certificate: vec![1, 2, 3] }
}

fn founding() -> Founding {
    Founding {
        name: "grain".into(),
        spread: true,
        policy: Policy { notice_s: 1, absent_days: 2, retain_max: 3, occult: 1, anchor_every_s: 4 },
        members: vec![grant("bank", Roles::OWNER, 1), grant("mill", Roles::WRITER.and(Roles::READER), 2)],
        authorities: vec![vec![9]],
        time_authorities: vec![vec![8], vec![7]],
    }
}

fn changes() -> Vec<MemberChange> {
    let id = MemberId([5; 16]);
    vec![
        MemberChange::Grant(grant("shop", Roles::WRITER, 3)),
        MemberChange::Roles(id, Roles::READER),
        MemberChange::Key { member: id, key: [6; 32], certificate: vec![], consent: [7; 64] },
        MemberChange::Revoke(id),
        MemberChange::Dispute(id, 9),
        MemberChange::Agent { name: "scale-1".into(), key: [8; 32], prefix: b"lot-".to_vec(), until: Some(99) },
    ]
}

fn member() -> Member {
    let agency = Agency { principal: MemberId([1; 16]), prefix: b"p".to_vec(), until: None };
    let mut member = Member::new("scale-1", Roles::WRITER, Some(agency), [1; 32], 4);
    assert!(member.change_key([2; 32], 9));
    member.set_lane(LaneEnd { lane: 3, number: 7, first_jsn: 5 });
    member.set_lane(LaneEnd { lane: 0, number: 1, first_jsn: 4 });
    member.count(4, 2);
    member.disputed_from = Some(5);
    member
}

/// Checks that a value has one encoding. If a bit is flipped, the bytes either don't decode, or are
/// the one encoding of another value.
fn is_canonical<T: PartialEq + core::fmt::Debug>(
    value: &T,
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Error>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    assert_eq!(decode(bytes).as_ref(), Ok(value));
    assert!((0..bytes.len()).all(|len| decode(&bytes[..len]).is_err()));
    assert!(decode(&[bytes, &[0]].concat()).is_err());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = decode(&flipped) {
            assert_eq!(encode(&other), flipped);
            assert_ne!(other, *value);
        }
    }
}

#[test]
fn foundings_changes_and_members_have_one_encoding() {
    is_canonical(&founding(), &founding().encode(), Founding::decode, Founding::encode);
    let encode = |changes: &Vec<MemberChange>| MemberChange::encode_all(changes);
    is_canonical(&changes(), &encode(&changes()), MemberChange::decode_all, encode);
    is_canonical(&member(), &member().encode(), Member::decode, Member::encode);
}

#[test]
fn foundings_that_break_a_rule_are_refused() {
    let refused = |change: &dyn Fn(&mut Founding)| {
        let mut changed = founding();
        change(&mut changed);
        Founding::decode(&changed.encode()).expect_err("it breaks a rule")
    };
    assert_eq!(refused(&|it| it.name = "Grain".into()), Error::Malformed("name"));
    assert_eq!(refused(&|it| it.name = String::new()), Error::Malformed("name"));
    assert_eq!(refused(&|it| it.name = "g".repeat(65)), Error::Malformed("name"));
    assert_eq!(refused(&|it| it.members[0].roles = Roles::WRITER), Error::Malformed("a founding without an owner"));
    assert_eq!(refused(&|it| it.members[0].roles = Roles(3)), Error::Malformed("roles"));
    assert_eq!(refused(&|it| it.members[0].roles = Roles(33)), Error::Malformed("roles"));
    assert_eq!(refused(&|it| it.policy.occult = 3), Error::Malformed("rule of occults"));
    let alone = Error::Malformed("an owner alone that occults beside other members");
    assert_eq!(refused(&|it| it.policy.occult = 2), alone);
    let twice = Error::Malformed("two members of one name or key");
    assert_eq!(refused(&|it| it.members[1].key = [1; 32]), twice);
    assert_eq!(refused(&|it| it.members[1].name = "bank".into()), twice);
    let many = |count: usize| (0..count).map(|at| grant(&format_name(at), Roles::READER, 9)).collect::<Vec<_>>();
    assert_eq!(refused(&|it| it.members = many(257)), Error::Malformed("number of members"));
    assert_eq!(refused(&|it| it.authorities = vec![vec![]; 9]), Error::Malformed("number of authorities"));
    assert_eq!(refused(&|it| it.authorities = vec![vec![0; 8193]]), Error::Malformed("certificate"));
}

fn format_name(at: usize) -> String {
    alloc::format!("member-{at}")
}

#[test]
fn a_key_signs_the_journals_of_its_span_and_no_others() {
    let mut member = Member::new("mill", Roles::WRITER, None, [1; 32], 4);
    assert!(member.change_key([2; 32], 9));
    member.end_key(20);
    let key = |jsn| member.key_at(jsn).map(|key| key[0]);
    assert_eq!([3, 4, 8, 9, 19, 20].map(key), [None, Some(1), Some(1), Some(2), Some(2), None]);
    // A key that has ended does not end later.
    let mut again = member.clone();
    again.end_key(30);
    assert_eq!(again, member);
}

#[test]
fn lanes_stand_in_order_and_each_once() {
    let mut changed = member();
    assert_eq!([0, 1, 3].map(|lane| changed.lane(lane)), [1, 0, 7]);
    changed.lanes.reverse();
    assert_eq!(Member::decode(&changed.encode()), Err(Error::Malformed("order of lanes")));
    changed.lanes = vec![LaneEnd { lane: 16, number: 1, first_jsn: 0 }];
    assert_eq!(Member::decode(&changed.encode()), Err(Error::Malformed("order of lanes")));
}
