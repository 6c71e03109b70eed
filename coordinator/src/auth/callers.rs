//! Who asks, and what they may: known by a key, a token or a certificate, and judged by a file. Off where there is no file.
//!
//! The door says who asks ([`Callers::identify`]) and puts the [`Caller`] beside the request; commands judge by it. A command
//! for which nobody said who asks is refused where callers are known: whoever forgets to ask opens nothing.

mod book;
mod issuer;
mod jwt;
mod keep;
mod link;
mod one_call;
mod tenant;

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use run::{Answer, CallError, CallId, CallerName, ErrorKind, ObjectId, Run, RunId, TenantId, Timestamp, ToolName};
use tokio::sync::{Notify, watch};

use crate::pools::Tenancy;
use crate::quotas::{Exceeded, Quota, UPLOAD_BYTES};
use crate::registry::Entry;

pub use self::book::new_key;
pub(crate) use self::book::{Book, Reading, Rights};
pub use self::keep::CallersError;
pub(crate) use self::keep::{Keeper, open};
pub(crate) use self::link::Link;
pub(crate) use self::one_call::OneCall;
pub(crate) use self::tenant::TenantTools;

/// Bytes of a key or a token: those of large issuers have some 2 KiB.
const CREDENTIAL_BYTES_MAX: usize = 8 * 1024;

/// What a caller may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// Make runs, add to them, close, cancel, redrive and drop.
    Submit,
    /// Answer calls that wait for their client.
    Answer,
    /// Decide on calls that await approval.
    Approve,
    /// See runs, calls and tools.
    Read,
    /// All of that, for all tenants, and what concerns the whole.
    Admin,
}

impl Role {
    pub(crate) const ALL: [Self; 5] = [Self::Submit, Self::Answer, Self::Approve, Self::Read, Self::Admin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Answer => "answer",
            Self::Approve => "approve",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or(())
    }
}

/// Who asks. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Nobody is asked who they are: everything is allowed.
    Anyone,
    /// It was not said who asks, where callers are known: nothing is allowed.
    Nobody,
    Known(Arc<Known>),
    /// Whoever holds the token for one answer.
    OneCall(Arc<OneCall>),
}

/// A caller of the file.
#[derive(Debug)]
pub(crate) struct Known {
    /// The name in the file; behind a slash the subject of their token, where they came with one.
    pub(crate) name: CallerName,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) rights: Arc<Rights>,
    /// When the token that they came with expires; `None` for a key or a certificate.
    pub(crate) until: Option<Timestamp>,
}

/// What somebody may not do, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Denied {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Denied {
    /// A tool that the caller may not call.
    pub(crate) fn tool(tool: &ToolName) -> Self {
        let message = format!("replacing the arguments of a call of {tool} needs the right to call it");
        Self { reason: "TOOL_DENIED", message }
    }

    /// A token for one answer, where a caller with a role is needed.
    pub(crate) fn token(role: Role) -> Self {
        let message = format!("a token for one answer is no caller with the role {}, which this needs", role.name());
        Self { reason: "ROLE_MISSING", message }
    }
}

impl Caller {
    pub(crate) fn name(&self) -> Option<&CallerName> {
        match self {
            Self::Anyone | Self::Nobody => None,
            Self::Known(known) => Some(&known.name),
            Self::OneCall(one) => Some(&one.issued_by),
        }
    }

    pub(crate) fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Anyone | Self::Nobody => None,
            Self::Known(known) => known.tenant.as_ref(),
            Self::OneCall(one) => one.tenant.as_ref(),
        }
    }

    pub(crate) fn must(&self, role: Role) -> Result<(), Denied> {
        let may = match self {
            Self::Anyone => true,
            Self::Nobody => false,
            Self::Known(known) => known.rights.has(role),
            Self::OneCall(_) => role == Role::Answer,
        };
        if may {
            return Ok(());
        }
        let message = match self.name() {
            Some(name) => format!("caller {name} has not the role {}, which this needs", role.name()),
            None => "this needs to know who asks".to_owned(),
        };
        Err(Denied { reason: "ROLE_MISSING", message })
    }

    fn is_admin(&self) -> bool {
        self.must(Role::Admin).is_ok()
    }

    /// Whether a run of this tenant exists for the caller.
    pub(crate) fn sees(&self, tenant: Option<&TenantId>) -> bool {
        match self {
            Self::Anyone => true,
            Self::Nobody => false,
            Self::Known(_) | Self::OneCall(_) => self.is_admin() || (tenant.is_some() && self.tenant() == tenant),
        }
    }

    /// To whose runs a list is limited; `None` for everybody's.
    pub(crate) fn lists(&self, asked: Option<TenantId>) -> Result<Option<TenantId>, Denied> {
        if self.is_admin() { Ok(asked) } else { self.own(asked) }
    }

    /// For whom a run is that the caller makes.
    pub(crate) fn makes_for(&self, asked: Option<TenantId>) -> Result<Option<TenantId>, Denied> {
        if self.is_admin() { Ok(asked.or_else(|| self.tenant().cloned())) } else { self.own(asked) }
    }

    fn own(&self, asked: Option<TenantId>) -> Result<Option<TenantId>, Denied> {
        match (self.tenant(), asked) {
            (Some(own), None) => Ok(Some(own.clone())),
            (Some(own), Some(asked)) if *own == asked => Ok(Some(asked)),
            (Some(_), Some(asked)) => Err(self.stranger(&asked)),
            (None, _) => self.must(Role::Admin).map(|()| None),
        }
    }

    fn stranger(&self, tenant: &TenantId) -> Denied {
        let name = self.name().map_or("", CallerName::as_str);
        let message = format!("caller {name} is not of tenant {tenant}: leave the tenant out");
        Denied { reason: "TENANT_DENIED", message }
    }

    pub(crate) fn may_call(&self, entry: &Entry) -> bool {
        match self {
            Self::Anyone => true,
            Self::Nobody | Self::OneCall(_) => false,
            Self::Known(known) => known.rights.may_call(entry),
        }
    }

    /// Who adds to a run must be who opened it: its calls are judged by that caller's rights when they are dispatched.
    pub(crate) fn may_add_to(&self, run: &Run) -> Result<(), Denied> {
        if self.is_admin() || self.name() == run.caller() {
            return Ok(());
        }
        let message = "another caller opened the run: only that one may add calls to it".to_owned();
        Err(Denied { reason: "RUN_OF_ANOTHER_CALLER", message })
    }

    /// A token for one answer is good for that answer.
    pub(crate) fn may_answer(&self, run: RunId, answers: &[Answer]) -> Result<(), Denied> {
        match self {
            Self::OneCall(one) if one.run != run || answers.iter().any(|answer| answer.call != one.call) => {
                let message = "the token is for the answer to another call".to_owned();
                Err(Denied { reason: "TOKEN_FOR_ANOTHER_CALL", message })
            }
            Self::Anyone | Self::Nobody | Self::Known(_) | Self::OneCall(_) => Ok(()),
        }
    }

    /// Whoever was given a token gives out no further ones.
    pub(crate) fn may_give_out(&self) -> Result<(), Denied> {
        match self {
            Self::OneCall(_) => {
                let message = "a token for one answer makes no further ones".to_owned();
                Err(Denied { reason: "TOKEN_FOR_ONE_ANSWER", message })
            }
            Self::Anyone | Self::Nobody | Self::Known(_) => Ok(()),
        }
    }

    /// A place among the readers of the caller, for one who is known.
    pub(crate) fn begin_reading(&self) -> Result<Option<Reading>, Exceeded> {
        match self {
            Self::Known(known) => known.rights.begin_reading().map(Some),
            Self::Anyone | Self::Nobody | Self::OneCall(_) => Ok(None),
        }
    }

    /// Until when the caller may give something out: what a token's bearer gives out ends with the token.
    pub(crate) fn gives_until(&self, wanted: Timestamp) -> Timestamp {
        match self {
            Self::Known(known) => known.until.map_or(wanted, |until| until.min(wanted)),
            Self::Anyone | Self::Nobody | Self::OneCall(_) => wanted,
        }
    }

    /// The only call that the caller may see of a run.
    pub(crate) fn only(&self) -> Option<&CallId> {
        match self {
            Self::OneCall(one) => Some(&one.call),
            Self::Anyone | Self::Nobody | Self::Known(_) => None,
        }
    }
}

/// The error of a call of a tool that its caller may not call.
pub(crate) fn not_permitted(tool: &ToolName, why: &str) -> CallError {
    CallError::new(ErrorKind::NotPermitted, format!("{tool} may not be called here: {why}"))
}

/// What somebody shows of themselves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown<'a> {
    /// A key or a token.
    pub(crate) credential: Option<&'a str>,
    /// A certificate (DER) whose signature was checked.
    pub(crate) certificate: Option<&'a [u8]>,
}

/// Why it is not known who asks. None of it says more than whoever sent it knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("say who you are: `authorization: Bearer KEY`, a key or a token")]
    Missing,
    #[error("the credential is longer than {CREDENTIAL_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the key is not known")]
    Key,
    #[error("the token is refused: {0}")]
    Token(String),
    #[error("the certificate names no caller")]
    Certificate,
    #[error("the keys of the tokens' issuer are not known yet: ask again")]
    KeysMissing,
}

impl Unknown {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "CREDENTIAL_MISSING",
            Self::TooLarge => "CREDENTIAL_TOO_LARGE",
            Self::Key => "KEY_UNKNOWN",
            Self::Token(_) => "TOKEN_REFUSED",
            Self::Certificate => "CERTIFICATE_UNKNOWN",
            Self::KeysMissing => "ISSUER_UNAVAILABLE",
        }
    }
}

/// Everybody who is known. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    book: watch::Receiver<Arc<Book>>,
    /// The keys of the tokens' issuer; `None` before they were had.
    issuer: watch::Receiver<Option<Arc<jwt::Keys>>>,
    /// A token names a key that we do not have: the issuer may have new ones.
    wanted: Arc<Notify>,
}

impl Callers {
    /// Who asks where nobody says it.
    pub(crate) fn unsaid(&self) -> Caller {
        if self.0.is_some() { Caller::Nobody } else { Caller::Anyone }
    }

    /// Finds out who asks.
    pub(crate) fn identify(&self, shown: Shown<'_>, now: Timestamp) -> Result<Caller, Unknown> {
        let Some(shared) = &self.0 else { return Ok(Caller::Anyone) };
        let book = Arc::clone(&shared.book.borrow());
        match shown {
            Shown { credential: Some(credential), .. } if credential.len() > CREDENTIAL_BYTES_MAX => {
                Err(Unknown::TooLarge)
            }
            Shown { credential: Some(key), .. } if key.starts_with(book::KEY_PREFIX) => {
                book.by_key(key).map(known).ok_or(Unknown::Key)
            }
            Shown { credential: Some(token), .. } if token.starts_with(one_call::PREFIX) => book.by_answer(token, now),
            Shown { credential: Some(token), .. } => shared.by_token(&book, token),
            Shown { certificate: Some(certificate), .. } => {
                book.by_certificate(certificate).map(known).ok_or(Unknown::Certificate)
            }
            Shown { credential: None, certificate: None } => Err(Unknown::Missing),
        }
    }

    /// The caller as the file has them now: an open stream may be older than that.
    pub(crate) fn renewed(&self, caller: &Caller) -> Caller {
        let (Some(shared), Caller::Known(old)) = (&self.0, caller) else { return caller.clone() };
        let book = Arc::clone(&shared.book.borrow());
        match book.by_name(&old.name) {
            Some(rights) if Arc::ptr_eq(rights, &old.rights) => caller.clone(),
            Some(rights) => {
                // The tenant of a token is the token's.
                let tenant = if rights.tenant_claim.is_some() { old.tenant.clone() } else { rights.tenant.clone() };
                let rights = Arc::clone(rights);
                Caller::Known(Arc::new(Known { name: old.name.clone(), tenant, rights, until: old.until }))
            }
            None => Caller::Nobody,
        }
    }

    /// What keeps a call of the run from being dispatched, by what its caller may do now. A run that was accepted before
    /// callers were known goes on, and a tool of which nothing is known any more was judged when the call was accepted.
    pub(crate) fn keeps_from(&self, run: &Run, tool: &ToolName, entry: Option<&Entry>) -> Option<CallError> {
        let (shared, name) = (self.0.as_ref()?, run.caller()?);
        let book = Arc::clone(&shared.book.borrow());
        let Some(rights) = book.by_name(name) else {
            return Some(not_permitted(tool, "its caller is not known any more"));
        };
        let tenant = run.tenant().and_then(|tenant| book.tools_of(tenant));
        if entry.zip(tenant).is_some_and(|(entry, tenant)| !tenant.have(entry)) {
            return Some(not_permitted(tool, "its tenant does not have it any more"));
        }
        let may = rights.has(Role::Submit) && entry.is_none_or(|entry| rights.may_call(entry));
        (!may).then(|| not_permitted(tool, "its caller has not the right any more"))
    }

    /// Which tools a tenant has; `None` for all.
    pub(crate) fn tools_of(&self, tenant: Option<&TenantId>) -> Option<Arc<TenantTools>> {
        self.0.as_ref()?.book.borrow().tools_of(tenant?).cloned()
    }

    /// Whether a tool is there for a caller.
    pub(crate) fn shows<'a>(&self, caller: &'a Caller) -> impl Fn(&Entry) -> bool + use<'a> {
        let tenant = self.tools_of(caller.tenant());
        move |entry| caller.may_call(entry) && tenant.as_ref().is_none_or(|tenant| tenant.have(entry))
    }

    /// Whether callers are asked who they are.
    pub(crate) fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// Which tenants there may be.
    pub(crate) fn tenancy(&self) -> Tenancy {
        self.0.as_ref().map_or(Tenancy::Open, |shared| shared.book.borrow().tenancy())
    }

    /// Changes of the file; `None` where there is none.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<Arc<Book>>> {
        self.0.as_ref().map(|shared| shared.book.clone())
    }

    pub(crate) fn quota(&self, tenant: &TenantId) -> Option<Quota> {
        self.0.as_ref()?.book.borrow().quota(tenant)
    }

    /// What the uploads of a tenant may hold.
    pub(crate) fn upload_bytes(&self, tenant: &TenantId) -> u64 {
        self.quota(tenant).and_then(|quota| quota.upload_bytes).unwrap_or(UPLOAD_BYTES)
    }

    /// Whether some tenant may have only so many calls running at once.
    pub(crate) fn limits_running(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.book.borrow().limits_running())
    }

    pub(crate) fn has_quotas(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.book.borrow().has_quotas())
    }

    /// A token with which one call can be answered, by whoever holds it, until then.
    pub(crate) fn answer_token(
        &self,
        by: &Caller,
        (run, call, tenant): (RunId, CallId, Option<TenantId>),
        until: Timestamp,
    ) -> Result<String, Denied> {
        let book = self.0.as_ref().map(|shared| Arc::clone(&shared.book.borrow()));
        let made = book
            .zip(by.name())
            .and_then(|(book, name)| book.sign(&OneCall { run, call, tenant, issued_by: name.clone(), until }));
        made.ok_or_else(|| Denied {
            reason: "ANSWER_TOKENS_OFF",
            message: "answer tokens need answer_token_key_file in the file of callers".to_owned(),
        })
    }
}

impl Callers {
    /// A token with which an object can be read, by whoever holds it, until then.
    pub(crate) fn link(&self, by: &Caller, object: ObjectId, until: Timestamp) -> Result<String, Denied> {
        let book = self.0.as_ref().map(|shared| Arc::clone(&shared.book.borrow()));
        let made = book.zip(by.name()).and_then(|(book, name)| {
            book.sign_link(&Link { object, tenant: by.tenant().cloned(), issued_by: name.clone(), until })
        });
        made.ok_or_else(|| Denied {
            reason: "LINKS_OFF",
            message: "links need answer_token_key_file in the file of callers".to_owned(),
        })
    }

    /// The object that a link leads to, and who gave it out, as the file has them now.
    pub(crate) fn by_link(&self, token: &str, now: Timestamp) -> Option<(ObjectId, Caller)> {
        let book = self.0.as_ref().map(|shared| Arc::clone(&shared.book.borrow()))?;
        let Link { object, tenant, issued_by: name, .. } = book.link(token, now)?;
        let rights = Arc::clone(book.by_name(&name)?);
        Some((object, Caller::Known(Arc::new(Known { name, tenant, rights, until: None }))))
    }
}

impl Shared {
    fn by_token(&self, book: &Book, token: &str) -> Result<Caller, Unknown> {
        let Some(rules) = &book.tokens else {
            return Err(Unknown::Token("it is neither a key of ours nor are tokens taken here".to_owned()));
        };
        let keys = self.issuer.borrow().clone().ok_or(Unknown::KeysMissing)?;
        let claims = jwt::verify(token, &keys, rules).map_err(|fault| {
            if fault == jwt::Fault::KeyUnknown {
                self.wanted.notify_one();
            }
            Unknown::Token(fault.to_string())
        })?;
        book.by_claims(&claims).map(known)
    }
}

fn known(known: Known) -> Caller {
    Caller::Known(Arc::new(known))
}

/// Roles in words, for errors.
fn roles() -> String {
    Role::ALL.map(Role::name).join(", ")
}

/// Roles as a set.
type Roles = BTreeSet<Role>;
