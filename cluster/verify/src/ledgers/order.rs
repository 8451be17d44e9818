//! Orders, which owner and regulator sign to hide the content of journals for good (section 18,
//! *Orders*).
//!
//! An order names each journal by the hash of its leaf, so that those who sign it state which
//! content goes. The leaf stays; what goes is the envelope, which no hash of the state contains.

use alloc::vec::Vec;

use coppice_types::{
    ClusterId, Digest, LedgerId, MemberId,
    codec::{Error, Reader, Writer},
};

use super::request::{ITEMS_MAX, is_signed};

/// Most members that approve an order beside its author.
pub const APPROVALS_MAX: usize = 16;
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

/// An order to occult journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The order is applied only while the ledger has at most this many journals.
    pub until: u64,
    /// The journals, by ascending number: 1 to [`ITEMS_MAX`].
    pub targets: Vec<Target>,
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

impl Order {
    fn write(&self, out: &mut Writer) {
        out.u8(1);
        out.u64(self.until);
        // The kind of the order: to occult.
        out.u8(0);
        out.u16(u16::try_from(self.targets.len()).expect("targets are limited"));
        for Target { jsn, leaf } in &self.targets {
            out.u64(*jsn);
            out.digest(leaf);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of an order"));
        }
        let until = input.u64()?;
        if input.u8()? != 0 {
            return Err(Error::Malformed("kind of an order"));
        }
        let count = usize::from(input.u16()?);
        if count == 0 || count > ITEMS_MAX {
            return Err(Error::Malformed("number of an order's journals"));
        }
        let mut targets = Vec::new();
        for _ in 0..count {
            targets.push(Target { jsn: input.u64()?, leaf: input.digest()? });
        }
        if !targets.is_sorted_by(|a, b| a.jsn < b.jsn) {
            return Err(Error::Malformed("order of an order's journals"));
        }
        Ok(Self { until, targets })
    }

    /// The canonical bytes.
    ///
    /// # Panics
    /// If there are 2^16 targets or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write(&mut out);
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are no order: malformed, beyond a limit, or with journals out of order.
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
    /// If there are 2^16 targets or approvals or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.order.write(&mut out);
        out.u16(u16::try_from(self.approvals.len()).expect("approvals are limited"));
        for Approval { member, signature } in &self.approvals {
            out.raw(member.as_bytes());
            out.raw(signature);
        }
        out.into_bytes()
    }

    /// Decodes the payload of a journal that orders.
    ///
    /// # Errors
    /// If the bytes are no order, or have more than [`APPROVALS_MAX`] approvals, or two of a
    /// member.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let order = Order::read(&mut input)?;
        let count = usize::from(input.u16()?);
        if count > APPROVALS_MAX {
            return Err(Error::Malformed("number of approvals"));
        }
        let mut approvals = Vec::new();
        for _ in 0..count {
            let member = MemberId(input.bytes16()?);
            let signature = input.take(64)?.try_into().expect("64 bytes were taken");
            approvals.push(Approval { member, signature });
        }
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

    fn ordered() -> Ordered {
        let target = |jsn: u64| Target { jsn, leaf: sha256(&jsn.to_le_bytes()) };
        let approval = |member| Approval { member: MemberId([member; 16]), signature: [member; 64] };
        Ordered {
            order: Order { until: 9, targets: vec![target(1), target(7)] },
            approvals: vec![approval(1), approval(2)],
        }
    }

    #[test]
    fn orders_and_marks_survive_encoding_and_nothing_else_does() {
        let bytes = ordered().encode();
        assert_eq!(Ordered::decode(&bytes), Ok(ordered()));
        assert_eq!(Order::decode(&ordered().order.encode()), Ok(ordered().order));
        assert!((0..bytes.len()).all(|len| Ordered::decode(&bytes[..len]).is_err()));
        assert_eq!(Ordered::decode(&[&*bytes, &[0]].concat()), Err(Error::Trailing));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Ordered::decode(&flipped) {
                assert_eq!(other.encode(), flipped);
                assert_ne!(other, ordered());
            }
        }
        let mark = Mark { order: 77 };
        assert_eq!(Mark::decode(&mark.encode()), Ok(mark));
        assert!(Mark::decode(&mark.encode()[1..]).is_err());
    }

    #[test]
    fn an_order_has_journals_and_approvals_in_order_and_within_limits() {
        let refused = |change: &dyn Fn(&mut Ordered)| {
            let mut changed = ordered();
            change(&mut changed);
            Ordered::decode(&changed.encode()).expect_err("it breaks a rule")
        };
        assert_eq!(refused(&|it| it.order.targets.clear()), Error::Malformed("number of an order's journals"));
        let many = (0..=ITEMS_MAX as u64).map(|jsn| Target { jsn, leaf: Digest::default() });
        let many: Vec<_> = many.collect();
        assert_eq!(refused(&|it| it.order.targets = many.clone()), Error::Malformed("number of an order's journals"));
        assert_eq!(refused(&|it| it.order.targets.reverse()), Error::Malformed("order of an order's journals"));
        assert_eq!(refused(&|it| it.order.targets[1].jsn = 1), Error::Malformed("order of an order's journals"));
        assert_eq!(refused(&|it| it.approvals.reverse()), Error::Malformed("order of approvals"));
        assert_eq!(refused(&|it| it.approvals[1] = it.approvals[0]), Error::Malformed("order of approvals"));
        let many = (0..=APPROVALS_MAX as u8).map(|at| Approval { member: MemberId([at; 16]), signature: [at; 64] });
        let many: Vec<_> = many.collect();
        assert_eq!(refused(&|it| it.approvals = many.clone()), Error::Malformed("number of approvals"));
    }
}
