//! The behaviours that Toolyard owes to the four systems it follows, each with its check from outside and the tests
//! that make the check: `tests/rows.toml`. The program `acceptance` runs them, and `docs/evidence/rows.md` shows them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A behaviour, and how it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub id: String,
    pub title: String,
    pub behaviour: String,
    /// What must be seen from outside.
    pub check: String,
    /// The tests that make the check, as [`Test::parse`] reads them.
    #[serde(default)]
    pub tests: Vec<String>,
    /// What of the behaviour is missing, and why. Then the row does not hold, whatever its tests say.
    #[serde(default)]
    pub open: Option<String>,
}

/// A test that a row names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test<'a> {
    /// A test of the Rust program. `target` is the path of the folder or file (without its extension) that Cargo makes
    /// a test program of: `tests/scenarios`, `core/run/tests/floor`; or a library's sources: `formats/src`. `name` is
    /// its name there.
    Rust { target: &'a str, name: &'a str },
    /// A script, with its arguments.
    Script(&'a str),
}

impl<'a> Test<'a> {
    /// `TARGET::MODULES::TEST`, or a script with its arguments.
    #[must_use]
    pub fn parse(text: &'a str) -> Self {
        text.split_once("::").map_or(Self::Script(text), |(target, name)| Self::Rust { target, name })
    }

    /// The file that has the test.
    ///
    /// # Errors
    /// When no file has it.
    pub fn source(self) -> Result<PathBuf, String> {
        match self {
            Self::Script(command) => {
                let file = PathBuf::from(command.split(' ').next().unwrap_or_default());
                if root().join(&file).is_file() { Ok(file) } else { Err(format!("there is no script {command}")) }
            }
            Self::Rust { target, name } => find(target, name),
        }
    }
}

/// The folder of the workspace.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// All rows, in their order.
///
/// # Panics
/// When `tests/rows.toml` is not what it must be.
#[must_use]
pub fn rows() -> Vec<Row> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        row: Vec<Row>,
    }
    let text = std::fs::read_to_string(root().join("tests/rows.toml")).expect("the file of rows is there");
    toml::from_str::<File>(&text).unwrap_or_else(|error| panic!("tests/rows.toml: {error}")).row
}

/// The source of a test: the file of its innermost module that has one, in which the other modules stand in line.
fn find(target: &str, name: &str) -> Result<PathBuf, String> {
    let modules: Vec<&str> = name.split("::").collect();
    let (test, modules) = modules.split_last().expect("a name has a part");
    for inner in 0..=modules.len() {
        let (path, in_line) = modules.split_at(modules.len() - inner);
        let stem = path.iter().fold(PathBuf::from(target), |stem, module| stem.join(module));
        let ends = if path.is_empty() { ["main.rs", "lib.rs"] } else { ["mod.rs", "mod.rs"] };
        let candidates = [stem.with_extension("rs"), stem.join(ends[0]), stem.join(ends[1])];
        let Some(file) = candidates.into_iter().find(|file| root().join(file).is_file()) else { continue };
        let text = std::fs::read_to_string(root().join(&file)).map_err(|error| error.to_string())?;
        // A macro such as `proptest!` indents its tests once more.
        let is_there = [in_line.len(), in_line.len() + 1].iter().any(|depth| {
            let indent = "    ".repeat(*depth);
            ["fn", "async fn"].iter().any(|word| text.contains(&format!("]\n{indent}{word} {test}(")))
        });
        let has_modules = in_line.iter().all(|module| text.contains(&format!("mod {module} {{")));
        // A macro that makes a module of this name makes its tests as well.
        let is_made = in_line.iter().any(|module| text.contains(&format!("!({module});")));
        return if is_made || (is_there && has_modules) {
            Ok(file)
        } else {
            Err(format!("{} has no test {name}", file.display()))
        };
    }
    Err(format!("there is no file of {target}::{name}"))
}

/// The page of the documentation that shows the rows.
///
/// # Panics
/// When a row names a test that is not there.
#[must_use]
pub fn page() -> String {
    let rows = rows();
    let open = rows.iter().filter(|row| row.open.is_some()).count();
    let mut page = format!(
        "# The behaviours, and the check of each\n\n\
         Toolyard follows four systems that run the tools of agents within one process, and owes their behaviours to \
         the\nprograms that move from there to a fleet. Each row is one of these behaviours, with a check that is made \
         from outside,\nand the tests that make it. `cargo run -p toolyard-tests --bin acceptance` runs the tests of \
         all rows and prints this\ntable with their results; `--row D13` runs one row.\n\n\
         {} of {} rows hold. The other ones say what is missing.\n\n\
         | row | behaviour | check | tests |\n|---|---|---|---|\n",
        rows.len() - open,
        rows.len(),
    );
    for row in &rows {
        let mut tests: Vec<String> = row.tests.iter().map(|test| link(test)).collect();
        if let Some(open) = &row.open {
            tests.push(format!("**Missing:** {open}"));
        }
        let (id, title, behaviour, check) = (&row.id, &row.title, &row.behaviour, &row.check);
        writeln!(page, "| {id} | **{title}.** {behaviour} | {check} | {} |", tests.join("<br>"))
            .expect("a string takes everything");
    }
    page
}

fn link(test: &str) -> String {
    let file = Test::parse(test).source().unwrap_or_else(|error| panic!("{error}"));
    let name = match Test::parse(test) {
        Test::Script(command) => command.to_owned(),
        Test::Rust { target, name } => {
            let last = target.rsplit('/').next().unwrap_or(target);
            // The tests of a folder are named by its files.
            let is_folder = root().join(target).is_dir();
            if is_folder { name.to_owned() } else { format!("{last}::{name}") }
        }
    };
    format!("[`{name}`](../../{})", file.display())
}
