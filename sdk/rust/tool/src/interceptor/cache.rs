//! Keeps results for calls that ask the same again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use run::{CallerName, Content, Role, TenantId};
use tokio::time::Instant;

use super::{Call, Interceptor, Next};
use crate::error::ToolError;
use crate::output::Output;

/// The longest time for which a result is kept, because the data behind it changes.
const KEEPS_MAX: Duration = Duration::from_secs(24 * 3600);
/// The approximate size of an entry besides its key and its result.
const ENTRY_BYTES: usize = 200;
/// Metadata that only describes the origin of a call: its trace, which differs for each request and attempt, the run
/// and call below which it was made (`tools/collaboration/src/fleet.rs`), and the digest of its arguments before they
/// were completed (`coordinator/src/admission/accept.rs`). All other metadata may change a result, and is in the key.
const ORIGIN: [&str; 6] = [
    "traceparent",
    "tracestate",
    "toolyard.parent_run",
    "toolyard.parent_call",
    "toolyard.path",
    "toolyard.given_arguments",
];

/// Answers a call with the result of an earlier one of the same tenant and caller, with the same tool, arguments,
/// files, metadata and context. These count because the result may depend on the user in them. Metadata that only
/// describes the origin of a call does not count: its trace, and its parent run and call.
///
/// Only for tools that are `read_only`: a second execution of an idempotent tool may be wanted, because the first may
/// have been undone. Only results are kept, not errors, and only of calls without output, because output is a part of
/// the answer that is not kept here. Calls that run at the same time do not wait for each other.
#[derive(Debug)]
pub struct ResultCache {
    keeps: Duration,
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<String, Entry>,
    /// Keys by when they were kept, with the number of the entry; one that was replaced has another number.
    order: VecDeque<(String, u64)>,
    number: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    until: Instant,
    bytes: usize,
    output: Output,
}

impl ResultCache {
    /// Keeps each result for so long, at most a day, and of all at most so many bytes; then the oldest goes.
    #[must_use]
    pub fn new(keeps: Duration, bytes_max: usize) -> Self {
        Self { keeps: keeps.min(KEEPS_MAX), bytes_max, kept: Mutex::default() }
    }

    fn find(&self, key: &str) -> Option<Output> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entries.get(key).filter(|entry| Instant::now() < entry.until).map(|entry| entry.output.clone())
    }

    fn keep(&self, key: String, output: Output) {
        let given = output.0.result.iter().map(Content::size).sum::<usize>() + output.0.extra_state.size();
        let bytes = 2 * key.len() + given + ENTRY_BYTES;
        if bytes > self.bytes_max {
            return;
        }
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&key, None);
        kept.number += 1;
        let number = kept.number;
        kept.bytes += bytes;
        kept.order.push_back((key.clone(), number));
        kept.entries.insert(key, Entry { number, until: now + self.keeps, bytes, output });
        while kept.bytes > self.bytes_max || kept.order.front().is_some_and(|oldest| kept.is_over(oldest, now)) {
            let Some((oldest, number)) = kept.order.pop_front() else { break };
            kept.remove(&oldest, Some(number));
        }
    }
}

impl Kept {
    fn is_over(&self, (key, number): &(String, u64), now: Instant) -> bool {
        self.entries.get(key).is_none_or(|entry| entry.number != *number || entry.until <= now)
    }

    fn remove(&mut self, key: &str, number: Option<u64>) {
        if self.entries.get(key).is_some_and(|entry| number.is_none_or(|number| entry.number == number))
            && let Some(entry) = self.entries.remove(key)
        {
            self.bytes -= entry.bytes;
        }
    }
}

/// As JSON, which no text in it can make ambiguous.
fn key(call: &Call<'_>) -> String {
    let context: Vec<_> = call.context().all_given().iter().collect();
    // With the conversation, if it is one of them.
    let files = &call.context().execution.call.files;
    let files = files.iter().map(|file| (&file.name, file.object.sha256)).collect::<Vec<_>>();
    let tool = call.tool().as_str();
    let metadata: Vec<_> =
        call.context().metadata().iter().filter(|(key, _)| !ORIGIN.contains(&key.as_str())).collect();
    let tenant = call.context().tenant().map(TenantId::as_str);
    let caller = call.context().caller().map(CallerName::as_str);
    let roles: Vec<_> = call.context().roles().iter().map(Role::name).collect();
    serde_json::json!([tool, tenant, caller, roles, metadata, context, files, call.arguments()]).to_string()
}

impl Interceptor for ResultCache {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        if !call.manifest().effects.read_only {
            return next.run(call).await;
        }
        let (key, context) = (key(&call), call.context);
        if let Some(output) = self.find(&key) {
            return Ok(output);
        }
        let said = context.said();
        let output = next.run(call).await?;
        if context.said() == said {
            self.keep(key, output.clone());
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use run::{CallSpec, Fields};

    use super::*;
    use crate::table::Table;
    use crate::testkit;
    use crate::tool::Tool as _;

    /// Returns how often it was executed.
    #[crate::tool(crate = crate, read_only)]
    async fn count() -> String {
        static EXECUTIONS: AtomicU32 = AtomicU32::new(0);
        (EXECUTIONS.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }

    async fn call_with_metadata(table: &Table, key: &str, value: &str) -> Output {
        let (name, arguments) = (Count::NAME.parse().unwrap(), "{}".to_owned());
        let prepared = table.prepare(&name, arguments.as_bytes()).unwrap();
        let (mut context, _chunks) = testkit::context(name, arguments, Duration::from_secs(1), Fields::default());
        let mut spec = CallSpec::clone(&context.execution.call);
        spec.metadata.insert(key.to_owned(), value.to_owned());
        context.execution.call = Arc::new(spec);
        prepared.call(context).await.unwrap()
    }

    /// The results of two calls that differ in this metadata only.
    async fn results(table: &Table, key: &str) -> (Output, Output) {
        (call_with_metadata(table, key, "1").await, call_with_metadata(table, key, "2").await)
    }

    #[tokio::test]
    async fn calls_that_differ_only_in_their_origin_share_a_result_and_other_metadata_keeps_them_apart() {
        let table = Table::new().host(Count).unwrap();
        let table = table.intercept(ResultCache::new(Duration::from_secs(10), 1 << 20));
        for key in ORIGIN {
            let (one, other) = results(&table, key).await;
            assert_eq!(one, other, "{key} describes the origin of the call, and it was executed again");
        }
        for key in ["tenant", "baggage", "toolyard.depth", "toolyard.tokens_left", "toolyard.fire_time"] {
            let (one, other) = results(&table, key).await;
            assert_ne!(one, other, "{key} may change the result");
            assert_eq!(call_with_metadata(&table, key, "1").await, one, "{key} did not change");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_go_when_room_or_time_is_over() {
        let size = ENTRY_BYTES + 2 + 1;
        let cache = ResultCache::new(Duration::from_secs(10), 3 * size);
        let there = |keys: &str| keys.chars().filter(|key| cache.find(&key.to_string()).is_some()).collect::<String>();
        for key in ["a", "b", "c", "a", "d"] {
            cache.keep(key.to_owned(), "x".into());
        }
        assert_eq!(there("abcd"), "acd", "a was kept again after b");
        cache.keep("e".to_owned(), "x".repeat(3 * size).into());
        assert_eq!(there("abcde"), "acd", "what is larger than all of it is not kept, and displaces nothing");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(there("abcd"), "");
        cache.keep("f".to_owned(), "x".into());
        let kept = cache.kept.lock().unwrap();
        assert_eq!((kept.bytes, kept.entries.len(), kept.order.len()), (size, 1, 1), "nothing is left of what is over");
    }
}
