//! Parses the text of a grammar into definitions. Names are not resolved yet.

use crate::{DEFINITIONS_MAX, DEPTH_MAX, GrammarError, REPEATS_MAX};

/// The contents of a grammar, in order.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    pub(super) rules: Vec<Definition>,
    pub(super) terminals: Vec<Definition>,
    /// Terminals imported from the library, each with its local name.
    pub(super) imports: Vec<(String, String, u32)>,
    pub(super) ignored: Vec<Definition>,
}

#[derive(Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) line: u32,
    pub(super) meaning: Expression,
}

#[derive(Debug, Clone)]
pub(super) enum Expression {
    /// A rule or a terminal.
    Name(String, u32),
    Text {
        text: String,
        any_case: bool,
    },
    Range(char, char),
    Pattern {
        pattern: String,
        flags: String,
        line: u32,
    },
    /// A sequence.
    All(Vec<Self>),
    /// Alternatives.
    Any(Vec<Self>),
    /// Repetitions: the minimum, and the maximum if there is one.
    Repeated(Box<Self>, u32, Option<u32>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Name(String),
    Text {
        text: String,
        any_case: bool,
    },
    Pattern {
        pattern: String,
        flags: String,
    },
    Number(u32),
    /// `%import` and other directives, without the sign.
    Directive(String),
    /// `->`
    Arrow,
    /// `..`
    Dots,
    Sign(char),
    /// The end of a line if the next line does not begin with `|`.
    End,
}

/// Whether a name is the name of a terminal.
pub(super) fn is_terminal(name: &str) -> bool {
    !name.bytes().any(|byte| byte.is_ascii_lowercase())
}

pub(super) fn read(text: &str) -> Result<Definitions, GrammarError> {
    let mut reader = Reader { tokens: tokens(text)?, at: 0, depth: 0 };
    let mut definitions = Definitions::default();
    while let Some((token, line)) = reader.take() {
        match token {
            Token::End => continue,
            Token::Directive(name) => reader.directive(&name, line, &mut definitions)?,
            Token::Sign('?' | '!') => {
                while reader.takes(&Token::Sign('?')) || reader.takes(&Token::Sign('!')) {}
                let (name, line) = reader.name("a rule's name")?;
                reader.definition(name, line, &mut definitions)?;
            }
            Token::Name(name) => reader.definition(name, line, &mut definitions)?,
            other => {
                return Err(GrammarError::new(
                    line,
                    format!("expected a rule, a terminal or a directive, not {}", told(&other)),
                ));
            }
        }
        let Definitions { rules, terminals, imports, ignored } = &definitions;
        if rules.len() + terminals.len() + imports.len() + ignored.len() > DEFINITIONS_MAX {
            return Err(GrammarError::new(line, format!("at most {DEFINITIONS_MAX} definitions are allowed")));
        }
    }
    Ok(definitions)
}

struct Reader {
    /// Each token with its line.
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn take(&mut self) -> Option<(Token, u32)> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn takes(&mut self, wanted: &Token) -> bool {
        let is_there = self.peek() == Some(wanted);
        self.at += usize::from(is_there);
        is_there
    }

    fn must(&mut self, sign: char) -> Result<(), GrammarError> {
        if self.takes(&Token::Sign(sign)) { Ok(()) } else { Err(self.unexpected(&format!("{sign:?}"))) }
    }

    fn unexpected(&self, wanted: &str) -> GrammarError {
        let found = self.peek().map_or("the end".to_owned(), told);
        GrammarError::new(self.line(), format!("expected {wanted}, not {found}"))
    }

    fn name(&mut self, wanted: &str) -> Result<(String, u32), GrammarError> {
        match self.peek() {
            Some(Token::Name(_)) => {}
            _ => return Err(self.unexpected(wanted)),
        }
        match self.take() {
            Some((Token::Name(name), line)) => Ok((name, line)),
            _ => Err(self.unexpected(wanted)),
        }
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        match self.peek() {
            Some(Token::Number(number)) if *number <= REPEATS_MAX => {
                let number = *number;
                self.at += 1;
                Ok(number)
            }
            Some(Token::Number(_)) => {
                Err(GrammarError::new(self.line(), format!("at most {REPEATS_MAX} repetitions are allowed")))
            }
            _ => Err(self.unexpected("a number")),
        }
    }

    fn end(&mut self) -> Result<(), GrammarError> {
        if self.peek().is_none() || self.takes(&Token::End) {
            Ok(())
        } else {
            Err(self.unexpected("the end of the line"))
        }
    }

    fn directive(&mut self, name: &str, line: u32, definitions: &mut Definitions) -> Result<(), GrammarError> {
        match name {
            "import" => self.import(line, definitions)?,
            "ignore" => {
                let meaning = self.alternatives()?;
                definitions.ignored.push(Definition { name: "%ignore".to_owned(), line, meaning });
            }
            other => {
                return Err(GrammarError::new(
                    line,
                    format!("%{other} is not supported: %import common and %ignore are"),
                ));
            }
        }
        self.end()
    }

    /// `%import common.NAME`, `%import common.NAME -> OTHER`, `%import common (NAME, NAME)`.
    fn import(&mut self, line: u32, definitions: &mut Definitions) -> Result<(), GrammarError> {
        let (library, _) = self.name("a library's name")?;
        if library != "common" {
            return Err(GrammarError::new(line, format!("unknown library {library}: only common can be imported")));
        }
        if self.takes(&Token::Sign('(')) {
            loop {
                let (name, line) = self.name("a terminal of the library")?;
                definitions.imports.push((name.clone(), name, line));
                if !self.takes(&Token::Sign(',')) {
                    break;
                }
            }
            return self.must(')');
        }
        self.must('.')?;
        let (name, line) = self.name("a terminal of the library")?;
        let own = if self.takes(&Token::Arrow) { self.name("a terminal's name")?.0 } else { name.clone() };
        definitions.imports.push((name, own, line));
        Ok(())
    }

    fn definition(&mut self, name: String, line: u32, definitions: &mut Definitions) -> Result<(), GrammarError> {
        match self.peek() {
            Some(Token::Sign('{')) => {
                return Err(GrammarError::new(line, "templates are not supported: write the rule out"));
            }
            Some(Token::Sign('[')) => return Err(GrammarError::new(line, "attributes of rules are not supported")),
            Some(Token::Sign('.')) => {
                // Priorities only choose among several derivations, so they are ignored.
                self.at += 1;
                self.takes(&Token::Sign('-'));
                if !matches!(self.take(), Some((Token::Number(_), _))) {
                    return Err(GrammarError::new(line, format!("the priority of {name} is not a number")));
                }
            }
            _ => {}
        }
        self.must(':')?;
        let meaning = self.alternatives()?;
        self.end()?;
        let into = if is_terminal(&name) { &mut definitions.terminals } else { &mut definitions.rules };
        into.push(Definition { name, line, meaning });
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Expression, GrammarError> {
        let mut any = Vec::new();
        loop {
            let mut all = Vec::new();
            while let Some(part) = self.part()? {
                all.push(part);
            }
            if self.takes(&Token::Arrow) {
                self.name("an alias")?;
            }
            any.push(Expression::All(all));
            if !self.takes(&Token::Sign('|')) {
                break;
            }
        }
        Ok(Expression::Any(any))
    }

    /// An expression with its repetition; `None` at the end of a sequence.
    fn part(&mut self) -> Result<Option<Expression>, GrammarError> {
        let Some(atom) = self.atom()? else { return Ok(None) };
        let (least, most) = match self.peek() {
            Some(Token::Sign('?')) => (0, Some(1)),
            Some(Token::Sign('*')) => (0, None),
            Some(Token::Sign('+')) => (1, None),
            Some(Token::Sign('~')) => {
                self.at += 1;
                let line = self.line();
                let least = self.number()?;
                let most = if self.takes(&Token::Dots) { self.number()? } else { least };
                if most < least {
                    return Err(GrammarError::new(
                        line,
                        format!("the minimum of {least} repetitions is above the maximum of {most}"),
                    ));
                }
                return Ok(Some(Expression::Repeated(Box::new(atom), least, Some(most))));
            }
            _ => return Ok(Some(atom)),
        };
        self.at += 1;
        Ok(Some(Expression::Repeated(Box::new(atom), least, most)))
    }

    fn atom(&mut self) -> Result<Option<Expression>, GrammarError> {
        let line = self.line();
        match self.peek() {
            Some(Token::Name(_) | Token::Text { .. } | Token::Pattern { .. }) => {}
            Some(Token::Sign(open @ ('(' | '['))) => {
                let (open, close) = if *open == '(' { ('(', ')') } else { ('[', ']') };
                self.at += 1;
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return Err(GrammarError::new(line, format!("at most {DEPTH_MAX} nested parentheses are allowed")));
                }
                let within = self.alternatives()?;
                self.must(close)?;
                self.depth -= 1;
                let optional = open == '[';
                return Ok(Some(if optional { Expression::Repeated(Box::new(within), 0, Some(1)) } else { within }));
            }
            Some(Token::Sign('<' | '@' | '&' | '{')) | Some(Token::Directive(_)) => {
                return Err(self.unexpected("a rule, a terminal, a string or a pattern"));
            }
            _ => return Ok(None),
        }
        Ok(match self.take() {
            Some((Token::Name(name), line)) => {
                if self.peek() == Some(&Token::Sign('{')) {
                    return Err(GrammarError::new(line, "templates are not supported: write the rule out"));
                }
                Some(Expression::Name(name, line))
            }
            Some((Token::Text { text, any_case }, line)) if self.takes(&Token::Dots) => {
                let Some((Token::Text { text: last, any_case: false }, _)) = self.take() else {
                    return Err(GrammarError::new(line, "a range needs a string at both ends"));
                };
                match (single(&text), single(&last)) {
                    (Some(first), Some(last)) if first <= last && !any_case => Some(Expression::Range(first, last)),
                    _ => {
                        return Err(GrammarError::new(
                            line,
                            "a range needs one character at both ends, the later one last",
                        ));
                    }
                }
            }
            Some((Token::Text { text, any_case }, _)) => Some(Expression::Text { text, any_case }),
            Some((Token::Pattern { pattern, flags }, line)) => Some(Expression::Pattern { pattern, flags, line }),
            _ => None,
        })
    }
}

fn single(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

fn told(token: &Token) -> String {
    match token {
        Token::Name(name) => name.clone(),
        Token::Text { text, .. } => format!("{text:?}"),
        Token::Pattern { pattern, .. } => format!("/{pattern}/"),
        Token::Number(number) => number.to_string(),
        Token::Directive(name) => format!("%{name}"),
        Token::Arrow => "->".to_owned(),
        Token::Dots => "..".to_owned(),
        Token::Sign(sign) => format!("{sign:?}"),
        Token::End => "the end of the line".to_owned(),
    }
}

fn tokens(text: &str) -> Result<Vec<(Token, u32)>, GrammarError> {
    let mut scanner = Scanner { rest: text, line: 1 };
    let (mut tokens, mut within) = (Vec::new(), 0_u32);
    while let Some((token, line)) = scanner.next()? {
        match token {
            Token::Sign('(' | '[') => within += 1,
            Token::Sign(')' | ']') => within = within.saturating_sub(1),
            // A definition continues within parentheses and with `|`.
            Token::End if within > 0 => continue,
            Token::Sign('|') => {
                if matches!(tokens.last(), Some((Token::End, _))) {
                    tokens.pop();
                }
            }
            _ => {}
        }
        let is_second_end = token == Token::End && matches!(tokens.last(), None | Some((Token::End, _)));
        if !is_second_end {
            tokens.push((token, line));
        }
    }
    Ok(tokens)
}

struct Scanner<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Scanner<'a> {
    fn next(&mut self) -> Result<Option<(Token, u32)>, GrammarError> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\u{c}']);
        if self.rest.starts_with("//") || self.rest.starts_with('#') {
            self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
        }
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            '\n' => {
                self.line += 1;
                self.rest = &self.rest[1..];
                Token::End
            }
            '"' => self.text()?,
            '/' => self.pattern()?,
            '%' => {
                self.rest = &self.rest[1..];
                Token::Directive(self.word().to_owned())
            }
            '-' if self.rest.starts_with("->") => self.two(Token::Arrow),
            '.' if self.rest.starts_with("..") => self.two(Token::Dots),
            '0'..='9' => {
                let digits = self.word();
                Token::Number(digits.parse().map_err(|_| GrammarError::new(line, format!("{digits} is not a number")))?)
            }
            'a'..='z' | 'A'..='Z' | '_' => Token::Name(named(self.word(), line)?),
            sign if ":|()[]{}?*+~,.!<>@&-".contains(sign) => {
                self.rest = &self.rest[1..];
                Token::Sign(sign)
            }
            other => return Err(GrammarError::new(line, format!("unexpected {other:?}"))),
        };
        Ok(Some((token, line)))
    }

    fn two(&mut self, token: Token) -> Token {
        self.rest = &self.rest[2..];
        token
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// The text between two `quote` characters, and the flags that follow directly.
    fn quoted(&mut self, quote: char, what: &str) -> Result<(&'a str, &'a str), GrammarError> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            if c == '\n' {
                break;
            }
            if c == quote && !escaped {
                let inside = &self.rest[1..at];
                self.rest = &self.rest[at + 1..];
                let end = self.rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(self.rest.len());
                let (flags, rest) = self.rest.split_at(end);
                self.rest = rest;
                return Ok((inside, flags));
            }
            escaped = c == '\\' && !escaped;
        }
        Err(GrammarError::new(self.line, format!("{what} does not end on its line")))
    }

    fn text(&mut self) -> Result<Token, GrammarError> {
        let line = self.line;
        let (inside, flags) = self.quoted('"', "a string")?;
        let any_case = match flags {
            "" => false,
            "i" => true,
            other => {
                return Err(GrammarError::new(line, format!("unknown flag {other} of a string: only i is supported")));
            }
        };
        let text = unescaped(inside)
            .ok_or_else(|| GrammarError::new(line, format!("\"{inside}\" ends in an invalid escape")))?;
        if text.is_empty() {
            return Err(GrammarError::new(
                line,
                "an empty string matches everywhere: leave it out, or make its part optional",
            ));
        }
        Ok(Token::Text { text, any_case })
    }

    fn pattern(&mut self) -> Result<Token, GrammarError> {
        let line = self.line;
        let (inside, flags) = self.quoted('/', "a pattern")?;
        if let Some(flag) = flags.chars().find(|flag| !"imsux".contains(*flag)) {
            return Err(GrammarError::new(
                line,
                format!("the flag {flag} of a pattern is not supported: i, m, s, u and x are"),
            ));
        }
        Ok(Token::Pattern { pattern: inside.replace("\\/", "/"), flags: flags.to_owned() })
    }
}

fn named(name: &str, line: u32) -> Result<String, GrammarError> {
    let (lower, upper) =
        (name.bytes().any(|byte| byte.is_ascii_lowercase()), name.bytes().any(|byte| byte.is_ascii_uppercase()));
    if lower == upper {
        let what = format!("invalid name {name}: rules have lower-case names, terminals upper-case names");
        return Err(GrammarError::new(line, what));
    }
    Ok(name.to_owned())
}

/// A string with its escapes resolved. The escapes are Python's; a backslash before any other character is literal.
fn unescaped(inside: &str) -> Option<String> {
    let (mut text, mut chars) = (String::new(), inside.chars());
    while let Some(c) = chars.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match chars.next()? {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'f' => text.push('\u{c}'),
            escaped @ ('"' | '\\' | '/') => text.push(escaped),
            kind @ ('x' | 'u' | 'U') => {
                let digits = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let code: String = chars.by_ref().take(digits).collect();
                let code = Some(code).filter(|code| code.len() == digits)?;
                text.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?)?);
            }
            other => text.extend(['\\', other]),
        }
    }
    Some(text)
}
