use super::*;

fn mark(size: u64, root: u8) -> Mark {
    Mark { size, root: Digest([root; 32]) }
}

fn change(sequence: u64, key: u8) -> Change {
    (Sequence(sequence), [key; 32])
}

#[test]
fn an_answer_is_of_head_and_no_older_than_what_was_seen() {
    let asked = Asked { seen: 7, of_head: true };
    let [old, head] = [Version(3), Version(4)];
    assert_eq!(asked.check(Some(head), head, 7), Ok(()));
    assert_eq!(asked.check(Some(head), head, 6), Err(Distrust::Older));
    assert_eq!(asked.check(Some(old), head, 8), Err(Distrust::NotHead));
    assert_eq!(asked.check(None, head, 8), Err(Distrust::NotHead));
    assert_eq!(Asked { of_head: false, ..asked }.check(Some(old), head, 7), Ok(()));
    assert_eq!(Asked { seen: 0, ..asked }.check(Some(head), head, 1), Ok(()));
}

#[test]
fn a_log_has_one_root_of_each_size_and_is_remembered_as_it_grows() {
    let mut marks = Marks::new(mark(5, 5));
    assert!(!marks.is_unproven());
    assert_eq!(marks.note(mark(4, 1)), Ok(()), "an older one may come from elsewhere");
    assert_eq!(marks.note(mark(7, 7)), Ok(()));
    assert_eq!(marks, Marks { newest: mark(7, 7), proven: mark(5, 5) });
    assert!(marks.is_unproven());
    for forked in [mark(5, 9), mark(7, 9)] {
        let before = marks;
        assert_eq!(marks.note(forked), Err(Distrust::Forked));
        assert_eq!(marks.prove(forked), Err(Distrust::Forked));
        assert_eq!(marks, before);
    }
    assert_eq!(marks.prove(mark(8, 8)), Ok(()));
    assert_eq!(marks, Marks::new(mark(8, 8)));
    assert_eq!(marks.prove(mark(6, 6)), Ok(()), "a proof that came late takes nothing back");
    assert_eq!(marks, Marks::new(mark(8, 8)));
}

#[test]
fn key_changes_are_followed_and_neither_replaced_nor_left_out() {
    let [a, b, other] = [change(3, 1), change(6, 2), change(3, 9)];
    for (known, shown, size, expected) in [
        (&[][..], &[][..], 9, Ok(false)),
        (&[], &[a], 9, Ok(true)),
        (&[a], &[a, b], 9, Ok(true)),
        (&[a, b], &[a, b], 9, Ok(false)),
        // The checkpoint does not have the second change yet.
        (&[a, b], &[a], 6, Ok(false)),
        (&[a, b], &[a], 7, Err(Distrust::Late)),
        (&[a], &[], 4, Err(Distrust::Late)),
        (&[a], &[other], 9, Err(Distrust::Changed)),
        (&[a], &[other, b], 9, Err(Distrust::Changed)),
        (&[a, b], &[change(4, 1)], 9, Err(Distrust::Changed)),
    ] {
        let compared = compare(known.iter().copied(), shown.iter().copied(), size);
        assert_eq!(compared, expected, "{known:?} {shown:?} {size}");
    }
}

#[test]
fn two_proofs_of_growth_show_one_log_or_a_fork() {
    let growth = Growth { proven: mark(5, 5), newest: mark(7, 7) };
    let from = |root: u8, end: Mark| Grown { old_root: Digest([root; 32]), end };
    for (proven, newest, expected) in [
        (from(5, mark(9, 9)), from(7, mark(9, 9)), Ok(Some(mark(9, 9)))),
        (from(5, mark(7, 7)), from(7, mark(9, 9)), Ok(Some(mark(7, 7)))),
        (from(5, mark(8, 8)), from(7, mark(9, 9)), Ok(None)),
        (from(4, mark(9, 9)), from(7, mark(9, 9)), Err(Distrust::Forked)),
        (from(5, mark(9, 9)), from(4, mark(9, 9)), Err(Distrust::Forked)),
        (from(5, mark(9, 9)), from(7, mark(9, 8)), Err(Distrust::Forked)),
        (from(5, mark(7, 8)), from(7, mark(9, 9)), Err(Distrust::Forked)),
        (from(5, mark(6, 6)), from(7, mark(9, 9)), Err(Distrust::Shrunk)),
    ] {
        assert_eq!(growth.check(proven, newest), expected, "{proven:?} {newest:?}");
    }
}
