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
                let node = self.store.node(&child, level, tree.class())?;
                match node.base() {
                    None => drop(footprint.spans.insert(child.pid.to_u64(), node.whole_bytes() as u64)),
                    Some(base) => {
                        footprint.spans.insert(child.pid.to_u64(), u64::from(base.patch_bytes));
                        let whole = self.store.node(&base.child(), level, tree.class())?;
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
