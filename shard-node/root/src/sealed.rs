//! Files that never change again: full tiles, bundles and indexes, and the journals of full chunks.

use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};
use coppice_verify::hash;

use crate::{
    chunk::index_path,
    journal::journal_path,
    store::Store,
    tiles::{bundle_path, tile_path},
};

/// A sealed file and the hash of its content: SHA-256, or for a journal the chain over its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) len: u64,
    pub(crate) hash: Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A tile of the level.
    Tile(u8),
    Bundle,
    Index,
    Journal,
}

/// Hands a complete file to the store, and adds it to the list of sealed files.
pub(crate) fn seal(store: &mut Store, sealed: &mut Vec<Sealed>, kind: Kind, number: u64, bytes: Vec<u8>) {
    assert!(kind != Kind::Journal, "a journal grows in its place");
    assert!(!bytes.is_empty(), "a sealed file has content");
    let file = Sealed { kind, number, len: bytes.len() as u64, hash: hash::sha256(&bytes) };
    store.add(file.name(), bytes);
    sealed.push(file);
}

impl Sealed {
    /// The file's name in the directory.
    pub(crate) fn name(&self) -> String {
        match self.kind {
            Kind::Tile(level) => tile_path(level.into(), self.number),
            Kind::Bundle => bundle_path(self.number),
            Kind::Index => index_path(self.number),
            Kind::Journal => journal_path(self.number),
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u8(match self.kind {
            Kind::Tile(level) => level,
            Kind::Bundle => 0x10,
            Kind::Index => 0x11,
            Kind::Journal => 0x12,
        });
        out.u64(self.number);
        out.u64(self.len);
        out.digest(&self.hash);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        let kind = match input.u8()? {
            level @ 0..8 => Kind::Tile(level),
            0x10 => Kind::Bundle,
            0x11 => Kind::Index,
            0x12 => Kind::Journal,
            _ => return Err(codec::Error::Malformed("kind of a sealed file")),
        };
        Ok(Self { kind, number: input.u64()?, len: input.u64()?, hash: input.digest()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_and_survives_encoding() {
        let names = [
            (Kind::Tile(2), "tile/2/007"),
            (Kind::Bundle, "tile/entries/007"),
            (Kind::Index, "index/007"),
            (Kind::Journal, "journal/007"),
        ];
        for (kind, name) in names {
            let file = Sealed { kind, number: 7, len: 9, hash: Digest([1; 32]) };
            assert_eq!(file.name(), name);
            let mut out = Writer::new();
            file.encode(&mut out);
            assert_eq!(Sealed::decode(&mut Reader::new(&out.into_bytes())), Ok(file));
        }
    }

    #[test]
    fn an_unknown_kind_is_malformed() {
        let bytes = [[8_u8].as_slice(), &[0; 48]].concat();
        assert!(matches!(Sealed::decode(&mut Reader::new(&bytes)), Err(codec::Error::Malformed(_))));
    }
}
