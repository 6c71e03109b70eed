//! `toolyard call`: one call, as if the tool were a program here, or the calls in a file.

use std::time::Duration;

use proto::v1::content::Body;
use proto::v1::run_event::Event;
use proto::{Reason, v1};
use run::ToolName;

use crate::arguments::{self, Pair};
use crate::children::ShowArgs;
use crate::exit::{self, Exit, Failure};
use crate::files;
use crate::follow::{Answers, Follow, Followed, Show, View};
use crate::interrupts::Interrupts;
use crate::json;
use crate::list::{ahead, span, time};
use crate::plain::{Plain, Setting};
use crate::prompt::Keyboard;
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words;
use client::{Client, Watch, reason};

const EXAMPLES: &str = "\
Examples:
  toolyard call get_current_time time_zone=Asia/Shanghai
  toolyard call bash command='make 2>&1' timeout_s=60 --timeout 90
  toolyard call bash command=@build.sh
  toolyard call bash --exit-status command='test -f Cargo.toml' && echo yes
  toolyard call bash command='make clean' --delay 10m --detach
  toolyard call bash command='make release' --approval --approval-timeout 3d \\
    --run-timeout 4d --detach
  toolyard call --calls calls.json --running-max 2
  toolyard call grep --json '{\"pattern\": \"TODO\", \"glob\": \"*.rs\"}'
  toolyard call -o json bash command=ls |
    jq -r '.call_output.content.text // empty'

What the tool says goes to standard output as it comes, its `stderr` channel to
standard error. The result goes to standard output too, unless the tool
streams: then it stands on standard error. A command that `bash` ran to its end
completed, whatever its exit code: that is the result. Ctrl-C cancels the call,
also while it is delayed; a call whose terminal is closed goes on.";

/// Call a tool and see its output as it comes
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
#[command(after_long_help = format!("{EXAMPLES}\n\n{}\n\n{}", exit::HELP, json::HELP))]
pub(crate) struct Args {
    /// The tool's name, as `toolyard tools ls` shows it, or as it is exported for a model
    #[arg(required_unless_present = "calls", conflicts_with = "calls")]
    tool: Option<String>,
    /// Arguments. The value is text, or JSON if the tool's schema does not accept text; @FILE is the content of a file
    #[arg(value_name = "KEY=VALUE")]
    pairs: Vec<Pair>,
    /// Arguments as a JSON object; KEY=VALUE goes on top
    #[arg(long, value_name = "OBJECT")]
    json: Option<String>,
    /// The context for the tool beside its arguments, as a JSON object. The tool receives only the keys that it
    /// declares (`toolyard tools get`)
    #[arg(long, value_name = "OBJECT")]
    context: Option<String>,
    /// Do not execute it before this time, as 2030-01-01T00:00:00Z, which must be before the end of the run
    /// (--run-timeout). For times that are more than 30 days ahead: `toolyard schedules create --at`
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "delay")]
    not_before: Option<prost_types::Timestamp>,
    /// Do not execute it before this has passed, as 30s, 10m, 2h or 2d, by this machine's clock. A delay of 24 h or
    /// more needs a longer --run-timeout
    #[arg(long, value_name = "SPAN", value_parser = span)]
    delay: Option<Duration>,
    /// By when the call has ended, as 90, 90s or 10m, its waits for approval and in the queue included; counted from
    /// the end of a delay. Never later than the end of the run [default: the end of the run]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// By when a worker has taken it up; counted from the approval and the end of a delay [default: no such deadline]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    queue_timeout: Option<Duration>,
    /// Fail while no worker of the tool's pool lives, rather than wait for one
    #[arg(long)]
    no_wait: bool,
    /// Do not execute it before it is approved
    #[arg(long)]
    approval: bool,
    /// With --approval: how long the call may await approval, as 30m, 12h or 3d, counted from now also if it is
    /// delayed. Then it is rejected. Not longer than --timeout and --run-timeout [default: 1 h]
    #[arg(long, value_name = "SPAN", value_parser = seconds, requires = "approval")]
    approval_timeout: Option<Duration>,
    /// Several calls instead: a file with a list of calls, or with a run, as `POST /v1/runs` takes them; - is the
    /// standard input. They await approval as the deployment is configured, or get it with --approve
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_ONE)]
    calls: Option<String>,
    #[command(flatten)]
    options: RunOptions,
    #[command(flatten)]
    shown: ShowArgs,
    /// Show the run and return at once, without waiting for its end: `toolyard runs watch` shows its output
    #[arg(long)]
    detach: bool,
    /// An id of your own: the same call under the same id is executed once, however often it is sent
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// End with the exit code of the program that the call ran, as bash and powershell do; 128 and its number if a
    /// signal ended it. 255 if the call did not complete, or its result has no exit code
    #[arg(long, conflicts_with_all = ["calls", "detach"])]
    exit_status: bool,
}

/// The exit code with `--exit-status` of a call that ran no program to its end.
const NO_STATUS: u8 = 255;

/// Options of one call that is typed.
const OF_ONE: [&str; 9] =
    ["json", "context", "not_before", "delay", "timeout", "queue_timeout", "no_wait", "approval", "approval_timeout"];

/// Options of the run of the calls. A file with a run has others, too.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of the run")]
pub(crate) struct RunOptions {
    /// How long the run may last, as 90m, 12h or 4d; at most 30d. It includes waits for approval, for an answer and for
    /// the end of a delay. A call still ends at most 24 h after its dispatch to the workers [default: 24 h, or the
    /// `timeout` in the file of the run]
    #[arg(long, value_name = "SPAN", value_parser = seconds)]
    run_timeout: Option<Duration>,
    /// Store nothing: arguments, results and ids are erased about a minute after its end
    #[arg(long)]
    no_store: bool,
    /// Execute nothing: the calls are checked, and then wait for their client
    #[arg(long)]
    no_execute: bool,
    /// If a call fails, cancel the others
    #[arg(long)]
    fail_fast: bool,
    /// Approve the calls that await approval, with the role `approve`; it is recorded
    #[arg(long)]
    approve: bool,
    /// The tenant of the run
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Its calls may use these tools alone, hidden ones included
    #[arg(long, value_name = "TOOL")]
    attach: Vec<String>,
    /// An uploaded object that its calls may open as a file of this name
    #[arg(long, value_name = "NAME=OBJECT", value_parser = file)]
    file: Vec<v1::RunFile>,
    /// How many of its calls run at once, at most
    #[arg(long, value_name = "N")]
    running_max: Option<u32>,
    /// The priority of its calls among those of its tenant that wait in the same pool
    #[arg(long, value_enum)]
    priority: Option<Priority>,
    /// Metadata of each of its calls, which hooks, webhooks and tools receive
    #[arg(long, value_name = "KEY=VALUE", value_parser = metadata)]
    metadata: Vec<(String, String)>,
}

/// The priority of calls.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Priority {
    Low,
    Normal,
    High,
}

impl Priority {
    fn wire(self) -> v1::Priority {
        match self {
            Self::Low => v1::Priority::Low,
            Self::Normal => v1::Priority::Normal,
            Self::High => v1::Priority::High,
        }
    }
}

fn metadata(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| "write KEY=VALUE".to_owned())?;
    Ok((key.to_owned(), value.to_owned()))
}

fn file(text: &str) -> Result<v1::RunFile, String> {
    let (name, object) = text.rsplit_once('=').ok_or_else(|| "write NAME=OBJECT".to_owned())?;
    Ok(v1::RunFile { tool: "_all".to_owned(), name: name.to_owned(), object_id: object.to_owned() })
}

impl RunOptions {
    /// Gives the options to a run, beside those that it has.
    pub(crate) fn give_to(self, mut run: v1::CreateRunRequest) -> v1::CreateRunRequest {
        let Self {
            run_timeout,
            no_store,
            no_execute,
            fail_fast,
            approve,
            tenant,
            attach,
            file,
            running_max,
            priority,
            metadata,
        } = self;
        for (key, value) in metadata {
            run.calls.iter_mut().for_each(|call| drop(call.metadata.insert(key.clone(), value.clone())));
        }
        run.timeout = run_timeout.map(proto::convert::duration).or(run.timeout);
        run.store = if no_store { Some(false) } else { run.store };
        run.execute = if no_execute { Some(false) } else { run.execute };
        run.fail_fast |= fail_fast;
        run.tenant = tenant.unwrap_or(run.tenant);
        run.tools.extend(attach);
        run.files.extend(file);
        if approve {
            run.approve.push("_all".to_owned());
        }
        if let Some(running_max) = running_max {
            run.rules.get_or_insert_default().running_max = running_max;
        }
        if let Some(priority) = priority {
            run.rules.get_or_insert_default().priority = priority.wire().into();
        }
        run
    }
}

/// A number of seconds, or a span such as 10m.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    if let Ok(span) = span(text) {
        return Some(span).filter(|span| !span.is_zero()).ok_or_else(|| "give a time above zero".to_owned());
    }
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, or a span as 10m".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout),
        Ok(_) | Err(_) => Err("give a number of seconds above zero".to_owned()),
    }
}

/// An approval with this timeout, or the API's default of one hour. Without a decision the call is rejected.
pub(crate) fn approval_request(timeout: Option<Duration>) -> v1::ApprovalRequest {
    v1::ApprovalRequest { timeout: timeout.map(proto::convert::duration), ..Default::default() }
}

/// Checks that a call, which ends after `call`, and its run, which ends after `run`, last as long as the approval may
/// take. The coordinator accepts a longer approval, but ends it with the call: the user would learn that too late.
///
/// # Errors
/// The call or the run ends earlier. The error names the option to change.
pub(crate) fn check_approval(
    approval: Option<Duration>,
    call: Option<Duration>,
    run: Option<Duration>,
) -> Result<(), Failure> {
    let approval = approval.unwrap_or_default();
    let run = run.unwrap_or(run::limit::RUN_LIFE);
    let (what, end, remedy) = match call {
        _ if approval > run => {
            ("run", run, "give a longer --run-timeout (at most 30d), or a shorter --approval-timeout")
        }
        Some(call) if approval > call => {
            ("call", call, "--timeout includes the wait for approval, so leave it out or give a longer one")
        }
        Some(_) | None => return Ok(()),
    };
    let (end, approval) = (words::duration(end), words::duration(approval));
    Err(Failure::Usage(format!(
        "the {what} would end after {end}, before its approval times out after {approval}: {remedy}"
    )))
}

impl Args {
    /// When `--timeout` ends the call, counted from now. `None` without `--timeout`, and with `--not-before`: the
    /// approval of such a call is compared with its run only.
    fn ends_after(&self) -> Option<Duration> {
        let timeout = self.timeout.filter(|_| self.not_before.is_none())?;
        Some(timeout.saturating_add(self.delay.unwrap_or_default()))
    }
}

pub(crate) async fn run(mut args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let answers = if terminal.has_person() { Answers::Person(Keyboard::default()) } else { Answers::Elsewhere };
    let hints = matches!(answers, Answers::Elsewhere);
    let (options, detach, shown) = (std::mem::take(&mut args.options), args.detach, args.shown);
    let (request_id, exit_status) = (args.request_id.take(), args.exit_status);
    check_approval(args.approval_timeout, args.ends_after(), options.run_timeout)?;
    let (client, run, view) = match args.calls.take() {
        Some(path) => {
            let run = files::run(&path)?;
            (door.connect().await?, run, View::of_run(terminal, hints))
        }
        None => typed(args, door, (terminal, hints)).await?,
    };
    let mut run = options.give_to(run);
    run.request_id = request_id.unwrap_or(run.request_id);
    let mut interrupts = Interrupts::listen()?;
    let watch = client.execute(run).await?;
    if detach {
        return left(&client, watch, terminal).await;
    }
    let show = Show::new(terminal, view, shown);
    let followed = Follow::new(&client, show, answers).until_end(watch, &mut interrupts).await?;
    Ok(if exit_status { status_of(&followed) } else { exit_of(&followed) })
}

/// How the program of the only call ended.
fn status_of(followed: &Followed) -> Exit {
    if followed.interrupted {
        return Exit::Interrupted;
    }
    let call = followed.tally.calls.iter().find(|call| !call.is_question);
    let outcome = call.and_then(|call| call.outcome.as_ref());
    let completed = outcome.filter(|outcome| outcome.state() == v1::CallState::Completed);
    Exit::Program(completed.and_then(|outcome| program_status(&outcome.result)).unwrap_or(NO_STATUS))
}

/// The exit code in the result of a tool that runs a program: `{"exit_code":3}` or `{"signal":9}`.
fn program_status(result: &[v1::Content]) -> Option<u8> {
    let parse = |content: &v1::Content| match &content.body {
        Some(Body::Json(text) | Body::Text(text)) => serde_json::from_str::<serde_json::Value>(text).ok(),
        Some(Body::Object(_) | Body::Data(_)) | None => None,
    };
    let found = result.iter().rev().filter_map(parse).find_map(|value| {
        let number = |name: &str| value.get(name).and_then(serde_json::Value::as_i64);
        number("exit_code").or_else(|| number("signal").map(|signal| 128 + signal))
    });
    // A shell reports the lowest byte, too.
    found.map(|code| code.to_le_bytes()[0])
}

/// The run of the call that was typed, and how its output is shown.
async fn typed(
    args: Args,
    door: &Server,
    (terminal, hints): (&Terminal, bool),
) -> Result<(Client, v1::CreateRunRequest, View), Failure> {
    let Args { tool, pairs, json: base, context, not_before, delay, timeout, queue_timeout, no_wait, .. } = args;
    let approval = args.approval.then(|| approval_request(args.approval_timeout));
    let name = tool.unwrap_or_default();
    name.parse::<ToolName>().map_err(|error| Failure::Usage(error.to_string()))?;
    let base = arguments::parse_base(base.as_deref())?;
    let client = door.connect().await?;
    let tool = known(&client, &name).await?;
    let schema = tool.as_ref().map_or("", |tool| &tool.input_schema);
    let arguments = arguments::build(base, pairs, schema)?;
    let view = if terminal.is_json() {
        View::Json
    } else {
        View::Plain(Plain::new(Setting {
            streaming: tool.is_some_and(|tool| tool.streaming),
            hints,
            to_terminal: terminal.stdout_is_terminal(),
            notes_to_terminal: terminal.stderr_is_terminal(),
            paint: terminal.paint_notes(),
        }))
    };
    let without_worker = if no_wait { v1::WithoutWorker::Fail } else { v1::WithoutWorker::Wait };
    let call = v1::NewCall {
        tool: name,
        arguments,
        not_before: not_before.or(delay.map(ahead)),
        timeout: timeout.map(proto::convert::duration),
        queue_timeout: queue_timeout.map(proto::convert::duration),
        without_worker: without_worker.into(),
        approval,
        context: context.unwrap_or_default(),
        ..v1::NewCall::default()
    };
    // A user who types a call has approved it, unless --approval is given.
    let rules = Some(v1::RunRules { confirmation: v1::Confirmation::None.into(), ..v1::RunRules::default() });
    Ok((client, v1::CreateRunRequest { calls: vec![call], rules, ..Default::default() }, view))
}

/// Shows a run that goes on without this program.
pub(crate) async fn left(client: &Client, mut watch: Watch, terminal: &Terminal) -> Result<Exit, Failure> {
    let events = watch.next().await?.unwrap_or_default();
    let opened = events.iter().find_map(|event| match &event.event {
        Some(Event::RunOpened(opened)) => Some(opened),
        _ => None,
    });
    if let Some(opened) = opened {
        crate::last::keep(&opened.run_id);
        crate::runs::show(&client.run(&opened.run_id).await?, terminal)?;
    }
    Ok(Exit::Completed)
}

/// The tool, or `None` if it is unknown: then the call fails with an error that lists known tools.
pub(crate) async fn known(client: &Client, name: &str) -> Result<Option<v1::Tool>, Failure> {
    match client.tool(name).await {
        Ok(tool) => Ok(Some(tool)),
        Err(client::Error::Refused(status)) if reason(&status) == Some(Reason::ToolNotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The exit code of the first call that did not complete.
pub(crate) fn exit_of(followed: &Followed) -> Exit {
    if followed.interrupted {
        return Exit::Interrupted;
    }
    let calls = followed.tally.calls.iter().filter(|call| !call.is_question);
    let mut exits = calls.map(|call| match call.outcome.as_ref().map(v1::CallOutcome::state) {
        Some(v1::CallState::Completed) => Exit::Completed,
        Some(v1::CallState::Cancelled) => Exit::Cancelled,
        Some(v1::CallState::Expired) => Exit::Expired,
        Some(
            v1::CallState::Failed
            | v1::CallState::Unspecified
            | v1::CallState::Accepted
            | v1::CallState::WaitingForClient
            | v1::CallState::AwaitingApproval
            | v1::CallState::Delayed
            | v1::CallState::Queued
            | v1::CallState::Running,
        )
        | None => Exit::Failed,
    });
    exits.find(|exit| *exit != Exit::Completed).unwrap_or(Exit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_may_take_no_longer_than_its_call_and_run() {
        let hours = |hours: u64| Some(Duration::from_secs(hours * 3600));
        for (approval, call, run) in [
            (None, hours(1), hours(1)),
            (hours(24), None, None),
            (hours(72), None, hours(72)),
            (hours(1), hours(2), None),
        ] {
            assert!(check_approval(approval, call, run).is_ok(), "{approval:?} {call:?} {run:?}");
        }
        let error = |approval, call, run| check_approval(approval, call, run).expect_err("it is too long").to_string();
        assert!(error(hours(25), None, None).contains("the run would end after 24 h 0 min"));
        assert!(error(hours(25), hours(1), None).contains("--run-timeout"));
        assert!(error(hours(48), hours(1), hours(72)).contains("--timeout includes the wait"));
    }

    #[test]
    fn the_exit_code_of_a_program_stands_in_the_result() {
        let of = |text: &str| program_status(&[Body::Json(text.to_owned()).into()]);
        assert_eq!([of(r#"{"exit_code":0}"#), of(r#"{"exit_code":3}"#)], [Some(0), Some(3)]);
        assert_eq!(of(r#"{"signal":9}"#), Some(137));
        assert_eq!([of(r#"{"answer":1}"#), of("[1]"), of("no JSON")], [None, None, None]);
    }
}
