//! Compiles definitions to productions. A part that is repeated, optional or a choice becomes a rule of its own.
//! Ignored text becomes a rule after each terminal.

use std::collections::HashMap;

use schema::pattern::Budget;

use super::read::{Definition, Definitions, Expression, is_terminal};
use super::terminal::{Terminal, Terminals};
use super::{Grammar, GrammarError, Production, SYMBOLS_MAX, TERMINALS_MAX};

/// A symbol of a production.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Symbol {
    Rule(u32),
    Terminal(u32),
}

pub(super) fn compile(definitions: Definitions, budget: &mut Budget) -> Result<Grammar, GrammarError> {
    let Definitions { rules, terminals, imports, ignored } = definitions;
    let mut compiler = Compiler {
        terminals: Terminals::new(terminals, imports, budget)?,
        names: HashMap::new(),
        named: HashMap::new(),
        used: HashMap::new(),
        compiled: Vec::new(),
        productions: Vec::new(),
        rules: Vec::new(),
        symbols: 0,
        ignored: None,
    };
    for rule in &rules {
        let number = compiler.rule();
        if compiler.names.insert(rule.name.clone(), number).is_some() {
            return Err(GrammarError::new(rule.line, format!("{} is defined twice", rule.name)));
        }
    }
    let Some(start) = compiler.names.get("start").copied() else {
        return Err(GrammarError::new(1, "there is no rule start, which stands for the whole text"));
    };
    let whole = compiler.ignore(&ignored, start)?;
    for Definition { name, line, meaning } in &rules {
        let number = compiler.names[name];
        compiler.alternatives(number, meaning, *line)?;
    }
    let Compiler { productions, rules, compiled: terminals, .. } = compiler;
    Ok(Grammar { productions, rules, terminals, start: whole })
}

struct Compiler<'budget> {
    terminals: Terminals<'budget>,
    names: HashMap<String, u32>,
    /// The symbol of each named terminal.
    named: HashMap<String, Symbol>,
    /// The symbol of each terminal in rules, by its pattern: the terminal followed by ignored text.
    used: HashMap<String, Symbol>,
    compiled: Vec<Terminal>,
    productions: Vec<Production>,
    rules: Vec<Vec<u32>>,
    symbols: usize,
    /// Ignored text, repeated any number of times.
    ignored: Option<Symbol>,
}

impl Compiler<'_> {
    fn rule(&mut self) -> u32 {
        self.rules.push(Vec::new());
        number(self.rules.len() - 1)
    }

    fn produce(&mut self, rule: u32, symbols: Vec<Symbol>, line: u32) -> Result<(), GrammarError> {
        self.symbols += symbols.len() + 1;
        if self.symbols > SYMBOLS_MAX {
            let what = format!("the grammar has more than {SYMBOLS_MAX} symbols with its repetitions expanded");
            return Err(GrammarError::new(line, what));
        }
        let production = number(self.productions.len());
        self.productions.push(Production { rule, symbols });
        if let Some(productions) = self.rules.get_mut(rule as usize) {
            productions.push(production);
        }
        Ok(())
    }

    /// The rule of the whole text: it begins with ignored text, and ignored text follows each terminal.
    fn ignore(&mut self, ignored: &[Definition], start: u32) -> Result<u32, GrammarError> {
        let whole = self.rule();
        let Some(first) = ignored.first() else {
            self.produce(whole, vec![Symbol::Rule(start)], 1)?;
            return Ok(whole);
        };
        let rest = self.rule();
        self.produce(rest, Vec::new(), first.line)?;
        for Definition { line, meaning, .. } in ignored {
            let pattern = self.terminals.pattern(meaning, *line)?;
            let terminal = self.terminal(pattern, None, *line)?;
            self.produce(rest, vec![Symbol::Rule(rest), terminal], *line)?;
        }
        // The terminals compiled so far belong to the ignored text itself, so no ignored text follows them.
        self.used.clear();
        self.ignored = Some(Symbol::Rule(rest));
        self.produce(whole, vec![Symbol::Rule(rest), Symbol::Rule(start)], first.line)?;
        Ok(whole)
    }

    fn alternatives(&mut self, rule: u32, meaning: &Expression, line: u32) -> Result<(), GrammarError> {
        match meaning {
            Expression::Any(any) => any.iter().try_for_each(|one| {
                let symbols = self.sequence(one, line)?;
                self.produce(rule, symbols, line)
            }),
            one => {
                let symbols = self.sequence(one, line)?;
                self.produce(rule, symbols, line)
            }
        }
    }

    fn sequence(&mut self, meaning: &Expression, line: u32) -> Result<Vec<Symbol>, GrammarError> {
        match meaning {
            Expression::All(all) => all.iter().map(|part| self.symbol(part, line)).collect(),
            part => Ok(vec![self.symbol(part, line)?]),
        }
    }

    fn symbol(&mut self, meaning: &Expression, line: u32) -> Result<Symbol, GrammarError> {
        match meaning {
            Expression::Name(name, line) if !is_terminal(name) => {
                let rule = self.names.get(name).copied();
                rule.map(Symbol::Rule).ok_or_else(|| GrammarError::new(*line, format!("there is no rule {name}")))
            }
            Expression::Name(name, line) => {
                if let Some(symbol) = self.named.get(name) {
                    return Ok(*symbol);
                }
                let pattern = self.terminals.pattern(meaning, *line)?;
                let symbol = self.terminal(pattern, Some(name.clone()), *line)?;
                self.named.insert(name.clone(), symbol);
                Ok(symbol)
            }
            Expression::Text { text, .. } => self.unnamed(meaning, format!("{text:?}"), line),
            Expression::Range(first, last) => self.unnamed(meaning, format!("\"{first}\"..\"{last}\""), line),
            Expression::Pattern { pattern, line, .. } => self.unnamed(meaning, format!("/{pattern}/"), *line),
            Expression::All(all) => match all.as_slice() {
                [one] => self.symbol(one, line),
                _ => self.own_rule(meaning, line),
            },
            Expression::Any(any) => match any.as_slice() {
                [one] => self.symbol(one, line),
                _ => self.own_rule(meaning, line),
            },
            Expression::Repeated(part, least, most) => {
                let part = self.symbol(part, line)?;
                self.repeated(part, *least, *most, line)
            }
        }
    }

    fn own_rule(&mut self, meaning: &Expression, line: u32) -> Result<Symbol, GrammarError> {
        let rule = self.rule();
        self.alternatives(rule, meaning, line)?;
        Ok(Symbol::Rule(rule))
    }

    fn repeated(&mut self, part: Symbol, least: u32, most: Option<u32>, line: u32) -> Result<Symbol, GrammarError> {
        let rest = match most {
            None => {
                let any = self.rule();
                self.produce(any, Vec::new(), line)?;
                // Left recursion has a constant cost per repetition.
                self.produce(any, vec![Symbol::Rule(any), part], line)?;
                Some(Symbol::Rule(any))
            }
            // Each repetition is nested in the one before it.
            Some(most) => (least..most).try_fold(None, |inner, _| {
                let more = self.rule();
                self.produce(more, Vec::new(), line)?;
                self.produce(more, std::iter::once(part).chain(inner).collect(), line)?;
                Ok(Some(Symbol::Rule(more)))
            })?,
        };
        let whole = self.rule();
        let symbols = (0..least).map(|_| part).chain(rest).collect();
        self.produce(whole, symbols, line)?;
        Ok(Symbol::Rule(whole))
    }

    fn unnamed(&mut self, meaning: &Expression, label: String, line: u32) -> Result<Symbol, GrammarError> {
        let pattern = self.terminals.pattern(meaning, line)?;
        self.terminal(pattern, Some(label), line)
    }

    fn terminal(&mut self, pattern: String, label: Option<String>, line: u32) -> Result<Symbol, GrammarError> {
        if let Some(symbol) = self.used.get(&pattern) {
            return Ok(*symbol);
        }
        if self.compiled.len() >= TERMINALS_MAX {
            return Err(GrammarError::new(line, format!("at most {TERMINALS_MAX} terminals are allowed")));
        }
        let terminal = self.terminals.compile(&pattern, label, line)?;
        self.compiled.push(terminal);
        let own = Symbol::Terminal(number(self.compiled.len() - 1));
        let symbol = match self.ignored {
            None => own,
            Some(ignored) => {
                let rule = self.rule();
                self.produce(rule, vec![own, ignored], line)?;
                Symbol::Rule(rule)
            }
        };
        self.used.insert(pattern, symbol);
        Ok(symbol)
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a grammar has at most 64 Ki symbols")
}
