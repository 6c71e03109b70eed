//! `toolyard model`: a scripted model, to try agents without a key.

use std::net::SocketAddr;
use std::path::PathBuf;

use agents::scripted::{Script, ScriptedModel};
use tokio::net::TcpListener;

use crate::exit::{Exit, Failure};
use crate::interrupts::Interrupts;
use crate::json::Object;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard model --script docs/examples/agents/script.toml
  toolyard model --script script.toml --listen 127.0.0.1:0 -o json

It speaks OpenAI's Chat Completions and Anthropic's Messages, streamed and
whole, and takes any key. Once it listens it says where; with -o json as
{openai, anthropic}. docs/tutorial/agents.md describes the script.";

/// Run a model that answers as a script says, to try agents without a key, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file of what it says (TOML)
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// The address of its two APIs; port 0 takes a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7430")]
    listen: SocketAddr,
}

pub(crate) async fn run(args: Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let Args { script, listen } = args;
    let script = Script::read(&script)?;
    let failed = |error| Failure::Model { listen, error };
    let mut interrupts = Interrupts::listen()?;
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (openai, anthropic) =
        (format!("http://{address}/v1/chat/completions"), format!("http://{address}/v1/messages"));
    if terminal.is_json() {
        terminal.object(&Object::default().field("openai", openai).field("anthropic", anthropic))?;
    } else {
        terminal.line(&format!("The scripted model is up\n\n  openai     {openai}\n  anthropic  {anthropic}"))?;
    }
    tokio::select! {
        served = ScriptedModel::new(script).serve(listener) => served.map_err(failed)?,
        () = interrupts.next() => {}
    }
    Ok(Exit::Completed)
}
