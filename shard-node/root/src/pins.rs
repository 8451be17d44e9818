//! Pins: versions that no prune may drop for a while.
//!
//! A pin ends when it is taken back, when its time is over, or by a rollback below its version.
//! Time comes from the commands: the clock of the proposing replica, or the header's, and never
//! less than the newest header's. So all replicas end the same pins.

use std::collections::BTreeMap;

use coppice_types::{
    PinId, Version,
    codec::{Error, Reader, Writer},
};

use crate::codec::len32;

/// Limit on the number of pins that live at once.
pub const VERSION_PINS_MAX: usize = 256;
/// The longest time of a pin: a day.
pub const PIN_TTL_MS_MAX: u64 = 24 * 3600 * 1000;

/// A version that is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The name that the client chose.
    pub id: PinId,
    pub version: Version,
    /// When the pin ends, in ms since 1970.
    pub expires_ms: u64,
}

/// All pins, by name. The next command that changes a pin drops those whose time is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pins {
    by_id: BTreeMap<PinId, (Version, u64)>,
}

impl Pins {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The pins that live at this time, by name.
    pub(crate) fn living(&self, now_ms: u64) -> impl Iterator<Item = Pin> + '_ {
        let pins = self.by_id.iter().map(|(&id, &(version, expires_ms))| Pin { id, version, expires_ms });
        pins.filter(move |pin| pin.expires_ms > now_ms)
    }

    /// The living pin of the oldest version.
    pub(crate) fn oldest(&self, now_ms: u64) -> Option<Pin> {
        self.living(now_ms).min_by_key(|pin| (pin.version, pin.id))
    }

    pub(crate) fn set(&mut self, pin: Pin) {
        assert!(self.by_id.len() < VERSION_PINS_MAX || self.by_id.contains_key(&pin.id), "there is room for the pin");
        let before = self.by_id.insert(pin.id, (pin.version, pin.expires_ms));
        assert!(before.is_none_or(|(version, _)| version == pin.version), "a pin stays with its version");
    }

    /// Removes a pin. Returns whether it was there.
    pub(crate) fn remove(&mut self, id: PinId) -> bool {
        self.by_id.remove(&id).is_some()
    }

    /// Drops the pins whose time is over.
    pub(crate) fn end_expired(&mut self, now_ms: u64) {
        self.by_id.retain(|_, (_, expires_ms)| *expires_ms > now_ms);
    }

    /// Drops the pins of versions that were rolled back.
    pub(crate) fn roll_back(&mut self, target: Version) {
        self.by_id.retain(|_, (version, _)| *version <= target);
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u32(len32(self.by_id.len()));
        for (id, (version, expires_ms)) in &self.by_id {
            out.raw(id.as_bytes());
            out.u64(version.0);
            out.u64(*expires_ms);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let mut pins = Self::default();
        for _ in 0..input.u32()? {
            let id = PinId(input.bytes16()?);
            let pin = (Version(input.u64()?), input.u64()?);
            if pins.by_id.len() >= VERSION_PINS_MAX || pins.by_id.insert(id, pin).is_some() {
                return Err(Error::Malformed("pins"));
            }
        }
        Ok(pins)
    }
}
