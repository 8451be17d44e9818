//! The content of a batch: the items that one fsync makes durable together.

use bytes::Bytes;
use coppice_types::codec::{Error as DecodeError, Reader, Writer};
use raft::eraftpb::{Entry, EntryType};

use crate::{
    Membership, Position, RaftId,
    ids::{number, put_position, take_position},
    width::len32,
};

/// Batch number, length of the items, and the durable length of the file.
pub(crate) const BATCH_HEADER_BYTES: usize = 16;
/// Tag, kind, position and length before an entry's data.
pub(crate) const ENTRY_HEADER_BYTES: usize = 22;
/// Shorter data is copied, because a part of its own would cost more.
const SHARED_BYTES_MIN: usize = 256;

const TAG_START: u8 = 1;
const TAG_HARD_STATE: u8 = 2;
const TAG_MEMBERSHIP: u8 = 3;
const TAG_ENTRY: u8 = 4;

const KIND_NORMAL: u8 = 0;
const KIND_MEMBERSHIP: u8 = 1;

/// Raft's own durable state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HardState {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

/// One item of a batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    /// The first item in a segment: where the log ended when the segment was begun.
    Start(Position),
    HardState(HardState),
    /// The group's members once the entry with this index is applied.
    Membership(u64, Membership),
    Entry {
        kind: EntryType,
        position: Position,
        data: &'a [u8],
    },
}

impl HardState {
    pub(crate) fn encode(self, writer: &mut Writer) {
        writer.u64(self.term);
        writer.u64(self.vote);
        writer.u64(self.commit);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { term: number(reader)?, vote: RaftId(reader.u64()?).0, commit: number(reader)? })
    }
}

/// The bytes of an entry that are kept and sent. A change of membership is encoded in the entry's
/// context; only raft uses its data, when it is proposed.
pub(crate) fn entry_data(entry: &Entry) -> &Bytes {
    match entry.get_entry_type() {
        EntryType::EntryNormal => &entry.data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => &entry.context,
    }
}

/// The reverse of [`entry_data`].
pub(crate) fn make_entry(kind: EntryType, position: Position, data: Bytes) -> Entry {
    let mut entry = Entry::default();
    entry.set_entry_type(kind);
    entry.index = position.index;
    entry.term = position.term;
    match kind {
        EntryType::EntryNormal => entry.data = data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => entry.context = data,
    }
    entry
}

pub(crate) fn kind_byte(kind: EntryType) -> u8 {
    match kind {
        EntryType::EntryNormal => KIND_NORMAL,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => KIND_MEMBERSHIP,
    }
}

pub(crate) fn kind_of(byte: u8) -> Result<EntryType, DecodeError> {
    match byte {
        KIND_NORMAL => Ok(EntryType::EntryNormal),
        KIND_MEMBERSHIP => Ok(EntryType::EntryConfChangeV2),
        _ => Err(DecodeError::Malformed("entry kind")),
    }
}

/// The items of a batch while it is gathered. The data of large entries is not copied before the
/// batch is framed.
#[derive(Debug, Default)]
pub(crate) struct Items {
    parts: Vec<Bytes>,
    parts_bytes: usize,
    /// The items after the parts.
    rest: Writer,
}

impl Items {
    pub(crate) fn len(&self) -> usize {
        self.parts_bytes + self.rest.len()
    }

    pub(crate) fn push(&mut self, item: &Item<'_>) {
        item.encode(&mut self.rest);
    }

    pub(crate) fn push_entry(&mut self, kind: EntryType, position: Position, data: &Bytes) {
        if data.len() < SHARED_BYTES_MIN {
            return self.push(&Item::Entry { kind, position, data });
        }
        encode_entry_header(kind, position, data.len(), &mut self.rest);
        self.close();
        self.parts_bytes += data.len();
        self.parts.push(data.clone());
    }

    fn close(&mut self) {
        let rest = std::mem::take(&mut self.rest).into_bytes();
        self.parts_bytes += rest.len();
        self.parts.push(rest.into());
    }

    pub(crate) fn into_parts(mut self) -> Vec<Bytes> {
        self.close();
        self.parts
    }
}

fn encode_entry_header(kind: EntryType, position: Position, data_len: usize, writer: &mut Writer) {
    let start = writer.len();
    writer.u8(TAG_ENTRY);
    writer.u8(kind_byte(kind));
    put_position(writer, position);
    writer.u32(len32(data_len));
    assert_eq!(writer.len() - start, ENTRY_HEADER_BYTES, "readers skip a header of this length");
}

impl<'a> Item<'a> {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        match self {
            Item::Start(position) => {
                writer.u8(TAG_START);
                put_position(writer, *position);
            }
            Item::HardState(state) => {
                writer.u8(TAG_HARD_STATE);
                state.encode(writer);
            }
            Item::Membership(index, membership) => {
                writer.u8(TAG_MEMBERSHIP);
                writer.u64(*index);
                membership.encode(writer);
            }
            Item::Entry { kind, position, data } => {
                encode_entry_header(*kind, *position, data.len(), writer);
                writer.raw(data);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            TAG_START => Ok(Item::Start(take_position(reader)?)),
            TAG_HARD_STATE => Ok(Item::HardState(HardState::decode(reader)?)),
            TAG_MEMBERSHIP => Ok(Item::Membership(number(reader)?, Membership::decode(reader)?)),
            TAG_ENTRY => {
                let kind = kind_of(reader.u8()?)?;
                let position = take_position(reader)?;
                Ok(Item::Entry { kind, position, data: reader.str32()? })
            }
            _ => Err(DecodeError::Malformed("item tag")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_encoded_in_order_whether_they_are_copied_or_shared() {
        let position = |index| Position { index, term: 2 };
        let (small, large) = (Bytes::from(vec![1; 10]), Bytes::from(vec![2; SHARED_BYTES_MIN]));
        let state = HardState { term: 2, vote: 1, commit: 3 };
        let mut items = Items::default();
        items.push(&Item::Start(position(4)));
        items.push_entry(EntryType::EntryNormal, position(5), &large);
        items.push_entry(EntryType::EntryConfChangeV2, position(6), &small);
        items.push(&Item::HardState(state));
        let len = items.len();
        let bytes = items.into_parts().concat();
        assert_eq!(bytes.len(), len);
        let mut reader = Reader::new(&bytes);
        let entry = |kind, index, data| Item::Entry { kind, position: position(index), data };
        let expected = [
            Item::Start(position(4)),
            entry(EntryType::EntryNormal, 5, &large[..]),
            entry(EntryType::EntryConfChangeV2, 6, &small[..]),
            Item::HardState(state),
        ];
        for item in expected {
            assert_eq!(Item::decode(&mut reader), Ok(item));
        }
        assert_eq!(reader.finish(), Ok(()));
    }
}
