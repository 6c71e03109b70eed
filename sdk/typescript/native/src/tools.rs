//! The tools of a worker or a test, whose bodies are in JavaScript.

use std::sync::Arc;

use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Result, Status};
use napi_derive::napi;
use serde_json::Value;
use toolyard_tool::declared::Declared;
use toolyard_tool::{AnyTool, Context, Output, Table, ToolError};

use crate::call::NativeCall;
use crate::error::invalid;
use crate::watch::Running;

/// A function of JavaScript that starts a call. It does not keep the process alive: a worker that runs does.
type Dispatch = ThreadsafeFunction<NativeCall, (), NativeCall, Status, false, true>;

/// Tools that JavaScript executes.
#[derive(Debug)]
#[napi]
pub struct NativeTools {
    pub(crate) table: Table,
    pub(crate) running: Vec<Running>,
}

#[napi]
impl NativeTools {
    /// Hosts tools by their declarations, each a JSON object. `dispatch` is called with each call, and must not throw.
    #[napi(constructor)]
    pub fn new(declarations: Vec<String>, dispatch: Dispatch) -> Result<Self> {
        let dispatch = Arc::new(dispatch);
        let (mut table, mut all) = (Table::new(), Vec::new());
        for (text, index) in declarations.iter().zip(0..) {
            let given: Value = serde_json::from_str(text).map_err(invalid)?;
            let name = given["name"].as_str().unwrap_or_default().to_owned();
            let wrong = |why: String| invalid(format!("tool {name:?}: {why}"));
            let declared: Declared =
                serde_path_to_error::deserialize(given).map_err(|error| wrong(error.to_string()))?;
            let about = declared.about().map_err(|error| wrong(error.to_string()))?;
            let running = Running::new(&declared.name);
            all.push(running.clone());
            let tool = JsTool { index, dispatch: Arc::clone(&dispatch), running };
            let schema = declared.input_schema.to_string();
            table = table.host_any(&declared.name, schema, about, tool).map_err(invalid)?;
        }
        Ok(Self { table, running: all })
    }
}

/// A tool whose body is in JavaScript.
struct JsTool {
    index: u32,
    dispatch: Arc<Dispatch>,
    running: Running,
}

impl AnyTool for JsTool {
    async fn call(&self, context: &Context, arguments: Value) -> std::result::Result<Output, ToolError> {
        let _runs = self.running.begin();
        let (call, settled) = NativeCall::new(self.index, context, &arguments);
        match self.dispatch.call(call, ThreadsafeFunctionCallMode::NonBlocking) {
            Status::Ok => settled.outcome().await,
            status => Err(ToolError::retryable(format!("JavaScript takes no calls: {status}"))),
        }
    }
}
