//! The promises, checked in every state.

use std::collections::{BTreeMap, BTreeSet};

use run::{AskedBy, AttemptId, Chunk, Content, Entry, Event, Fact, Outcome, OutputKind, Run};

use crate::world::{CALL, CHUNKS, World};

#[derive(Debug, Clone, Default)]
pub(crate) struct Promises {
    /// The attempts whose tool was called.
    called: BTreeSet<AttemptId>,
    /// The attempts whose start the fold accepted.
    accepted: BTreeSet<AttemptId>,
    /// The questions whose end their tools know.
    pub(crate) told: BTreeSet<AskedBy>,
    /// How the call ended; it must not change any more.
    outcome: Option<std::mem::Discriminant<Outcome>>,
    /// The first promise that was broken.
    pub(crate) broken: Option<String>,
}

impl Promises {
    pub(crate) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    /// An entry is in the log.
    pub(crate) fn stored(&mut self, entry: &Entry, facts: &[Fact], run: &Run) {
        self.accepted.extend(facts.iter().filter_map(|fact| match fact {
            Fact::AttemptStarted { attempt, .. } => Some(*attempt),
            _ => None,
        }));
        self.check_questions(facts, run);
        let had_ended = self.outcome.is_some();
        let is_output = |fact: &Fact| matches!(fact, Fact::Output { .. } | Fact::AttemptStarted { .. });
        self.check(!had_ended || !facts.iter().any(is_output), || {
            format!("entry {} of an attempt is heard after the call has ended", entry.sequence)
        });
        let Some(outcome) = run.call(CALL).and_then(run::Call::outcome) else { return };
        let kind = std::mem::discriminant(outcome);
        let before = *self.outcome.get_or_insert(kind);
        self.check(before == kind, || format!("the call ended as {before:?}, and then as {outcome:?}"));
        let attempt = entry.events.iter().find_map(|event| match event {
            Event::AttemptEnded { attempt, .. } => Some(*attempt),
            _ => None,
        });
        if !had_ended && let (Some(attempt), Outcome::Completed(_)) = (attempt, outcome) {
            let was_called = self.called.contains(&attempt);
            self.check(was_called, || format!("{attempt:?} completed the call, and its tool was not called"));
        }
    }

    /// A tool is called as this attempt.
    pub(crate) fn tool_called(&mut self, attempt: AttemptId, is_repeatable: bool, is_early: bool) {
        self.check(!is_early, || "a tool was called before the time before which its call may not begin".to_owned());
        if !is_repeatable {
            let others = self.called.len();
            self.check(others == 0, || "a tool that is not safe to repeat was called twice".to_owned());
            let is_accepted = self.accepted.contains(&attempt);
            self.check(is_accepted, || {
                "a tool that is not safe to repeat was called although its start does not count".to_owned()
            });
        }
        self.called.insert(attempt);
    }
}

impl World {
    /// The worker that emitted the chunk with which a span begins.
    fn author(&self, span: &run::Span) -> Option<String> {
        let (_, entry) = self.log.get(usize::try_from(span.position.sequence).ok()?.checked_sub(1)?)?;
        let Event::Output { chunks, .. } = entry.events.get(span.position.event as usize)? else { return None };
        let Chunk::Content { content: Content::Text(text), .. } = chunks.get(span.skip as usize)? else { return None };
        Some(text.split(" of ").nth(1)?.to_owned())
    }

    /// Checks the output that a reader of the whole log receives: it has each attempt's output in order from its first
    /// chunk on, and a completed call has all chunks of one attempt.
    pub(crate) fn check_reader(&self) -> Result<(), String> {
        let (run, output) = self.reader();
        let mut next: BTreeMap<AttemptId, u32> = BTreeMap::new();
        let (mut speaker, mut authors) = (None, BTreeMap::new());
        for (number, event) in output.iter().enumerate() {
            if let OutputKind::AttemptStarted { attempt, continues: false } = event.what {
                speaker = Some(attempt);
                next.insert(attempt, 0);
            }
            if let OutputKind::Output { attempt, span } = event.what {
                if speaker != Some(attempt) {
                    return Err(format!("output {number} is of {attempt:?}, which is not the attempt that counts"));
                }
                let expected = next.entry(attempt).or_default();
                if span.first.0 != *expected {
                    return Err(format!("output {number} begins at chunk {}, after {expected}", span.first.0));
                }
                *expected += span.count;
                let author = self.author(&span);
                if *authors.entry(attempt).or_insert_with(|| author.clone()) != author {
                    return Err(format!("output {number} of {attempt:?} is of {author:?}, unlike the output before"));
                }
            }
        }
        if let Some(Outcome::Completed(_)) = run.call(CALL).and_then(run::Call::outcome) {
            let shown = speaker.and_then(|speaker| next.get(&speaker)).copied().unwrap_or(0);
            if shown != CHUNKS {
                return Err(format!("the call completed, and a reader has {shown} of its {CHUNKS} chunks"));
            }
        }
        Ok(())
    }
}
