//! Raft's own log lines, passed on to `tracing`.

use std::fmt::Write;

use slog::{Drain, KV, Level, Logger, OwnedKVList, Record, Serializer};

struct ToTracing;

struct Values(String);

impl Serializer for Values {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        write!(self.0, ", {key}: {value}").map_err(|_| slog::Error::Other)
    }
}

impl Drain for ToTracing {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), slog::Never> {
        let enabled = match record.level() {
            Level::Critical | Level::Error => tracing::enabled!(tracing::Level::ERROR),
            Level::Warning | Level::Info => tracing::enabled!(tracing::Level::DEBUG),
            Level::Debug | Level::Trace => tracing::enabled!(tracing::Level::TRACE),
        };
        if !enabled {
            return Ok(());
        }
        let mut text = Values(record.msg().to_string());
        // A value that can't be shown loses only its text.
        let _ = values.serialize(record, &mut text);
        let _ = record.kv().serialize(record, &mut text);
        match record.level() {
            Level::Critical | Level::Error => tracing::error!("raft: {}", text.0),
            Level::Warning | Level::Info => tracing::debug!("raft: {}", text.0),
            Level::Debug | Level::Trace => tracing::trace!("raft: {}", text.0),
        }
        Ok(())
    }
}

/// The logger that raft is given.
pub(crate) fn logger() -> Logger {
    Logger::root(ToTracing, slog::o!())
}
