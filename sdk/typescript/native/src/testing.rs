//! Calls of tools without a broker, by the test kit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};

use bytes::Bytes;
use napi::bindgen_prelude::{Buffer, PromiseRaw};
use napi::{Env, Result};
use napi_derive::napi;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use toolyard_tool::runtime::Fields;
use toolyard_tool::testkit::{self, Beside, Call, Requester, answering};
use toolyard_tool::{Elicitation, Reply, Roles, ToolError, ToolName};

use crate::content::Part;
use crate::error::{invalid, json};
use crate::tools::NativeTools;

/// What a call has beside its arguments.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Given {
    context: Map<String, Value>,
    tenant: Option<String>,
    caller: Option<String>,
    unstored: bool,
    /// The answers to questions, in the order of the questions.
    answers: Vec<GivenAnswer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase", tag = "action", content = "content")]
enum GivenAnswer {
    Accept(Map<String, Value>),
    Decline,
    Cancel,
}

impl Given {
    fn beside(self, files: Vec<TestFile>) -> Result<Beside> {
        let Self { context, tenant, caller, unstored, answers } = self;
        let tenant = tenant.map(|tenant| tenant.parse().map_err(|error| invalid(format!("tenant: {error}"))));
        let caller = caller.map(|caller| caller.parse().map_err(|error| invalid(format!("caller: {error}"))));
        let (tenant, caller) = (tenant.transpose()?, caller.transpose()?);
        let mut fields = Fields::default();
        context.into_iter().for_each(|(key, value)| fields.set(key, value.to_string()));
        Ok(Beside {
            context: fields,
            files: files.into_iter().map(|file| (file.name, Bytes::copy_from_slice(&file.data))).collect(),
            asker: (!answers.is_empty()).then(|| answering(one_by_one(answers))),
            is_unstored: unstored,
            requester: Requester { tenant, caller, roles: Roles::default() },
        })
    }
}

/// The answers in their order; then questions are dismissed.
fn one_by_one(answers: Vec<GivenAnswer>) -> impl Fn(&Elicitation) -> Reply + Send + Sync + 'static {
    let answers = SyncMutex::new(answers.into_iter());
    move |_| match answers.lock().unwrap_or_else(PoisonError::into_inner).next() {
        Some(GivenAnswer::Accept(content)) => Reply::Accept(content),
        Some(GivenAnswer::Decline) => Reply::Decline,
        Some(GivenAnswer::Cancel) | None => Reply::Cancel,
    }
}

/// A file that a call may open.
#[napi(object)]
pub struct TestFile {
    pub name: String,
    pub data: Buffer,
}

/// How a call ended.
#[napi(object)]
pub struct Ended {
    /// The parts of the result; none if it failed.
    pub result: Option<Vec<Part>>,
    /// The error as JSON; none if it completed.
    pub error: Option<String>,
    /// The state for the run, as JSON.
    pub state: String,
}

/// A call on its way.
#[napi]
pub struct NativeTestCall {
    call: Arc<Mutex<Option<Call>>>,
    stop: CancellationToken,
}

#[napi]
impl NativeTools {
    /// Calls a tool without a broker. `arguments` and `setup` are JSON.
    #[napi]
    pub fn test<'env>(
        &self,
        env: &'env Env,
        tool: String,
        arguments: String,
        setup: String,
        files: Vec<TestFile>,
    ) -> Result<PromiseRaw<'env, NativeTestCall>> {
        let _: ToolName = tool.parse().map_err(|error| invalid(format!("tool {tool:?}: {error}")))?;
        let arguments: Value = serde_json::from_str(&arguments).map_err(invalid)?;
        let given: Given = serde_json::from_str(&setup).map_err(invalid)?;
        let beside = given.beside(files)?;
        let table = self.table.clone();
        // The test kit spawns the call, so it is started inside of the runtime.
        env.spawn_future(async move {
            let call = testkit::start_with(&table, &tool, arguments, beside);
            let stop = call.stop();
            Ok(NativeTestCall { call: Arc::new(Mutex::new(Some(call))), stop })
        })
    }
}

#[napi]
impl NativeTestCall {
    /// The next piece of output; `null` if there is no more.
    #[napi]
    pub fn next<'env>(&self, env: &'env Env) -> Result<PromiseRaw<'env, Option<Part>>> {
        let call = Arc::clone(&self.call);
        env.spawn_future(async move {
            let mut call = call.lock().await;
            let Some(call) = call.as_mut() else { return Ok(None) };
            Ok(call.chunk().await.map(Part::from))
        })
    }

    /// Requests the tool to stop.
    #[napi]
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Waits for the end. Call it when [`Self::next`] has no more.
    #[napi]
    pub fn end<'env>(&self, env: &'env Env) -> Result<PromiseRaw<'env, Ended>> {
        let call = Arc::clone(&self.call);
        env.spawn_future(async move {
            let call = call.lock().await.take().ok_or_else(|| invalid("the end of the call was awaited before"))?;
            let called = call.end().await;
            let states = called.states().map(|(key, json)| (key, RawValue::from_string(json.to_owned())));
            let states: BTreeMap<_, _> = states.filter_map(|(key, json)| Some((key, json.ok()?))).collect();
            let state = serde_json::to_string(&states).map_err(invalid)?;
            Ok(match called.result {
                Ok(parts) => Ended { result: Some(parts.into_iter().map(Part::from).collect()), error: None, state },
                Err(error) => Ended { result: None, error: Some(json(&ToolError::of_call(error))), state },
            })
        })
    }
}
