//! Resolvers: they resolve names of tools that no worker hosts. An answer is cached for a while, also if the name is
//! unknown or the resolver does not answer, so a name costs one request however many calls use it.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use run::{TenantId, ToolName};
use schema::Schema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use crate::contract::HookError;
use crate::outside::Outside;
use crate::{Misplaced, NAME_BYTES_MAX, TIMEOUT, TIMEOUT_MAX, Tools};

/// Resolvers of one process, because each delays every name that those before it do not know.
const RESOLVERS_MAX: usize = 16;
/// How long an answer is cached by default.
pub const KEEP: Duration = Duration::from_secs(300);
/// How long an unknown name is cached by default. Short, because tools are added.
pub const KEEP_UNKNOWN: Duration = Duration::from_secs(30);
/// The longest configurable value.
pub const KEEP_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long a missing answer is cached, so that not every call waits for a resolver that is away.
const KEEP_FAILURE: Duration = Duration::from_secs(5);
/// Cached names. Bounded, because models invent names.
const KEPT_MAX: usize = 10_000;

/// Names of one tenant that are resolved at once: a quarter of the programs that run at once, so that invented names of
/// one tenant leave room for others.
const ASKED_OF_TENANT_MAX: usize = 4;
/// Tenants whose requests are counted; beyond that, idle ones are forgotten.
const ASKING_MAX: usize = 1024;

/// The resolution of a name that no worker hosts.
#[derive(Debug)]
pub enum Resolution {
    /// Another tool, with some of its arguments bound.
    Alias {
        tool: ToolName,
        bound: BTreeMap<String, Box<RawValue>>,
        /// The schema of the call's own arguments.
        schema: Option<Schema>,
    },
    /// A tool whose calls the client answers.
    Client { schema: Option<Schema> },
}

impl Resolution {
    /// The schema of the call's own arguments, if there is one.
    #[must_use]
    pub fn schema(&self) -> Option<&Schema> {
        match self {
            Self::Alias { schema, .. } | Self::Client { schema } => schema.as_ref(),
        }
    }
}

/// The result for a name: its resolution, unknown, or why it could not be resolved.
pub type Resolved = Result<Option<Arc<Resolution>>, Arc<str>>;

/// A resolver in this process.
///
/// It should be quick, because calls of the name wait for it. Its future is dropped at its timeout.
pub trait Resolve: Send + Sync + 'static {
    /// Resolves a name that no worker hosts; `None` if it is unknown.
    ///
    /// # Errors
    /// If there is no answer. Then calls of the name are refused.
    fn resolve(
        &self,
        tool: &ToolName,
        tenant: Option<&TenantId>,
    ) -> impl Future<Output = Result<Option<Resolution>, HookError>> + Send;
}

/// The settings of a resolver.
#[derive(Debug, Clone)]
pub struct ResolverPlacement {
    /// Its name for logs and errors; 1 to 64 bytes, unique.
    pub name: String,
    /// Names of tools, `*` matches any characters; empty for all names.
    pub tools: Vec<String>,
    /// Its timeout; [`TIMEOUT`] unless set, at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// How long an answer is cached; [`KEEP`] unless set, at most [`KEEP_MAX`].
    pub keep: Duration,
    /// How long an unknown name is cached; [`KEEP_UNKNOWN`] unless set, at most [`KEEP_MAX`].
    pub keep_unknown: Duration,
}

impl ResolverPlacement {
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let (name, tools, timeout) = (name.into(), Vec::new(), TIMEOUT);
        Self { name, tools, timeout, keep: KEEP, keep_unknown: KEEP_UNKNOWN }
    }

    /// Why it is invalid, and which field.
    fn fault(&self) -> Option<(&'static str, String)> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Some(("name", format!("must be 1 to {NAME_BYTES_MAX} bytes")));
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return Some(("timeout_ms", format!("must be 1 to {}", TIMEOUT_MAX.as_millis())));
        }
        let longest = |field, keep: Duration| {
            (keep > KEEP_MAX).then(|| (field, format!("must be at most {}", KEEP_MAX.as_secs())))
        };
        longest("keep_s", self.keep).or_else(|| longest("keep_unknown_s", self.keep_unknown))
    }
}

/// The resolvers of a process, in their order. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Resolvers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    list: Vec<Resolver>,
    kept: Mutex<HashMap<(ToolName, Option<TenantId>), Kept>>,
    /// The remaining concurrent requests of each tenant.
    asking: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

/// An answer and when it expires; empty while the request is open.
type Kept = Arc<OnceCell<(Resolved, Instant)>>;

#[derive(Debug, Clone)]
struct Resolver {
    placement: ResolverPlacement,
    tools: Tools,
    link: Arc<dyn Link>,
}

impl Resolver {
    async fn ask(&self, tool: &ToolName, tenant: Option<&TenantId>) -> Resolved {
        let ResolverPlacement { name, timeout, .. } = &self.placement;
        let answered = match tokio::time::timeout(*timeout, self.link.resolve(tool, tenant)).await {
            Ok(answered) => answered.map_err(|why| why.to_string()),
            Err(_) => Err(format!("it did not answer within {timeout:?}")),
        };
        answered.map(|known| known.map(Arc::new)).map_err(|why| {
            tracing::warn!(resolver = name, %tool, why, "a resolver failed");
            format!("resolver {name} failed: {why}").into()
        })
    }
}

/// A [`Resolve`] with its type erased.
trait Link: Send + Sync {
    fn resolve<'a>(&'a self, tool: &'a ToolName, tenant: Option<&'a TenantId>) -> Resolving<'a>;
}

type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Option<Resolution>, HookError>> + Send + 'a>>;

impl<R: Resolve> Link for R {
    fn resolve<'a>(&'a self, tool: &'a ToolName, tenant: Option<&'a TenantId>) -> Resolving<'a> {
        Box::pin(Resolve::resolve(self, tool, tenant))
    }
}

impl std::fmt::Debug for dyn Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a resolver")
    }
}

impl Resolve for Outside {
    async fn resolve(&self, tool: &ToolName, tenant: Option<&TenantId>) -> Result<Option<Resolution>, HookError> {
        let question = Question { event: "resolve_tool", tool: tool.as_str(), tenant: tenant.map(TenantId::as_str) };
        let question = serde_json::to_vec(&question).map(Bytes::from).unwrap_or_default();
        resolution(&self.answer(question).await?).map_err(HookError::new)
    }
}

impl Resolvers {
    /// Appends a resolver.
    ///
    /// # Errors
    /// If its settings are invalid.
    pub fn with(self, placement: ResolverPlacement, resolver: impl Resolve) -> Result<Self, Misplaced> {
        let misplaced = |field, reason: String| Misplaced { name: placement.name.clone(), field, reason };
        if let Some((field, reason)) = placement.fault() {
            return Err(misplaced(field, reason));
        }
        if self.0.list.iter().any(|other| other.placement.name == placement.name) {
            return Err(misplaced("name", "another resolver has it".to_owned()));
        }
        if self.0.list.len() == RESOLVERS_MAX {
            return Err(misplaced("name", format!("there are more than {RESOLVERS_MAX} resolvers")));
        }
        let tools = Tools::new(&placement.tools).map_err(|error| misplaced("tools", error.to_string()))?;
        let mut list = self.0.list.clone();
        list.push(Resolver { placement, tools, link: Arc::new(resolver) });
        Ok(Self(Arc::new(Shared { list, ..Shared::default() })))
    }

    /// Whether there are resolvers.
    #[must_use]
    pub fn are_there(&self) -> bool {
        !self.0.list.is_empty()
    }

    /// Resolves a name.
    pub async fn resolve(&self, tool: &ToolName, tenant: Option<&TenantId>) -> Resolved {
        if !self.0.list.iter().any(|resolver| resolver.tools.have(tool, None)) {
            return Ok(None);
        }
        let kept = self.kept(tool, tenant);
        // Concurrent callers wait for the same answer. If the caller that sent the request is dropped, the next one
        // sends it.
        let ask = || async {
            let asking = tenant.map(|tenant| self.asking(tenant));
            let _permit = match &asking {
                Some(asking) => asking.acquire().await.ok(),
                None => None,
            };
            self.ask(tool, tenant).await
        };
        kept.get_or_init(ask).await.0.clone()
    }

    fn asking(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut all = self.0.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ASKING_MAX {
            all.retain(|_, asking| Arc::strong_count(asking) > 1);
        }
        Arc::clone(all.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(ASKED_OF_TENANT_MAX))))
    }

    fn kept(&self, tool: &ToolName, tenant: Option<&TenantId>) -> Kept {
        let counts = |kept: &Kept| kept.get().is_none_or(|(_, until)| *until > Instant::now());
        let mut all = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= KEPT_MAX {
            all.retain(|_, kept| counts(kept));
        }
        if all.len() >= KEPT_MAX {
            // Evict names of the tenant that has the most, so that others keep theirs.
            all.retain(|(_, other), _| other.as_ref() != tenant);
        }
        if all.len() >= KEPT_MAX {
            all.clear();
        }
        let kept = all.entry((tool.clone(), tenant.cloned())).or_default();
        if !counts(kept) {
            *kept = Kept::default();
        }
        Arc::clone(kept)
    }

    /// The first resolver that knows the name wins. If one fails, those behind it are not asked, because it might have
    /// known it.
    async fn ask(&self, tool: &ToolName, tenant: Option<&TenantId>) -> (Resolved, Instant) {
        let mut keep_unknown = KEEP_MAX;
        for resolver in self.0.list.iter().filter(|resolver| resolver.tools.have(tool, None)) {
            keep_unknown = keep_unknown.min(resolver.placement.keep_unknown);
            let keep = match resolver.ask(tool, tenant).await {
                Ok(None) => continue,
                known @ Ok(Some(_)) => (known, resolver.placement.keep),
                failed @ Err(_) => (failed, KEEP_FAILURE),
            };
            return (keep.0, Instant::now() + keep.1);
        }
        (Ok(None), Instant::now() + keep_unknown)
    }
}

#[derive(Serialize)]
struct Question<'a> {
    event: &'static str,
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Unknown,
    Alias,
    Client,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    decision: Decision,
    tool: Option<String>,
    arguments: Option<BTreeMap<String, Box<RawValue>>>,
    input_schema: Option<Box<RawValue>>,
}

fn resolution(answer: &[u8]) -> Result<Option<Resolution>, String> {
    let answer = serde_json::from_slice(answer).map_err(|error| format!("its answer is not one: {error}"))?;
    let Answer { decision, tool, arguments, input_schema } = answer;
    let schema = || {
        let compiled = input_schema.as_ref().map(|schema| Schema::of_arguments(schema.get())).transpose();
        compiled.map_err(|error| format!("its input_schema cannot be used: {error}"))
    };
    match (decision, tool, arguments) {
        (Decision::Unknown, None, None) if input_schema.is_none() => Ok(None),
        (Decision::Client, None, None) => Ok(Some(Resolution::Client { schema: schema()? })),
        (Decision::Alias, Some(tool), bound) => {
            let tool = tool.parse().map_err(|error| format!("the tool of its answer has no name: {error}"))?;
            Ok(Some(Resolution::Alias { tool, bound: bound.unwrap_or_default(), schema: schema()? }))
        }
        (Decision::Alias, None, _) => Err("it decided alias, and gave no tool".to_owned()),
        (Decision::Unknown | Decision::Client, ..) => {
            Err("it gave a tool, arguments or a schema with a decision that takes none".to_owned())
        }
    }
}
