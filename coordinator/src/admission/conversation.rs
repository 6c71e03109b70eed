//! The conversation of a request, as its calls are given it: a value of their context if it is small, otherwise a file
//! that they may open. The file is an object of the run, so it is erased with the run.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use proto::conversation::{self, TOOL_CALL_CONVERSATION};
use proto::{object, v1};
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
    messages: Vec<v1::ConversationMessage>,
    /// The calls of the request.
    calls: usize,
    /// Made if a tool requests it, because most requests have no such tool.
    written: OnceLock<Written>,
}

/// As tools read it.
#[derive(Clone)]
struct Written {
    json: Bytes,
    /// It is small enough to be in the log with each call.
    is_inline: bool,
    /// The object that holds it otherwise. Its id is nil before its run is known.
    object: Object,
}

/// The content is not shown, because it must not get into logs.
impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conversation({} messages)", self.messages.len())
    }
}

impl Conversation {
    /// The conversation of a request of so many calls. All messages have a role.
    pub(crate) fn of(messages: Vec<v1::ConversationMessage>, calls: usize) -> Self {
        Self { messages, calls, written: OnceLock::new() }
    }

    fn written(&self) -> &Written {
        self.written.get_or_init(|| {
            let messages = conversation::messages(self.messages.clone()).expect("all messages have a role");
            let json = Bytes::from(conversation::write(&messages));
            let mut sha256 = [0; 32];
            sha256.copy_from_slice(digest::digest(&digest::SHA256, &json).as_ref());
            let (id, media_type) = (ObjectId::Upload(Uuid::nil()), object::JSON.to_owned());
            let object = Object { id, media_type, size: json.len() as u64, sha256, preview: String::new() };
            let fits = TOOL_CALL_CONVERSATION.len() + json.len() <= CONTEXT_BYTES_MAX;
            let is_inline = fits && json.len() * self.calls <= CONVERSATION_INLINE_BYTES_MAX;
            Written { json, is_inline, object }
        })
    }

    pub(crate) fn json(&self) -> &Bytes {
        &self.written().json
    }

    /// The id under which the object is stored.
    pub(crate) fn object_id(&self) -> &ObjectId {
        &self.written().object.id
    }

    /// Whether all calls whose contexts leave room for it have it in the log.
    pub(crate) fn is_inline(&self) -> bool {
        self.written().is_inline
    }

    /// The same with the id of an object of this run.
    ///
    /// # Errors
    /// It is too large.
    pub(crate) fn in_run(&self, run: RunId) -> Result<Self, RequestError> {
        let mut written = self.written().clone();
        let (size, limit) = (written.json.len(), CONVERSATION_BYTES_MAX);
        if size > limit {
            return Err(RequestError::ConversationTooLarge { size, limit });
        }
        let (pool, nonce) = (POOL.parse().expect("it is a token"), Nonce(rand::random()));
        written.object.id = ObjectId::Result { run, call: CallIndex(0), pool, nonce };
        Ok(Self { messages: Vec::new(), calls: self.calls, written: written.into() })
    }

    /// Gives it to a call whose tool requests it.
    pub(crate) fn give(&self, context: &mut Fields, files: &mut Vec<File>) {
        let Written { json, is_inline, object } = self.written();
        let size = context.size() + TOOL_CALL_CONVERSATION.len() + json.len();
        match std::str::from_utf8(json) {
            Ok(json) if *is_inline && size <= CONTEXT_BYTES_MAX => context.set(TOOL_CALL_CONVERSATION, json),
            _ => files.push(File { name: TOOL_CALL_CONVERSATION.to_owned(), object: object.clone() }),
        }
    }

    /// Gives accepted calls that are to open the object its id.
    pub(crate) fn place(&self, calls: &mut [Arc<CallSpec>]) {
        for call in calls.iter_mut().filter(|call| opens(call)) {
            let files = Arc::make_mut(call).files.iter_mut();
            let files = files.filter(|file| file.name == TOOL_CALL_CONVERSATION);
            files.for_each(|file| file.object.id = self.object_id().clone());
        }
    }
}

/// Whether an accepted call is to open the object of a conversation.
pub(crate) fn opens(call: &CallSpec) -> bool {
    call.files.iter().any(|file| file.name == TOOL_CALL_CONVERSATION)
}
