//! Stores the conversation of a request as an object of its run, if a call is to open it.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use proto::conversation::TOOL_CALL_CONVERSATION;
use run::{Event, RunId};

use super::Runs;
use crate::admission::accept::{Offer, RequestedCall, Scope};
use crate::admission::conversation::Conversation;
use crate::admission::error::RequestError;
use crate::fleet::registry::Entry;
use crate::objects::take;

impl Runs {
    /// Stores it for the calls of a new run that are to open it. A run that is not opened then leaves an object
    /// without references, which expires with its age.
    pub(super) async fn store_conversation(
        &self,
        conversation: &Conversation,
        run: RunId,
        events: &mut [Event],
    ) -> Result<(), RequestError> {
        let conversation = conversation.in_run(run);
        let mut has_any = false;
        for event in events {
            if let Event::RunOpened(opened) = event {
                has_any |= conversation.place(&mut opened.calls);
            }
        }
        if has_any { self.put(&conversation).await } else { Ok(()) }
    }

    /// Prepares it for calls that are added to a run: stores it if a tool of theirs requests it and it is large.
    pub(super) async fn converse_in(
        &self,
        run: RunId,
        calls: &mut [RequestedCall],
        scope: &Scope<'_>,
    ) -> Result<(), RequestError> {
        let Some(conversation) = calls.first().and_then(|call| call.conversation.clone()) else { return Ok(()) };
        let conversation = if calls.iter().any(|call| requests(call, &scope.offer)) {
            let conversation = conversation.in_run(run);
            // A context may leave no room for a small one.
            let has_context = !scope.context.is_empty() || calls.iter().any(|call| !call.context.is_empty());
            if !conversation.is_inline() || has_context {
                self.put(&conversation).await?;
            }
            Some(Arc::new(conversation))
        } else {
            None
        };
        calls.iter_mut().for_each(|call| call.conversation.clone_from(&conversation));
        Ok(())
    }

    async fn put(&self, conversation: &Conversation) -> Result<(), RequestError> {
        let pieces = stream::iter([Ok::<Bytes, RequestError>(conversation.json().clone())]);
        take(&self.objects, conversation.object_id(), pieces).await.map(drop)
    }
}

/// Whether the tool of a call requests the conversation, in any of its versions.
fn requests(call: &RequestedCall, offer: &Offer<'_>) -> bool {
    let entry = offer.registry.catalog_of(offer.tenant).find(&call.tool);
    let declares = |entry: &Entry| entry.hosted.manifest.context_keys.iter().any(|key| key == TOOL_CALL_CONVERSATION);
    entry.into_iter().flat_map(Entry::versions).any(declares)
}
