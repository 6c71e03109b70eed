//! The language servers that are known. An operator's file adds more, or replaces one by its name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use globset::Glob;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::root::Root;

/// A language server: which files it is for, and how it is started.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguageServer {
    /// Its name.
    pub name: String,
    /// The program, found in `PATH` unless it has a slash. It speaks the protocol on standard input and output.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Environment variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Names of files that it is for, as `*.py`, each with the id of its language, as `python`.
    pub files: BTreeMap<String, String>,
    /// Files that mark the folder of a project, as `pyproject.toml`.
    #[serde(default)]
    pub roots: Vec<String>,
    /// The initialization options.
    #[serde(default)]
    pub options: Value,
    /// The configuration that it gets when it asks for one.
    #[serde(default)]
    pub settings: Value,
    /// It runs code of the project: build scripts, plugins, or a compiler of the project's choice.
    #[serde(default)]
    pub runs_project_code: bool,
    /// How to install it, for the error when it is missing.
    #[serde(default)]
    pub install: Option<String>,
}

impl LanguageServer {
    /// The language of a file, if the server is for it.
    pub(super) fn language(&self, file: &Path) -> Option<&str> {
        let name = file.file_name()?;
        let fits = |glob: &str| Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(name));
        self.files.iter().find(|(glob, _)| fits(glob)).map(|(_, language)| language.as_str())
    }

    /// The folder of the project that a file or folder is in: the nearest one with a mark, or the root.
    pub(super) fn workspace(&self, root: &Root, place: &Path) -> PathBuf {
        let is_marked = |folder: &&Path| self.roots.iter().any(|mark| folder.join(mark).exists());
        let folders = place.ancestors().filter(|folder| folder.is_dir());
        let inside = folders.take_while(|folder| folder.starts_with(root.path()));
        inside.into_iter().find(is_marked).unwrap_or(root.path()).to_owned()
    }

    /// Checks what an operator wrote.
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() || self.program.is_empty() {
            return Err("a language server needs a name and a program".to_owned());
        }
        if self.files.is_empty() {
            return Err(format!("language server {name:?}: files is empty: name those that it is for"));
        }
        match self.files.keys().find_map(|glob| Glob::new(glob).err()) {
            Some(error) => Err(format!("language server {name:?}: files: {error}")),
            None => Ok(()),
        }
    }
}

const PYTHON: [(&str, &str); 2] = [("*.py", "python"), ("*.pyi", "python")];
const PYTHON_ROOTS: [&str; 4] = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"];
const SCRIPTS: [(&str, &str); 8] = [
    ("*.ts", "typescript"),
    ("*.mts", "typescript"),
    ("*.cts", "typescript"),
    ("*.tsx", "typescriptreact"),
    ("*.js", "javascript"),
    ("*.mjs", "javascript"),
    ("*.cjs", "javascript"),
    ("*.jsx", "javascriptreact"),
];
const C: [(&str, &str); 6] =
    [("*.c", "c"), ("*.h", "c"), ("*.cpp", "cpp"), ("*.cc", "cpp"), ("*.hpp", "cpp"), ("*.cxx", "cpp")];

/// The servers that come with the tool. Of those for the same files the first that is installed is taken.
pub(super) fn known() -> Vec<LanguageServer> {
    let server = |program: &str, arguments: &[&str], files: &[(&str, &str)], roots: &[&str], install: &str| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        LanguageServer {
            name: program.trim_end_matches("-langserver").to_owned(),
            program: program.to_owned(),
            arguments: texts(arguments),
            environment: BTreeMap::new(),
            files: files.iter().map(|(glob, id)| ((*glob).to_owned(), (*id).to_owned())).collect(),
            roots: texts(roots),
            options: Value::Null,
            settings: Value::Null,
            runs_project_code: false,
            install: Some(install.to_owned()),
        }
    };
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        server("pyright-langserver", &["--stdio"], &PYTHON, &PYTHON_ROOTS, "npm install -g pyright"),
        server("pylsp", &[], &PYTHON, &PYTHON_ROOTS, "pip install python-lsp-server"),
        server("jedi-language-server", &[], &PYTHON, &PYTHON_ROOTS, "pip install jedi-language-server"),
        // It loads the compiler that the project has installed. Its second server, for syntax alone, would answer
        // first, and not follow imports.
        LanguageServer {
            runs_project_code: true,
            options: json!({ "tsserver": { "useSyntaxServer": "never" } }),
            ..server(
                "typescript-language-server",
                &["--stdio"],
                &SCRIPTS,
                &["tsconfig.json", "jsconfig.json", "package.json"],
                "npm install -g typescript-language-server typescript",
            )
        },
        // It runs build scripts, procedural macros and compiler wrappers.
        LanguageServer {
            runs_project_code: true,
            ..server("rust-analyzer", &[], &[("*.rs", "rust")], &["Cargo.toml"], "rustup component add rust-analyzer")
        },
        server("clangd", &[], &C, &["compile_commands.json", "compile_flags.txt", ".clangd"], "apt-get install clangd"),
        // Without a C compiler and other versions of Go it runs nothing of the project.
        LanguageServer {
            environment: [variable("CGO_ENABLED", "0"), variable("GOTOOLCHAIN", "local")].into(),
            ..server("gopls", &[], &[("*.go", "go")], &["go.work", "go.mod"], "go install golang.org/x/tools/gopls")
        },
    ]
}
