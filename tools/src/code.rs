//! Runs Python code in a sandbox, in a fresh folder with the files of the call, and returns the files that it leaves.

mod folder;
mod python;

use std::sync::Mutex;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;

use self::folder::Folder;
use self::python::Python;
pub use self::python::PythonSettings;
use super::running::follow;
use super::scope;
use super::shell::relay::Relay;
use sandbox::{Exit, Level, Request, Sandbox};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Bytes of the code of a call.
const CODE_BYTES_MAX: u32 = 200 * 1024;
/// Seconds that code may take, unless a call sets less or more, and at most.
const TIME_S: u32 = 120;
const TIME_MAX_S: u32 = 600;
/// Bytes of what the code writes that the result repeats: its beginning.
const LOGS_BYTES_MAX: usize = 32 * 1024;
/// The channels of what the code writes.
const CHANNELS: [&str; 2] = ["logs", "logs.stderr"];

/// Runs Python code.
#[derive(Debug)]
pub struct CodeInterpreter {
    /// Or why there is none.
    python: Result<Python, String>,
}

/// Code to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Python 3 code. What it prints is the result, with the files that it writes into the current folder
    #[schemars(length(min = 1, max = CODE_BYTES_MAX))]
    code: String,
    /// After how many seconds to end it: 120 unless given
    #[schemars(range(min = 1, max = TIME_MAX_S))]
    timeout_s: Option<u32>,
}

impl CodeInterpreter {
    /// Looks for a Python that runs in such a sandbox, without a network. If there is none, the log has the reason, and
    /// calls are refused with it.
    pub async fn new(sandbox: &Sandbox, settings: &PythonSettings) -> Self {
        let python = Python::find(sandbox, settings).await;
        if let Err(error) = &python {
            tracing::warn!(error, "code_interpreter has no Python: its calls are refused");
        }
        Self { python }
    }
}

impl Tool for CodeInterpreter {
    const NAME: &'static str = "code_interpreter";
    type Input = Code;

    fn about(&self) -> About {
        let is_free = self.python.as_ref().is_ok_and(|python| python.sandbox.level() == Level::None);
        let network = if is_free { "" } else { "There is no network. " };
        let text = format!(
            "Runs Python code and streams what it writes. The current folder is fresh, with the files of the call in \
             it; files that the code leaves there are returned. Nothing else remains, so the code of each call must be \
             complete. {network}The result has the exit code, the beginning of the output, and the list \
             of files, whose contents follow."
        );
        let about = About::new(text).streaming().uses_machine().idle_timeout(None);
        let about = about.attempt_timeout(Duration::from_secs(u64::from(TIME_MAX_S) + 30)).category("code");
        match is_free {
            true => about.destructive().open_world().side_effect_scope(scope::NETWORK),
            false => about.idempotent().side_effect_scope(scope::NONE),
        }
    }

    async fn call(&self, context: &Context, input: Code) -> Result<Output, ToolError> {
        let Code { code, timeout_s } = input;
        let python = self.python.as_ref().map_err(|error| {
            ToolError::needs(format!("a Python (python3) that runs in the sandbox of this worker: {error}"))
        })?;
        if code.contains('\0') {
            return Err(ToolError::bad_input("/code", "it contains a NUL character, which Python does not take"));
        }
        let user = python.sandbox.settings().user;
        let folder = Folder::make(user, context.left())?;
        folder.fill(context, &code).await?;
        let (exit, logs) = run(context, python, &folder, timeout_s.unwrap_or(TIME_S)).await?;
        let found = tokio::task::spawn_blocking(move || folder.take()).await??;
        let mut summary = json!({ "logs": logs, "files": found.summary });
        let exit = serde_json::to_value(exit)?;
        for (name, value) in exit.as_object().into_iter().flatten() {
            summary[name] = Value::clone(value);
        }
        let output = Output::json(&summary)?;
        Ok(found.files.into_iter().fold(output, |all, (media_type, bytes)| all.and(Output::data(media_type, bytes))))
    }
}

/// Runs the code to its end, and returns the beginning of what it wrote.
async fn run(context: &Context, python: &Python, folder: &Folder, timeout_s: u32) -> Result<(Exit, String), ToolError> {
    let arguments = ["-u".to_owned(), "-B".to_owned(), folder.code().display().to_string()];
    let request = Request::run(python.program.display().to_string(), arguments, folder.work());
    let mut request = request
        .with("PYTHONPATH", folder.work().display().to_string())
        .with("PYTHONNOUSERSITE", "1")
        .with("PYTHONIOENCODING", "utf-8")
        .with("MPLBACKEND", "Agg")
        .with("MPLCONFIGDIR", folder.top().display().to_string());
    request.workspace = Some(folder.top().to_owned());
    let mut program = python.sandbox.start(request, context.left()).await?;
    let kept = Mutex::new(Vec::new());
    let keep = |bytes: &[u8]| {
        let mut kept = kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let room = LOGS_BYTES_MAX.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    };
    let (stdout, stderr) = program.pipes();
    let let_go = CancellationToken::new();
    let relay = Relay::on(CHANNELS, context, &let_go);
    let pumps = relay
        .pump(stdout.map(|pipe| InspectReader::new(pipe, keep)), stderr.map(|pipe| InspectReader::new(pipe, keep)));
    let stopped = async {
        tokio::select! {
            () = context.cancelled() => ToolError::new("the call was cancelled"),
            () = sleep(Duration::from_secs(timeout_s.into())) => {
                ToolError::new(format!("the code took longer than timeout_s, {timeout_s} s, and was ended"))
            }
        }
    };
    let exit = follow(program, pumps, &let_go, stopped, futures::stream::pending()).await?;
    let kept = kept.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut logs = String::from_utf8_lossy(&kept).into_owned();
    if kept.len() == LOGS_BYTES_MAX {
        logs.push_str("\n[cut: write large results into a file]");
    }
    Ok((exit, logs))
}

#[cfg(test)]
mod tests {
    use run::Manifest;
    use sandbox::{Settings, Wanted};
    use toolyard_tool::{Table, testkit};

    use super::*;

    fn manifest(level: Level) -> Manifest {
        // No program is run here.
        sandbox::use_program("/nowhere".into());
        let settings = Settings { level: Wanted::Exactly(Level::None), ..Settings::default() };
        let sandbox = Sandbox::new(settings).unwrap();
        let python = match level {
            Level::None => Ok(Python { program: "/nowhere/python3".into(), sandbox }),
            Level::Confined | Level::Isolated => Err("there is none".to_owned()),
        };
        let table = Table::new().host(CodeInterpreter { python }).unwrap();
        testkit::manifest(&table, CodeInterpreter::NAME).unwrap().clone()
    }

    #[test]
    fn code_without_a_sandbox_may_do_anything_and_is_not_repeated() {
        let free = manifest(Level::None);
        assert!(free.effects.open_world && free.effects.destructive && !free.effects.idempotent);
        assert_eq!((free.policy.repeatable, free.side_effect_scope.as_str()), (false, scope::NETWORK));
        let confined = manifest(Level::Confined);
        assert!(confined.effects.idempotent && !confined.effects.open_world && confined.policy.repeatable);
    }
}
