//! The resources that a process has used, as Linux reports them.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::execute::Yard;
use crate::measure::rounded;

/// Ticks of the processor times in `/proc`: fixed by Linux for all programs, whatever the kernel's own clock is.
const TICKS_PER_S: f64 = 100.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Processor seconds so far, and bytes of memory now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    pub(crate) memory_bytes: f64,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("{path}: what a process uses is measured on Linux"))
        };
        let stat = read("stat")?;
        // The name may hold spaces; it ends with the last parenthesis. Then user and system time are fields 12 and 13.
        let (_, fields) = stat.rsplit_once(')').context("a line of /proc has a name")?;
        let ticks = |index| fields.split_whitespace().nth(index).and_then(|ticks| ticks.parse::<f64>().ok());
        let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system).context("times of a process")?;
        let status = read("status")?;
        let memory_bytes = bytes(&status, "VmRSS:").unwrap_or_default();
        Ok(Self { cpu_s: ticks / TICKS_PER_S, memory_bytes })
    }

    pub(crate) fn memory_mib(self) -> f64 {
        rounded(self.memory_bytes / MIB)
    }

    fn and(self, other: Self) -> Self {
        Self { cpu_s: self.cpu_s + other.cpu_s, memory_bytes: self.memory_bytes + other.memory_bytes }
    }
}

/// A size that `/proc/<pid>/status` tells.
fn bytes(status: &str, field: &str) -> Option<f64> {
    let kib = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// The most memory that a process has had since [`forget_peak`].
pub(crate) fn peak_bytes(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    bytes(&status, "VmHWM:").context("a process has memory")
}

pub(crate) fn forget_peak(pid: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    std::fs::write(&path, "5").with_context(|| format!("{path}: Linux forgets the peak of a process if asked here"))
}

/// All processes of a yard; several of one kind together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usages([(&'static str, Usage); 4]);

impl Usages {
    pub(crate) fn of(yard: &Yard) -> anyhow::Result<Self> {
        let sum = |processes: &[crate::roles::Process]| {
            processes.iter().try_fold(Usage::default(), |sum, process| anyhow::Ok(sum.and(Usage::of(process.pid)?)))
        };
        Ok(Self([
            ("broker", Usage::of(yard.broker.pid().context("the broker runs")?)?),
            ("coordinator", sum(&yard.coordinators)?),
            ("worker", sum(&yard.workers)?),
            ("client", Usage::of(std::process::id())?),
        ]))
    }

    /// Microseconds of processor time that each took a call since an earlier look.
    pub(crate) fn cpu_us_per_call(self, before: Self, calls: u32) -> Value {
        self.since(before, |cpu_s| rounded(cpu_s * 1e6 / f64::from(calls)))
    }

    /// Percent of one processor that each took since an earlier look.
    pub(crate) fn cpu_percent(self, before: Self, time: std::time::Duration) -> Value {
        self.since(before, |cpu_s| rounded(cpu_s * 100.0 / time.as_secs_f64()))
    }

    fn since(self, before: Self, measure: impl Fn(f64) -> f64) -> Value {
        let mut all = json!({});
        for ((name, now), (_, before)) in self.0.iter().zip(before.0) {
            all[*name] = measure(now.cpu_s - before.cpu_s).into();
        }
        all
    }

    pub(crate) fn memory_mib(self) -> Value {
        let mut all = json!({});
        for (name, usage) in self.0 {
            all[name] = usage.memory_mib().into();
        }
        all
    }
}
