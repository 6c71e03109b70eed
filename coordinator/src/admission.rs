//! Admission of requests: tools are resolved and arguments checked before anything is stored. Pure; it does not use
//! stored runs.

pub(crate) mod accept;
pub(crate) mod conversation;
pub(crate) mod custom;
pub(crate) mod error;
pub(crate) mod limits;
