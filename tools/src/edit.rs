//! Changes a file, or creates one: exact replacements, a patch, or a whole content. Either all of a call is done, in
//! one step, or nothing.

mod change;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use similar::{ChangeTag, TextDiff};

use self::change::{Ending, patched, replaced};
use super::inside::{Inside, WRITE, may};
use super::lines::on_thread;
use super::read_file::sha256;
use super::root::Root;
use super::scope;
use sandbox::User;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Replacements of one call; more are better a patch.
const EDITS_MAX: u32 = 100;
/// Bytes of a file before and after its change: both are held in memory.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes of the diff in a result; a model wants to see its change, not a file.
const DIFF_BYTES_MAX: usize = 64 * 1024;
/// How long the smallest diff is looked for. Then a larger one does.
const DIFF_TIME: Duration = Duration::from_millis(500);

/// Changes files below a root.
#[derive(Debug)]
pub struct Edit {
    root: Root,
    user: Option<User>,
    /// Calls of this worker change files one after another, so that none undoes another.
    turn: Arc<Mutex<()>>,
}

/// A file, and one of three ways to change it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The file, relative to the root
    path: String,
    /// Replacements, one after another: all are made or none
    #[serde(default)]
    #[schemars(length(max = EDITS_MAX))]
    edits: Vec<Replacement>,
    /// Instead of edits: a unified diff of this one file
    patch: Option<String>,
    /// Instead of edits: the whole content of a new file, or, with `expected_sha256`, of one that is there
    content: Option<String>,
    /// Refuse if the file has another SHA-256 than this one, which read_file gave
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    expected_sha256: Option<String>,
}

/// A text of the file and the one that is put in its place.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// The text to replace, exactly as it is in the file, without line numbers; unique unless `replace_all`
    #[schemars(length(min = 1))]
    old_text: String,
    /// The text in its place
    new_text: String,
    /// Replace it everywhere
    #[serde(default)]
    replace_all: bool,
}

/// What became of the file.
#[derive(Debug, Serialize)]
struct Changed {
    path: String,
    sha256: String,
    bytes: usize,
    created: bool,
    lines_added: usize,
    lines_removed: usize,
}

impl Edit {
    /// Changes files below `root`. When `user` is given, only those that the user may write, and new ones are theirs.
    #[must_use]
    pub fn new(root: Root, user: Option<User>) -> Self {
        Self { root, user, turn: Arc::default() }
    }
}

impl Tool for Edit {
    const NAME: &'static str = "edit";
    type Input = Change;

    fn about(&self) -> About {
        let text = "Changes a text file by exact replacements or a unified diff, or creates one with its content. \
                    All of a call is done or nothing. The result is the diff and the new SHA-256. Refused: a text \
                    that is not in the file or not unique, a file that has changed since it was read, binary \
                    files.";
        let about = About::new(text).destructive().uses_machine().idle_timeout(None);
        about.category("filesystem").side_effect_scope(scope::LOCAL_STATE)
    }

    async fn call(&self, context: &Context, input: Change) -> Result<Output, ToolError> {
        let way = Way::of(&input)?;
        let (root, user, context, turn) = (self.root.clone(), self.user, context.clone(), Arc::clone(&self.turn));
        on_thread(move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let place = Place { root: &root, user, context: &context };
            place.change(&input, way)
        })
        .await
    }
}

/// One of the ways to change a file.
#[derive(Debug, Clone, Copy)]
enum Way {
    Edits,
    Patch,
    Content,
}

impl Way {
    fn of(input: &Change) -> Result<Self, ToolError> {
        match (input.edits.is_empty(), &input.patch, &input.content) {
            (false, None, None) => Ok(Self::Edits),
            (true, Some(_), None) => Ok(Self::Patch),
            (true, None, Some(_)) => Ok(Self::Content),
            (true, None, None) => Err(ToolError::bad_input("", "give edits, a patch or the content")),
            _ => Err(ToolError::bad_input("", "give only one of edits, patch and content")),
        }
    }
}

/// Where a call may change files.
struct Place<'a> {
    root: &'a Root,
    user: Option<User>,
    context: &'a Context,
}

impl Place<'_> {
    fn change(&self, input: &Change, way: Way) -> Result<Output, ToolError> {
        let path = self.root.file(&input.path).map_err(|error| error.at("/path"))?;
        let name = self.root.relative(&path);
        let failed = |error: &io::Error| ToolError::new(format!("{name:?} cannot be changed: {error}"));
        let old = match self.open(&path).and_then(|file| Ok((file.read(FILE_BYTES_MAX)?, file))) {
            Ok(((content, stat), file)) => Some((file, content, stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&error)),
        };
        let Some((file, before, stat)) = old else { return self.create(input, way, &name, &path) };
        if before.len() as u64 > FILE_BYTES_MAX {
            let mib = FILE_BYTES_MAX / 1024 / 1024;
            return Err(ToolError::bad_input("/path", format!("{name:?} has more than {mib} MiB: use bash")));
        }
        if !may(self.user, &stat, WRITE) {
            return Err(failed(&io::ErrorKind::PermissionDenied.into()));
        }
        fresh(input, way, &before, &name)?;
        let old = text(&before, &name)?;
        let ending = Ending::of(old);
        let plain = ending.plain(old);
        let new = match way {
            Way::Edits => ending.apply(replaced(&plain, &input.edits, ending, FILE_BYTES_MAX)?),
            Way::Patch => ending.apply(patched(&plain, input.patch.as_deref().unwrap_or_default(), ending)?),
            // A whole content is written as it is given.
            Way::Content => input.content.clone().unwrap_or_default(),
        };
        if new == old {
            return Err(ToolError::bad_input("", format!("{name:?} would stay as it is")));
        }
        within(&new)?;
        self.go_on()?;
        // Another program may have changed it meanwhile.
        if file.read(FILE_BYTES_MAX).map_err(|error| failed(&error))?.0 != before {
            return Err(ToolError::retryable(format!("{name:?} was changed at the same time: read it again")));
        }
        file.replace(new.as_bytes(), &stat).map_err(|error| failed(&error))?;
        answer(name, Some(old), &new)
    }

    fn create(&self, input: &Change, way: Way, name: &str, path: &std::path::Path) -> Result<Output, ToolError> {
        let missing = || super::root::Unreachable::Missing(input.path.clone()).at("/path");
        if input.expected_sha256.is_some() {
            return Err(missing());
        }
        let new = match way {
            Way::Edits => return Err(missing()),
            Way::Patch => patched("", input.patch.as_deref().unwrap_or_default(), Ending::AsItIs)?,
            Way::Content => input.content.clone().unwrap_or_default(),
        };
        within(&new)?;
        self.go_on()?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                ToolError::retryable(format!("{name:?} was created at the same time: read it"))
            }
            _ => ToolError::new(format!("{name:?} cannot be created: {error}")),
        };
        // The folder that is there decides whether the user may.
        let there = path.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(self.root.path());
        let folder = self.open(&there.join("x")).and_then(|inside| inside.folder()).map_err(failed)?;
        if !may(self.user, &folder, WRITE) {
            return Err(failed(io::ErrorKind::PermissionDenied.into()));
        }
        let file = Inside::make(self.root, path, self.user).map_err(failed)?;
        file.create(new.as_bytes(), self.user).map_err(failed)?;
        answer(name.to_owned(), None, &new)
    }

    fn open(&self, path: &std::path::Path) -> io::Result<Inside> {
        Inside::open(self.root, path, self.user)
    }

    /// The last moment at which a cancelled call changes nothing.
    fn go_on(&self) -> Result<(), ToolError> {
        match self.context.is_cancelled() {
            true => Err(ToolError::new("the call was cancelled; nothing was changed")),
            false => Ok(()),
        }
    }
}

/// Refuses to change another file than the model has read.
fn fresh(input: &Change, way: Way, before: &[u8], name: &str) -> Result<(), ToolError> {
    match (&input.expected_sha256, way) {
        (None, Way::Content) => {
            let message = format!(
                "{name:?} is there already: give expected_sha256, which read_file returns, to replace all of it, or \
                 use edits"
            );
            Err(ToolError::bad_input("/path", message))
        }
        (Some(expected), _) if *expected != sha256(before) => {
            let message = format!("{name:?} has changed since it was read: read it again, then edit what is there now");
            Err(ToolError::bad_input("/expected_sha256", message))
        }
        (None | Some(_), _) => Ok(()),
    }
}

fn text<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, ToolError> {
    let refused = |why: &str| ToolError::bad_input("/path", format!("{name:?} {why}: only UTF-8 text is edited"));
    if bytes.contains(&0) {
        return Err(refused("is binary"));
    }
    std::str::from_utf8(bytes).map_err(|error| refused(&format!("is no UTF-8 at byte {}", error.valid_up_to())))
}

fn within(new: &str) -> Result<(), ToolError> {
    if new.len() as u64 > FILE_BYTES_MAX {
        let mib = FILE_BYTES_MAX / 1024 / 1024;
        return Err(ToolError::bad_input("", format!("the file would have more than {mib} MiB")));
    }
    if new.contains('\0') {
        return Err(ToolError::bad_input("", "the new text has a zero byte: only text is written"));
    }
    Ok(())
}

/// The diff of the change, and the file as it is now.
fn answer(path: String, old: Option<&str>, new: &str) -> Result<Output, ToolError> {
    let before = old.unwrap_or_default();
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(before, new);
    let count = |wanted| diff.iter_all_changes().filter(|change| change.tag() == wanted).count();
    let changed = Changed {
        sha256: sha256(new.as_bytes()),
        bytes: new.len(),
        created: old.is_none(),
        lines_added: count(ChangeTag::Insert),
        lines_removed: count(ChangeTag::Delete),
        path,
    };
    let from = old.map_or_else(|| "/dev/null".to_owned(), |_| format!("a/{}", changed.path));
    let mut text = diff.unified_diff().header(&from, &format!("b/{}", changed.path)).to_string();
    if text.len() > DIFF_BYTES_MAX {
        let whole_lines = text.as_bytes()[..DIFF_BYTES_MAX].iter().rposition(|byte| *byte == b'\n');
        let end = whole_lines.map_or(0, |at| at + 1);
        let more = text.len() - end;
        text.truncate(end);
        text.push_str(&format!("[the diff is cut: {more} bytes more]\n"));
    }
    Ok(Output::from(text).and(Output::json(&changed)?))
}
