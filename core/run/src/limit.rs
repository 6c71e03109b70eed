//! Every limit of a run, with its reason. Reaching one gives a typed error, never a silent cut.

use std::time::Duration;

/// Calls in one run. A model rarely asks for more than a dozen; the opening event must fit one message of the log.
pub const CALLS_PER_RUN_MAX: usize = 128;
/// Questions that one call asks the client, those of all its attempts together. A person who is asked more often than
/// that gives up.
pub const QUESTIONS_PER_CALL_MAX: usize = 16;
/// Questions that the calls of one run ask together, beside [`CALLS_PER_RUN_MAX`].
pub const QUESTIONS_PER_RUN_MAX: usize = 128;
/// Bytes of a question, its schema included, as JSON text. A person reads it.
pub const QUESTION_BYTES_MAX: usize = 32 * 1024;
/// Bytes of the arguments of one call, as JSON text. Larger input belongs in a file that the call names.
pub const ARGUMENTS_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the arguments, metadata and contexts of all calls that one event opens together: the event must fit one
/// broker message (1 MiB).
pub const OPENING_BYTES_MAX: usize = 768 * 1024;
/// Bytes of the metadata of one call, keys and values together.
pub const METADATA_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a context, keys and values together: of a run's, of a call's, and of what a tool is given of both. It is in
/// the log with every call whose tool wants it.
pub const CONTEXT_BYTES_MAX: usize = 16 * 1024;
/// Keys of a context that a tool may declare.
pub const CONTEXT_KEYS_MAX: usize = 32;
/// Bytes of such a key.
pub const CONTEXT_KEY_BYTES_MAX: usize = 64;
/// Bytes of the history that a call is given, as JSON: with the arguments it must fit one broker message (1 MiB). What
/// does not fit is named, without arguments and result.
pub const HISTORY_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the conversation of a request, as JSON: as many as a body that holds one may have.
pub const CONVERSATION_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of the conversation in the log, for all calls of a request together. A larger one is stored as an object.
pub const CONVERSATION_INLINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the state that a call gives back, keys and values together: of all calls of a run, merged, at most 1 MiB,
/// which a client takes in one message.
pub const EXTRA_STATE_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a call's result in the log, all its parts together. Larger parts are stored as objects.
pub const RESULT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of one part of a result that is stored beside the log: a worker has it in its memory.
pub const OBJECT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes of such a part that the log shows: enough for a model to see what it is.
pub const PREVIEW_BYTES_MAX: usize = 4 * 1024;
/// Files of a request's calls.
pub const FILES_MAX: usize = 32;
/// Bytes of a file's name.
pub const FILE_NAME_BYTES_MAX: usize = 255;
/// Bytes of one chunk of output. Longer writes are split by the worker.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Chunks of one attempt: what a reader that waits for the floor may have to remember stays bounded.
pub const CHUNKS_PER_ATTEMPT_MAX: u32 = 1 << 20;
/// Bytes of output of one attempt: one chatty call must not fill the log for everybody.
pub const OUTPUT_BYTES_PER_ATTEMPT_MAX: usize = 64 * 1024 * 1024;
/// Parts of one result.
pub const RESULT_PARTS_MAX: usize = 256;
/// Sources that one text cites: far more than a person looks up.
pub const CITATIONS_MAX: usize = 256;
/// Bytes of a channel's name, a media type, the message of a progress, or the title or source of a citation.
pub const LABEL_BYTES_MAX: usize = 1024;
/// Chunks of one attempt that may wait for an earlier one. A worker keeps fewer unacknowledged, so no honest one gets
/// here.
pub const CHUNKS_EARLY_MAX: usize = 16 * 1024;
/// Bytes of the text of an error; more is cut, with a mark.
pub const ERROR_BYTES_MAX: usize = 16 * 1024;
/// Failed attempts of a call that are remembered with their errors: enough to see why, bounded for a tool that may be
/// tried very often.
pub const FAILURES_KEPT_MAX: usize = 8;
/// How far an attempt's number may lie above those before it. Numbers rise with deliveries, of which a call sees far
/// fewer in its life; without a limit one forged number would leave no higher one for the honest.
pub const ATTEMPTS_SKIPPED_MAX: u32 = 1 << 20;
/// Bytes of a client's call id.
pub const CALL_ID_BYTES_MAX: usize = 128;
/// Bytes of a caller's name: one of ours, and what a token's issuer calls its subject.
pub const CALLER_BYTES_MAX: usize = 640;
/// Bytes of the name of a tool, as the vendors of models allow it.
pub const TOOL_NAME_BYTES_MAX: usize = 128;
/// Bytes of a tool's description: it is sent to the model with every turn.
pub const DESCRIPTION_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a schema, as JSON text. A pool's tools must fit one broker message together (1 MiB).
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Subschemas that apply to one and the same value, references followed: what checking it may cost.
pub const SCHEMA_BRANCHES_MAX: u64 = 4096;
/// How deep references and subschemas that apply to the same value may lead: what a check may take of the stack.
pub const SCHEMA_DEPTH_MAX: usize = 128;
/// Tools that a run may attach: more than a model can choose from.
pub const RUN_TOOLS_MAX: usize = 256;
/// Tags of a tool.
pub const TAGS_MAX: usize = 32;
/// Bytes of a tag, or of a category.
pub const TAG_BYTES_MAX: usize = 64;
/// Bytes of what a tool's effects reach.
pub const SIDE_EFFECT_SCOPE_BYTES_MAX: usize = 256;
/// Of the title of a tool.
pub const TITLE_BYTES_MAX: usize = 256;
/// Bytes of a tool's version.
pub const VERSION_BYTES_MAX: usize = 64;
/// Other names of a tool.
pub const ALIASES_MAX: usize = 16;
/// Attempts that a manifest may ask for.
pub const ATTEMPTS_MAX: u32 = 1000;
/// Bytes of a pool's or worker's name: it is one token of a subject.
pub const TOKEN_BYTES_MAX: usize = 64;
/// Bytes of a reason given with a cancellation.
pub const REASON_BYTES_MAX: usize = 1024;

/// The longest life of a run: so long it may wait for its client, for an approval, or for the time of a call.
pub const RUN_LIFE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The life of a run whose client sets none.
pub const RUN_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long after its dispatch a call has ended, its time in the queue and all its attempts included: the log keeps a
/// job an hour longer.
pub const EXECUTION_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest wait before another attempt that an error may ask for; longer is taken for as long. A quota that returns
/// later than that is better told to the caller.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// How long a tool may take to stop by itself once its call is cancelled.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// How much later than the worker the owner ends an attempt that overran its deadline: the worker's own word, with its
/// reason, should come first. Covers the election of a broker's leader (4-9 s).
pub const OVERRUN_GRACE: Duration = Duration::from_secs(10);
/// How long a call awaits approval where its caller does not say: a person who is there answers sooner, and a model's
/// turn need not wait for one who is not.
pub const APPROVAL_TIMEOUT: Duration = Duration::from_secs(3600);
