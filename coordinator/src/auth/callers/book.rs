//! The file of callers and their rights. It is read and checked as a whole, and each mistake is reported with its
//! place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use globset::{Glob, GlobSet, GlobSetBuilder};
use owner::turns::WEIGHT_MAX;
use ring::hmac;
use run::{CallerName, Manifest, Permission, TenantId, Timestamp, ToolName};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::jwt::Rules;
use super::link::{self, Link};
use super::one_call::{self, OneCall};
use super::quota::{Exceeded, Quota};
use super::tenant::{RawTools, TenantTools, Tenants};
use super::{Caller, Known, Role, Roles, Unknown, roles};
use crate::fleet::pools::Tenancy;
use crate::fleet::registry::Entry;

/// Prefix of our keys, by which scanners for leaked secrets find them.
pub(super) const KEY_PREFIX: &str = "tyk_";
/// Prefix of a key's hash in the file. Keys are random and long, so a plain hash reveals nothing about them.
const HASH_PREFIX: &str = "sha256:";
/// A shorter one could be guessed.
const TOKEN_KEY_BYTES_MIN: usize = 32;
const SUBJECT_CHARS_MAX: usize = 128;

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    callers: Vec<RawCaller>,
    pub(super) jwt: Option<RawJwt>,
    pub(super) answer_token_key_file: Option<PathBuf>,
    /// Quota of every tenant without one of its own.
    quota: Option<Quota>,
    #[serde(default)]
    quotas: BTreeMap<String, Quota>,
    /// The tools of every tenant that is not named below.
    tenant: Option<RawTools>,
    #[serde(default)]
    tenants: BTreeMap<String, RawTools>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCaller {
    name: String,
    tenant: Option<String>,
    tenant_claim: Option<String>,
    #[serde(default)]
    roles: Vec<String>,
    #[serde(default)]
    tools: Vec<RawRule>,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    certificates: Vec<String>,
    #[serde(default)]
    jwt: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawJwt {
    /// A file, or an address with https://.
    pub(super) jwks: String,
    /// The authorities (PEM) that sign that address' certificate; `None`: the system's.
    pub(super) ca: Option<PathBuf>,
    #[serde(default)]
    audience: Vec<String>,
    issuer: Option<String>,
}

/// All callers of the file.
#[derive(Debug)]
pub(crate) struct Book {
    callers: Vec<Arc<Rights>>,
    by_name: HashMap<String, usize>,
    by_key: HashMap<[u8; 32], usize>,
    by_certificate: HashMap<String, usize>,
    pub(super) tokens: Option<Rules>,
    answers: Option<hmac::Key>,
    quota: Option<Quota>,
    quotas: HashMap<TenantId, Quota>,
    tenants: Tenants,
}

/// The rights of a caller in the file.
#[derive(Debug)]
pub(crate) struct Rights {
    name: String,
    pub(super) tenant: Option<TenantId>,
    /// The claim of a token that names the tenant.
    pub(super) tenant_claim: Option<String>,
    roles: Roles,
    tools: Vec<Rule>,
    /// The claims that a token of this caller must have, all of them. Empty: no token is accepted.
    claims: BTreeMap<String, String>,
    /// Streams of runs that the caller is reading.
    readers: Arc<AtomicUsize>,
}

/// The most streams of runs that one caller may read at once at a coordinator. It is enough for a service that reopens
/// all of its streams after a coordinator died, and bounds the cost of a caller that does not read its streams (about
/// 100 KiB each).
const READERS_MAX: u32 = 8192;

/// A place among a caller's streams, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading(Arc<AtomicUsize>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A set of tools: those that match everything in it.
#[derive(Debug)]
pub(super) struct Rule {
    classes: Vec<Permission>,
    names: Option<GlobSet>,
    tags: Vec<String>,
}

impl Rights {
    /// Takes a place among the caller's streams.
    pub(crate) fn begin_reading(&self) -> Result<Reading, Exceeded> {
        let reading = Reading(Arc::clone(&self.readers));
        if self.readers.fetch_add(1, Relaxed) < READERS_MAX as usize {
            return Ok(reading);
        }
        Err(Exceeded {
            what: "streams of runs",
            limit: READERS_MAX.into(),
            remedy: "",
            retry_after: Duration::from_secs(1),
        })
    }

    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.has(role)
    }

    /// Whether a caller with these rights may still act for the tenant for which it issued something. The tenant of a
    /// token's bearer came from the token.
    pub(super) fn are_of(&self, tenant: Option<&TenantId>) -> bool {
        self.has(Role::Admin) || self.tenant_claim.is_some() || self.tenant.as_ref() == tenant
    }

    pub(super) fn roles(&self) -> Roles {
        self.roles
    }

    pub(crate) fn may_call(&self, entry: &Entry) -> bool {
        self.tools.iter().any(|rule| rule.admits(entry))
    }

    fn matches_claims(&self, claims: &Map<String, Value>) -> bool {
        let says = |(claim, wanted): (&String, &String)| match claims.get(claim) {
            Some(Value::String(text)) => text == wanted,
            Some(Value::Array(texts)) => texts.iter().any(|text| text.as_str() == Some(wanted)),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
        };
        !self.claims.is_empty() && self.claims.iter().all(says)
    }
}

impl Rule {
    /// An alias is judged as its tool. So is a facade, whose own permission has to be admitted besides.
    pub(super) fn admits(&self, entry: &Entry) -> bool {
        let tool = entry.manifests().last();
        self.names(entry.alias_of.as_ref().unwrap_or(&entry.name))
            && entry.manifests().all(|manifest| self.has_class(manifest))
            && tool.is_some_and(|manifest| self.has_tag(manifest))
    }

    /// The rule names the tool, its alias or its facade.
    pub(super) fn is_about(&self, entry: &Entry) -> bool {
        std::iter::once(&entry.name).chain(&entry.alias_of).any(|name| self.names(name))
            && entry.manifests().any(|manifest| self.has_class(manifest) && self.has_tag(manifest))
    }

    fn names(&self, tool: &ToolName) -> bool {
        self.names.as_ref().is_none_or(|names| names.is_match(tool.as_str()))
    }

    fn has_class(&self, manifest: &Manifest) -> bool {
        self.classes.is_empty() || self.classes.contains(&manifest.permission)
    }

    fn has_tag(&self, manifest: &Manifest) -> bool {
        self.tags.is_empty() || self.tags.iter().any(|tag| manifest.tags.contains(tag))
    }
}

impl Book {
    pub(super) fn by_key(&self, key: &str) -> Option<Known> {
        self.by_key.get(&hash(key)).map(|index| self.known(*index))
    }

    pub(super) fn by_certificate(&self, certificate: &[u8]) -> Option<Known> {
        names_of(certificate).iter().find_map(|name| self.by_certificate.get(name)).map(|index| self.known(*index))
    }

    /// By the name that is stored with a run.
    pub(super) fn by_name(&self, name: &CallerName) -> Option<&Arc<Rights>> {
        let entry = name.as_str().split('/').next().unwrap_or_default();
        self.by_name.get(entry).and_then(|index| self.callers.get(*index))
    }

    /// The first caller of the file that matches the token's claims.
    pub(super) fn by_claims(&self, claims: &Map<String, Value>) -> Result<Known, Unknown> {
        let refused = |why: &str| Unknown::Token(why.to_owned());
        let rights = self.callers.iter().find(|rights| rights.matches_claims(claims));
        let rights = rights.ok_or_else(|| refused("its claims match no caller"))?;
        let tenant = match &rights.tenant_claim {
            None => rights.tenant.clone(),
            Some(claim) => {
                let text = claims.get(claim).and_then(Value::as_str).unwrap_or_default();
                Some(text.parse().map_err(|_| refused("the claim that names its tenant is missing or malformed"))?)
            }
        };
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        let subject: String = subject.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS_MAX).collect();
        let name = if subject.is_empty() { rights.name.clone() } else { format!("{}/{subject}", rights.name) };
        let name = name.parse().map_err(|_| refused("its subject is too long"))?;
        let until =
            claims.get("exp").and_then(Value::as_f64).map(|seconds| Timestamp((seconds.max(0.0) * 1000.0) as u64));
        Ok(Known { name, tenant, rights: Arc::clone(rights), until })
    }

    pub(super) fn by_answer(&self, token: &str, now: Timestamp) -> Result<Caller, Unknown> {
        let refused = |why: &str| Unknown::Token(why.to_owned());
        let key = self.answers.as_ref().ok_or_else(|| refused("answer tokens are not configured"))?;
        let one = one_call::verify(token, key, now).map_err(|fault| refused(&fault.to_string()))?;
        // The issuer must still have the right to answer, and be of the tenant.
        match self.by_name(&one.issued_by) {
            Some(rights) if rights.has(Role::Answer) && rights.are_of(one.tenant.as_ref()) => {
                Ok(Caller::OneCall(Arc::new(one)))
            }
            Some(_) | None => Err(refused("its issuer has lost the right to answer")),
        }
    }

    pub(super) fn quota(&self, tenant: &TenantId) -> Option<Quota> {
        self.quotas.get(tenant).copied().or(self.quota)
    }

    fn check_quotas(&self, mistakes: &mut Vec<String>) {
        let quotas = || self.quota.iter().chain(self.quotas.values());
        if quotas().any(Quota::allows_nothing) {
            mistakes.push("quota: 0 admits nothing: remove the caller instead".to_owned());
        }
        for weight in quotas().filter_map(Quota::invalid_weight) {
            mistakes.push(format!(
                "quota: weight {weight} is not from 1 to {WEIGHT_MAX}. Calls of a tenant with weight 0 would never be \
                executed: to stop a tenant, remove its callers"
            ));
        }
    }

    pub(super) fn limits_running(&self) -> bool {
        self.quota.iter().chain(self.quotas.values()).any(|quota| quota.running_calls.is_some())
    }

    pub(super) fn has_quotas(&self) -> bool {
        self.quota.is_some() || !self.quotas.is_empty()
    }

    pub(super) fn tenancy(&self) -> Tenancy {
        let claims = self.callers.iter().any(|rights| rights.tenant_claim.is_some());
        let tenants: BTreeSet<&TenantId> = self.callers.iter().filter_map(|rights| rights.tenant.as_ref()).collect();
        match tenants.first() {
            Some(sole) if tenants.len() == 1 && !claims => Tenancy::Sole((*sole).clone()),
            // Only an admin may submit for any number of tenants.
            Some(_) | None => Tenancy::Many,
        }
    }

    pub(super) fn named_tenants(&self) -> impl Iterator<Item = &TenantId> {
        let of_callers = self.callers.iter().filter_map(|rights| rights.tenant.as_ref());
        of_callers.chain(self.quotas.keys()).chain(self.tenants.named())
    }

    pub(super) fn tools_of(&self, tenant: &TenantId) -> Option<&Arc<TenantTools>> {
        self.tenants.of(tenant)
    }

    pub(super) fn sign(&self, one: &OneCall) -> Option<String> {
        self.answers.as_ref().map(|key| one_call::sign(one, key))
    }

    pub(super) fn sign_link(&self, link: &Link) -> Option<String> {
        self.answers.as_ref().map(|key| link::sign(link, key))
    }

    pub(super) fn link(&self, token: &str, now: Timestamp) -> Option<Link> {
        link::verify(token, self.answers.as_ref()?, now)
    }

    fn known(&self, index: usize) -> Known {
        let rights = &self.callers[index];
        let name = rights.name.parse().expect("checked when the file was read");
        Known { name, tenant: rights.tenant.clone(), rights: Arc::clone(rights), until: None }
    }
}

impl File {
    /// # Errors
    /// The mistake, with its line and column.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => serde_json::from_str(text).map_err(|error| error.to_string()),
            _ => toml::from_str(text).map_err(|error| error.to_string()),
        }
    }

    /// # Errors
    /// Every mistake, with its place.
    pub(super) fn check(self, answer_key: Option<&[u8]>) -> Result<Book, Vec<String>> {
        let mut mistakes = Vec::new();
        let mut book = Book {
            callers: Vec::new(),
            by_name: HashMap::new(),
            by_key: HashMap::new(),
            by_certificate: HashMap::new(),
            tokens: None,
            answers: None,
            quota: self.quota,
            quotas: HashMap::new(),
            tenants: Tenants::check(self.tenant, self.tenants, &mut mistakes),
        };
        let takes_tokens = self.jwt.is_some();
        for (index, raw) in self.callers.into_iter().enumerate() {
            let place = format!("callers[{index}]");
            book.add(raw, &place, takes_tokens, &mut mistakes);
        }
        if let Some(raw) = self.jwt {
            if raw.audience.is_empty() {
                mistakes.push(
                    "jwt.audience: name at least one, because tokens for other services must not be \
                    accepted"
                        .to_owned(),
                );
            }
            if raw.jwks.starts_with("http:") {
                mistakes.push("jwt.jwks: keys must come over https://, or from a file".to_owned());
            }
            book.tokens = Some(Rules { audience: raw.audience, issuer: raw.issuer });
        }
        for (name, quota) in self.quotas {
            match name.parse() {
                Ok(tenant) => drop(book.quotas.insert(tenant, quota)),
                Err(error) => {
                    let error: run::InvalidId = error;
                    mistakes.push(format!("quotas: {error}"));
                }
            }
        }
        book.check_quotas(&mut mistakes);
        match answer_key {
            Some(key) if key.len() < TOKEN_KEY_BYTES_MIN => mistakes.push(format!(
                "answer_token_key_file: holds {} bytes, at least {TOKEN_KEY_BYTES_MIN} are needed: head -c 32 \
                /dev/urandom | base64",
                key.len()
            )),
            Some(key) => book.answers = Some(hmac::Key::new(hmac::HMAC_SHA256, key)),
            None => {}
        }
        if mistakes.is_empty() { Ok(book) } else { Err(mistakes) }
    }
}

impl Book {
    fn add(&mut self, raw: RawCaller, place: &str, takes_tokens: bool, mistakes: &mut Vec<String>) {
        let place = format!("{place} ({:?})", raw.name.chars().take(64).collect::<String>());
        let mut wrong = |field: &str, what: String| mistakes.push(format!("{place}.{field}: {what}"));
        let index = self.callers.len();
        let is_named = !raw.name.is_empty() && raw.name.len() <= 64 && raw.name.bytes().all(is_plain);
        if !is_named {
            wrong("name", "must be 1 to 64 of A-Z a-z 0-9 _ . -".to_owned());
        } else if self.by_name.insert(raw.name.clone(), index).is_some() {
            wrong("name", "another caller has this name".to_owned());
        }
        let tenant = raw.tenant.as_deref().map(str::parse).transpose();
        let tenant: Option<TenantId> = tenant.unwrap_or_else(|error: run::InvalidId| {
            wrong("tenant", error.to_string());
            None
        });
        let known_roles = raw.known_roles(&mut wrong);
        raw.check_tenant(known_roles, &mut wrong);
        if !raw.jwt.is_empty() && !takes_tokens {
            wrong("jwt", "tokens need a section [jwt] with their issuer".to_owned());
        }
        self.add_credentials(index, &raw, &mut wrong);
        let tools = raw.tools.into_iter().enumerate();
        let tools = tools
            .filter_map(|(number, rule)| rule.check(|field, what| wrong(&format!("tools[{number}]{field}"), what)));
        let tools = tools.collect();
        let (name, tenant_claim, claims) = (raw.name, raw.tenant_claim, raw.jwt);
        self.callers.push(Arc::new(Rights {
            name,
            tenant,
            tenant_claim,
            roles: known_roles,
            tools,
            claims,
            readers: Arc::default(),
        }));
    }
    /// Maps the keys and certificates of a caller to it.
    fn add_credentials(&mut self, index: usize, raw: &RawCaller, wrong: &mut impl FnMut(&str, String)) {
        for (number, text) in raw.keys.iter().enumerate() {
            match stored(text) {
                Some(hash) => match self.by_key.insert(hash, index) {
                    None => {}
                    Some(_) => wrong(&format!("keys[{number}]"), "the key is listed twice".to_owned()),
                },
                None => wrong(
                    &format!("keys[{number}]"),
                    "is not the hash of a key: `toolyard key new` makes both".to_owned(),
                ),
            }
        }
        for (number, text) in raw.certificates.iter().enumerate() {
            let field = format!("certificates[{number}]");
            if !["CN=", "DNS:", "URI:"].iter().any(|kind| text.starts_with(kind)) {
                wrong(&field, format!("{text:?} is not one of CN=…, DNS:…, URI:…"));
            } else if self.by_certificate.insert(text.clone(), index).is_some() {
                wrong(&field, "the name is listed twice".to_owned());
            }
        }
    }
}

impl RawCaller {
    /// The roles that exist; the others are mistakes.
    fn known_roles(&self, wrong: &mut impl FnMut(&str, String)) -> Roles {
        let mut known = Vec::new();
        for (number, text) in self.roles.iter().enumerate() {
            match text.parse() {
                Ok(role) => known.push(role),
                Err(()) => wrong(&format!("roles[{number}]"), format!("{text:?} is not one of {}", roles())),
            }
        }
        let known_roles = Roles::from_iter(known);
        if known_roles.is_empty() {
            wrong("roles", format!("name at least one of {}", roles()));
        }
        known_roles
    }

    fn check_tenant(&self, known_roles: Roles, wrong: &mut impl FnMut(&str, String)) {
        let has_tenant = self.tenant.is_some() || self.tenant_claim.is_some();
        if !has_tenant && !known_roles.has(Role::Admin) {
            wrong("tenant", "only an admin may have no tenant".to_owned());
        }
        if self.tenant.is_some() && self.tenant_claim.is_some() {
            wrong(
                "tenant_claim",
                "set either the tenant, or the claim of the token that names it, not both".to_owned(),
            );
        }
        if self.tenant_claim.is_some() && !(self.keys.is_empty() && self.certificates.is_empty()) {
            wrong("tenant_claim", "keys and certificates have no claims: give them a caller of their own".to_owned());
        }
    }
}

impl RawRule {
    pub(super) fn check(self, mut wrong: impl FnMut(&str, String)) -> Option<Rule> {
        if self.classes.is_empty() && self.names.is_empty() && self.tags.is_empty() {
            wrong("", "is empty: names = [\"*\"] allows all tools".to_owned());
            return None;
        }
        let mut classes = Vec::new();
        for text in self.classes {
            match text.as_str() {
                "read" => classes.push(Permission::Read),
                "write" => classes.push(Permission::Write),
                "external" => classes.push(Permission::External),
                _ => wrong(".classes", format!("{text:?} is not one of read, write, external")),
            }
        }
        let mut names = GlobSetBuilder::new();
        for text in &self.names {
            match Glob::new(text) {
                Ok(glob) => drop(names.add(glob)),
                Err(error) => wrong(".names", error.to_string()),
            }
        }
        let names = if self.names.is_empty() { None } else { names.build().ok() };
        Some(Rule { classes, names, tags: self.tags })
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// A new key, and its hash for the file.
#[must_use]
pub fn new_key() -> (String, String) {
    use base64::Engine as _;
    let key = format!("{KEY_PREFIX}{}", base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()));
    let digits: String = hash(&key).iter().map(|byte| format!("{byte:02x}")).collect();
    (key, format!("{HASH_PREFIX}{digits}"))
}

fn stored(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix(HASH_PREFIX).filter(|digits| digits.len() == 64 && digits.is_ascii())?;
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// The names in a certificate, as the file writes them. The common name counts only if there are no alternative names:
/// authorities verify those, and some let a client choose the common name.
fn names_of(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(alternatives) = certificate.subject_alternative_name() else { return Vec::new() };
    let has_alternatives = alternatives.is_some();
    let alternatives = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    let alternatives = alternatives.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(format!("DNS:{name}")),
        GeneralName::URI(uri) => Some(format!("URI:{uri}")),
        _ => None,
    });
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let common = common.filter(|_| !has_alternatives);
    alternatives.chain(common.map(|name| format!("CN={name}"))).collect()
}

#[cfg(test)]
mod tests;
