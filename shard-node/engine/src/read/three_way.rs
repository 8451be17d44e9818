//! Three-way merge: applies the changes between a base and one version to another version.
//!
//! Only keys that the right side touched are read, in parts by key order, so memory holds one part.
//! Contents are compared: a key that was put again with the same value has not changed.

use coppice_types::{Change, Digest, Operation};

use super::view::{Record, View};
use crate::Result;

/// A key that both sides changed in different ways. Its values are not read; the records have their
/// hashes and lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub key: Vec<u8>,
    /// The record in the base.
    pub base: Option<Record>,
    /// The record on the left side.
    pub left: Option<Record>,
    /// The record on the right side.
    pub right: Option<Record>,
}

/// A part of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergePage {
    /// Changes of the right side alone, to be applied to the left side, in key order.
    pub taken: Vec<Operation>,
    /// The conflicts, in key order.
    pub conflicts: Vec<Conflict>,
    /// The lower bound of the next part, if there is one.
    pub next: Option<Vec<u8>>,
}

impl View<'_> {
    /// Merges the changes from `base` to `right` into this version, for `low <= key < high` and at
    /// most `limit` keys that `right` has touched. One of `base` and `right` must descend from the
    /// other. If `right` is the older one, the merge takes back the changes between them. This
    /// version may be any.
    ///
    /// # Errors
    /// `NotAncestor`, `Corrupted`, or a failure of the storage.
    ///
    /// # Panics
    /// If the limit is 0.
    pub fn merge(
        &self,
        base: &View<'_>,
        right: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
    ) -> Result<MergePage> {
        let (older, newer) = if right.stamp().version < base.stamp().version { (right, base) } else { (base, right) };
        let touched = newer.touched_keys(older, low, high, limit)?;
        let mut page = MergePage { next: touched.next, ..MergePage::default() };
        for key in touched.keys {
            let (was, theirs) = (base.get(&key, false)?, right.get(&key, false)?);
            if hash(&was) == hash(&theirs) {
                continue;
            }
            let ours = self.get(&key, false)?;
            if hash(&ours) == hash(&was) {
                let change = match right.get(&key, true)? {
                    // An erased value is put nowhere again.
                    Some(record) if record.erased => continue,
                    record => record.and_then(|record| record.value).map(|value| Change::Put(value.into())),
                };
                let change = change.unwrap_or(Change::Delete);
                page.taken.push(Operation { key: key.into(), change });
            } else if hash(&ours) != hash(&theirs) {
                page.conflicts.push(Conflict { key, base: was, left: ours, right: theirs });
            }
        }
        Ok(page)
    }
}

fn hash(record: &Option<Record>) -> Option<Digest> {
    record.as_ref().map(|record| record.value_hash())
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Version;

    use super::*;
    use crate::{
        Engine, Error, ShardState,
        testing::{commit, create, delete, put, small, stage_on},
    };

    /// A base with keys a to d, and two versions on it with these operations.
    fn sides(left: &[Operation], right: &[Operation]) -> (Engine, [ShardState; 3]) {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, ["a", "b", "c", "d"].map(|key| put(key, 5)).to_vec());
        let base = engine.decided();
        let left = stage_on(&mut engine, base, 2, 1, left).expect("it follows");
        let right = stage_on(&mut engine, base, 2, 2, right).expect("it follows");
        (engine, [base, left, right])
    }

    fn merge(engine: &Engine, [base, left, right]: &[ShardState; 3], low: &[u8], limit: usize) -> MergePage {
        let view = |state| engine.view(state).expect("here");
        view(left).merge(&view(base), &view(right), low, None, limit).expect("they are of one line")
    }

    fn all(left: &[Operation], right: &[Operation]) -> (Vec<Operation>, Vec<Vec<u8>>) {
        let (engine, states) = sides(left, right);
        let page = merge(&engine, &states, b"", 99);
        assert_eq!(page.next, None);
        (page.taken, page.conflicts.into_iter().map(|conflict| conflict.key).collect())
    }

    #[test]
    fn what_the_right_side_alone_changed_is_taken() {
        let right = [put("a", 6), delete("b"), put("e", 100)];
        assert_eq!(all(&[put("c", 7)], &right), (right.to_vec(), vec![]));
    }

    #[test]
    fn what_both_sides_changed_to_the_same_is_neither_taken_nor_a_conflict() {
        let both = [put("a", 6), delete("b"), put("e", 6)];
        assert_eq!(all(&both, &both), (vec![], vec![]));
    }

    #[test]
    fn what_both_sides_changed_in_different_ways_is_a_conflict() {
        let left = [put("a", 6), delete("b"), put("c", 6), put("e", 6)];
        let right = [put("a", 7), put("b", 7), delete("c"), put("e", 7)];
        assert_eq!(all(&left, &right), (vec![], ["a", "b", "c", "e"].map(|key| key.as_bytes().to_vec()).to_vec()));
    }

    #[test]
    fn a_conflict_has_the_three_records() {
        let (engine, states) = sides(&[delete("a")], &[put("a", 7)]);
        let page = merge(&engine, &states, b"", 99);
        let [conflict] = page.conflicts.as_slice() else { panic!("{page:?}") };
        let lens = [&conflict.base, &conflict.left, &conflict.right].map(|it| it.as_ref().map(|it| it.value_len));
        assert_eq!(lens, [Some(5), None, Some(7)]);
    }

    #[test]
    fn a_key_put_again_with_its_value_or_changed_back_has_not_changed() {
        assert_eq!(all(&[put("a", 7)], &[put("a", 5)]), (vec![], vec![]));
        assert_eq!(all(&[put("a", 5)], &[put("a", 7)]), (vec![put("a", 7)], vec![]));
    }

    #[test]
    fn parts_follow_each_other() {
        let right = [put("a", 6), put("b", 6), put("d", 6)];
        let (engine, states) = sides(&[], &right);
        let (mut low, mut taken, mut parts) = (Vec::new(), Vec::new(), 0);
        loop {
            let page = merge(&engine, &states, &low, 1);
            taken.extend(page.taken);
            parts += 1;
            match page.next {
                Some(next) => low = next,
                None => break,
            }
        }
        assert_eq!(taken, right);
        assert!((3..=4).contains(&parts), "{parts} parts");
    }

    #[test]
    fn an_older_right_side_takes_the_changes_back() {
        let (mut engine, [base, _, right]) = sides(&[], &[put("a", 6), delete("b"), put("e", 6)]);
        engine.settle(&right).expect("it is staged");
        commit(&mut engine, 3, vec![put("z", 6)]);
        let tip = engine.decided();
        let page = merge(&engine, &[right, tip, base], b"", 99);
        assert_eq!((page.taken, page.conflicts), (vec![put("a", 5), put("b", 5), delete("e")], vec![]));
    }

    #[test]
    fn versions_of_two_lines_are_refused() {
        let (engine, [base, left, right]) = sides(&[put("a", 6)], &[put("a", 7)]);
        let view = |state| engine.view(state).expect("here");
        let refused = view(&base).merge(&view(&left), &view(&right), b"", None, 9);
        assert!(matches!(refused, Err(Error::NotAncestor { from: Version(2), to: Version(2) })), "{refused:?}");
    }
}
