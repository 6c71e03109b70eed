//! External hooks: a program, or a web service.

use std::path::Path;

use bytes::Bytes;

use crate::command::Program;
use crate::contract::{HookError, HookRequest, Reply};
use crate::http::Service;
use crate::{Hook, json};

pub(crate) enum Outside {
    Program(Program),
    Service(Box<Service>),
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // An address may hold a secret.
        f.write_str(match self {
            Self::Program(_) => "a program",
            Self::Service(_) => "a service",
        })
    }
}

impl Outside {
    /// From the entry of a file.
    ///
    /// # Errors
    /// Why the entry is invalid, and which field.
    pub(crate) fn named(command: Option<Vec<String>>, url: Option<String>) -> Result<Self, (&'static str, String)> {
        match (command, url) {
            (Some(command), None) => {
                let mut words = command.into_iter();
                let program = words.next().filter(|program| !program.is_empty());
                let program = program.ok_or(("command", "is empty: name a program and its arguments".to_owned()))?;
                if !is_there(&program) {
                    return Err(("command", format!("there is no program {program:?}, here or on the PATH")));
                }
                Ok(Self::Program(Program::new(program, words.collect())))
            }
            (None, Some(url)) => Service::new(&url).map(Box::new).map(Self::Service).map_err(|reason| ("url", reason)),
            (None, None) => Err(("command", "is missing, and so is url: give one of them".to_owned())),
            (Some(_), Some(_)) => Err(("url", "stands beside command: give one of them".to_owned())),
        }
    }

    pub(crate) async fn answer(&self, question: Bytes) -> Result<Bytes, HookError> {
        match self {
            Self::Program(program) => program.answer(&question).await.map(Bytes::from),
            Self::Service(service) => service.post(question).await,
        }
    }
}

impl Hook for Outside {
    async fn ask(&self, question: &HookRequest) -> Result<Reply, HookError> {
        json::reply(&self.answer(json::question(question)).await?)
    }
}

/// Whether the program exists.
fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
