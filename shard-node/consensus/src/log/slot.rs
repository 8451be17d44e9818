//! The part of one entry that the log keeps in memory.

use bytes::Bytes;
use raft::eraftpb::EntryType;

use super::segment::Place;

/// One entry after the log's base.
#[derive(Debug)]
pub(crate) struct Slot {
    pub term: u64,
    pub kind: EntryType,
    /// Length of the entry's data.
    pub bytes: u32,
    pub content: Content,
}

/// The location of an entry's data. The data leaves memory only after it became durable.
#[derive(Debug)]
pub(crate) enum Content {
    /// Only in memory: the entry is not durable yet.
    Volatile(Bytes),
    /// In memory and in a segment.
    Cached(Bytes, Place),
    /// Only in a segment.
    Stored(Place),
}

impl Slot {
    /// The data, if it is in memory.
    pub(crate) fn data(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Volatile(data) | Content::Cached(data, _) => Some(data),
            Content::Stored(_) => None,
        }
    }

    /// Where the entry is stored; `None` until it is durable.
    pub(crate) fn place(&self) -> Option<Place> {
        match self.content {
            Content::Volatile(_) => None,
            Content::Cached(_, place) | Content::Stored(place) => Some(place),
        }
    }

    /// Bytes of data in memory.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.data().map_or(0, Bytes::len)
    }

    /// The data of a command: a normal entry that is not empty and is still in memory.
    pub(crate) fn command(&self) -> Option<Bytes> {
        self.data().filter(|data| self.kind == EntryType::EntryNormal && !data.is_empty()).cloned()
    }

    /// Notes where the entry became durable.
    pub(crate) fn set_durable(&mut self, place: Place) {
        let Content::Volatile(data) = &mut self.content else { panic!("an entry is written once") };
        self.content = Content::Cached(std::mem::take(data), place);
    }

    /// Drops the data from memory, if the entry is durable. Returns how many bytes that freed.
    pub(crate) fn evict(&mut self) -> Option<usize> {
        let freed = self.cached_bytes();
        self.content = Content::Stored(self.place()?);
        Some(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segment: 3, offset: 16 };

    fn slot() -> Slot {
        let data = Bytes::from_static(b"data");
        Slot { term: 1, kind: EntryType::EntryNormal, bytes: 4, content: Content::Volatile(data) }
    }

    #[test]
    fn data_stays_in_memory_until_the_entry_is_durable() {
        let mut slot = slot();
        assert_eq!((slot.evict(), slot.cached_bytes(), slot.place()), (None, 4, None));
        slot.set_durable(PLACE);
        assert_eq!((slot.cached_bytes(), slot.place()), (4, Some(PLACE)));
        assert_eq!((slot.evict(), slot.cached_bytes(), slot.place()), (Some(4), 0, Some(PLACE)));
        assert_eq!((slot.evict(), slot.data()), (Some(0), None));
    }

    #[test]
    #[should_panic(expected = "an entry is written once")]
    fn an_entry_does_not_become_durable_twice() {
        let mut slot = slot();
        slot.set_durable(PLACE);
        slot.set_durable(PLACE);
    }
}
