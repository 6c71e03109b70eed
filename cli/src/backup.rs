//! `toolyard backup` and `toolyard restore`: copy everything that the broker stores, and set up a broker from a copy.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::broker::BrokerArgs;
use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::log::{connect, readable};
use crate::terminal::Terminal;
use crate::words::meter;

const BACKUP_EXAMPLES: &str = "\
Examples:
  toolyard backup /backups/monday --nats-nkey operator.nk

Nothing need stand still. The folder then holds everything that the broker
stores, arguments and results too: keep it as you keep the broker's disk.
Objects in a bucket (--objects) are not in it.
With -o json it writes a line for each stream: {stream, messages, bytes}.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  toolyard restore /backups/monday --nats-nkey operator.nk

Into a broker that has none of our streams, before coordinators and workers
start. Runs go on from where the backup saw them: what ran since then runs
again, what was accepted since then is not known.
With -o json it writes a line for each stream: {stream, messages, bytes}.";

/// Written last: a folder without it is no whole backup.
const MANIFEST: &str = "backup.json";
const VERSION: u32 = 1;
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(200);

/// Copy everything that the broker stores into a folder, as the operator
#[derive(Debug, clap::Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(crate) struct Backup {
    /// The folder; created if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Restore a backup into an empty broker, as the operator
#[derive(Debug, clap::Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct Restore {
    /// The folder that `toolyard backup` wrote
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    /// In the order in which they are restored.
    streams: Vec<Copied>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Copied {
    stream: String,
    messages: u64,
    /// Of the file.
    bytes: u64,
    /// What the broker needs in addition to the copy.
    settings: serde_json::Value,
}

pub(crate) async fn backup(Backup { folder, broker }: Backup, terminal: &Terminal) -> Result<Exit, Failure> {
    if folder.join(MANIFEST).exists() {
        return Err(wrong(&folder, &"it holds a backup already: name another folder"));
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| wrong(&folder, &error))?;
    let operator = connect(broker).await?;
    let mut streams = Vec::new();
    for stream in operator.to_back_up().await? {
        let path = file_of(&folder, &stream.name);
        let mut file = BufWriter::new(create(&path)?);
        let mut progress = Progress::new(&stream.name, stream.bytes, terminal);
        let settings = operator.back_up(&stream.name, &mut file, |bytes| progress.add(bytes)).await?;
        let written = file.flush().and_then(|()| file.get_ref().sync_all());
        written.map_err(|error| wrong(&path, &error))?;
        let messages = settings.pointer("/state/messages").and_then(serde_json::Value::as_u64).unwrap_or(0);
        let copied = Copied { stream: stream.name.clone(), messages, bytes: progress.bytes, settings };
        tell(&copied, terminal)?;
        streams.push(copied);
    }
    let path = folder.join(MANIFEST);
    let text =
        serde_json::to_vec_pretty(&Manifest { version: VERSION, streams }).map_err(|error| wrong(&path, &error))?;
    let mut file = create(&path)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(|error| wrong(&path, &error))?;
    Ok(Exit::Completed)
}

pub(crate) async fn restore(Restore { folder, broker }: Restore, terminal: &Terminal) -> Result<Exit, Failure> {
    let path = folder.join(MANIFEST);
    let text = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => wrong(&folder, &format!("it has no {MANIFEST}, so it is no whole backup")),
        _ => wrong(&path, &error),
    })?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| wrong(&path, &error))?;
    if manifest.version != VERSION {
        return Err(wrong(&path, &format!("a release that writes version {} made it", manifest.version)));
    }
    let files = manifest.streams.iter().map(|copied| {
        let path = file_of(&folder, &copied.stream);
        let file = File::open(&path).map_err(|error| wrong(&path, &error))?;
        let bytes = file.metadata().map_err(|error| wrong(&path, &error))?.len();
        match bytes == copied.bytes {
            true => Ok(file),
            false => Err(wrong(&path, &format!("it has {bytes} bytes, and had {} when it was made", copied.bytes))),
        }
    });
    // All are there before anything is restored.
    let files: Vec<File> = files.collect::<Result<_, _>>()?;
    let operator = connect(broker).await?;
    operator.must_be_empty().await?;
    for (copied, file) in manifest.streams.iter().zip(files) {
        let mut progress = Progress::new(&copied.stream, copied.bytes, terminal);
        let mut file = BufReader::new(file);
        operator.restore(&copied.stream, &copied.settings, &mut file, |bytes| progress.add(bytes)).await?;
        tell(copied, terminal)?;
    }
    Ok(Exit::Completed)
}

fn file_of(folder: &Path, stream: &str) -> PathBuf {
    folder.join(format!("{stream}.tar.s2"))
}

/// It holds arguments and results, so only its owner may read it.
fn create(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).and_then(|file| {
        // Of an earlier try it has the rights that it had.
        file.set_permissions(fs::Permissions::from_mode(0o600)).map(|()| file)
    });
    opened.map_err(|error| wrong(path, &error))
}

fn wrong(path: &Path, reason: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("cannot use {}: {reason}", path.display()))
}

fn tell(copied: &Copied, terminal: &Terminal) -> Result<(), Failure> {
    let Copied { stream, messages, bytes, .. } = copied;
    terminal.end_progress();
    if terminal.is_json() {
        let told = Object::default().field("stream", stream);
        return terminal.object(&told.field("messages", *messages).field("bytes", *bytes));
    }
    terminal.line(&format!("{stream}: {messages} messages, {}", readable(*bytes)))
}

/// The progress of copying a stream, shown to a person.
struct Progress<'a> {
    stream: &'a str,
    of: u64,
    bytes: u64,
    told: Instant,
    terminal: &'a Terminal,
}

impl<'a> Progress<'a> {
    fn new(stream: &'a str, of: u64, terminal: &'a Terminal) -> Self {
        Self { stream, of, bytes: 0, told: Instant::now(), terminal }
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += u64::try_from(bytes).unwrap_or(0);
        if self.told.elapsed() >= PROGRESS {
            self.told = Instant::now();
            let (meter, of) = (meter(self.bytes, self.of), readable(self.of));
            self.terminal.progress(&format!("{meter} {}: {} of {of}", self.stream, readable(self.bytes)));
        }
    }
}
