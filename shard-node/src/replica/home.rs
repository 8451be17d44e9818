//! A replica's directory: its owner, its current state, and notes that must survive a crash between
//! two steps.
//!
//! ```text
//! group-<number>/LOCK            held while the replica runs
//!                identity        cluster, group and raft id; written before anything else
//!                current         the number of the state directory in use
//!                incoming        while a snapshot is received: its state directory and manifest
//!                floor           an entry from which the raft log is kept
//!                raft/           the raft log
//!                state-<n>/      the state machine
//!                evidence/       the state machine that was last quarantined
//! ```
//!
//! A node with a cold directory keeps the cold files of the state directories there, under the same
//! names. They are removed after their state here; the next start removes those that a crash
//! leaves.
//!
//! The small files are replaced by write, sync, rename, sync. Each ends in the SHA-256 of its
//! content. A crash leaves the old or the new file. A snapshot is first received, checked and noted
//! as complete; then raft resets its log to it; then `current` changes. After a crash between the
//! last two steps, raft reports the snapshot at the next start.

use std::{fmt, io, sync::Arc};

use coppice_env::{OpenMode, Storage};
use coppice_types::{
    ClusterId, Digest, GroupId, RaftId,
    codec::{Reader, Writer},
};
use coppice_verify::hash::sha256;

use super::machine::Position;
use crate::{Error, error::storage as failed};

/// The format of ledgers of protocol version 2. Format 1 belonged to protocol version 1.
const FILE_VERSION: u8 = 2;
/// The largest small file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The replica that owns a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub group: GroupId,
    pub raft_id: RaftId,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {}, {}, raft id {:#x}", self.cluster, self.group, self.raft_id.0)
    }
}

/// A snapshot that is being received, or is complete and not yet current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingCopy {
    /// The number of the copy's state directory.
    pub generation: u64,
    /// The last entry that the copy covers.
    pub position: Position,
    /// The copy is complete, checked and durable.
    pub complete: bool,
    /// The manifest as the sender gave it.
    pub manifest: Vec<u8>,
}

/// An opened and locked replica directory.
pub struct Home {
    storage: Arc<dyn Storage>,
    _lock: Box<dyn Send + Sync>,
    generation: u64,
    started: bool,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// The name of a group's directory within a node's.
#[must_use]
pub fn directory(group: GroupId) -> String {
    format!("group-{}", group.number())
}

/// The beginning of the name that a directory has while it is removed.
const ASIDE: &str = "removed-";

/// Removes a group's directory from a node's. The directory is renamed first, so a crash leaves all
/// of it, or nothing that is ever opened.
///
/// # Errors
/// If it cannot be removed. It may be renamed already; the next removal continues.
pub fn remove(node: &dyn Storage, group: GroupId) -> io::Result<()> {
    let aside = format!("{ASIDE}{}", group.number());
    node.remove_dir_all(&aside)?;
    match node.rename(&directory(group), &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        renamed => renamed.and_then(|()| node.sync_dir(""))?,
    }
    remove_cold(node, &directory(group))?;
    node.remove_dir_all(&aside)
}

/// Ends removals that a crash has cut off, for all groups of a node. Their files may hold what was
/// erased since.
///
/// # Errors
/// If they can't be listed or removed.
pub fn end_removals(node: &dyn Storage) -> io::Result<()> {
    let names = node.list("")?;
    for name in &names {
        let Some(number) = name.strip_prefix(ASIDE) else { continue };
        let directory = format!("group-{number}");
        if !names.contains(&directory) {
            remove_cold(node, &directory)?;
        }
        node.remove_dir_all(name)?;
    }
    Ok(())
}

/// Removes a name from the cold directory, if there is one.
fn remove_cold(storage: &dyn Storage, name: &str) -> io::Result<()> {
    storage.cold().map_or(Ok(()), |cold| cold.remove_dir_all(name))
}

/// The owner of a group's directory within a node's; `None` if there is no such directory.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn stored(node: &dyn Storage, group: GroupId) -> Result<Option<Identity>, Error> {
    Ok(stored_progress(node, group)?.map(|(identity, _)| identity))
}

/// The owner of a group's directory within a node's, and whether its raft log was ever made. If
/// not, the replica has promised nothing yet.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn stored_progress(node: &dyn Storage, group: GroupId) -> Result<Option<(Identity, bool)>, Error> {
    let storage = node.subdir(&directory(group)).map_err(failed("open the replica's directory"))?;
    read(storage.as_ref(), "identity")?.map(|bytes| parse_identity(&bytes)).transpose()
}

impl Home {
    /// Opens and locks the directory of a replica. Creates it if it is missing.
    ///
    /// # Errors
    /// If another process holds it, or it belongs to another replica.
    pub fn open(node: &dyn Storage, identity: Identity) -> Result<Self, Error> {
        let directory = directory(identity.group);
        node.create_dir_all(&directory).map_err(failed("make the replica's directory"))?;
        let storage = node.subdir(&directory).map_err(failed("open the replica's directory"))?;
        let lock = storage.lock("LOCK").map_err(failed("lock the replica's directory"))?;
        let mut home = Self { storage, _lock: lock, generation: 1, started: false };
        match home.read("identity")? {
            Some(bytes) => home.started = check_identity(&bytes, identity)?,
            None => home.write("identity", &identity_bytes(identity, false))?,
        }
        if let Some(bytes) = home.read("current")? {
            home.generation = Reader::new(&bytes).u64().map_err(|error| damaged("current", error))?;
        }
        Ok(home)
    }

    /// Whether the raft log was created here before. If so, an empty log would be one that has lost
    /// votes.
    #[must_use]
    pub fn started(&self) -> bool {
        self.started
    }

    /// Removes the leftovers of a first start that was cut off. The replica had promised nothing by
    /// then.
    pub fn clear(&self) -> Result<(), Error> {
        self.storage.remove_dir_all("raft").map_err(failed("remove an unfinished raft log"))?;
        self.remove_state(self.generation)
    }

    /// Removes the cold files of states that are gone.
    pub fn clear_cold(&self) -> Result<(), Error> {
        let remove = || {
            let Some(cold) = self.storage.cold() else { return Ok(()) };
            let there = match cold.list("") {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                listed => listed?,
            };
            let here = self.storage.list("")?;
            let orphans = there.iter().filter(|name| !here.contains(name));
            orphans.into_iter().try_for_each(|name| cold.remove_dir_all(name))
        };
        remove().map_err(failed("clean up the cold directory"))
    }

    /// Notes that the raft log exists from now on.
    pub fn set_started(&mut self, identity: Identity) -> Result<(), Error> {
        self.write("identity", &identity_bytes(identity, true))?;
        self.started = true;
        Ok(())
    }

    /// The directory of the raft log, created if it is missing.
    pub fn raft(&self) -> Result<Arc<dyn Storage>, Error> {
        self.made("raft")
    }

    /// The directory of the current state, created if it is missing.
    pub fn state(&self) -> Result<Arc<dyn Storage>, Error> {
        self.made(&state_name(self.generation))
    }

    /// The directory of a copy that is being received, created if it is missing.
    pub fn state_of(&self, incoming: &IncomingCopy) -> Result<Arc<dyn Storage>, Error> {
        self.made(&state_name(incoming.generation))
    }

    fn made(&self, name: &str) -> Result<Arc<dyn Storage>, Error> {
        self.storage.create_dir_all(name).map_err(failed("make a directory"))?;
        self.storage.subdir(name).map_err(failed("open a directory"))
    }

    /// The snapshot that is being received.
    ///
    /// # Errors
    /// If its note is damaged.
    pub fn incoming(&self) -> Result<Option<IncomingCopy>, Error> {
        let Some(bytes) = self.read("incoming")? else { return Ok(None) };
        let mut input = Reader::new(&bytes);
        let mut parse = || {
            Ok(IncomingCopy {
                generation: input.u64()?,
                position: Position { index: input.u64()?, term: input.u64()? },
                complete: input.flag("complete")?,
                manifest: input.str32()?.to_vec(),
            })
        };
        parse().map(Some).map_err(|error| damaged("incoming", error))
    }

    /// Notes a snapshot that is being received. It takes over the directory of an earlier,
    /// incomplete snapshot, with the files that are in it.
    pub fn begin_incoming(&self, position: Position, manifest: &[u8]) -> Result<IncomingCopy, Error> {
        let old = self.incoming()?;
        if let Some(old) = old.as_ref().filter(|old| !old.complete) {
            let incoming = IncomingCopy { position, manifest: manifest.to_vec(), ..old.clone() };
            if incoming != *old {
                self.write_incoming(&incoming)?;
            }
            return Ok(incoming);
        }
        if old.is_some() {
            self.drop_incoming()?;
        }
        let newest = old.map_or(self.generation, |old| old.generation.max(self.generation));
        let generation = newest.checked_add(1).expect("counters never reach their maximum");
        let incoming = IncomingCopy { generation, position, complete: false, manifest: manifest.to_vec() };
        self.remove_state(generation)?;
        self.write_incoming(&incoming)?;
        Ok(incoming)
    }

    /// Notes that the snapshot is complete. From here on raft may be told.
    pub fn complete_incoming(&self, incoming: &IncomingCopy) -> Result<(), Error> {
        self.write_incoming(&IncomingCopy { complete: true, ..incoming.clone() })
    }

    fn write_incoming(&self, incoming: &IncomingCopy) -> Result<(), Error> {
        let mut out = Writer::new();
        out.u64(incoming.generation);
        out.u64(incoming.position.index);
        out.u64(incoming.position.term);
        out.flag(incoming.complete);
        out.str32(&incoming.manifest);
        self.write("incoming", &out.into_bytes())
    }

    /// Removes a snapshot that will not become current.
    pub fn drop_incoming(&self) -> Result<(), Error> {
        if let Some(incoming) = self.incoming()? {
            self.remove_state(incoming.generation)?;
        }
        self.remove("incoming")
    }

    /// Makes a complete snapshot the current state. Raft's log already begins at the snapshot. The
    /// old state is kept as evidence if `keep_old` is set.
    pub fn install_incoming(&mut self, incoming: &IncomingCopy, keep_old: bool) -> Result<(), Error> {
        let mut out = Writer::new();
        out.u64(incoming.generation);
        self.write("current", &out.into_bytes())?;
        let old = std::mem::replace(&mut self.generation, incoming.generation);
        self.set_floor(incoming.position)?;
        // Both are equal if a crash came after `current` was written and before the floor was
        // durable.
        if keep_old && old != incoming.generation {
            self.storage.remove_dir_all("evidence").map_err(failed("remove older evidence"))?;
            match self.storage.rename(&state_name(old), "evidence") {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("keep evidence")(error)),
                _ => self.keep_cold(old).map_err(failed("keep cold evidence"))?,
            }
        }
        self.remove_state(old)?;
        self.remove("incoming")
    }

    /// Removes a state, unless it is current: a crash may have left the note of the snapshot that
    /// the current state came from.
    fn remove_state(&self, generation: u64) -> Result<(), Error> {
        if generation == self.generation {
            return Ok(());
        }
        let name = state_name(generation);
        let removed = self.storage.remove_dir_all(&name).and_then(|()| remove_cold(&*self.storage, &name));
        removed.map_err(failed("remove an old state"))
    }

    /// Keeps the cold files of the evidence.
    fn keep_cold(&self, generation: u64) -> io::Result<()> {
        let Some(cold) = self.storage.cold() else { return Ok(()) };
        cold.remove_dir_all("evidence")?;
        match cold.rename(&state_name(generation), "evidence") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Durably removes every state but the current one: a snapshot that is not being received any
    /// more, evidence, and what a crash left.
    ///
    /// # Errors
    /// If one of them cannot be removed.
    pub fn remove_others(&self) -> Result<(), Error> {
        self.drop_incoming()?;
        let remove = || {
            let current = state_name(self.generation);
            let others = |storage: &dyn Storage| {
                let names = match storage.list("") {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                    listed => listed?,
                };
                let is_other = |name: &&String| **name == "evidence" || name.starts_with("state-") && **name != current;
                names.iter().filter(is_other).try_for_each(|name| storage.remove_dir_all(name))?;
                storage.sync_dir("")
            };
            others(&*self.storage)?;
            self.storage.cold().map_or(Ok(()), |cold| others(&*cold))
        };
        remove().map_err(failed("remove old states"))
    }

    /// The entry from which the raft log is kept. This note can be read even if the state machine
    /// can't.
    ///
    /// # Errors
    /// If its note is damaged.
    pub fn floor(&self) -> Result<Position, Error> {
        let Some(bytes) = self.read("floor")? else { return Ok(Position { index: 0, term: 0 }) };
        let mut input = Reader::new(&bytes);
        let mut parse = || Ok(Position { index: input.u64()?, term: input.u64()? });
        parse().map_err(|error| damaged("floor", error))
    }

    /// Notes an entry before the raft log is cut there.
    pub fn set_floor(&self, position: Position) -> Result<(), Error> {
        self.floor_note(position)()
    }

    /// Work that notes an entry before the raft log is cut there. It may run on another thread.
    pub fn floor_note(&self, position: Position) -> impl FnOnce() -> Result<(), Error> + Send + use<> {
        let storage = Arc::clone(&self.storage);
        let mut out = Writer::new();
        out.u64(position.index);
        out.u64(position.term);
        move || write(&*storage, "floor", &out.into_bytes())
    }

    /// Removes the reserve of an earlier version, which each replica kept for itself.
    pub fn remove_own_reserve(&self) -> Result<(), Error> {
        self.remove("reserve")
    }

    fn read(&self, name: &'static str) -> Result<Option<Vec<u8>>, Error> {
        read(self.storage.as_ref(), name)
    }

    fn write(&self, name: &'static str, body: &[u8]) -> Result<(), Error> {
        write(self.storage.as_ref(), name, body)
    }

    fn remove(&self, name: &'static str) -> Result<(), Error> {
        match self.storage.remove(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove a file of the replica")(error)),
            Ok(()) => self.storage.sync_dir("").map_err(failed("sync the replica's directory")),
        }
    }
}

/// Replaces a small file.
pub(crate) fn write(storage: &dyn Storage, name: &'static str, body: &[u8]) -> Result<(), Error> {
    let mut bytes = vec![FILE_VERSION];
    bytes.extend_from_slice(body);
    let hash = sha256(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    let temporary = format!("{name}.new");
    let write = || {
        let file = storage.open(&temporary, OpenMode::OpenOrCreate)?;
        file.set_len(0)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        storage.rename(&temporary, name)?;
        storage.sync_dir("")
    };
    write().map_err(failed("write a small file"))
}

/// The body of a small file; `None` if there is no such file.
pub(crate) fn read(storage: &dyn Storage, name: &'static str) -> Result<Option<Vec<u8>>, Error> {
    let file = match storage.open(name, OpenMode::Existing) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open a file of the replica")(error)),
    };
    let len = file.len().map_err(failed("measure a file of the replica"))?;
    if !(33..=FILE_BYTES_MAX).contains(&len) {
        return Err(Error::Damaged { file: name, what: format!("it has {len} bytes") });
    }
    let mut bytes = vec![0; usize::try_from(len).expect("bounded above")];
    file.read_exact_at(&mut bytes, 0).map_err(failed("read a file of the replica"))?;
    let hash = Digest::from_slice(&bytes.split_off(bytes.len() - 32)).expect("32 bytes were split off");
    if sha256(&bytes) != hash {
        return Err(Error::Damaged { file: name, what: "its checksum is wrong".to_owned() });
    }
    let found = bytes.remove(0);
    if found != FILE_VERSION {
        return Err(Error::OtherFormat { file: name, found, known: FILE_VERSION });
    }
    Ok(Some(bytes))
}

fn state_name(generation: u64) -> String {
    format!("state-{generation}")
}

fn damaged(file: &'static str, error: coppice_types::codec::Error) -> Error {
    Error::Damaged { file, what: error.to_string() }
}

fn identity_bytes(identity: Identity, started: bool) -> Vec<u8> {
    let mut out = Writer::new();
    out.raw(identity.cluster.as_bytes());
    out.u32(identity.group.number());
    out.u64(identity.raft_id.0);
    out.flag(started);
    out.into_bytes()
}

fn parse_identity(bytes: &[u8]) -> Result<(Identity, bool), Error> {
    let mut input = Reader::new(bytes);
    let mut parse = || {
        let cluster = ClusterId(input.bytes16()?);
        let group = GroupId::from_number(input.u32()?);
        Ok((Identity { cluster, group, raft_id: RaftId(input.u64()?) }, input.flag("started")?))
    };
    parse().map_err(|error| damaged("identity", error))
}

/// Whether the raft log was made.
///
/// # Errors
/// If the directory belongs to a different replica than expected.
fn check_identity(bytes: &[u8], expected: Identity) -> Result<bool, Error> {
    let (found, started) = parse_identity(bytes)?;
    if found != expected {
        return Err(Error::Identity(format!("it holds {found}, expected is {expected}")));
    }
    Ok(started)
}

#[cfg(test)]
mod tests {
    use coppice_env::{SimStorage, TieredStorage};

    use super::*;

    const IDENTITY: Identity = Identity { cluster: ClusterId([7; 16]), group: GroupId::Root, raft_id: RaftId(5) };

    fn node() -> Arc<dyn Storage> {
        SimStorage::new().storage()
    }

    #[test]
    fn a_directory_is_bound_to_cluster_group_and_replica_and_held_by_one() {
        let node = node();
        assert_eq!(stored(node.as_ref(), GroupId::Root).expect("read"), None);
        let home = Home::open(node.as_ref(), IDENTITY).expect("made");
        assert!(matches!(Home::open(node.as_ref(), IDENTITY), Err(Error::InUse)));
        drop(home);
        let others =
            [Identity { raft_id: RaftId(6), ..IDENTITY }, Identity { cluster: ClusterId([8; 16]), ..IDENTITY }];
        for other in others {
            assert!(matches!(Home::open(node.as_ref(), other), Err(Error::Identity(_))));
        }
        assert_eq!(stored(node.as_ref(), GroupId::Root).expect("read"), Some(IDENTITY));
        assert!(Home::open(node.as_ref(), IDENTITY).is_ok());
    }

    #[test]
    fn a_removal_that_a_crash_cuts_short_leaves_all_of_a_replica_or_none() {
        let floor = Position { index: 7, term: 2 };
        for ios in 0.. {
            let disk = coppice_env::SimStorage::new();
            let mut home = Home::open(disk.storage().as_ref(), IDENTITY).expect("made");
            home.set_started(IDENTITY).expect("noted");
            home.set_floor(floor).expect("noted");
            drop(home);
            disk.crash_after(ios);
            let removed = remove(disk.storage().as_ref(), GroupId::Root);
            for seed in 0..32 {
                let image = disk.power_loss(seed).storage();
                if stored(image.as_ref(), GroupId::Root).expect("it is sound") == Some(IDENTITY) {
                    let home = Home::open(image.as_ref(), IDENTITY).expect("it is whole");
                    assert!(home.started() && home.floor().expect("it is whole") == floor, "after {ios} changes");
                }
                end_removals(image.as_ref()).expect("it goes on");
                let left = image.list("").expect("listed");
                assert!(!left.iter().any(|name| name.starts_with(ASIDE)), "after {ios} changes: {left:?}");
                remove(image.as_ref(), GroupId::Root).expect("it goes on");
                assert_eq!(stored(image.as_ref(), GroupId::Root).expect("nothing is left"), None);
            }
            if removed.is_ok() {
                break;
            }
        }
    }

    #[test]
    fn a_snapshot_goes_on_in_the_directory_of_the_last_and_becomes_current_once() {
        let node = node();
        let mut home = Home::open(node.as_ref(), IDENTITY).expect("made");
        let position = Position { index: 9, term: 2 };
        let first = home.begin_incoming(position, b"manifest").expect("noted");
        assert_eq!(home.begin_incoming(position, b"manifest").expect("resumed"), first);
        let taken_over = home.begin_incoming(position, b"another").expect("noted");
        assert_eq!(taken_over, IncomingCopy { manifest: b"another".to_vec(), ..first }, "in the same directory");
        assert_eq!(home.incoming().expect("read"), Some(taken_over.clone()));
        home.complete_incoming(&taken_over).expect("noted");
        let second = home.begin_incoming(position, b"third").expect("replaced");
        assert_ne!(second.generation, taken_over.generation, "a complete one is not touched");
        home.complete_incoming(&second).expect("noted");
        home.install_incoming(&second, false).expect("installed");
        assert_eq!(home.incoming().expect("read"), None);
        drop(home);
        assert_eq!(Home::open(node.as_ref(), IDENTITY).expect("opened").generation, second.generation);
    }

    #[test]
    fn a_snapshot_that_is_current_already_stays_when_it_is_installed_again() {
        let node = node();
        let open = || Home::open(node.as_ref(), IDENTITY).expect("opens");
        let mut home = open();
        let position = Position { index: 22, term: 1 };
        let incoming = home.begin_incoming(position, b"manifest").expect("begins");
        home.state_of(&incoming).expect("a directory").create_dir_all("state").expect("makes");
        home.complete_incoming(&incoming).expect("completes");
        // The process ends after the first write of an installation.
        let mut out = Writer::new();
        out.u64(incoming.generation);
        home.write("current", &out.into_bytes()).expect("writes");
        drop(home);
        home = open();
        let incoming = home.incoming().expect("reads").expect("it is there");
        home.install_incoming(&incoming, true).expect("installs");
        assert_eq!(home.floor().expect("reads"), position);
        assert_eq!(home.incoming().expect("reads"), None);
        assert_eq!(home.state().expect("a directory").list("").expect("lists"), ["state"]);
        // The process ends before the last write of an installation.
        home.complete_incoming(&incoming).expect("completes");
        home.begin_incoming(Position { index: 30, term: 1 }, b"the next one").expect("begins");
        home.drop_incoming().expect("drops");
        assert_eq!(home.state().expect("a directory").list("").expect("lists"), ["state"]);
    }

    #[test]
    fn a_quarantined_state_is_kept_as_evidence() {
        let node = node();
        let mut home = Home::open(node.as_ref(), IDENTITY).expect("made");
        home.state().expect("made").open("page", OpenMode::CreateNew).expect("made");
        let incoming = home.begin_incoming(Position { index: 3, term: 1 }, b"manifest").expect("noted");
        home.install_incoming(&incoming, true).expect("installed");
        assert_eq!(home.storage.list("evidence").expect("kept"), vec!["page".to_owned()]);
        assert_eq!(home.floor().expect("read"), Position { index: 3, term: 1 });
    }

    #[test]
    fn what_is_cold_of_a_replica_goes_with_it() {
        let (hot, cold) = (coppice_env::SimStorage::new(), coppice_env::SimStorage::new());
        let node = TieredStorage::new(hot.storage(), cold.storage());
        let keep = |generation: u64| {
            let dir = format!("group-0/state-{generation}");
            cold.create_dir_all(&dir).expect("made");
            cold.open(&format!("{dir}/values-0"), OpenMode::CreateNew).expect("made");
        };
        let mut home = Home::open(&node, IDENTITY).expect("made");
        home.state().expect("made");
        keep(1);
        let incoming = home.begin_incoming(Position { index: 3, term: 1 }, b"manifest").expect("noted");
        home.state_of(&incoming).expect("made");
        keep(incoming.generation);
        home.install_incoming(&incoming, true).expect("installed");
        assert_eq!(cold.files(), ["group-0/evidence/values-0", "group-0/state-2/values-0"], "as the hot ones");
        keep(7);
        home.clear_cold().expect("cleared");
        drop(home);
        assert_eq!(cold.list("group-0").expect("listed"), ["evidence", "state-2"], "a crash left state-7");
        remove(&node, GroupId::Root).expect("removed");
        assert_eq!(cold.files(), Vec::<String>::new());
    }

    #[test]
    fn a_flipped_bit_in_a_small_file_is_noticed() {
        let disk = SimStorage::new();
        let storage = disk.storage();
        drop(Home::open(storage.as_ref(), IDENTITY).expect("made"));
        disk.flip_bit("group-0/identity", 9, 3);
        assert!(matches!(Home::open(storage.as_ref(), IDENTITY), Err(Error::Damaged { file: "identity", .. })));
        disk.flip_bit("group-0/identity", 9, 3);
        assert!(Home::open(storage.as_ref(), IDENTITY).is_ok());
        let file = storage.open("group-0/identity", OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length") - 32).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes[0] = 1;
        file.write_all_at(&[&bytes[..], sha256(&bytes).as_bytes()].concat(), 0).expect("room");
        let refused = Home::open(storage.as_ref(), IDENTITY).expect_err("a directory of another protocol");
        assert!(matches!(refused, Error::OtherFormat { file: "identity", found: 1, known: 2 }), "{refused}");
    }
}
