//! The `toolyard` program: parses the arguments, runs the command, and converts its end into an exit code.

mod args;
mod backup;
mod broker;
mod bucket;
mod bulk;

mod call;
mod calls;
mod collaboration;
mod completions;
mod context;
mod demo;
mod dev;
mod doctor;
mod erase;
mod inbox;
mod index;
mod key;
mod log;
mod manifest;
mod mcp;
mod model;
mod nats_config;
mod nats_keys;
mod objects;
mod open;
mod parked;
mod pause;
mod queues;
mod runs;
mod schedules;
mod serve;
mod submit;
mod tail;
mod tools;
mod top;
mod webhooks;
mod why;

mod arguments;
mod children;
mod files;
mod follow;
mod guard;
mod history;
mod interrupts;
mod observe;
mod origins;
mod prompt;
mod server;
mod yard;

mod json;
mod key_files;
mod last;
mod list;
mod plain;
mod plan;
mod reference;
mod sandboxing;
mod story;
mod tally;
mod terminal;
mod words;
mod workers;
mod yaml;

mod exit;
mod usage;

use std::process::ExitCode;

use clap::Parser as _;
use telemetry::LevelFilter;

use crate::args::{Cli, Command, Global};
use crate::exit::{Exit, Failure};
use crate::server::Server;
use crate::terminal::{Output, Terminal};

/// A call frees memory on another thread than it allocates it. This allocator lets a thread reuse memory that it freed.
/// One that returns memory to the allocating thread took a fifth of a busy coordinator's time, and the system's a
/// third.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sandbox::enter();
    let Cli { global, command } = match Cli::try_parse() {
        Ok(parsed) => parsed,
        Err(error) => return usage::report(error),
    };
    let terminal = Terminal::new(global.output, global.color);
    match start(&global, command, &terminal) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            terminal.failure(&failure);
            failure.exit().into()
        }
    }
}

fn start(global: &Global, command: Command, terminal: &Terminal) -> Result<Exit, Failure> {
    let format = match global.output {
        Output::Human | Output::Wide | Output::Name => telemetry::Format::Human,
        Output::Json | Output::Yaml => telemetry::Format::Json,
    };
    // Logs would stand between what the console draws.
    if !matches!(command, Command::Top(_)) || !terminal.stderr_is_terminal() {
        telemetry::init(format, default_level(&command))?;
    }
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::Runtime)?;
    let done = runtime.block_on(run(&global.door, command, terminal));
    // A tool that still blocks a thread must not hold up the exit.
    runtime.shutdown_background();
    done
}

/// Logs of a process that only serves are all there is to see of it; elsewhere they would stand between the output.
fn default_level(command: &Command) -> LevelFilter {
    match command {
        Command::Coordinator(_) | Command::Worker(_) => LevelFilter::INFO,
        Command::Demo(_)
        | Command::Dev(_)
        | Command::Model(_)
        | Command::Doctor(_)
        | Command::Plan(_)
        | Command::NatsConfig(_)
        | Command::NatsKeys(_)
        | Command::Objects(_)
        | Command::Queues(_)
        | Command::Log(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Tools(_)
        | Command::Call(_)
        | Command::Calls(_)
        | Command::Run(_)
        | Command::Runs(_)
        | Command::Tail(_)
        | Command::Open(_)
        | Command::Schedules(_)
        | Command::Inbox(_)
        | Command::Index(_)
        | Command::Key(_)
        | Command::Pause(_)
        | Command::Resume(_)
        | Command::Workers(_)
        | Command::Submit(_)
        | Command::Why(_)
        | Command::Parked(_)
        | Command::Top(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Context(_)
        | Command::Webhooks(_) => LevelFilter::WARN,
    }
}

async fn run(door: &Server, command: Command, terminal: &Terminal) -> Result<Exit, Failure> {
    match command {
        Command::Demo(args) => Box::pin(demo::run(args, terminal)).await,
        Command::Dev(args) => Box::pin(dev::run(args, door, terminal)).await,
        Command::Model(args) => model::run(args, terminal).await,
        Command::Doctor(args) => doctor::run(args, terminal).await,
        Command::Plan(args) => plan::run(&args, terminal),
        Command::NatsConfig(args) => nats_config::run(args, terminal),
        Command::NatsKeys(command) => nats_keys::run(&command, terminal),
        Command::Objects(command) => objects::run(command, door, terminal).await,
        Command::Queues(args) => Box::pin(queues::run(args, terminal)).await,
        Command::Log(command) => log::run(command, terminal).await,
        Command::Backup(args) => backup::backup(args, terminal).await,
        Command::Restore(args) => backup::restore(args, terminal).await,
        Command::Coordinator(args) => serve::coordinator(*args).await,
        Command::Worker(args) => serve::worker(*args).await,
        Command::Tools(command) => tools::run(command, door, terminal).await,
        Command::Call(args) => call::run(args, door, terminal).await,
        Command::Calls(command) => calls::run(command, door, terminal).await,
        Command::Run(args) => runs::create(*args, door, terminal).await,
        Command::Tail(args) => tail::run(args, door, terminal).await,
        Command::Open(args) => open::run(args, door, terminal).await,
        Command::Runs(command) => runs::run(command, door, terminal).await,
        Command::Schedules(command) => schedules::run(command, door, terminal).await,
        Command::Inbox(args) => inbox::run(args, door, terminal).await,
        Command::Index(command) => index::run(command, door, terminal).await,
        Command::Key(command) => key::run(command, door, terminal).await,
        Command::Pause(command) => pause::run(command, door, terminal).await,
        Command::Resume(command) => pause::resume(command, door, terminal).await,
        Command::Workers(command) => workers::run(command, door, terminal).await,
        Command::Completions(args) => completions::completions(&args, terminal),
        Command::Man(args) => completions::man(&args, terminal),
        Command::Context(command) => context::run(command, door, terminal),
        Command::Top(args) => Box::pin(top::run(args, door, terminal)).await,
        Command::Submit(args) => submit::run(args, door, terminal).await,
        Command::Why(args) => why::run(args, door, terminal).await,
        Command::Parked(command) => parked::run(command, door, terminal).await,
        Command::Webhooks(command) => webhooks::run(command, door, terminal).await,
    }
}
