//! The root group's state machine behind a replica: `coppice_root` with the messages of the `Root`
//! service.

mod machine;
mod messages;
mod reads;
#[cfg(test)]
pub(crate) mod tests;

pub use machine::RootReceiver;
pub use messages::{append_header, drop_pin, open_session, set_pin, take_over, to_pin};
pub use reads::RootMachine;
