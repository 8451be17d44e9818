//! Lists of hashes in a proof file: `list16(digest)` (`docs/verification.md` section 12).

use alloc::vec::Vec;

use coppice_types::{
    Digest,
    codec::{Error, Reader, Writer},
};

pub(super) fn write_digests(out: &mut Writer, digests: &[Digest]) {
    out.u16(u16::try_from(digests.len()).expect("a list proof has a few hashes for each revealed element"));
    digests.iter().for_each(|digest| out.digest(digest));
}

pub(super) fn read_digests(input: &mut Reader<'_>) -> Result<Vec<Digest>, Error> {
    let count = usize::from(input.u16()?);
    take_digests(input, count)
}

pub(super) fn take_digests(input: &mut Reader<'_>, count: usize) -> Result<Vec<Digest>, Error> {
    let (digests, _) = input.take(count * size_of::<Digest>())?.as_chunks();
    Ok(digests.iter().copied().map(Digest).collect())
}
