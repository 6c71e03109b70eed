//! The tools that a worker hosts.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use proto::convert::manifest::{InvalidManifest, Usable, manifest_in};
use run::{CallError, ErrorKind, Manifest, ToolName, Version};
use schema::{self, Schema};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::context::Context;
use crate::error::ToolError;
use crate::interceptor::{Chain, Interceptor};
use crate::output::Output;
use crate::tool::{About, AnyTool, Tool};

/// The tools that a worker hosts. A clone hosts the same tools, whose limits count together.
#[derive(Debug, Default, Clone)]
pub struct Table {
    tools: BTreeMap<ToolName, Arc<Hosted>>,
    /// Aliases, and their tools.
    aliases: BTreeMap<ToolName, ToolName>,
    interceptors: Chain,
}

#[derive(Debug)]
pub(crate) struct Hosted {
    pub(crate) manifest: Manifest,
    schema: Schema,
    /// `None` for a tool that only the client can answer.
    body: Option<Box<dyn Body>>,
    blocking: bool,
    waiting: bool,
    /// How many of its calls may run at once, if that is limited.
    room: Option<Arc<Semaphore>>,
}

impl Hosted {
    pub(crate) fn check(&self, arguments: &[u8]) -> Result<Value, CallError> {
        self.schema.check(arguments).map_err(|violations| {
            let error = CallError::new(ErrorKind::ArgumentsInvalid, schema::describe(&violations));
            CallError { violations, ..error }
        })
    }

    pub(crate) async fn execute(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        match &self.body {
            Some(body) => body.call(context, arguments).await,
            None => Err(ToolError::new("only the client can answer a call of this tool")),
        }
    }
}

/// A tool that cannot be hosted.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTool {
    #[error(transparent)]
    Manifest(#[from] InvalidManifest),
    #[error("tool {tool} cannot be hosted: another tool of this worker has the name {name}")]
    NameTaken { tool: ToolName, name: ToolName },
}

/// A tool that is named and not there.
#[derive(Debug, thiserror::Error)]
#[error("there is no tool {name:?}; there are: {}", known.join(", "))]
pub struct NotHosted {
    pub name: String,
    pub known: Vec<String>,
}

impl Table {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hosts a tool.
    ///
    /// # Errors
    /// When its name or one of its aliases is taken, or its manifest cannot be used; then with all that is wrong.
    pub fn host<T: Tool>(self, tool: T) -> Result<Self, InvalidTool> {
        let about = tool.about();
        self.insert(T::NAME, schema_of::<T::Input>(), about, Some(Box::new(Typed(tool))))
    }

    /// Hosts a closure as a tool: a name, a manifest, and a function of the input and the context. The type of the
    /// input gives the schema.
    ///
    /// ```
    /// use toolyard_tool::{About, Context, Output, Table};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Person {
    ///     /// Whom to greet
    ///     name: String,
    /// }
    ///
    /// # fn main() -> Result<(), toolyard_tool::InvalidTool> {
    /// let about = About::new("Greets a person.").read_only();
    /// let table = Table::new().host_fn("greet", about, |person: Person, _: Context| async move {
    ///     Ok(Output::from(format!("Hello, {}!", person.name)))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::host`].
    pub fn host_fn<Input, Answered>(
        self,
        name: &str,
        about: About,
        function: impl Fn(Input, Context) -> Answered + Send + Sync + 'static,
    ) -> Result<Self, InvalidTool>
    where
        Input: DeserializeOwned + JsonSchema + 'static,
        Answered: Future<Output = Result<Output, ToolError>> + Send + 'static,
    {
        let closure = Closure { function, input: PhantomData };
        self.insert(name, schema_of::<Input>(), about, Some(Box::new(closure)))
    }

    /// Hosts a tool whose name and schema are known only at run time, as that of a server or of a file. The schema is
    /// JSON Schema, as text.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub fn host_any<T: AnyTool>(self, name: &str, schema: String, about: About, tool: T) -> Result<Self, InvalidTool> {
        self.insert(name, schema, about, Some(Box::new(Untyped(tool))))
    }

    /// Advertises a tool that is never executed here: the client answers its calls.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub fn define<Input: JsonSchema>(self, name: &str, about: &About) -> Result<Self, InvalidTool> {
        self.insert(name, schema_of::<Input>(), about.clone(), None)
    }

    /// Puts an interceptor around the executions of all tools, inside of those that were given before.
    #[must_use]
    pub fn intercept(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(None, interceptor);
        self
    }

    /// Puts an interceptor around the executions of some tools, which were hosted before.
    ///
    /// # Errors
    /// When a tool of such a name is not hosted.
    pub fn intercept_some(mut self, tools: &[&str], interceptor: impl Interceptor) -> Result<Self, NotHosted> {
        self.check_hosted(tools)?;
        let names: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let around = patterns(&names).map_err(|_| self.not_hosted(&names.join(", ")))?;
        self.interceptors.push(Some(around), interceptor);
        Ok(self)
    }

    /// Puts an interceptor around the executions of the tools with these names (`*` stands for any characters; all if
    /// the list is empty), also of those that are hosted later. Aliases do not count.
    ///
    /// # Errors
    /// When a pattern is invalid.
    pub fn intercept_matching(
        mut self,
        tools: &[String],
        interceptor: impl Interceptor,
    ) -> Result<Self, InvalidPattern> {
        let around = (!tools.is_empty()).then(|| patterns(tools)).transpose()?;
        self.interceptors.push(around, interceptor);
        Ok(self)
    }

    /// Only these tools (`*` stands for any characters); all if the list is empty.
    ///
    /// # Errors
    /// When one is not there.
    pub fn only(mut self, names: &[String]) -> Result<Self, NotHosted> {
        let named = self.named(names)?;
        if !names.is_empty() {
            self.retain(|name| named.is_match(name.as_str()));
        }
        Ok(self)
    }

    /// All but these tools, `*` standing for any characters.
    ///
    /// # Errors
    /// When one is not there.
    pub fn without(mut self, names: &[String]) -> Result<Self, NotHosted> {
        let named = self.named(names)?;
        self.retain(|name| !named.is_match(name.as_str()));
        Ok(self)
    }

    /// Only the tools whose names fulfil the condition.
    #[must_use]
    pub fn keep(mut self, stays: impl Fn(&ToolName) -> bool) -> Self {
        self.retain(stays);
        self
    }

    /// Hosts the tools of another table too; its interceptors are not taken over.
    ///
    /// # Errors
    /// When a name of one of them is taken; then none of them is hosted.
    pub fn adopt(&mut self, other: &Self) -> Result<(), InvalidTool> {
        let is_taken = |name: &ToolName| self.tools.contains_key(name) || self.aliases.contains_key(name);
        if let Some((name, tool)) = other.names().find(|(name, _)| is_taken(name)) {
            return Err(InvalidTool::NameTaken { tool: tool.clone(), name: name.clone() });
        }
        self.tools.extend(other.tools.iter().map(|(name, hosted)| (name.clone(), Arc::clone(hosted))));
        self.aliases.extend(other.aliases.iter().map(|(name, tool)| (name.clone(), tool.clone())));
        Ok(())
    }

    /// A tool's own name, also for an alias.
    #[must_use]
    pub fn own_name<'a>(&'a self, tool: &'a ToolName) -> &'a ToolName {
        self.aliases.get(tool).unwrap_or(tool)
    }

    /// A tool's manifest; `None` if it is not hosted.
    #[must_use]
    pub fn description(&self, tool: &ToolName) -> &str {
        self.tools.get(self.own_name(tool)).map_or("", |hosted| hosted.manifest.description.as_str())
    }

    /// Whether it hosts a tool of this name, other than an alias.
    #[must_use]
    pub fn hosts(&self, tool: &str) -> bool {
        self.tools.keys().any(|name| name.as_str() == tool)
    }

    /// The names under which tools are called, each with the tool's own.
    pub fn names(&self) -> impl Iterator<Item = (&ToolName, &ToolName)> {
        self.tools.keys().map(|name| (name, name)).chain(&self.aliases)
    }

    /// Names and patterns of tools, each of at least one that is here.
    fn named(&self, names: &[String]) -> Result<GlobSet, NotHosted> {
        let mut set = GlobSetBuilder::new();
        for name in names {
            let glob = Glob::new(name).map_err(|_| self.not_hosted(name))?;
            let matcher = glob.compile_matcher();
            if !self.tools.keys().any(|known| matcher.is_match(known.as_str())) {
                return Err(self.not_hosted(name));
            }
            set.add(glob);
        }
        set.build().map_err(|_| self.not_hosted(&names.join(", ")))
    }

    fn not_hosted(&self, name: &str) -> NotHosted {
        NotHosted { name: name.to_owned(), known: self.tools.keys().map(ToString::to_string).collect() }
    }

    fn check_hosted(&self, names: &[&str]) -> Result<(), NotHosted> {
        let is_known = |name: &str| self.tools.keys().any(|known| known.as_str() == name);
        names.iter().find(|name| !is_known(name)).map_or(Ok(()), |name| Err(self.not_hosted(name)))
    }

    fn retain(&mut self, stays: impl Fn(&ToolName) -> bool) {
        self.tools.retain(|name, _| stays(name));
        self.aliases.retain(|_, tool| stays(tool));
    }

    fn insert(
        mut self,
        name: &str,
        input_schema: String,
        about: About,
        body: Option<Box<dyn Body>>,
    ) -> Result<Self, InvalidTool> {
        let (blocking, waiting) = (about.blocking, about.waiting);
        // A manifest of an author is checked like one from the network. The check lists all mistakes.
        let Usable { manifest, schema, .. } = manifest_in(about.advertised(name, input_schema, body.is_none()))?;
        let tool = manifest.name.clone();
        let taken = |name: &ToolName| self.tools.contains_key(name) || self.aliases.contains_key(name);
        let names = || std::iter::once(&tool).chain(manifest.aliases.iter().map(|alias| &alias.name));
        if let Some(name) = names().find(|name| taken(name)).cloned() {
            return Err(InvalidTool::NameTaken { tool, name });
        }
        self.aliases.extend(names().skip(1).map(|alias| (alias.clone(), tool.clone())));
        // More than a semaphore can count is as good as no limit.
        let room = manifest.max_concurrent.and_then(|calls| usize::try_from(calls).ok());
        let room = room.filter(|calls| *calls < Semaphore::MAX_PERMITS).map(|calls| Arc::new(Semaphore::new(calls)));
        self.tools.insert(tool, Arc::new(Hosted { manifest, schema, body, blocking, waiting, room }));
        Ok(self)
    }

    /// The semaphore of a tool whose calls are limited in number.
    #[must_use]
    pub fn room(&self, tool: &ToolName) -> Option<&Arc<Semaphore>> {
        self.tools.get(self.aliases.get(tool).unwrap_or(tool))?.room.as_ref()
    }

    /// Whether calls of a tool take no slot, because they wait for other calls: [`About::waiting`].
    #[must_use]
    pub fn is_waiting(&self, tool: &ToolName) -> bool {
        self.tools.get(self.aliases.get(tool).unwrap_or(tool)).is_some_and(|hosted| hosted.waiting)
    }

    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.tools.values().map(|hosted| &hosted.manifest)
    }

    /// Whether checking these arguments is sure to be quick.
    #[must_use]
    pub fn is_quick(&self, tool: &ToolName, arguments: &[u8]) -> bool {
        let hosted = self.tools.get(self.aliases.get(tool).unwrap_or(tool));
        hosted.is_none_or(|hosted| hosted.schema.is_quick(arguments))
    }

    /// Whether calls of a tool can be executed here that want a version not older than `oldest`.
    #[must_use]
    pub fn executes(&self, tool: &ToolName, oldest: Option<&Version>) -> bool {
        let hosted = self.tools.get(self.aliases.get(tool).unwrap_or(tool)).filter(|hosted| hosted.body.is_some());
        hosted.is_some_and(|hosted| hosted.manifest.version.as_ref() >= oldest)
    }

    /// Finds a call's tool and checks its arguments.
    ///
    /// # Errors
    /// When it is not hosted here, or the arguments do not fit its schema.
    pub fn prepare(&self, tool: &ToolName, arguments: &[u8]) -> Result<Prepared, CallError> {
        let hosted = self.tools.get(self.aliases.get(tool).unwrap_or(tool));
        let Some(hosted) = hosted.filter(|hosted| hosted.body.is_some()) else {
            let names: Vec<&str> = self.tools.keys().map(ToolName::as_str).collect();
            let message = format!("this worker does not host {tool}; it hosts: {}", names.join(", "));
            return Err(CallError::new(ErrorKind::UnknownTool, message));
        };
        let arguments = hosted.check(arguments)?;
        Ok(Prepared { hosted: Arc::clone(hosted), interceptors: self.interceptors.clone(), arguments })
    }
}

/// A pattern of names that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPattern(String);

fn patterns(names: &[String]) -> Result<GlobSet, InvalidPattern> {
    let mut set = GlobSetBuilder::new();
    for name in names {
        set.add(Glob::new(name).map_err(|error| InvalidPattern(error.to_string()))?);
    }
    set.build().map_err(|error| InvalidPattern(error.to_string()))
}

/// The schema of a type as JSON. The name of the type is left out: it tells a model nothing. Another title stays.
pub(crate) fn schema_of<T: JsonSchema>() -> String {
    let mut schema = schemars::schema_for!(T);
    if schema.get("title").and_then(Value::as_str) == Some(&T::schema_name()) {
        schema.remove("title");
    }
    schema.to_value().to_string()
}

/// A tool with arguments that fit.
#[derive(Debug)]
pub struct Prepared {
    hosted: Arc<Hosted>,
    interceptors: Chain,
    arguments: Value,
}

impl Prepared {
    /// Calls the tool on its runtime: as a task, or on a thread of its own when it blocks. There it may block on
    /// futures as it likes, because no runtime is entered.
    pub fn spawn(self, tools: &Handle, context: Context) -> JoinHandle<Result<Output, ToolError>> {
        match self.hosted.blocking {
            false => tools.spawn(self.call(context)),
            true => tools.spawn_blocking(move || futures::executor::block_on(self.call(context))),
        }
    }

    /// Calls the tool here and now: for a tool that hands its call on to another one. [`Self::spawn`] is for all else,
    /// because a tool that blocks would block the caller.
    ///
    /// # Errors
    /// That of the tool.
    pub async fn call(self, mut context: Context) -> Result<Output, ToolError> {
        if self.interceptors.is_empty() {
            return self.hosted.execute(&context, self.arguments).await;
        }
        // In a box, so that a call without them does not carry the room for them.
        Box::pin(self.interceptors.run(&mut context, &self.hosted, self.arguments)).await
    }
}

/// A [`Tool`] whose input type is forgotten, so that a table can hold many.
trait Body: Send + Sync + std::fmt::Debug {
    fn call<'a>(&'a self, context: &'a Context, arguments: Value) -> Answer<'a>;
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Output, ToolError>> + Send + 'a>>;

struct Untyped<T>(T);

impl<T: AnyTool> std::fmt::Debug for Untyped<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a tool known at run time")
    }
}

impl<T: AnyTool> Body for Untyped<T> {
    fn call<'a>(&'a self, context: &'a Context, arguments: Value) -> Answer<'a> {
        Box::pin(self.0.call(context, arguments))
    }
}

struct Closure<F, Input> {
    function: F,
    input: PhantomData<fn(Input)>,
}

impl<F, Input> std::fmt::Debug for Closure<F, Input> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a closure")
    }
}

impl<F, Input, Answered> Body for Closure<F, Input>
where
    F: Fn(Input, Context) -> Answered + Send + Sync,
    Input: DeserializeOwned,
    Answered: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    fn call<'a>(&'a self, context: &'a Context, arguments: Value) -> Answer<'a> {
        match parse(arguments) {
            Ok(input) => Box::pin((self.function)(input, context.clone())),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

struct Typed<T>(T);

impl<T: Tool> std::fmt::Debug for Typed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(T::NAME)
    }
}

impl<T: Tool> Body for Typed<T> {
    fn call<'a>(&'a self, context: &'a Context, arguments: Value) -> Answer<'a> {
        Box::pin(async move { self.0.call(context, parse(arguments)?).await })
    }
}

fn parse<Input: DeserializeOwned>(arguments: Value) -> Result<Input, ToolError> {
    serde_json::from_value(arguments).map_err(|error| {
        let message = format!("the arguments do not fit the tool's input: {error}");
        ToolError(CallError::new(ErrorKind::ArgumentsInvalid, message))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::executor::block_on;

    use super::*;
    use crate::interceptor::Retry;

    /// Gives the text back.
    #[crate::tool(crate = crate, read_only)]
    async fn echo(text: String) -> String {
        text
    }

    fn allocations(work: impl FnOnce()) -> u64 {
        allocation_counter::measure(work).count_total
    }

    /// The futures of preparing a call and of executing it.
    fn needed_and_made(table: &Table) -> [(u64, u64); 2] {
        let (name, arguments) = (Echo::NAME.parse().unwrap(), br#"{"text":"hi"}"#);
        let prepare = || table.prepare(&name, arguments).unwrap();
        let prepared = prepare();
        let hosted = Arc::clone(&prepared.hosted);
        let context = || {
            let given = run::Fields::default();
            crate::testkit::context(name.clone(), String::new(), Duration::from_secs(1), given).0
        };
        // Whatever is made once per thread is made now.
        block_on(prepare().call(context())).unwrap();

        let preparing = allocations(|| drop(prepare()));
        let checking = allocations(|| drop(hosted.check(arguments).unwrap()));
        let (arguments, context, other) = (prepared.arguments.clone(), context(), context());
        let executing = allocations(|| drop(block_on(hosted.execute(&context, arguments)).unwrap()));
        let calling = allocations(|| drop(block_on(prepared.call(other)).unwrap()));
        [(checking, preparing), (executing, calling)]
    }

    #[test]
    fn a_name_that_a_tool_of_the_worker_has_is_refused_with_its_tool() {
        let about = || About::new("Has names.").alias("second", "");
        let table = || Table::new().define::<NoInput>("first", &about()).unwrap();
        for (name, about, taken) in [
            ("first", About::new("The same again."), "first"),
            ("second", About::new("Has an alias' name."), "second"),
            ("third", About::new("Has a tool's name as an alias.").alias("first", ""), "first"),
            ("third", about(), "second"),
        ] {
            let error = table().define::<NoInput>(name, &about).unwrap_err().to_string();
            assert!(error.starts_with(&format!("tool {name} cannot be hosted")), "{error}");
            assert!(error.ends_with(&format!("has the name {taken}")), "{error}");
        }
    }

    #[derive(JsonSchema)]
    struct NoInput {}

    #[test]
    fn where_nothing_is_around_it_a_call_allocates_nothing_for_interceptors() {
        let table = Table::new().host(Echo).unwrap();
        let [preparing, calling] = needed_and_made(&table);
        assert_eq!((preparing.0, calling.0), (preparing.1, calling.1));
        let table = table.intercept(Retry::new(2, Duration::ZERO, Duration::ZERO));
        let [_, calling] = needed_and_made(&table);
        assert!(calling.1 > calling.0, "the test would see it: {calling:?}");
    }
}
