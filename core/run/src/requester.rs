//! Who asked for a run, as the coordinator that opened it authenticated them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{CallerName, TenantId};

/// What a caller may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Make runs, add to them, close, cancel, redrive and drop.
    Submit,
    /// Answer calls that wait for their client.
    Answer,
    /// Decide on calls that await approval.
    Approve,
    /// See runs, calls and tools.
    Read,
    /// All of that for all tenants, and operations on the whole deployment.
    Admin,
}

impl Role {
    pub const ALL: [Self; 5] = [Self::Submit, Self::Answer, Self::Approve, Self::Read, Self::Admin];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Answer => "answer",
            Self::Approve => "approve",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or(())
    }
}

/// A set of roles. An admin has all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Roles(u8);

impl Roles {
    /// Whether the role is in the set, or that of an admin is.
    #[must_use]
    pub const fn has(self, role: Role) -> bool {
        self.0 & (role.bit() | Role::Admin.bit()) != 0
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The roles that were given, without those that an admin has beside.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.0 & role.bit() != 0)
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |bits, role| bits | role.bit()))
    }
}

/// Who asked for a run. It does not change while the run lives, whatever happens to the caller's rights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Requester {
    /// The tenant of the run, if it has one. If no callers are configured, it is what the request named.
    pub tenant: Option<TenantId>,
    /// The caller who opened the run; `None` if no callers are configured.
    pub caller: Option<CallerName>,
    /// The roles of the caller when the run was opened.
    pub roles: Roles,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_known_by_its_name_and_an_admin_has_all() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
            let roles = Roles::from_iter([role]);
            assert!(roles.has(role) && roles.iter().eq([role]));
            assert!(Roles::from_iter([Role::Admin]).has(role) && !Roles::default().has(role));
        }
        assert!(!Roles::from_iter([Role::Submit, Role::Read]).has(Role::Approve));
        assert_eq!("root".parse::<Role>(), Err(()));
    }
}
