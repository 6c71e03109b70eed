//! The languages of the workers, and how workers of the packages in Python and in Node are started.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::schedule::Part;

/// The language in which the tool of a call is written. The tools and their policies are the same in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Python,
    Node,
}

/// Workers of a package: an installed `toolyard` of Python, or of Node.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) language: Language,
    path: PathBuf,
}

impl Language {
    /// Begins the names of its tools. Each language has a pool of its own, so its tools need names of their own.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Rust => "",
            Self::Python => "python_",
            Self::Node => "node_",
        }
    }

    pub(crate) fn part(self) -> Part {
        match self {
            Self::Rust => Part::Worker,
            Self::Python => Part::PythonWorker,
            Self::Node => Part::NodeWorker,
        }
    }
}

impl Package {
    /// The package in an environment of Python, by its interpreter.
    pub(crate) fn python(interpreter: &Path) -> anyhow::Result<Self> {
        let program = interpreter.with_file_name("toolyard-py");
        let missing = || format!("{} is missing: give the interpreter of an environment with it", program.display());
        // Not resolved: an interpreter finds the packages of its environment by the link that it was started by.
        let path = std::path::absolute(&program)?;
        path.try_exists()?.then_some(()).with_context(missing)?;
        Ok(Self { language: Language::Python, path })
    }

    /// The npm package, by its folder, in which it is built.
    pub(crate) fn node(folder: &Path) -> anyhow::Result<Self> {
        let index = folder.join("dist/index.js");
        let missing = || format!("{} is missing: build the package by sdk/typescript/run", index.display());
        let path = index.canonicalize().with_context(missing)?;
        Ok(Self { language: Language::Node, path })
    }

    /// The program and the arguments of a worker.
    pub(crate) fn command(&self, nats_url: &str, slots: u32, drain_s: u64) -> (PathBuf, Vec<String>) {
        let (slots, drain) = (slots.to_string(), drain_s.to_string());
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let path = self.path.display().to_string();
        match self.language {
            Language::Rust | Language::Python => {
                let options = ["--nats-url", nats_url, "--pool", "python", "--slots", &slots, "--drain", &drain];
                let command = ["run", "torture_tools:app"];
                (self.path.clone(), words(&[&command[..], &options[..]].concat()))
            }
            Language::Node => {
                let tools = Self::tools().join("torture_tools.mjs").display().to_string();
                (PathBuf::from("node"), words(&[&tools, &path, nats_url, "node", &slots, &drain]))
            }
        }
    }

    /// The variables with which its workers find their tools, and leave no files beside them.
    pub(crate) fn environment() -> Vec<(&'static str, String)> {
        let tools = Self::tools().display().to_string();
        vec![("PYTHONPATH", tools), ("PYTHONDONTWRITEBYTECODE", "1".to_owned())]
    }

    fn tools() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/torture"))
    }
}
