//! A synchronous raft group and its durable log
