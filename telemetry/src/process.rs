//! What every process tells of itself: which release it is, and what it takes of its machine, under the names that
//! Prometheus' own clients use.

use std::fmt::Write as _;

use procfs::process::{LimitValue, Process};
use procfs::{Current as _, Uptime, WithCurrentSystemInfo as _};

use crate::metrics::{Family, Gauge, Metric, publish};

static BUILD_INFO: Family<Gauge> =
    Family::new("toolyard_build_info", "1, with the release that runs, and as what.", &["version", "part"]);

/// Lets be seen which release runs. `part` is `coordinator` or `worker`.
pub fn begin(part: &str) {
    publish(&[Metric::Gauge(&BUILD_INFO)]);
    BUILD_INFO.with(&[env!("CARGO_PKG_VERSION"), part]).set(1.0);
}

/// What this process takes, in the text format of Prometheus. Empty where the kernel does not tell.
pub(crate) fn text() -> String {
    let mut out = String::new();
    let Ok(process) = Process::myself() else { return out };
    let mut say = |name: &str, kind: &str, help: &str, value: f64| {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").expect("a string takes everything");
    };
    if let Ok(stat) = process.stat() {
        let ticks = stat.utime.saturating_add(stat.stime) as f64;
        let cpu_s = ticks / procfs::ticks_per_second() as f64;
        say("process_cpu_seconds_total", "counter", "Processor time of this process, in seconds.", cpu_s);
        let resident = stat.rss_bytes().get() as f64;
        say("process_resident_memory_bytes", "gauge", "Memory that this process has, in bytes.", resident);
        say("process_virtual_memory_bytes", "gauge", "Addresses that this process has, in bytes.", stat.vsize as f64);
        say("process_threads", "gauge", "Threads of this process.", stat.num_threads as f64);
        if let (Ok(up), Ok(now)) = (Uptime::current(), std::time::UNIX_EPOCH.elapsed()) {
            let began_s = stat.starttime as f64 / procfs::ticks_per_second() as f64;
            let start = now.as_secs_f64() - (up.uptime - began_s);
            say(
                "process_start_time_seconds",
                "gauge",
                "When this process began, in seconds since 1970.",
                start.round(),
            );
        }
    }
    if let Ok(open) = process.fd_count() {
        say("process_open_fds", "gauge", "Open files and connections of this process.", open as f64);
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        say("process_max_fds", "gauge", "Open files and connections that this process may have.", most as f64);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_what_it_takes() {
        let text = text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is missing:\n{text}")).parse().expect("a number")
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") > value("process_open_fds"));
        let age =
            std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64() - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "it began {age} s ago");
        assert!(value("process_cpu_seconds_total") >= 0.0 && value("process_threads") >= 1.0);
    }
}
