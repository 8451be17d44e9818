//! Ledgers of members (`docs/verification.md` section 18): what members sign, what a ledger keeps
//! of it, and which records of the state follow from it.
//!
//! A *journal* of a ledger is what a member appended; it has a number without gaps, the `jsn`. All
//! state of a ledger lies in records under reserved keys, so that the state root commits to it.
//!
//! A module uses only modules in the rows below its own:
//!
//! ```text
//!  round                           the rules of an append, and the records that follow from it
//!  checked                         a request of sound form
//!  trusted                         the hashes of a list that a member has verified
//!  members     leaf                who may do what; what the list of a ledger holds
//!  order                           what goes, and who says so
//!  request     records   list      what is signed; values of records; the Merkle list
//!  envelope    places              payload with its nonce; reserved keys
//! ```

mod checked;
mod envelope;
mod leaf;
mod list;
mod members;
mod order;
mod places;
mod records;
mod request;
mod round;
mod trusted;

pub use self::{
    checked::{Checked, CheckedItem, Content},
    envelope::{CLUE_BYTES_MAX, CLUES_MAX, Envelope, NONCE_BYTES},
    leaf::{LEAF_BYTES_MIN, Leaf, LeafClue},
    list::{Edge, TILE_WIDTH, Tile},
    members::{
        Agency, Founding, Grant, KeySpan, LaneEnd, Member, MemberChange, NAME_BYTES_MAX, Policy, Roles, key_consent,
    },
    order::{APPROVALS_MAX, Absent, Action, Approval, Mark, Order, Ordered, PurgeOrder, Target},
    places::{
        RESERVED_END, author_key, cell_key, clue_end, clue_key, envelope_key, erased_by, founding_key, head_key,
        is_judged_by, is_record_of, key_key, leaf_key, mark_key, mark_of, member_end, member_key, name_end, name_key,
        purge_key, retained_key, retains_key, tile_key,
    },
    records::{AuthorOf, Cell, Clue, Head, Purge, PurgeState, Retained, Retains},
    request::{CONDITIONS_MAX, Condition, DATA, FOUNDING, ITEMS_MAX, Item, LANES, MEMBERS, ORDER, Request, Signed},
    round::{Appended, Closed, Ground, Refusal, Round},
    trusted::{BLOCK_JOURNALS, TrustedAnchor, path_len},
};
