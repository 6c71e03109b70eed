//! The effects that unconfirmed requests may have, and their comparison with the actual effects.
//!
//! A request that is refused stores nothing, so nothing of it is ever executed. A request whose error names a run may
//! have been stored; that run says what it did. A request that got no answer may have been stored once.

use std::collections::{BTreeMap, HashMap};

use tonic::Status;
use tonic_types::StatusExt as _;

use super::{Broken, Effect, Story, Violation};
use crate::check::{Evidence, judge_call};
use crate::plan::{Plan, Work};

/// The client's knowledge of an unconfirmed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An error of the coordinator that names no run, by its reason.
    Refused(String),
    /// An error of the coordinator that names the run that the request may have opened.
    Named(String),
    /// No answer, or none of the coordinator's own.
    Lost,
}

/// A request that was not confirmed: its number among those of its plan, and what the client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) number: u32,
    pub(crate) answer: Answer,
}

impl Answer {
    pub(crate) fn of(status: &Status) -> Self {
        match status.get_details_error_info() {
            None => Self::Lost,
            Some(info) => match info.metadata.get("run_id") {
                Some(run_id) => Self::Named(run_id.clone()),
                None => Self::Refused(info.reason),
            },
        }
    }

    /// How often calls of the request may act, when nothing more is known of it.
    fn at_most(&self) -> u32 {
        match self {
            Self::Refused(_) => 0,
            Self::Named(_) | Self::Lost => 1,
        }
    }

    fn told(&self) -> String {
        match self {
            Self::Refused(reason) => format!("its request was refused with {reason}"),
            Self::Named(run_id) => format!("its request got an error that names {run_id}"),
            Self::Lost => "its request got no answer".to_owned(),
        }
    }
}

/// The possible effects of the calls of unconfirmed requests. `confirmed`: a later request of the plan was. Requests
/// under one id
/// are one request, so what they do is judged by the run that was confirmed; if none was, all of them together may act
/// once, or not at all if each was refused. Requests whose error names a run are left out: see [`found_effects`].
pub(crate) fn effects_of(plan: &Plan, askings: &[Asking], confirmed: bool) -> Vec<Effect> {
    let counted: Vec<&Asking> = if !plan.has_request_id {
        askings.iter().filter(|asking| !matches!(asking.answer, Answer::Named(_))).collect()
    } else if confirmed || askings.iter().any(|asking| matches!(asking.answer, Answer::Named(_))) {
        Vec::new()
    } else {
        askings.iter().max_by_key(|asking| asking.answer.at_most()).into_iter().collect()
    };
    let effects = counted.into_iter().flat_map(|asking| {
        let number = if plan.has_request_id { 0 } else { asking.number };
        writes(plan).map(move |index| unconfirmed(plan, index, number, &asking.answer, asking.answer.at_most()))
    });
    effects.collect()
}

/// The possible effects of one call without further knowledge.
pub(crate) fn effect_of_call(plan: &Plan, index: usize, asking: &Asking) -> Option<Effect> {
    let is_write = plan.calls.get(index).is_some_and(|call| matches!(call.work, Work::Write { .. }));
    let Asking { number, answer } = asking;
    is_write.then(|| unconfirmed(plan, index, *number, answer, answer.at_most()))
}

/// What a run did that an error named, found or not. One that is never found did nothing, unless it was erased.
pub(crate) fn found_effects(
    plan: &Plan,
    asking: &Asking,
    found: Option<(&Story, &Evidence)>,
) -> (Vec<Effect>, Vec<Violation>) {
    let (mut effects, mut wrong) = (Vec::new(), Vec::new());
    match found {
        Some((story, evidence)) => {
            for index in 0..plan.calls.len() {
                let (effect, found) = judge_call(plan, index, story, evidence);
                effects.extend(effect);
                wrong.extend(found);
            }
        }
        None => {
            let at_most = u32::from(!plan.is_kept);
            effects.extend(writes(plan).map(|index| unconfirmed(plan, index, asking.number, &asking.answer, at_most)));
        }
    }
    (effects, wrong)
}

fn writes(plan: &Plan) -> impl Iterator<Item = usize> {
    let calls = plan.calls.iter().enumerate();
    calls.filter(|(_, call)| matches!(call.work, Work::Write { .. })).map(|(index, _)| index)
}

fn unconfirmed(plan: &Plan, index: usize, number: u32, answer: &Answer, at_most: u32) -> Effect {
    Effect { line: plan.line(index, number), at_least: 0, at_most, why: answer.told(), is_refused: at_most == 0 }
}

/// Compares what may and must have been done with the lines that stand in the world. Lines of a redriven call count for
/// both of its runs.
pub(crate) fn weigh(effects: Vec<(String, Effect)>, world: &str) -> Vec<(String, Violation)> {
    let mut lines: HashMap<&str, u32> = HashMap::new();
    for line in world.lines() {
        *lines.entry(line).or_default() += 1;
    }
    let mut expected: BTreeMap<String, (String, Effect)> = BTreeMap::new();
    for (run_id, effect) in effects {
        let Some((_, sum)) = expected.get_mut(&effect.line) else {
            expected.insert(effect.line.clone(), (run_id, effect));
            continue;
        };
        sum.at_least += effect.at_least;
        sum.at_most = sum.at_most.saturating_add(effect.at_most);
        sum.why = format!("{}; {}", sum.why, effect.why);
        sum.is_refused &= effect.is_refused;
    }
    let mut found = Vec::new();
    for (line, (run_id, effect)) in expected {
        let count = lines.remove(line.as_str()).unwrap_or_default();
        let Effect { at_least, at_most, why, is_refused, .. } = effect;
        if !(at_least..=at_most).contains(&count) {
            let broken = if is_refused { Broken::RefusedEffect } else { Broken::RepeatedEffect };
            let what = format!("{line} stands {count} times in the world, {at_least} to {at_most} are right: {why}");
            found.push((run_id, Violation { broken, what }));
        }
    }
    for (line, count) in lines {
        let what = format!("{line} stands {count} times in the world, and no request asked for it");
        found.push((String::new(), Violation { broken: Broken::RefusedEffect, what }));
    }
    found
}
