//! The part of RLP that the trie needs: byte strings, and lists of them.

/// One field of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'b> {
    /// A byte string.
    Text(&'b [u8]),
    /// A list, with its head.
    List(&'b [u8]),
}

/// Appends a byte string.
pub(super) fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    if !matches!(bytes, [0..=0x7f]) {
        head(out, 0x80, bytes.len());
    }
    out.extend_from_slice(bytes);
}

/// A list of encoded fields.
pub(super) fn enclose(fields: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(fields.len() + 4);
    head(&mut out, 0xc0, fields.len());
    out.extend_from_slice(fields);
    out
}

fn head(out: &mut Vec<u8>, kind: u8, len: usize) {
    match u8::try_from(len) {
        Ok(short @ 0..=55) => out.push(kind + short),
        _ => {
            let bytes = len.to_be_bytes();
            let digits = &bytes[len.leading_zeros() as usize / 8..];
            out.push(kind + 55 + digits.len() as u8);
            out.extend_from_slice(digits);
        }
    }
}

/// The fields of a list that takes up all of the bytes.
pub(super) fn list(bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let (Field::List(_), mut rest) = field(bytes)? else { return None };
    if !rest.is_empty() {
        return None;
    }
    let (start, _) = extent(bytes)?;
    rest = &bytes[start..];
    let mut fields = Vec::with_capacity(17);
    while !rest.is_empty() {
        let (field, after) = field(rest)?;
        fields.push(field);
        rest = after;
    }
    Some(fields)
}

/// The first field, and the remaining bytes.
fn field(bytes: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (start, end) = extent(bytes)?;
    let (own, rest) = bytes.split_at(end);
    Some((if own[0] >= 0xc0 { Field::List(own) } else { Field::Text(&own[start..]) }, rest))
}

/// The start and end of the first field's content.
fn extent(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = *bytes.first()?;
    let short = match first {
        0..=0x7f => return Some((0, 1)),
        0x80..=0xbf => first - 0x80,
        0xc0..=0xff => first - 0xc0,
    };
    let (start, len) = match short.checked_sub(55) {
        None | Some(0) => (1, usize::from(short)),
        Some(digits) => {
            let digits = bytes.get(1..=usize::from(digits))?;
            let len =
                digits.iter().try_fold(0_usize, |sum, digit| sum.checked_mul(256)?.checked_add(usize::from(*digit)))?;
            (1 + digits.len(), len)
        }
    };
    let end = start.checked_add(len)?;
    (end <= bytes.len()).then_some((start, end))
}
