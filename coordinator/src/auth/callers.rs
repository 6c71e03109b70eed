//! Authentication and authorization. Callers have a key, a token or a certificate, and their rights are in a file. Off
//! if there is no file.
//!
//! The API identifies the caller ([`Callers::identify`]) and puts the [`Caller`] into the request's extensions;
//! commands check it. If callers are authenticated, a command without an identified caller is rejected, so code that
//! forgets to identify the caller gives no access.

mod book;
mod issuer;
mod jwt;
mod link;
mod one_call;
mod quota;
mod reload;
mod tenant;

use std::sync::Arc;
use std::time::Duration;

use proto::Reason;
use run::{Answer, CallError, CallId, CallerName, ObjectId, Roles, Run, RunId, TenantId, Timestamp, ToolName};
use tokio::sync::{Notify, watch};

use crate::fleet::pools::Tenancy;
use crate::fleet::registry::{Entry, not_permitted};

pub use self::book::new_key;
pub(crate) use self::book::{Book, Reading, Rights};
pub(crate) use self::link::Link;
pub(crate) use self::one_call::OneCall;
pub(crate) use self::quota::{Exceeded, Quota, UPLOAD_BYTES};
pub use self::reload::CallersError;
pub(crate) use self::reload::{CallersReload, open};
pub(crate) use self::tenant::TenantTools;
pub(crate) use run::Role;

/// Bytes of a key or a token: tokens of large issuers have some 2 KiB.
const CREDENTIAL_BYTES_MAX: usize = 8 * 1024;

/// The caller of a request. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Callers are not authenticated: everything is allowed.
    Anyone,
    /// Callers are authenticated, and this one was not identified: nothing is allowed.
    Nobody,
    Known(Arc<Known>),
    /// The bearer of a token for one answer.
    OneCall(Arc<OneCall>),
}

/// A caller of the file.
#[derive(Debug)]
pub(crate) struct Known {
    /// The name in the file; with a token, followed by a slash and the token's subject.
    pub(crate) name: CallerName,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) rights: Arc<Rights>,
    /// When the caller's token expires; `None` for a key or a certificate.
    pub(crate) until: Option<Timestamp>,
}

/// The action that the caller may not perform, and the reason.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Denied {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

impl Denied {
    /// The caller may not call this tool.
    pub(crate) fn tool(tool: &ToolName) -> Self {
        let message = format!("replacing the arguments of a call of {tool} needs the right to call it");
        Self { reason: Reason::ToolDenied, message }
    }

    /// The caller has only a token for one answer, and a role is needed.
    pub(crate) fn token(role: Role) -> Self {
        let message = format!("a token for one answer lacks the role {}", role.name());
        Self { reason: Reason::RoleMissing, message }
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

    /// The roles that the file gives the caller; none if callers are not authenticated.
    pub(crate) fn roles(&self) -> Roles {
        match self {
            Self::Anyone | Self::Nobody => Roles::default(),
            Self::Known(known) => known.rights.roles(),
            Self::OneCall(_) => Roles::from_iter([Role::Answer]),
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
            Some(name) => format!("caller {name} lacks the role {}", role.name()),
            None => "this request needs an authenticated caller".to_owned(),
        };
        Err(Denied { reason: Reason::RoleMissing, message })
    }

    fn is_admin(&self) -> bool {
        self.must(Role::Admin).is_ok()
    }

    /// Whether the caller may see runs of this tenant.
    pub(crate) fn sees(&self, tenant: Option<&TenantId>) -> bool {
        match self {
            Self::Anyone => true,
            Self::Nobody => false,
            Self::Known(_) | Self::OneCall(_) => self.is_admin() || (tenant.is_some() && self.tenant() == tenant),
        }
    }

    /// The tenant to which the caller's lists are limited; `None` for all tenants.
    pub(crate) fn lists(&self, requested: Option<TenantId>) -> Result<Option<TenantId>, Denied> {
        if self.is_admin() { Ok(requested) } else { self.own(requested) }
    }

    /// The tenant of a run that the caller opens.
    pub(crate) fn makes_for(&self, requested: Option<TenantId>) -> Result<Option<TenantId>, Denied> {
        if self.is_admin() { Ok(requested.or_else(|| self.tenant().cloned())) } else { self.own(requested) }
    }

    fn own(&self, requested: Option<TenantId>) -> Result<Option<TenantId>, Denied> {
        match (self.tenant(), requested) {
            (Some(own), None) => Ok(Some(own.clone())),
            (Some(own), Some(requested)) if *own == requested => Ok(Some(requested)),
            (Some(_), Some(requested)) => Err(self.stranger(&requested)),
            (None, _) => self.must(Role::Admin).map(|()| None),
        }
    }

    fn stranger(&self, tenant: &TenantId) -> Denied {
        let name = self.name().map_or("", CallerName::as_str);
        let message = format!("caller {name} does not belong to tenant {tenant}: leave the tenant out");
        Denied { reason: Reason::TenantDenied, message }
    }

    pub(crate) fn may_call(&self, entry: &Entry) -> bool {
        match self {
            Self::Anyone => true,
            Self::Nobody | Self::OneCall(_) => false,
            Self::Known(known) => known.rights.may_call(entry),
        }
    }

    /// Only the caller who opened a run may add calls to it, because its calls are checked against that caller's rights
    /// when they are dispatched.
    pub(crate) fn may_add_to(&self, run: &Run) -> Result<(), Denied> {
        if self.is_admin() || self.name() == run.caller() {
            return Ok(());
        }
        let message = "another caller opened the run: only that caller may add calls to it".to_owned();
        Err(Denied { reason: Reason::RunOfAnotherCaller, message })
    }

    /// A token for one answer is valid for that answer only.
    pub(crate) fn may_answer(&self, run: RunId, answers: &[Answer]) -> Result<(), Denied> {
        match self {
            Self::OneCall(one) if one.run != run || answers.iter().any(|answer| answer.call != one.call) => {
                let message = "the token is for the answer to another call".to_owned();
                Err(Denied { reason: Reason::TokenForAnotherCall, message })
            }
            Self::Anyone | Self::Nobody | Self::Known(_) | Self::OneCall(_) => Ok(()),
        }
    }

    /// The bearer of a token cannot issue further ones.
    pub(crate) fn may_give_out(&self) -> Result<(), Denied> {
        match self {
            Self::OneCall(_) => {
                let message = "a token for one answer cannot be used to issue further ones".to_owned();
                Err(Denied { reason: Reason::TokenForOneAnswer, message })
            }
            Self::Anyone | Self::Nobody | Self::Known(_) => Ok(()),
        }
    }

    /// Takes one of an identified caller's stream slots.
    pub(crate) fn begin_reading(&self) -> Result<Option<Reading>, Exceeded> {
        match self {
            Self::Known(known) => known.rights.begin_reading().map(Some),
            Self::Anyone | Self::Nobody | Self::OneCall(_) => Ok(None),
        }
    }

    /// The latest expiry of what the caller issues: anything issued by a token's bearer expires with the token.
    pub(crate) fn gives_until(&self, wanted: Timestamp) -> Timestamp {
        match self {
            Self::Known(known) => known.until.map_or(wanted, |until| until.min(wanted)),
            Self::Anyone | Self::Nobody | Self::OneCall(_) => wanted,
        }
    }

    /// The only call of a run that the caller may see.
    pub(crate) fn only(&self) -> Option<&CallId> {
        match self {
            Self::OneCall(one) => Some(&one.call),
            Self::Anyone | Self::Nobody | Self::Known(_) => None,
        }
    }
}

/// The credentials that a client presents.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown<'a> {
    /// A key or a token.
    pub(crate) credential: Option<&'a str>,
    /// A certificate (DER) whose signature was checked.
    pub(crate) certificate: Option<&'a [u8]>,
}

/// Why the caller could not be identified. The messages reveal nothing that the client does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("authentication required: send `authorization: Bearer KEY` with a key or a token")]
    Missing,
    #[error("the credential is longer than {CREDENTIAL_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the key is unknown")]
    Key,
    #[error("the token is refused: {0}")]
    Token(String),
    #[error("the certificate names no caller")]
    Certificate,
    #[error("the keys of the tokens' issuer are not loaded yet: retry")]
    KeysMissing,
}

impl Unknown {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Missing => Reason::CredentialMissing,
            Self::TooLarge => Reason::CredentialTooLarge,
            Self::Key => Reason::KeyUnknown,
            Self::Token(_) => Reason::TokenRefused,
            Self::Certificate => Reason::CertificateUnknown,
            Self::KeysMissing => Reason::IssuerUnavailable,
        }
    }
}

/// All callers of the file. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    book: watch::Receiver<Arc<Book>>,
    /// The keys of the tokens' issuer; `None` until they were fetched.
    issuer: watch::Receiver<Option<Arc<jwt::Keys>>>,
    /// A token names a key that we do not have: the issuer may have new ones.
    wanted: Arc<Notify>,
}

impl Callers {
    /// The caller of a request that has none set.
    pub(crate) fn unsaid(&self) -> Caller {
        if self.0.is_some() { Caller::Nobody } else { Caller::Anyone }
    }

    /// Identifies the caller.
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

    /// The caller with the present rights of the file, because an open stream may be older than the file. The bearer of
    /// a token that has expired has none.
    pub(crate) fn renewed(&self, caller: &Caller) -> Caller {
        let (Some(shared), Caller::Known(old)) = (&self.0, caller) else { return caller.clone() };
        let leeway = Duration::from_secs(jwt::LEEWAY_S);
        if old.until.is_some_and(|until| until.after(leeway) <= ::nats::now()) {
            return Caller::Nobody;
        }
        let book = Arc::clone(&shared.book.borrow());
        match book.by_name(&old.name) {
            Some(rights) if Arc::ptr_eq(rights, &old.rights) => caller.clone(),
            Some(rights) => {
                // The tenant of a token comes from the token.
                let tenant = if rights.tenant_claim.is_some() { old.tenant.clone() } else { rights.tenant.clone() };
                let rights = Arc::clone(rights);
                Caller::Known(Arc::new(Known { name: old.name.clone(), tenant, rights, until: old.until }))
            }
            None => Caller::Nobody,
        }
    }

    /// A caller whose name and tenant were stored, with the present rights of the file. A caller that is not in the
    /// file any more has no rights.
    pub(crate) fn acting(&self, name: Option<&CallerName>, tenant: Option<&TenantId>) -> Caller {
        let Some(shared) = &self.0 else { return Caller::Anyone };
        let Some(name) = name else { return Caller::Nobody };
        let Some(rights) = shared.book.borrow().by_name(name).cloned() else { return Caller::Nobody };
        // The tenant of a token came from the token.
        let tenant = if rights.tenant_claim.is_some() { tenant.cloned() } else { rights.tenant.clone() };
        Caller::Known(Arc::new(Known { name: name.clone(), tenant, rights, until: None }))
    }

    /// Why a call of the run may not be dispatched, according to its caller's present rights. A run from before callers
    /// were authenticated goes on. A tool that is not known any more was checked when the call was accepted.
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
        (!may).then(|| not_permitted(tool, "its caller has lost the right"))
    }

    /// The tools that a tenant has; `None` for all.
    pub(crate) fn tools_of(&self, tenant: Option<&TenantId>) -> Option<Arc<TenantTools>> {
        self.0.as_ref()?.book.borrow().tools_of(tenant?).cloned()
    }

    /// Whether a caller may see a tool.
    pub(crate) fn shows<'a>(&self, caller: &'a Caller) -> impl Fn(&Entry) -> bool + use<'a> {
        let tenant = self.tools_of(caller.tenant());
        move |entry| caller.may_call(entry) && tenant.as_ref().is_none_or(|tenant| tenant.have(entry))
    }

    /// Who issues the tokens that are accepted, if the file names it.
    pub(crate) fn issuer(&self) -> Option<String> {
        self.0.as_ref()?.book.borrow().tokens.as_ref()?.issuer.clone()
    }

    /// Whether callers are authenticated.
    pub(crate) fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// Which tenants there may be.
    pub(crate) fn tenancy(&self) -> Tenancy {
        self.0.as_ref().map_or(Tenancy::Open, |shared| shared.book.borrow().tenancy())
    }

    /// Changes of the file; `None` if there is none.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<Arc<Book>>> {
        self.0.as_ref().map(|shared| shared.book.clone())
    }

    pub(crate) fn quota(&self, tenant: &TenantId) -> Option<Quota> {
        self.0.as_ref()?.book.borrow().quota(tenant)
    }

    /// Limit of bytes of a tenant's uploads.
    pub(crate) fn upload_bytes(&self, tenant: &TenantId) -> u64 {
        self.quota(tenant).and_then(|quota| quota.upload_bytes).unwrap_or(UPLOAD_BYTES)
    }

    /// Whether the file limits any tenant's running calls.
    pub(crate) fn limits_running(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.book.borrow().limits_running())
    }

    pub(crate) fn has_quotas(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.book.borrow().has_quotas())
    }

    /// A token with which its bearer can answer one call until it expires.
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
            reason: Reason::AnswerTokensOff,
            message: "answer tokens need answer_token_key_file in the file of callers".to_owned(),
        })
    }
}

impl Callers {
    /// A token with which its bearer can read an object until it expires.
    pub(crate) fn link(&self, by: &Caller, object: ObjectId, until: Timestamp) -> Result<String, Denied> {
        let book = self.0.as_ref().map(|shared| Arc::clone(&shared.book.borrow()));
        let made = book.zip(by.name()).and_then(|(book, name)| {
            book.sign_link(&Link { object, tenant: by.tenant().cloned(), issued_by: name.clone(), until })
        });
        made.ok_or_else(|| Denied {
            reason: Reason::LinksOff,
            message: "links need answer_token_key_file in the file of callers".to_owned(),
        })
    }

    /// The object of a link and its issuer, with the present rights of the file.
    pub(crate) fn by_link(&self, token: &str, now: Timestamp) -> Option<(ObjectId, Caller)> {
        let book = self.0.as_ref().map(|shared| Arc::clone(&shared.book.borrow()))?;
        let Link { object, tenant, issued_by: name, .. } = book.link(token, now)?;
        let rights = Arc::clone(book.by_name(&name).filter(|rights| rights.are_of(tenant.as_ref()))?);
        Some((object, Caller::Known(Arc::new(Known { name, tenant, rights, until: None }))))
    }
}

impl Shared {
    fn by_token(&self, book: &Book, token: &str) -> Result<Caller, Unknown> {
        let Some(rules) = &book.tokens else {
            return Err(Unknown::Token("it is not a key of this service, and tokens are not configured".to_owned()));
        };
        let keys = self.issuer.borrow().clone().ok_or(Unknown::KeysMissing)?;
        let claims = jwt::verify(token, &keys, rules).map_err(|fault| {
            if fault == jwt::TokenError::KeyUnknown {
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

/// The names of the roles, for errors.
fn roles() -> String {
    Role::ALL.map(Role::name).join(", ")
}
