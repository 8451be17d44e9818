//! The invariants of an image, recomputed from the served versions.

use super::*;

impl Image {
    /// Checks every invariant. `memory` are the bytes of the DPUs' memories, if all is written.
    pub(crate) fn check(&self, memory: Option<&dyn Fn(usize, u32, usize) -> Vec<u8>>) {
        let mut refs: HashMap<(Digest, Side), u64> = HashMap::new();
        let mut open = Vec::new();
        for tree in self.versions.values().flat_map(|served| &served.trees) {
            open.extend(tree.root.map(|root| (root, tree.side)));
        }
        while let Some(key) = open.pop() {
            let count = refs.entry(key).or_default();
            *count += 1;
            if *count == 1 {
                open.extend(self.held[&key].node.children().map(|child| (child, key.1)));
            }
        }
        let held: HashMap<_, _> = self.held.iter().map(|(key, held)| (*key, held.refs)).collect();
        assert_eq!(held, refs, "nodes are held while a version reaches them");
        let cut = self.options.cut_level;
        let roots = self.held.iter().filter(|((_, side), held)| *side == Side::Pim && held.node.level == cut);
        let roots: HashSet<Digest> = roots.map(|((hash, _), _)| *hash).collect();
        assert_eq!(roots, self.units.keys().copied().collect(), "a subtree for each node of the cut");
        self.check_pages();
        self.check_spaces();
        if let Some(memory) = memory {
            self.check_memory(memory);
        }
    }

    fn check_pages(&self) {
        let mut refs: HashMap<(usize, Digest), u64> = HashMap::new();
        let mut open: Vec<(usize, Digest)> = Vec::new();
        for (hash, unit) in &self.units {
            open.extend(unit.at.map(|(dpu, _)| (dpu, *hash)));
        }
        while let Some((dpu, hash)) = open.pop() {
            let count = refs.entry((dpu, hash)).or_default();
            *count += 1;
            if *count == 1 {
                let children: Vec<Digest> = self.held[&(hash, Side::Pim)].node.children().collect();
                assert_eq!(children, self.placed[&(dpu, hash)].children);
                open.extend(children.into_iter().map(|child| (dpu, child)));
            }
        }
        let placed: HashMap<_, _> = self.placed.iter().map(|(key, placed)| (*key, placed.refs)).collect();
        assert_eq!(placed, refs, "a page is placed once, and while something names it");
        for (hash, unit) in &self.units {
            assert!(unit.at.is_none_or(|(dpu, name)| self.placed[&(dpu, *hash)].name == name), "a subtree's place");
        }
    }

    fn check_spaces(&self) {
        let mut used = vec![BTreeMap::new(); self.spaces.len()];
        for ((dpu, _), placed) in &self.placed {
            let twice = used[*dpu].insert(placed.name.address(), placed.bytes);
            assert_eq!(twice, None, "no two pages at one place");
        }
        for (dpu, pages) in used.iter().enumerate() {
            let mut space = self.spaces[dpu].clone();
            let free = space.free_bytes();
            let bytes: u64 = pages.values().map(|bytes| u64::from(*bytes)).sum();
            // It panics if a page overlaps with free bytes or with another page.
            pages.iter().for_each(|(at, bytes)| space.give(*at, *bytes));
            assert_eq!(space.free_bytes(), free + bytes);
        }
        for (dpu, at) in self.writes.keys() {
            assert!(used[*dpu].contains_key(at), "what waits to be written is placed");
        }
    }

    fn check_memory(&self, memory: &dyn Fn(usize, u32, usize) -> Vec<u8>) {
        assert!(self.writes.is_empty(), "all is written");
        for ((dpu, hash), placed) in &self.placed {
            let node = &self.held[&(*hash, Side::Pim)].node;
            let page = PageBytes::of(node).expect("it was placed");
            let names: Vec<PageName> = placed.children.iter().map(|child| self.placed[&(*dpu, *child)].name).collect();
            let bytes = encode_page(node, &page, placed.name.serial(), &names);
            assert_eq!(memory(*dpu, placed.name.address(), page.bytes), bytes, "the page in the memory");
        }
    }

    /// Number of pages on each DPU.
    pub(crate) fn pages(&self) -> Vec<usize> {
        let mut pages = vec![0; self.spaces.len()];
        self.placed.keys().for_each(|(dpu, _)| pages[*dpu] += 1);
        pages
    }

    pub(crate) fn units(&self) -> &HashMap<Digest, Unit> {
        &self.units
    }

    pub(crate) fn versions(&self) -> Vec<Version> {
        self.versions.keys().copied().collect()
    }

    /// The children of a subtree's root.
    pub(crate) fn children(&self, unit: &Digest) -> Vec<Digest> {
        self.held[&(*unit, Side::Pim)].node.children().collect()
    }

    /// The end of a DPU's last page.
    pub(crate) fn pages_end(&self, dpu: usize) -> Option<u32> {
        let of = self.placed.iter().filter(|((other, _), _)| *other == dpu);
        of.map(|(_, placed)| placed.name.address() + placed.bytes).max()
    }

    /// Pages of leaves of a DPU with other values, and checks that fit them.
    pub(crate) fn forged(&self, dpu: usize) -> Vec<(u32, Vec<u8>)> {
        let leaf = |((other, hash), placed): (&(usize, Digest), &Placed)| {
            let node = &self.held[&(*hash, Side::Pim)].node;
            let page = PageBytes::of(node).filter(|_| *other == dpu && node.level == 0)?;
            Some((placed.name.address(), encode_page(&node.forged(), &page, placed.name.serial(), &[])))
        };
        self.placed.iter().filter_map(leaf).collect()
    }
}
