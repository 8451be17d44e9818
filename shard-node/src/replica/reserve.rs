//! The reserve of a node's disk: room for work that must go on when the disk is full.
//!
//! One file in the node's directory is as large as the shares of all its replicas together. A
//! replica's share covers what waits in its memory and in its log; see [`Tuning::share_bytes`].
//! Work that follows gets the room before it is accepted. A replica that finds the disk full gives
//! its share back to the disk, and takes it again once it has flushed.
//!
//! **Invariant.** The disk counts as full for every replica of the node as long as one of them
//! lacks its share. Otherwise the others would use up the room that was given back for that
//! replica.
//!
//! A crash leaves the file as it is. The next start trims it once every replica has its share.
//!
//! [`Tuning::share_bytes`]: super::tuning::Tuning::share_bytes

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use coppice_env::{OpenMode, Storage};
use coppice_types::GroupId;
use parking_lot::Mutex;

use crate::{Error, error::storage as failed};

/// The name of the file.
const FILE: &str = "reserve";
/// The file grows in steps of this size. It grows only if this many bytes, or an eighth of what is
/// asked for if that is less, stay free.
const STEP_BYTES: u64 = 1 << 20;

/// The reserve of one node.
#[derive(Debug)]
pub struct Reserve {
    storage: Arc<dyn Storage>,
    shares: Mutex<Shares>,
    /// Whether a replica lacks its share.
    short: AtomicBool,
}

#[derive(Debug, Default)]
struct Shares {
    held: BTreeMap<GroupId, u64>,
    /// Replicas that gave their share back, or found no room for it.
    missing: BTreeSet<GroupId>,
    /// Replicas of the node's start that have not taken a share yet.
    awaited: BTreeSet<GroupId>,
}

impl Shares {
    fn total(&self) -> u64 {
        self.held.values().sum()
    }
}

impl Reserve {
    /// The reserve in a node's directory. The file is trimmed when these replicas have their
    /// shares.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>, groups: impl IntoIterator<Item = GroupId>) -> Self {
        let shares = Shares { awaited: groups.into_iter().collect(), ..Shares::default() };
        Self { storage, shares: Mutex::new(shares), short: AtomicBool::new(false) }
    }

    /// Whether a replica of this node lacks its share.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Makes a replica's share at least this large, and returns its size. If the disk has too
    /// little room, the present share stays.
    ///
    /// # Errors
    /// If there is no room, or the storage fails.
    pub fn take(&self, group: GroupId, bytes: u64) -> Result<u64, Error> {
        let mut shares = self.shares.lock();
        let held = shares.held.get(&group).copied().unwrap_or_default();
        let grown = if held < bytes { self.grow(shares.total() - held + bytes, bytes) } else { Ok(()) };
        let taken = grown.map(|()| held.max(bytes));
        match &taken {
            Ok(share) => {
                shares.held.insert(group, *share);
                shares.missing.remove(&group);
                if shares.awaited.remove(&group) && shares.awaited.is_empty() {
                    self.cut(shares.total()).map_err(failed("trim the reserve"))?;
                }
            }
            Err(_) => drop(shares.missing.insert(group)),
        }
        self.short.store(!shares.missing.is_empty(), Ordering::Relaxed);
        taken.map_err(failed("keep a reserve"))
    }

    /// Grows the file to `len`, of which one replica asks for `bytes`.
    fn grow(&self, len: u64, bytes: u64) -> io::Result<()> {
        let file = self.storage.open(FILE, OpenMode::OpenOrCreate)?;
        let before = file.len()?;
        if before >= len {
            return Ok(());
        }
        // Some room is left free, so that other writes don't fail because of the reserve.
        if self.storage.free_bytes()? < len - before + STEP_BYTES.min(bytes / 8) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Where the file system cannot allocate, zeroes are written.
        let mut end = before;
        let mut grow = || {
            while end < len {
                end = len.min(end + STEP_BYTES);
                file.allocate(end)?;
            }
            file.sync_data()
        };
        grow().inspect_err(|_| drop(self.cut(before)))
    }

    /// Makes a replica's share at most this large.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn lower(&self, group: GroupId, bytes: u64) -> Result<(), Error> {
        let mut shares = self.shares.lock();
        match shares.held.get_mut(&group) {
            Some(held) if *held > bytes => {
                let less = *held - bytes;
                *held = bytes;
                self.cut_by(less)
            }
            _ => Ok(()),
        }
    }

    /// Gives a replica's share back to the disk. Every replica of the node counts as short until
    /// the share is taken again.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn release(&self, group: GroupId) -> Result<(), Error> {
        let mut shares = self.shares.lock();
        shares.missing.insert(group);
        self.short.store(true, Ordering::Relaxed);
        let held = shares.held.remove(&group).unwrap_or_default();
        self.cut_by(held)
    }

    /// Forgets a replica that has ended, and gives its share back.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn leave(&self, group: GroupId) -> Result<(), Error> {
        let mut shares = self.shares.lock();
        shares.missing.remove(&group);
        shares.awaited.remove(&group);
        self.short.store(!shares.missing.is_empty(), Ordering::Relaxed);
        let held = shares.held.remove(&group).unwrap_or_default();
        self.cut_by(held)
    }

    fn cut_by(&self, bytes: u64) -> Result<(), Error> {
        let cut = || match self.len()? {
            0 => Ok(()),
            len => self.cut(len.saturating_sub(bytes)),
        };
        if bytes == 0 { Ok(()) } else { cut().map_err(failed("give room of the reserve back")) }
    }

    /// Cuts the file to `len`, if it is longer. It stays on the disk, empty, when nothing is left.
    fn cut(&self, len: u64) -> io::Result<()> {
        if self.len()? <= len {
            return Ok(());
        }
        let file = self.storage.open(FILE, OpenMode::Existing)?;
        file.set_len(len)?;
        file.sync_data()
    }

    /// The size of the file.
    fn len(&self) -> io::Result<u64> {
        match self.storage.open(FILE, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            file => file?.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{ErrorKind, ShardId};

    use super::*;

    const ROOT: GroupId = GroupId::Root;
    const SHARD: GroupId = GroupId::Shard(ShardId(0));

    fn reserve(disk: &SimStorage, groups: &[GroupId]) -> Reserve {
        Reserve::new(disk.storage(), groups.iter().copied())
    }

    fn is_full(taken: &Result<u64, Error>) -> bool {
        taken.as_ref().is_err_and(|error| error.kind() == ErrorKind::Exhausted)
    }

    #[test]
    fn a_share_is_taken_whole_and_leaves_room_for_others() {
        let (disk, bytes) = (SimStorage::new(), 8 << 20);
        let reserve = reserve(&disk, &[]);
        for (room, taken) in [(0, false), (bytes, false), (bytes + (1 << 20) - 1, false), (bytes + (1 << 20), true)] {
            disk.set_capacity(Some(room));
            let result = reserve.take(ROOT, bytes);
            assert!(result.is_ok() == taken && is_full(&result) != taken, "{room} bytes of room: {result:?}");
            assert_eq!((disk.used_bytes(), reserve.is_short()), (if taken { bytes } else { 0 }, !taken));
        }
        // A share of the right size is kept without new room, stays when it can't grow, and is
        // given back whole.
        disk.set_capacity(Some(0));
        reserve.take(ROOT, bytes).expect("it is there");
        assert!(is_full(&reserve.take(ROOT, bytes + 1)));
        assert_eq!(disk.used_bytes(), bytes);
        reserve.release(ROOT).expect("cut");
        assert_eq!(disk.used_bytes(), 0);
    }

    #[test]
    fn the_file_holds_the_shares_of_all_and_each_gives_back_its_own() {
        let disk = SimStorage::new();
        let reserve = reserve(&disk, &[]);
        reserve.take(ROOT, 2 << 20).expect("there is room");
        reserve.take(SHARD, 8 << 20).expect("there is room");
        assert_eq!(disk.used_bytes(), 10 << 20);
        reserve.lower(SHARD, 3 << 20).expect("cut");
        reserve.lower(ROOT, 3 << 20).expect("it is smaller");
        assert_eq!(disk.used_bytes(), 5 << 20);
        reserve.release(SHARD).expect("cut");
        assert!(reserve.is_short(), "the others must leave that room alone");
        assert_eq!(disk.used_bytes(), 2 << 20);
        reserve.release(SHARD).expect("nothing is left of it");
        assert_eq!(disk.used_bytes(), 2 << 20, "the other's share stays");
        reserve.take(SHARD, 1 << 20).expect("there is room");
        assert!(!reserve.is_short());
        reserve.release(SHARD).expect("cut");
        reserve.leave(SHARD).expect("nothing is left of it");
        assert!(!reserve.is_short(), "a replica that has ended lacks nothing");
        reserve.leave(ROOT).expect("cut");
        assert_eq!(disk.used_bytes(), 0);
    }

    #[test]
    fn a_start_keeps_the_room_that_is_there_until_all_have_their_shares() {
        let disk = SimStorage::new();
        let earlier = reserve(&disk, &[]);
        earlier.take(ROOT, 4 << 20).and_then(|_| earlier.take(SHARD, 4 << 20)).expect("there is room");
        disk.set_capacity(Some(disk.used_bytes()));
        let reserve = reserve(&disk, &[ROOT, SHARD]);
        reserve.take(ROOT, 1 << 20).expect("it is there");
        assert_eq!(disk.used_bytes(), 8 << 20);
        reserve.take(SHARD, 4 << 20).expect("it is there, though the disk is full");
        assert_eq!(disk.used_bytes(), 5 << 20);
    }
}
