//! Whether a run ended as its plan allows: in time, with the right content, and with the right effects.

use proto::v1::{self, CallErrorKind, CallState};

use super::{Broken, Story, Violation};
use crate::plan::{Plan, PlannedCall, Speaker, Work};

/// The client's actions and the answers to them, besides the stream.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// The run as it stood at the end.
    pub(crate) run: Option<v1::Run>,
    /// Calls that were asked to be cancelled, whether or not the answer came.
    pub(crate) cancels: Vec<usize>,
    /// Answers to client calls that were taken for sure, and those that may have been.
    pub(crate) answered: Vec<usize>,
    pub(crate) answered_perhaps: Vec<usize>,
    /// Which asking was accepted: see [`Plan::line`].
    pub(crate) asking: u32,
    /// The client was told that the opening is not confirmed: the run may have expired as it began.
    pub(crate) may_be_void: bool,
    /// The run is not to be stored, and was erased before its reader came to its end, or to its beginning.
    pub(crate) was_erased: bool,
}

/// How often a line may and must stand in the file of effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) line: String,
    pub(crate) at_least: u32,
    pub(crate) at_most: u32,
    /// How its call ended, or how its request was refused, for the report.
    pub(crate) why: String,
    /// Nothing of it was ever accepted, as far as the client was told.
    pub(crate) is_refused: bool,
}

pub(crate) fn judge(plan: &Plan, story: &Story, evidence: &Evidence) -> (Vec<Effect>, Vec<Violation>) {
    let (mut effects, mut found) = (Vec::new(), Vec::new());
    for index in 0..plan.calls.len() {
        let (effect, wrong) = judge_call(plan, index, story, evidence);
        effects.extend(effect);
        found.extend(wrong);
    }
    (effects, found)
}

/// One call of a run: its effect, if it has one and has ended, and its violations.
pub(crate) fn judge_call(
    plan: &Plan,
    index: usize,
    story: &Story,
    evidence: &Evidence,
) -> (Option<Effect>, Vec<Violation>) {
    let mut found = Vec::new();
    let Some(call) = plan.calls.get(index) else { return (None, found) };
    let call_id = Plan::call_id(index);
    let Some(told) = story.calls.get(&call_id) else {
        if evidence.was_erased {
            return (None, found);
        }
        found.push(Violation { broken: Broken::Lost, what: format!("{call_id} is not in the run") });
        return (None, found);
    };
    let Some((_, outcome)) = &told.ended else { return (None, found) };
    // A call that fails by itself may have ended the others, before its own end was spoken.
    let failed_fast = plan.fail_fast && story.calls.values().any(ended_badly);
    let is_collateral = failed_fast && outcome.state() == CallState::Cancelled;
    let is_void = evidence.may_be_void && told.started.is_empty() && outcome.state() == CallState::Expired;
    if !is_collateral
        && !is_void
        && let Some(what) = wrong(plan, index, call, told, outcome, evidence)
    {
        let what = format!("{call_id} ({}): {what}; it ended {outcome:?}", call.name());
        found.push(Violation { broken: Broken::WrongContent, what });
    }
    if let Some(stored) = stored(evidence, &call_id)
        && stored.outcome.as_ref() != Some(outcome)
    {
        let what = format!("{call_id} ended {outcome:?} in the stream, GetRun says {stored:?}");
        let broken = if stored.outcome.is_none() { Broken::Outdated } else { Broken::Differing };
        found.push(Violation { broken, what });
    }
    let is_write = matches!(call.work, Work::Write { .. });
    (is_write.then(|| effect(plan.line(index, evidence.asking), told.started.is_empty(), outcome)), found)
}

fn ended_badly(told: &super::Told) -> bool {
    let state = told.ended.as_ref().map(|(_, outcome)| outcome.state());
    matches!(state, Some(CallState::Failed | CallState::Expired))
}

fn stored<'a>(evidence: &'a Evidence, call_id: &str) -> Option<&'a v1::Call> {
    evidence.run.as_ref()?.calls.iter().find(|call| call.call_id == call_id)
}

fn effect(line: String, never_started: bool, outcome: &v1::CallOutcome) -> Effect {
    let kind = outcome.error.as_ref().map(v1::CallError::kind);
    let (at_least, at_most) = match outcome.state() {
        CallState::Completed => (1, 1),
        // Its start is stored before it begins.
        _ if never_started => (0, 0),
        _ => (0, 1),
    };
    Effect { line, at_least, at_most, why: format!("its call ended {:?} {kind:?}", outcome.state()), is_refused: false }
}

/// Why the call should not have ended like this.
fn wrong(
    plan: &Plan,
    index: usize,
    call: &PlannedCall,
    told: &super::Told,
    outcome: &v1::CallOutcome,
    evidence: &Evidence,
) -> Option<String> {
    let says = |what: &str| Some(what.to_owned());
    match outcome.state() {
        CallState::Completed => completed(plan, index, call, told, outcome, evidence),
        CallState::Failed => failed(call, told, outcome.error.as_ref()),
        CallState::Cancelled if evidence.cancels.contains(&index) => None,
        CallState::Cancelled => says("nobody cancelled it"),
        CallState::Expired if evidence.answered.contains(&index) => says("its answer was taken, yet it expired"),
        CallState::Expired if call.is_short() => None,
        CallState::Expired if outcome.reason.ends_with("its worker was silent") => silent(call, told),
        CallState::Expired => says("it had time enough, yet it expired"),
        _ => says("this is not an end"),
    }
}

fn completed(
    plan: &Plan,
    index: usize,
    call: &PlannedCall,
    told: &super::Told,
    outcome: &v1::CallOutcome,
    evidence: &Evidence,
) -> Option<String> {
    let label = plan.label(index);
    let (result, said) = match &call.work {
        Work::Echo | Work::Sleep { .. } => (label, String::new()),
        Work::Count { pieces, .. } => (format!("counted to {pieces}"), spoken_pieces(&label, *pieces)),
        Work::Speech { tool, pieces, .. } => {
            let spoken = format!("attempt {} went from ", told.started.last().copied().unwrap_or_default());
            let from = text(outcome).strip_prefix(&spoken).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
            let from = from.filter(|from| *tool == Speaker::Continues || *from == 0).unwrap_or_default();
            (format!("{spoken}{from} to {pieces}"), spoken_pieces(&label, *pieces))
        }
        Work::Flaky { .. } => {
            ("at last".to_owned(), told.started.last().map(|attempt| format!("attempt {attempt}")).unwrap_or_default())
        }
        Work::Write { .. } => ("Done".to_owned(), String::new()),
        Work::Ask { .. } => {
            let may_be = evidence.answered.contains(&index) || evidence.answered_perhaps.contains(&index);
            if !may_be {
                return Some("nobody answered it".to_owned());
            }
            (label, String::new())
        }
        Work::Hopeless | Work::Panic | Work::UnknownTool | Work::BadArguments => {
            return Some("it cannot complete".to_owned());
        }
    };
    if text(outcome) != result {
        return Some(format!("its result should be {result:?}"));
    }
    (told.said != said).then(|| format!("it said {:?} and should have said {said:?}", told.said))
}

fn failed(call: &PlannedCall, told: &super::Told, error: Option<&v1::CallError>) -> Option<String> {
    let Some(error) = error else { return Some("a failure has an error".to_owned()) };
    let own = match &call.work {
        Work::Hopeless => Some(CallErrorKind::ToolFailed),
        Work::Panic => Some(CallErrorKind::ToolPanicked),
        Work::UnknownTool => Some(CallErrorKind::UnknownTool),
        Work::BadArguments => Some(CallErrorKind::ArgumentsInvalid),
        Work::Write { .. } => Some(CallErrorKind::Interrupted),
        Work::Echo
        | Work::Sleep { .. }
        | Work::Count { .. }
        | Work::Speech { .. }
        | Work::Flaky { .. }
        | Work::Ask { .. } => None,
    };
    if own == Some(error.kind()) {
        return (error.kind() == CallErrorKind::ToolFailed && error.message != "not yet")
            .then(|| "these are not the tool's own words".to_owned());
    }
    match (error.kind(), attempts_max(&call.work)) {
        (CallErrorKind::WorkerLost, Some(most)) => {
            let attempts = told.started.len();
            (attempts < most).then(|| format!("given up after {attempts} of {most} attempts"))
        }
        (CallErrorKind::NoWorker, Some(_)) if call.is_short() => None,
        _ => Some("it should not fail like this".to_owned()),
    }
}

/// A worker may be silent as often as it may be lost: then its attempt is a failed one.
fn silent(call: &PlannedCall, told: &super::Told) -> Option<String> {
    let (attempts, most) = (told.started.len(), attempts_max(&call.work)?);
    (attempts < most).then(|| format!("given up after {attempts} of {most} attempts, the last of them silent"))
}

/// Attempts that must be used up before a call may fail for lost workers; none for one that is never repeated.
fn attempts_max(work: &Work) -> Option<usize> {
    match work {
        Work::Echo | Work::Sleep { .. } | Work::Count { .. } | Work::Flaky { .. } | Work::Hopeless | Work::Panic => {
            Some(3)
        }
        Work::Speech { .. } => Some(5),
        Work::Write { .. } | Work::Ask { .. } | Work::UnknownTool | Work::BadArguments => None,
    }
}

fn spoken_pieces(label: &str, pieces: u32) -> String {
    (0..pieces).map(|piece| format!("{label}-{piece} ")).collect()
}

fn text(outcome: &v1::CallOutcome) -> String {
    let texts = outcome.result.iter().map(|content| match &content.body {
        Some(v1::content::Body::Text(text) | v1::content::Body::Json(text)) => text.as_str(),
        Some(v1::content::Body::Data(_) | v1::content::Body::Object(_)) | None => "",
    });
    texts.collect()
}
