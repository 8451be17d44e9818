//! Members of a ledger: who they are, what they may do, and the journals that change it (section
//! 18, *Members*).
//!
//! A key is valid by the number of a journal, never by a clock.

use alloc::{string::String, vec::Vec};

use coppice_types::{
    ClusterId, LedgerId, MemberId,
    codec::{Error, Reader, Writer},
};

use super::{
    envelope::CLUE_BYTES_MAX,
    order::Action,
    request::{LANES, read_agent, read_list, write_agent, write_list},
};
use crate::{hash::member_id, header::part::read_text};

/// Longest name of a ledger, member or agent, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most changes of a journal, and most members that found a ledger.
const CHANGES_MAX: usize = 256;
/// Most keys that a member has had.
const KEYS_MAX: usize = 64;
/// Longest certificate, in bytes.
const CERTIFICATE_BYTES_MAX: usize = 8192;
/// Most certificates of authorities.
const AUTHORITIES_MAX: usize = 8;
/// First bytes of a new key's consent.
const CONSENT_WORDS: &[u8] = b"\x02coppice-member-key";

/// The roles of a member, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(pub u8);

impl Roles {
    /// May change members, and orders purges and occults.
    pub const OWNER: Self = Self(1);
    /// Signs occults, and may object to purges.
    pub const REGULATOR: Self = Self(2);
    /// May append journals.
    pub const WRITER: Self = Self(4);
    /// May read journals.
    pub const READER: Self = Self(8);
    /// May read leaves and proofs, but no payloads.
    pub const VERIFIER: Self = Self(16);

    /// Both sets of roles.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of these roles are among them.
    #[must_use]
    pub fn has(self, roles: Self) -> bool {
        self.0 & roles.0 == roles.0
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let roles = Self(input.u8()?);
        let both = roles.has(Self::OWNER.and(Self::REGULATOR));
        if roles.0 > 31 || both { Err(Error::Malformed("roles")) } else { Ok(roles) }
    }
}

/// Rules of a ledger that never change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Time between an order to purge and its first effect, in seconds.
    pub notice_s: u32,
    /// After this many days without a key, the regulator signs a purge in a member's place.
    pub absent_days: u32,
    /// Journals that a member may retain from a purge.
    pub retain_max: u32,
    /// Right to occult: 0 nobody, 1 owner and regulator, 2 the owner of a ledger with one member.
    pub occult: u8,
    /// Longest time between two time stamps that is promised, in seconds; 0 promises none.
    pub anchor_every_s: u32,
}

/// A new member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The member's name: lower-case letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Roles of the member.
    pub roles: Roles,
    /// Ed25519 key of the member.
    pub key: [u8; 32],
    /// A certificate of that key in DER; empty for none.
    pub certificate: Vec<u8>,
}

/// Payload of the journal that founds a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// Name of the ledger.
    pub name: String,
    /// Whether its records are spread over all shards.
    pub spread: bool,
    /// The rules that never change.
    pub policy: Policy,
    /// The first members. The founder is one of them, and an owner.
    pub members: Vec<Grant>,
    /// Certificates, in DER, of the authorities that certify members.
    pub authorities: Vec<Vec<u8>>,
    /// Certificates, in DER, of the authorities that stamp the time.
    pub time_authorities: Vec<Vec<u8>>,
}

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A member joins.
    Grant(Grant),
    /// A member has these roles from now on.
    Roles(MemberId, Roles),
    /// A member has this key from now on.
    Key {
        /// The member or agent.
        member: MemberId,
        /// The new key.
        key: [u8; 32],
        /// A certificate of the key in DER; empty for none.
        certificate: Vec<u8>,
        /// The new key's signature over [`key_consent`].
        consent: [u8; 64],
    },
    /// A member has no key from now on.
    Revoke(MemberId),
    /// Journals of a member from this number on are disputed: its key was stolen.
    Dispute(MemberId, u64),
    /// An agent may append for the signer.
    Agent {
        /// Name of the agent.
        name: String,
        /// Key of the agent.
        key: [u8; 32],
        /// All clues of its journals begin with these bytes, and each journal has one.
        prefix: Vec<u8>,
        /// The number from which on it may not append; `None` for no end.
        until: Option<u64>,
    },
}

/// The rights of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agency {
    /// The member that it appends for.
    pub principal: MemberId,
    /// All clues of its journals begin with these bytes.
    pub prefix: Vec<u8>,
    /// The number from which on it may not append; `None` for no end.
    pub until: Option<u64>,
}

/// A key of a member, and the journals that it may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpan {
    /// The key.
    pub key: [u8; 32],
    /// The first journal.
    pub from: u64,
    /// The journal behind the last one; `None` if the key is in force.
    pub until: Option<u64>,
}

/// The newest request in a lane. All requests of lower numbers were applied, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEnd {
    /// The lane.
    pub lane: u8,
    /// Number of the request.
    pub number: u64,
    /// Its first journal.
    pub first_jsn: u64,
}

/// Value of a member's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member's name.
    pub name: String,
    /// Roles of the member.
    pub roles: Roles,
    /// Its rights, if it is an agent.
    pub agency: Option<Agency>,
    /// Keys of the member, oldest first.
    pub keys: Vec<KeySpan>,
    /// The newest request in each lane that was used, by lane.
    pub lanes: Vec<LaneEnd>,
    /// Its first and its newest journal, and their number; `None` before the first.
    pub journals: Option<(u64, u64, u64)>,
    /// Its journals from this number on are disputed; `None` if none is.
    pub disputed_from: Option<u64>,
}

/// The message that a new key signs to show that its holder wants it to be this member's key.
#[must_use]
pub fn key_consent(cluster: ClusterId, ledger: LedgerId, member: MemberId, key: &[u8; 32]) -> Vec<u8> {
    [CONSENT_WORDS, cluster.as_bytes(), ledger.as_bytes(), member.as_bytes(), key].concat()
}

fn read_name(input: &mut Reader<'_>) -> Result<String, Error> {
    let name = read_text(input, NAME_BYTES_MAX, "name")?;
    let sound = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    if name.is_empty() || !name.bytes().all(sound) { Err(Error::Malformed("name")) } else { Ok(name) }
}

fn read_bytes(input: &mut Reader<'_>, most: usize, field: &'static str) -> Result<Vec<u8>, Error> {
    let bytes = input.str16()?;
    if bytes.len() > most { Err(Error::Malformed(field)) } else { Ok(bytes.to_vec()) }
}

fn write_until(out: &mut Writer, until: Option<u64>) {
    out.flag(until.is_some());
    if let Some(until) = until {
        out.u64(until);
    }
}

fn read_until(input: &mut Reader<'_>) -> Result<Option<u64>, Error> {
    Ok(if input.flag("an end")? { Some(input.u64()?) } else { None })
}

impl Grant {
    fn encode(&self, out: &mut Writer) {
        out.str16(self.name.as_bytes());
        out.u8(self.roles.0);
        out.raw(&self.key);
        out.str16(&self.certificate);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            name: read_name(input)?,
            roles: Roles::decode(input)?,
            key: input.digest()?.0,
            certificate: read_bytes(input, CERTIFICATE_BYTES_MAX, "certificate")?,
        })
    }
}

impl Policy {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.notice_s);
        out.u32(self.absent_days);
        out.u32(self.retain_max);
        out.u8(self.occult);
        out.u32(self.anchor_every_s);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let policy = Self {
            notice_s: input.u32()?,
            absent_days: input.u32()?,
            retain_max: input.u32()?,
            occult: input.u8()?,
            anchor_every_s: input.u32()?,
        };
        if policy.occult > 2 { Err(Error::Malformed("rule of occults")) } else { Ok(policy) }
    }
}

impl Founding {
    /// The canonical bytes.
    ///
    /// # Panics
    /// If there are more members or certificates than a `u16` counts.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(1);
        out.str16(self.name.as_bytes());
        out.flag(self.spread);
        self.policy.encode(&mut out);
        write_list(&mut out, &self.members, |out, member| member.encode(out));
        write_list(&mut out, &self.authorities, |out, certificate| out.str16(certificate));
        write_list(&mut out, &self.time_authorities, |out, certificate| out.str16(certificate));
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes found no ledger: malformed, beyond a limit, without an owner, with two members
    /// of one name or key, or with an owner alone that may occult beside other members.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of a founding"));
        }
        let certificate = |input: &mut Reader<'_>| read_bytes(input, CERTIFICATE_BYTES_MAX, "certificate");
        let founding = Self {
            name: read_name(&mut input)?,
            spread: input.flag("spread")?,
            policy: Policy::decode(&mut input)?,
            members: read_list(&mut input, CHANGES_MAX, "number of members", Grant::decode)?,
            authorities: read_list(&mut input, AUTHORITIES_MAX, "number of authorities", certificate)?,
            time_authorities: read_list(&mut input, AUTHORITIES_MAX, "number of authorities", certificate)?,
        };
        input.finish()?;
        let members = &founding.members;
        let twice = |at: usize| {
            let (one, others) = (&members[at], &members[..at]);
            others.iter().any(|other| other.name == one.name || other.key == one.key)
        };
        let rules = [
            ("a founding without an owner", members.iter().any(|member| member.roles.has(Roles::OWNER))),
            ("two members of one name or key", !(0..members.len()).any(twice)),
            ("an owner alone that occults beside other members", founding.policy.occult < 2 || members.len() == 1),
        ];
        match rules.iter().find(|(_, holds)| !holds) {
            Some((rule, _)) => Err(Error::Malformed(rule)),
            None => Ok(founding),
        }
    }
}

impl MemberChange {
    /// The change of a member's key, with the consent of the new one.
    #[cfg(feature = "sign")]
    #[must_use]
    pub fn to_key(cluster: ClusterId, ledger: LedgerId, member: MemberId, new: &crate::note::SignerKey) -> Self {
        let key = new.verifier().public_key();
        let consent = new.sign(&key_consent(cluster, ledger, member, &key));
        Self::Key { member, key, certificate: Vec::new(), consent }
    }

    /// The payload of a journal with these changes.
    ///
    /// # Panics
    /// If there are more changes than a `u16` counts.
    #[must_use]
    pub fn encode_all(changes: &[Self]) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(1);
        write_list(&mut out, changes, |out, change| change.encode(out));
        out.into_bytes()
    }

    /// Decodes the payload of a journal that changes members.
    ///
    /// # Errors
    /// If the bytes are malformed, without a change, or beyond a limit.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, Error> {
        let mut input = Reader::new(bytes);
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of a change of members"));
        }
        let changes = read_list(&mut input, CHANGES_MAX, "number of changes", Self::decode)?;
        input.finish()?;
        if changes.is_empty() { Err(Error::Malformed("number of changes")) } else { Ok(changes) }
    }

    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Grant(grant) => {
                out.u8(0);
                grant.encode(out);
            }
            Self::Roles(member, roles) => {
                out.u8(1);
                out.raw(member.as_bytes());
                out.u8(roles.0);
            }
            Self::Key { member, key, certificate, consent } => {
                out.u8(2);
                out.raw(member.as_bytes());
                out.raw(key);
                out.str16(certificate);
                out.raw(consent);
            }
            Self::Revoke(member) => {
                out.u8(3);
                out.raw(member.as_bytes());
            }
            Self::Dispute(member, from) => {
                out.u8(4);
                out.raw(member.as_bytes());
                out.u64(*from);
            }
            Self::Agent { name, key, prefix, until } => {
                out.u8(5);
                out.str16(name.as_bytes());
                out.raw(key);
                out.str16(prefix);
                write_until(out, *until);
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match input.u8()? {
            0 => Self::Grant(Grant::decode(input)?),
            1 => Self::Roles(MemberId(input.bytes16()?), Roles::decode(input)?),
            2 => Self::Key {
                member: MemberId(input.bytes16()?),
                key: input.digest()?.0,
                certificate: read_bytes(input, CERTIFICATE_BYTES_MAX, "certificate")?,
                consent: input.take(64)?.try_into().map_err(|_| Error::Truncated)?,
            },
            3 => Self::Revoke(MemberId(input.bytes16()?)),
            4 => Self::Dispute(MemberId(input.bytes16()?), input.u64()?),
            5 => Self::Agent {
                name: read_name(input)?,
                key: input.digest()?.0,
                prefix: read_bytes(input, CLUE_BYTES_MAX, "clue prefix")?,
                until: read_until(input)?,
            },
            _ => return Err(Error::Malformed("kind of a change of members")),
        })
    }

    /// The member or agent that the change is about.
    #[must_use]
    pub fn about(&self) -> MemberId {
        match self {
            Self::Grant(grant) => member_id(&grant.name),
            Self::Agent { name, .. } => member_id(name),
            Self::Roles(member, _) | Self::Revoke(member) | Self::Dispute(member, _) => *member,
            Self::Key { member, .. } => *member,
        }
    }

    /// Whether another member joins. An agent is not a member.
    #[must_use]
    pub fn joins(&self) -> bool {
        matches!(self, Self::Grant(_))
    }

    /// The key that the change brings; `None` if it brings none.
    #[must_use]
    pub fn new_key(&self) -> Option<&[u8; 32]> {
        match self {
            Self::Grant(grant) => Some(&grant.key),
            Self::Key { key, .. } | Self::Agent { key, .. } => Some(key),
            Self::Roles(..) | Self::Revoke(_) | Self::Dispute(..) => None,
        }
    }
}

impl Member {
    /// A member that joins with this key, which may sign journals from `from` on.
    #[must_use]
    pub fn new(name: &str, roles: Roles, agency: Option<Agency>, key: [u8; 32], from: u64) -> Self {
        let keys = Vec::from([KeySpan { key, from, until: None }]);
        let name = String::from(name);
        Self { name, roles, agency, keys, lanes: Vec::new(), journals: None, disputed_from: None }
    }

    /// Whether the member is an owner or a regulator.
    pub(super) fn may_order(&self) -> bool {
        self.roles.has(Roles::OWNER) || self.roles.has(Roles::REGULATOR)
    }

    /// The role that the member lacks to send an order; `None` if it may send it.
    #[must_use]
    pub fn lacks_for(&self, action: &Action) -> Option<&'static str> {
        match action {
            Action::Occult(_) => (!self.may_order()).then_some("an owner or a regulator"),
            Action::Purge(_) | Action::Sweep { .. } => (!self.roles.has(Roles::OWNER)).then_some("an owner"),
            Action::Retain { .. } | Action::Recall { .. } => None,
        }
    }

    /// The key that may sign a journal of this number; `None` if there is none.
    #[must_use]
    pub fn key_at(&self, jsn: u64) -> Option<&[u8; 32]> {
        let valid = |span: &&KeySpan| span.from <= jsn && span.until.is_none_or(|until| jsn < until);
        self.keys.iter().find(valid).map(|span| &span.key)
    }

    /// Ends the key in force: it signs no journal from `jsn` on.
    pub(super) fn end_key(&mut self, jsn: u64) {
        if let Some(span) = self.keys.last_mut() {
            span.until.get_or_insert(jsn);
        }
    }

    /// Gives the member a key that may sign journals from `jsn` on. Returns false if it has had too
    /// many.
    pub(super) fn change_key(&mut self, key: [u8; 32], jsn: u64) -> bool {
        self.end_key(jsn);
        self.keys.push(KeySpan { key, from: jsn, until: None });
        self.keys.len() <= KEYS_MAX
    }

    /// Number of the newest request in a lane; 0 before the first.
    #[must_use]
    pub fn lane(&self, lane: u8) -> u64 {
        self.lanes.iter().find(|end| end.lane == lane).map_or(0, |end| end.number)
    }

    pub(super) fn set_lane(&mut self, end: LaneEnd) {
        match self.lanes.binary_search_by_key(&end.lane, |used| used.lane) {
            Ok(at) => self.lanes[at] = end,
            Err(at) => self.lanes.insert(at, end),
        }
    }

    /// Counts `count` journals from `first` on.
    pub(super) fn count(&mut self, first: u64, count: u64) {
        let (earliest, _, before) = self.journals.unwrap_or((first, first, 0));
        self.journals = Some((earliest, first + count - 1, before + count));
    }

    /// The canonical bytes.
    ///
    /// # Panics
    /// If a text or list is longer than a `u16` counts.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(1);
        out.str16(self.name.as_bytes());
        out.u8(self.roles.0);
        write_agent(&mut out, self.agency.as_ref().map(|agency| agency.principal));
        if let Some(agency) = &self.agency {
            out.str16(&agency.prefix);
            write_until(&mut out, agency.until);
        }
        write_list(&mut out, &self.keys, |out, span| {
            out.raw(&span.key);
            out.u64(span.from);
            write_until(out, span.until);
        });
        write_list(&mut out, &self.lanes, |out, end| {
            out.u8(end.lane);
            out.u64(end.number);
            out.u64(end.first_jsn);
        });
        out.flag(self.journals.is_some());
        if let Some((first, last, count)) = self.journals {
            out.u64(first);
            out.u64(last);
            out.u64(count);
        }
        write_until(&mut out, self.disputed_from);
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a member's record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of a member"));
        }
        let (name, roles) = (read_name(&mut input)?, Roles::decode(&mut input)?);
        let agency = match read_agent(&mut input)? {
            None => None,
            Some(principal) => {
                let prefix = read_bytes(&mut input, CLUE_BYTES_MAX, "clue prefix")?;
                Some(Agency { principal, prefix, until: read_until(&mut input)? })
            }
        };
        let keys = read_list(&mut input, KEYS_MAX, "number of keys", |input| {
            Ok(KeySpan { key: input.digest()?.0, from: input.u64()?, until: read_until(input)? })
        })?;
        let lanes = read_list(&mut input, usize::from(LANES), "number of lanes", |input| {
            Ok(LaneEnd { lane: input.u8()?, number: input.u64()?, first_jsn: input.u64()? })
        })?;
        if !lanes.is_sorted_by(|a, b| a.lane < b.lane) || lanes.last().is_some_and(|end| end.lane >= LANES) {
            return Err(Error::Malformed("order of lanes"));
        }
        let journals =
            if input.flag("journals of a member")? { Some((input.u64()?, input.u64()?, input.u64()?)) } else { None };
        let disputed_from = read_until(&mut input)?;
        input.finish()?;
        Ok(Self { name, roles, agency, keys, lanes, journals, disputed_from })
    }
}

#[cfg(test)]
mod tests;
