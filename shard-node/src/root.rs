//! The root group's state machine behind a replica: `coppice_root` with the messages of the `Root` service.

mod reads;

pub use reads::{
    RootMachine, RootReceiver, append_header, drop_pin, open_session, pin_id, session_id, set_pin, take_over, to_pin,
};
