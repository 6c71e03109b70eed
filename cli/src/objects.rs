//! `toolyard objects`: what is too large for the log.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use proto::v1;

use crate::client::Client;
use crate::door::Door;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use crate::words::harmless;

const GET_EXAMPLES: &str = "\
Examples:
  toolyard objects get run_0b_0193….0.main.4f1c… > log.txt
  toolyard objects get run_0b_0193….0.main.4f1c… --file log.txt

Its id stands in the result that it is a part of. With --file and -o json it
writes {object_id, media_type, size_bytes, sha256}.";

/// Read what is too large for the log
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Read an object, to standard output or into a file
    #[command(after_help = GET_EXAMPLES)]
    Get(Get),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// The object
    id: String,
    /// Write it into this file, which is made anew
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) async fn run(command: Command, door: &Door, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = Client::connect(door).await?;
    match command {
        Command::Get(get) => get_object(&client, get, terminal).await,
    }
}

async fn get_object(client: &Client, Get { id, file }: Get, terminal: &Terminal) -> Result<Exit, Failure> {
    let request = v1::ReadObjectRequest { object_id: id, ..v1::ReadObjectRequest::default() };
    let stream = client.objects.clone().read_object(request).await.map_err(|status| client.failure(status))?;
    let (mut stream, mut about, mut out) = (stream.into_inner(), v1::Object::default(), None);
    while let Some(piece) = stream.message().await.map_err(|status| client.failure(status))? {
        if let Some(object) = piece.object {
            // Only now is it known that there is something to write.
            out = file.as_ref().map(File::create).transpose().map_err(Failure::Output)?;
            about = v1::Object { preview: String::new(), ..object };
        }
        match &mut out {
            Some(out) => out.write_all(&piece.data).map_err(Failure::Output)?,
            None => terminal.write(&piece.data)?,
        }
    }
    if let Some(out) = out {
        out.sync_all().map_err(Failure::Output)?;
        match terminal.is_json() {
            true => terminal.message(&about)?,
            false => terminal.note(&format!("{} bytes of {}", about.size_bytes, harmless(&about.media_type))),
        }
    }
    Ok(Exit::Completed)
}
