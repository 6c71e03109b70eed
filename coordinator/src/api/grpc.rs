//! gRPC: passes requests to the shared API, and turns its errors into statuses.

pub(super) mod fleet;
pub(super) mod index;
mod many;
pub(super) mod objects;
pub(super) mod runs;
pub(super) mod schedules;
pub(super) mod tools;
pub(super) mod webhooks;
