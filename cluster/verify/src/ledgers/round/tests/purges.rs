//! Purges: who must sign, what each step does to the records, and what is refused.

use super::*;
use crate::ledgers::{Absent, AuthorOf, Purge, PurgeOrder, PurgeState, Retained, author_key, purge_key, retained_key};

const NOTICE_S: u32 = 60;
const DAY_MS: u64 = 86_400_000;
const NOT_THIS_PURGE: Refusal = Refusal::Order("the ledger's newest purge is another one, or in another state");

fn alone(action: Action) -> Order {
    Order { until: 999, action }
}

impl World {
    /// A ledger with journals 1 to 10 of the mill, two to a request, and 11 of the shop.
    fn to_purge() -> Self {
        let mut world = Self::default();
        let policy = Policy { notice_s: NOTICE_S, absent_days: 1, retain_max: 3, occult: 1, ..Policy::default() };
        let mut founding = Founding { policy, ..founding("grain") };
        founding.members.push(grant("shop", Roles::WRITER, 4));
        let items = vec![item(FOUNDING, &[], &founding.encode())];
        let founded = world.commit(&[request(signed(LedgerId::default(), "bank", 1), 1, items)]).remove(0);
        world.ledger = founded.expect("it founds").ledger;
        for at in 0..5 {
            let items = vec![item(DATA, &["lot-7"], &[at]), item(DATA, &["lot-7", "bill"], &[at])];
            assert!(world.one(request(signed(world.ledger, "mill", u64::from(at) + 1), 2, items)).is_ok());
        }
        assert!(world.data("shop", 4).is_ok());
        world
    }

    fn head(&self) -> Head {
        Head::decode(&self.records[&head_key(self.ledger)]).expect("a head")
    }

    fn newest_purge(&self) -> Purge {
        Purge::decode(&self.records[&purge_key(self.ledger)]).expect("a purge")
    }

    fn clue_of(&self, text: &str) -> (Clue, Vec<u64>) {
        let clue = clue_hash(self.ledger, text.as_bytes());
        let record = Clue::decode(&self.records[&clue_key(self.ledger, &clue)]).expect("a clue");
        let there = |ordinal: &u64| self.records.contains_key(&cell_key(self.ledger, &clue, *ordinal));
        (record, (1..=record.count).filter(there).collect())
    }

    /// The order to purge what lies below a number, as it should be.
    fn purge_before(&self, before: u64) -> PurgeOrder {
        let edge = self.head().edge;
        let author = |number| self.records.get(&author_key(self.ledger, number));
        let first = |record: &Bytes| AuthorOf::decode(record).expect("an author").first_jsn;
        let authors = (1..).map_while(author).filter(|record| first(record) < before).count();
        let authors = u32::try_from(authors).expect("few");
        let (size, root) = (edge.size(), edge.root());
        PurgeOrder { before, closes: false, size, root, authors, absent: Vec::new() }
    }

    fn purge(&self, order: &PurgeOrder, others: &[(&str, u8)]) -> Checked {
        self.ordered(alone(Action::Purge(order.clone())), BANK, others)
    }

    fn step(&mut self, action: Action, author: (&str, u8)) -> Result<Appended, Refusal> {
        self.one(self.ordered(alone(action), author, &[]))
    }

    /// Orders a purge with all signatures. Returns the number of the order.
    fn purged(&mut self, before: u64) -> u64 {
        let order = self.purge_before(before);
        let signers: &[(&str, u8)] = if order.authors > 2 { &[MILL, SHOP] } else { &[MILL] };
        self.one(self.purge(&order, signers)).expect("all have signed").first_jsn
    }

    fn wait(&mut self, seconds: u64) {
        self.now_ms += seconds * 1000;
    }
}

const BANK: (&str, u8) = ("bank", 1);
const MILL: (&str, u8) = ("mill", 2);
const COURT: (&str, u8) = ("court", 3);
const SHOP: (&str, u8) = ("shop", 4);

#[test]
fn a_purge_waits_for_its_notice_and_then_takes_all_but_what_is_kept() {
    let mut world = World::to_purge();
    let occult = world.order_of(&[3]);
    assert!(world.one(world.ordered(occult, BANK, &[COURT])).is_ok());
    let (before, root) = (world.records.clone(), world.head().edge);
    let order = world.purged(9);
    let pending = world.newest_purge();
    assert_eq!((pending.order, pending.before, pending.state), (order, 9, PurgeState::Pending));
    let sweep = |from, to| Action::Sweep { purge: order, from, to };
    let retain = Action::Retain { purge: order, journals: vec![5, 6] };
    assert!(world.step(retain, SHOP).is_ok(), "any member keeps what it needs");
    world.wait(u64::from(NOTICE_S) - 1);
    let early = Err(Refusal::Order("the purge's time of notice is not over"));
    assert_eq!(world.step(sweep(0, 4), BANK), early);
    world.wait(1);
    assert!(world.step(sweep(0, 4), BANK).is_ok());
    assert_eq!((world.head().purged, world.newest_purge().state), (4, PurgeState::Sweeping));
    assert!(world.step(sweep(4, 9), BANK).is_ok());
    let purge = world.newest_purge();
    assert_eq!((world.head().purged, purge.state, purge.swept), (9, PurgeState::Swept, Version(world.version)));
    for jsn in 0..9 {
        let is_kept = [0, 5, 6].contains(&jsn);
        for key in [leaf_key(world.ledger, jsn), envelope_key(world.ledger, jsn)] {
            assert_eq!(world.records.get(&key), before.get(&key).filter(|_| is_kept), "journal {jsn}");
        }
        assert_eq!(world.records.contains_key(&mark_key(world.ledger, jsn)), jsn == 3, "marks stay");
    }
    // Journals 1 to 8 have ordinals 1 to 8 of the one clue, and the even ones those of the other.
    let (lot, cells) = world.clue_of("lot-7");
    assert_eq!((lot.count, lot.gone, cells), (11, 8, vec![5, 6, 9, 10, 11]));
    let (bill, cells) = world.clue_of("bill");
    assert_eq!((bill.count, bill.gone, cells), (5, 4, vec![3, 5]));
    let leaves: Vec<Leaf> =
        (1..9).map(|jsn| Leaf::decode(&before[&leaf_key(world.ledger, jsn)]).expect("a leaf")).collect();
    let gone = leaves.iter().fold(Digest::default(), |chain, leaf| clue_chain(&chain, leaf.jsn, &leaf.hash()));
    assert_eq!(lot.chain_gone, gone);
    let chain = (9..12).fold(gone, |chain, jsn| clue_chain(&chain, jsn, &world.leaf(jsn).hash()));
    assert_eq!(lot.chain, chain, "the chain goes on from what is gone");
    let tile = |level, index| world.records.get(&tile_key(world.ledger, level, index)).map(|tile| tile.to_vec());
    let seen = world.head().edge.before(root.size(), tile).expect("its tile is there");
    assert_eq!(seen.root(), root.root(), "the list has only grown");
    // The next purge goes on behind this one.
    assert!(world.data("mill", 2).is_ok());
    assert_eq!(
        world.one(world.purge(&world.purge_before(9), &[MILL])),
        Err(Refusal::Order("these journals are purged already"))
    );
    let next = world.purged(11);
    world.wait(u64::from(NOTICE_S));
    assert!(world.step(Action::Sweep { purge: next, from: 9, to: 11 }, BANK).is_ok());
    assert!(world.records.contains_key(&leaf_key(world.ledger, 5)), "what is kept stays kept");
}

#[test]
fn all_whose_journals_go_sign_a_purge() {
    let mut world = World::to_purge();
    let order = world.purge_before(11);
    assert_eq!(order.authors, 2, "the shop begins behind it");
    let missing = Refusal::Incomplete("all members whose journals it purges");
    let with = |change: &dyn Fn(&mut PurgeOrder), others: &[(&str, u8)]| {
        let mut order = order.clone();
        change(&mut order);
        world.purge(&order, others)
    };
    let not_absent = Refusal::Incomplete("a member that it calls absent, and that is not");
    let absent = Absent { member: member_id("mill"), revocation: 3 };
    let mut unsigned = with(&|_| {}, &[MILL]);
    unsigned.verify_approvals(|_| Vec::new());
    let key = Refusal::Incomplete("the key in force of a member that it names");
    let refused = [
        (missing.clone(), with(&|_| {}, &[])),
        (missing.clone(), with(&|_| {}, &[SHOP, COURT])),
        (missing.clone(), with(&|it| it.authors = 1, &[])),
        (Refusal::Incomplete("so many authors as it names"), with(&|it| it.authors = 5, &[MILL, SHOP])),
        (missing, with(&|it| (it.before, it.authors) = (12, 2), &[MILL])),
        (not_absent, with(&|it| it.absent = vec![absent], &[COURT])),
        (key.clone(), unsigned),
        (key, with(&|_| {}, &[("mill", 9)])),
        (Refusal::Role("an owner"), world.ordered(alone(Action::Purge(order.clone())), MILL, &[BANK])),
        (
            Refusal::Order("the ledger never had the root that the order names"),
            with(&|it| it.root = Digest([1; 32]), &[MILL]),
        ),
        (Refusal::Order("the ledger never had the root that the order names"), with(&|it| it.size = 99, &[MILL])),
        (Refusal::Order("the purge would end within a request"), with(&|it| it.before = 10, &[MILL])),
        (
            Refusal::Order("an order that closes a ledger purges all of its journals"),
            with(&|it| it.closes = true, &[MILL]),
        ),
        (
            Refusal::Order("the ledger has more journals than the order allows"),
            world.ordered(Order { until: 11, action: Action::Purge(order.clone()) }, BANK, &[MILL]),
        ),
    ];
    for (refusal, request) in refused {
        assert_eq!(world.one(request), Err(refusal));
    }
    assert!(world.one(world.purge(&order, &[MILL])).is_ok());
    let another = world.purge(&world.purge_before(3), &[MILL]);
    assert_eq!(world.one(another), Err(Refusal::Order("another purge of the ledger is under way")));
}

#[test]
fn the_root_that_signers_have_seen_may_be_an_older_one() {
    let mut world = World::to_purge();
    let order = PurgeOrder { ..world.purge_before(5) };
    // The tile that holds the edge of that size is full by now.
    for _ in 0..20 {
        assert!(world.data("mill", 2).is_ok());
    }
    assert!(world.one(world.purge(&order, &[MILL])).is_ok());
}

#[test]
fn the_regulator_signs_for_members_that_have_had_no_key_for_long() {
    let mut world = World::to_purge();
    let revoked =
        world.change(&[MemberChange::Revoke(member_id("mill"))], "bank", 1).expect("it ends the key").first_jsn;
    let absent = |revocation| PurgeOrder {
        absent: vec![Absent { member: member_id("mill"), revocation }],
        ..world.purge_before(5)
    };
    let (order, wrong) = (absent(revoked), absent(revoked - 1));
    let not_absent = || Refusal::Incomplete("a member that it calls absent, and that is not");
    let stands_in = Refusal::Incomplete("a regulator, in the place of absent members");
    world.now_ms += DAY_MS - 1;
    assert_eq!(world.one(world.purge(&order, &[COURT])), Err(not_absent()));
    world.now_ms += 1;
    assert_eq!(world.one(world.purge(&wrong, &[COURT])), Err(not_absent()));
    assert_eq!(world.one(world.purge(&order, &[SHOP])), Err(stands_in));
    assert!(world.one(world.purge(&order, &[COURT])).is_ok());
}

#[test]
fn what_members_keep_has_bounds() {
    let mut world = World::to_purge();
    let order = world.purged(9);
    let retain = |purge, journals| Action::Retain { purge, journals };
    let refused = [
        (NOT_THIS_PURGE, retain(order + 1, vec![1, 2])),
        (Refusal::Order("the purge does not take a journal that is to be kept"), retain(order, vec![9, 10])),
        (Refusal::Order("only journals with data need to be kept"), retain(order, vec![0])),
        (Refusal::Order("journals are kept with all others of their request"), retain(order, vec![1])),
        (Refusal::Order("journals are kept with all others of their request"), retain(order, vec![2, 3])),
        (Refusal::Order("the ledger's policy lets a member keep fewer journals"), retain(order, vec![1, 2, 3, 4])),
    ];
    for (refusal, action) in refused {
        assert_eq!(world.step(action, SHOP), Err(refusal));
    }
    assert!(world.step(retain(order, vec![1, 2]), SHOP).is_ok());
    let fewer = Err(Refusal::Order("the ledger's policy lets a member keep fewer journals"));
    assert_eq!(world.step(retain(order, vec![3, 4]), SHOP), fewer);
    assert_eq!(
        world.step(retain(order, vec![1, 2]), MILL),
        Err(Refusal::Order("a journal of the order is kept already"))
    );
    assert!(world.step(retain(order, vec![3, 4]), MILL).is_ok(), "each member has a number of its own");
    let kept = Retained::decode(&world.records[&retained_key(world.ledger, 3)]).expect("it is kept");
    assert_eq!(kept.member, member_id("mill"));
    // Once it sweeps, nothing more is kept.
    world.wait(u64::from(NOTICE_S));
    assert!(world.step(Action::Sweep { purge: order, from: 0, to: 1 }, BANK).is_ok());
    assert_eq!(world.step(retain(order, vec![5, 6]), MILL), Err(NOT_THIS_PURGE));
    assert_eq!(world.step(Action::Recall { purge: order }, MILL), Err(NOT_THIS_PURGE));
}

#[test]
fn those_whom_a_purge_affects_recall_it_in_time() {
    for (recalls, may) in [(BANK, true), (MILL, true), (COURT, true), (SHOP, false)] {
        let mut world = World::to_purge();
        let order = world.purged(9);
        let answer = world.step(Action::Recall { purge: order }, recalls);
        if !may {
            let role = "an owner, a regulator, or a member whose journals would be purged";
            assert_eq!(answer, Err(Refusal::Role(role)));
            continue;
        }
        assert!(answer.is_ok());
        assert_eq!(world.newest_purge().state, PurgeState::Recalled);
        world.wait(u64::from(NOTICE_S));
        assert_eq!(world.step(Action::Sweep { purge: order, from: 0, to: 9 }, BANK), Err(NOT_THIS_PURGE));
        assert_eq!(world.head().purged, 0);
        assert_ne!(world.purged(9), order, "it can be ordered again");
    }
}

#[test]
fn a_sweep_takes_the_next_journals_of_its_purge_and_no_others() {
    let mut world = World::to_purge();
    let order = world.purged(9);
    world.wait(u64::from(NOTICE_S));
    let sweep = |purge, from, to| Action::Sweep { purge, from, to };
    let next = Refusal::Order("a sweep begins where the one before ended, and stays below the purge's end");
    for (refusal, action, author) in [
        (NOT_THIS_PURGE, sweep(order - 1, 0, 4), BANK),
        (next.clone(), sweep(order, 1, 4), BANK),
        (next.clone(), sweep(order, 0, 10), BANK),
        (Refusal::Role("an owner"), sweep(order, 0, 4), MILL),
    ] {
        assert_eq!(world.step(action, author), Err(refusal));
    }
    // A sweep whose leaves are not told, or are others, is none.
    let mut blind = world.ordered(alone(sweep(order, 0, 4)), BANK, &[]);
    blind.take_swept(Vec::new());
    assert_eq!(world.one(blind), Err(Refusal::Damaged));
    // In one version: an occult and a sweep of the same journal, then two sweeps.
    let occult = world.order_of(&[2]);
    let occult = world.ordered(Order { until: 999, ..occult }, COURT, &[BANK]);
    let answers = world.commit(&[occult, world.ordered(alone(sweep(order, 0, 4)), BANK, &[])]);
    assert!(answers[0].is_ok());
    let occulted = Refusal::Order("a journal was occulted in this version: sweep it in the next one");
    assert_eq!(answers[1], Err(occulted));
    let first = world.ordered(alone(sweep(order, 0, 4)), BANK, &[]);
    let number = first.signed.number + 1;
    let payload = Ordered { order: alone(sweep(order, 4, 9)), approvals: Vec::new() }.encode();
    let mut second = request(signed(world.ledger, "bank", number), 1, vec![item(ORDER, &[], &payload)]);
    second.take_swept((4..9).map(|jsn| world.leaf(jsn)).collect());
    let answers = world.commit(&[first, second]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!((world.head().purged, world.clue_of("lot-7").0.gone), (9, 8));
    // What is swept is not occulted.
    let target = Target { jsn: 1, leaf: Digest([1; 32]) };
    let late = world.ordered(alone(Action::Occult(vec![target])), BANK, &[COURT]);
    assert_eq!(world.one(late), Err(Refusal::Order("a journal of the order was purged")));
}

#[test]
fn a_ledger_that_is_closed_takes_orders_only_and_frees_its_name_in_the_end() {
    let mut world = World::to_purge();
    let close = |world: &World| PurgeOrder { closes: true, ..world.purge_before(world.size()) };
    let order = close(&world);
    let ordered = world.one(world.purge(&order, &[MILL, SHOP])).expect("all have signed").first_jsn;
    assert!(world.head().is_closed);
    assert_eq!(world.data("mill", 2), Err(Refusal::Closed));
    assert_eq!(world.change(&[MemberChange::Revoke(member_id("mill"))], "bank", 1), Err(Refusal::Closed));
    assert!(world.step(Action::Recall { purge: ordered }, MILL).is_ok());
    assert!(world.data("mill", 2).is_ok(), "the recall opens it again");
    let order = close(&world);
    let ordered = world.one(world.purge(&order, &[MILL, SHOP, COURT])).expect("all have signed").first_jsn;
    world.wait(u64::from(NOTICE_S));
    assert_eq!(world.one(founds("grain")), Err(Refusal::NameTaken));
    let last = world.ordered(alone(Action::Sweep { purge: ordered, from: 0, to: order.before }), BANK, &[]);
    // Another ledger takes the name in the same version. Its request differs, and so its id.
    let again = request(
        signed(LedgerId::default(), "mill", 1),
        2,
        vec![item(FOUNDING, &[], &{
            let members = vec![grant("mill", Roles::OWNER, 2)];
            Founding { members, ..founding("grain") }.encode()
        })],
    );
    let answers = world.commit(&[last, again]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(world.records[&name_key("grain")], answers[1].as_ref().expect("it founds").ledger.0.to_vec());
    assert!(world.head().is_closed);
    assert_eq!(world.data("shop", 4), Err(Refusal::Closed));
    // Another purge can't close it again, and so takes no name from the other ledger.
    let again = world.one(world.purge(&close(&world), &[MILL, SHOP, COURT]));
    assert_eq!(again, Err(Refusal::Order("the ledger is closed already")));
}
