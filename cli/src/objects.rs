//! `toolyard objects`: data that is too large for the log.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;

use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::exit::{Exit, Failure};
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::{harmless, meter};
use client::{Bytes, Client};

const GET_EXAMPLES: &str = "\
Examples:
  toolyard objects get run_0b_0193….0.main.4f1c… > log.txt
  toolyard objects get run_0b_0193….0.main.4f1c… --file log.txt

Its id stands in the result that it is a part of. With --file and -o json it
writes {object_id, media_type, size_bytes, sha256}.";

const PUT_EXAMPLES: &str = "\
Examples:
  toolyard objects put data.csv --type text/csv
  toolyard objects put - < data.csv

Its id goes into `files` of a run. With -o json it writes {object {object_id,
media_type, size_bytes, sha256}, expire_time}.";

const LINK_EXAMPLES: &str = "\
Examples:
  toolyard objects link run_0b_0193….0.main.4f1c… --lifetime 60

Coordinators need a key for links: `answer_token_key_file` in the file of
callers. With -o json it writes {path, expire_time}.";

const RM_EXAMPLES: &str = "\
Examples:
  toolyard objects rm upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f

A run that was given it goes on; a call that opens it from then on fails. One
that is not there is as deleted.";

/// Bytes that are sent at once.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that may wait to be sent.
const PIECES_MAX: usize = 4;

/// Read and store objects: data that is too large for the log
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Read an object, to standard output or into a file
    #[command(after_help = GET_EXAMPLES)]
    Get(Get),
    /// Store a file as an object, at most 256 MiB
    #[command(after_help = PUT_EXAMPLES)]
    Put(Put),
    /// Create a link with which anyone can read an object for a while
    #[command(after_help = LINK_EXAMPLES)]
    Link(Link),
    /// Delete uploads
    #[command(after_help = RM_EXAMPLES)]
    Rm(Rm),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// The uploads
    #[arg(required = true)]
    ids: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Link {
    /// The object
    id: String,
    /// How long the link is good, in seconds [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..))]
    lifetime: Option<i64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// The file; - for standard input
    file: PathBuf,
    /// Its media type
    #[arg(long = "type", value_name = "TYPE", default_value = "application/octet-stream")]
    media_type: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// The object
    id: String,
    /// Write it into this file, and replace what is there
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Get(get) => get_object(&client, get, terminal).await,
        Command::Put(put) => put_object(&client, put, terminal).await,
        Command::Link(link) => make_link(&client, link, door, terminal).await,
        Command::Rm(Rm { ids }) => {
            for object_id in ids {
                client.delete_object(object_id.clone()).await?;
                terminal.note(&format!("{} is deleted", harmless(&object_id)));
            }
            Ok(Exit::Completed)
        }
    }
}

async fn get_object(client: &Client, Get { id, file }: Get, terminal: &Terminal) -> Result<Exit, Failure> {
    // The file is made only when it is known that there is something to write.
    let mut object = client.read_object(&id).await?;
    let mut out = file.as_ref().map(File::create).transpose().map_err(Failure::Output)?;
    let (mut written, size) = (0, object.about().size_bytes);
    while let Some(data) = object.next().await? {
        match &mut out {
            Some(out) => {
                out.write_all(&data).map_err(Failure::Output)?;
                written += data.len() as u64;
                terminal.progress(&meter(written, size));
            }
            None => terminal.write(&data)?,
        }
    }
    let about = v1::Object { preview: String::new(), ..object.about().clone() };
    if let Some(out) = out {
        terminal.end_progress();
        out.sync_all().map_err(Failure::Output)?;
        match terminal.is_json() {
            true => terminal.message(&about)?,
            false => terminal.note(&format!("{} bytes of {}", about.size_bytes, harmless(&about.media_type))),
        }
    }
    Ok(Exit::Completed)
}

async fn put_object(client: &Client, Put { file, media_type }: Put, terminal: &Terminal) -> Result<Exit, Failure> {
    let wrong = |error: &io::Error| Failure::Usage(format!("cannot read {}: {error}", file.display()));
    let mut source: Box<dyn Read + Send> = match file.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(File::open(&file).map_err(|error| wrong(&error))?),
    };
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || send(&mut source, &sender));
    let stored = client.upload(&media_type, ReceiverStream::new(pieces)).await.map_err(|error| match error {
        client::Error::Source(error) => wrong(&error),
        error => error.into(),
    })?;
    match (terminal.is_json(), &stored.object) {
        (false, Some(object)) => terminal.line(&object.object_id)?,
        (_, _) => terminal.message(&stored)?,
    }
    Ok(Exit::Completed)
}

/// Sends the whole source piece by piece, or the error that ended it, until the receiver is gone.
fn send(source: &mut dyn Read, to: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut data = Vec::with_capacity(PIECE_BYTES);
        let read = Read::take(&mut *source, PIECE_BYTES as u64).read_to_end(&mut data);
        let piece = match read {
            Ok(0) => return,
            Ok(_) => Ok(Bytes::from(data)),
            Err(error) => Err(error),
        };
        let is_last = piece.is_err();
        if to.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

async fn make_link(client: &Client, link: Link, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let lifetime = link.lifetime.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
    let request = v1::CreateObjectLinkRequest { object_id: link.id, lifetime };
    let made = client.object_link(request).await?;
    match terminal.is_json() {
        true => terminal.message(&made)?,
        false => terminal.line(&format!("{}{}", door.url()?.trim_end_matches('/'), made.path))?,
    }
    Ok(Exit::Completed)
}
