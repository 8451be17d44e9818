//! Logs go to standard error, as text for people or as JSON for machines. JSON lines name the trace
//! and the span in which they were written.

use std::{
    error::Error,
    fmt::{self, Write},
    io::IsTerminal,
};

use coppice_types::{
    chain,
    escape::{Escaping, guard_json},
};
use opentelemetry::{Context, trace::TraceContextExt};
use serde::{Deserialize, Serialize};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    fmt::{FmtContext, FormatEvent, FormatFields, format},
    registry::LookupSpan,
};

use crate::Failure;

/// The content and the form of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter like `info` or `warn,coppice_shard_node=debug`.
    pub filter: String,
    pub format: Format,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The default filter of log lines.
#[must_use]
pub fn log_filter() -> String {
    "info".to_owned()
}

impl Log {
    /// Starts logging.
    ///
    /// # Errors
    /// If the filter is not valid.
    pub fn start(&self) -> Result<(), Failure> {
        let filter = EnvFilter::try_new(&self.filter).map_err(|error| {
            Failure::usage(format!("log = {:?}: {error}", self.filter)).hint(
                "It is a level (error, warn, info, debug, trace), or a list such as warn,coppice_shard_node=debug.",
            )
        })?;
        // A closed standard error must not cause a panic.
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .log_internal_errors(false)
            .with_ansi(colours())
            .with_writer(std::io::stderr);
        match self.format {
            Format::Text => lines.fmt_fields(Safe).init(),
            Format::Json => lines.json().map_event_format(Traced).init(),
        }
        Ok(())
    }
}

/// Colours are for terminals, and can be turned off: <https://no-color.org>.
fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stderr().is_terminal()
}

/// Writes the fields of a text line. Values come from peers, clients and files, so they are
/// escaped: no value begins another line or drives a terminal.
struct Safe;

impl<'w> FormatFields<'w> for Safe {
    fn format_fields<R: RecordFields>(&self, writer: format::Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_first: true, written: Ok(()) };
        fields.record(&mut line);
        line.written
    }
}

struct Line<'w> {
    writer: format::Writer<'w>,
    is_first: bool,
    written: fmt::Result,
}

impl Line<'_> {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.written = self.written.and_then(|()| self.begin(field)).and_then(|()| self.escaping().write_fmt(value));
    }

    fn begin(&mut self, field: &Field) -> fmt::Result {
        let space = if std::mem::take(&mut self.is_first) { "" } else { " " };
        match field.name() {
            "message" => self.writer.write_str(space),
            name => write!(self.writer, "{space}{}=", name.trim_start_matches("r#")),
        }
    }

    /// Writes a value in quotes, which the value itself can't end.
    fn quote(&mut self, value: &str) -> fmt::Result {
        for (at, part) in value.split('"').enumerate() {
            self.writer.write_str(if at == 0 { "\"" } else { "\\x22" })?;
            self.escaping().write_str(part)?;
        }
        self.writer.write_char('"')
    }

    fn escaping(&mut self) -> Escaping<&mut dyn Write> {
        Escaping(&mut self.writer)
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return self.put(field, format_args!("{value}"));
        }
        self.written = self.written.and_then(|()| self.begin(field)).and_then(|()| self.quote(value));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field, format_args!("{}", chain(value)));
    }
}

/// Adds `trace_id` and `span_id` to the JSON objects that `F` writes, and escapes control
/// characters in them.
struct Traced<F>(F);

impl<S, N, F> FormatEvent<S, N> for Traced<F>
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
        let line = guard_json(line.trim_end());
        let span = Context::map_current(|context| context.span().span_context().clone());
        if !span.is_valid() {
            return writeln!(writer, "{line}");
        }
        let object = line.strip_suffix('}').ok_or(fmt::Error)?;
        writeln!(writer, r#"{object},"trace_id":"{}","span_id":"{}"}}"#, span.trace_id(), span.span_id())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

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
    fn a_line_names_the_trace_that_it_was_written_in_and_none_outside_of_one() {
        let lines = Lines::default();
        let to = lines.clone();
        let logged = tracing_subscriber::fmt().with_writer(move || to.clone()).json().map_event_format(Traced).finish();
        tracing::subscriber::with_default(logged, || {
            tracing::info!(group = "shard-0", "before");
            let (trace, span) = (TraceId::from(7), SpanId::from(9));
            let span = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
            let _guard = Context::new().with_remote_span_context(span).attach();
            tracing::info!(group = "shard-0", "within");
        });
        let text = String::from_utf8(lines.0.lock().expect("nobody panics").clone()).expect("lines are text");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        assert_eq!(lines.iter().map(|line| &line["fields"]["group"]).collect::<Vec<_>>(), ["shard-0", "shard-0"]);
        assert!(lines[0].get("trace_id").is_none(), "{text}");
        assert_eq!(lines[1]["trace_id"], "00000000000000000000000000000007");
        assert_eq!(lines[1]["span_id"], "0000000000000009");
    }
    #[test]
    fn no_value_forges_a_line_or_drives_a_terminal() {
        let forged = "no\n2026 ERROR all is lost\u{1b}[2J\u{9b}1m\u{202e}\\";
        let log = |json: bool| {
            let lines = Lines::default();
            let to = lines.clone();
            let logged = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone());
            let log = || {
                let error = io::Error::other(forged);
                tracing::info!(name = forged, shown = %forged, %error, cause = &error as &dyn Error, "{forged}");
            };
            if json {
                tracing::subscriber::with_default(logged.json().map_event_format(Traced).finish(), log);
            } else {
                tracing::subscriber::with_default(logged.fmt_fields(Safe).finish(), log);
            }
            String::from_utf8(lines.0.lock().expect("nobody panics").clone()).expect("lines are text")
        };
        let (text, json) = (log(false), log(true));
        for written in [&text, &json] {
            let line = written.strip_suffix('\n').expect("a whole line");
            assert!(!line.chars().any(coppice_types::text::is_control), "{line:?}");
        }
        assert_eq!(text.matches(r"no\x0a2026 ERROR all is lost\x1b[2J\u{9b}1m\u{202e}\\").count(), 5, "{text}");
        let object: serde_json::Value = serde_json::from_str(&json).expect("a line is JSON");
        assert_eq!(object["fields"]["name"], forged);
    }
}
