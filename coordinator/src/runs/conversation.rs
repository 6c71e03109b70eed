//! Stores the conversation of a request as an object of its run, if a call is to open it.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use proto::conversation::TOOL_CALL_CONVERSATION;
use run::{Event, ObjectId, RunId, Timestamp};

use super::Runs;
use crate::admission::accept::{Offer, RequestedCall, Scope};
use crate::admission::conversation::{Conversation, opens};
use crate::admission::error::RequestError;
use crate::fleet::registry::Entry;
use crate::nats::setup::RETENTION;
use crate::objects::take;

impl Runs {
    /// Stores it for the calls of a new run that are to open it. Returns the object that was stored. Unless it is
    /// removed, a run that is not opened then leaves it without references, until it expires with its age.
    pub(super) async fn store_conversation(
        &self,
        conversation: &Conversation,
        run: RunId,
        events: &mut [Event],
    ) -> Result<Option<ObjectId>, RequestError> {
        let opened = events.iter_mut().find_map(|event| match event {
            Event::RunOpened(opened) if opened.calls.iter().any(|call| opens(call)) => Some(opened),
            _ => None,
        });
        let Some(opened) = opened else { return Ok(None) };
        check_is_kept(opened.calls.iter().filter(|call| opens(call)).map(|call| call.deadline))?;
        let conversation = conversation.in_run(run)?;
        conversation.place(&mut opened.calls);
        self.put(&conversation).await?;
        Ok(Some(conversation.object_id().clone()))
    }

    /// Prepares it for calls that are added to a run: stores it if a tool of theirs requests it and it is large.
    /// Returns the object that was stored, which nothing refers to unless the calls are added.
    pub(super) async fn converse_in(
        &self,
        run: RunId,
        calls: &mut [RequestedCall],
        scope: &Scope<'_>,
    ) -> Result<Option<ObjectId>, RequestError> {
        let Some(conversation) = calls.first().and_then(|call| call.conversation.clone()) else { return Ok(None) };
        let mut stored = None;
        let conversation = if calls.iter().any(|call| requests(call, &scope.offer)) {
            let conversation = conversation.in_run(run)?;
            // A context may leave no room for a small one.
            let has_context = !scope.context.is_empty() || calls.iter().any(|call| !call.context.is_empty());
            if !conversation.is_inline() || has_context {
                self.put(&conversation).await?;
                stored = Some(conversation.object_id().clone());
            }
            Some(Arc::new(conversation))
        } else {
            None
        };
        calls.iter_mut().for_each(|call| call.conversation.clone_from(&conversation));
        Ok(stored)
    }

    /// Removes the object of a conversation whose calls were certainly not stored.
    pub(super) async fn remove_conversation(&self, stored: Option<ObjectId>) {
        let Some(id) = stored else { return };
        if let Err(error) = self.objects.remove(&id).await {
            tracing::warn!(%error, "removing a conversation that no call refers to failed; it expires with its age");
        }
    }

    async fn put(&self, conversation: &Conversation) -> Result<(), RequestError> {
        let pieces = stream::iter([Ok::<Bytes, RequestError>(conversation.json().clone())]);
        take(&self.objects, conversation.object_id(), pieces).await.map(drop)
    }
}

/// A call that waits for longer than objects are kept could not open it.
fn check_is_kept(mut deadlines: impl Iterator<Item = Timestamp>) -> Result<(), RequestError> {
    let kept_until = ::nats::now().after(RETENTION);
    if deadlines.all(|deadline| deadline <= kept_until) {
        return Ok(());
    }
    let reason = format!(
        "the conversation that a tool of the call requests is kept for {} h, and the call may last longer: set a \
        shorter `timeout` of the call or the run, or send the call without its conversation",
        RETENTION.as_secs() / 3600
    );
    Err(RequestError::Malformed { field: "timeout".to_owned(), reason })
}

/// Whether the tool of a call requests the conversation, in any of its versions.
fn requests(call: &RequestedCall, offer: &Offer<'_>) -> bool {
    let entry = offer.registry.catalog_of(offer.tenant).find(&call.tool);
    let declares = |entry: &Entry| entry.hosted.manifest.context_keys.iter().any(|key| key == TOOL_CALL_CONVERSATION);
    entry.into_iter().flat_map(Entry::versions).any(declares)
}
