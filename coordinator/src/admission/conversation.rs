//! The conversation of a request, as its calls are given it: a value of their context if it is small, otherwise a file
//! that they may open. The file is an object of the run, so it is erased with the run.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use proto::conversation::{self, Message, TOOL_CALL_CONVERSATION};
use proto::object;
use ring::digest;
use run::limit::{CONTEXT_BYTES_MAX, CONVERSATION_BYTES_MAX, CONVERSATION_INLINE_BYTES_MAX};
use run::{CallIndex, CallSpec, Fields, File, Nonce, Object, ObjectId, RunId};
use uuid::Uuid;

use crate::admission::error::RequestError;

/// In the place of a pool in the object's id. Workers of a pool of this name could only fail the calls that read it,
/// because the log has its SHA-256.
const POOL: &str = "_conversation";

/// A conversation that calls may be given.
#[derive(Clone)]
pub(crate) struct Conversation {
    json: Bytes,
    /// It is small enough to be in the log with each call.
    is_inline: bool,
    /// The object that holds it otherwise. Its id is nil before its run is known.
    object: Object,
}

/// The content is not shown, because it must not get into logs.
impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conversation({} bytes)", self.json.len())
    }
}

impl Conversation {
    /// The conversation of a request of so many calls.
    ///
    /// # Errors
    /// It is too large.
    pub(crate) fn of(messages: &[Message], calls: usize) -> Result<Self, RequestError> {
        let json = Bytes::from(conversation::write(messages));
        let (size, limit) = (json.len(), CONVERSATION_BYTES_MAX);
        if size > limit {
            return Err(RequestError::ConversationTooLarge { size, limit });
        }
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest::digest(&digest::SHA256, &json).as_ref());
        let object = Object {
            id: ObjectId::Upload(Uuid::nil()),
            media_type: object::JSON.to_owned(),
            size: size as u64,
            sha256,
            preview: String::new(),
        };
        let fits = TOOL_CALL_CONVERSATION.len() + size <= CONTEXT_BYTES_MAX;
        Ok(Self { is_inline: fits && size * calls <= CONVERSATION_INLINE_BYTES_MAX, json, object })
    }

    pub(crate) fn json(&self) -> &Bytes {
        &self.json
    }

    /// The id under which the object is stored.
    pub(crate) fn object_id(&self) -> &ObjectId {
        &self.object.id
    }

    /// Whether all calls whose contexts leave room for it have it in the log.
    pub(crate) fn is_inline(&self) -> bool {
        self.is_inline
    }

    /// The same with the id of an object of this run.
    pub(crate) fn in_run(&self, run: RunId) -> Self {
        let (pool, nonce) = (POOL.parse().expect("it is a token"), Nonce(rand::random()));
        let id = ObjectId::Result { run, call: CallIndex(0), pool, nonce };
        Self { object: Object { id, ..self.object.clone() }, ..self.clone() }
    }

    /// Gives it to a call whose tool requests it.
    pub(crate) fn give(&self, context: &mut Fields, files: &mut Vec<File>) {
        let size = context.size() + TOOL_CALL_CONVERSATION.len() + self.json.len();
        match std::str::from_utf8(&self.json) {
            Ok(json) if self.is_inline && size <= CONTEXT_BYTES_MAX => context.set(TOOL_CALL_CONVERSATION, json),
            _ => files.push(File { name: TOOL_CALL_CONVERSATION.to_owned(), object: self.object.clone() }),
        }
    }

    /// Gives accepted calls that are to open the object its id. Returns whether there is one.
    pub(crate) fn place(&self, calls: &mut [Arc<CallSpec>]) -> bool {
        let mut has_any = false;
        for call in calls {
            if call
                .files
                .iter()
                .any(|file| file.name == TOOL_CALL_CONVERSATION && file.object.sha256 == self.object.sha256)
            {
                let files = &mut Arc::make_mut(call).files;
                let files = files.iter_mut().filter(|file| file.name == TOOL_CALL_CONVERSATION);
                files.for_each(|file| file.object.id = self.object.id.clone());
                has_any = true;
            }
        }
        has_any
    }
}
