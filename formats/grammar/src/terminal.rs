//! Terminals: regular languages. Each is compiled into an automaton that reports every length at which it matches.

use std::collections::HashMap;

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind};
use schema::pattern::{Budget, check_alone};

use super::read::{Definition, Expression, is_terminal};
use super::{CACHE_BYTES_MAX, CACHE_BYTES_PER_STEP, GrammarError, PATTERN_BYTES_MAX, TERMINAL_DEPTH_MAX};

/// The most characters of a terminal's name in an error.
const LABEL_CHARS_MAX: usize = 64;

/// Terminals of Lark's library `common`. A string ends at its first quote and a comment at its first end, which is
/// equivalent to the non-greedy patterns of the library.
const COMMON: [(&str, &str); 23] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9A-Fa-f]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"),
    ("FLOAT", r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"),
    ("SIGNED_FLOAT", r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"),
    ("NUMBER", r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("ESCAPED_STRING", r#""(?:[^"\\\n]|\\[^\n])*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[A-Za-z_][A-Za-z0-9_]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\x0c\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(?:\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"),
];

/// A terminal used in rules.
#[derive(Debug, Clone)]
pub(super) struct Terminal {
    /// The name in errors; `None` for ignored text.
    pub(super) label: Option<String>,
    automaton: DFA,
}

/// The defined terminals, and results computed for them.
#[derive(Debug)]
pub(super) struct Terminals<'budget> {
    defined: HashMap<String, Defined>,
    /// The definitions that are being expanded, to detect cycles.
    within: Vec<String>,
    depth: usize,
    /// The remaining budget of the request for patterns.
    budget: &'budget mut Budget,
    /// Patterns that were checked already, by their text and flags.
    grouped: HashMap<(String, String), String>,
}

#[derive(Debug)]
enum Defined {
    As(Expression, u32),
    Known(String),
}

impl<'budget> Terminals<'budget> {
    pub(super) fn new(
        definitions: Vec<Definition>,
        imports: Vec<(String, String, u32)>,
        budget: &'budget mut Budget,
    ) -> Result<Self, GrammarError> {
        let mut defined = HashMap::new();
        for (name, own, line) in imports {
            let Some((_, pattern)) = COMMON.iter().find(|(known, _)| *known == name) else {
                return Err(GrammarError::new(line, format!("the library common has no terminal {name}")));
            };
            if defined.insert(own.clone(), Defined::Known((*pattern).to_owned())).is_some() {
                return Err(GrammarError::new(line, format!("{own} is defined twice")));
            }
        }
        for Definition { name, line, meaning } in definitions {
            if defined.insert(name.clone(), Defined::As(meaning, line)).is_some() {
                return Err(GrammarError::new(line, format!("{name} is defined twice")));
            }
        }
        Ok(Self { defined, within: Vec::new(), depth: 0, budget, grouped: HashMap::new() })
    }

    /// The meaning of a terminal as a regular expression that names no other terminal.
    pub(super) fn pattern(&mut self, meaning: &Expression, line: u32) -> Result<String, GrammarError> {
        if self.depth >= TERMINAL_DEPTH_MAX {
            return Err(GrammarError::new(line, "terminals and their parentheses are nested too deeply"));
        }
        self.depth += 1;
        let pattern = self.pattern_within(meaning, line);
        self.depth -= 1;
        pattern
    }

    fn pattern_within(&mut self, meaning: &Expression, line: u32) -> Result<String, GrammarError> {
        let pattern = match meaning {
            Expression::Name(name, line) => self.named(name, *line)?,
            Expression::Text { text, any_case: false } => format!("(?:{})", regex::escape(text)),
            Expression::Text { text, any_case: true } => format!("(?i:{})", regex::escape(text)),
            Expression::Range(first, last) => {
                format!("[{}-{}]", regex::escape(&first.to_string()), regex::escape(&last.to_string()))
            }
            Expression::Pattern { pattern, flags, line } => self.grouped(pattern, flags, *line)?,
            Expression::All(all) => self.joined(all, "", line)?,
            Expression::Any(any) => format!("(?:{})", self.joined(any, "|", line)?),
            Expression::Repeated(part, least, most) => {
                let part = self.pattern(part, line)?;
                let most = most.map_or_else(String::new, |most| most.to_string());
                format!("(?:{part}){{{least},{most}}}")
            }
        };
        if pattern.len() > PATTERN_BYTES_MAX {
            let what =
                format!("a terminal has more than {PATTERN_BYTES_MAX} bytes with the terminals that it names expanded");
            return Err(GrammarError::new(line, what));
        }
        Ok(pattern)
    }

    fn joined(&mut self, parts: &[Expression], between: &str, line: u32) -> Result<String, GrammarError> {
        let mut joined = String::new();
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                joined.push_str(between);
            }
            joined.push_str(&self.pattern(part, line)?);
            if joined.len() > PATTERN_BYTES_MAX {
                break;
            }
        }
        Ok(joined)
    }

    fn named(&mut self, name: &str, line: u32) -> Result<String, GrammarError> {
        if !is_terminal(name) {
            return Err(GrammarError::new(line, format!("{name} is a rule: a terminal may only contain terminals")));
        }
        if self.within.iter().any(|other| other == name) {
            return Err(GrammarError::new(line, format!("the terminal {name} contains itself: make it a rule")));
        }
        let (meaning, line) = match self.defined.get(name) {
            None => return Err(GrammarError::new(line, format!("there is no terminal {name}"))),
            Some(Defined::Known(pattern)) => return Ok(pattern.clone()),
            Some(Defined::As(meaning, line)) => (meaning.clone(), *line),
        };
        self.within.push(name.to_owned());
        let pattern = self.pattern(&meaning, line)?;
        self.within.pop();
        if self.budget.take(pattern.len()).is_err() {
            return Err(GrammarError::new(line, format!("the terminals together are too large, up to {name}")));
        }
        self.defined.insert(name.to_owned(), Defined::Known(pattern.clone()));
        Ok(pattern)
    }

    /// Checks a pattern on its own, because a pattern that closes the surrounding group would match too much.
    fn grouped(&mut self, pattern: &str, flags: &str, line: u32) -> Result<String, GrammarError> {
        let key = (pattern.to_owned(), flags.to_owned());
        if let Some(grouped) = self.grouped.get(&key) {
            return Ok(grouped.clone());
        }
        let flags: String = flags.chars().filter(|flag| *flag != 'u').collect();
        check_alone(pattern, &flags, self.budget)
            .map_err(|error| GrammarError::new(line, format!("/{}/ cannot be used: {error}", shortened(pattern))))?;
        // With the flag x the pattern may end in a comment, which ends with its line.
        let end = if flags.contains('x') { "\n" } else { "" };
        let grouped = format!("(?{flags}:{pattern}{end})");
        self.grouped.insert(key, grouped.clone());
        Ok(grouped)
    }

    pub(super) fn compile(
        &mut self,
        pattern: &str,
        label: Option<String>,
        line: u32,
    ) -> Result<Terminal, GrammarError> {
        let automaton = DFA::builder()
            .configure(
                DFA::config()
                    .match_kind(MatchKind::All)
                    .cache_capacity(CACHE_BYTES_MAX)
                    .skip_cache_capacity_check(true)
                    // Without this, a terminal that needs more states than fit would be matched state by state.
                    .minimum_cache_clear_count(Some(0)),
            )
            .thompson(thompson::Config::new().nfa_size_limit(Some(self.budget.left())))
            .build(pattern);
        let automaton = automaton.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let name = label.as_deref().map(|label| format!(" {}", shortened(label))).unwrap_or_default();
            if cause.contains("limit") {
                return GrammarError::new(line, format!("the terminals together are too large, up to{name}"));
            }
            GrammarError::new(line, format!("the terminal{name} cannot be compiled: {error}{cause}"))
        })?;
        if self.budget.take(automaton.get_nfa().memory_usage()).is_err() {
            let name = label.as_deref().map(shortened).unwrap_or_default();
            return Err(GrammarError::new(line, format!("the terminals together are too large, up to {name}")));
        }
        Ok(Terminal { label, automaton })
    }
}

/// The beginning of a terminal's name, which may be long.
fn shortened(label: &str) -> String {
    match label.char_indices().nth(LABEL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &label[..end]),
        None => label.to_owned(),
    }
}

impl Terminal {
    pub(super) fn cache(&self) -> Cache {
        self.automaton.create_cache()
    }

    /// Reports every position at which a match that begins at `from` ends. Returns the number of bytes read, at most
    /// `budget`. `None` if that was not enough.
    pub(super) fn ends(
        &self,
        cache: &mut Cache,
        text: &[u8],
        from: usize,
        budget: usize,
        mut end: impl FnMut(usize),
    ) -> Option<usize> {
        let before = cache.memory_usage();
        let looked = self.ends_within(cache, text, from, budget, &mut end)?;
        Some(looked + cache.memory_usage().saturating_sub(before) / CACHE_BYTES_PER_STEP)
    }

    fn ends_within(
        &self,
        cache: &mut Cache,
        text: &[u8],
        from: usize,
        budget: usize,
        end: &mut impl FnMut(usize),
    ) -> Option<usize> {
        let input = Input::new(text).range(from..).anchored(Anchored::Yes);
        let mut state = self.automaton.start_state_forward(cache, &input).ok()?;
        let mut looked = 0_usize;
        for (at, byte) in text.iter().enumerate().skip(from) {
            looked += 1;
            if looked > budget {
                return None;
            }
            state = self.automaton.next_state(cache, state, *byte).ok()?;
            // The automaton reports a match one byte late.
            if state.is_match() {
                end(at);
            }
            if state.is_dead() {
                return Some(looked);
            }
            if state.is_quit() {
                return None;
            }
        }
        if self.automaton.next_eoi_state(cache, state).ok()?.is_match() {
            end(text.len());
        }
        Some(looked + 1)
    }
}
