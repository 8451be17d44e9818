//! The state of a simulated file system: its inodes and names, and the faults to come.

use std::{collections::BTreeSet, io, time::Duration};

use super::{
    fault::{Fault, Operation},
    inode::{Change, DirInode, FileInode, Inode, InodeId, NameChange, index},
};
use crate::{
    Rng, SimRng,
    storage::{OpenMode, parts},
};

const ROOT: InodeId = 0;

#[derive(Debug)]
pub(super) struct Disk {
    inodes: Vec<Inode>,
    locks: BTreeSet<String>,
    faults: Vec<Fault>,
    io_count: u64,
    crash_at: Option<u64>,
    crashed: bool,
    capacity: Option<u64>,
    /// Number of files and directories that can still be opened.
    opens_left: Option<u64>,
    /// The durations of a change and of a sync.
    pace: (Duration, Duration),
    took: Duration,
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path}: no such file or directory"))
}

fn crash_error() -> io::Error {
    io::Error::other("the simulated machine has crashed")
}

impl Disk {
    pub(super) fn new() -> Self {
        Self {
            inodes: vec![Inode::Dir(DirInode::default())],
            locks: BTreeSet::new(),
            faults: Vec::new(),
            io_count: 0,
            crash_at: None,
            crashed: false,
            capacity: None,
            opens_left: None,
            pace: (Duration::ZERO, Duration::ZERO),
            took: Duration::ZERO,
        }
    }

    pub(super) fn io_count(&self) -> u64 {
        self.io_count
    }

    pub(super) fn crash_after(&mut self, n_ios: u64) {
        self.crash_at = Some(self.io_count + n_ios);
    }

    pub(super) fn disarm(&mut self) {
        self.crash_at = None;
    }

    pub(super) fn halt(&mut self) {
        self.crashed = true;
    }

    pub(super) fn set_pace(&mut self, change: Duration, sync: Duration) {
        self.pace = (change, sync);
    }

    pub(super) fn take_took(&mut self) -> Duration {
        std::mem::take(&mut self.took)
    }

    pub(super) fn crashed(&self) -> bool {
        self.crashed
    }

    pub(super) fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes;
    }

    pub(super) fn set_opens_left(&mut self, opens: Option<u64>) {
        self.opens_left = opens;
    }

    /// Counts a call that needs a descriptor.
    fn take_handle(&mut self, path: &str) -> io::Result<()> {
        let Some(left) = &mut self.opens_left else { return Ok(()) };
        let none_left = || io::Error::new(io::ErrorKind::OutOfMemory, format!("{path}: too many open files"));
        *left = left.checked_sub(1).ok_or_else(none_left)?;
        Ok(())
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    fn fault(&mut self, operation: Operation, path: &str) -> io::Result<()> {
        let matches = |fault: &Fault| fault.operation == operation && path.contains(&fault.path_part);
        let mut hit = None;
        for (at, fault) in self.faults.iter_mut().enumerate() {
            if !matches(fault) {
                continue;
            }
            match fault.skip.checked_sub(1) {
                Some(left) => fault.skip = left,
                None => hit = hit.or(Some(at)),
            }
        }
        match hit {
            None => Ok(()),
            Some(at) => {
                let fault = self.faults.remove(at);
                Err(io::Error::new(fault.kind, format!("{path}: injected failure of {operation:?}")))
            }
        }
    }

    /// Counts a changing call. `Ok(true)` means that the machine crashes in it: the call may take
    /// effect, but must fail.
    fn charge(&mut self, operation: Operation, path: &str) -> io::Result<bool> {
        self.alive()?;
        self.fault(operation, path)?;
        self.io_count += 1;
        let slow = matches!(operation, Operation::Sync | Operation::SyncDir);
        self.took += if slow { self.pace.1 } else { self.pace.0 };
        self.crashed = self.crash_at.is_some_and(|at| self.io_count > at);
        Ok(self.crashed)
    }

    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(crash_error()) } else { Ok(()) }
    }

    fn file(&self, inode: InodeId) -> &FileInode {
        match &self.inodes[inode] {
            Inode::File(file) => file,
            Inode::Dir(_) => unreachable!("files keep their inode numbers"),
        }
    }

    fn file_mut(&mut self, inode: InodeId) -> &mut FileInode {
        match &mut self.inodes[inode] {
            Inode::File(file) => file,
            Inode::Dir(_) => unreachable!("files keep their inode numbers"),
        }
    }

    fn dir(&self, inode: InodeId) -> Option<&DirInode> {
        match &self.inodes[inode] {
            Inode::Dir(dir) => Some(dir),
            Inode::File(_) => None,
        }
    }

    fn dir_mut(&mut self, inode: InodeId) -> &mut DirInode {
        match &mut self.inodes[inode] {
            Inode::Dir(dir) => dir,
            Inode::File(_) => unreachable!("directories keep their inode numbers"),
        }
    }

    fn find(&self, path: &str) -> io::Result<InodeId> {
        let mut at = ROOT;
        for part in parts(path)? {
            let dir = self.dir(at).ok_or_else(|| io::Error::new(io::ErrorKind::NotADirectory, path.to_owned()))?;
            at = *dir.names.get(part).ok_or_else(|| not_found(path))?;
        }
        Ok(at)
    }

    /// The directory of a path, and the last name in it.
    fn parent<'a>(&self, path: &'a str) -> io::Result<(InodeId, &'a str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        parts(path)?;
        let dir = self.find(dir)?;
        if name.is_empty() || self.dir(dir).is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?} names no file")));
        }
        Ok((dir, name))
    }

    fn rename_in_memory(&mut self, home: InodeId, change: NameChange) {
        if let Some((dir, name, _)) = &change.unset {
            self.dir_mut(*dir).names.remove(name);
        }
        if let Some((dir, name, inode)) = &change.set {
            self.dir_mut(*dir).names.insert(name.clone(), *inode);
        }
        self.dir_mut(home).pending.push(change);
    }

    fn make_durable(&mut self, change: NameChange) {
        if let Some((dir, name, was)) = change.unset {
            let durable = &mut self.dir_mut(dir).durable;
            if durable.get(&name) == Some(&was) {
                durable.remove(&name);
            }
        }
        if let Some((dir, name, inode)) = change.set {
            self.dir_mut(dir).durable.insert(name, inode);
        }
    }

    pub(super) fn open(&mut self, path: &str, mode: OpenMode) -> io::Result<InodeId> {
        self.alive()?;
        self.fault(Operation::Open, path)?;
        self.take_handle(path)?;
        match (self.find(path), mode) {
            (Ok(_), OpenMode::CreateNew) => Err(io::Error::new(io::ErrorKind::AlreadyExists, path)),
            (Ok(inode), _) if self.dir(inode).is_some() => Err(io::Error::new(io::ErrorKind::IsADirectory, path)),
            (Ok(inode), _) => Ok(inode),
            (Err(error), OpenMode::Existing) => Err(error),
            (Err(error), _) if error.kind() != io::ErrorKind::NotFound => Err(error),
            (Err(_), _) => {
                let (dir, name) = self.parent(path)?;
                let name = name.to_owned();
                let crash = self.charge(Operation::Name, path)?;
                let inode = self.inodes.len();
                self.inodes.push(Inode::File(FileInode::default()));
                self.rename_in_memory(dir, NameChange { set: Some((dir, name, inode)), unset: None });
                if crash { Err(crash_error()) } else { Ok(inode) }
            }
        }
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let inode = self.find(path)?;
        if self.dir(inode).is_some() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, path));
        }
        let crash = self.charge(Operation::Name, path)?;
        self.rename_in_memory(dir, NameChange { set: None, unset: Some((dir, name.to_owned(), inode)) });
        if crash { Err(crash_error()) } else { Ok(()) }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let inode = self.find(from)?;
        if let Ok(target) = self.find(to) {
            let kinds = (self.dir(inode).is_some(), self.dir(target).map(|dir| dir.names.is_empty()));
            match kinds {
                (true, None) => return Err(io::Error::new(io::ErrorKind::NotADirectory, to)),
                (false, Some(_)) => return Err(io::Error::new(io::ErrorKind::IsADirectory, to)),
                (true, Some(false)) => return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, to)),
                _ => {}
            }
        }
        let crash = self.charge(Operation::Name, from)?;
        let change = NameChange {
            set: Some((to_dir, to_name.to_owned(), inode)),
            unset: (from != to).then(|| (from_dir, from_name.to_owned(), inode)),
        };
        self.rename_in_memory(to_dir, change);
        if crash { Err(crash_error()) } else { Ok(()) }
    }

    pub(super) fn list(&mut self, dir: &str) -> io::Result<Vec<String>> {
        self.alive()?;
        let inode = self.find(dir)?;
        self.take_handle(dir)?;
        let dir = self.dir(inode).ok_or_else(|| io::Error::new(io::ErrorKind::NotADirectory, dir.to_owned()))?;
        Ok(dir.names.keys().cloned().collect())
    }

    pub(super) fn create_dir_all(&mut self, path: &str) -> io::Result<()> {
        self.alive()?;
        let mut at = ROOT;
        for part in parts(path)? {
            let known = self.dir(at).map(|dir| dir.names.get(part).copied());
            at = match known {
                None => return Err(io::Error::new(io::ErrorKind::NotADirectory, path)),
                Some(Some(inode)) => inode,
                Some(None) => {
                    self.take_handle(path)?;
                    let crash = self.charge(Operation::Name, path)?;
                    let inode = self.inodes.len();
                    self.inodes.push(Inode::Dir(DirInode::default()));
                    let change = NameChange { set: Some((at, part.to_owned(), inode)), unset: None };
                    self.rename_in_memory(at, change);
                    if crash {
                        return Err(crash_error());
                    }
                    self.sync_dir_inode(at);
                    inode
                }
            };
        }
        if self.dir(at).is_none() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, path));
        }
        Ok(())
    }

    fn sync_dir_inode(&mut self, dir: InodeId) {
        for change in std::mem::take(&mut self.dir_mut(dir).pending) {
            self.make_durable(change);
        }
    }

    pub(super) fn sync_dir(&mut self, path: &str) -> io::Result<()> {
        let dir = self.find(path)?;
        self.take_handle(path)?;
        if self.charge(Operation::SyncDir, path)? {
            return Err(crash_error());
        }
        self.sync_dir_inode(dir);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &str) -> io::Result<()> {
        let inode = match self.find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if self.dir(inode).is_none() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, path));
        }
        let (dir, name) = self.parent(path)?;
        let crash = self.charge(Operation::Name, path)?;
        self.unlink_below(inode);
        self.rename_in_memory(dir, NameChange { set: None, unset: Some((dir, name.to_owned(), inode)) });
        if crash { Err(crash_error()) } else { Ok(()) }
    }

    fn unlink_below(&mut self, inode: InodeId) {
        let Some(dir) = self.dir(inode) else { return };
        for (name, child) in dir.names.clone() {
            self.unlink_below(child);
            self.rename_in_memory(inode, NameChange { set: None, unset: Some((inode, name, child)) });
        }
    }

    pub(super) fn take_lock(&mut self, path: &str) -> io::Result<()> {
        if self.locks.insert(path.to_owned()) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{path}: locked")))
    }

    pub(super) fn release_lock(&mut self, path: &str) {
        self.locks.remove(path);
    }

    pub(super) fn read(&mut self, inode: InodeId, path: &str, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.alive()?;
        self.fault(Operation::Read, path)?;
        let data = &self.file(inode).data;
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= data.len() as u64);
        let end = end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, format!("{path}: ends early")))?;
        buf.copy_from_slice(&data[index(offset)..index(end)]);
        Ok(())
    }

    pub(super) fn write(&mut self, inode: InodeId, path: &str, bytes: &[u8], offset: u64) -> io::Result<()> {
        let crash = self.charge(Operation::Write, path)?;
        let len = self.file(inode).data.len() as u64;
        let room = self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used_bytes()));
        let fits_until = len.saturating_add(room).max(offset);
        let fits = bytes.len().min(usize::try_from(fits_until - offset).unwrap_or(usize::MAX));
        let overshoots = offset > len.saturating_add(room);
        if fits > 0 && !overshoots {
            self.file_mut(inode).change(Change::Write { offset, bytes: bytes[..fits].to_vec() });
        }
        if crash {
            Err(crash_error())
        } else if (fits < bytes.len() || overshoots) && !bytes.is_empty() {
            Err(io::Error::new(io::ErrorKind::StorageFull, format!("{path}: no space left")))
        } else {
            Ok(())
        }
    }

    pub(super) fn len(&self, inode: InodeId) -> io::Result<u64> {
        self.alive()?;
        Ok(self.file(inode).data.len() as u64)
    }

    /// Writes zeroes, up to the end of the file. They count as used: freed space is not modelled.
    pub(super) fn discard(&mut self, inode: InodeId, path: &str, offset: u64, len: u64) -> io::Result<()> {
        let crash = self.charge(Operation::Write, path)?;
        let end = offset.saturating_add(len).min(self.file(inode).data.len() as u64);
        if offset < end {
            self.file_mut(inode).change(Change::Write { offset, bytes: vec![0; index(end - offset)] });
        }
        if crash { Err(crash_error()) } else { Ok(()) }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used_bytes()))
    }

    pub(super) fn set_len(&mut self, inode: InodeId, path: &str, len: u64) -> io::Result<()> {
        let crash = self.charge(Operation::Write, path)?;
        let growth = len.saturating_sub(self.file(inode).data.len() as u64);
        if self.capacity.is_some_and(|capacity| self.used_bytes().saturating_add(growth) > capacity) && growth > 0 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, format!("{path}: no space left")));
        }
        self.file_mut(inode).change(Change::SetLen(len));
        if crash { Err(crash_error()) } else { Ok(()) }
    }

    pub(super) fn sync(&mut self, inode: InodeId, path: &str) -> io::Result<()> {
        match self.charge(Operation::Sync, path) {
            Ok(false) => self.file_mut(inode).sync(),
            Ok(true) => return Err(crash_error()),
            Err(error) => {
                let file = self.file_mut(inode);
                file.doomed.append(&mut file.pending);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn flip_bit(&mut self, path: &str, offset: u64, bit: u8) {
        let inode = self.find(path).expect("tests damage files that exist");
        self.file_mut(inode).flip_bit(index(offset), bit);
    }

    fn walk(&self, dir: InodeId, path: &str, found: &mut Vec<(String, InodeId)>) {
        let Some(inode) = self.dir(dir) else { return };
        for (name, child) in &inode.names {
            let path = crate::storage::join(path, name);
            match self.inodes[*child] {
                Inode::File(_) => found.push((path, *child)),
                Inode::Dir(_) => self.walk(*child, &path, found),
            }
        }
    }

    pub(super) fn files(&self, prefix: &str) -> Vec<String> {
        let mut found = Vec::new();
        if let Ok(dir) = self.find(prefix) {
            self.walk(dir, "", &mut found);
        }
        found.into_iter().map(|(path, _)| path).collect()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let mut found = Vec::new();
        self.walk(ROOT, "", &mut found);
        let inodes: BTreeSet<InodeId> = found.into_iter().map(|(_, inode)| inode).collect();
        inodes.into_iter().map(|inode| self.file(inode).data.len() as u64).sum()
    }

    /// This file system with its pending changes, but without faults, locks or crash.
    pub(super) fn process_loss(&self) -> Self {
        Self { inodes: self.inodes.clone(), capacity: self.capacity, ..Self::new() }
    }

    pub(super) fn power_loss(&self, seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let mut disk = self.process_loss();
        for dir in 0..disk.inodes.len() {
            if disk.dir(dir).is_none() {
                continue;
            }
            let keep_per_mille = rng.below(1001);
            // Changes of one file or directory keep their order: one is kept only if all before it
            // are.
            let mut lost = BTreeSet::new();
            for change in std::mem::take(&mut disk.dir_mut(dir).pending) {
                let inode = change.set.as_ref().or(change.unset.as_ref()).map(|(_, _, inode)| *inode);
                let inode = inode.expect("a change sets or unsets a name");
                if lost.contains(&inode) || !rng.chance(keep_per_mille) {
                    lost.insert(inode);
                } else {
                    disk.make_durable(change);
                }
            }
        }
        for inode in &mut disk.inodes {
            match inode {
                Inode::Dir(dir) => dir.names = dir.durable.clone(),
                Inode::File(file) => {
                    let data = file.survivor(&mut rng);
                    *file = FileInode { durable: data.clone(), data, ..FileInode::default() };
                }
            }
        }
        disk
    }
}
