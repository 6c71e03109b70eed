//! The tools that a worker hosts.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use proto::schema::{self, Schema};
use run::{CallError, ErrorKind, Manifest, ToolName};
use schemars::JsonSchema;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::tool::{About, Context, Output, Tool, ToolError};

#[derive(Debug, Default)]
pub struct Table(BTreeMap<ToolName, Hosted>);

#[derive(Debug)]
struct Hosted {
    manifest: Manifest,
    schema: Schema,
    /// `None` for a tool that only the client can answer.
    body: Option<Arc<dyn Body>>,
    blocking: bool,
}

/// A tool that cannot be hosted: its name is malformed or taken, or its schema is none.
#[derive(Debug, thiserror::Error)]
#[error("tool {name:?} cannot be hosted: {reason}")]
pub struct InvalidTool {
    pub name: String,
    pub reason: String,
}

impl Table {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hosts a tool.
    ///
    /// # Errors
    /// When its name is malformed or taken.
    pub fn host<T: Tool>(self, tool: T) -> Result<Self, InvalidTool> {
        let about = tool.about();
        self.insert::<T::Input>(T::NAME, &about, Some(Arc::new(Typed(tool))))
    }

    /// Advertises a tool that is never executed here: the client answers its calls.
    ///
    /// # Errors
    /// When its name is malformed or taken.
    pub fn define<Input: JsonSchema>(self, name: &str, about: &About) -> Result<Self, InvalidTool> {
        self.insert::<Input>(name, about, None)
    }

    fn insert<Input: JsonSchema>(
        mut self,
        name: &str,
        about: &About,
        body: Option<Arc<dyn Body>>,
    ) -> Result<Self, InvalidTool> {
        let refused = |reason: String| InvalidTool { name: name.to_owned(), reason };
        let tool: ToolName = name.parse().map_err(|error: run::InvalidId| refused(error.to_string()))?;
        let input_schema = schemars::schema_for!(Input).to_value().to_string();
        let schema = Schema::compile(&input_schema).map_err(|error| refused(error.to_string()))?;
        let manifest = Manifest {
            name: tool.clone(),
            description: about.description.clone(),
            input_schema,
            output_schema: String::new(),
            effects: about.effects,
            policy: about.policy(),
            definition_only: body.is_none(),
            streaming: about.streaming,
        };
        if self.0.insert(tool, Hosted { manifest, schema, body, blocking: about.blocking }).is_some() {
            return Err(refused("another tool of this worker has its name".to_owned()));
        }
        Ok(self)
    }

    pub(crate) fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.0.values().map(|hosted| &hosted.manifest)
    }

    /// Finds a call's tool and checks its arguments.
    pub(crate) fn prepare(&self, tool: &ToolName, arguments: &[u8]) -> Result<Prepared, CallError> {
        let hosted = self.0.get(tool);
        let Some((hosted, body)) = hosted.and_then(|hosted| Some((hosted, hosted.body.as_ref()?))) else {
            let names: Vec<&str> = self.0.keys().map(ToolName::as_str).collect();
            let message = format!("this worker does not host {tool}; it hosts: {}", names.join(", "));
            return Err(CallError::new(ErrorKind::UnknownTool, message));
        };
        match hosted.schema.check(arguments) {
            Ok(arguments) => Ok(Prepared { body: Arc::clone(body), arguments, blocking: hosted.blocking }),
            Err(violations) => {
                let error = CallError::new(ErrorKind::ArgumentsInvalid, schema::describe(&violations));
                Err(CallError { violations, ..error })
            }
        }
    }
}

/// A tool with arguments that fit.
#[derive(Debug)]
pub(crate) struct Prepared {
    body: Arc<dyn Body>,
    arguments: Value,
    blocking: bool,
}

impl Prepared {
    /// Calls the tool on its runtime: as a task, or on a thread of its own when it blocks. There it may block on futures
    /// as it likes, because no runtime is entered.
    pub(crate) fn spawn(self, tools: &Handle, context: Context) -> JoinHandle<Result<Output, ToolError>> {
        match self.blocking {
            false => tools.spawn(self.call(context)),
            true => tools.spawn_blocking(move || futures::executor::block_on(self.call(context))),
        }
    }

    async fn call(self, context: Context) -> Result<Output, ToolError> {
        self.body.call(&context, self.arguments).await
    }
}

/// A [`Tool`] whose input type is forgotten, so that a table can hold many.
trait Body: Send + Sync + std::fmt::Debug {
    fn call<'a>(&'a self, context: &'a Context, arguments: Value) -> Answer<'a>;
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Output, ToolError>> + Send + 'a>>;

struct Typed<T>(T);

impl<T: Tool> std::fmt::Debug for Typed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(T::NAME)
    }
}

impl<T: Tool> Body for Typed<T> {
    fn call<'a>(&'a self, context: &'a Context, arguments: Value) -> Answer<'a> {
        Box::pin(async move {
            let input = serde_json::from_value(arguments).map_err(|error| {
                let message = format!("the arguments do not fit the tool's input: {error}");
                ToolError(CallError::new(ErrorKind::ArgumentsInvalid, message))
            })?;
            self.0.call(context, input).await
        })
    }
}
