//! Which manifest counts for each name. Workers that say the same of a tool are replicas. Where they differ, the newest
//! version counts among those that live, and the first among those of one version: the others are refused, loudly.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use proto::concurrency::ByInput;
use proto::convert::manifest::Usable;
use proto::schema::Schema;
use run::{Manifest, PoolId, ToolName, Version};
use sha2::{Digest as _, Sha256};

use super::{Hosts, Sets};

/// Every tool by name, hosted or not, hidden or not.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    /// In the order of their names.
    entries: Vec<Entry>,
    places: HashMap<ToolName, usize>,
    pub(crate) refused: Vec<Refused>,
    pub(crate) differing: Vec<Differing>,
    /// Of some tool only so many calls may run at once.
    pub(crate) limits_running: bool,
}

/// A tool that can be called under a name.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: ToolName,
    pub(crate) hosted: Hosted,
    /// The name is another one of this tool.
    pub(crate) alias_of: Option<ToolName>,
    /// Where it is hosted by workers that live, or where it was: in the order of their names, and at least one.
    pub(crate) pools: Vec<PoolId>,
    pub(crate) is_hosted: bool,
}

/// A tool as it was advertised. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Hosted {
    pub(crate) manifest: Arc<Manifest>,
    /// Compiled once, when it was advertised.
    pub(crate) schema: Schema,
    pub(crate) concurrency: ByInput,
    contract: [u8; 32],
}

/// A tool that cannot be used, and why.
#[derive(Debug, Clone)]
pub(crate) struct Unusable {
    pub(crate) tool: String,
    pub(crate) reason: String,
}

/// What somebody hosts and nobody can call.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) tool: String,
    pub(crate) hosts: Hosts,
    /// Who has the name; `None` where the manifest cannot be used.
    pub(crate) holder: Option<Hosts>,
    pub(crate) reason: String,
    /// It is older than the holder's, as in any rolling update: nobody need act.
    pub(crate) gives_way: bool,
}

/// Hosts that say something else of a tool than those whose word counts, with the same schemas and the same version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Differing {
    pub(crate) tool: ToolName,
    pub(crate) hosts: Hosts,
    pub(crate) holder: Hosts,
    pub(crate) what: String,
}

/// In what two manifests of one tool differ, the schemas aside.
fn difference(one: &Manifest, other: &Manifest) -> Option<String> {
    if one == other {
        return None;
    }
    let fields = [
        ("permission", one.permission != other.permission),
        ("requires_confirmation", one.requires_confirmation != other.requires_confirmation),
        ("effects", one.effects != other.effects),
        ("policy", one.policy != other.policy),
        ("concurrency", one.concurrency != other.concurrency),
        ("final, return_direct or hidden", one.result_use != other.result_use),
        ("context_keys", one.context_keys != other.context_keys),
        ("exclusive_when", one.exclusive_when != other.exclusive_when),
        ("parallel_when", one.parallel_when != other.parallel_when),
        ("aliases", one.aliases != other.aliases),
        ("running_max", one.running_max != other.running_max),
    ];
    let named: Vec<&str> = fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
    Some(if named.is_empty() { "description, tags or the like".to_owned() } else { named.join(", ") })
}

impl Hosted {
    pub(crate) fn new(usable: Usable) -> Self {
        let Usable { manifest, schema, concurrency } = usable;
        let mut hash = Sha256::new();
        for text in [&manifest.input_schema, &manifest.output_schema] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        hash.update([u8::from(manifest.definition_only)]);
        Self { manifest: Arc::new(manifest), schema, concurrency, contract: hash.finalize().into() }
    }
}

/// A tool of a set, under one of its names.
struct Candidate<'a> {
    hosts: &'a Hosts,
    hosted: &'a Hosted,
    alias_of: Option<&'a ToolName>,
    revision: u64,
    is_alive: bool,
}

impl Candidate<'_> {
    fn version(&self) -> Option<&Version> {
        self.hosted.manifest.version.as_ref()
    }

    /// Whether callers need not know one from the other.
    fn is_replica_of(&self, other: &Self) -> bool {
        self.hosted.contract == other.hosted.contract && self.alias_of == other.alias_of
    }

    /// What counts most comes last: it lives, it is newer, it was there first; among the dead, it was there last.
    fn rank(&self) -> (bool, Option<&Version>, u64) {
        let order = if self.is_alive { u64::MAX - self.revision } else { self.revision };
        (self.is_alive, self.version(), order)
    }
}

impl Catalog {
    pub(crate) fn new(sets: &Sets, alive: &HashSet<Hosts>) -> Self {
        let mut by_name: HashMap<&ToolName, Vec<Candidate<'_>>> = HashMap::new();
        let (mut refused, mut differing) = (Vec::new(), Vec::new());
        for (hosts, set) in sets {
            let is_alive = alive.contains(hosts);
            for hosted in &set.tools {
                let tool = &hosted.manifest.name;
                let candidate = |alias_of| Candidate { hosts, hosted, alias_of, revision: set.revision, is_alive };
                by_name.entry(tool).or_default().push(candidate(None));
                for alias in &hosted.manifest.aliases {
                    by_name.entry(&alias.name).or_default().push(candidate(Some(tool)));
                }
            }
            if is_alive {
                refused.extend(set.unusable.iter().map(|unusable| Refused {
                    tool: unusable.tool.clone(),
                    hosts: hosts.clone(),
                    holder: None,
                    reason: unusable.reason.clone(),
                    gives_way: false,
                }));
            }
        }
        let mut entries: Vec<Entry> = by_name
            .into_iter()
            .filter_map(|(name, candidates)| entry(name, &candidates, (&mut refused, &mut differing)))
            .collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        refused.sort_by(|one, other| (&one.tool, &one.hosts).cmp(&(&other.tool, &other.hosts)));
        let places = entries.iter().enumerate().map(|(place, entry)| (entry.name.clone(), place)).collect();
        let limits_running = entries.iter().any(|entry| entry.hosted.manifest.running_max.is_some());
        Self { entries, places, refused, differing, limits_running }
    }

    pub(crate) fn find(&self, name: &ToolName) -> Option<&Entry> {
        self.entries.get(*self.places.get(name)?)
    }

    /// Tools in the order of their names, beginning after `after`.
    pub(crate) fn after(&self, after: Option<&ToolName>) -> &[Entry] {
        let first = after.map_or(0, |after| self.entries.partition_point(|entry| entry.name <= *after));
        &self.entries[first..]
    }
}

fn entry(
    name: &ToolName,
    candidates: &[Candidate<'_>],
    (refused, differing): (&mut Vec<Refused>, &mut Vec<Differing>),
) -> Option<Entry> {
    let best = candidates.iter().max_by(|one, other| one.rank().cmp(&other.rank()))?;
    let replicas = candidates.iter().filter(|other| other.is_alive == best.is_alive && other.is_replica_of(best));
    let pools: BTreeSet<&PoolId> = replicas.clone().map(|replica| &replica.hosts.0).collect();
    // A newer version may say what it likes, and an alias says what its tool does.
    let as_new = |other: &&Candidate<'_>| best.is_alive && best.alias_of.is_none() && other.version() == best.version();
    differing.extend(replicas.filter(as_new).filter_map(|other| {
        let what = difference(&best.hosted.manifest, &other.hosted.manifest)?;
        Some(Differing { tool: name.clone(), hosts: other.hosts.clone(), holder: best.hosts.clone(), what })
    }));
    for other in candidates.iter().filter(|other| other.is_alive && !other.is_replica_of(best)) {
        let version =
            |of: &Candidate<'_>| of.version().map_or("no version".to_owned(), |version| format!("version {version}"));
        let gives_way = other.version() < best.version();
        let reason = if gives_way {
            format!("{} gives way to {}", version(other), version(best))
        } else {
            format!(
                "another schema has this name, with {}: rename one, or give the newer a higher version",
                version(best)
            )
        };
        let (hosts, holder) = (other.hosts.clone(), Some(best.hosts.clone()));
        refused.push(Refused { tool: name.to_string(), hosts, holder, reason, gives_way });
    }
    let mut hosted = best.hosted.clone();
    if best.alias_of.is_some() {
        hosted.manifest = Arc::new(under_alias(&hosted.manifest, name));
    }
    Some(Entry {
        name: name.clone(),
        hosted,
        alias_of: best.alias_of.cloned(),
        pools: pools.into_iter().cloned().collect(),
        is_hosted: best.is_alive,
    })
}

/// The manifest as it is under another name of the tool.
fn under_alias(manifest: &Manifest, name: &ToolName) -> Manifest {
    let alias = manifest.aliases.iter().find(|alias| alias.name == *name);
    let own = alias.map(|alias| alias.description.as_str()).filter(|description| !description.is_empty());
    Manifest {
        name: name.clone(),
        description: own.unwrap_or(&manifest.description).to_owned(),
        aliases: Vec::new(),
        ..manifest.clone()
    }
}

#[cfg(test)]
mod tests {
    use proto::convert::manifest::manifest_in;
    use proto::v1;

    use super::super::Set;
    use super::*;

    fn hosts(pool: &str) -> Hosts {
        (pool.parse().expect("a pool"), pool.parse().expect("an id"))
    }

    fn tool(version: &str, permission: v1::ToolPermission) -> Hosted {
        let schema = r#"{"type":"object"}"#.to_owned();
        let (name, version, permission) = ("pay".to_owned(), version.to_owned(), permission.into());
        Hosted::new(
            manifest_in(v1::Tool { name, version, permission, input_schema: schema, ..v1::Tool::default() })
                .expect("a manifest"),
        )
    }

    #[test]
    fn replicas_that_ask_for_another_permission_are_told_of_and_newer_ones_may() {
        let (read, write) = (v1::ToolPermission::Read, v1::ToolPermission::Write);
        let catalog = |others: [(&str, v1::ToolPermission); 2]| {
            let tools = [("", write)].into_iter().chain(others).map(|(version, permission)| tool(version, permission));
            let sets: Sets = tools
                .zip(["a", "b", "c"])
                .zip(1..)
                .map(|((tool, pool), revision)| {
                    (hosts(pool), Set { revision, tools: vec![tool], unusable: Vec::new() })
                })
                .collect();
            Catalog::new(&sets, &sets.keys().cloned().collect())
        };
        let said = catalog([("", write), ("", read)]);
        let tool: ToolName = "pay".parse().expect("a name");
        // What reads only may run beside others, unless it says otherwise.
        let what = "permission, concurrency".to_owned();
        let differing = Differing { tool, hosts: hosts("c"), holder: hosts("a"), what };
        assert_eq!((said.differing, said.refused.len()), (vec![differing], 0));
        assert_eq!(said.entries[0].hosted.manifest.permission, run::Permission::Write, "the first counts");
        let newer = catalog([("", write), ("2", read)]);
        assert_eq!((newer.differing.len(), newer.entries[0].hosted.manifest.permission), (0, run::Permission::Read));
    }
}
