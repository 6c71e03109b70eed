//! Grammars in the syntax of Lark, and whether a text is of one.
//!
//! A text is of a grammar when the grammar, as a context-free one over characters, derives it: a terminal stands for
//! each text that it matches, not for the longest, and what `%ignore` names may stand before and after each terminal.
//! That is all that Lark's Earley parser with its complete lexer takes, and at least what its other lexers take. What
//! only shapes trees (aliases, `?`, `!`, priorities) changes nothing here; what is not understood is refused with its
//! line.

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

/// Rules and terminals that a grammar defines.
const DEFINITIONS_MAX: usize = 1024;
/// Parentheses within parentheses: what reading them takes of the stack.
const DEPTH_MAX: usize = 64;
/// How often a part may be repeated where the grammar says how often.
const REPEATS_MAX: u32 = 1000;
/// Symbols of all productions, repetitions written out: what a step of the recogniser may have to look through.
const SYMBOLS_MAX: usize = 64 * 1024;
/// Different terminals that rules use.
const TERMINALS_MAX: usize = 512;
/// Bytes of one terminal, the terminals that it names written out.
const PATTERN_BYTES_MAX: usize = 64 * 1024;
/// Bytes that each may take for what is built while it matches.
const CACHE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of such a cache that cost as much as looking at one byte of the text.
const CACHE_BYTES_PER_STEP: usize = 8;
/// How deep terminals may lead into each other and their parentheses: what following them takes of the stack.
const TERMINAL_DEPTH_MAX: usize = 256;
/// Items and bytes that may be looked at for any input, and for each of its bytes as many again: what reads in one way
/// takes some five a byte, and a request full of what does not must not take seconds.
const STEPS_MAX: usize = 100_000;
const STEPS_PER_BYTE_MAX: usize = 16;

/// A grammar that inputs can be checked against.
#[derive(Debug, Clone)]
pub struct Grammar {
    productions: Vec<Production>,
    /// The productions of each rule.
    rules: Vec<Vec<u32>>,
    terminals: Vec<Terminal>,
    /// What stands for the whole text.
    start: u32,
}

#[derive(Debug, Clone)]
struct Production {
    rule: u32,
    symbols: Vec<Symbol>,
}

/// What is wrong with a grammar, and where.
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
    /// Reads a grammar, whose rule `start` stands for the whole text. What its terminals take draws on the budget of
    /// the request.
    pub fn read(text: &str, budget: &mut Budget) -> Result<Self, GrammarError> {
        compile::compile(read::read(text)?, budget)
    }

    /// Whether the whole text is of the grammar.
    pub fn check(&self, text: &str) -> Result<(), MismatchError> {
        earley::check(self, text)
    }
}
