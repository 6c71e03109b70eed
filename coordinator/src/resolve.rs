//! Names that neither the request nor any worker knows: resolvers are asked what they stand for, before anything is stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use hooks::{Moment, Resolution, Resolved};
use proto::schema::describe;
use run::limit::{CALLS_PER_RUN_MAX, METADATA_BYTES_MAX};
use run::{CallError, ErrorKind, TenantId, ToolName};
use serde_json::value::RawValue;

use crate::accept::{Asked, Offer, Unlisted};
use crate::runs::Runs;

/// Names of one request about which resolvers are asked at once.
const NAMES_ASKED_MAX: usize = 16;
/// Under which a call's metadata has the name by which it was asked for, where that stands for another tool.
const CALLED_AS: &str = "toolyard.called_as";

impl Runs {
    /// Whether somebody else is asked about calls before they are accepted.
    pub(crate) fn asks(&self) -> bool {
        self.hooks.has(Moment::PreToolUse) || self.hooks.resolvers.are_there()
    }

    /// Finds out about calls of tools that nobody here knows. An alias takes the call's place: what is judged, stored and
    /// executed from then on is the tool for which it stands.
    pub(crate) async fn resolve(&self, calls: &mut [Asked], offer: Offer<'_>, tenant: Option<&TenantId>) {
        // A request with more is refused as a whole.
        if !self.hooks.resolvers.are_there() || calls.len() > CALLS_PER_RUN_MAX {
            return;
        }
        let names: BTreeSet<ToolName> =
            calls.iter().map(|call| &call.tool).filter(|tool| offer.lacks(tool)).cloned().collect();
        let asked = stream::iter(names).map(|name| async {
            let resolved = self.hooks.resolvers.resolve(&name, tenant).await;
            (name, resolved)
        });
        let known: HashMap<ToolName, Resolved> = asked.buffer_unordered(NAMES_ASKED_MAX).collect().await;
        for call in calls {
            match known.get(&call.tool) {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(resolution))) => settle(call, resolution),
                Some(Err(why)) => call.unlisted = Some(Unlisted::Unresolved(Arc::clone(why))),
            }
        }
    }
}

fn settle(call: &mut Asked, resolution: &Resolution) {
    if call.arguments.is_empty() {
        call.arguments = Bytes::from_static(b"{}");
    }
    if let Some(Err(violations)) = resolution.schema().map(|schema| schema.check(&call.arguments)) {
        let error = CallError::new(ErrorKind::ArgumentsInvalid, describe(&violations));
        call.refusal = Some(CallError { violations, ..error });
    }
    call.unlisted = Some(match resolution {
        Resolution::Client { .. } => Unlisted::Client,
        Resolution::Alias { tool, bound, .. } => {
            let name = std::mem::replace(&mut call.tool, tool.clone());
            call.arguments = with_bound(&call.arguments, bound);
            let size: usize = call.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
            if size + CALLED_AS.len() + name.as_str().len() <= METADATA_BYTES_MAX {
                call.metadata.insert(CALLED_AS.to_owned(), name.to_string());
            }
            Unlisted::Alias
        }
    });
}

/// The arguments with those that are bound in the place of the call's own. What is no object stays, and fits no tool.
fn with_bound(arguments: &Bytes, bound: &BTreeMap<String, Box<RawValue>>) -> Bytes {
    let Ok(mut own) = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(arguments) else {
        return arguments.clone();
    };
    own.extend(bound.iter().map(|(name, value)| (name.clone(), value.clone())));
    serde_json::to_vec(&own).map_or_else(|_| arguments.clone(), Bytes::from)
}
