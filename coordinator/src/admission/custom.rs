//! Tools that a single request defines. The client answers their calls. Their input is checked here, so that a model
//! that gets it wrong learns so immediately.

use std::collections::BTreeMap;
use std::sync::Arc;

use grammar::Grammar;
use proto::v1;
use run::{CallError, ErrorKind, ToolName, Violation};
use schema::pattern::{Budget, Pattern};
use schema::steps::Steps;
use schema::{Schema, describe};

/// Tools of one request: as many as a run may have calls.
pub(crate) const TOOLS_MAX: usize = run::limit::CALLS_PER_RUN_MAX;
/// Bytes of one schema, pattern or grammar.
pub(crate) const DEFINITION_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the definitions of a request that are compiled on the serving thread, if they have no patterns; larger ones
/// are [offloaded](crate::offload).
const QUICK_BYTES_MAX: usize = 4 * 1024;
/// Bytes of an input that is checked against a grammar or a pattern on the serving thread.
const QUICK_INPUT_BYTES_MAX: usize = 256;

/// The tools of a request, by their names.
pub(crate) type CustomTools = BTreeMap<ToolName, Custom>;

#[derive(Debug, Clone)]
pub(crate) struct Custom {
    /// The source of the format; empty for any text.
    definition: String,
    format: Format,
}

#[derive(Debug, Clone)]
enum Format {
    /// Any text.
    Text,
    /// A JSON object that fits the schema.
    Schema(Schema),
    /// A text that the pattern matches as a whole.
    Pattern(Pattern),
    /// A text of this grammar.
    Grammar(Arc<Grammar>),
}

impl Custom {
    /// Compiles a tool of a request; the error names the field. Compiling its patterns draws on the budget of the
    /// request.
    pub(crate) fn of(
        format: Option<v1::request_tool::Format>,
        patterns: &mut Budget,
    ) -> Result<Self, (&'static str, String)> {
        use v1::request_tool::Format as Wire;
        match format {
            Some(Wire::Text(v1::TextFormat {})) => Ok(Self { definition: String::new(), format: Format::Text }),
            Some(Wire::InputSchema(text)) => Self::schema(text, patterns).map_err(|reason| ("input_schema", reason)),
            Some(Wire::Regex(text)) => Self::pattern(text, patterns).map_err(|reason| ("regex", reason)),
            Some(Wire::Lark(text)) => Self::grammar(text, patterns).map_err(|reason| ("lark", reason)),
            None => Err(("format", "is missing: give text, an input_schema, a regex or a grammar".to_owned())),
        }
    }

    fn schema(definition: String, patterns: &mut Budget) -> Result<Self, String> {
        let schema = Schema::compile_within(sized(&definition)?, patterns).map_err(|error| error.to_string())?;
        Ok(Self { definition, format: Format::Schema(schema) })
    }

    fn pattern(definition: String, patterns: &mut Budget) -> Result<Self, String> {
        let pattern = Pattern::of_whole_text(sized(&definition)?, patterns).map_err(|error| error.to_string())?;
        Ok(Self { definition, format: Format::Pattern(pattern) })
    }

    fn grammar(definition: String, patterns: &mut Budget) -> Result<Self, String> {
        let grammar = Grammar::read(sized(&definition)?, patterns).map_err(|fault| fault.to_string())?;
        Ok(Self { definition, format: Format::Grammar(Arc::new(grammar)) })
    }

    /// Identifies the definition among others of the same name.
    pub(crate) fn definition(&self) -> (&'static str, &str) {
        let kind = match self.format {
            Format::Text => "text",
            Format::Schema(_) => "schema",
            Format::Pattern(_) => "pattern",
            Format::Grammar(_) => "grammar",
        };
        (kind, &self.definition)
    }

    /// Whether its input is a JSON object, and so `{}` if there is none.
    pub(crate) fn takes_object(&self) -> bool {
        matches!(self.format, Format::Schema(_))
    }

    /// Whether checking this input is certain to be so quick that a serving thread may do it.
    pub(crate) fn is_quick(&self, input: &[u8]) -> bool {
        match &self.format {
            Format::Text => true,
            Format::Schema(schema) => schema.is_quick(input),
            Format::Pattern(_) | Format::Grammar(_) => input.len() <= QUICK_INPUT_BYTES_MAX,
        }
    }

    /// Checks an input, within the steps that are left to its request.
    pub(crate) fn check(&self, input: &[u8], steps: &mut Steps) -> Result<(), CallError> {
        let invalid = |violations: Vec<Violation>, message| CallError {
            violations,
            ..CallError::new(ErrorKind::ArgumentsInvalid, message)
        };
        match &self.format {
            Format::Text => Ok(()),
            Format::Schema(schema) => schema.check_within(input, steps).map(|_| ()).map_err(|violations| {
                let message = describe(&violations);
                invalid(violations, message)
            }),
            Format::Pattern(pattern) => {
                let Ok(text) = std::str::from_utf8(input) else {
                    return Err(invalid(Vec::new(), "the input is not text".to_owned()));
                };
                let mut own = steps.lend(input.len());
                let matched = pattern.matches(text, &mut own);
                steps.give_back(own);
                match matched {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(invalid(Vec::new(), format!("the input does not match {}", self.definition))),
                    Err(error) => Err(invalid(
                        Vec::new(),
                        format!("{error}: make the pattern {} simpler, or the input shorter", self.definition),
                    )),
                }
            }
            Format::Grammar(grammar) => {
                let checked = match std::str::from_utf8(input) {
                    Ok(input) => grammar.check(input).map_err(|misfit| misfit.to_string()),
                    Err(error) => Err(format!("the input is not text: {error}")),
                };
                checked.map_err(|message| invalid(Vec::new(), message))
            }
        }
    }
}

/// Whether compiling the tools of a request is certain to be quick.
pub(crate) fn is_quick(tools: &[v1::RequestTool]) -> bool {
    use v1::request_tool::Format;
    let sizes = tools.iter().map(|tool| match &tool.format {
        // A pattern may take a hundred times as long as other text.
        Some(Format::InputSchema(text)) if text.contains("attern") => usize::MAX,
        Some(Format::InputSchema(text)) => text.len(),
        Some(Format::Regex(_) | Format::Lark(_)) => usize::MAX,
        Some(Format::Text(_)) | None => 0,
    });
    sizes.fold(0, usize::saturating_add) <= QUICK_BYTES_MAX
}

fn sized(definition: &str) -> Result<&str, String> {
    match definition.len() {
        size if size > DEFINITION_BYTES_MAX => {
            Err(format!("is {size} bytes; the limit is {DEFINITION_BYTES_MAX} bytes"))
        }
        _ => Ok(definition),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proto::v1::request_tool::Format as Wire;

    use super::*;

    /// Unoptimised, and while other tests run. Each takes some milliseconds.
    const TIME_MAX: Duration = Duration::from_secs(3);

    fn refused(format: Wire) -> String {
        let start = Instant::now();
        let (_, why) = Custom::of(Some(format), &mut Budget::default()).expect_err("it is refused");
        assert!(start.elapsed() < TIME_MAX, "{why} takes {:?}", start.elapsed());
        why
    }

    #[test]
    fn grammars_whose_terminals_are_large_together_are_refused_early() {
        let grammar = |terminal: &dyn Fn(usize) -> String| {
            Wire::Lark(format!("start: {}", (0..4000).map(terminal).collect::<Vec<_>>().join(" ")))
        };
        let why = refused(grammar(&|n| format!(r"/\p{{L}}{{40}}{n}/")));
        assert!(why.starts_with("line 1: ") && why.contains("too large"), "{why}");
        let doubled: String = (1..17).map(|n| format!("T{n}: T{} T{}\n", n - 1, n - 1)).collect();
        let many: String = (0..900).map(|n| format!("U{n}: T12 \"{n}\"\n")).collect();
        let used = (0..900).map(|n| format!("U{n}")).collect::<Vec<_>>().join(" | ");
        refused(Wire::Lark(format!("start: {used}\nT0: \"abcdefgh\"\n{doubled}{many}")));

        // The same grammar is compiled once.
        let same = grammar(&|_| r"/\p{L}{9}/".to_owned());
        let start = Instant::now();
        let same = Custom::of(Some(same), &mut Budget::default()).expect("it is small");
        assert!(same.check(b"abc", &mut Steps::of_request(3)).is_err());
        assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
    }

    #[test]
    fn inputs_that_would_be_matched_state_by_state_are_refused() {
        let text: String = (0..250_000_u64).map(|n| if (n * n / 7) % 3 == 0 { 'a' } else { 'b' }).collect();
        for format in [Wire::Regex("[ab]*a[ab]{10000}".to_owned()), Wire::Lark("start: /[ab]*a[ab]{10000}/".to_owned())]
        {
            let tool = Custom::of(Some(format), &mut Budget::default()).expect("it is small");
            let start = Instant::now();
            let error = tool.check(text.as_bytes(), &mut Steps::of_request(text.len())).expect_err("it takes too long");
            assert_eq!(error.kind, ErrorKind::ArgumentsInvalid);
            assert!(start.elapsed() < TIME_MAX, "{:?} takes {:?}", tool.definition(), start.elapsed());
        }
    }

    #[test]
    fn tools_of_a_request_share_one_budget() {
        let mut budget = Budget::default();
        let tools = (0..128).find_map(|n| Custom::of(Some(Wire::Regex(format!(r"\pL{{20}}{n}"))), &mut budget).err());
        assert!(tools.is_some_and(|(field, why)| field == "regex" && why.contains("too large")));
    }
}
