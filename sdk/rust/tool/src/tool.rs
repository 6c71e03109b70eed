//! The trait of a tool: a name, a typed input, and an async function of a [`Context`] and that input.

use std::time::Duration;

use proto::convert::manifest::{concurrency_out, origin_out, permission_out};
use proto::convert::policy_out;
use proto::v1;
use run::{AfterPartialOutput, Backoff, Concurrency, Effects, Origin, Permission, Policy, RetryOn};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::context::Context;
use crate::error::ToolError;
use crate::output::Output;
use crate::table::schema_of;

/// Something callable by name. The attribute [`tool`](macro@crate::tool) makes one of a plain function; this is the
/// long form, for a tool with more to it than a function:
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use toolyard_tool::{About, Context, Output, Table, Tool, ToolError};
///
/// struct Greet {
///     greeting: String,
/// }
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Person {
///     /// Whom to greet
///     name: String,
/// }
///
/// impl Tool for Greet {
///     const NAME: &'static str = "greet";
///     type Input = Person;
///
///     fn about(&self) -> About {
///         About::new("Greets a person.").read_only()
///     }
///
///     async fn call(&self, _: &Context, person: Person) -> Result<Output, ToolError> {
///         Ok(format!("{}, {}!", self.greeting, person.name).into())
///     }
/// }
///
/// # fn main() -> Result<(), toolyard_tool::InvalidTool> {
/// let table = Table::new().host(Greet { greeting: "Hello".to_owned() })?;
/// # Ok(())
/// # }
/// ```
///
/// The arguments are checked against the schema of [`Self::Input`] before the tool is called. A call may be cancelled
/// or overrun its time: then its context's [`Context::cancelled`] resolves, and the future is dropped after a grace
/// period.
pub trait Tool: Send + Sync + 'static {
    /// The name by which models call it: 1 to 128 of `A-Z a-z 0-9 _ . -`.
    const NAME: &'static str;
    /// The arguments. The doc comments of the fields are the descriptions for the model.
    type Input: DeserializeOwned + JsonSchema + Send;

    fn about(&self) -> About;

    fn call(&self, context: &Context, input: Self::Input) -> impl Future<Output = Result<Output, ToolError>> + Send;
}

/// Something callable whose name and schema are known only at run time: the tool of an MCP server, of a program, of an
/// HTTP endpoint. It is hosted by [`Table::host_any`](crate::Table::host_any). The arguments fit the schema.
pub trait AnyTool: Send + Sync + 'static {
    fn call(&self, context: &Context, arguments: Value) -> impl Future<Output = Result<Output, ToolError>> + Send;
}

/// The description of a tool for models, callers and operators.
#[derive(Debug, Clone)]
pub struct About {
    description: String,
    effects: Effects,
    streaming: bool,
    pub(crate) blocking: bool,
    pub(crate) waiting: bool,
    attempt_timeout: Duration,
    /// `None` if the author does not set it; then `streaming` decides.
    idle_timeout: Option<Option<Duration>>,
    attempts_max: Option<u32>,
    backoff: Backoff,
    retry_on: RetryOn,
    after_partial_output: AfterPartialOutput,
    category: String,
    permission: Option<Permission>,
    side_effect_scope: String,
    requires_confirmation: bool,
    tags: Vec<String>,
    is_final: bool,
    return_direct: bool,
    hidden: bool,
    concurrency: Option<Concurrency>,
    version: String,
    /// Names and descriptions.
    aliases: Vec<(String, String)>,
    max_concurrent: u32,
    running_max: u32,
    exclusive_when: String,
    parallel_when: String,
    /// Empty if the author does not set it.
    output_schema: String,
    pub(crate) context_keys: Vec<String>,
    origin: Origin,
    title: String,
}

impl About {
    #[must_use]
    pub fn new(description: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            effects: Effects::default(),
            streaming: false,
            blocking: false,
            waiting: false,
            attempt_timeout: Policy::ATTEMPT_TIMEOUT,
            idle_timeout: None,
            attempts_max: None,
            backoff: Backoff::default(),
            retry_on: RetryOn::default(),
            after_partial_output: AfterPartialOutput::default(),
            category: String::new(),
            permission: None,
            side_effect_scope: String::new(),
            requires_confirmation: false,
            tags: Vec::new(),
            is_final: false,
            return_direct: false,
            hidden: false,
            concurrency: None,
            version: String::new(),
            aliases: Vec::new(),
            max_concurrent: 0,
            running_max: 0,
            exclusive_when: String::new(),
            parallel_when: String::new(),
            output_schema: String::new(),
            context_keys: Vec::new(),
            origin: Origin::default(),
            title: String::new(),
        }
    }

    /// It has no effects, so a call whose worker is lost may be executed again.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.effects.read_only = true;
        self
    }

    /// A second execution changes nothing further, so a call whose worker is lost may be executed again.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.effects.idempotent = true;
        self
    }

    /// It may destroy something.
    #[must_use]
    pub fn destructive(mut self) -> Self {
        self.effects.destructive = true;
        self
    }

    /// It reaches beyond this system.
    #[must_use]
    pub fn open_world(mut self) -> Self {
        self.effects.open_world = true;
        self
    }

    /// It reads or writes files or starts processes on its worker's machine, where other calls of the pool find them.
    /// Its pool serves one tenant, unless the coordinators' pools file says that the pool is shared.
    #[must_use]
    pub fn uses_machine(mut self) -> Self {
        self.effects.uses_machine = true;
        self
    }

    /// It sends output while it runs.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.streaming = true;
        self
    }

    /// It blocks its thread, and is given one of its own. It stops when it looks at [`Context::is_cancelled`], or when
    /// it is done: it keeps its slot until then.
    #[must_use]
    pub fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    /// It waits for other calls nearly all the time, as an agent does. Its calls take no slot of their worker, so the
    /// calls that they wait for always find one. A worker has at most 10,000 of them beside its slots; further ones
    /// take slots.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.waiting = true;
        self
    }

    /// How long one attempt may take; 5 minutes unless set.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// How many attempts a call may use up; unless set 3. A tool that is not safe to repeat has one, whatever is set.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = Some(attempts.max(1));
        self
    }

    /// How long a running attempt may send neither output nor progress before it is ended; `None` for no limit.
    /// Default: 60 s for a streaming tool, no limit for any other.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// The pauses between attempts: `first`, doubling up to `longest`, with up to 25 % more at random. 1 s and 60 s
    /// unless set.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = Backoff { first, longest, ..self.backoff };
        self
    }

    /// Which failures lead to another attempt. Unless set: errors that the tool marks as retryable, timeouts, and the
    /// loss of a worker.
    #[must_use]
    pub fn retry_on(mut self, failures: RetryOn) -> Self {
        self.retry_on = failures;
        self
    }

    /// The treatment of an attempt's output if another attempt follows. With [`AfterPartialOutput::Continue`] the tool
    /// must continue from [`Context::continue_from`].
    #[must_use]
    pub fn after_partial_output(mut self, mode: AfterPartialOutput) -> Self {
        self.after_partial_output = mode;
        self
    }

    /// A word for what it belongs with: `filesystem`, `web`. At most 64 bytes.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = category.into();
        self
    }

    /// The class of permission that a caller needs. Unless set `Read` for a tool that is read-only, `External` for one
    /// that reaches beyond this system, otherwise `Write`.
    #[must_use]
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permission = Some(permission);
        self
    }

    /// What its effects reach, in your own words: `workspace`, `payments-api`. At most 256 bytes.
    #[must_use]
    pub fn side_effect_scope(mut self, scope: impl Into<String>) -> Self {
        self.side_effect_scope = scope.into();
        self
    }

    /// A person must approve each call before it runs.
    #[must_use]
    pub fn requires_confirmation(mut self) -> Self {
        self.requires_confirmation = true;
        self
    }

    /// A word to find it by; at most 32, of 1 to 64 bytes each.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Its result is shown to the user as a part of the assistant's message. The model receives it as well, and goes
    /// on.
    #[must_use]
    pub fn final_(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// Its result may be the final answer: if this holds for all calls of a run and all complete, the model need not be
    /// called again.
    #[must_use]
    pub fn return_direct(mut self) -> Self {
        self.return_direct = true;
        self
    }

    /// It is not listed, can be called only if it is attached, and its calls are not shown to users.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Whether calls of it may run beside other calls of their run. Unless set `Parallel` for a tool that needs the
    /// permission `Read`, otherwise `Exclusive`.
    #[must_use]
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Numbers with dots between them, as `1.4.2`. Set a higher one whenever the schema changes: of live workers with
    /// different schemas the one with the highest version is called, and among equal versions the first.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Another name by which it can be called, with a description of its own; its own again when empty. At most 16.
    #[must_use]
    pub fn alias(mut self, name: impl Into<String>, description: impl Into<String>) -> Self {
        self.aliases.push((name.into(), description.into()));
        self
    }

    /// A call whose arguments match this JSON Schema runs alone, whatever [`Self::concurrency`] is. The coordinator
    /// checks this before it dispatches the call:
    ///
    /// ```
    /// # use toolyard_tool::About;
    /// let about = About::new("Asks a database.").read_only();
    /// let about = about.exclusive_when(r#"{"properties":{"mode":{"const":"vacuum"}},"required":["mode"]}"#);
    /// ```
    #[must_use]
    pub fn exclusive_when(mut self, schema: impl Into<String>) -> Self {
        self.exclusive_when = schema.into();
        self
    }

    /// A call whose arguments match this JSON Schema may run beside others, unless they also match
    /// [`Self::exclusive_when`], or the call needs an approval, which may change the arguments.
    #[must_use]
    pub fn parallel_when(mut self, schema: impl Into<String>) -> Self {
        self.parallel_when = schema.into();
        self
    }

    /// How many calls of it one worker executes at once; as many as the worker has slots unless set. Those beyond wait
    /// in the worker for their turn, each in a slot, so a tool that is often at its limit is best hosted in a pool of
    /// its own. For all workers together it is as many times that; see [`Self::running_max`].
    #[must_use]
    pub fn max_concurrent(mut self, calls: u32) -> Self {
        self.max_concurrent = calls;
        self
    }

    /// How many of its calls may be queued or running at once, in all runs and on all workers together; unlimited by
    /// default. Further calls wait at the coordinators and take no slot of a worker. Several coordinators together may
    /// exceed it by the calls that they start within the same two seconds.
    #[must_use]
    pub fn running_max(mut self, calls: u32) -> Self {
        self.running_max = calls;
        self
    }

    /// The schema of its result: that of `T`, as JSON. Results are not checked against it.
    #[must_use]
    pub fn output_schema<T: JsonSchema>(mut self) -> Self {
        self.output_schema = schema_of::<T>();
        self
    }

    /// The schema of its result, as JSON text: for a tool whose schemas are known only at run time. Results are not
    /// checked against it.
    #[must_use]
    pub fn output_schema_text(mut self, schema: impl Into<String>) -> Self {
        self.output_schema = schema.into();
        self
    }

    /// What executes its calls; code of the worker unless set.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// A name for people, as "Search the web". At most 256 bytes.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The manifest of a tool of this name, not checked yet.
    pub(crate) fn advertised(self, name: &str, input_schema: String, definition_only: bool) -> v1::Tool {
        let Effects { read_only, idempotent, destructive, open_world, uses_machine } = self.effects;
        let policy = Some(policy_out(&self.policy()));
        let aliases = self.aliases.into_iter().map(|(name, description)| v1::ToolAlias { name, description });
        v1::Tool {
            name: name.to_owned(),
            input_schema,
            output_schema: self.output_schema,
            effects: Some(v1::ToolEffects { read_only, idempotent, destructive, open_world, uses_machine }),
            policy,
            definition_only,
            streaming: self.streaming,
            pools: Vec::new(),
            description: self.description,
            category: self.category,
            permission: self.permission.map(permission_out).unwrap_or_default().into(),
            side_effect_scope: self.side_effect_scope,
            requires_confirmation: self.requires_confirmation,
            tags: self.tags,
            r#final: self.is_final,
            return_direct: self.return_direct,
            hidden: self.hidden,
            concurrency: self.concurrency.map(concurrency_out).unwrap_or_default().into(),
            version: self.version,
            aliases: aliases.collect(),
            alias_of: String::new(),
            available: false,
            max_concurrent: self.max_concurrent,
            running_max: self.running_max,
            exclusive_when: self.exclusive_when,
            parallel_when: self.parallel_when,
            paused: false,
            context_keys: self.context_keys,
            origin: origin_out(self.origin).into(),
            title: self.title,
            needs_approval: false,
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        let policy = Policy::of(self.effects);
        let default_idle = self.streaming.then_some(Policy::IDLE_TIMEOUT);
        Policy {
            repeatable: policy.repeatable,
            attempts_max: self.attempts_max.unwrap_or(policy.attempts_max),
            attempt_timeout: self.attempt_timeout,
            idle_timeout: self.idle_timeout.unwrap_or(default_idle),
            backoff: self.backoff,
            retry_on: self.retry_on,
            after_partial_output: self.after_partial_output,
        }
    }
}
