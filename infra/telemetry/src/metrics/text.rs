//! Metrics in the text format of Prometheus, version 0.0.4, or of OpenMetrics, version 1.0.0, which links histograms to
//! traces.

use std::fmt::Write as _;

use super::{BOUNDS_US, Exemplar, Exemplars, Family, Metric, Read, Values, published};

/// The bounds of histograms, written out: a scrape has tens of thousands of them.
const BOUNDS_S: [&str; BOUNDS_US.len()] = [
    "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.5", "1", "2.5", "5", "10", "30", "60",
    "300", "1800",
];

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format for a scraper with this `Accept`.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The lines before the series of a family.
    pub(crate) fn head(self, out: &mut String, name: &str, help: &str, kind: &str) {
        // In OpenMetrics `_total` belongs to the series and not to the family.
        let family = match self {
            Self::OpenMetrics if kind == "counter" => name.strip_suffix("_total").unwrap_or(name),
            Self::Prometheus | Self::OpenMetrics => name,
        };
        said(writeln!(out, "# HELP {family} {help}\n# TYPE {family} {kind}"));
    }

    /// The end of the whole text.
    pub(crate) fn end(self) -> &'static str {
        match self {
            Self::Prometheus => "",
            Self::OpenMetrics => "# EOF\n",
        }
    }
}

/// All that was published. A histogram in which nothing was recorded is left out.
#[must_use]
pub fn text(format: Format) -> String {
    let mut out = String::new();
    for metric in published() {
        match metric {
            Metric::Counter(family) => lines(&mut out, format, family, "counter", |out, labels, counter| {
                line(out, family.name, "", labels, counter.value());
            }),
            Metric::Gauge(family) => lines(&mut out, format, family, "gauge", |out, labels, gauge| {
                line(out, family.name, "", labels, gauge.value());
            }),
            Metric::Histogram(family) => lines(&mut out, format, family, "histogram", |out, labels, histogram| {
                let exemplars = match format {
                    Format::Prometheus => None,
                    Format::OpenMetrics => histogram.exemplars(),
                };
                histogram_lines(out, family.name, labels, &histogram.read(), exemplars.as_ref());
            }),
        }
    }
    out
}

fn lines<M>(
    out: &mut String,
    format: Format,
    family: &Family<M>,
    kind: &str,
    series_lines: impl Fn(&mut String, &str, &M),
) {
    let series = family.series();
    if series.is_empty() {
        return;
    }
    format.head(out, family.name, family.help, kind);
    let mut labels = String::new();
    for (values, metric) in series.iter() {
        labels.clear();
        write_labels(&mut labels, family.labels, values);
        series_lines(out, &labels, metric);
    }
}

/// A scrape of many tools is made of these lines alone: what is the same in all of a series is written once, and
/// nothing of it is formatted.
fn histogram_lines(out: &mut String, name: &str, labels: &str, read: &Read, exemplars: Option<&Exemplars>) {
    let total: u64 = read.counts.iter().sum();
    if total == 0 {
        return;
    }
    let comma = if labels.is_empty() { "" } else { "," };
    let head = [name, "_bucket{", labels, comma, "le=\""].concat();
    let exemplar = |bucket: usize| exemplars.and_then(|all| all.get(bucket).copied().flatten());
    let mut below = 0;
    for (at, (bound, count)) in BOUNDS_S.iter().zip(read.counts).enumerate() {
        below += count;
        bucket(out, &head, bound, below, exemplar(at));
    }
    bucket(out, &head, "+Inf", total, exemplar(BOUNDS_S.len()));
    line(out, name, "_sum", labels, read.sum_s);
    line(out, name, "_count", labels, total);
}

fn bucket(out: &mut String, head: &str, bound: &str, below: u64, exemplar: Option<Exemplar>) {
    for part in [head, bound, "\"} "] {
        out.push_str(part);
    }
    said(write!(out, "{below}"));
    if let Some(Exemplar { trace, value_s, at_s }) = exemplar {
        said(write!(out, " # {{trace_id=\"{}\"}} {value_s} {at_s:.3}", trace.trace_id()));
    }
    out.push('\n');
}

fn line(out: &mut String, name: &str, suffix: &str, labels: &str, value: impl std::fmt::Display) {
    for part in [name, suffix] {
        out.push_str(part);
    }
    if !labels.is_empty() {
        for part in ["{", labels, "}"] {
            out.push_str(part);
        }
    }
    said(writeln!(out, " {value}"));
}

fn write_labels(out: &mut String, labels: &[&str], values: &Values) {
    for (label, value) in labels.iter().zip(values) {
        let comma = if out.is_empty() { "" } else { "," };
        said(write!(out, "{comma}{label}=\""));
        for character in value.chars() {
            match character {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                other => out.push(other),
            }
        }
        out.push('"');
    }
}

fn said(written: std::fmt::Result) {
    written.expect("a string takes whatever is written");
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::metrics::{Counter, Gauge, Histogram, publish};
    use crate::trace::SpanContext;

    use super::*;

    static CALLS: Family<Counter> = Family::new("test_calls_total", "Calls.", &["pool", "tool"]);
    static ROOM: Family<Gauge> = Family::new("test_room", "Room.", &[]);
    static WAIT: Family<Histogram> = Family::new("test_wait_seconds", "Waiting.", &["pool"]);
    static IDLE: Family<Histogram> = Family::new("test_idle_seconds", "Nothing.", &["pool"]);

    fn rendered(family: &str) -> String {
        let text = text(Format::Prometheus);
        let of_it: Vec<&str> = text.lines().filter(|line| line.contains(family)).collect();
        of_it.join("\n")
    }

    #[test]
    fn bounds_are_written_as_they_are() {
        let written: Vec<String> =
            BOUNDS_US.iter().map(|us| Duration::from_micros(*us).as_secs_f64().to_string()).collect();
        assert_eq!(written, BOUNDS_S);
    }

    #[test]
    fn each_kind_is_written_as_prometheus_reads_it() {
        publish(&[Metric::Counter(&CALLS), Metric::Gauge(&ROOM), Metric::Histogram(&WAIT), Metric::Histogram(&IDLE)]);
        publish(&[Metric::Counter(&CALLS)]);
        CALLS.with(&["main", "a\"b\\c\n"]).add(3);
        ROOM.with(&[]).set(0.25);
        WAIT.with(&["main"]).record(Duration::from_millis(30));
        WAIT.with(&["main"]).record(Duration::from_secs(3600));
        drop(IDLE.with(&["main"]));

        let calls = "# HELP test_calls_total Calls.\n# TYPE test_calls_total counter\n\
                     test_calls_total{pool=\"main\",tool=\"a\\\"b\\\\c\\n\"} 3";
        assert_eq!(rendered("test_calls"), calls);
        assert_eq!(rendered("test_room"), "# HELP test_room Room.\n# TYPE test_room gauge\ntest_room 0.25");
        let wait = rendered("test_wait_seconds");
        assert!(wait.contains("test_wait_seconds_bucket{pool=\"main\",le=\"0.025\"} 0\n"), "{wait}");
        assert!(wait.contains("test_wait_seconds_bucket{pool=\"main\",le=\"0.1\"} 1\n"), "{wait}");
        assert!(wait.contains("test_wait_seconds_bucket{pool=\"main\",le=\"1800\"} 1\n"), "{wait}");
        assert!(wait.contains("test_wait_seconds_bucket{pool=\"main\",le=\"+Inf\"} 2\n"), "{wait}");
        assert!(
            wait.ends_with("test_wait_seconds_sum{pool=\"main\"} 3600.03\ntest_wait_seconds_count{pool=\"main\"} 2")
        );
        assert!(!rendered("test_idle").contains("bucket"), "where nothing was recorded there is nothing to see");
    }

    #[test]
    fn openmetrics_links_a_bucket_to_the_trace_of_its_last_value() {
        static TRACED: Family<Histogram> = Family::new("test_traced_seconds", "Traced.", &["pool"]);
        static TOTAL: Family<Counter> = Family::new("test_traced_total", "Counted.", &[]);
        publish(&[Metric::Histogram(&TRACED), Metric::Counter(&TOTAL)]);
        let trace = SpanContext::sampled("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        TRACED.with(&["main"]).record_of(Duration::from_millis(20), trace);
        TRACED.with(&["main"]).record_of(Duration::from_millis(30), None);
        TOTAL.with(&[]).add(1);
        let text = super::text(Format::OpenMetrics);
        let lines = |part: &str| text.lines().filter(|line| line.contains(part)).collect::<Vec<_>>().join("\n");
        let linked = lines("4bf92f3577b34da6a3ce929d0e0e4736");
        let line = "test_traced_seconds_bucket{pool=\"main\",le=\"0.025\"} 1 \
                    # {trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"} 0.02 ";
        assert!(linked.starts_with(line) && linked.lines().count() == 1, "{linked}");
        assert_eq!(lines("TYPE test_traced "), "# TYPE test_traced counter");
        assert!(!rendered("test_traced_seconds").contains(" # "), "the older format has no links");
    }

    /// `cargo test -p toolyard-telemetry --release -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn two_thousand_tools_are_scraped_quickly() {
        static ATTEMPTS: Family<Counter> = Family::new("bench_attempts_total", "", &["pool", "tool", "outcome"]);
        static TIMES: [Family<Histogram>; 3] = [
            Family::new("bench_a_seconds", "", &["pool", "tool"]),
            Family::new("bench_b_seconds", "", &["pool", "tool"]),
            Family::new("bench_c_seconds", "", &["pool", "tool"]),
        ];
        publish(&[Metric::Counter(&ATTEMPTS)]);
        TIMES.iter().for_each(|times| publish(&[Metric::Histogram(times)]));
        for tool in 0..2_000 {
            let tool = format!("a_tool_with_a_name_of_its_own_{tool}");
            for outcome in ["completed", "failed", "cancelled", "expired", "returned"] {
                ATTEMPTS.with(&["main", &tool, outcome]).add(1_000);
            }
            TIMES.iter().for_each(|times| times.with(&["main", &tool]).record(Duration::from_millis(300)));
        }
        let (mut took, mut text) = (Duration::MAX, String::new());
        // The shortest of several runs, because other processes slow some of them.
        for _ in 0..10 {
            let began = Instant::now();
            text = super::text(Format::Prometheus);
            took = took.min(began.elapsed());
        }
        eprintln!("{} lines, {} bytes in {took:?}", text.lines().count(), text.len());
        assert!(took < Duration::from_millis(50), "{took:?}");
    }
}
