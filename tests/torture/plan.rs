//! The request of one run, derived from the seed and the run's number alone.

use std::path::Path;
use std::time::Duration;

use proto::v1::{self, FloorPolicy};
use serde_json::json;

use crate::language::Language;
use crate::seed::Seed;

/// Time enough for every attempt of a call to be lost with its worker, each noticed only by its lapsed lease, while the
/// broker stands still most of the time.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// What lasts longer with a history is drawn from a seed of its own, too.
const LASTING: u64 = 1 << 41;
/// How much later some readers come then: their runs have left the log.
const LATER_MS: std::ops::Range<u64> = 60_000..150_000;
/// How long some questions wait then: their runs are carried.
const WAITING_MS: std::ops::Range<u64> = 45_000..90_000;
/// The languages of the calls are drawn from a seed of their own.
const LANGUAGES: u64 = 1 << 40;

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) calls: Vec<PlannedCall>,
    pub(crate) policy: FloorPolicy,
    pub(crate) door: Method,
    /// Requests carry an id, so that one whose answer was lost is sent again and makes one run.
    pub(crate) has_request_id: bool,
    /// The run is stored for as long as the log keeps it; otherwise it is erased some time after its end.
    pub(crate) is_kept: bool,
    /// Parked calls are redriven after the run has ended.
    pub(crate) redrives: bool,
    /// The first call that fails or expires ends the others.
    pub(crate) fail_fast: bool,
    pub(crate) cancel: Option<Cancel>,
    /// The live reader drops its connection by itself after so many further events, again and again.
    pub(crate) breaks_after: Option<usize>,
    /// How long after the end another reader comes.
    pub(crate) late_after: Duration,
    /// For what is drawn while the run goes on: replicas, waits.
    pub(crate) seed: Seed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Create,
    Execute,
}

#[derive(Debug, Clone)]
pub(crate) struct PlannedCall {
    pub(crate) work: Work,
    /// Short ones are there to be missed.
    pub(crate) timeout: Option<Duration>,
    /// Of its tool.
    pub(crate) language: Language,
}

/// The behaviour of a call, which determines its possible ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    Echo,
    Sleep {
        ms: u64,
    },
    Count {
        pieces: u32,
        every_ms: u64,
    },
    /// Sends a number of pieces, and breaks off in its first attempts.
    Speech {
        tool: Speaker,
        pieces: u32,
        every_ms: u64,
        breaks_off_after: u32,
        failures: u32,
    },
    /// Fails so many attempts.
    Flaky {
        attempts: u32,
    },
    Hopeless,
    /// Not safe to repeat.
    Write {
        then_wait_ms: u64,
    },
    /// The client answers, or does not.
    Ask {
        answer_after: Option<Duration>,
    },
    Panic,
    UnknownTool,
    BadArguments,
}

/// The treatment of an interrupted attempt's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Restarts,
    Continues,
    Buffers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cancel {
    /// One call of the run, or all of it.
    pub(crate) call: Option<usize>,
    pub(crate) when: When,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// So long after the run was accepted; at once, calls are still queued.
    After(Duration),
    Started,
    FirstOutput,
}

#[derive(Debug, Clone, Copy)]
enum Size {
    One,
    Few,
    Many,
}

impl Plan {
    pub(crate) fn new(seed: &Seed, number: u64) -> Self {
        let mut seed = seed.of(number);
        let size = seed.weighted(&[(70, Size::One), (24, Size::Few), (6, Size::Many)]);
        let count = match size.unwrap_or(Size::One) {
            Size::One => 1,
            Size::Few => seed.between(2..6),
            Size::Many => seed.between(6..20),
        };
        let calls: Vec<PlannedCall> = (0..count).map(|_| PlannedCall::new(&mut seed)).collect();
        let policies = [(50, FloorPolicy::Arrival), (25, FloorPolicy::Submission), (25, FloorPolicy::Interleaved)];
        let cancel = seed.chance(7).then(|| Cancel::new(&mut seed, calls.len()));
        Self {
            number,
            policy: seed.weighted(&policies).unwrap_or(FloorPolicy::Arrival),
            door: if seed.chance(50) { Method::Create } else { Method::Execute },
            has_request_id: seed.chance(60),
            is_kept: !seed.chance(15),
            redrives: seed.chance(60),
            fail_fast: seed.chance(4),
            cancel,
            breaks_after: seed.chance(15).then(|| seed.index(40) + 1),
            late_after: seed.ms(0..4_000),
            calls,
            seed,
        }
    }

    /// Gives each call one of these languages, if its work can be done in all. The rest of the plan stays as it was.
    pub(crate) fn spread(mut self, languages: &[Language]) -> Self {
        let mut seed = self.seed.of(LANGUAGES);
        for call in self.calls.iter_mut().filter(|call| call.work.is_in_every_language()) {
            call.language = languages.get(seed.index(languages.len())).copied().unwrap_or(Language::Rust);
        }
        self
    }

    /// For a log that runs leave soon: some questions are answered late, and some readers come late. The rest of the
    /// plan stays as it was, except that a call is not redriven whose run may have left the log.
    pub(crate) fn lasting(mut self) -> Self {
        let mut seed = self.seed.of(LASTING);
        for call in self.calls.iter_mut().filter(|call| call.timeout.is_none()) {
            if let Work::Ask { answer_after: Some(wait) } = &mut call.work
                && seed.chance(25)
            {
                *wait = seed.ms(WAITING_MS);
            }
        }
        if self.is_kept && seed.chance(20) {
            self.late_after = seed.ms(LATER_MS);
        }
        self.redrives = false;
        self
    }

    /// A streaming call that is cancelled as soon as it speaks: what a quiet phase measures.
    pub(crate) fn to_cancel(seed: &Seed, number: u64) -> Self {
        let work = Work::Count { pieces: 1_000, every_ms: 20 };
        let calls = vec![PlannedCall { work, timeout: None, language: Language::Rust }];
        let cancel = Some(Cancel { call: None, when: When::FirstOutput });
        let (breaks_after, late_after, policy) = (None, Duration::ZERO, FloorPolicy::Arrival);
        Self { calls, policy, cancel, breaks_after, late_after, ..Self::new(seed, number) }
    }

    /// A call's id within the run.
    pub(crate) fn call_id(index: usize) -> String {
        format!("c{index}")
    }

    pub(crate) fn index_of(call_id: &str) -> Option<usize> {
        call_id.strip_prefix('c')?.parse().ok()
    }

    /// A text that no other call of the whole storm has.
    pub(crate) fn label(&self, index: usize) -> String {
        format!("r{}c{index}", self.number)
    }

    /// The line that a call writes into the world. Without a request id each asking has its own: where the first was
    /// accepted after all and only its answer lost, both write.
    pub(crate) fn line(&self, index: usize, asking: u32) -> String {
        format!("{}-{asking}", self.label(index))
    }

    pub(crate) fn new_calls(&self, asking: u32, effects: &Path) -> Vec<v1::NewCall> {
        let calls = self.calls.iter().enumerate().map(|(index, call)| {
            let label = self.label(index);
            let (tool, arguments) = match &call.work {
                Work::Echo => ("echo", json!({ "text": label })),
                Work::Sleep { ms } => ("sleep", json!({ "ms": ms, "text": label })),
                Work::Count { pieces, every_ms } => {
                    ("count", json!({ "label": label, "pieces": pieces, "every_ms": every_ms }))
                }
                Work::Speech { tool, pieces, every_ms, breaks_off_after, failures } => {
                    let speech = json!({
                        "label": label, "pieces": pieces, "every_ms": every_ms,
                        "breaks_off_after": breaks_off_after, "failures": failures,
                    });
                    (tool.tool(), speech)
                }
                Work::Flaky { attempts } => ("fails", json!({ "attempts": attempts })),
                Work::Hopeless => ("fails", json!({ "attempts": 1_000 })),
                Work::Write { then_wait_ms } => {
                    let line = self.line(index, asking);
                    ("writes", json!({ "path": effects, "line": line, "then_wait_ms": then_wait_ms }))
                }
                Work::Ask { .. } => ("ask_user", json!({ "question": label })),
                Work::Panic => ("panics", json!({})),
                Work::UnknownTool => ("nobody_has_this", json!({})),
                Work::BadArguments => ("echo", json!({ "text": 7 })),
            };
            let timeout = call.timeout.map(proto::convert::duration);
            let tool = format!("{}{tool}", call.language.prefix());
            v1::NewCall { timeout, ..harness::call(&Self::call_id(index), &tool, arguments) }
        });
        calls.collect()
    }
}

impl PlannedCall {
    fn new(seed: &mut Seed) -> Self {
        if seed.chance(6) {
            return Self::that_misses_its_deadline(seed);
        }
        let works = [
            (26, Work::Echo),
            (14, Work::Sleep { ms: seed.mostly_small(100..3_000) }),
            (16, Work::Count { pieces: small(seed, 1..400), every_ms: seed.mostly_small(0..12) }),
            (8, Work::speech(seed)),
            (3, Work::Flaky { attempts: small(seed, 1..3) }),
            (1, Work::Hopeless),
            (20, Work::Write { then_wait_ms: seed.mostly_small(0..2_500) }),
            (4, Work::Ask { answer_after: Some(seed.ms(0..3_000)) }),
            (1, Work::Panic),
            (1, Work::UnknownTool),
            (1, Work::BadArguments),
        ];
        Self { work: seed.weighted(&works).unwrap_or(Work::Echo), timeout: None, language: Language::Rust }
    }

    fn that_misses_its_deadline(seed: &mut Seed) -> Self {
        let timeout = seed.ms(500..4_000);
        let works = [
            (25, Work::Sleep { ms: 60_000 }),
            (30, Work::Count { pieces: 10_000, every_ms: 50 }),
            (20, Work::Ask { answer_after: None }),
            (25, Work::Ask { answer_after: Some(timeout + seed.ms(50..3_000)) }),
        ];
        let work = seed.weighted(&works).unwrap_or(Work::Echo);
        Self { work, timeout: Some(timeout), language: Language::Rust }
    }

    /// For the report.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.language.prefix().replace('_', " "), self.work.name())
    }

    /// Its answer is meant to come in time, or no answer is.
    pub(crate) fn is_short(&self) -> bool {
        self.timeout.is_some()
    }
}

impl Cancel {
    fn new(seed: &mut Seed, calls: usize) -> Self {
        let call = seed.chance(50).then(|| seed.index(calls));
        let whens = [
            (30, When::After(Duration::ZERO)),
            (20, When::After(seed.ms(0..1_500))),
            (25, When::Started),
            (25, When::FirstOutput),
        ];
        let when = seed.weighted(&whens).unwrap_or(When::Started);
        Self { call, when }
    }
}

fn small(seed: &mut Seed, range: std::ops::Range<u64>) -> u32 {
    u32::try_from(seed.mostly_small(range)).unwrap_or(1)
}

impl Speaker {
    fn tool(self) -> &'static str {
        match self {
            Self::Restarts => "speech",
            Self::Continues => "resuming",
            Self::Buffers => "buffering",
        }
    }
}

impl Work {
    fn speech(seed: &mut Seed) -> Self {
        let tools = [(25, Speaker::Restarts), (50, Speaker::Continues), (25, Speaker::Buffers)];
        let pieces = small(seed, 5..120);
        Self::Speech {
            tool: seed.weighted(&tools).unwrap_or(Speaker::Restarts),
            pieces,
            every_ms: seed.mostly_small(0..25),
            breaks_off_after: pieces / 3 + 1,
            failures: small(seed, 0..3),
        }
    }

    /// Client calls have no worker, an unknown tool has none, and a panic is one of Rust.
    fn is_in_every_language(&self) -> bool {
        match self {
            Self::Echo
            | Self::Sleep { .. }
            | Self::Count { .. }
            | Self::Speech { .. }
            | Self::Flaky { .. }
            | Self::Hopeless
            | Self::Write { .. }
            | Self::BadArguments => true,
            Self::Ask { .. } | Self::Panic | Self::UnknownTool => false,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sleep { .. } => "sleep",
            Self::Count { .. } => "count",
            Self::Speech { tool, .. } => tool.tool(),
            Self::Flaky { .. } => "flaky",
            Self::Hopeless => "hopeless",
            Self::Write { .. } => "write",
            Self::Ask { .. } => "ask",
            Self::Panic => "panic",
            Self::UnknownTool => "unknown tool",
            Self::BadArguments => "bad arguments",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_function_of_the_seed_and_the_number() {
        let plan = |number| format!("{:?}", Plan::new(&Seed::new(5), number));
        assert_eq!(plan(3), plan(3));
        assert_ne!(plan(3), plan(4));
    }

    #[test]
    fn the_mix_has_everything() {
        let plans: Vec<Plan> = (0..2_000).map(|number| Plan::new(&Seed::new(1), number)).collect();
        let calls: Vec<&PlannedCall> = plans.iter().flat_map(|plan| &plan.calls).collect();
        let names: std::collections::BTreeSet<&str> = calls.iter().map(|call| call.work.name()).collect();
        assert_eq!(names.len(), 13, "{names:?}");
        assert!(calls.iter().any(|call| call.is_short()));
        assert!(plans.iter().any(|plan| plan.calls.len() > 6) && plans.iter().any(|plan| plan.calls.len() == 1));
        for wanted in [When::Started, When::FirstOutput, When::After(Duration::ZERO)] {
            assert!(plans.iter().any(|plan| plan.cancel.is_some_and(|cancel| cancel.when == wanted)), "{wanted:?}");
        }
        assert!(plans.iter().any(|plan| plan.breaks_after.is_some()));
        for (has_request_id, is_kept) in [(true, true), (true, false), (false, true), (false, false)] {
            let is_wanted = |plan: &&Plan| plan.has_request_id == has_request_id && plan.is_kept == is_kept;
            assert!(plans.iter().any(|plan| is_wanted(&plan)), "{has_request_id} {is_kept}");
        }
        assert!(plans.iter().any(|plan| plan.redrives));
    }

    #[test]
    fn with_a_history_some_questions_and_some_readers_take_long() {
        let plans: Vec<Plan> = (0..2_000).map(|number| Plan::new(&Seed::new(1), number).lasting()).collect();
        let long = Duration::from_millis(WAITING_MS.start);
        let waits = |call: &PlannedCall| matches!(call.work, Work::Ask { answer_after: Some(wait) } if wait >= long);
        assert!(plans.iter().filter(|plan| plan.calls.iter().any(waits)).count() > 10);
        let late = plans.iter().filter(|plan| plan.late_after >= Duration::from_millis(LATER_MS.start));
        assert!(late.clone().count() > 100 && late.clone().all(|plan| plan.is_kept));
    }

    #[test]
    fn calls_are_spread_over_the_languages_and_stay_the_same_otherwise() {
        let languages = [Language::Rust, Language::Python, Language::Node];
        let plans: Vec<Plan> = (0..200).map(|number| Plan::new(&Seed::new(1), number)).collect();
        let spread: Vec<Plan> = plans.iter().map(|plan| plan.clone().spread(&languages)).collect();
        let calls = || spread.iter().flat_map(|plan| &plan.calls);
        for language in languages {
            assert!(calls().filter(|call| call.language == language).count() > 50, "{language:?}");
        }
        assert!(calls().all(|call| call.language == Language::Rust || call.work.is_in_every_language()));
        for (before, mut after) in plans.into_iter().zip(spread) {
            after.calls.iter_mut().for_each(|call| call.language = Language::Rust);
            assert_eq!(format!("{before:?}"), format!("{after:?}"));
        }
    }
}
