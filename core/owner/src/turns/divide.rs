//! How owners divide the room of a lane among themselves.

use std::collections::BTreeMap;

use super::Tenant;

/// Shares are computed in thousandths of a call.
const MILLI: u64 = 1000;

/// The room of this owner in a lane with so many slots. Without reports of what waits at the others it is the part by
/// its shards. With reports an owner that has nothing waiting keeps at least that part, so that calls which come before
/// the next report do not wait.
pub fn room(
    (slots, by_shards): (u32, u32),
    own: &BTreeMap<Tenant, u32>,
    others: Option<&BTreeMap<Tenant, u32>>,
    weight: impl Fn(&Tenant) -> u32,
) -> u32 {
    let Some(others) = others else { return by_shards };
    let part = part(slots, own, others, weight);
    if own.values().all(|calls| *calls == 0) { part.max(by_shards) } else { part }
}

/// The part of a lane's room that is this owner's, at least 1. Tenants with waiting calls share the room by weight, and
/// the owners share a tenant's part by how many of its calls wait at each. Room that no waiting call needs belongs to
/// every owner, because each of them may be the next that needs it.
pub(super) fn part(
    room: u32,
    own: &BTreeMap<Tenant, u32>,
    others: &BTreeMap<Tenant, u32>,
    weight: impl Fn(&Tenant) -> u32,
) -> u32 {
    let mut tenants: BTreeMap<&Tenant, (u64, u64)> = BTreeMap::new();
    for (tenant, calls) in own {
        tenants.entry(tenant).or_default().0 += u64::from(*calls);
    }
    for (tenant, calls) in others {
        tenants.entry(tenant).or_default().1 += u64::from(*calls);
    }
    let mut claims: Vec<(u64, u64, u64)> = tenants
        .into_iter()
        .filter(|(_, (own, others))| own + others > 0)
        .map(|(tenant, (own, others))| (own, own + others, u64::from(weight(tenant).max(1))))
        .collect();
    // Tenants that need less than their share come first: what they leave is shared by those that come after them.
    claims.sort_by(|(_, one, weight), (_, other, than)| (one * than).cmp(&(other * weight)));
    let (mut left, mut weights) = (u64::from(room) * MILLI, claims.iter().map(|(_, _, weight)| weight).sum::<u64>());
    let mut part = 0;
    for (own, all, weight) in claims {
        let given = (left * weight / weights).min(all * MILLI);
        part += given * own / all;
        left -= given;
        weights -= weight;
    }
    u32::try_from((part + left).div_ceil(MILLI)).unwrap_or(u32::MAX).max(1)
}
