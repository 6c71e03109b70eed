//! `toolyard key`: secrets for callers, and for browsers that answer one call.

use std::time::Duration;

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::last::RunArg;
use crate::server::Server;
use crate::terminal::Terminal;

const NEW_EXAMPLES: &str = "\
Examples:
  toolyard key new
  toolyard key new -o json | jq -r .key

The key is for the caller, in a file that --key-file names, or as
`authorization: Bearer KEY`. The hash is for `keys` of that caller in the file
of `toolyard coordinator --auth`. Nobody has the key but you: a lost one is
replaced, not found again. With -o json it writes {key, hash}.";

const ANSWER_EXAMPLES: &str = "\
Examples:
  toolyard key answer run_0b_0193… call_3 --lifetime 300

Whoever has the token can answer that call and do nothing else. With -o json it
writes {token, expires}.";

/// Make keys for callers, and tokens for answers
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make a caller's key, and the hash of it that coordinators get
    #[command(after_help = NEW_EXAMPLES)]
    New,
    /// Make a token with which a browser can answer one call
    #[command(after_help = ANSWER_EXAMPLES)]
    Answer(Answer),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Answer {
    /// The run, or `last`: the run that you created last
    run: RunArg,
    /// The call that waits for its client
    call: String,
    /// How long the token is good, in seconds [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    lifetime: Option<u64>,
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    match command {
        Command::New => {
            let (key, hash) = coordinator::new_key();
            if terminal.is_json() {
                terminal.object(&Object::default().field("key", key).field("hash", hash))?;
            } else {
                terminal.line(&format!("key   {key}\nhash  {hash}"))?;
            }
        }
        Command::Answer(Answer { run, call, lifetime }) => {
            let client = door.connect().await?;
            let made = client.answer_token(run.id(&client).await?, call, lifetime.map(Duration::from_secs)).await?;
            if terminal.is_json() {
                let expires = made.expire_time.as_ref().map(ToString::to_string);
                terminal.object(&Object::default().field("token", made.token).maybe("expires", expires))?;
            } else {
                terminal.line(&made.token)?;
            }
        }
    }
    Ok(Exit::Completed)
}
