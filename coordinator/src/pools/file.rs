//! Reads the pools file, checks it as a whole, and reads it again when it changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{Glob, GlobSetBuilder};
use run::{PoolId, TenantId};
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{PoolRule, PoolRules, PoolsError};
use crate::tls::LOOK;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    pools: BTreeMap<String, RawPool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    tools: Vec<String>,
    tenants: Option<Vec<String>>,
    #[serde(default)]
    shared: bool,
}

/// Reads the file again when it changes. If it cannot be used, the rules read before stay in force.
#[derive(Debug)]
pub(crate) struct Keeper {
    path: PathBuf,
    text: String,
    rules: watch::Sender<Arc<PoolRules>>,
}

/// Reads and checks the file.
///
/// # Errors
/// When it cannot be read, or with every mistake in it.
pub(crate) fn open(path: &Path) -> Result<(watch::Receiver<Arc<PoolRules>>, Keeper), PoolsError> {
    let text = read(path)?;
    let (rules, receiver) = watch::channel(Arc::new(parse(path, &text)?));
    Ok((receiver, Keeper { path: path.to_owned(), text, rules }))
}

impl Keeper {
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut failed = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let read = read(&self.path).and_then(|text| {
                let rules = (text != self.text).then(|| parse(&self.path, &text)).transpose()?;
                Ok(rules.map(|rules| (text, rules)))
            });
            match read {
                Ok(None) => failed = None,
                Ok(Some((text, rules))) => {
                    (self.text, failed) = (text, None);
                    self.rules.send_replace(Arc::new(rules));
                    tracing::info!(file = %self.path.display(), "pools file reloaded");
                }
                Err(error) => {
                    let text = error.to_string();
                    if failed.as_ref() != Some(&text) {
                        tracing::error!(%error, "reloading the pools file failed; the previous rules stay in force");
                        failed = Some(text);
                    }
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<String, PoolsError> {
    std::fs::read_to_string(path).map_err(|source| PoolsError::Read { file: path.to_owned(), source })
}

fn parse(path: &Path, text: &str) -> Result<PoolRules, PoolsError> {
    let mistakes = |mistakes| PoolsError::Mistakes { file: path.to_owned(), mistakes };
    let file: Result<File, String> = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => serde_json::from_str(text).map_err(|error| error.to_string()),
        _ => toml::from_str(text).map_err(|error| error.to_string()),
    };
    file.map_err(|mistake| mistakes(vec![mistake]))?.check().map_err(mistakes)
}

impl File {
    fn check(self) -> Result<PoolRules, Vec<String>> {
        let (mut pools, mut mistakes) = (BTreeMap::new(), Vec::new());
        for (name, raw) in self.pools {
            let place = format!("pools.{name}");
            let pool: Result<PoolId, run::InvalidId> = name.parse();
            let rule = raw.check(&place, &mut mistakes);
            match (pool, rule) {
                (Ok(pool), Some(rule)) => drop(pools.insert(pool, rule)),
                (Ok(_), None) => {}
                (Err(error), _) => mistakes.push(format!("pools: {error}")),
            }
        }
        if mistakes.is_empty() { Ok(PoolRules { pools: Some(pools) }) } else { Err(mistakes) }
    }
}

impl RawPool {
    fn check(self, place: &str, mistakes: &mut Vec<String>) -> Option<PoolRule> {
        let before = mistakes.len();
        if self.tools.is_empty() {
            mistakes.push(format!("{place}.tools: names no tool: write [\"*\"] for every name, or remove the pool"));
        }
        let mut patterns = GlobSetBuilder::new();
        for (number, text) in self.tools.iter().enumerate() {
            match Glob::new(text) {
                Ok(glob) => drop(patterns.add(glob)),
                Err(error) => mistakes.push(format!("{place}.tools[{number}]: {error}")),
            }
        }
        if self.tenants.as_ref().is_some_and(Vec::is_empty) {
            mistakes.push(format!("{place}.tenants: names no tenant: leave it out for every tenant"));
        }
        let mut tenant = |text: String, number: usize| {
            let parsed: Result<TenantId, run::InvalidId> = text.parse();
            parsed.map_err(|error| mistakes.push(format!("{place}.tenants[{number}]: {error}"))).ok()
        };
        let tenants = self
            .tenants
            .map(|names| names.into_iter().enumerate().filter_map(|(number, text)| tenant(text, number)).collect());
        let tools = patterns.build().map_err(|error| mistakes.push(format!("{place}.tools: {error}"))).ok();
        let rule = PoolRule { tools: tools?, tenants, shared: self.shared };
        (mistakes.len() == before).then_some(rule)
    }
}

/// Rules of a text in TOML, for tests.
#[cfg(test)]
pub(crate) fn rules(text: &str) -> PoolRules {
    parse(Path::new("pools.toml"), text).expect("rules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let text = "[pools.a]\ntools = []\n[pools.b]\ntools = [\"[\"]\ntenants = []\n[pools.\"c d\"]\ntools = [\"x\"]\ntenants = [\"a b\"]";
        let error = parse(Path::new("pools.toml"), text).expect_err("it has mistakes").to_string();
        for place in ["pools.a.tools", "pools.b.tools[0]", "pools.b.tenants", "pools: ", "pools.c d.tenants[0]"] {
            assert!(error.contains(place), "{place} is missing in {error}");
        }
        assert!(
            parse(Path::new("pools.toml"), "[pools.a]\ntools = [\"x\"]\ntenant = \"y\"").is_err(),
            "unknown fields"
        );
    }
}
