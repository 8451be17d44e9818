//! The root group's state machine: root log, terms, sessions, shard map, state leaves
