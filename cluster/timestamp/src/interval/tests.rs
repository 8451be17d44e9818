//! Rules for anchors, and a model of authorities with clocks of their own.

use proptest::prelude::*;

use super::*;

const MINUTE: i128 = 60_000;
const HOUR: i128 = 60 * MINUTE;

fn ms(milliseconds: i128) -> Moment {
    Moment::from_nanoseconds(milliseconds * 1_000_000)
}

fn stamp(authority: usize, time: i128, accuracy: i128) -> Stamp {
    let signer = [u8::try_from(authority).expect("few authorities"); 32];
    Stamp { authority, signer, earliest: ms(time - accuracy), latest: ms(time + accuracy) }
}

fn anchor(stamped_size: u64, sequence: u64, stamps: &[Stamp]) -> Anchor {
    Anchor { stamped_size, sequence, stamps: stamps.to_vec() }
}

fn timeline(anchors: &[Anchor], quorum: usize) -> Result<Timeline, Error> {
    Timeline::new(anchors, NonZeroUsize::new(quorum).expect("one or more"))
}

fn bounds(timeline: &Timeline, sequence: u64) -> (Option<i128>, Option<i128>) {
    let interval = timeline.interval(sequence).expect("no contradiction");
    let shown = |moment: Option<Moment>| moment.map(|moment| moment.nanoseconds() / 1_000_000);
    (shown(interval.lower), shown(interval.upper))
}

#[test]
fn an_entry_lies_between_the_anchor_before_it_and_the_stamp_over_it() {
    let anchors = [anchor(5, 7, &[stamp(0, 1000, 10)]), anchor(9, 10, &[stamp(0, 2000, 20)])];
    let timeline = timeline(&anchors, 1).expect("anchors in order");
    assert_eq!(bounds(&timeline, 4), (None, Some(1010)), "stamped by the first");
    assert_eq!(bounds(&timeline, 5), (None, Some(2020)), "entry 5 is not among the first five");
    assert_eq!(bounds(&timeline, 7), (None, Some(2020)), "the anchor itself holds the stamp, and may be older");
    assert_eq!(bounds(&timeline, 8), (Some(990), Some(2020)));
    assert_eq!(bounds(&timeline, 9), (Some(990), None));
    assert_eq!(bounds(&timeline, 10), (Some(990), None));
    assert_eq!(bounds(&timeline, 11), (Some(1980), None));
}

#[test]
fn a_log_without_anchors_has_no_bounds() {
    let timeline = timeline(&[], 1).expect("no anchors");
    assert_eq!(bounds(&timeline, 0), (None, None));
    assert!(!timeline.interval(0).expect("no bounds").is_within(Duration::MAX));
    assert!(timeline.interval(0).expect("no bounds").admits(ms(5), Duration::ZERO));
}

#[test]
fn each_bound_is_the_worst_of_the_quorum() {
    let stamps = [stamp(0, 1000, 10), stamp(1, 1100, 20), stamp(2, 5000, 0)];
    let anchors = [anchor(5, 5, &stamps), anchor(9, 9, &[])];
    for (quorum, after, before) in
        [(1, Some(5000), Some(1010)), (2, Some(1080), Some(1120)), (3, Some(990), Some(5000)), (4, None, None)]
    {
        let timeline = timeline(&anchors, quorum).expect("anchors in order");
        assert_eq!((bounds(&timeline, 6).0, bounds(&timeline, 4).1), (after, before), "quorum {quorum}");
    }
}

#[test]
fn stamps_of_several_anchors_make_up_a_quorum() {
    let anchors = [anchor(3, 3, &[stamp(0, 1000, 0)]), anchor(3, 4, &[stamp(1, 1500, 0)])];
    let timeline = timeline(&anchors, 2).expect("one size may be stamped again");
    assert_eq!(bounds(&timeline, 2), (None, Some(1500)));
    assert_eq!(bounds(&timeline, 4), (None, None));
    assert_eq!(bounds(&timeline, 5), (Some(1000), None));
}

#[test]
fn anchors_out_of_order_are_refused() {
    let one = [stamp(0, 1000, 0)];
    let refused = |anchors: &[Anchor]| timeline(anchors, 1).expect_err("out of order");
    assert_eq!(refused(&[anchor(5, 4, &one)]), Error::StampedItself { sequence: 4 });
    assert_eq!(refused(&[anchor(5, 6, &one), anchor(5, 6, &one)]), Error::Sequence { sequence: 6 });
    assert_eq!(refused(&[anchor(5, 6, &one), anchor(5, 5, &one)]), Error::Sequence { sequence: 5 });
    assert_eq!(refused(&[anchor(5, 6, &one), anchor(4, 7, &one)]), Error::StampedSize { sequence: 7 });
}

#[test]
fn no_authority_counts_twice() {
    let refused = |anchors: &[Anchor]| timeline(anchors, 2).expect_err("one authority");
    let twice = [stamp(3, 1000, 0), stamp(3, 1001, 0)];
    assert_eq!(refused(&[anchor(5, 6, &twice)]), Error::StampedTwice { sequence: 6, authority: 3 });
    let borrowed = Stamp { authority: 1, ..stamp(0, 1000, 0) };
    let shared = Error::SharedSigner { first: 0, second: 1 };
    assert_eq!(refused(&[anchor(5, 6, &[stamp(0, 1000, 0), borrowed.clone()])]), shared);
    assert_eq!(refused(&[anchor(5, 6, &[stamp(0, 1000, 0)]), anchor(7, 8, &[borrowed])]), shared);
}

#[test]
fn an_authority_that_goes_back_in_time_is_set_aside() {
    let forth = |second| [anchor(3, 3, &[stamp(0, 1000, 10), stamp(1, 900, 0)]), anchor(6, 6, &[second])];
    let back = timeline(&forth(stamp(0, 979, 10)), 1).expect("anchors in order");
    assert_eq!(back.set_aside(), [0]);
    assert_eq!(bounds(&back, 2), (None, Some(900)), "of the other authority");
    let near = timeline(&forth(stamp(0, 980, 10)), 1).expect("anchors in order");
    assert_eq!(near.set_aside(), [0; 0], "within the accuracies");
    assert_eq!((bounds(&near, 4), bounds(&near, 7)), ((Some(990), Some(990)), (Some(990), None)));
}

#[test]
fn contradictions_are_told() {
    let anchors = [anchor(1, 1, &[stamp(0, 5000, 0)]), anchor(4, 4, &[stamp(1, 1000, 0)])];
    let timeline = timeline(&anchors, 1).expect("anchors in order");
    let expected = Error::Contradiction { sequence: 2, lower: ms(5000), upper: ms(1000) };
    assert_eq!(timeline.interval(2), Err(expected));
}

#[test]
fn an_interval_judges_windows_and_clocks() {
    let interval = Interval { lower: Some(ms(1000)), upper: Some(ms(2500)) };
    assert_eq!(interval.width(), Some(Duration::from_millis(1500)));
    assert!(interval.is_within(Duration::from_millis(1500)) && !interval.is_within(Duration::from_millis(1499)));
    let second = Duration::from_secs(1);
    assert!(interval.admits(ms(0), second) && interval.admits(ms(3500), second));
    assert!(!interval.admits(ms(-1), second) && !interval.admits(ms(3501), second));
    let open = Interval { lower: None, upper: Some(ms(2500)) };
    assert!(open.admits(ms(-HOUR), Duration::ZERO) && !open.admits(ms(2501), Duration::ZERO));
    assert_eq!(open.width(), None);
}

/// Random numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: i128) -> i128 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        i128::from(mixed ^ (mixed >> 31)) % bound
    }
}

/// A log with the true time of each entry, and its anchors.
struct World {
    times: Vec<i128>,
    anchors: Vec<Anchor>,
}

/// A log that three authorities stamp. Their clocks are off within their accuracies, and that of
/// the liar by an hour more. Tokens travel for up to five seconds, in which the log goes on, and
/// one in eight is lost.
fn world(seed: u64, liar: usize, ahead: bool) -> World {
    let mut random = Random(seed);
    let accuracies = [random.below(2000), random.below(1500), random.below(1000)];
    let (mut now, mut times, mut anchors) = (HOUR * 24, Vec::new(), Vec::new());
    let mut entry = |now: &mut i128, random: &mut Random| {
        *now += random.below(700);
        times.push(*now);
        times.len() as u64
    };
    let mut size = entry(&mut now, &mut random);
    for _ in 0..30 {
        for _ in 0..random.below(6) {
            size = entry(&mut now, &mut random);
        }
        let (stamped_size, asked) = (size, now);
        for _ in 0..random.below(4) {
            entry(&mut now, &mut random);
        }
        now = now.max(asked + random.below(5000));
        let mut stamps = Vec::new();
        for (authority, accuracy) in accuracies.into_iter().enumerate() {
            let at = asked + random.below(now - asked + 1);
            let off = random.below(2 * accuracy + 1) - accuracy;
            let lie = if authority != liar {
                0
            } else if ahead {
                HOUR
            } else {
                -HOUR
            };
            if random.below(8) > 0 {
                stamps.push(stamp(authority, at + off + lie, accuracy));
            }
        }
        size = entry(&mut now, &mut random);
        anchors.push(anchor(stamped_size, size - 1, &stamps));
    }
    World { times, anchors }
}

/// The bounds as this module's head defines them.
fn defined(anchors: &[Anchor], quorum: usize, sequence: u64) -> (Option<Moment>, Option<Moment>) {
    let by = |authority: usize, counts: &dyn Fn(&Anchor) -> bool| -> Vec<Stamp> {
        let counted = anchors.iter().filter(|anchor| counts(anchor)).flat_map(|anchor| anchor.stamps.clone());
        counted.filter(|stamp| stamp.authority == authority).collect()
    };
    let before = |anchor: &Anchor| anchor.sequence < sequence;
    let over = |anchor: &Anchor| anchor.stamped_size > sequence;
    let lower = |authority| by(authority, &before).iter().map(|stamp| stamp.earliest).max();
    let upper = |authority| by(authority, &over).iter().map(|stamp| stamp.latest).min();
    let mut all: (Vec<Moment>, Vec<Moment>) = ((0..3).filter_map(lower).collect(), (0..3).filter_map(upper).collect());
    all.0.sort();
    all.0.reverse();
    all.1.sort();
    (all.0.get(quorum - 1).copied(), all.1.get(quorum - 1).copied())
}

/// The number of entries whose interval does not contain their true time.
fn lies(world: &World, quorum: usize) -> usize {
    let timeline = timeline(&world.anchors, quorum).expect("anchors in order");
    let is_true = |(sequence, time): (usize, &i128)| {
        timeline.interval(sequence as u64).is_ok_and(|interval| interval.admits(ms(*time), Duration::ZERO))
    };
    world.times.iter().enumerate().filter(|entry| !is_true(*entry)).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn two_of_three_hold_the_truth_though_one_is_wrong_by_an_hour(seed: u64, liar in 0..3usize, ahead: bool) {
        let world = world(seed, liar, ahead);
        prop_assert_eq!(lies(&world, 2), 0);
        prop_assert!(lies(&world, 1) > 0, "one liar is enough where one is a quorum");
        let timeline = timeline(&world.anchors, 2).expect("anchors in order");
        let mut known = 0;
        for sequence in 0..world.times.len() as u64 {
            let interval = timeline.interval(sequence).expect("no contradiction");
            prop_assert_eq!((interval.lower, interval.upper), defined(&world.anchors, 2, sequence));
            // Three anchors in a row may be lost to the two true ones, each twelve seconds apart.
            known += usize::from(interval.is_within(Duration::from_secs(60)));
        }
        prop_assert!(known * 2 > world.times.len(), "{known} of {} have a narrow interval", world.times.len());
    }

    #[test]
    fn a_clock_that_lies_is_seen(seed: u64) {
        let world = world(seed, 3, false);
        let timeline = timeline(&world.anchors, 2).expect("anchors in order");
        let second = Duration::from_secs(1);
        let middle = world.times.len() / 2;
        let interval = timeline.interval(middle as u64).expect("no contradiction");
        prop_assert!(interval.admits(ms(world.times[middle] + 900), second));
        prop_assert!(!interval.admits(ms(world.times[middle] + 5 * MINUTE), second));
        prop_assert!(!interval.admits(ms(world.times[middle] - 5 * MINUTE), second));
    }
}
