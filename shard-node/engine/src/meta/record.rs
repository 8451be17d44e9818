//! Rows and operations of the Meta table, and their encoding in the meta log (`docs/format.md`
//! section "Meta log").

use std::collections::BTreeMap;

use coppice_types::{
    Digest, Epoch, Stamp, Term, Version,
    codec::{Error, Reader, Writer},
};
use coppice_verify::hash;

use crate::{
    PrepareId, ShardState,
    cache::Class,
    node::Child,
    place::{bytes::to_u32, page::Pid, refs::BlobRef},
};

/// Limit on numbers. No counter reaches it by itself, but a number from a peer may.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// One tree of a forest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// `None` for the empty tree, which has no page.
    pub(crate) root: Option<Child>,
    pub(crate) level: u8,
    pub(crate) entries: u64,
    pub(crate) digest: Digest,
    /// Set if and only if the tree is frozen.
    pub(crate) filter: Option<BlobRef>,
    /// Only an output of a merge has shortcuts, unless they would be empty.
    pub(crate) shortcuts: Option<BlobRef>,
}

/// Identifies a tree by content and place. Two staged siblings may have trees with equal digests on
/// different pages, or may freeze the same pages with different filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TreeId {
    pub(crate) digest: Digest,
    pub(crate) root: Option<Pid>,
    pub(crate) filter: Option<BlobRef>,
}

impl Tree {
    /// The empty active tree.
    pub(crate) fn empty() -> Self {
        Self { root: None, level: 0, entries: 0, digest: hash::empty_tree_digest(), filter: None, shortcuts: None }
    }

    /// A tree with this root; the empty tree has none, and level 0.
    pub(crate) fn new(root: Option<Child>, level: u8, entries: u64, filter: Option<BlobRef>) -> Self {
        assert_eq!(root.is_none(), entries == 0, "only an empty tree has no root");
        let digest = hash::tree_digest(level, entries, &root_hash(root));
        Self { root, level, entries, digest, filter, shortcuts: None }
    }

    /// The cache that the tree's nodes belong to.
    pub(crate) fn class(&self) -> Class {
        if self.filter.is_some() { Class::Old } else { Class::Young }
    }

    pub(crate) fn root_hash(&self) -> Digest {
        root_hash(self.root)
    }

    /// The tree's records in the value log other than values.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = BlobRef> + use<> {
        self.filter.into_iter().chain(self.shortcuts)
    }

    pub(crate) fn id(&self) -> TreeId {
        TreeId { digest: self.digest, root: self.root.map(|root| root.pid), filter: self.filter }
    }
}

fn root_hash(root: Option<Child>) -> Digest {
    root.map_or_else(hash::empty_root_hash, |root| root.hash)
}

/// Pages and value bytes that a version or a merge allocated, and those that it replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// The allocating list: freed if the version is dropped.
    pub(crate) allocated: Vec<Pid>,
    /// The pending list: freed when every version before this one is pruned.
    pub(crate) pended: Vec<Pid>,
    /// Bytes by segment, record headers included.
    pub(crate) values_allocated: BTreeMap<u32, u64>,
    pub(crate) values_pended: BTreeMap<u32, u64>,
}

impl Delta {
    pub(crate) fn allocate_value(&mut self, segment: u32, bytes: u64) {
        let allocated = self.values_allocated.entry(segment).or_default();
        // A damaged log may add any number of bytes.
        *allocated = allocated.saturating_add(bytes);
    }

    pub(crate) fn pend_value(&mut self, segment: u32, bytes: u64) {
        *self.values_pended.entry(segment).or_default() += bytes;
    }
}

/// Number of a version in the Meta table. It is never reused.
pub(crate) type VersionId = u64;
/// Number of a merge in the Meta table. It is never reused.
pub(crate) type MergeId = u64;

/// A row of the Meta table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionRecord {
    pub(crate) id: VersionId,
    /// The version that this one was staged on. The number stays when that version is pruned.
    pub(crate) parent: VersionId,
    pub(crate) decided: bool,
    pub(crate) stamp: Stamp,
    pub(crate) prepare_id: PrepareId,
    pub(crate) digest: Digest,
    /// The trees, youngest first. The first one is the active tree.
    pub(crate) trees: Vec<Tree>,
    /// Number of freezes on the line up to this version. Versions with the same active tree have
    /// the same number.
    pub(crate) freezes: u64,
    /// Merges that this version installed.
    pub(crate) installs: Vec<MergeId>,
    pub(crate) delta: Delta,
}

impl VersionRecord {
    pub(crate) fn state(&self) -> ShardState {
        ShardState { version: self.stamp.version, digest: self.digest }
    }
}

/// A merge's output, kept until a version installs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergeRecord {
    pub(crate) id: MergeId,
    pub(crate) inputs: Vec<TreeId>,
    /// All trees older than the inputs. Their filters decided which tombstones to drop.
    pub(crate) older: Vec<TreeId>,
    pub(crate) output: Tree,
    pub(crate) delta: Delta,
    /// Number of versions that have installed the merge. It is not stored.
    pub(crate) installed_by: u32,
}

/// One change of the Meta table. The same function applies it live and in recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetaOp {
    AddVersion(VersionRecord),
    DropVersion(VersionId),
    Settle(VersionId),
    Prune(Version),
    SetEpoch(Epoch),
    AddMerge(MergeRecord),
    DropMerge(MergeId),
    /// Keeps the journal of a staged version. Dropping the version drops the journal, pruning it
    /// does not.
    KeepJournal(VersionId, BlobRef),
    /// Rows of decided versions, from the first number to the last, move to the value log.
    Fold {
        first: VersionId,
        last: VersionId,
        at: BlobRef,
    },
    /// The rows of a block are in the table again.
    Unfold(Vec<VersionRecord>),
    /// The block that begins with this version is pruned, with what its versions pended.
    PruneBlock(Version, Delta),
    /// The block that begins with this version is rolled back, with what its versions allocated.
    DropBlock(Version, Delta),
    /// A staged version erases the values of these keys. Dropping the version drops the erasure.
    Erase(VersionId, Vec<Vec<u8>>),
    /// The erasures of decided versions with numbers up to this one are done.
    Erased(VersionId),
    /// Both slots hold the newest superblock, so pages that only the previous superblock needed are
    /// free.
    Copied,
    /// The last operation before a superblock.
    Checkpoint {
        generation: u64,
        /// The new end of each segment that grew.
        segment_ends: Vec<(u32, u64)>,
        /// Segments that neither this superblock nor a later one needs. They are stored rather than
        /// derived, since a merge in progress may need a segment that no operation names yet.
        dead_segments: Vec<u32>,
    },
}

pub(crate) fn encode_list<T>(items: &[T], out: &mut Writer, mut encode: impl FnMut(&T, &mut Writer)) {
    out.u32(to_u32(items.len() as u64));
    items.iter().for_each(|item| encode(item, out));
}

pub(crate) fn decode_list<T>(
    input: &mut Reader<'_>,
    mut decode: impl FnMut(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = input.u32()?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(decode(input)?);
    }
    Ok(items)
}

/// Encodes a list of keys.
pub(super) fn encode_keys(keys: &[Vec<u8>], out: &mut Writer) {
    encode_list(keys, out, |key, out| out.str16(key));
}

/// Decodes a list of keys, which must ascend.
pub(super) fn decode_keys(input: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let keys = decode_list(input, |input| Ok(input.str16()?.to_vec()))?;
    if keys.is_empty() || !keys.is_sorted_by(|a, b| a < b) {
        return Err(Error::Malformed("erased keys"));
    }
    Ok(keys)
}

pub(crate) fn decode_pid(input: &mut Reader<'_>) -> Result<Pid, Error> {
    Pid::from_u64(input.u64()?).ok_or(Error::Malformed("page id"))
}

fn encode_option<T>(item: Option<&T>, out: &mut Writer, encode: impl FnOnce(&T, &mut Writer)) {
    out.flag(item.is_some());
    if let Some(item) = item {
        encode(item, out);
    }
}

fn decode_option<T>(
    input: &mut Reader<'_>,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    if input.flag("option")? { decode(input).map(Some) } else { Ok(None) }
}

impl Tree {
    fn encode(&self, out: &mut Writer) {
        encode_option(self.root.as_ref(), out, |root, out| {
            out.u64(root.pid.to_u64());
            out.u64(root.checksum);
            out.digest(&root.hash);
        });
        out.u8(self.level);
        out.u64(self.entries);
        out.digest(&self.digest);
        out.u8(self.blobs().count() as u8);
        self.blobs().for_each(|blob| blob.encode(out));
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let mut tree = Self {
            root: decode_option(input, |input| {
                Ok(Child { pid: decode_pid(input)?, checksum: input.u64()?, hash: input.digest()? })
            })?,
            level: input.u8()?,
            entries: input.u64()?,
            digest: input.digest()?,
            filter: None,
            shortcuts: None,
        };
        let blobs = input.u8()?;
        if blobs > 2 {
            return Err(Error::Malformed("blobs of a tree"));
        }
        if blobs > 0 {
            tree.filter = Some(BlobRef::decode(input)?);
        }
        if blobs > 1 {
            tree.shortcuts = Some(BlobRef::decode(input)?);
        }
        Ok(tree)
    }
}

impl TreeId {
    fn encode(&self, out: &mut Writer) {
        out.digest(&self.digest);
        encode_option(self.root.as_ref(), out, |root, out| out.u64(root.to_u64()));
        encode_option(self.filter.as_ref(), out, BlobRef::encode);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            digest: input.digest()?,
            root: decode_option(input, decode_pid)?,
            filter: decode_option(input, BlobRef::decode)?,
        })
    }
}

fn encode_values(values: &BTreeMap<u32, u64>, out: &mut Writer) {
    let values: Vec<_> = values.iter().collect();
    encode_list(&values, out, |(segment, bytes), out| {
        out.u32(**segment);
        out.u64(**bytes);
    });
}

fn decode_values(input: &mut Reader<'_>) -> Result<BTreeMap<u32, u64>, Error> {
    Ok(decode_list(input, |input| Ok((input.u32()?, input.u64()?)))?.into_iter().collect())
}

impl Delta {
    fn encode(&self, out: &mut Writer) {
        encode_list(&self.allocated, out, |pid, out| out.u64(pid.to_u64()));
        encode_list(&self.pended, out, |pid, out| out.u64(pid.to_u64()));
        encode_values(&self.values_allocated, out);
        encode_values(&self.values_pended, out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            allocated: decode_list(input, decode_pid)?,
            pended: decode_list(input, decode_pid)?,
            values_allocated: decode_values(input)?,
            values_pended: decode_values(input)?,
        })
    }
}

impl VersionRecord {
    pub(crate) fn encode(&self, out: &mut Writer) {
        self.encode_parts(&self.trees, out);
    }

    /// Encodes the version with only these trees.
    pub(super) fn encode_parts(&self, trees: &[Tree], out: &mut Writer) {
        out.u64(self.id);
        out.u64(self.parent);
        out.flag(self.decided);
        out.stamp(self.stamp);
        out.u64(self.prepare_id.term.0);
        out.u64(self.prepare_id.attempt);
        out.digest(&self.digest);
        encode_list(trees, out, Tree::encode);
        out.u64(self.freezes);
        encode_list(&self.installs, out, |id, out| out.u64(*id));
        self.delta.encode(out);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let record = Self {
            id: input.u64()?,
            parent: input.u64()?,
            decided: input.flag("decided")?,
            stamp: input.stamp()?,
            prepare_id: PrepareId { term: Term(input.u64()?), attempt: input.u64()? },
            digest: input.digest()?,
            trees: decode_list(input, Tree::decode)?,
            freezes: input.u64()?,
            installs: decode_list(input, |input| input.u64())?,
            delta: Delta::decode(input)?,
        };
        if record.trees.is_empty() {
            return Err(Error::Malformed("forest"));
        }
        Ok(record)
    }
}

impl MergeRecord {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.id);
        encode_list(&self.inputs, out, TreeId::encode);
        encode_list(&self.older, out, TreeId::encode);
        self.output.encode(out);
        self.delta.encode(out);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            id: input.u64()?,
            inputs: decode_list(input, TreeId::decode)?,
            older: decode_list(input, TreeId::decode)?,
            output: Tree::decode(input)?,
            delta: Delta::decode(input)?,
            installed_by: 0,
        })
    }
}

impl MetaOp {
    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            Self::AddVersion(record) => {
                out.u8(1);
                record.encode(out);
            }
            Self::DropVersion(id) => {
                out.u8(2);
                out.u64(*id);
            }
            Self::Settle(id) => {
                out.u8(3);
                out.u64(*id);
            }
            Self::Prune(before) => {
                out.u8(4);
                out.u64(before.0);
            }
            Self::SetEpoch(epoch) => {
                out.u8(5);
                out.u64(epoch.0);
            }
            Self::AddMerge(record) => {
                out.u8(6);
                record.encode(out);
            }
            Self::DropMerge(id) => {
                out.u8(7);
                out.u64(*id);
            }
            Self::Checkpoint { generation, segment_ends, dead_segments } => {
                out.u8(8);
                out.u64(*generation);
                encode_list(segment_ends, out, |(segment, end), out| {
                    out.u32(*segment);
                    out.u64(*end);
                });
                encode_list(dead_segments, out, |segment, out| out.u32(*segment));
            }
            Self::KeepJournal(id, blob) => {
                out.u8(9);
                out.u64(*id);
                blob.encode(out);
            }
            Self::Copied => out.u8(10),
            later => later.encode_later(out),
        }
    }

    /// Encodes the operations about blocks and erased keys.
    fn encode_later(&self, out: &mut Writer) {
        match self {
            Self::Fold { first, last, at } => {
                out.u8(11);
                out.u64(*first);
                out.u64(*last);
                at.encode(out);
            }
            Self::Unfold(rows) => {
                out.u8(12);
                encode_list(rows, out, VersionRecord::encode);
            }
            Self::PruneBlock(first, pended) => {
                out.u8(13);
                out.u64(first.0);
                pended.encode(out);
            }
            Self::DropBlock(first, allocated) => {
                out.u8(14);
                out.u64(first.0);
                allocated.encode(out);
            }
            Self::Erase(id, keys) => {
                out.u8(15);
                out.u64(*id);
                encode_keys(keys, out);
            }
            Self::Erased(through) => {
                out.u8(16);
                out.u64(*through);
            }
            _ => unreachable!("it is encoded by the caller"),
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match input.u8()? {
            1 => Self::AddVersion(VersionRecord::decode(input)?),
            2 => Self::DropVersion(input.u64()?),
            3 => Self::Settle(input.u64()?),
            4 => Self::Prune(Version(input.u64()?)),
            5 => Self::SetEpoch(Epoch(input.u64()?)),
            6 => Self::AddMerge(MergeRecord::decode(input)?),
            7 => Self::DropMerge(input.u64()?),
            8 => Self::Checkpoint {
                generation: input.u64()?,
                segment_ends: decode_list(input, |input| Ok((input.u32()?, input.u64()?)))?,
                dead_segments: decode_list(input, |input| input.u32())?,
            },
            9 => Self::KeepJournal(input.u64()?, BlobRef::decode(input)?),
            10 => Self::Copied,
            11 => Self::Fold { first: input.u64()?, last: input.u64()?, at: BlobRef::decode(input)? },
            12 => Self::Unfold(decode_list(input, VersionRecord::decode)?),
            13 => Self::PruneBlock(Version(input.u64()?), Delta::decode(input)?),
            14 => Self::DropBlock(Version(input.u64()?), Delta::decode(input)?),
            15 => Self::Erase(input.u64()?, decode_keys(input)?),
            16 => Self::Erased(input.u64()?),
            _ => return Err(Error::Malformed("meta operation")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{page::PageFile, refs::ValueRef};

    pub(crate) fn version() -> VersionRecord {
        let pid = Pid::new(PageFile::Data, 9, 2);
        let root = Child { pid, checksum: 5, hash: Digest([7; 32]) };
        let filter = BlobRef { at: ValueRef { segment: 1, offset: 2 }, len: 64 };
        let frozen =
            Tree { root: Some(root), filter: Some(filter), entries: 10, digest: Digest([1; 32]), ..Tree::empty() };
        let merged = Tree { shortcuts: Some(BlobRef { len: 4096, ..filter }), ..frozen.clone() };
        VersionRecord {
            id: 3,
            parent: 2,
            decided: true,
            stamp: Stamp::new(1, 8),
            prepare_id: PrepareId { term: Term(4), attempt: 5 },
            digest: Digest([2; 32]),
            trees: vec![Tree::empty(), frozen, merged],
            freezes: 6,
            installs: vec![1],
            delta: Delta {
                allocated: vec![pid],
                pended: vec![pid, pid],
                values_allocated: [(1, 100)].into(),
                values_pended: [(0, 7), (1, 9)].into(),
            },
        }
    }

    #[test]
    fn operations_are_read_back_as_written_and_never_panic_when_cut() {
        let version = version();
        let merge = MergeRecord {
            id: 8,
            inputs: version.trees.iter().map(Tree::id).collect(),
            older: vec![],
            output: version.trees[2].clone(),
            delta: version.delta.clone(),
            installed_by: 0,
        };
        let at = BlobRef { at: ValueRef { segment: 1, offset: 2 }, len: 3 };
        let operations = [
            MetaOp::Fold { first: 1, last: 2, at },
            MetaOp::Unfold(vec![version.clone(); 2]),
            MetaOp::PruneBlock(Version(1), version.delta.clone()),
            MetaOp::DropBlock(Version(1), version.delta.clone()),
            MetaOp::AddVersion(version),
            MetaOp::DropVersion(1),
            MetaOp::Settle(2),
            MetaOp::Prune(Version(3)),
            MetaOp::SetEpoch(Epoch(4)),
            MetaOp::AddMerge(merge),
            MetaOp::DropMerge(5),
            MetaOp::KeepJournal(6, at),
            MetaOp::Copied,
            MetaOp::Erase(7, vec![b"a".to_vec(), b"b".to_vec()]),
            MetaOp::Erased(7),
            MetaOp::Checkpoint { generation: 6, segment_ends: vec![(0, 100)], dead_segments: vec![3] },
        ];
        for operation in operations {
            let mut out = Writer::new();
            operation.encode(&mut out);
            let bytes = out.into_bytes();
            let mut input = Reader::new(&bytes);
            assert_eq!(MetaOp::decode(&mut input), Ok(operation));
            assert_eq!(input.finish(), Ok(()));
            for cut in 0..bytes.len() {
                assert!(MetaOp::decode(&mut Reader::new(&bytes[..cut])).is_err());
            }
        }
    }

    fn refusal(bytes: &[u8]) -> Error {
        MetaOp::decode(&mut Reader::new(bytes)).expect_err("no engine writes it")
    }

    #[test]
    fn an_operation_of_an_unknown_kind_is_refused() {
        for kind in [0, 17, 255] {
            assert_eq!(refusal(&[kind; 64]), Error::Malformed("meta operation"));
        }
    }

    #[test]
    fn a_version_without_trees_is_refused() {
        let mut out = Writer::new();
        MetaOp::AddVersion(VersionRecord { trees: Vec::new(), ..version() }).encode(&mut out);
        assert_eq!(refusal(&out.into_bytes()), Error::Malformed("forest"));
    }

    #[test]
    fn a_place_that_no_page_has_is_refused() {
        let mut out = Writer::new();
        MetaOp::AddVersion(version()).encode(&mut out);
        let (mut bytes, pid) = (out.into_bytes(), version().delta.allocated[0].to_u64().to_le_bytes());
        let at: Vec<usize> = (0..bytes.len() - 7).filter(|at| bytes[*at..*at + 8] == pid).collect();
        assert_eq!(at.len(), 5, "two roots, one page of its own, two that it replaces");
        for at in at {
            bytes[at + 7] = 0;
            assert_eq!(refusal(&bytes), Error::Malformed("page id"));
            bytes[at + 7] = pid[7];
        }
    }

    #[test]
    fn a_tree_has_at_most_a_filter_and_shortcuts() {
        let tree = version().trees[2].clone();
        let mut out = Writer::new();
        tree.encode(&mut out);
        let mut bytes = out.into_bytes();
        assert_eq!(Tree::decode(&mut Reader::new(&bytes)), Ok(tree.clone()));
        let blob_bytes = {
            let mut out = Writer::new();
            tree.filter.expect("it is frozen").encode(&mut out);
            out.into_bytes().len()
        };
        let count_at = bytes.len() - 2 * blob_bytes - 1;
        assert_eq!(bytes[count_at], 2);
        bytes[count_at] = 3;
        bytes.extend(vec![0; blob_bytes]);
        assert_eq!(Tree::decode(&mut Reader::new(&bytes)), Err(Error::Malformed("blobs of a tree")));
    }

    #[test]
    fn a_list_that_ends_before_its_last_item_is_refused() {
        let bytes = [&u32::MAX.to_le_bytes()[..], &[0; 16]].concat();
        assert!(decode_list(&mut Reader::new(&bytes), |input| input.u64()).is_err());
    }

    #[test]
    fn the_class_of_a_tree_tells_whether_it_is_frozen() {
        let [active, frozen, merged] = <[Tree; 3]>::try_from(version().trees).expect("three");
        assert_eq!([active.class(), frozen.class(), merged.class()], [Class::Young, Class::Old, Class::Old]);
        assert_eq!([&active, &frozen, &merged].map(|tree| tree.blobs().count()), [0, 1, 2]);
    }

    #[test]
    fn a_tree_is_identified_by_content_place_and_filter() {
        let frozen = version().trees[1].clone();
        let root = frozen.root.expect("it has records");
        let elsewhere = Child { pid: Pid::new(PageFile::Data, 10, 2), ..root };
        let filter = frozen.filter.map(|blob| BlobRef { len: blob.len + 64, ..blob });
        for other in [
            Tree { digest: Digest([9; 32]), ..frozen.clone() },
            Tree { root: Some(elsewhere), ..frozen.clone() },
            Tree { filter, ..frozen.clone() },
        ] {
            assert_ne!(other.id(), frozen.id());
        }
        assert_eq!(Tree { shortcuts: frozen.filter, ..frozen.clone() }.id(), frozen.id());
    }

    #[test]
    fn a_new_tree_has_the_digest_of_the_rules() {
        assert_eq!(Tree::new(None, 0, 0, None), Tree::empty());
        let root = version().trees[1].root.expect("it has records");
        let tree = Tree::new(Some(root), 2, 10, None);
        assert_eq!((tree.digest, tree.root_hash()), (hash::tree_digest(2, 10, &root.hash), root.hash));
        assert_eq!(Tree::empty().root_hash(), hash::empty_root_hash());
    }

    #[test]
    fn the_bytes_of_a_damaged_log_do_not_overflow_a_delta() {
        let mut delta = Delta::default();
        [u64::MAX, 5].into_iter().for_each(|bytes| delta.allocate_value(3, bytes));
        [4, 5].into_iter().for_each(|bytes| delta.pend_value(3, bytes));
        assert_eq!((delta.values_allocated, delta.values_pended), ([(3, u64::MAX)].into(), [(3, 9)].into()));
    }
}
