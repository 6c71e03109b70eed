//! Tools that only one request knows. The client answers their calls; here their input is checked, so that a model that
//! gets it wrong is told at once.

mod lark;

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::schema::{Schema, describe};
use proto::v1;
use regex::{Regex, RegexBuilder};
use run::{CallError, ErrorKind, ToolName, Violation};

use self::lark::Grammar;

/// Tools of one request: as many as a run may have calls.
pub(crate) const TOOLS_MAX: usize = run::limit::CALLS_PER_RUN_MAX;
/// Bytes of one schema, pattern or grammar.
pub(crate) const DEFINITION_BYTES_MAX: usize = 64 * 1024;
/// Bytes that a compiled pattern may take, and as many again for what is built while it matches.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// The tools of a request, by their names.
pub(crate) type CustomTools = BTreeMap<ToolName, Custom>;

#[derive(Debug, Clone)]
pub(crate) struct Custom {
    /// What the format was made of; empty for any text.
    definition: String,
    format: Format,
}

#[derive(Debug, Clone)]
enum Format {
    /// Any text.
    Text,
    /// A JSON object that fits.
    Schema(Schema),
    /// A text that matches from its beginning to its end.
    Pattern(Regex),
    /// A text of this grammar.
    Grammar(Arc<Grammar>),
}

impl Custom {
    /// As it was asked for; the error names the field.
    pub(crate) fn of(format: Option<v1::request_tool::Format>) -> Result<Self, (&'static str, String)> {
        use v1::request_tool::Format as Wire;
        match format {
            Some(Wire::Text(v1::TextFormat {})) => Ok(Self { definition: String::new(), format: Format::Text }),
            Some(Wire::InputSchema(schema)) => Self::schema(schema).map_err(|reason| ("input_schema", reason)),
            Some(Wire::Regex(pattern)) => Self::pattern(pattern).map_err(|reason| ("regex", reason)),
            Some(Wire::Lark(grammar)) => Self::grammar(grammar).map_err(|reason| ("lark", reason)),
            None => Err(("format", "is missing: give text, an input_schema, a regex or a grammar".to_owned())),
        }
    }

    fn schema(definition: String) -> Result<Self, String> {
        let schema = Schema::compile(sized(&definition)?).map_err(|error| error.to_string())?;
        Ok(Self { definition, format: Format::Schema(schema) })
    }

    fn pattern(definition: String) -> Result<Self, String> {
        let whole = format!(r"\A(?:{})\z", sized(&definition)?);
        let compile = |pattern: &str| {
            let mut builder = RegexBuilder::new(pattern);
            let built = builder.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX).build();
            built.map_err(|error| error.to_string())
        };
        // It must stand on its own: one that closes our group would match what it should not.
        compile(&definition)?;
        let pattern = compile(&whole)?;
        Ok(Self { definition, format: Format::Pattern(pattern) })
    }

    fn grammar(definition: String) -> Result<Self, String> {
        let grammar = Grammar::read(sized(&definition)?).map_err(|fault| fault.to_string())?;
        Ok(Self { definition, format: Format::Grammar(Arc::new(grammar)) })
    }

    /// What tells it from another of its name.
    pub(crate) fn definition(&self) -> (&'static str, &str) {
        let kind = match self.format {
            Format::Text => "text",
            Format::Schema(_) => "schema",
            Format::Pattern(_) => "pattern",
            Format::Grammar(_) => "grammar",
        };
        (kind, &self.definition)
    }

    /// Whether its input is a JSON object, and so `{}` when there is none.
    pub(crate) fn takes_object(&self) -> bool {
        matches!(self.format, Format::Schema(_))
    }

    pub(crate) fn check(&self, input: &[u8]) -> Result<(), CallError> {
        let invalid = |violations: Vec<Violation>, message| CallError {
            violations,
            ..CallError::new(ErrorKind::ArgumentsInvalid, message)
        };
        match &self.format {
            Format::Text => Ok(()),
            Format::Schema(schema) => schema.check(input).map(|_| ()).map_err(|violations| {
                let message = describe(&violations);
                invalid(violations, message)
            }),
            Format::Pattern(pattern) => {
                let fits = std::str::from_utf8(input).is_ok_and(|input| pattern.is_match(input));
                let message = || format!("the input does not match {}", self.definition);
                if fits { Ok(()) } else { Err(invalid(Vec::new(), message())) }
            }
            Format::Grammar(grammar) => {
                let checked = match std::str::from_utf8(input) {
                    Ok(input) => grammar.check(input).map_err(|misfit| misfit.to_string()),
                    Err(error) => Err(format!("the input is no text: {error}")),
                };
                checked.map_err(|message| invalid(Vec::new(), message))
            }
        }
    }
}

fn sized(definition: &str) -> Result<&str, String> {
    match definition.len() {
        size if size > DEFINITION_BYTES_MAX => {
            Err(format!("is {size} bytes, at most {DEFINITION_BYTES_MAX} are taken"))
        }
        _ => Ok(definition),
    }
}
