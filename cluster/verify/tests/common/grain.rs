//! A cluster with two ledgers of members, a compact and a spread one.

use coppice_types::{Digest, Epoch, LedgerId, MemberId, Params, Stamp};
use coppice_verify::{
    hash::{clue_hash, member_id},
    ledgers::{
        Appended, Checked, DATA, Envelope, FOUNDING, Founding, Grant, Item, MEMBERS, MemberChange, Policy, Refusal,
        Request, Roles, Signed,
    },
    note::SignerKey,
    replay::Ledger,
    shard_map::ShardMap,
};

use super::cluster;

/// Names of members, by the seed of their keys.
pub const NAMES: [&str; 4] = ["bank", "mill", "shop", "court"];

pub fn key(seed: u8) -> SignerKey {
    SignerKey::from_seed("member", &[seed; 32]).expect("a sound name")
}

pub fn public(seed: u8) -> [u8; 32] {
    key(seed).verifier().public_key()
}

/// The keys of a member that approves orders.
pub fn keys_of(member: MemberId) -> Vec<[u8; 32]> {
    let seeds = NAMES.iter().zip(0..).chain([(&"scale-1", 12)]);
    seeds
        .map(|(name, seed)| (member_id(name), public(seed)))
        .filter(|(id, _)| *id == member)
        .map(|(_, key)| key)
        .collect()
}

pub fn params() -> Params {
    Params { ledgers: true, journals_kept: true, capacity: 64, fanout: 8, tier_ratio: 2, ..Params::default() }
}

/// A cluster whose reserved keys lie in three shards.
pub fn empty() -> Ledger {
    let map = ShardMap::from_splits(&[vec![0, 0x60], vec![0, 0xb0]]).expect("the splits ascend");
    Ledger::new("ledger.example", cluster(), &[7; 32], &params(), map)
}

pub fn item(kind: u8, clues: &[&str], payload: &[u8]) -> Item {
    let clues = clues.iter().map(|clue| clue.as_bytes().to_vec()).collect();
    let nonce = coppice_verify::hash::sha256(payload).0;
    Item { kind, envelope: Envelope { nonce, clues, payload: payload.to_vec() } }
}

pub fn fields(ledger: LedgerId, name: &str, number: u64) -> Signed {
    Signed {
        cluster: cluster(),
        ledger,
        member: member_id(name),
        agent: None,
        lane: 0,
        number,
        epoch: Epoch(0),
        seen_size: 1,
        seen_root: Digest([9; 32]),
        conditions: Vec::new(),
        items: 0,
        items_root: Digest::default(),
    }
}

pub fn founding(name: &str, spread: bool) -> Founding {
    let grant =
        |at: usize, roles| Grant { name: NAMES[at].to_owned(), roles, key: public(at as u8), certificate: vec![7; at] };
    Founding {
        name: name.to_owned(),
        spread,
        policy: Policy { notice_s: 5, absent_days: 30, retain_max: 9, occult: 1, anchor_every_s: 60 },
        members: vec![
            grant(0, Roles::OWNER.and(Roles::WRITER)),
            grant(1, Roles::WRITER),
            grant(2, Roles::WRITER.and(Roles::READER)),
            grant(3, Roles::REGULATOR),
        ],
        authorities: vec![vec![1, 2, 3]],
        time_authorities: vec![],
    }
}

/// A request as an honest coordinator admits it.
pub fn admit(request: Request, seed: u8) -> Checked {
    let mut checked = request.check(cluster()).expect("a sound request");
    assert!(checked.verify(&public(seed)));
    checked
}

pub fn founds(name: &str, spread: bool) -> Request {
    let items = vec![item(FOUNDING, &[], &founding(name, spread).encode())];
    fields(LedgerId::default(), "bank", 1).sign(&key(0), items)
}

/// A request, with the seed of the key that it was admitted under; `None` for no key.
pub type Sent = (Request, Option<u8>);

/// The outcome of a request; `None` if it was not admitted.
pub type Answer = Option<Result<Appended, Refusal>>;

/// A cluster, and the requests that led there.
pub struct World {
    pub cluster: Ledger,
    /// The rounds so far.
    pub rounds: Vec<(Stamp, Vec<Sent>)>,
    pub answers: Vec<Vec<Answer>>,
    /// The timestamps of the rounds' headers.
    pub times: Vec<u64>,
    pub compact: LedgerId,
    pub spread: LedgerId,
}

impl World {
    /// Both ledgers, with some journals of each kind.
    pub fn new() -> Self {
        let (rounds, answers, times) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = Self {
            cluster: empty(),
            rounds,
            answers,
            times,
            compact: LedgerId::default(),
            spread: LedgerId::default(),
        };
        world.round(vec![(founds("grain", false), Some(0)), (founds("grain", true), Some(0))]);
        world.round(vec![(founds("oats", true), Some(0))]);
        let ids = [0, 1].map(|at| match &world.answers[at][0] {
            Some(Ok(appended)) => appended.ledger,
            other => panic!("it was not founded: {other:?}"),
        });
        [world.compact, world.spread] = ids;
        for round in 0..8_u64 {
            world.round((0..2).flat_map(|at| world.writes(ids[at], round)).collect());
        }
        world.change_members();
        world
    }

    /// Requests of two members, with up to five items and three clues each.
    fn writes(&self, ledger: LedgerId, round: u64) -> Vec<Sent> {
        let write = |seed: u8| {
            let at = round * 3 + u64::from(seed);
            let clues = [["lot-7", "bill-1", "x"], ["lot-8", "bill-1", "y"]][at as usize % 2];
            let items = (0..=at % 3).map(|item_at| {
                let clues = &clues[..(at + item_at) as usize % 4];
                item(DATA, clues, format!("{} {round} {item_at}", NAMES[usize::from(seed)]).as_bytes())
            });
            let fields = Signed { lane: seed * 3, ..fields(ledger, NAMES[usize::from(seed)], round + 1) };
            (fields.sign(&key(seed), items.collect()), Some(seed))
        };
        vec![write(1), write(2)]
    }

    fn change_members(&mut self) {
        let (ledger, mill) = (self.compact, member_id("mill"));
        let members = |name: &str, seed: u8, number: u64, changes: &[MemberChange]| {
            let items = vec![item(MEMBERS, &[], &MemberChange::encode_all(changes))];
            (fields(ledger, name, number).sign(&key(seed), items), Some(seed))
        };
        let agent = |name: &str| MemberChange::Agent {
            name: name.to_owned(),
            key: public(12),
            prefix: b"lot-".to_vec(),
            until: None,
        };
        let new_key = MemberChange::to_key(cluster(), ledger, mill, &key(11));
        self.round(vec![
            members(
                "bank",
                0,
                2,
                &[MemberChange::Dispute(mill, 3), MemberChange::Roles(member_id("shop"), Roles::READER)],
            ),
            members("mill", 1, 1, &[new_key.clone(), agent("scale-1")]),
            members("mill", 1, 2, &[new_key]),
        ]);
        let weigh = |clue: &str, number: u64| {
            let agent = Some(member_id("scale-1"));
            let items = vec![item(DATA, &[clue], b"40 kg")];
            (Signed { agent, ..fields(ledger, "mill", number) }.sign(&key(12), items), Some(12))
        };
        let write = |name: &str, lane: u8, number: u64, seed: u8| {
            let fields = Signed { lane, ..fields(ledger, name, number) };
            (fields.sign(&key(seed), vec![item(DATA, &["lot-7"], b"late")]), Some(seed))
        };
        self.round(vec![
            weigh("lot-7", 1),
            weigh("bill-1", 2),
            write("mill", 3, 9, 11),
            write("mill", 3, 10, 1),
            write("shop", 6, 9, 2),
            write("court", 0, 1, 3),
            write("nobody", 0, 1, 3),
        ]);
        self.round(vec![members("bank", 0, 3, &[MemberChange::Revoke(mill)])]);
    }

    /// Commits requests as one version. A request with a wrong form is not admitted.
    pub fn round(&mut self, requests: Vec<Sent>) -> Stamp {
        let admitted = |(request, seed): &Sent| {
            let mut checked = request.clone().check(cluster()).ok()?;
            if let Some(seed) = seed {
                checked.verify(&public(*seed));
            }
            checked.verify_approvals(keys_of);
            Some(checked)
        };
        let checked: Vec<Option<Checked>> = requests.iter().map(admitted).collect();
        let sound: Vec<Checked> = checked.iter().flatten().cloned().collect();
        let would_be = self.cluster.next_stamp();
        self.times.push(self.cluster.next_time_ms());
        let (stamp, answers) = self.cluster.append_requests(&sound);
        let mut answers = answers.into_iter();
        self.answers.push(checked.iter().map(|it| it.as_ref().and_then(|_| answers.next())).collect());
        self.rounds.push((would_be, requests));
        stamp
    }

    pub fn head(&self) -> Stamp {
        self.cluster.epochs.stamp_of(self.cluster.head().version)
    }
}

pub fn clue(ledger: LedgerId, text: &str) -> Digest {
    clue_hash(ledger, text.as_bytes())
}

pub fn member(name: &str) -> MemberId {
    member_id(name)
}
