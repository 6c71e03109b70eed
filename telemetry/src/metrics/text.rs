//! What is counted, in the text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

use super::{BOUNDS_US, Family, Metric, Read, Values, published};

/// The bounds of histograms, written out: a scrape has tens of thousands of them.
const BOUNDS_S: [&str; BOUNDS_US.len()] = [
    "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.5", "1", "2.5", "5", "10", "30", "60",
    "300", "1800",
];

/// All that was published. A histogram in which nothing was recorded is left out.
#[must_use]
pub fn text() -> String {
    let mut out = String::new();
    for metric in published() {
        match metric {
            Metric::Counter(family) => lines(&mut out, family, "counter", |out, labels, counter| {
                line(out, family.name, "", labels, counter.value());
            }),
            Metric::Gauge(family) => lines(&mut out, family, "gauge", |out, labels, gauge| {
                line(out, family.name, "", labels, gauge.value());
            }),
            Metric::Histogram(family) => lines(&mut out, family, "histogram", |out, labels, histogram| {
                histogram_lines(out, family.name, labels, &histogram.read());
            }),
        }
    }
    out
}

fn lines<M>(out: &mut String, family: &Family<M>, kind: &str, series_lines: impl Fn(&mut String, &str, &M)) {
    let series = family.series();
    if series.is_empty() {
        return;
    }
    said(writeln!(out, "# HELP {} {}\n# TYPE {} {kind}", family.name, family.help, family.name));
    let mut labels = String::new();
    for (values, metric) in series.iter() {
        labels.clear();
        write_labels(&mut labels, family.labels, values);
        series_lines(out, &labels, metric);
    }
}

/// A scrape of many tools is made of these lines alone: what is the same in all of a series is written once, and nothing of
/// it is formatted.
fn histogram_lines(out: &mut String, name: &str, labels: &str, read: &Read) {
    let total: u64 = read.counts.iter().sum();
    if total == 0 {
        return;
    }
    let comma = if labels.is_empty() { "" } else { "," };
    let head = [name, "_bucket{", labels, comma, "le=\""].concat();
    let mut below = 0;
    for (bound, count) in BOUNDS_S.iter().zip(read.counts) {
        below += count;
        bucket(out, &head, bound, below);
    }
    bucket(out, &head, "+Inf", total);
    line(out, name, "_sum", labels, read.sum_s);
    line(out, name, "_count", labels, total);
}

fn bucket(out: &mut String, head: &str, bound: &str, below: u64) {
    for part in [head, bound, "\"} "] {
        out.push_str(part);
    }
    said(writeln!(out, "{below}"));
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

    use super::*;

    static CALLS: Family<Counter> = Family::new("test_calls_total", "Calls.", &["pool", "tool"]);
    static ROOM: Family<Gauge> = Family::new("test_room", "Room.", &[]);
    static WAIT: Family<Histogram> = Family::new("test_wait_seconds", "Waiting.", &["pool"]);
    static IDLE: Family<Histogram> = Family::new("test_idle_seconds", "Nothing.", &["pool"]);

    fn rendered(family: &str) -> String {
        let text = text();
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
        // The shortest of some: what else the machine does is not ours.
        for _ in 0..10 {
            let began = Instant::now();
            text = super::text();
            took = took.min(began.elapsed());
        }
        eprintln!("{} lines, {} bytes in {took:?}", text.lines().count(), text.len());
        assert!(took < Duration::from_millis(50), "{took:?}");
    }
}
