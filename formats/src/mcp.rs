//! The Model Context Protocol, as a server of tools presents it: [definitions](tools), [results](result), and the
//! [questions](ask) to the client that an open call makes necessary. Everything is JSON text, so numbers keep their
//! digits and schemas their members.

pub mod ask;
pub mod result;
pub mod tools;

/// The two generations of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// Revisions up to 2025-11-25, with the `initialize` handshake.
    Legacy,
    /// The revision 2026-07-28, in which every request stands alone.
    Modern,
}

/// The address of an object as a resource.
#[must_use]
pub fn object_uri(id: &str) -> String {
    format!("{OBJECTS}{id}")
}

/// The id of the object with this address.
#[must_use]
pub fn object_of(uri: &str) -> Option<&str> {
    uri.strip_prefix(OBJECTS).filter(|id| !id.is_empty())
}

/// The beginning of the addresses of objects.
pub const OBJECTS: &str = "toolyard://objects/";
