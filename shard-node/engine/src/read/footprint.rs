//! The footprint of a version: the places and sizes of its nodes and stored values.

use std::collections::BTreeMap;

use crate::{
    Result,
    node::{Body, Child},
    read::view::View,
};

/// Spans and stored values of a version. Versions that share one have it at the same place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of each span or patch by its page id. Bases of patches are included.
    pub spans: BTreeMap<u64, u64>,
    /// Bytes of each value in the value log, by segment (the upper half) and offset.
    pub values: BTreeMap<u64, u64>,
}

impl View<'_> {
    /// Reads every node of the version.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn footprint(&self) -> Result<Footprint> {
        let mut footprint = Footprint::default();
        for tree in self.trees() {
            let mut open: Vec<(Child, u8)> = tree.root.map(|root| (root, tree.level)).into_iter().collect();
            while let Some((child, level)) = open.pop() {
                let node = self.store().node(&child, level, tree.class())?;
                match node.base() {
                    None => drop(footprint.spans.insert(child.pid.to_u64(), node.whole_bytes() as u64)),
                    Some(base) => {
                        footprint.spans.insert(child.pid.to_u64(), u64::from(base.patch_bytes));
                        let whole = self.store().node(&base.child(), level, tree.class())?;
                        footprint.spans.insert(base.pid.to_u64(), whole.whole_bytes() as u64);
                    }
                }
                for index in 0..node.len() {
                    match level.checked_sub(1) {
                        Some(below) => open.push((node.child(index), below)),
                        None => footprint.add(node.record(index).body),
                    }
                }
            }
        }
        Ok(footprint)
    }
}

impl Footprint {
    fn add(&mut self, body: Body<'_>) {
        if let Body::Stored { blob, .. } = body {
            let place = u64::from(blob.at.segment) << 32 | u64::from(blob.at.offset);
            self.values.insert(place, u64::from(blob.len));
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Params, Version};

    use super::*;
    use crate::{
        Engine,
        node::patch_in,
        place::page::{PageFile, Pid},
        testing::{commit, create, flush, put, puts, small, used},
    };

    fn footprint(engine: &Engine, version: u64) -> Footprint {
        engine.view_at(Version(version)).expect("decided").footprint().expect("sound pages")
    }

    #[test]
    fn an_empty_version_takes_nothing() {
        assert_eq!(footprint(&create(&SimStorage::new(), small()), 0), Footprint::default());
    }

    #[test]
    fn values_in_leaves_are_not_stored_values() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, vec![put("a", 8), put("b", 9)]);
        let footprint = footprint(&engine, 1);
        assert_eq!(footprint.values.into_values().collect::<Vec<_>>(), [9]);
        assert_eq!(footprint.spans.len(), 1);
    }

    #[test]
    fn versions_share_what_did_not_change() {
        let mut engine = create(&SimStorage::new(), Params::default());
        commit(&mut engine, 1, puts(0..1000, 200));
        commit(&mut engine, 2, vec![put("0500", 300)]);
        let [one, two] = [1, 2].map(|version| footprint(&engine, version));
        let new =
            |of: fn(&Footprint) -> &BTreeMap<u64, u64>| of(&two).keys().filter(|it| !of(&one).contains_key(it)).count();
        assert_eq!((one.values.len(), two.values.len(), new(|it| &it.values)), (1000, 1000, 1));
        // The leaf and the root.
        assert!((1..=2).contains(&new(|it| &it.spans)), "{}", new(|it| &it.spans));
    }

    #[test]
    fn a_patch_counts_with_its_base() {
        let mut engine = create(&SimStorage::new(), Params::default());
        commit(&mut engine, 1, puts(0..1000, 9));
        let leaves = |footprint: &Footprint| {
            let pids = footprint.spans.keys().filter_map(|pid| Pid::from_u64(*pid));
            pids.filter(|pid| pid.file() == PageFile::Data).count()
        };
        let whole = leaves(&footprint(&engine, 1));
        commit(&mut engine, 2, vec![put("0500", 8)]);
        let two = footprint(&engine, 2);
        assert_eq!(leaves(&two), whole, "the base of the new leaf");
        assert!(two.spans.keys().filter_map(|pid| Pid::from_u64(*pid)).any(Pid::is_patch));
    }

    #[test]
    fn a_patch_counts_by_its_length_in_its_page() {
        let mut engine = create(&SimStorage::new(), Params::default());
        commit(&mut engine, 1, puts(0..1000, 9));
        commit(&mut engine, 2, vec![put("0500", 8)]);
        flush(&mut engine, 1);
        let found = footprint(&engine, 2);
        let spans = found.spans.iter().filter_map(|(pid, bytes)| Some((Pid::from_u64(*pid)?, *bytes)));
        let mut patches = 0;
        for (pid, bytes) in spans {
            let expected = match pid.slot() {
                None => pid.len_bytes() as u64,
                Some(slot) => {
                    let mut page = vec![0; pid.len_bytes()];
                    let file = engine.store.file(PageFile::Patches);
                    file.read_exact_at(&mut page, pid.offset_bytes()).expect("it was flushed");
                    patches += 1;
                    patch_in(&page, slot).expect("a patch").len() as u64
                }
            };
            assert_eq!(bytes, expected, "{pid:?}");
        }
        assert!(patches > 0);
    }

    #[test]
    fn the_footprints_of_all_versions_are_the_pages_in_use() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, puts(0..8, 100));
        commit(&mut engine, 2, puts(4..12, 100));
        engine.prune(Version(2)).expect("usable");
        let found = footprint(&engine, 2);
        let pages = |file: PageFile| {
            let spans = found.spans.keys().filter_map(|pid| Pid::from_u64(*pid)).filter(|pid| pid.file() == file);
            let firsts: BTreeMap<u64, u64> = spans.map(|pid| (pid.first(), pid.pages())).collect();
            firsts.values().sum::<u64>()
        };
        assert_eq!(PageFile::ALL.map(pages), used(&engine).0);
    }
}
