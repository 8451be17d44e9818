//! Logs: one JSON object a line on standard error, without control characters. Names and messages
//! in them come from everybody who may write a resource, and people read the lines at terminals.

use std::{fmt, io};

use coppice_types::escape::guard_json;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format},
    registry::LookupSpan,
};

/// Starts logging, with this filter.
///
/// # Errors
/// If the filter is invalid.
pub fn start(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("--log {filter}: {error}"))?;
    // A closed standard error is not a reason to panic.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false).with_writer(io::stderr);
    lines.json().map_event_format(Guarded).init();
    Ok(())
}

/// Escapes control characters in the output of `F`.
struct Guarded<F>(F);

impl<S, N, F> FormatEvent<S, N> for Guarded<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, format::Writer::new(&mut line), event)?;
        writeln!(writer, "{}", guard_json(line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("nobody panics").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_name_in_a_line_drives_no_terminal_and_stays_the_same_name() {
        let (lines, name) = (Lines::default(), "a\u{9b}2J\u{202e}b\n{}");
        let to = lines.clone();
        let logged = tracing_subscriber::fmt().with_writer(move || to.clone()).json().map_event_format(Guarded);
        tracing::subscriber::with_default(logged.finish(), || tracing::warn!(name, "refused"));
        let text = String::from_utf8(lines.0.lock().expect("nobody panics").clone()).expect("text");
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(!text.contains(['\u{9b}', '\u{202e}']), "{text:?}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(line["fields"]["name"], name);
    }
}
