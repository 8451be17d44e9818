//! Orders, which members sign together to hide the content of journals for good, or to purge old
//! journals (section 18, *Requests*).
//!
//! An order to occult names each journal by the hash of its leaf, so that those who sign it state
//! which content goes. The leaf stays; what goes is the envelope, which no hash of the state
//! contains. A purge takes leaves as well, in steps that are orders of their own.

use alloc::vec::Vec;

use coppice_types::{
    ClusterId, Digest, LedgerId, MemberId,
    codec::{Error, Reader, Writer},
};

use super::request::{ITEMS_MAX, is_signed, read_list, write_list};

/// Most members that approve an order beside its author.
pub const APPROVALS_MAX: usize = 256;
/// Most absent members that a purge names.
const ABSENT_MAX: usize = 256;
/// First bytes of the message that a member signs to approve.
const WORDS: &[u8] = b"\x02coppice-order";

/// A journal whose content is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Number of the journal.
    pub jsn: u64,
    /// Hash of its leaf.
    pub leaf: Digest,
}

/// A member without a key, in whose place the regulator signs a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The member.
    pub member: MemberId,
    /// Number of the journal that ended its last key.
    pub revocation: u64,
}

/// What an order to purge says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeOrder {
    /// Journals below this number go, but for those that are kept.
    pub before: u64,
    /// Whether the ledger is closed for all that are no orders.
    pub closes: bool,
    /// Number of journals that those who sign have seen.
    pub size: u64,
    /// Root of the list of these journals.
    pub root: Digest,
    /// Number of the members that have a journal below `before`.
    pub authors: u32,
    /// Those of them that have no key any more, by ascending member.
    pub absent: Vec<Absent>,
}

/// What an order does. `purge` is the number of the journal that ordered the purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Erases the content of these journals, which ascend: 1 to [`ITEMS_MAX`].
    Occult(Vec<Target>),
    /// Purges the oldest journals, after a time of notice.
    Purge(PurgeOrder),
    /// Keeps these journals, which ascend, from a purge: 1 to [`ITEMS_MAX`].
    Retain {
        /// The purge.
        purge: u64,
        /// Numbers of the journals.
        journals: Vec<u64>,
    },
    /// Takes a purge back in its time of notice.
    Recall {
        /// The purge.
        purge: u64,
    },
    /// Deletes the next journals of a purge: at most [`ITEMS_MAX`].
    Sweep {
        /// The purge.
        purge: u64,
        /// The first journal.
        from: u64,
        /// The journal behind the last one.
        to: u64,
    },
}

/// An order of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The order is applied only while the ledger has at most this many journals.
    pub until: u64,
    /// What it does.
    pub action: Action,
}

/// A member's signature over an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The member.
    pub member: MemberId,
    /// Its signature over [`Order::message`].
    pub signature: [u8; 64],
}

impl Approval {
    /// Whether this key signed the message of the order.
    #[must_use]
    pub fn is_signed(&self, key: &[u8; 32], message: &[u8]) -> bool {
        is_signed(key, message, &self.signature)
    }
}

/// Payload of a journal that orders: the order, and the members that approve beside its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The order.
    pub order: Order,
    /// The approvals, by ascending member.
    pub approvals: Vec<Approval>,
}

/// Value of the record that marks a journal as occulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the journal with the order.
    pub order: u64,
}

/// Reads the journals of an order: at least one, by ascending number.
fn read_journals<T>(
    input: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Error>,
    jsn: impl Fn(&T) -> u64,
) -> Result<Vec<T>, Error> {
    let number = "number of an order's journals";
    let journals = read_list(input, ITEMS_MAX, number, read)?;
    if journals.is_empty() {
        Err(Error::Malformed(number))
    } else if journals.is_sorted_by(|a, b| jsn(a) < jsn(b)) {
        Ok(journals)
    } else {
        Err(Error::Malformed("order of an order's journals"))
    }
}

impl PurgeOrder {
    fn write(&self, out: &mut Writer) {
        out.u64(self.before);
        out.flag(self.closes);
        out.u64(self.size);
        out.digest(&self.root);
        out.u32(self.authors);
        write_list(out, &self.absent, |out, Absent { member, revocation }| {
            out.raw(member.as_bytes());
            out.u64(*revocation);
        });
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        let (before, closes) = (input.u64()?, input.flag("whether a purge closes")?);
        let (size, root, authors) = (input.u64()?, input.digest()?, input.u32()?);
        let absent =
            |input: &mut Reader<'_>| Ok(Absent { member: MemberId(input.bytes16()?), revocation: input.u64()? });
        let absent = read_list(input, ABSENT_MAX, "number of absent members", absent)?;
        if before == 0 || before > size {
            return Err(Error::Malformed("journals of a purge"));
        }
        if !absent.is_sorted_by(|a, b| a.member < b.member) {
            return Err(Error::Malformed("order of absent members"));
        }
        // Those who sign are limited, and so are those for whom they sign.
        if authors as usize > APPROVALS_MAX + 1 + ABSENT_MAX {
            return Err(Error::Malformed("number of authors"));
        }
        Ok(Self { before, closes, size, root, authors, absent })
    }
}

impl Action {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Occult(targets) => {
                out.u8(0);
                write_list(out, targets, |out, Target { jsn, leaf }| {
                    out.u64(*jsn);
                    out.digest(leaf);
                });
            }
            Self::Purge(purge) => {
                out.u8(1);
                purge.write(out);
            }
            Self::Retain { purge, journals } => {
                out.u8(2);
                out.u64(*purge);
                write_list(out, journals, |out, jsn| out.u64(*jsn));
            }
            Self::Recall { purge } => {
                out.u8(3);
                out.u64(*purge);
            }
            Self::Sweep { purge, from, to } => {
                out.u8(4);
                out.u64(*purge);
                out.u64(*from);
                out.u64(*to);
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match input.u8()? {
            0 => {
                let target = |input: &mut Reader<'_>| Ok(Target { jsn: input.u64()?, leaf: input.digest()? });
                Self::Occult(read_journals(input, target, |target| target.jsn)?)
            }
            1 => Self::Purge(PurgeOrder::read(input)?),
            2 => Self::Retain { purge: input.u64()?, journals: read_journals(input, |input| input.u64(), |jsn| *jsn)? },
            3 => Self::Recall { purge: input.u64()? },
            4 => {
                let (purge, from, to) = (input.u64()?, input.u64()?, input.u64()?);
                if to.checked_sub(from).is_none_or(|count| count == 0 || count > ITEMS_MAX as u64) {
                    return Err(Error::Malformed("journals of a sweep"));
                }
                Self::Sweep { purge, from, to }
            }
            _ => return Err(Error::Malformed("kind of an order")),
        })
    }

    /// The journals by whose leaves the order is judged. The last one of a purge may not be there.
    #[must_use]
    pub fn judged_by(&self) -> Vec<u64> {
        match self {
            Self::Occult(targets) => targets.iter().map(|target| target.jsn).collect(),
            Self::Purge(purge) => purge.absent.iter().map(|absent| absent.revocation).chain([purge.before]).collect(),
            Self::Retain { journals, .. } => journals.clone(),
            Self::Recall { .. } => Vec::new(),
            Self::Sweep { purge, from, to } => (*from..*to).chain([*purge]).collect(),
        }
    }

    /// Whether members beside its author sign the order.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        matches!(self, Self::Occult(_) | Self::Purge(_))
    }
}

impl Order {
    fn write(&self, out: &mut Writer) {
        out.u8(1);
        out.u64(self.until);
        self.action.write(out);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of an order"));
        }
        Ok(Self { until: input.u64()?, action: Action::read(input)? })
    }

    /// The journals that the order occults; none if it does something else.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        match &self.action {
            Action::Occult(targets) => targets,
            _ => &[],
        }
    }

    /// The canonical bytes.
    ///
    /// # Panics
    /// If a list has 2^16 items or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write(&mut out);
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are no order: malformed, beyond a limit, or with a list out of order.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let order = Self::read(&mut input)?;
        input.finish()?;
        Ok(order)
    }

    /// The message that a member signs to approve.
    #[must_use]
    pub fn message(&self, cluster: ClusterId, ledger: LedgerId) -> Vec<u8> {
        [WORDS, cluster.as_bytes(), ledger.as_bytes(), &self.encode()].concat()
    }

    /// A member's approval.
    #[cfg(feature = "sign")]
    #[must_use]
    pub fn approval(
        &self,
        cluster: ClusterId,
        ledger: LedgerId,
        member: MemberId,
        key: &crate::note::SignerKey,
    ) -> Approval {
        Approval { member, signature: key.sign(&self.message(cluster, ledger)) }
    }
}

impl Ordered {
    /// Whether a member approves. The author of an order may not: it has signed the request.
    #[must_use]
    pub fn is_approved_by(&self, member: MemberId) -> bool {
        self.approvals.iter().any(|approval| approval.member == member)
    }

    /// The payload of a journal with the order.
    ///
    /// # Panics
    /// If a list has 2^16 items or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.order.write(&mut out);
        write_list(&mut out, &self.approvals, |out, Approval { member, signature }| {
            out.raw(member.as_bytes());
            out.raw(signature);
        });
        out.into_bytes()
    }

    /// Decodes the payload of a journal that orders.
    ///
    /// # Errors
    /// If the bytes are no order, or have more than [`APPROVALS_MAX`] approvals, or two of a
    /// member, or any for an order that needs none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let order = Order::read(&mut input)?;
        let approval = |input: &mut Reader<'_>| {
            let member = MemberId(input.bytes16()?);
            let signature = input.take(64)?.try_into().expect("64 bytes were taken");
            Ok(Approval { member, signature })
        };
        let most = if order.action.is_joint() { APPROVALS_MAX } else { 0 };
        let approvals = read_list(&mut input, most, "number of approvals", approval)?;
        input.finish()?;
        if !approvals.is_sorted_by(|a, b| a.member < b.member) {
            return Err(Error::Malformed("order of approvals"));
        }
        Ok(Self { order, approvals })
    }
}

impl Mark {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(1);
        out.u64(self.order);
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a mark.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of a mark"));
        }
        let order = input.u64()?;
        input.finish()?;
        Ok(Self { order })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::hash::sha256;

    fn target(jsn: u64) -> Target {
        Target { jsn, leaf: sha256(&jsn.to_le_bytes()) }
    }

    fn occult(targets: Vec<Target>) -> Ordered {
        let approval = |member| Approval { member: MemberId([member; 16]), signature: [member; 64] };
        Ordered {
            order: Order { until: 9, action: Action::Occult(targets) },
            approvals: vec![approval(1), approval(2)],
        }
    }

    fn purge() -> PurgeOrder {
        let absent = |member| Absent { member: MemberId([member; 16]), revocation: 3 };
        let absent = vec![absent(4), absent(5)];
        PurgeOrder { before: 5, closes: true, size: 6, root: sha256(b"root"), authors: 4, absent }
    }

    fn all() -> Vec<Ordered> {
        let alone = |action| Ordered { order: Order { until: 9, action }, approvals: Vec::new() };
        let joint = occult(vec![target(1), target(7)]);
        let purges = Order { until: 9, action: Action::Purge(purge()) };
        vec![
            Ordered { order: purges, ..joint.clone() },
            joint,
            alone(Action::Retain { purge: 7, journals: vec![1, 3] }),
            alone(Action::Recall { purge: 7 }),
            alone(Action::Sweep { purge: 7, from: 2, to: 1026 }),
        ]
    }

    #[test]
    fn orders_and_marks_survive_encoding_and_nothing_else_does() {
        for ordered in all() {
            let bytes = ordered.encode();
            assert_eq!(Ordered::decode(&bytes).as_ref(), Ok(&ordered));
            assert_eq!(Order::decode(&ordered.order.encode()).as_ref(), Ok(&ordered.order));
            assert!((0..bytes.len()).all(|len| Ordered::decode(&bytes[..len]).is_err()));
            assert_eq!(Ordered::decode(&[&*bytes, &[0]].concat()), Err(Error::Trailing));
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = Ordered::decode(&flipped) {
                    assert_eq!(other.encode(), flipped);
                    assert_ne!(other, ordered);
                }
            }
        }
        let mark = Mark { order: 77 };
        assert_eq!(Mark::decode(&mark.encode()), Ok(mark));
        assert!(Mark::decode(&mark.encode()[1..]).is_err());
    }

    #[test]
    fn an_order_has_journals_and_approvals_in_order_and_within_limits() {
        let refused = |ordered: Ordered| Ordered::decode(&ordered.encode()).expect_err("it breaks a rule");
        let number = Error::Malformed("number of an order's journals");
        assert_eq!(refused(occult(vec![])), number);
        assert_eq!(refused(occult((0..=ITEMS_MAX as u64).map(target).collect())), number);
        assert_eq!(refused(occult(vec![target(7), target(1)])), Error::Malformed("order of an order's journals"));
        assert_eq!(refused(occult(vec![target(1), target(1)])), Error::Malformed("order of an order's journals"));
        let approved = |change: &dyn Fn(&mut Vec<Approval>)| {
            let mut ordered = occult(vec![target(1)]);
            change(&mut ordered.approvals);
            refused(ordered)
        };
        assert_eq!(approved(&|them| them.reverse()), Error::Malformed("order of approvals"));
        assert_eq!(approved(&|them| them[1] = them[0]), Error::Malformed("order of approvals"));
        let member = |at: u16| MemberId([at.to_be_bytes(); 8].concat().try_into().expect("16 bytes"));
        let many = (0..=APPROVALS_MAX as u16).map(|at| Approval { member: member(at), signature: [1; 64] });
        let many: Vec<_> = many.collect();
        assert_eq!(approved(&|them| *them = many.clone()), Error::Malformed("number of approvals"));
        let recall = Order { until: 9, action: Action::Recall { purge: 7 } };
        assert_eq!(refused(Ordered { order: recall, ..occult(vec![]) }), Error::Malformed("number of approvals"));
    }

    #[test]
    fn a_purge_and_its_steps_have_bounds() {
        let refused = |action| Order::decode(&Order { until: 9, action }.encode()).expect_err("it breaks a rule");
        let purged = |change: &dyn Fn(&mut PurgeOrder)| {
            let mut order = purge();
            change(&mut order);
            refused(Action::Purge(order))
        };
        assert_eq!(purged(&|it| it.before = 0), Error::Malformed("journals of a purge"));
        assert_eq!(purged(&|it| it.before = 7), Error::Malformed("journals of a purge"));
        assert_eq!(purged(&|it| it.absent.reverse()), Error::Malformed("order of absent members"));
        assert_eq!(purged(&|it| it.authors = 1000), Error::Malformed("number of authors"));
        let sweep = |from, to| refused(Action::Sweep { purge: 7, from, to });
        for (from, to) in [(4, 4), (4, 3), (0, ITEMS_MAX as u64 + 1)] {
            assert_eq!(sweep(from, to), Error::Malformed("journals of a sweep"));
        }
        let retain = |journals| refused(Action::Retain { purge: 7, journals });
        assert_eq!(retain(vec![]), Error::Malformed("number of an order's journals"));
        assert_eq!(retain(vec![3, 3]), Error::Malformed("order of an order's journals"));
    }
}
