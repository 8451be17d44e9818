//! Shared newtypes, limits, codec and error kinds
