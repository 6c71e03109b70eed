//! `toolyard objects`: what is too large for the log.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::pin::pin;

use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

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

/// Read and store what is too large for the log
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Read an object, to standard output or into a file
    #[command(after_help = GET_EXAMPLES)]
    Get(Get),
    /// Store a file as an object, at most 256 MiB
    #[command(after_help = PUT_EXAMPLES)]
    Put(Put),
    /// Make a link over which an object can be read for a while, by whoever has it
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
    /// Write it into this file, which is made anew
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) async fn run(command: Command, door: &Door, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = Client::connect(door).await?;
    match command {
        Command::Get(get) => get_object(&client, get, terminal).await,
        Command::Put(put) => put_object(&client, put, terminal).await,
        Command::Link(link) => make_link(&client, link, door, terminal).await,
        Command::Rm(Rm { ids }) => {
            for object_id in ids {
                let deleted = client.objects.clone().delete_object(v1::DeleteObjectRequest { object_id }).await;
                deleted.map_err(|status| client.failure(status))?;
            }
            Ok(Exit::Completed)
        }
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

async fn put_object(client: &Client, Put { file, media_type }: Put, terminal: &Terminal) -> Result<Exit, Failure> {
    let wrong = |error: &io::Error| Failure::Usage(format!("cannot read {}: {error}", file.display()));
    let mut source: Box<dyn Read + Send> = match file.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(File::open(&file).map_err(|error| wrong(&error))?),
    };
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let reading = tokio::task::spawn_blocking(move || {
        let read = send(&mut source, media_type, &sender);
        // What broke off must not look as if it were all.
        read.map_err(|error| (error, sender))
    });
    let mut objects = client.objects.clone();
    let mut storing = pin!(objects.create_object(ReceiverStream::new(pieces)));
    let stored = tokio::select! {
        stored = &mut storing => stored,
        read = reading => match read {
            Ok(Err((error, _open))) => return Err(wrong(&error)),
            Ok(Ok(())) | Err(_) => storing.await,
        },
    };
    let stored = stored.map_err(|status| client.failure(status))?.into_inner();
    match (terminal.is_json(), &stored.object) {
        (false, Some(object)) => terminal.line(&object.object_id)?,
        (_, _) => terminal.message(&stored)?,
    }
    Ok(Exit::Completed)
}

/// Sends all that there is to read, until it is not wanted any more.
fn send(source: &mut dyn Read, media_type: String, to: &mpsc::Sender<v1::CreateObjectRequest>) -> io::Result<()> {
    let mut piece = v1::CreateObjectRequest { media_type, ..v1::CreateObjectRequest::default() };
    while to.blocking_send(piece).is_ok() {
        let mut data = Vec::with_capacity(PIECE_BYTES);
        Read::take(&mut *source, PIECE_BYTES as u64).read_to_end(&mut data)?;
        if data.is_empty() {
            break;
        }
        piece = v1::CreateObjectRequest { data: data.into(), ..v1::CreateObjectRequest::default() };
    }
    Ok(())
}

async fn make_link(client: &Client, link: Link, door: &Door, terminal: &Terminal) -> Result<Exit, Failure> {
    let lifetime = link.lifetime.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
    let request = v1::CreateObjectLinkRequest { object_id: link.id, lifetime };
    let made = client.objects.clone().create_object_link(request).await;
    let made = made.map_err(|status| client.failure(status))?.into_inner();
    match terminal.is_json() {
        true => terminal.message(&made)?,
        false => terminal.line(&format!("{}{}", door.url.trim_end_matches('/'), made.path))?,
    }
    Ok(Exit::Completed)
}
