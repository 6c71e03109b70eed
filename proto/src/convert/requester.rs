//! Who asked for a run, in the log.

use run::{Requester, Role, Roles};

use super::InvalidMessage;
use crate::wire::v1 as wire;

pub(super) fn requester_out(requester: &Requester) -> wire::Requester {
    let Requester { tenant, caller, roles } = requester;
    wire::Requester {
        tenant: tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        caller: caller.as_ref().map(ToString::to_string).unwrap_or_default(),
        roles: roles_out(*roles),
    }
}

pub(super) fn requester_in(wire: wire::Requester) -> Result<Requester, InvalidMessage> {
    Ok(Requester {
        tenant: (!wire.tenant.is_empty()).then(|| wire.tenant.parse()).transpose()?,
        caller: (!wire.caller.is_empty()).then(|| wire.caller.parse()).transpose()?,
        roles: roles_in(&wire.roles),
    })
}

pub(super) fn roles_out(roles: Roles) -> Vec<i32> {
    let role = |role| match role {
        Role::Submit => wire::CallerRole::Submit,
        Role::Answer => wire::CallerRole::Answer,
        Role::Approve => wire::CallerRole::Approve,
        Role::Read => wire::CallerRole::Read,
        Role::Admin => wire::CallerRole::Admin,
    };
    roles.iter().map(|given| role(given).into()).collect()
}

/// Roles of a newer release give nothing here.
fn roles_in(roles: &[i32]) -> Roles {
    let role = |role: &i32| match wire::CallerRole::try_from(*role).unwrap_or_default() {
        wire::CallerRole::Unspecified => None,
        wire::CallerRole::Submit => Some(Role::Submit),
        wire::CallerRole::Answer => Some(Role::Answer),
        wire::CallerRole::Approve => Some(Role::Approve),
        wire::CallerRole::Read => Some(Role::Read),
        wire::CallerRole::Admin => Some(Role::Admin),
    };
    roles.iter().filter_map(role).collect()
}
