//! Subjects of the log, built and parsed in one place. The broker's permissions depend on their form: a pool's workers
//! may write `ty.run.*.*.*.out.<pool>` and nothing else.

use std::fmt;

pub use owner::SubjectKind;
use run::{CallIndex, PoolId, RunId, Shard};

use crate::names::NAMESPACE;

/// A subject of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub run: RunId,
    pub place: SubjectKind,
}

/// A subject that is not one of the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a subject of the log")]
pub struct InvalidSubject(pub String);

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMESPACE)?;
        f.write_str(".run.")?;
        self.run.shard().fmt(f)?;
        f.write_str(".")?;
        self.run.fmt(f)?;
        let (call, what, pool) = match &self.place {
            SubjectKind::Run => return f.write_str("._.run"),
            SubjectKind::Job { call, pool } => (call, ".job.", pool.as_str()),
            SubjectKind::Output { call, pool } => (call, ".out.", pool.as_str()),
            SubjectKind::Control { call } => (call, ".ctl", ""),
        };
        f.write_str(".")?;
        call.fmt(f)?;
        f.write_str(what)?;
        f.write_str(pool)
    }
}

impl std::str::FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, InvalidSubject> {
        let invalid = || InvalidSubject(text.to_owned());
        let mut tokens = text.split('.');
        let mut next = || tokens.next().ok_or_else(invalid);
        let (namespace, kind, shard, run, call, what) = (next()?, next()?, next()?, next()?, next()?, next()?);
        let shard: Shard = shard.parse().map_err(|_| invalid())?;
        let run: RunId = run.parse().map_err(|_| invalid())?;
        if (namespace, kind) != (NAMESPACE, "run") || run.shard() != shard {
            return Err(invalid());
        }
        let index = || call.parse::<CallIndex>().map_err(|_| invalid());
        let mut pool = || tokens.next().and_then(|pool| pool.parse::<PoolId>().ok()).ok_or_else(invalid);
        let place = match what {
            "run" if call == "_" => SubjectKind::Run,
            "job" => SubjectKind::Job { call: index()?, pool: pool()? },
            "out" => SubjectKind::Output { call: index()?, pool: pool()? },
            "ctl" => SubjectKind::Control { call: index()? },
            _ => return Err(invalid()),
        };
        if tokens.next().is_some() {
            return Err(invalid());
        }
        Ok(Self { run, place })
    }
}

/// Every entry of a shard's runs.
#[must_use]
pub fn of_shard(shard: Shard) -> String {
    format!("{NAMESPACE}.run.{shard}.>")
}

/// The shard of a subject of the log.
#[must_use]
pub fn shard_of(subject: &str) -> Option<Shard> {
    let rest = subject.strip_prefix(NAMESPACE)?.strip_prefix(".run.")?;
    rest.split('.').next()?.parse().ok()
}

/// The subject on which a coordinator writes a barrier into a shard; it belongs to no run. Reads after the barrier's
/// confirmation are no older than the barrier.
#[must_use]
pub fn mark(shard: Shard) -> String {
    format!("{NAMESPACE}.run.{shard}._.mark")
}

/// Whether a subject is that of a barrier.
#[must_use]
pub fn is_mark(subject: &str) -> bool {
    subject.ends_with("._.mark")
}

/// Every entry of a run.
#[must_use]
pub fn of_run(run: RunId) -> String {
    format!("{NAMESPACE}.run.{}.{run}.>", run.shard())
}

/// Every entry of a call.
#[must_use]
pub fn of_call(run: RunId, call: CallIndex) -> String {
    format!("{NAMESPACE}.run.{}.{run}.{call}.>", run.shard())
}
