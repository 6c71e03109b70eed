//! Regular expressions of requests and manifests, compiled and matched at a bounded cost.
//!
//! Compiling draws on a [`Budget`] that all patterns of one schema, request or set of tools share. Matching uses a lazy
//! DFA, whose work is the length of the text plus the states that it builds, and counts both as steps. A pattern that
//! needs more states than fit its cache is given up with an error. There is no backtracking: lookaround and
//! backreferences are refused.

mod ecma;

use std::sync::{Arc, Mutex};

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, pikevm::PikeVM};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchErrorKind};

use crate::steps::{Exhausted, Steps};

/// Bytes that the states of one match may take: a pattern that needs more of them would be matched state by state.
const STATES_BYTES_MAX: usize = 256 * 1024;
/// Bytes of states that are kept for the next match.
const SPARE_BYTES_MAX: usize = 64 * 1024;
/// The cost of a byte of a pattern before it is compiled, for its syntax tree.
const PARSED_BYTES_PER_BYTE: usize = 16;
/// The cost of a Unicode class before it is compiled, for the table of its ranges.
const CLASS_BYTES: usize = 8 * 1024;
/// The cost of a class in brackets before it is compiled.
const BRACKET_BYTES: usize = 512;
/// Bytes of text that cost a step.
const TEXT_BYTES_PER_STEP: u64 = 8;
/// Bytes of new states that cost a step.
const STATE_BYTES_PER_STEP: u64 = 16;

/// Bytes that compiled patterns may still take.
#[derive(Debug)]
pub struct Budget {
    bytes_left: usize,
}

impl Budget {
    /// For the patterns of one request, or of one schema outside a request: compiling so much takes some 30 ms.
    pub const REQUEST_BYTES: usize = 4 * 1024 * 1024;
    /// For the patterns of all tools that a worker hosts: compiled once, when the worker advertises them.
    pub const TOOLS_BYTES: usize = 16 * 1024 * 1024;

    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self { bytes_left: bytes }
    }

    /// Takes bytes out.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn take(&mut self, bytes: usize) -> Result<(), InvalidPattern> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(InvalidPattern::Budget)?;
        Ok(())
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes_left
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Self::REQUEST_BYTES)
    }
}

/// Why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    #[error("the pattern uses {0}, which is not supported: patterns are matched without backtracking")]
    Unsupported(&'static str),
    #[error("the pattern cannot be parsed: {0}")]
    Syntax(String),
    #[error(
        "the patterns are too large together: use fewer, smaller repetitions, and ASCII classes instead of \\p{{..}}"
    )]
    Budget,
}

/// A compiled pattern. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pattern(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    dfa: DFA,
    /// The cache of the last match, if it stayed small.
    spare: Mutex<Option<Cache>>,
    whole: bool,
}

impl Pattern {
    /// Compiles a pattern of JSON Schema: a regular expression of ECMA-262 that matches anywhere in a text.
    ///
    /// # Errors
    /// When it is malformed, too large, or needs backtracking.
    pub fn of_schema(pattern: &str, budget: &mut Budget) -> Result<Self, InvalidPattern> {
        budget.take(cost_of_classes(pattern))?;
        Self::compile(&ecma::translate(pattern)?, false, budget)
    }

    /// Compiles a regular expression that has to match a whole text.
    ///
    /// # Errors
    /// When it is malformed or too large.
    pub fn of_whole_text(pattern: &str, budget: &mut Budget) -> Result<Self, InvalidPattern> {
        check_alone(pattern, "", budget)?;
        Self::compile(&format!(r"\A(?:{pattern})\z"), true, budget)
    }

    fn compile(pattern: &str, whole: bool, budget: &mut Budget) -> Result<Self, InvalidPattern> {
        let dfa = DFA::builder()
            .configure(
                DFA::config()
                    .unicode_word_boundary(true)
                    .cache_capacity(STATES_BYTES_MAX)
                    .skip_cache_capacity_check(true)
                    .minimum_cache_clear_count(Some(0)),
            )
            .thompson(thompson::Config::new().nfa_size_limit(Some(budget.left())))
            .build(pattern);
        let dfa = dfa.map_err(|error| {
            let mut cause: &dyn std::error::Error = &error;
            while let Some(below) = cause.source() {
                cause = below;
            }
            let cause = cause.to_string();
            // The last line of an error has the message; the lines before it show the position.
            let cause = cause.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            if cause.contains("limit") { InvalidPattern::Budget } else { InvalidPattern::Syntax(cause) }
        })?;
        budget.take(dfa.get_nfa().memory_usage())?;
        Ok(Self(Arc::new(Compiled { dfa, spare: Mutex::new(None), whole })))
    }

    /// Whether it matches the text.
    ///
    /// # Errors
    /// When the steps do not suffice, or the match needs too many states.
    pub fn matches(&self, text: &str, steps: &mut Steps) -> Result<bool, Exhausted> {
        let Compiled { dfa, spare, whole } = &*self.0;
        steps.take(1 + text.len() as u64 / TEXT_BYTES_PER_STEP)?;
        let anchored = if *whole { Anchored::Yes } else { Anchored::No };
        let input = Input::new(text).anchored(anchored).earliest(true);
        let spared = spare.try_lock().ok().and_then(|mut spare| spare.take());
        let mut cache = spared.unwrap_or_else(|| dfa.create_cache());
        let before = cache.memory_usage();
        let found = dfa.try_search_fwd(&mut cache, &input);
        let grown = cache.memory_usage().saturating_sub(before) as u64;
        if cache.memory_usage() <= SPARE_BYTES_MAX
            && let Ok(mut spare) = spare.try_lock()
        {
            *spare = Some(cache);
        }
        steps.take(grown / STATE_BYTES_PER_STEP)?;
        match found {
            Ok(found) => Ok(found.is_some()),
            Err(error) => match error.kind() {
                // A word boundary beside a character that is not ASCII.
                MatchErrorKind::Quit { .. } => self.matches_slowly(text, input, steps),
                _ => Err(Exhausted),
            },
        }
    }

    /// Looks at each state for each byte.
    fn matches_slowly(&self, text: &str, input: Input<'_>, steps: &mut Steps) -> Result<bool, Exhausted> {
        let nfa = self.0.dfa.get_nfa();
        steps.take(nfa.states().len() as u64 * (1 + text.len() as u64) / 4)?;
        let slow = PikeVM::new_from_nfa(nfa.clone()).map_err(|_| Exhausted)?;
        Ok(slow.is_match(&mut slow.create_cache(), input))
    }
}

/// Checks that a regular expression is complete by itself: one that closes a group around it would match wrong texts.
///
/// # Errors
/// When it is malformed or too large.
pub fn check_alone(pattern: &str, flags: &str, budget: &mut Budget) -> Result<(), InvalidPattern> {
    budget.take(cost_of_classes(pattern))?;
    let alone = if flags.is_empty() { pattern.to_owned() } else { format!("(?{flags}){pattern}") };
    syntax::parse(&alone).map(drop).map_err(|error| {
        let error = error.to_string();
        InvalidPattern::Syntax(error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned())
    })
}

/// The cost of a pattern's classes, estimated from its text.
fn cost_of_classes(pattern: &str) -> usize {
    let (mut cost, mut escaped) = (pattern.len() * PARSED_BYTES_PER_BYTE, false);
    for char in pattern.chars() {
        match char {
            'p' | 'P' | 'w' | 'W' | 'd' | 'D' | 's' | 'S' if escaped => cost += CLASS_BYTES,
            '[' | '.' if !escaped => cost += BRACKET_BYTES,
            _ => {}
        }
        escaped = char == '\\' && !escaped;
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> Result<bool, Exhausted> {
        let pattern = Pattern::of_schema(pattern, &mut Budget::default()).expect(pattern);
        pattern.matches(text, &mut Steps::of(text.len()))
    }

    #[test]
    fn a_pattern_means_what_it_means_in_javascript() {
        for (pattern, text, expected) in [
            (r"^\d+$", "12", Ok(true)),
            (r"^\d+$", "١٢", Ok(false)),
            (r"^[\w-]+$", "a_b-c", Ok(true)),
            (r"^\w+$", "é", Ok(false)),
            (r"^\s$", "\u{a0}", Ok(true)),
            (r"^[^\s]$", "\u{a0}", Ok(false)),
            ("^.$", "\r", Ok(false)),
            ("^[.]$", ".", Ok(true)),
            (r"\bb\b", "a b é", Ok(true)),
            (r"^\p{L}+$", "Ünï", Ok(true)),
            (r"^\cA\x41\u0042\u{43}\/$", "\u{1}ABC/", Ok(true)),
            (r"^\uD83D\uDE00$", "😀", Ok(true)),
            ("^[[a&&b]+$", "[&&", Ok(true)),
            ("^(?<year>[0-9]{4})$", "2026", Ok(true)),
            ("b", "abc", Ok(true)),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_that_needs_backtracking_is_refused_with_what_it_needs() {
        for (pattern, what) in [
            ("^(?!x)a", "lookahead"),
            ("a(?=b)", "lookahead"),
            ("(?<=a)b", "lookbehind"),
            ("(?<!a)b", "lookbehind"),
            (r"(a)\1", "a backreference"),
            (r"(?<n>a)\k<n>", "a backreference"),
        ] {
            let refused = Pattern::of_schema(pattern, &mut Budget::default()).expect_err(pattern);
            assert_eq!(refused, InvalidPattern::Unsupported(what));
        }
        assert_eq!(matches(r"^[(?!x)]+\(\?=$", "?(?="), Ok(true), "in a class, or escaped, they are characters");
    }

    #[test]
    fn large_patterns_draw_on_one_budget() {
        let mut budget = Budget::default();
        let small = (0..1000).map(|n| Pattern::of_schema(&format!("^[a-z]{{1,9}}-{n}$"), &mut budget));
        assert!(small.map(|pattern| pattern.map(drop)).collect::<Result<Vec<_>, _>>().is_ok(), "{budget:?}");
        for large in [r"\p{L}{99}0001", r"(?i:\p{L}\p{L}\p{L})", "a{1000}{100}"] {
            let mut budget = Budget::default();
            let refused = (0..1000).find_map(|_| Pattern::of_schema(large, &mut budget).err());
            assert_eq!(refused, Some(InvalidPattern::Budget), "{large}");
        }
    }

    #[test]
    fn a_match_that_needs_very_many_states_is_given_up() {
        let text: String = (0..250_000_u64).map(|n| if (n * n / 7) % 3 == 0 { 'a' } else { 'b' }).collect();
        let pattern = Pattern::of_whole_text("[ab]*a[ab]{10000}", &mut Budget::default()).expect("it is small");
        assert_eq!(pattern.matches(&text, &mut Steps::of(text.len())), Err(Exhausted));
        assert_eq!(
            Pattern::of_whole_text("[ab]*", &mut Budget::default())
                .map(|pattern| { pattern.matches(&text, &mut Steps::of(text.len())) }),
            Ok(Ok(true))
        );
    }
}
