//! Chooses the manifest that counts for each name. A name belongs to the pools that the operator lists for it, or else
//! to the pool that advertised it first. Within a pool the newest version of live workers counts, and the first among
//! manifests of one version. Pools that share a name must agree in the whole manifest. All other manifests are refused,
//! and reported.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use formats::tools::{Format, Renamed};
use proto::convert::manifest::Usable;
use run::{Manifest, PoolId, ToolName, Version};
use schema::Schema;
use schema::concurrency::ByInput;
use sha2::{Digest as _, Sha256};

use super::{Hosts, Sets};
use crate::fleet::facades::Facade;
use crate::fleet::pools::{Access, PoolRules};
use crate::fleet::search::Search;

/// Every tool by name, hosted or not, hidden or not.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    /// In the order of their names.
    entries: Vec<Entry>,
    places: HashMap<ToolName, usize>,
    pub(crate) refused: Vec<Refused>,
    pub(crate) differing: Vec<Differing>,
    /// Whether any tool limits its running calls.
    pub(crate) limits_running: bool,
    /// Made by the first search.
    search: OnceLock<Search>,
    /// The names under which tools are exported, by the position of their form; made when a name of that form is first
    /// looked up.
    renamed: [OnceLock<Renamed>; Format::ALL.len()],
}

/// A tool that can be called under a name.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: ToolName,
    pub(crate) hosted: Hosted,
    /// The tool, if the name is an alias of it.
    pub(crate) alias_of: Option<ToolName>,
    /// The facade that has this name, and the manifest of its tool.
    pub(crate) facade: Option<(Arc<Facade>, Arc<Manifest>)>,
    /// The pools whose live workers host it, or last hosted it, with the same manifest: in the order of their names, at
    /// least one.
    pub(crate) pools: Vec<PoolId>,
    /// The sets of these pools with this tool, and its version there: the hosts of any of them can run its calls.
    pub(super) sets: Vec<(Hosts, Option<Version>)>,
    pub(crate) is_hosted: bool,
    /// The same name in pools that replace these, or that these replace.
    pub(super) beside: Option<Box<Beside>>,
}

/// A version of a tool that is being rolled out in pools of its own.
#[derive(Debug)]
pub(super) struct Beside {
    /// The percentage of calls that go there.
    pub(super) share: u8,
    pub(super) entry: Entry,
}

impl Entry {
    /// The tool as a pool hosts it.
    pub(crate) fn of(&self, pool: &PoolId) -> &Self {
        self.versions().find(|entry| entry.pools.contains(pool)).unwrap_or(self)
    }

    /// All versions of the tool: the listed one first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.beside.as_ref().map(|beside| &beside.entry))
    }

    /// The manifest of the name, and that of the tool behind it if the name is a facade.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        std::iter::once(&self.hosted.manifest).chain(self.facade.as_ref().map(|(_, tool)| tool)).map(Arc::as_ref)
    }

    pub(crate) fn all_pools(&self) -> impl Iterator<Item = &PoolId> {
        self.versions().flat_map(|entry| &entry.pools)
    }

    /// The oldest version with the schemas that count.
    pub(crate) fn version(&self) -> Option<&Version> {
        self.sets.iter().map(|(_, version)| version.as_ref()).min().flatten()
    }
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

/// A tool that is hosted and cannot be called.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) tool: String,
    pub(crate) hosts: Hosts,
    /// The pool that has the name; `None` if the manifest cannot be used.
    pub(crate) holder: Option<Hosts>,
    pub(crate) reason: String,
    /// It is older than the holder's, as in any rolling update, so no action is needed.
    pub(crate) gives_way: bool,
}

/// Hosts whose manifest of a tool differs from the one that counts, with the same schemas and the same version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Differing {
    pub(crate) tool: ToolName,
    pub(crate) hosts: Hosts,
    pub(crate) holder: Hosts,
    pub(crate) what: String,
}

/// Whether the new manifest needs less permission for calls, or passes more context, than the old one.
fn loosens(new: &Manifest, old: &Manifest) -> bool {
    new.permission < old.permission
        || (old.requires_confirmation && !new.requires_confirmation)
        || !new.context_keys.iter().all(|key| old.context_keys.contains(key))
}

/// The difference between two manifests of one tool, apart from the schemas.
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

    /// Whether checking these arguments is certain to be quick.
    pub(crate) fn is_quick(&self, arguments: &[u8]) -> bool {
        let ByInput { exclusive_when, parallel_when, .. } = &self.concurrency;
        let mut schemas = [exclusive_when, parallel_when].into_iter().flatten().chain([&self.schema]);
        schemas.all(|schema| schema.is_quick(arguments))
    }
}

/// A tool of a set, under one of its names.
#[derive(Debug)]
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

    /// Whether the two are interchangeable for callers.
    fn is_replica_of(&self, other: &Self) -> bool {
        self.hosted.contract == other.hosted.contract && self.alias_of == other.alias_of
    }

    /// The highest rank counts: live before dead, newer before older, the first among the live, the last among the
    /// dead.
    fn rank(&self) -> (bool, Option<&Version>, u64) {
        let order = if self.is_alive { u64::MAX - self.revision } else { self.revision };
        (self.is_alive, self.version(), order)
    }

    /// The difference to the tool of another pool, if any. Pools that share a name must agree in the whole manifest.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.is_replica_of(other) {
            difference(&self.hosted.manifest, &other.hosted.manifest)
        } else {
            Some("its schemas".to_owned())
        }
    }

    /// Whether calls of this tool need less permission, or are passed more context, than those of another tool of its
    /// name.
    fn loosens(&self, other: &Self) -> bool {
        loosens(&self.hosted.manifest, &other.hosted.manifest)
    }
}

/// All tools by their names and aliases, of the pools that may host them.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    by_name: HashMap<&'a ToolName, Vec<Candidate<'a>>>,
    refused: Vec<Refused>,
    rules: &'a PoolRules,
}

impl<'a> Candidates<'a> {
    /// Without rules of the operator a name belongs to the pool that advertised it first, as long as the broker has a
    /// set of that pool with the name. The order is that of the bucket's revisions, so all coordinators agree on it,
    /// also after restarts.
    pub(crate) fn new(sets: &'a Sets, alive: &HashSet<Hosts>, rules: &'a PoolRules) -> Self {
        let mut found = Self { by_name: HashMap::new(), refused: Vec::new(), rules };
        let mut firsts: HashMap<&ToolName, (u64, &Hosts)> = HashMap::new();
        for (hosts, set) in sets {
            for name in set.tools.iter().flat_map(|hosted| names_of(&hosted.manifest)) {
                let first = firsts.entry(name).or_insert((set.revision, hosts));
                *first = (*first).min((set.revision, hosts));
            }
        }
        let may_host = |(pool, _): &Hosts, name: &ToolName| match rules.is_listed() {
            true => rules.may_host(pool, name),
            false => firsts.get(name).is_some_and(|(_, (first, _))| first == pool),
        };
        for (hosts, set) in sets {
            let is_alive = alive.contains(hosts);
            for hosted in &set.tools {
                let tool = &hosted.manifest.name;
                for name in names_of(&hosted.manifest) {
                    // An alias may be hosted only where the tool's own name may be.
                    if !may_host(hosts, tool) || !may_host(hosts, name) {
                        let wrong = if may_host(hosts, tool) { name } else { tool };
                        let first = firsts.get(wrong).filter(|_| !rules.is_listed()).map(|(_, first)| *first);
                        found.refused.extend(is_alive.then(|| not_hosted(name, wrong, hosts, first)));
                        continue;
                    }
                    let alias_of = (name != tool).then_some(tool);
                    let candidate = Candidate { hosts, hosted, alias_of, revision: set.revision, is_alive };
                    found.by_name.entry(name).or_default().push(candidate);
                }
            }
            found.refused.extend(set.unusable.iter().filter(|_| is_alive).map(|unusable| Refused {
                tool: unusable.tool.clone(),
                hosts: hosts.clone(),
                holder: None,
                reason: unusable.reason.clone(),
                gives_way: false,
            }));
        }
        found
    }

    /// The pools with a tool that uses its worker's machine.
    pub(crate) fn machines(&self) -> HashSet<PoolId> {
        let uses = |candidate: &&Candidate<'_>| candidate.hosted.manifest.effects.uses_machine;
        self.by_name.values().flatten().filter(uses).map(|candidate| candidate.hosts.0.clone()).collect()
    }

    /// The catalog of all pools to which `access` is given.
    pub(crate) fn catalog(&self, access: impl Fn(&PoolId) -> Option<Access>) -> Catalog {
        let mut told = Told { refused: self.refused.clone(), differing: Vec::new() };
        let by_name = self.by_name.iter();
        let mut entries: Vec<Entry> = by_name
            .filter_map(|(name, candidates)| entry(name, candidates, (&access, self.rules), &mut told))
            .collect();
        through_facades(&mut entries, self.rules, &mut told);
        let Told { mut refused, differing } = told;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        refused.sort_by(|one, other| (&one.tool, &one.hosts).cmp(&(&other.tool, &other.hosts)));
        let places = entries.iter().enumerate().map(|(place, entry)| (entry.name.clone(), place)).collect();
        let limits_running = entries.iter().any(|entry| entry.hosted.manifest.running_max.is_some());
        Catalog { entries, places, refused, differing, limits_running, ..Catalog::default() }
    }
}

/// The tool's own name and its aliases.
fn names_of(manifest: &Manifest) -> impl Iterator<Item = &ToolName> {
    std::iter::once(&manifest.name).chain(manifest.aliases.iter().map(|alias| &alias.name))
}

/// The refusal of a name that a pool may not host. `wrong`: the tool or its alias, whichever it may not host; `first`:
/// the pool that hosted it first.
fn not_hosted(name: &ToolName, wrong: &ToolName, hosts: &Hosts, first: Option<&Hosts>) -> Refused {
    let pool = &hosts.0;
    let reason = match first {
        None => {
            format!("the pools file does not let pool {pool} host {wrong}: add the name to pools.{pool}.tools there")
        }
        Some((first, _)) => format!(
            "pool {first} hosted {wrong} first: rename the tool, or list the pools that may host the name in the \
            coordinators' pools file (--pools)"
        ),
    };
    Refused { tool: name.to_string(), hosts: hosts.clone(), holder: first.cloned(), reason, gives_way: false }
}

/// Whether a set must be kept because it proves that its pool had a name before another pool that claims the name too.
/// It matters only while the pool still advertises the name in a later set.
pub(crate) fn proves_a_claim(sets: &Sets, hosts: &Hosts) -> bool {
    let Some(set) = sets.get(hosts) else { return false };
    let first_without = |name: &ToolName| {
        let others = sets.iter().filter(|(other, _)| *other != hosts);
        let named =
            others.filter(|(_, set)| set.tools.iter().any(|hosted| names_of(&hosted.manifest).any(|it| it == name)));
        let mut pools: Vec<(u64, &PoolId)> = named.map(|((pool, _), set)| (set.revision, pool)).collect();
        pools.sort();
        let keeps = pools.iter().any(|(_, pool)| **pool == hosts.0);
        pools.first().map(|(revision, pool)| (*revision, *pool)).filter(|_| keeps)
    };
    let names = set.tools.iter().flat_map(|hosted| names_of(&hosted.manifest));
    names.filter_map(first_without).any(|(revision, first)| *first != hosts.0 && set.revision < revision)
}

impl Catalog {
    pub(crate) fn find(&self, name: &ToolName) -> Option<&Entry> {
        self.entries.get(*self.places.get(name)?)
    }

    /// The tools that a model may have called by a name under which they are exported: the likeliest first.
    pub(crate) fn meant(&self, name: &ToolName, form: Format) -> impl Iterator<Item = &Entry> {
        let place = Format::ALL.iter().position(|(_, other)| *other == form);
        let names = || self.entries.iter().map(|entry| entry.name.as_str());
        let renamed = place.and_then(|place| self.renamed.get(place));
        let renamed = renamed.map(|renamed| renamed.get_or_init(|| Renamed::new(names(), form)));
        let places = renamed.into_iter().flat_map(|renamed| renamed.meant(name.as_str()));
        places.filter_map(|place| self.entries.get(place))
    }

    /// Tools that have a word of the query, the best first.
    pub(crate) fn search(&self, query: &str) -> impl Iterator<Item = &Entry> {
        self.made_search().find(query).into_iter().filter_map(|place| self.entries.get(place))
    }

    /// Whether a search takes no longer than others. The first one makes the index.
    pub(crate) fn has_search(&self) -> bool {
        self.search.get().is_some()
    }

    /// The index of searches.
    pub(crate) fn made_search(&self) -> &Search {
        self.search.get_or_init(|| Search::new(self.entries.iter().map(|entry| entry.hosted.manifest.as_ref())))
    }

    /// Whether calls of a name may go to a pool.
    pub(super) fn serves(&self, name: &str, pool: &PoolId) -> bool {
        name.parse().ok().and_then(|name| self.find(&name)).is_some_and(|entry| entry.all_pools().any(|it| it == pool))
    }

    /// The names of the tools that lists have, in their order.
    pub(crate) fn listed(&self) -> Vec<&str> {
        let listed = self.entries.iter().filter(|entry| !entry.hosted.manifest.result_use.hidden);
        listed.map(|entry| entry.name.as_str()).collect()
    }

    /// Tools in the order of their names, beginning after `after`.
    pub(crate) fn after(&self, after: Option<&ToolName>) -> &[Entry] {
        let first = after.map_or(0, |after| self.entries.partition_point(|entry| entry.name <= *after));
        &self.entries[first..]
    }
}

/// The parts of a catalog that are reported.
struct Told {
    refused: Vec<Refused>,
    differing: Vec<Differing>,
}

/// A pool with the tools that it hosts under one name.
struct Hosting<'a> {
    access: Access,
    /// The lowest revision with the name.
    first: u64,
    best: &'a Candidate<'a>,
    all: Vec<&'a Candidate<'a>>,
}

impl<'a> Hosting<'a> {
    fn pool(&self) -> &'a PoolId {
        &self.best.hosts.0
    }
}

fn entry<'a>(
    name: &ToolName,
    candidates: &'a [Candidate<'a>],
    (access, rules): (&impl Fn(&PoolId) -> Option<Access>, &PoolRules),
    told: &mut Told,
) -> Option<Entry> {
    let mut by_pool: BTreeMap<&PoolId, Vec<&Candidate<'_>>> = BTreeMap::new();
    for candidate in candidates {
        by_pool.entry(&candidate.hosts.0).or_default().push(candidate);
    }
    let hosting = by_pool.into_iter().filter_map(|(pool, all)| {
        let best = *all.iter().max_by(|one, other| one.rank().cmp(&other.rank()))?;
        let first = all.iter().map(|candidate| candidate.revision).min()?;
        Some(Hosting { access: access(pool)?, first, best, all })
    });
    let mut hosting: Vec<Hosting<'_>> = hosting.collect();
    hosting.sort_by_key(|pool| (pool.access == Access::Common, pool.first));
    let nearest = hosting.first()?.access;
    hosting.retain(|pool| pool.access == nearest);
    let pools: HashSet<&PoolId> = hosting.iter().map(Hosting::pool).collect();
    // A pool that replaces another is an ordinary pool for names that the other does not have.
    let share = |hosting: &Hosting<'_>| rules.replaces(hosting.pool()).filter(|(of, _)| pools.contains(of));
    let (next, usual): (Vec<_>, Vec<_>) = hosting.into_iter().partition(|hosting| share(hosting).is_some());
    let share = next.iter().filter_map(share).map(|(_, share)| share).max().unwrap_or_default();
    let usual = agreed(name, &usual, told)?;
    Some(match agreed(name, &next, told) {
        Some(next) => rolled_out(usual, next, share),
        None => usual,
    })
}

/// A tool with the version that replaces it, and the percentage of calls for that version. If one of them has no live
/// worker, the other gets all calls.
fn rolled_out(usual: Entry, next: Entry, share: u8) -> Entry {
    let is_alone = !usual.is_hosted && !loosens(&next.hosted.manifest, &usual.hosted.manifest);
    let (mut listed, share, other) = match next.is_hosted {
        true if is_alone || share == 100 => (next, 0, usual),
        true if usual.is_hosted => (usual, share, next),
        true | false => (usual, 0, next),
    };
    listed.beside = Some(Box::new(Beside { share, entry: other }));
    listed
}

/// The tool, if the pools agree on it.
fn agreed(name: &ToolName, hosting: &[Hosting<'_>], told: &mut Told) -> Option<Entry> {
    // A live pool takes the place of dead ones before it, unless its manifest would loosen theirs.
    let stands_in = |place: &usize| {
        let (before, pool) = (&hosting[..*place], &hosting[*place]);
        pool.best.is_alive && before.iter().all(|before| !pool.best.loosens(before.best))
    };
    let best = hosting.get((0..hosting.len()).find(stands_in).unwrap_or(0))?.best;
    let (mut pools, mut sets) = (Vec::new(), Vec::new());
    for pool in hosting {
        match pool.best.difference(best) {
            None if pool.best.is_alive == best.is_alive => {
                pools.push(pool.pool().clone());
                let same = pool.all.iter().filter(|candidate| candidate.is_replica_of(best));
                sets.extend(same.map(|candidate| (candidate.hosts.clone(), candidate.version().cloned())));
                judge_within(name, pool, told);
            }
            Some(what) if pool.best.is_alive => {
                let reason = format!(
                    "differs from pool {} in {what}: pools that host one name must agree, or serve tenants of their \
                    own",
                    best.hosts.0
                );
                let (hosts, holder) = (pool.best.hosts.clone(), Some(best.hosts.clone()));
                told.refused.push(Refused { tool: name.to_string(), hosts, holder, reason, gives_way: false });
            }
            None | Some(_) => {}
        }
    }
    pools.sort();
    let mut hosted = best.hosted.clone();
    if best.alias_of.is_some() {
        hosted.manifest = Arc::new(under_alias(&hosted.manifest, name));
    }
    let alias_of = best.alias_of.cloned();
    let name = name.clone();
    Some(Entry { name, hosted, alias_of, facade: None, pools, sets, is_hosted: best.is_alive, beside: None })
}

/// Adds the facades of the tools that are here. A facade has precedence over a tool of its name, because the operator
/// wrote it.
fn through_facades(entries: &mut Vec<Entry>, rules: &PoolRules, told: &mut Told) {
    if rules.facades().is_empty() {
        return;
    }
    let tools: HashMap<&ToolName, &Entry> = entries.iter().map(|entry| (&entry.name, entry)).collect();
    let found = |(name, facade): (&ToolName, &Arc<Facade>)| Some(through(name, facade, tools.get(&facade.tool)?));
    let facades: Vec<Entry> = rules.facades().iter().filter_map(found).collect();
    entries.retain(|entry| {
        let is_taken = rules.facades().contains_key(&entry.name);
        if let Some((hosts, _)) = entry.sets.first().filter(|_| is_taken && entry.is_hosted) {
            let reason = format!("the coordinators' pools file gives the name to facades.{}", entry.name);
            let (tool, hosts) = (entry.name.to_string(), hosts.clone());
            told.refused.push(Refused { tool, hosts, holder: None, reason, gives_way: false });
        }
        !is_taken
    });
    entries.extend(facades);
}

/// A tool under the name and the manifest of a facade.
fn through(name: &ToolName, facade: &Arc<Facade>, tool: &Entry) -> Entry {
    let of = Arc::clone(&tool.hosted.manifest);
    let manifest = Arc::new(facade.manifest(name, &tool.hosted.manifest));
    let beside = tool
        .beside
        .as_ref()
        .map(|beside| Box::new(Beside { share: beside.share, entry: through(name, facade, &beside.entry) }));
    Entry {
        name: name.clone(),
        hosted: Hosted { manifest, ..tool.hosted.clone() },
        alias_of: Some(tool.alias_of.as_ref().unwrap_or(&facade.tool).clone()),
        facade: Some((Arc::clone(facade), of)),
        pools: tool.pools.clone(),
        sets: tool.sets.clone(),
        is_hosted: tool.is_hosted,
        beside,
    }
}

/// Reports workers of one pool that advertise different tools under one name.
fn judge_within(name: &ToolName, pool: &Hosting<'_>, told: &mut Told) {
    let best = pool.best;
    // A newer version may differ, and an alias is judged with its tool.
    let as_new = |other: &Candidate<'_>| best.is_alive && best.alias_of.is_none() && other.version() == best.version();
    for other in pool.all.iter().filter(|other| other.is_alive) {
        let (hosts, holder) = (other.hosts.clone(), best.hosts.clone());
        if other.is_replica_of(best) {
            let what = difference(&best.hosted.manifest, &other.hosted.manifest).filter(|_| as_new(other));
            told.differing.extend(what.map(|what| Differing { tool: name.clone(), hosts, holder, what }));
            continue;
        }
        let version =
            |of: &Candidate<'_>| of.version().map_or("no version".to_owned(), |version| format!("version {version}"));
        let gives_way = other.version() < best.version();
        let reason = if gives_way {
            format!("{} is replaced by {}", version(other), version(best))
        } else {
            format!(
                "another schema has this name, with {}: rename one, or give the newer one a higher version",
                version(best)
            )
        };
        told.refused.push(Refused { tool: name.to_string(), hosts, holder: Some(holder), reason, gives_way });
    }
}

/// The manifest under another name of the tool.
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
