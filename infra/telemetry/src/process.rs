//! Metrics of every process: its release and its use of the machine, under the names of Prometheus' own clients.

use std::fmt::Write as _;

use opentelemetry::metrics::{AsyncInstrument, Meter};
#[cfg(target_os = "linux")]
use opentelemetry_semantic_conventions::metric::{
    PROCESS_CPU_TIME, PROCESS_MEMORY_USAGE, PROCESS_MEMORY_VIRTUAL, PROCESS_THREAD_COUNT,
    PROCESS_UNIX_FILE_DESCRIPTOR_COUNT,
};
#[cfg(target_os = "linux")]
use procfs::process::{LimitValue, Process};
#[cfg(target_os = "linux")]
use procfs::{Current as _, Uptime, WithCurrentSystemInfo as _};

use crate::metrics::{Family, Format, Gauge, Metric, publish};

static BUILD_INFO: Family<Gauge> =
    Family::new("toolyard_build_info", "1, with the release that runs, and as what.", &["version", "part"])
        .exported_as("toolyard.build.info", "1");

/// Lets be seen which release runs. `part` is `coordinator` or `worker`.
pub fn begin(part: &str) {
    publish(&[Metric::Gauge(&BUILD_INFO)]);
    BUILD_INFO.with(&[env!("CARGO_PKG_VERSION"), part]).set(1.0);
}

/// Something that this process takes.
struct Taken {
    /// At Prometheus.
    name: &'static str,
    help: &'static str,
    /// Name and unit at OpenTelemetry, which has no name for some.
    otel: Option<(&'static str, &'static str)>,
    value: f64,
}

impl Taken {
    fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }
}

/// The resources of this process, as text. Empty if the kernel does not report them.
pub(crate) fn text(format: Format) -> String {
    let mut out = String::new();
    for taken in taken() {
        let kind = if taken.is_counter() { "counter" } else { "gauge" };
        let Taken { name, help, value, .. } = taken;
        format.head(&mut out, name, help, kind);
        writeln!(out, "{name} {value}").expect("a string takes everything");
    }
    out
}

/// Registers the resources of this process with the OpenTelemetry SDK.
pub(crate) fn export_to(meter: &Meter) {
    for Taken { name, help, otel, .. } in taken() {
        let Some((exported, unit)) = otel else { continue };
        let value = move || taken().into_iter().find(|taken| taken.name == name).map(|taken| taken.value);
        if name.ends_with("_total") {
            let counter = meter.f64_observable_counter(exported).with_unit(unit).with_description(help);
            counter.with_callback(move |observer| observe(observer, value())).build();
        } else {
            let counter = meter.f64_observable_up_down_counter(exported).with_unit(unit).with_description(help);
            counter.with_callback(move |observer| observe(observer, value())).build();
        }
    }
}

fn observe(observer: &dyn AsyncInstrument<f64>, value: Option<f64>) {
    if let Some(value) = value {
        observer.observe(value, &[]);
    }
}

/// Other systems than Linux have no procfs.
#[cfg(not(target_os = "linux"))]
fn taken() -> Vec<Taken> {
    Vec::new()
}

#[cfg(target_os = "linux")]
fn taken() -> Vec<Taken> {
    let mut all = Vec::new();
    let Ok(process) = Process::myself() else { return all };
    let mut take = |name, help, otel, value| all.push(Taken { name, help, otel, value });
    if let Ok(stat) = process.stat() {
        let ticks = stat.utime.saturating_add(stat.stime) as f64;
        let cpu_s = ticks / procfs::ticks_per_second() as f64;
        let (resident, virtual_) = (stat.rss_bytes().get() as f64, stat.vsize as f64);
        take(
            "process_cpu_seconds_total",
            "Processor time of this process, in seconds.",
            Some((PROCESS_CPU_TIME, "s")),
            cpu_s,
        );
        take(
            "process_resident_memory_bytes",
            "Memory that this process has, in bytes.",
            Some((PROCESS_MEMORY_USAGE, "By")),
            resident,
        );
        take(
            "process_virtual_memory_bytes",
            "Addresses that this process has, in bytes.",
            Some((PROCESS_MEMORY_VIRTUAL, "By")),
            virtual_,
        );
        let threads = Some((PROCESS_THREAD_COUNT, "{thread}"));
        take("process_threads", "Threads of this process.", threads, stat.num_threads as f64);
        if let (Ok(up), Ok(now)) = (Uptime::current(), std::time::UNIX_EPOCH.elapsed()) {
            let began_s = stat.starttime as f64 / procfs::ticks_per_second() as f64;
            let start = (now.as_secs_f64() - (up.uptime - began_s)).round();
            take("process_start_time_seconds", "When this process began, in seconds since 1970.", None, start);
        }
    }
    if let Ok(open) = process.fd_count() {
        let otel = Some((PROCESS_UNIX_FILE_DESCRIPTOR_COUNT, "{file_descriptor}"));
        take("process_open_fds", "Open files and connections of this process.", otel, open as f64);
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        take("process_max_fds", "Open files and connections that this process may have.", None, most as f64);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_metrics_is_current() {
        let metrics = [Metric::Gauge(&BUILD_INFO), Metric::Counter(&crate::otlp::DROPPED)];
        crate::metrics::check_reference("process", &metrics);
    }

    #[test]
    fn a_process_tells_what_it_takes() {
        let text = text(Format::Prometheus);
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
