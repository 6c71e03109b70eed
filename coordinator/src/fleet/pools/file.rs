//! Reads the pools file, checks it as a whole, and reloads it when it changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{Glob, GlobSetBuilder};
use run::{PoolId, TenantId};
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{PoolRule, PoolRules, PoolsError, Replacing};
use crate::fleet::facades::{self, RawFacade};
use crate::tasks::LOOK;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    pools: BTreeMap<String, RawPool>,
    #[serde(default)]
    facades: BTreeMap<String, RawFacade>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    tools: Option<Vec<String>>,
    tenants: Option<Vec<String>>,
    shared: Option<bool>,
    replaces: Option<String>,
    share: Option<u64>,
}

/// Reloads the file when it changes. If it cannot be used, the previous rules stay in force.
#[derive(Debug)]
pub(crate) struct PoolsReload {
    path: PathBuf,
    text: String,
    rules: watch::Sender<Arc<PoolRules>>,
}

/// Reads and checks the file.
///
/// # Errors
/// If it cannot be read, or with every mistake in it.
pub(crate) fn open(path: &Path) -> Result<(watch::Receiver<Arc<PoolRules>>, PoolsReload), PoolsError> {
    let text = read(path)?;
    let (rules, receiver) = watch::channel(Arc::new(parse(path, &text)?));
    Ok((receiver, PoolsReload { path: path.to_owned(), text, rules }))
}

impl PoolsReload {
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
        let facades = facades::checked(self.facades, &mut mistakes);
        // A file of facades alone leaves names to the pools that advertise them first.
        let is_listed = !self.pools.is_empty() || facades.is_empty();
        let mut replacing: BTreeMap<PoolId, Replacing> = BTreeMap::new();
        for (name, raw) in self.pools {
            let place = format!("pools.{name}");
            let pool: Result<PoolId, run::InvalidId> = name.parse();
            let pool = pool.map_err(|error| mistakes.push(format!("pools: {error}"))).ok();
            if raw.replaces.is_some() {
                replacing.extend(pool.zip(raw.replacing(&place, &mut mistakes)));
            } else {
                pools.extend(pool.zip(raw.check(&place, &mut mistakes)));
            }
        }
        let mut replaced: BTreeMap<&PoolId, &PoolId> = BTreeMap::new();
        for (pool, Replacing { of, .. }) in &replacing {
            if let Some(first) = replaced.insert(of, pool) {
                mistakes.push(format!("pools.{pool}.replaces: pool {first} replaces {of} already: remove one of them"));
            }
            if !pools.contains_key(of) && mistakes.is_empty() {
                let why = "the pool has no tools of its own in this file";
                mistakes.push(format!("pools.{pool}.replaces: \"{of}\": {why}: name a pool that has tools"));
            }
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        Ok(PoolRules { pools: is_listed.then_some(pools), replacing, facades })
    }
}

impl RawPool {
    /// A pool with rules of its own.
    fn check(self, place: &str, mistakes: &mut Vec<String>) -> Option<PoolRule> {
        let before = mistakes.len();
        let tools = self.tools.unwrap_or_default();
        if tools.is_empty() {
            mistakes.push(format!("{place}.tools: names no tool: write [\"*\"] for every name, or remove the pool"));
        }
        if self.share.is_some() {
            mistakes.push(format!("{place}.share: only a pool that replaces another has a share of its calls"));
        }
        let mut patterns = GlobSetBuilder::new();
        for (number, text) in tools.iter().enumerate() {
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
        let rule = PoolRule { tools: tools?, tenants, shared: self.shared.unwrap_or_default() };
        (mistakes.len() == before).then_some(rule)
    }

    /// A pool that takes a share of the calls of another pool and has its rules.
    fn replacing(self, place: &str, mistakes: &mut Vec<String>) -> Option<Replacing> {
        let Self { tools, tenants, shared, replaces, share } = self;
        let of: Result<PoolId, run::InvalidId> = replaces?.parse();
        let of = of.map_err(|error| mistakes.push(format!("{place}.replaces: {error}"))).ok()?;
        for (field, is_there) in
            [("tools", tools.is_some()), ("tenants", tenants.is_some()), ("shared", shared.is_some())]
        {
            if is_there {
                mistakes.push(format!("{place}.{field}: leave it out: the pool has what pool {of} has"));
            }
        }
        let share = share.and_then(|share| u8::try_from(share).ok()).filter(|share| *share <= 100);
        if share.is_none() {
            mistakes.push(format!(
                "{place}.share: set the percentage of the calls of pool {of} that it takes, 0 to \
                100"
            ));
        }
        Some(Replacing { of, share: share? })
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
        let text = "[pools.a]\ntools = []\n[pools.b]\ntools = [\"[\"]\ntenants = []\n\
                    [pools.\"c d\"]\ntools = [\"x\"]\ntenants = [\"a b\"]";
        let error = parse(Path::new("pools.toml"), text).expect_err("it has mistakes").to_string();
        for place in ["pools.a.tools", "pools.b.tools[0]", "pools.b.tenants", "pools: ", "pools.c d.tenants[0]"] {
            assert!(error.contains(place), "{place} is missing in {error}");
        }
        assert!(
            parse(Path::new("pools.toml"), "[pools.a]\ntools = [\"x\"]\ntenant = \"y\"").is_err(),
            "unknown fields"
        );
    }

    #[test]
    fn a_facade_with_mistakes_is_named_with_its_places() {
        let text = "[facades.a]\ntool = \"b c\"\n[facades.d]\ntool = \"a\"\n[facades.e]\ntool = \"x\"\n\
                    permission = \"admin\"\ninput_schema = { type = \"array\" }\ntags = [\"\"]\n\
                    [facades.\"f g\"]\ntool = \"x\"";
        let error = parse(Path::new("pools.toml"), text).expect_err("it has mistakes").to_string();
        for place in ["a.tool", "d.tool: a is a facade itself", "e.permission", "e.input_schema", "e.tags", "facades: "]
        {
            assert!(error.contains(place), "{place} is missing in {error}");
        }
    }

    #[test]
    fn a_file_of_facades_alone_lists_no_pools() {
        assert!(!rules("[facades.a]\ntool = \"x\"").is_listed());
        assert!(rules("").is_listed());
    }

    #[test]
    fn a_pool_replaces_one_other_with_a_share_and_has_its_rules() {
        let rules = rules("[pools.a]\ntools = [\"x\"]\n[pools.b]\nreplaces = \"a\"\nshare = 5");
        let [a, b] = ["a", "b"].map(|name| name.parse::<PoolId>().unwrap());
        assert_eq!((rules.replaces(&a), rules.replaces(&b)), (None, Some((&a, 5))));
        let [x, y] = ["x", "y"].map(|name| name.parse().unwrap());
        assert!(rules.may_host(&b, &x) && !rules.may_host(&b, &y));
        for (text, mistake) in [
            ("[pools.b]\nreplaces = \"a\"", "pools.b.share"),
            ("[pools.b]\nreplaces = \"a\"\nshare = 101", "0 to 100"),
            ("[pools.b]\nreplaces = \"a\"\nshare = 1\ntools = [\"x\"]", "pools.b.tools: leave it out"),
            ("[pools.b]\nreplaces = \"c\"\nshare = 1", "pools.b.replaces: \"c\""),
            ("[pools.b]\nreplaces = \"b\"\nshare = 1", "pools.b.replaces: \"b\""),
            ("[pools.b]\nreplaces = \"a\"\nshare = 1\n[pools.c]\nreplaces = \"a\"\nshare = 1", "replaces a already"),
            ("[pools.b]\ntools = [\"x\"]\nshare = 1", "pools.b.share: only"),
        ] {
            let text = format!("[pools.a]\ntools = [\"x\"]\n{text}");
            let error = parse(Path::new("pools.toml"), &text).expect_err("a mistake").to_string();
            assert!(error.contains(mistake), "{mistake} is missing in {error}");
        }
    }
}
