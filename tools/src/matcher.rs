//! The regular expression of a search. A line that would take it long is searched in small steps, so the search ends
//! when its call does, also within a line.

use std::cell::RefCell;

use grep_matcher::{LineMatchKind, LineTerminator, Match, Matcher, NoCaptures};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};

use super::lines::Lines;
use toolyard_tool::ToolError;

/// Bytes of a compiled regex, and of the cache that runs it: models write patterns, and repetition in them multiplies.
const REGEX_BYTES_MAX: usize = 10 * 1024 * 1024;
/// States times bytes up to which a text is searched at once: some 100 ms at the worst. Buffers of text of ordinary
/// lines and ordinary patterns stay far below.
const AT_ONCE_MAX: usize = 30_000_000;
/// Bytes after which a search in steps looks whether its call is over: each may take some 50 us.
const STEP_BYTES: usize = 1024;

/// The searched pattern.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) pattern: &'a str,
    pub(super) ignore_case: bool,
    pub(super) is_fixed: bool,
    /// A match may span lines, and `.` matches the end of a line.
    pub(super) spans_lines: bool,
}

/// A compiled pattern. It searches in steps if it has many states, or the text is long.
pub(super) struct Steady {
    at_once: RegexMatcher,
    in_steps: DFA,
    /// Finds the beginning of a match from its end. Only a match that may span lines needs it.
    backwards: Option<DFA>,
}

/// A search of one call.
pub(super) struct Search<'a> {
    pattern: &'a Steady,
    cache: RefCell<Cache>,
    cache_backwards: Option<RefCell<Cache>>,
    lines: &'a Lines,
}

impl Steady {
    pub(super) fn new(wanted: &Wanted<'_>) -> Result<Self, ToolError> {
        let Wanted { pattern, ignore_case, is_fixed, spans_lines } = *wanted;
        let mut builder = RegexMatcherBuilder::new();
        builder.case_insensitive(ignore_case).fixed_strings(is_fixed);
        // `^` and `$` match at every line, `$` before a carriage return too. `crlf` sets a line terminator of its own,
        // so it comes first.
        builder.multi_line(true).crlf(true).line_terminator((!spans_lines).then_some(b'\n'));
        builder.dot_matches_new_line(spans_lines);
        builder.size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX);
        let refused = |error: &dyn std::fmt::Display| {
            let hint = "mend it, or set fixed_strings to look for it as plain text";
            let text = format!("the pattern is no regular expression that can be searched for: {error}\n{hint}");
            ToolError::bad_input("/pattern", text)
        };
        let at_once = builder.build(pattern).map_err(|error| refused(&error))?;
        let syntax = syntax::Config::new().multi_line(true).crlf(true).case_insensitive(ignore_case).utf8(false);
        let syntax = syntax.dot_matches_new_line(spans_lines);
        let escaped = is_fixed.then(|| escape(pattern));
        let build = |is_backwards: bool| {
            let thompson = thompson::Config::new().nfa_size_limit(Some(REGEX_BYTES_MAX)).reverse(is_backwards);
            let config = DFA::config().unicode_word_boundary(true).skip_cache_capacity_check(true);
            let config = if is_backwards { config.match_kind(MatchKind::All) } else { config };
            DFA::builder()
                .syntax(syntax)
                .configure(config)
                .thompson(thompson)
                .build(escaped.as_deref().unwrap_or(pattern))
                .map_err(|error| refused(&error))
        };
        let backwards = spans_lines.then(|| build(true)).transpose()?;
        Ok(Self { at_once, in_steps: build(false)?, backwards })
    }

    pub(super) fn search<'a>(&'a self, lines: &'a Lines) -> Search<'a> {
        let cache_backwards = self.backwards.as_ref().map(|dfa| RefCell::new(dfa.create_cache()));
        Search { pattern: self, cache: RefCell::new(self.in_steps.create_cache()), cache_backwards, lines }
    }
}

/// A text as a regular expression that matches it.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_ascii_punctuation() && !matches!(char, '<' | '>') {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

impl Search<'_> {
    fn is_long(&self, text: &[u8]) -> bool {
        self.pattern.in_steps.get_nfa().states().len().saturating_mul(text.len()) > AT_ONCE_MAX
    }

    /// The beginning of the first line that matches.
    fn first_line(&self, text: &[u8], from: usize) -> Result<Option<usize>, String> {
        let mut start = from;
        while start < text.len() {
            let rest = &text[start..];
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            if self.line(&rest[..end])? {
                return Ok(Some(start));
            }
            start += end + 1;
        }
        Ok(None)
    }

    fn line(&self, line: &[u8]) -> Result<bool, String> {
        let (dfa, mut cache) = (&self.pattern.in_steps, self.cache.borrow_mut());
        let input = Input::new(line).anchored(Anchored::No);
        let mut state = dfa.start_state_forward(&mut cache, &input).map_err(|error| gave_up(&error))?;
        for piece in line.chunks(STEP_BYTES) {
            self.go_on()?;
            for byte in piece {
                state = dfa.next_state(&mut cache, state, *byte).map_err(|error| gave_up(&error))?;
                if state.is_match() {
                    return Ok(true);
                }
                if state.is_dead() {
                    return Ok(false);
                }
                if state.is_quit() {
                    return Err(gave_up(&WORDS));
                }
            }
        }
        let state = dfa.next_eoi_state(&mut cache, state).map_err(|error| gave_up(&error))?;
        Ok(state.is_match())
    }

    /// The first match at or after `from`, which may span lines.
    fn spanning(&self, text: &[u8], from: usize) -> Result<Option<Match>, String> {
        let (Some(backwards), Some(cache)) = (&self.pattern.backwards, &self.cache_backwards) else { return Ok(None) };
        let Some(end) = self.end_of_match(text, from)? else { return Ok(None) };
        let mut cache = cache.borrow_mut();
        let input = Input::new(text).range(from..end).anchored(Anchored::Yes);
        let mut state = backwards.start_state_reverse(&mut cache, &input).map_err(|error| gave_up(&error))?;
        let mut start = end;
        // A state tells of a match one byte late, so the byte before the range is read too.
        for at in (from..end).rev() {
            if at % STEP_BYTES == 0 {
                self.go_on()?;
            }
            state = backwards.next_state(&mut cache, state, text[at]).map_err(|error| gave_up(&error))?;
            if state.is_match() {
                start = at + 1;
            }
            if state.is_dead() {
                return Ok(Some(Match::new(start, end)));
            }
            if state.is_quit() {
                return Err(gave_up(&WORDS));
            }
        }
        let last = match from.checked_sub(1) {
            Some(before) => backwards.next_state(&mut cache, state, text[before]),
            None => backwards.next_eoi_state(&mut cache, state),
        };
        if last.map_err(|error| gave_up(&error))?.is_match() {
            start = from;
        }
        Ok(Some(Match::new(start, end)))
    }

    fn end_of_match(&self, text: &[u8], from: usize) -> Result<Option<usize>, String> {
        let (dfa, mut cache) = (&self.pattern.in_steps, self.cache.borrow_mut());
        let input = Input::new(text).range(from..).anchored(Anchored::No);
        let mut state = dfa.start_state_forward(&mut cache, &input).map_err(|error| gave_up(&error))?;
        let mut end = None;
        for (at, byte) in text.iter().enumerate().skip(from) {
            if at % STEP_BYTES == 0 {
                self.go_on()?;
            }
            state = dfa.next_state(&mut cache, state, *byte).map_err(|error| gave_up(&error))?;
            if state.is_match() {
                end = Some(at);
            }
            if state.is_dead() {
                return Ok(end);
            }
            if state.is_quit() {
                return Err(gave_up(&WORDS));
            }
        }
        let state = dfa.next_eoi_state(&mut cache, state).map_err(|error| gave_up(&error))?;
        Ok(if state.is_match() { Some(text.len()) } else { end })
    }

    fn go_on(&self) -> Result<(), String> {
        if self.lines.is_over() { Err("the call is over".to_owned()) } else { Ok(()) }
    }
}

const WORDS: &str = "the pattern has a word boundary, and the text is not ASCII";

fn gave_up(error: &dyn std::fmt::Display) -> String {
    format!("a long text cannot be searched: {error}")
}

impl Matcher for Search<'_> {
    type Captures = NoCaptures;
    type Error = String;

    fn find_at(&self, text: &[u8], at: usize) -> Result<Option<Match>, String> {
        if self.is_long(text) {
            return match self.pattern.backwards {
                Some(_) => self.spanning(text, at),
                None => Ok(self.first_line(text, at)?.map(Match::zero)),
            };
        }
        self.pattern.at_once.find_at(text, at).map_err(|never| never.to_string())
    }

    fn new_captures(&self) -> Result<NoCaptures, String> {
        Ok(NoCaptures::new())
    }

    fn shortest_match_at(&self, text: &[u8], at: usize) -> Result<Option<usize>, String> {
        if self.is_long(text) {
            return match self.pattern.backwards {
                Some(_) => self.end_of_match(text, at),
                None => self.first_line(text, at),
            };
        }
        self.pattern.at_once.shortest_match_at(text, at).map_err(|never| never.to_string())
    }

    fn non_matching_bytes(&self) -> Option<&grep_matcher::ByteSet> {
        self.pattern.at_once.non_matching_bytes()
    }

    fn line_terminator(&self) -> Option<LineTerminator> {
        self.pattern.at_once.line_terminator()
    }

    fn find_candidate_line(&self, text: &[u8]) -> Result<Option<LineMatchKind>, String> {
        if self.is_long(text) {
            return Ok(self.first_line(text, 0)?.map(LineMatchKind::Confirmed));
        }
        self.pattern.at_once.find_candidate_line(text).map_err(|never| never.to_string())
    }
}
