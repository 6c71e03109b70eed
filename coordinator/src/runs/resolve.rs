//! Resolves tool names that neither the request nor any worker has. Resolvers run before anything is stored.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ::hooks::{HookPoint, Resolution, Resolved};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use run::limit::CALLS_PER_RUN_MAX;
use run::{CallError, ErrorKind, ToolName};
use schema::describe;

use super::Runs;
use crate::admission::accept::{Offer, RequestedCall, Unlisted, keep_called_as};
use crate::fleet::facades::bind;

/// The most names of one request that resolvers are queried for at once.
const NAMES_ASKED_MAX: usize = 16;

impl Runs {
    /// Whether hooks or resolvers run for calls before they are accepted.
    pub(crate) fn asks(&self) -> bool {
        self.hooks.has(HookPoint::PreToolUse) || self.hooks.resolvers.are_there()
    }

    /// Resolves calls of tools that are unknown here. An alias is replaced: its target is checked, stored and executed.
    pub(crate) async fn resolve(&self, calls: &mut [RequestedCall], offer: Offer<'_>) {
        // A request with more calls is rejected as a whole.
        if !self.hooks.resolvers.are_there() || calls.len() > CALLS_PER_RUN_MAX {
            return;
        }
        let names: BTreeSet<ToolName> =
            calls.iter().map(|call| &call.tool).filter(|tool| offer.lacks(tool)).cloned().collect();
        let requested = stream::iter(names).map(|name| async {
            let resolved = self.hooks.resolvers.resolve(&name, offer.tenant).await;
            (name, resolved)
        });
        let known: HashMap<ToolName, Resolved> = requested.buffer_unordered(NAMES_ASKED_MAX).collect().await;
        for call in calls {
            match known.get(&call.tool) {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(resolution))) => settle(call, resolution),
                Some(Err(why)) => call.unlisted = Some(Unlisted::Unresolved(Arc::clone(why))),
            }
        }
    }
}

fn settle(call: &mut RequestedCall, resolution: &Resolution) {
    // Empty arguments get the bound ones, too.
    if matches!(call.arguments.trim_ascii(), b"" | b"null") {
        call.arguments = Bytes::from_static(b"{}");
    }
    if let Some(Err(violations)) = resolution.schema().map(|schema| schema.check(&call.arguments)) {
        let error = CallError::new(ErrorKind::ArgumentsInvalid, describe(&violations));
        call.refusal = Some(CallError { violations, ..error });
    }
    call.unlisted = Some(match resolution {
        Resolution::Client { .. } => Unlisted::Client,
        Resolution::Alias { tool, bound, .. } => {
            match bind(&call.tool, &call.arguments, bound) {
                Ok(arguments) => call.arguments = arguments,
                // The call keeps its own arguments, or the whole request would be too large to be stored.
                Err(error) => call.refusal = Some(error),
            }
            keep_called_as(&call.tool, &mut call.metadata);
            call.tool = tool.clone();
            Unlisted::Alias
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use run::{Fields, WithoutWorker};
    use serde_json::value::RawValue;

    use super::*;

    fn requested(arguments: &'static str) -> RequestedCall {
        RequestedCall {
            id: None,
            tool: "greet".parse().unwrap(),
            arguments: arguments.into(),
            metadata: BTreeMap::new(),
            not_before: None,
            timeout: None,
            queue_timeout: None,
            without_worker: WithoutWorker::Wait,
            concurrency: None,
            approval: None,
            context: Fields::default(),
            files: Vec::new(),
            is_clients: false,
            must_stream: false,
            priority: None,
            conversation: None,
            refusal: None,
            answer: None,
            unlisted: None,
        }
    }

    #[test]
    fn what_is_bound_is_given_however_little_the_call_says() {
        let bound = [("to".to_owned(), RawValue::from_string("\"Ada\"".to_owned()).unwrap())].into();
        let alias = Resolution::Alias { tool: "echo".parse().unwrap(), bound, schema: None };
        for (arguments, expected) in [
            ("", r#"{"to":"Ada"}"#),
            (" \n", r#"{"to":"Ada"}"#),
            ("null", r#"{"to":"Ada"}"#),
            (" null ", r#"{"to":"Ada"}"#),
            ("{}", r#"{"to":"Ada"}"#),
            (r#"{"to":"Bob","n":1.10}"#, r#"{"n":1.10,"to":"Ada"}"#),
            (r#"{"to":"Bob","to":"Eve"}"#, r#"{"to":"Ada"}"#),
            // Not objects: no tool takes these.
            ("[]", "[]"),
            ("nul", "nul"),
        ] {
            let mut call = requested(arguments);
            settle(&mut call, &alias);
            assert_eq!((call.tool.as_str(), &*call.arguments), ("echo", expected.as_bytes()), "{arguments:?}");
        }
    }
}
