//! The file of interceptors, in TOML: which of the built-in ones stand around which tools of a worker. It is checked as
//! a whole when a worker starts.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toolyard_tool::interceptor::{Emulate, ErrorToMessage, LargeResult, RateLimit, ResultCache, Retry};
use toolyard_tool::{InvalidPattern, Table};

/// Interceptors of one file, because each stands around every call of its tools.
const INTERCEPTORS_MAX: usize = 64;

/// Why a file of interceptors is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidInterceptors {
    #[error("the interceptors in {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the interceptors in {} cannot be understood: {error}", path.display())]
    Malformed { path: PathBuf, error: toml::de::Error },
    #[error("in {}, interceptor {number}: {reason}", path.display())]
    Interceptor { path: PathBuf, number: usize, reason: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    interceptor: Vec<Entry>,
}

/// One of the built-in interceptors, for tools with these names (`*` stands for any characters; all if left out).
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Entry {
    /// [`Retry`]
    Retry {
        #[serde(default)]
        tools: Vec<String>,
        #[serde(default = "Entry::tries")]
        tries: u32,
        #[serde(default = "Entry::first_ms")]
        first_ms: u64,
        #[serde(default = "Entry::longest_ms")]
        longest_ms: u64,
    },
    /// [`ErrorToMessage`]
    ErrorToMessage {
        #[serde(default)]
        tools: Vec<String>,
    },
    /// [`RateLimit`]
    RateLimit {
        #[serde(default)]
        tools: Vec<String>,
        calls: u32,
        per_s: u64,
        #[serde(default)]
        patience_ms: u64,
    },
    /// [`ResultCache`]
    ResultCache {
        #[serde(default)]
        tools: Vec<String>,
        keep_s: u64,
        bytes: usize,
    },
    /// [`LargeResult`]
    LargeResult {
        #[serde(default)]
        tools: Vec<String>,
        bytes: usize,
        folder: Option<PathBuf>,
    },
    /// [`Emulate`]. The tools are named, because without their names no tool of the worker would run.
    Emulate { tools: Vec<String>, answer: String },
}

impl Entry {
    fn tries() -> u32 {
        3
    }

    fn first_ms() -> u64 {
        100
    }

    fn longest_ms() -> u64 {
        2000
    }

    /// Why it is invalid.
    fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Retry { tries: 0, .. } => Some("tries: must be at least 1"),
            Self::RateLimit { calls: 0, .. } => Some("calls: must be at least 1"),
            Self::RateLimit { per_s: 0, .. } => Some("per_s: must be at least 1"),
            Self::ResultCache { keep_s: 0, .. } => Some("keep_s: must be at least 1"),
            Self::LargeResult { bytes: 0, .. } => Some("bytes: must be at least 1"),
            Self::Emulate { tools, .. } if tools.is_empty() => Some("tools: name the tools that are not to run"),
            Self::Retry { .. }
            | Self::ErrorToMessage { .. }
            | Self::RateLimit { .. }
            | Self::ResultCache { .. }
            | Self::LargeResult { .. }
            | Self::Emulate { .. } => None,
        }
    }

    /// Puts it around its tools, inside of the interceptors of the table.
    fn around(self, table: Table) -> Result<Table, InvalidPattern> {
        match self {
            Self::Retry { tools, tries, first_ms, longest_ms } => {
                let (first, longest) = (Duration::from_millis(first_ms), Duration::from_millis(longest_ms));
                table.intercept_matching(&tools, Retry::new(tries, first, longest))
            }
            Self::ErrorToMessage { tools } => table.intercept_matching(&tools, ErrorToMessage),
            Self::RateLimit { tools, calls, per_s, patience_ms } => {
                let limit = RateLimit::new(calls, Duration::from_secs(per_s));
                table.intercept_matching(&tools, limit.patience(Duration::from_millis(patience_ms)))
            }
            Self::ResultCache { tools, keep_s, bytes } => {
                table.intercept_matching(&tools, ResultCache::new(Duration::from_secs(keep_s), bytes))
            }
            Self::LargeResult { tools, bytes, folder } => {
                let large = match folder {
                    Some(folder) => LargeResult::to_folder(bytes, folder),
                    None => LargeResult::cut(bytes),
                };
                table.intercept_matching(&tools, large)
            }
            Self::Emulate { tools, answer } => table.intercept_matching(&tools, Emulate::new(answer)),
        }
    }
}

/// Puts the interceptors of a file around the tools of a table, the first outermost. They also stand around matching
/// tools that the table hosts later.
///
/// # Errors
/// If the file is invalid, with the line or the interceptor and its field.
pub fn intercept(mut table: Table, file: &Path) -> Result<Table, InvalidInterceptors> {
    let path = || file.to_owned();
    let text =
        std::fs::read_to_string(file).map_err(|source| InvalidInterceptors::Unreadable { path: path(), source })?;
    let File { interceptor } =
        toml::from_str(&text).map_err(|error| InvalidInterceptors::Malformed { path: path(), error })?;
    for (entry, number) in interceptor.into_iter().zip(1..) {
        let invalid = |reason: String| InvalidInterceptors::Interceptor { path: path(), number, reason };
        if number > INTERCEPTORS_MAX {
            return Err(invalid(format!("there are more than {INTERCEPTORS_MAX} interceptors")));
        }
        if let Some(fault) = entry.fault() {
            return Err(invalid(fault.to_owned()));
        }
        table = entry.around(table).map_err(|error| invalid(format!("tools: {error}")))?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde_json::json;
    use toolyard_tool::testkit::call_in;
    use toolyard_tool::{About, Context, Output, ToolError};

    use super::*;

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct NoInput {}

    /// Fails twice in a way that passes, and then gives much.
    fn flaky() -> Table {
        let failures = AtomicU32::new(0);
        let fails = move |_: NoInput, _: Context| {
            let fails = failures.fetch_add(1, Ordering::Relaxed) < 2;
            let outcome = if fails { Err(ToolError::retryable("not yet")) } else { Ok(Output::from("x".repeat(100))) };
            std::future::ready(outcome)
        };
        let breaks = |_: NoInput, _: Context| std::future::ready(Err::<Output, _>(ToolError::new("y".repeat(100))));
        let about = About::new("Fails twice.").read_only();
        let table = Table::new().host_fn("flaky", about, fails).expect("it can be hosted");
        table.host_fn("breaks", About::new("Fails."), breaks).expect("it can be hosted")
    }

    fn intercepted(text: &str) -> Result<Table, InvalidInterceptors> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it can be written");
        intercept(flaky(), file.path())
    }

    #[tokio::test(start_paused = true)]
    async fn each_stands_around_its_tools() {
        let text = "[[interceptor]]\nkind = \"error_to_message\"\ntools = [\"br*\"]\n\
            [[interceptor]]\nkind = \"retry\"\ntools = [\"flaky\"]\n\
            [[interceptor]]\nkind = \"large_result\"\nbytes = 10\n";
        let table = intercepted(text).expect("it is well formed");
        let flaky = call_in(&table, "flaky", json!({})).await.answer();
        assert!(flaky.starts_with("xxxxxxxxxx") && !flaky.contains("xxxxxxxxxxx"), "{flaky}");
        let breaks = call_in(&table, "breaks", json!({})).await.answer();
        assert!(breaks.starts_with("The call failed: yyy"), "{breaks}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_is_the_outermost() {
        let (message, large) = (
            "[[interceptor]]\nkind = \"error_to_message\"\n",
            "[[interceptor]]\nkind = \"large_result\"\nbytes = 20\n",
        );
        let whole = intercepted(&format!("{message}{large}")).expect("it is well formed");
        let whole = call_in(&whole, "breaks", json!({})).await.answer();
        assert!(whole.ends_with("yyy"), "an error is not cut, and its message comes after: {whole}");
        let cut = intercepted(&format!("{large}{message}")).expect("it is well formed");
        let cut = call_in(&cut, "breaks", json!({})).await.answer();
        assert!(cut.starts_with("The call failed: yyy") && !cut.contains("yyyy"), "{cut}");
    }

    #[tokio::test]
    async fn an_emulated_tool_does_not_run_and_all_others_do() {
        let text = "[[interceptor]]\nkind = \"emulate\"\ntools = [\"br*\"]\nanswer = \"Done.\"\n\
            [[interceptor]]\nkind = \"retry\"\nfirst_ms = 0\n";
        let table = intercepted(text).expect("it is well formed");
        assert_eq!(call_in(&table, "breaks", json!({})).await.answer(), "Done.");
        assert_eq!(call_in(&table, "flaky", json!({})).await.answer(), "x".repeat(100));
    }

    #[test]
    fn a_file_that_cannot_be_used_says_what_is_wrong_and_where() {
        let table = [
            ("[[interceptor]]\nkind = \"emulate_by_model\"", "unknown variant `emulate_by_model`"),
            ("[[interceptor]]\nkind = \"emulate\"\nanswer = \"x\"", "missing field `tools`"),
            ("[[interceptor]]\nkind = \"emulate\"\ntools = []\nanswer = \"x\"", "interceptor 1: tools: name the"),
            ("[[interceptor]]\nkind = \"retry\"\ntimes = 3", "unknown field `times`"),
            ("[[interceptor]]\nkind = \"retry\"\ntries = 0", "interceptor 1: tries: must be at least 1"),
            ("[[interceptor]]\nkind = \"rate_limit\"\ncalls = 0\nper_s = 1", "interceptor 1: calls: must be"),
            ("[[interceptor]]\nkind = \"rate_limit\"\ncalls = 1", "missing field `per_s`"),
            ("[[interceptor]]\nkind = \"retry\"\ntools = [\"[\"]", "interceptor 1: tools:"),
            ("[[interceptors]]\n", "unknown field `interceptors`"),
        ];
        for (text, expected) in table {
            let error = intercepted(text).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = intercept(flaky(), "nowhere.toml".as_ref()).expect_err("there is none").to_string();
        assert!(error.contains("nowhere.toml"), "{error}");
    }
}
