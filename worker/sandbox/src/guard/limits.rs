//! Limits of the machine's resources, enforced by the kernel.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::level::Limits;

/// When memory runs out, the kernel ends a program before its worker: 1000 is the first to go, 0 the usual.
const OOM_SCORE: i32 = 500;

/// Limits this process and all that it starts. Stricter limits stay. `counted_alone`: the program's processes will be
/// counted apart from all others.
pub(super) fn enter(limits: &Limits, counted_alone: bool) -> io::Result<()> {
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, limits.file_bytes)?;
    if let Some(now) = processes().filter(|_| !counted_alone) {
        lower(Resource::Nproc, now + limits.processes)?;
    }
    let score = "/proc/self/oom_score_adj";
    let is_lower = |now: String| now.trim().parse::<i32>().is_ok_and(|now| now < OOM_SCORE);
    if std::fs::read_to_string(score).is_ok_and(is_lower) {
        // Not a promise: a system may not let us.
        drop(std::fs::write(score, OOM_SCORE.to_string()));
    }
    Ok(())
}

/// The limits that only matter to the program.
pub(super) fn enter_program(limits: &Limits, counted_alone: bool) -> io::Result<()> {
    if counted_alone {
        lower(Resource::Nproc, limits.processes)?;
    }
    let rest =
        [(Resource::Data, limits.memory), (Resource::Nofile, limits.open_files), (Resource::Cpu, limits.cpu_seconds)];
    rest.into_iter()
        .filter_map(|(resource, most)| Some((resource, most?)))
        .try_for_each(|(resource, most)| lower(resource, most))
}

fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let lowest = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    Ok(setrlimit(resource, Rlimit { current: lowest(now.current), maximum: lowest(now.maximum) })?)
}

/// How many processes and threads the machine has: the second number of `0.20 0.18 0.12 1/345 11206`, behind the slash.
fn processes() -> Option<u64> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}
