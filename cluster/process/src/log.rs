//! Logs: to standard error, as text for people or as JSON for machines. JSON names the trace and span that a line was written in.

use std::{fmt, io::IsTerminal};

use opentelemetry::{Context, trace::TraceContextExt};
use serde::{Deserialize, Serialize};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format},
    registry::LookupSpan,
};

use crate::Failure;

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter such as `info` or `warn,coppice_shard_node=debug`.
    pub filter: String,
    /// The form of a line.
    pub format: Format,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Log {
    /// Logs from now on.
    ///
    /// # Errors
    /// If the filter is none.
    pub fn start(&self) -> Result<(), Failure> {
        let filter = EnvFilter::try_new(&self.filter).map_err(|error| {
            Failure::usage(format!("log = {:?}: {error}", self.filter)).hint(
                "It is a level (error, warn, info, debug, trace), or a list such as warn,coppice_shard_node=debug.",
            )
        })?;
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.format {
            Format::Text => lines.init(),
            Format::Json => lines.json().map_event_format(Traced).init(),
        }
        Ok(())
    }
}

/// Adds `trace_id` and `span_id` to what `F` writes, which is a JSON object a line.
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
        let span = Context::map_current(|context| context.span().span_context().clone());
        if !span.is_valid() {
            return self.0.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.0.format_event(context, format::Writer::new(&mut line), event)?;
        let object = line.trim_end().strip_suffix('}').ok_or(fmt::Error)?;
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
}
