//! Schedules as people read them.

use proto::v1;
use proto::v1::schedule_spec::Timing;

use crate::exit::Failure;
use crate::list::age;
use crate::terminal::{Paint, Terminal};
use crate::words::{brief, duration, harmless, word};

fn status(schedule: &v1::Schedule) -> String {
    word(schedule.status().as_str_name(), "SCHEDULE_STATUS_")
}

/// When it fires, in words.
fn times(schedule: &v1::Schedule) -> String {
    match schedule.spec.as_ref().and_then(|spec| spec.timing.as_ref()) {
        Some(Timing::Cron(v1::CronTiming { expression, time_zone })) => {
            let zone = if time_zone.is_empty() { "UTC" } else { time_zone };
            format!("{} {}", harmless(expression), harmless(zone))
        }
        Some(Timing::OnceAt(at)) => format!("at {at}"),
        Some(Timing::Every(every)) => {
            format!("every {}", duration(proto::convert::time_in(*every).unwrap_or_default()))
        }
        None => String::new(),
    }
}

fn tools(schedule: &v1::Schedule) -> String {
    let run = schedule.spec.as_ref().and_then(|spec| spec.run.as_ref());
    let mut tools: Vec<String> = run.iter().flat_map(|run| &run.calls).map(|call| harmless(&call.tool)).collect();
    tools.dedup();
    brief(&tools.join(", "))
}

fn name(schedule: &v1::Schedule) -> String {
    schedule.spec.as_ref().map(|spec| brief(&harmless(&spec.name))).unwrap_or_default()
}

/// The columns of a list.
pub(super) fn listed(schedule: &v1::Schedule) -> [String; 6] {
    let next = schedule.next_fire_times.first().map(|at| format!("next {at}")).unwrap_or_default();
    [schedule.schedule_id.clone(), status(schedule), times(schedule), next, tools(schedule), name(schedule)]
}

/// Shows a schedule as it stands.
pub(super) fn show(schedule: &v1::Schedule, terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_json() {
        return terminal.message(schedule);
    }
    if terminal.is_names() {
        return terminal.line(&schedule.schedule_id);
    }
    terminal.write(described(schedule, terminal.paint()).as_bytes())
}

fn described(schedule: &v1::Schedule, paint: Paint) -> String {
    let parts = [status(schedule), times(schedule), tools(schedule), name(schedule)];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let mut text = format!("{} · {}\n", paint.bold(&schedule.schedule_id), parts.join(" · "));
    if let Some(v1::SchedulePause { by, reason, time }) = &schedule.pause {
        let by = if by.is_empty() { String::new() } else { format!(" by {}", harmless(by)) };
        let reason = if reason.is_empty() { String::new() } else { format!(": {}", brief(&harmless(reason))) };
        text.push_str(&format!("paused {}{by}{reason}\n", age(*time)));
    }
    let counts = schedule.counts.unwrap_or_default();
    let counts =
        [(counts.runs, "fired"), (counts.refused, "refused"), (counts.skipped, "skipped"), (counts.missed, "missed")];
    let counts: Vec<String> = counts.iter().map(|(count, what)| format!("{count} {what}")).collect();
    text.push_str(&format!("{}\n", paint.dim(&counts.join(", "))));
    for at in &schedule.next_fire_times {
        text.push_str(&format!("next {at}\n"));
    }
    for firing in schedule.firings.iter().rev() {
        text.push_str(&format!("{}\n", line(firing, paint)));
    }
    text
}

fn line(firing: &v1::ScheduleFiring, paint: Paint) -> String {
    let at = firing.fire_time.map(|at| at.to_string()).unwrap_or_default();
    let by = if firing.by_request { " by request" } else { "" };
    match firing.outcome() {
        v1::FiringOutcome::Run => format!("{} {at}{by} · {}", paint.good("✓"), harmless(&firing.run_id)),
        v1::FiringOutcome::Refused => {
            let why = brief(&harmless(&firing.message));
            format!("{} {at} · refused: {} · {why}", paint.bad("✗"), harmless(&firing.reason))
        }
        v1::FiringOutcome::Skipped => format!("{} {at} · skipped: the previous run had not ended", paint.dim("·")),
        v1::FiringOutcome::Missed => format!("{} {at} · missed", paint.dim("·")),
        v1::FiringOutcome::Unspecified => format!("{} {at}", paint.dim("·")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_shown_with_its_times_and_what_became_of_them() {
        let every = Some(Timing::Every(prost_types::Duration { seconds: 600, nanos: 0 }));
        let run = v1::NewCall { tool: "bash".to_owned(), ..v1::NewCall::default() };
        let run = Some(v1::CreateRunRequest { calls: vec![run], ..v1::CreateRunRequest::default() });
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let mut refused =
            v1::ScheduleFiring { fire_time: at(600), reason: "LOG_FULL".to_owned(), ..Default::default() };
        refused.set_outcome(v1::FiringOutcome::Refused);
        let mut schedule = v1::Schedule {
            schedule_id: "sch_1".to_owned(),
            spec: Some(v1::ScheduleSpec { timing: every, run, ..v1::ScheduleSpec::default() }),
            next_fire_times: at(1200).into_iter().collect(),
            firings: vec![refused],
            ..v1::Schedule::default()
        };
        schedule.set_status(v1::ScheduleStatus::Active);
        let text = described(&schedule, Paint(false));
        for part in ["sch_1 · active · every 10 min · bash", "next 1970-01-01T00:20:00Z", "refused: LOG_FULL"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
