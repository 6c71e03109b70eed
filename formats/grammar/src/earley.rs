//! Earley's recogniser. For each position of the text it holds the possible productions and their progress. A terminal
//! leads from a position to every position at which it may end.

use std::collections::{BTreeSet, HashSet};

use regex_automata::hybrid::dfa::Cache;

use super::compile::Symbol;
use super::{Grammar, STEPS_MAX, STEPS_PER_BYTE_MAX};

/// The most terminals named in an error.
const EXPECTED_MAX: usize = 8;

/// Why a text does not match a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MismatchError {
    #[error("the input does not match the grammar at line {line}, column {column}{}", follows(expected))]
    Text { line: usize, column: usize, expected: Vec<String> },
    #[error(
        "checking the input against the grammar takes too long: make the grammar less ambiguous, or the input shorter"
    )]
    TooLong,
}

fn follows(expected: &[String]) -> String {
    match expected {
        [] => ": nothing may follow there".to_owned(),
        expected => format!(": expected {}", expected.join(", ")),
    }
}

pub(super) fn check(grammar: &Grammar, text: &str) -> Result<(), MismatchError> {
    let mut chart = Chart {
        grammar,
        text: text.as_bytes(),
        places: vec![Place::default(); text.len() + 1],
        caches: grammar.terminals.iter().map(|_| None).collect(),
        steps: STEPS_MAX + STEPS_PER_BYTE_MAX * text.len(),
        known: HashSet::new(),
        predicted: vec![usize::MAX; grammar.rules.len()],
        emptied: vec![usize::MAX; grammar.rules.len()],
        looked_for: vec![(usize::MAX, false); grammar.terminals.len()],
    };
    let mut furthest = (0, Vec::new());
    for at in 0..=text.len() {
        let items = chart.fill(at).ok_or(MismatchError::TooLong)?;
        if items.is_empty() {
            continue;
        }
        if at == text.len() && items.iter().any(|item| chart.is_whole(item)) {
            return Ok(());
        }
        furthest = (at, items);
    }
    let (at, items) = furthest;
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Err(MismatchError::Text { line, column, expected: chart.expected(&items) })
}

/// A production that began at `origin` and has reached its symbol `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Item {
    production: u32,
    next: u32,
    origin: u32,
}

impl Item {
    fn advanced(self) -> Self {
        Self { next: self.next + 1, ..self }
    }
}

#[derive(Debug, Clone, Default)]
struct Place {
    /// Terminals that end here, and the position at which each began.
    ended: Vec<(u32, u32)>,
    /// Items that wait for a symbol here, in the order of the symbols.
    waiting: Vec<(Symbol, Item)>,
}

struct Chart<'a> {
    grammar: &'a Grammar,
    text: &'a [u8],
    places: Vec<Place>,
    /// One for each terminal that was searched for.
    caches: Vec<Option<Cache>>,
    /// The remaining steps.
    steps: usize,
    /// The items at the current position.
    known: HashSet<Item>,
    /// The last position at which each rule was predicted.
    predicted: Vec<usize>,
    /// The last position at which each rule was found to be empty.
    emptied: Vec<usize>,
    /// The last position at which each terminal was searched for, and whether it was empty there.
    looked_for: Vec<(usize, bool)>,
}

impl Chart<'_> {
    /// Computes the items of a position. `None` if that exceeds the step limit.
    fn fill(&mut self, at: usize) -> Option<Vec<Item>> {
        let ended = std::mem::take(&mut self.places[at].ended);
        if ended.is_empty() && at > 0 {
            return Some(Vec::new());
        }
        self.known.clear();
        let mut items = Vec::new();
        if at == 0 {
            self.predict(self.grammar.start, at, &mut items)?;
        }
        for (terminal, from) in ended {
            self.advance(Symbol::Terminal(terminal), from as usize, &mut items)?;
        }
        let mut done = 0;
        while let Some(item) = items.get(done).copied() {
            done += 1;
            match self.next(item) {
                Some(Symbol::Rule(rule)) => {
                    self.predict(rule, at, &mut items)?;
                    if self.emptied[rule as usize] == at {
                        self.add(item.advanced(), &mut items)?;
                    }
                }
                Some(Symbol::Terminal(terminal)) => {
                    if self.look_for(terminal, at)? {
                        self.add(item.advanced(), &mut items)?;
                    }
                }
                None => self.complete(item, at, &mut items)?,
            }
        }
        let waiting = items.iter().filter_map(|item| Some((self.next(*item)?, *item)));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable_by_key(|(symbol, _)| *symbol);
        self.places[at].waiting = waiting;
        Some(items)
    }

    fn next(&self, item: Item) -> Option<Symbol> {
        self.grammar.productions[item.production as usize].symbols.get(item.next as usize).copied()
    }

    fn add(&mut self, item: Item, items: &mut Vec<Item>) -> Option<()> {
        self.step(1)?;
        if self.known.insert(item) {
            items.push(item);
        }
        Some(())
    }

    fn step(&mut self, steps: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(steps)?;
        Some(())
    }

    fn predict(&mut self, rule: u32, at: usize, items: &mut Vec<Item>) -> Option<()> {
        if self.predicted[rule as usize] == at {
            return Some(());
        }
        self.predicted[rule as usize] = at;
        let grammar = self.grammar;
        let origin = place(at);
        let productions = grammar.rules[rule as usize].iter();
        productions
            .map(|production| Item { production: *production, next: 0, origin })
            .try_for_each(|item| self.add(item, items))
    }

    /// Advances the items that have been waiting for the symbol since `from`.
    fn advance(&mut self, symbol: Symbol, from: usize, items: &mut Vec<Item>) -> Option<()> {
        let waiting = std::mem::take(&mut self.places[from].waiting);
        let first = waiting.partition_point(|(other, _)| *other < symbol);
        let for_it = waiting[first..].iter().take_while(|(other, _)| *other == symbol);
        let done = for_it.map(|(_, item)| item.advanced()).try_for_each(|item| self.add(item, items));
        self.places[from].waiting = waiting;
        done
    }

    fn complete(&mut self, item: Item, at: usize, items: &mut Vec<Item>) -> Option<()> {
        let rule = self.grammar.productions[item.production as usize].rule;
        if item.origin as usize != at {
            return self.advance(Symbol::Rule(rule), item.origin as usize, items);
        }
        if self.emptied[rule as usize] == at {
            return Some(());
        }
        // The rule is empty here: items that wait for it advance, now and later.
        self.emptied[rule as usize] = at;
        self.step(items.len())?;
        let waiting: Vec<Item> =
            items.iter().copied().filter(|item| self.next(*item) == Some(Symbol::Rule(rule))).collect();
        waiting.into_iter().try_for_each(|item| self.add(item.advanced(), items))
    }

    /// Finds the positions at which a terminal that begins here may end. Returns whether it may be empty.
    fn look_for(&mut self, terminal: u32, at: usize) -> Option<bool> {
        let index = terminal as usize;
        if let (place, is_empty) = self.looked_for[index]
            && place == at
        {
            return Some(is_empty);
        }
        let grammar = self.grammar;
        let known = &grammar.terminals[index];
        let cache = self.caches[index].get_or_insert_with(|| known.cache());
        let (places, from, mut is_empty) = (&mut self.places, place(at), false);
        let looked = known.ends(cache, self.text, at, self.steps, |end| {
            if end == at {
                is_empty = true;
            } else if let Some(place) = places.get_mut(end) {
                place.ended.push((terminal, from));
            }
        });
        self.step(looked?)?;
        self.looked_for[index] = (at, is_empty);
        Some(is_empty)
    }

    fn is_whole(&self, item: &Item) -> bool {
        let production = &self.grammar.productions[item.production as usize];
        production.rule == self.grammar.start && item.origin == 0 && self.next(*item).is_none()
    }

    fn expected(&self, items: &[Item]) -> Vec<String> {
        let terminals = items.iter().filter_map(|item| match self.next(*item)? {
            Symbol::Terminal(terminal) => self.grammar.terminals.get(terminal as usize),
            Symbol::Rule(_) => None,
        });
        let labels: BTreeSet<&str> = terminals.filter_map(|terminal| terminal.label.as_deref()).collect();
        labels.into_iter().take(EXPECTED_MAX).map(str::to_owned).collect()
    }
}

fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
