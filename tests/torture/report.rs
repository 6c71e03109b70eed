//! The figures of a storm and what it broke, gathered by one owner and printed for people or programs.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use proto::v1::RunEvent;
use serde_json::json;

use crate::check::{self, Answer, Broken, Effect, Violation};
use crate::late::{Allowed, Late, takeovers};
use crate::load::Outcome;
use crate::schedule::{Blow, Part};
use crate::world::{Left, Struck, Word};

/// Violations of a kind that are printed in full; of the rest only the number.
const TOLD_MAX: u64 = 100;
/// Events told of one violation, from the beginning and from the end.
const EVENTS_TOLD: usize = 40;
/// Faults told of around one violation.
const FAULTS_TOLD: usize = 12;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) calls: u64,
    /// Requests that were not confirmed: whether they had an id, and what their clients were told.
    unconfirmed: BTreeMap<(bool, String), u64>,
    /// Runs that came of others: redriven calls, and what errors named.
    further: BTreeMap<(&'static str, String), u64>,
    /// Runs that are to be erased, and when they ended.
    to_erase: Vec<(String, u64)>,
    pub(crate) erased: u64,
    coordinators: usize,
    breaks: u64,
    not_found: u64,
    stale: u64,
    attempts: usize,
    ends: BTreeMap<(String, String), u64>,
    pub(crate) faults: Vec<Struck>,
    late: Vec<Late>,
    /// Of each run: its shard, through which replica it was opened, and when that was asked for and confirmed.
    openings: Vec<(String, usize, u64, u64)>,
    effects: Vec<(String, Effect)>,
    /// Of runs with calls that must not have had an effect: all that helps to understand it if they had.
    doubtful: HashMap<String, Told>,
    cancelled_ms: Vec<u64>,
    /// How long readers took that came after a run's end, in the storm.
    read_again_ms: Vec<u64>,
    broken: BTreeMap<Broken, u64>,
    told: Vec<Told>,
    /// The most that one process of a kind held, in KiB.
    pub(crate) memory_kib: BTreeMap<&'static str, u64>,
    pub(crate) calm_calls_per_s: f64,
    pub(crate) storm: Duration,
    pub(crate) left: Left,
}

/// A violation with all that helps to understand it.
#[derive(Debug, Default)]
struct Told {
    run_id: String,
    number: u64,
    from: u64,
    until: u64,
    plan: String,
    violations: Vec<Violation>,
    events: Vec<RunEvent>,
}

impl Tally {
    /// The tally of a storm over so many coordinators.
    pub(crate) fn of(coordinators: usize) -> Self {
        Self { coordinators, ..Self::default() }
    }

    pub(crate) fn violations(&self) -> u64 {
        self.broken.values().sum()
    }

    pub(crate) fn kills(&self) -> usize {
        self.faults.iter().filter(|fault| fault.blow == Blow::Kill).count()
    }

    pub(crate) fn hear(&mut self, word: Word) {
        match word {
            Word::Struck(struck) => self.faults.push(struck),
            Word::Violation(violation) => {
                let now = ::nats::now().0;
                self.tell(Told { from: now, until: now, violations: vec![violation], ..Told::default() });
            }
        }
    }

    pub(crate) fn take(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.calls += u64::try_from(outcome.ends.len()).unwrap_or_default();
        for asking in outcome.askings {
            let told = match asking.answer {
                Answer::Refused(reason) => format!("refused, {reason}"),
                Answer::Named(_) => "run named".to_owned(),
                Answer::Lost => "no answer".to_owned(),
            };
            *self.unconfirmed.entry((outcome.has_request_id, told)).or_default() += 1;
        }
        for further in outcome.further {
            *self.further.entry(further).or_default() += 1;
        }
        self.breaks += u64::from(outcome.breaks);
        self.not_found += u64::from(outcome.not_found);
        self.stale += u64::from(outcome.stale);
        self.attempts += outcome.attempts;
        self.read_again_ms.extend(outcome.read_again_ms);
        for end in outcome.ends {
            *self.ends.entry(end).or_default() += 1;
        }
        let run_id = outcome.run_id;
        self.to_erase.extend(outcome.to_erase.map(|ended| (run_id.clone(), ended)));
        if let (Some((replica, began, done)), Some(shard)) = (outcome.opened, run_id.get(4..6)) {
            self.openings.push((shard.to_owned(), replica, began, done));
        }
        let late = outcome.lateness.into_iter().map(|late| Late { run_id: run_id.clone(), late });
        self.late.extend(late);
        self.effects.extend(outcome.effects.into_iter().map(|effect| (run_id.clone(), effect)));
        let told = Told {
            run_id,
            number: outcome.number,
            from: outcome.asked_at,
            until: outcome.seen_at,
            plan: outcome.plan,
            violations: outcome.violations,
            events: outcome.events,
        };
        if !told.violations.is_empty() {
            self.tell(told);
        } else if !told.events.is_empty() {
            self.doubtful.insert(told.run_id.clone(), told);
        }
    }

    pub(crate) fn took_to_cancel(&mut self, ms: Option<u64>) {
        self.cancelled_ms.extend(ms);
    }

    fn tell(&mut self, told: Told) {
        let mut is_told = false;
        for violation in &told.violations {
            let count = self.broken.entry(violation.broken).or_default();
            *count += 1;
            // Of each kind: one kind may come by the hundred, and hide another.
            if *count <= TOLD_MAX {
                eprintln!("BROKEN {} {violation:.400}", told.run_id);
                is_told = true;
            }
        }
        if is_told {
            self.told.push(told);
        }
    }

    /// What can only be judged when everything has settled: the world's own account, and who was late beyond what the
    /// faults around it excuse.
    pub(crate) fn settle(&mut self, effects: &Path) {
        let world = std::fs::read_to_string(effects).unwrap_or_default();
        for (run_id, violation) in check::weigh(std::mem::take(&mut self.effects), &world) {
            self.tell_of_run(&run_id, violation);
        }
        for late in std::mem::take(&mut self.late) {
            let allowed = Allowed::of(&late.late, &self.faults, self.coordinators);
            if late.late.ended > late.late.deadline + allowed.ms() {
                let what = format!(
                    "{} ended {} ms after its deadline, {} ms are allowed ({allowed:?})",
                    late.late.call_id,
                    late.late.ended - late.late.deadline,
                    allowed.ms(),
                );
                let (from, until) = (late.late.deadline, late.late.ended);
                let violations = vec![Violation { broken: Broken::Late, what }];
                self.tell(Told { run_id: late.run_id.clone(), from, until, violations, ..Told::default() });
            }
            self.late.push(late);
        }
    }

    /// Runs that should be erased by now: those that ended before this moment.
    pub(crate) fn take_gone(&mut self, before: u64) -> Vec<String> {
        let due = self.to_erase.iter().filter(|(_, ended)| *ended <= before);
        due.map(|(run_id, _)| run_id.clone()).collect()
    }

    pub(crate) fn tell_of_run(&mut self, run_id: &str, violation: Violation) {
        let told = self.doubtful.remove(run_id).unwrap_or_else(|| {
            let now = ::nats::now().0;
            Told { run_id: run_id.to_owned(), from: now, until: now, ..Told::default() }
        });
        self.tell(Told { violations: vec![violation], ..told });
    }

    /// The story of everything that broke, for a person.
    pub(crate) fn broken_in_full(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for told in &self.told {
            self.write_told(&mut text, told)?;
        }
        let told = self.told.iter().map(|told| told.violations.len()).sum::<usize>();
        let rest = self.violations().saturating_sub(u64::try_from(told).unwrap_or_default());
        if rest > 0 {
            writeln!(text, "and {rest} more")?;
        }
        Ok(text)
    }

    fn write_told(&self, text: &mut String, told: &Told) -> std::fmt::Result {
        writeln!(text, "---- {} (run number {}), asked for at {}", told.run_id, told.number, told.from)?;
        for violation in &told.violations {
            writeln!(text, "{violation}")?;
        }
        writeln!(text, "plan: {}", told.plan)?;
        let around = |fault: &&Struck| fault.from <= told.until + 1_000 && fault.until + 15_000 >= told.from;
        for Struck { part, blow, index, from, until } in self.faults.iter().filter(around).take(FAULTS_TOLD) {
            let after = |at: &u64| i128::from(*at) - i128::from(told.from);
            writeln!(text, "{blow:?} {part:?} {index} at {:+} ms, back at {:+} ms", after(from), after(until))?;
        }
        let count = told.events.len();
        for (event, at) in told.events.iter().zip(0..) {
            if at == EVENTS_TOLD && count > 2 * EVENTS_TOLD {
                writeln!(text, "  ... {} events ...", count - 2 * EVENTS_TOLD)?;
            }
            if at < EVENTS_TOLD || at + EVENTS_TOLD >= count {
                let ms = i128::from(crate::check::ms(event.time.as_ref())) - i128::from(told.from);
                writeln!(text, "  {} {ms:+} ms {:.300}", event.sequence, format!("{:?}", event.event))?;
            }
        }
        Ok(())
    }

    fn faults_by_kind(&self) -> BTreeMap<(Part, Blow), u64> {
        let mut kinds = BTreeMap::new();
        for fault in &self.faults {
            *kinds.entry((fault.part, fault.blow)).or_default() += 1;
        }
        kinds
    }

    fn calls_per_s(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let calls = self.calls as f64;
        calls / self.storm.as_secs_f64().max(0.001)
    }

    /// How much too late, of those around which a broker was struck, or of the others.
    fn late_ms(&self, by_broker: bool) -> Vec<u64> {
        let of_these = |late: &&Late| Allowed::of(&late.late, &self.faults, self.coordinators).by_broker() == by_broker;
        self.late.iter().filter(of_these).map(|late| late.late.ended.saturating_sub(late.late.deadline)).collect()
    }

    fn takeover_ms(&self, by_broker: bool) -> Vec<u64> {
        let takeovers = takeovers(&self.faults, &self.openings).into_iter();
        takeovers.filter(|(_, with_broker)| *with_broker == by_broker).map(|(ms, _)| ms).collect()
    }

    pub(crate) fn table(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        self.write_table(&mut text)?;
        Ok(text)
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "{} calls in {} runs, {:.0} calls/s in the storm", self.calls, self.runs, self.calls_per_s())?;
        for ((work, end), count) in &self.ends {
            writeln!(text, "  {work:<22} {end:<24} {count:>8}")?;
        }
        writeln!(text, "attempts {}", self.attempts)?;
        writeln!(text, "requests that were not confirmed")?;
        for ((has_request_id, told), count) in &self.unconfirmed {
            let id = if *has_request_id { "with an id" } else { "without an id" };
            writeln!(text, "  {id:<16} {told:<24} {count:>8}")?;
        }
        writeln!(text, "further runs")?;
        for ((why, end), count) in &self.further {
            writeln!(text, "  {why:<16} {end:<24} {count:>8}")?;
        }
        writeln!(text, "runs looked for after they had to be erased {}", self.erased)?;
        writeln!(
            text,
            "streams broken and resumed {}, confirmed runs not found at first {}, ended ones shown as open {}",
            self.breaks, self.not_found, self.stale
        )?;
        writeln!(text, "faults ({} kills)", self.kills())?;
        for ((part, blow), count) in self.faults_by_kind() {
            writeln!(text, "  {:<16} {:<24} {count:>8}", format!("{part:?}"), format!("{blow:?}"))?;
        }
        writeln!(text, "milliseconds                    count      p50      p99      max")?;
        let mut row = |name: &str, samples: Vec<u64>| {
            let [p50, p99, max] = quantiles(samples.clone());
            writeln!(text, "  {name:<26} {:>8} {p50:>8} {p99:>8} {max:>8}", samples.len())
        };
        row("cancel to end, in calm", self.cancelled_ms.clone())?;
        row("read by a late reader", self.read_again_ms.clone())?;
        row("shard takeover after kill", self.takeover_ms(false))?;
        row("  with a broker struck too", self.takeover_ms(true))?;
        row("ended after its deadline", self.late_ms(false))?;
        row("  with a broker struck", self.late_ms(true))?;
        writeln!(text, "calls/s one by one in calm {:.0}", self.calm_calls_per_s)?;
        for (kind, kib) in &self.memory_kib {
            writeln!(text, "memory of a {kind:<20} {:>8} MiB at most", kib / 1024)?;
        }
        let Left { entries, parts } = &self.left;
        if !entries.is_empty() {
            writeln!(
                text,
                "entries that left the log, by partition {entries:?}; parts of runs carried beside it {parts}"
            )?;
        }
        writeln!(text, "promises broken {}", self.violations())?;
        for (broken, count) in &self.broken {
            writeln!(text, "  {:<16} {count:>33}", format!("{broken:?}"))?;
        }
        Ok(())
    }

    pub(crate) fn json(&self, seed: u64) -> serde_json::Value {
        let ends = self.ends.iter().map(|((work, end), count)| (format!("{work}/{end}"), json!(count)));
        let further = self.further.iter().map(|((why, end), count)| (format!("{why}/{end}"), json!(count)));
        let unconfirmed = self.unconfirmed.iter().map(|((has_request_id, told), count)| {
            let id = if *has_request_id { "with an id" } else { "without an id" };
            (format!("{id}/{told}"), json!(count))
        });
        let faults = self.faults_by_kind();
        let faults =
            faults.iter().map(|((part, blow), count)| (format!("{part:?}/{blow:?}").to_lowercase(), json!(count)));
        let broken = self.broken.iter().map(|(broken, count)| (format!("{broken:?}").to_lowercase(), json!(count)));
        let samples = |samples: Vec<u64>| {
            let [p50, p99, max] = quantiles(samples.clone());
            json!({ "count": samples.len(), "p50": p50, "p99": p99, "max": max })
        };
        let told = self.told.iter().map(|told| {
            let whats: Vec<String> = told.violations.iter().map(|violation| format!("{violation:.1000}")).collect();
            json!({ "run_id": told.run_id, "number": told.number, "broken": whats })
        });
        json!({
            "seed": seed, "calls": self.calls, "runs": self.runs, "storm_s": self.storm.as_secs_f64(),
            "calls_per_s": self.calls_per_s(), "calm_calls_per_s": self.calm_calls_per_s,
            "attempts": self.attempts, "unconfirmed": unconfirmed.collect::<serde_json::Map<_, _>>(), "erased": self.erased,
            "further": further.collect::<serde_json::Map<_, _>>(), "streams_resumed": self.breaks,
            "not_found_at_first": self.not_found, "shown_as_open": self.stale, "kills": self.kills(),
            "ends": ends.collect::<serde_json::Map<_, _>>(),
            "faults": faults.collect::<serde_json::Map<_, _>>(),
            "cancel_to_end_calm_ms": samples(self.cancelled_ms.clone()),
            "read_by_late_reader_ms": samples(self.read_again_ms.clone()),
            "shard_takeover_ms": samples(self.takeover_ms(false)),
            "shard_takeover_with_broker_ms": samples(self.takeover_ms(true)),
            "after_deadline_ms": samples(self.late_ms(false)),
            "after_deadline_with_broker_ms": samples(self.late_ms(true)),
            "memory_kib": self.memory_kib, "left_the_log": self.left.entries, "carried_parts": self.left.parts,
            "violations": self.violations(),
            "broken": broken.collect::<serde_json::Map<_, _>>(),
            "told": told.collect::<Vec<_>>(),
        })
    }
}

fn quantiles(mut samples: Vec<u64>) -> [u64; 3] {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    [50, 99, 100].map(|percent| samples.get(last * percent / 100).copied().unwrap_or_default())
}
