//! `toolyard demo`: everything in one process, and one run that shows the main features.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use coordinator::{ApiOptions, Webhooks};
use hooks::Hooks;
use proto::v1;
use sandbox::Wanted;
use serde_json::{Value, json};

use crate::children::ShowArgs;
use crate::exit::{Exit, Failure};
use crate::follow::{Answers, Follow, Followed, Show, View};
use crate::interrupts::Interrupts;
use crate::json::Object;
use crate::prompt::Keyboard;
use crate::server::Server;
use crate::tally::Tally;
use crate::terminal::Terminal;
use crate::words::{counted, duration};
use crate::yard::{self, BrokerPort, Yard};

const EXAMPLES: &str = "\
Examples:
  toolyard demo
  toolyard demo --answer yes --root ~/src/project

Seven calls begin at the same time. Their output comes one call after another,
and the last one asks you something. nats-server is taken from PATH, else
fetched once into the cache; nothing else stays behind.";

/// See it work: a few calls at the same time, one ordered output, one question to you
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The answer to the question [default: you are asked; without a terminal, the first option]
    #[arg(long, value_name = "TEXT")]
    answer: Option<String>,
    /// The folder that the tools work in
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

pub(crate) async fn run(args: Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let Args { answer, root } = args;
    let answers = match answer {
        Some(text) => Answers::Given(text),
        None if terminal.has_person() => Answers::Person(Keyboard::default()),
        None => Answers::FirstOption,
    };
    let (listen, slots) = ((Ipv4Addr::LOCALHOST, 0).into(), worker::SLOTS);
    let (hooks, webhooks) = (Hooks::default(), Webhooks::default());
    let (nats_port, data_dir) = (BrokerPort::Free, None);
    let sandbox = Wanted::default();
    let options = yard::Options {
        listen,
        api: ApiOptions::default(),
        admin: None,
        redis_url: None,
        redis_ca: None,
        server: Server::default(),
        nats_port,
        data_dir,
        root,
        slots,
        hooks,
        webhooks,
        agents: None,
        sandbox,
    };

    let mut interrupts = Interrupts::listen()?;
    let mut yard = tokio::select! {
        yard = Yard::start(options) => yard?,
        () = interrupts.next() => return Err(Failure::Interrupted),
    };
    let door = Server::default().at(yard.url());
    let followed = tokio::select! {
        followed = show(&door, answers, &mut interrupts, terminal) => followed,
        ended = yard.ended() => Err(ended.into()),
    };
    yard.stop().await?;
    let Followed { tally, interrupted } = followed?;
    if interrupted {
        return Ok(Exit::Interrupted);
    }
    summarize(&tally, terminal)?;
    let is_completed = |outcome: &v1::CallOutcome| outcome.state() == v1::CallState::Completed;
    let all = tally.calls.iter().all(|call| call.outcome.as_ref().is_some_and(is_completed));
    Ok(if all { Exit::Completed } else { Exit::Failed })
}

async fn show(
    door: &Server,
    answers: Answers,
    interrupts: &mut Interrupts,
    terminal: &Terminal,
) -> Result<Followed, Failure> {
    let client = door.connect().await?;
    let (calls, view) = (calls(), View::of_run(terminal, false));
    if !terminal.is_json() {
        let count = counted(calls.len(), "call");
        terminal.line(&format!("A broker, a coordinator and a worker are up. {count} at once, one ordered output:"))?;
    }
    // Starting the demo approves its call of `bash`.
    let rules = Some(v1::RunRules { confirmation: v1::Confirmation::None.into(), ..v1::RunRules::default() });
    let run = v1::CreateRunRequest { calls, rules, ..Default::default() };
    let watch = client.execute(run).await?;
    let show = Show::new(terminal, view, ShowArgs::default());
    Follow::new(&client, show, answers).until_end(watch, interrupts).await
}

fn calls() -> Vec<v1::NewCall> {
    let question = json!({ "question": "Shall we go on?", "options": ["yes", "no", "tell me more"] });
    vec![
        call("slow", "bash", json!({ "command": "for i in 1 2 3 4 5; do echo \"step $i\"; sleep 0.4; done" })),
        call("countdown", "bash", json!({ "command": "for i in 3 2 1; do echo $i; sleep 0.5; done; echo lift-off" })),
        call("search", "grep", json!({ "pattern": "fn main", "glob": "*.rs", "limit": 5 })),
        call("files", "glob", json!({ "pattern": "{Cargo.toml,*.proto}", "limit": 12 })),
        call("shanghai", "get_current_time", json!({ "time_zone": "Asia/Shanghai" })),
        call("berlin", "get_current_time", json!({ "time_zone": "Europe/Berlin" })),
        call("ask", "ask_user", question),
    ]
}

fn call(id: &str, tool: &str, arguments: Value) -> v1::NewCall {
    // The command of `bash` here changes nothing, which the tool cannot know.
    let concurrency = v1::ToolConcurrency::Parallel.into();
    v1::NewCall {
        concurrency,
        call_id: id.to_owned(),
        tool: tool.to_owned(),
        arguments: arguments.to_string(),
        ..v1::NewCall::default()
    }
}

/// How long the calls took together, and how long it took until all were done: they ran at the same time.
fn summarize(tally: &Tally, terminal: &Terminal) -> Result<(), Failure> {
    let took: Vec<Duration> =
        tally.calls.iter().filter(|call| !call.for_client).filter_map(|call| call.took()).collect();
    let sum: Duration = took.iter().sum();
    let Some(wall) = tally.worked() else { return Ok(()) };
    if terminal.is_json() {
        let summary = Object::default()
            .field("calls", took.len())
            .field("calls_s", sum.as_secs_f64())
            .field("wall_s", wall.as_secs_f64());
        return terminal.object(&Object::default().field("summary", summary));
    }
    let (calls, sum, wall) = (counted(took.len(), "call"), duration(sum), duration(wall));
    terminal.line(&format!("  {calls} of {sum} together took {wall}, since they ran at the same time."))?;
    terminal.note("  Next: `toolyard dev`, then `toolyard tools ls` in another terminal.");
    Ok(())
}
