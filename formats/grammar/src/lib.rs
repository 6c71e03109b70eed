//! Reads grammars in the syntax of Lark and checks texts against them.
//!
//! A text matches a grammar if the grammar derives it as a context-free grammar over characters. A terminal stands for
//! each text that it matches, not only for the longest. Text of `%ignore` may precede and follow each terminal. The
//! accepted language is that of Lark's Earley parser with its complete lexer, and includes what its other lexers
//! accept. Features that only shape trees (aliases, `?`, `!`, priorities) have no effect. An unsupported feature is an
//! error with its line.

mod compile;
mod earley;
mod read;
mod terminal;
#[cfg(test)]
mod tests;

use std::fmt;

use schema::pattern::Budget;

use self::compile::Symbol;
pub use self::earley::MismatchError;
use self::terminal::Terminal;

/// The most rules and terminals of a grammar.
const DEFINITIONS_MAX: usize = 1024;
/// The deepest nesting of parentheses, because reading them uses the stack.
const DEPTH_MAX: usize = 64;
/// The highest explicit number of repetitions of a part.
const REPEATS_MAX: u32 = 1000;
/// The most symbols of all productions with repetitions expanded, because one step of the recogniser may visit all of
/// them.
const SYMBOLS_MAX: usize = 64 * 1024;
/// The most different terminals used in rules.
const TERMINALS_MAX: usize = 512;
/// The most bytes of one terminal with the terminals that it names expanded.
const PATTERN_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of each terminal's cache, which is built while it matches.
const CACHE_BYTES_MAX: usize = 256 * 1024;
/// The number of cache bytes that cost as much as one byte of the text.
const CACHE_BYTES_PER_STEP: usize = 8;
/// The deepest nesting of terminals and their parentheses, because following them uses the stack.
const TERMINAL_DEPTH_MAX: usize = 256;
/// The base of the step limit for any input, in items and bytes; each byte of the input adds the same number. An
/// unambiguous grammar takes about five steps per byte. The limit keeps a request full of ambiguous text from taking
/// seconds.
const STEPS_MAX: usize = 100_000;
const STEPS_PER_BYTE_MAX: usize = 16;

/// A grammar that inputs can be checked against.
#[derive(Debug, Clone)]
pub struct Grammar {
    productions: Vec<Production>,
    /// The productions of each rule.
    rules: Vec<Vec<u32>>,
    terminals: Vec<Terminal>,
    /// The rule of the whole text.
    start: u32,
}

#[derive(Debug, Clone)]
struct Production {
    rule: u32,
    symbols: Vec<Symbol>,
}

/// An error in a grammar, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarError {
    line: u32,
    what: String,
}

impl GrammarError {
    fn new(line: u32, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl Grammar {
    /// Reads a grammar. Its rule `start` stands for the whole text. Compiled terminals are charged to the budget of the
    /// request.
    pub fn read(text: &str, budget: &mut Budget) -> Result<Self, GrammarError> {
        compile::compile(read::read(text)?, budget)
    }

    /// Checks that the whole text matches the grammar.
    pub fn check(&self, text: &str) -> Result<(), MismatchError> {
        earley::check(self, text)
    }
}
