//! Cuts the leaves of merge inputs into lots. A lot covers a range of keys and all records that the
//! inputs have in it, so any thread can merge it independently.
//!
//! Inner nodes, and leaves stored as patches, are read here. Other leaves that are not in memory
//! are read by the thread that merges the lot. Neighbouring leaves take one read. These reads
//! bypass the caches, so the caches keep the nodes that gets need.

use std::sync::{Arc, OnceLock};

use coppice_env::File;

use crate::{
    Result,
    cache::Class,
    meta::Tree,
    node::{Child, Node},
    place::page::{PageFile, Pid},
    store::{self, Store},
};

/// Limit on the bytes in one read.
const READ_BYTES_MAX: usize = 256 << 10;

/// The size and number of a merge's pieces of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Number of leaves in one piece of work, not counting those that reach into a lot from the one
    /// before.
    pub(crate) leaves: usize,
    /// Number of pieces that may be done or begun before they are needed. If this is 0, no other
    /// thread is used.
    pub(crate) ahead: usize,
}

/// A leaf, which may not be read yet.
#[derive(Clone, Debug)]
struct Leaf {
    child: Child,
    /// Set once the leaf is in memory.
    node: Arc<OnceLock<Node>>,
}

/// A walk over all leaves of a tree, in order.
#[derive(Debug)]
struct Walk {
    class: Class,
    /// The root, before anything was read.
    root: Option<(Child, u8)>,
    /// Inner nodes from the root down, each with the index of the next child.
    path: Vec<(Node, usize)>,
}

impl Walk {
    fn new(tree: &Tree) -> Self {
        Self { class: tree.class(), root: tree.root.map(|root| (root, tree.level)), path: Vec::new() }
    }

    /// The next leaf and its separator. No key in the leaf is below the separator. Places of nodes
    /// and of their bases are added to `entered`.
    fn next(&mut self, store: &Store, entered: &mut Vec<Pid>) -> Result<Option<(Vec<u8>, Leaf)>> {
        let (separator, mut child, mut level) = match self.root.take() {
            Some((root, level)) => (Vec::new(), root, level),
            None => match self.next_child() {
                Some(next) => next,
                None => return Ok(None),
            },
        };
        while level > 0 {
            let node = store.node(&child, level, self.class)?;
            note(entered, &child, Some(&node));
            child = node.child(0);
            self.path.push((node, 1));
            level -= 1;
        }
        let leaf = store.leaf_at_hand(&child, self.class)?;
        note(entered, &child, leaf.as_ref());
        let node = Arc::new(leaf.map(OnceLock::from).unwrap_or_default());
        Ok(Some((separator, Leaf { child, node })))
    }

    /// The next child with its separator and level.
    fn next_child(&mut self) -> Option<(Vec<u8>, Child, u8)> {
        while let Some((node, index)) = self.path.last_mut() {
            let at = *index;
            if at < node.len() {
                *index += 1;
                return Some((node.key(at).to_vec(), node.child(at), node.level() - 1));
            }
            self.path.pop();
        }
        None
    }
}

fn note(entered: &mut Vec<Pid>, child: &Child, node: Option<&Node>) {
    entered.push(child.pid);
    entered.extend(node.and_then(Node::base).map(|base| base.pid));
}

/// A tree that is being cut into lots.
#[derive(Debug)]
struct Input {
    walk: Walk,
    /// The first leaf that is in no lot yet, and its separator.
    next: Option<(Vec<u8>, Leaf)>,
    /// The previous leaf, if its keys reach beyond the last lot.
    reaching: Option<Leaf>,
}

/// The trees that are being cut into lots.
#[derive(Debug)]
pub(crate) struct Lots {
    inputs: Vec<Input>,
    /// Places of the visited nodes and of their bases, until the caller takes them. In the end all
    /// nodes are visited.
    pub(crate) entered: Vec<Pid>,
}

impl Lots {
    /// Begins to cut these trees, youngest first.
    pub(crate) fn new(store: &Store, trees: &[Tree]) -> Result<Self> {
        let mut entered = Vec::new();
        let input = |tree| {
            let mut walk = Walk::new(tree);
            let next = walk.next(store, &mut entered)?;
            Ok(Input { walk, next, reaching: None })
        };
        Ok(Self { inputs: trees.iter().map(input).collect::<Result<_>>()?, entered })
    }

    /// The next range of keys, with `lot_leaves` leaves in addition to those that reach into it.
    /// `None` at the end.
    pub(crate) fn next(&mut self, store: &Store, lot_leaves: usize) -> Result<Option<Lot>> {
        let Some(low) = self.first().map(|(low, _)| low.to_vec()) else { return Ok(None) };
        let reaching = |input: &Input| input.reaching.iter().cloned().collect();
        let mut leaves: Vec<Vec<Leaf>> = self.inputs.iter().map(reaching).collect();
        for _ in 0..lot_leaves {
            let Some((_, at)) = self.first() else { break };
            let input = &mut self.inputs[at];
            let next = input.walk.next(store, &mut self.entered)?;
            if let Some((_, leaf)) = std::mem::replace(&mut input.next, next) {
                input.reaching = Some(leaf.clone());
                leaves[at].push(leaf);
            }
        }
        let high = self.first().map(|(high, _)| high.to_vec());
        for input in &mut self.inputs {
            // The tree's next leaf begins with the next lot, so the last one ends there.
            if input.next.as_ref().map(|(separator, _)| separator) == high.as_ref() {
                input.reaching = None;
            }
        }
        let file = Arc::clone(store.file(PageFile::Data));
        Ok(Some(Lot { leaves, file, low, high }))
    }

    /// The lowest separator of leaves that are in no lot yet, and the index of its tree.
    fn first(&self) -> Option<(&[u8], usize)> {
        let separators = self.inputs.iter().map(|input| input.next.as_ref().map(|(separator, _)| separator.as_slice()));
        separators.zip(0..).filter_map(|(separator, at)| Some((separator?, at))).min()
    }
}

/// All records of the trees in a range of keys.
#[derive(Debug)]
pub(crate) struct Lot {
    /// The leaves of each tree, youngest tree first.
    leaves: Vec<Vec<Leaf>>,
    file: Arc<dyn File>,
    low: Vec<u8>,
    /// `None` if the range has no end.
    high: Option<Vec<u8>>,
}

impl Lot {
    /// Reads the records of each tree, youngest first.
    pub(crate) fn runs(&self) -> Result<Vec<Run>> {
        self.leaves.iter().map(|leaves| Ok(self.run(read(&*self.file, leaves)?))).collect()
    }

    /// The records of these leaves within the range.
    fn run(&self, leaves: Vec<Node>) -> Run {
        let within = |leaf: Node| {
            let from = |key: &[u8]| leaf.search(key).unwrap_or_else(|above| above);
            let end = self.high.as_deref().map_or(leaf.len(), from);
            (from(&self.low), end, leaf)
        };
        let mut leaves: Vec<_> = leaves.into_iter().map(within).filter(|(start, end, _)| start < end).collect();
        leaves.reverse();
        Run { leaves }
    }
}

/// Records of one tree, in order.
#[derive(Debug)]
pub(crate) struct Run {
    /// Leaves in reverse order, each with the indices of its first remaining record and of the end
    /// of the run.
    leaves: Vec<(usize, usize, Node)>,
}

impl Run {
    /// Leaf and index of the first remaining record.
    pub(crate) fn first(&self) -> Option<(&Node, usize)> {
        self.leaves.last().map(|(start, _, leaf)| (leaf, *start))
    }

    /// Key of the first remaining record.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.first().map(|(leaf, index)| leaf.key(index))
    }

    /// Number of remaining records, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let sizes = self.leaves.iter().map(|(start, end, leaf)| (end - start, leaf.entry_range(*start..*end).len()));
        sizes.fold((0, 0), |all, leaf| (all.0 + leaf.0, all.1 + leaf.1))
    }

    /// Moves to the next record.
    pub(crate) fn skip(&mut self) {
        if let Some((start, end, _)) = self.leaves.last_mut() {
            *start += 1;
            if start == end {
                self.leaves.pop();
            }
        }
    }
}

/// Reads and checks leaves in the order of their tree. Neighbouring leaves that are not in memory
/// take one read.
fn read(file: &dyn File, leaves: &[Leaf]) -> Result<Vec<Node>> {
    let mut read = Vec::with_capacity(leaves.len());
    let mut buffer = Vec::new();
    let mut rest = leaves;
    while let Some((leaf, others)) = rest.split_first() {
        if let Some(node) = leaf.node.get() {
            read.push(node.clone());
            rest = others;
            continue;
        }
        let first = leaf.child.pid.offset_bytes();
        let (mut count, mut bytes) = (0, 0);
        while let Some(Leaf { child, node }) = rest.get(count)
            && node.get().is_none()
            && child.pid.offset_bytes() == first + bytes as u64
            && bytes + child.pid.len_bytes() <= READ_BYTES_MAX
        {
            (count, bytes) = (count + 1, bytes + child.pid.len_bytes());
        }
        // Another thread may have read the first leaf in the meantime.
        let (run, others) = rest.split_at(count.max(1));
        rest = others;
        buffer.resize(bytes.max(buffer.len()), 0);
        let there = file.read_exact_at(&mut buffer[..bytes], first).is_ok();
        let mut spans = buffer.as_slice();
        for Leaf { child, node } in run {
            let span = spans.split_off(..child.pid.len_bytes()).filter(|_| there);
            // If the joint read failed, each leaf is read alone and reports its own error.
            let leaf =
                span.map_or_else(|| store::read_span(file, child, 0), |span| store::check_node(span.into(), child, 0));
            let leaf = leaf?;
            read.push(node.get_or_init(|| leaf).clone());
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use coppice_env::{Fault, Operation, SimStorage};
    use coppice_types::Params;

    use super::*;
    use crate::{
        Engine, Error,
        testing::{commit, create, flush, open, puts, small},
    };

    /// A deep frozen tree of numbers below 40, and an active one from 20 to 59.
    fn engine() -> Engine {
        let mut engine = create(&SimStorage::new(), Params { capacity: 40, ..small() });
        commit(&mut engine, 1, puts(0..40, 5));
        commit(&mut engine, 2, puts(20..60, 5));
        engine
    }

    fn lots(engine: &Engine, trees: &[Tree], leaves: usize) -> Vec<Lot> {
        let mut lots = Lots::new(&engine.store, trees).expect("sound pages");
        std::iter::from_fn(|| lots.next(&engine.store, leaves).expect("sound pages")).collect()
    }

    #[test]
    fn lots_follow_each_other_from_the_first_key_to_the_last() {
        let engine = engine();
        for leaves in [1, 2, 5, 1000] {
            let lots = lots(&engine, &engine.meta.tip().trees, leaves);
            assert_eq!((lots[0].low.as_slice(), lots.last().map(|lot| lot.high.is_none())), (&b""[..], Some(true)));
            let follow = |pair: &[Lot]| pair[0].high.as_ref() == Some(&pair[1].low) && pair[0].low <= pair[1].low;
            assert!(lots.windows(2).all(follow), "lots of {leaves}");
        }
    }

    #[test]
    fn runs_have_each_record_once_within_the_bounds_of_their_lot() {
        let engine = engine();
        for leaves in [1, 2, 5, 1000] {
            let mut counts = [0; 2];
            for lot in lots(&engine, &engine.meta.tip().trees, leaves) {
                for (mut run, count) in lot.runs().expect("sound pages").into_iter().zip(&mut counts) {
                    let size = run.size().0;
                    let mut visited = 0;
                    while let Some(key) = run.key() {
                        assert!(key >= lot.low.as_slice() && lot.high.as_deref().is_none_or(|high| key < high));
                        visited += 1;
                        run.skip();
                    }
                    assert_eq!((visited, run.size()), (size, (0, 0)));
                    *count += visited;
                }
            }
            assert_eq!(counts, [40, 40], "lots of {leaves}");
        }
    }

    #[test]
    fn trees_without_records_have_no_lots() {
        let engine = engine();
        assert!(lots(&engine, &[Tree::empty(), Tree::empty()], 3).is_empty());
        assert!(lots(&engine, &[], 3).is_empty());
    }

    #[test]
    fn an_empty_tree_has_no_leaf_in_any_lot() {
        let engine = engine();
        let frozen = engine.meta.tip().trees[1].clone();
        let found = lots(&engine, &[Tree::empty(), frozen], 1);
        assert!(found.len() > 8 && found.iter().all(|lot| lot.leaves[0].is_empty()));
    }

    /// A frozen tree of whole leaves in a closed directory, and its leaves in key order.
    fn whole_leaves(sim: &SimStorage) -> (Engine, Tree, Vec<Child>) {
        let mut engine = create(sim, Params { capacity: 1000, ..Params::default() });
        commit(&mut engine, 1, puts(0..1000, 9));
        commit(&mut engine, 2, puts(1000..1001, 9));
        flush(&mut engine, 1);
        drop(engine);
        let engine = open(sim);
        let tree = engine.meta.tip().trees[1].clone();
        let lots = lots(&engine, std::slice::from_ref(&tree), 1);
        let leaves = lots.iter().filter_map(|lot| lot.leaves[0].last().map(|leaf| leaf.child)).collect();
        (engine, tree, leaves)
    }

    #[test]
    fn neighbouring_leaves_take_one_read_and_each_is_checked() {
        let sim = SimStorage::new();
        let (engine, tree, leaves) = whole_leaves(&sim);
        assert!(leaves.len() > 10 && leaves.iter().all(|leaf| leaf.pid.file() == PageFile::Data));
        let runs = |sim: &SimStorage| {
            let all = lots(&engine, std::slice::from_ref(&tree), 1000);
            assert_eq!(all.len(), 1);
            // The joint read fails once; each leaf is then read alone.
            sim.inject(Fault {
                operation: Operation::Read,
                path_part: "data".to_owned(),
                skip: 0,
                kind: ErrorKind::Other,
            });
            let found = all[0].runs();
            sim.clear_faults();
            found
        };
        assert_eq!(runs(&sim).expect("sound leaves")[0].size().0, 1000);
        let damaged = leaves[5].pid;
        sim.flip_bit("data", damaged.offset_bytes() + 100, 1);
        for found in [runs(&sim), lots(&engine, std::slice::from_ref(&tree), 1000)[0].runs()] {
            let page = damaged.first();
            assert!(matches!(found, Err(Error::Corrupted { page: Some(found), .. }) if found == page));
        }
    }

    #[test]
    fn a_leaf_that_reaches_into_the_next_lot_is_read_once() {
        let sim = SimStorage::new();
        let (engine, tree, _) = whole_leaves(&sim);
        let all = lots(&engine, &[tree.clone(), tree], 1);
        let (first, second) = (&all[0], &all[1]);
        first.runs().expect("sound leaves");
        let shared = second
            .leaves
            .iter()
            .flatten()
            .filter(|leaf| first.leaves.iter().flatten().any(|other| Arc::ptr_eq(&other.node, &leaf.node)));
        assert!(shared.clone().count() > 0 && shared.into_iter().all(|leaf| leaf.node.get().is_some()));
    }
}
