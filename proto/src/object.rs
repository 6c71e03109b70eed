//! The layout of objects at the broker: chunks of a fixed size, each under a subject of its own, so any part of an
//! object can be read without the parts before it, and is written once. The broker's permissions depend on the form of
//! the subjects: a pool's workers may write `ty.obj.*.*.<pool>.*.*` and nothing else.

use run::{ObjectId, PoolId, RunId};

use crate::names::NAMESPACE;

/// Bytes of each chunk except the last. It is part of the format, because readers compute positions with it.
pub const CHUNK_BYTES: u64 = 256 * 1024;
/// The media type of an object that was stored as text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The media type of an object that was stored as JSON.
pub const JSON: &str = "application/json";

/// Everything that is stored.
pub const SUBJECTS: &str = "ty.obj.>";

/// The subject of a chunk.
#[must_use]
pub fn chunk(id: &ObjectId, index: u64) -> String {
    format!("{}{index}", stem(id))
}

/// The subject of the description of an upload.
#[must_use]
pub fn about(id: &ObjectId) -> String {
    format!("{}about", stem(id))
}

/// All subjects of an object.
#[must_use]
pub fn of_object(id: &ObjectId) -> String {
    format!("{}>", stem(id))
}

fn stem(id: &ObjectId) -> String {
    match id {
        ObjectId::Result { .. } => format!("{NAMESPACE}.obj.{id}."),
        ObjectId::Upload(_) => format!("{NAMESPACE}.obj.up.{id}."),
    }
}

/// All subjects of a run.
#[must_use]
pub fn of_run(run: RunId) -> String {
    format!("{NAMESPACE}.obj.{run}.>")
}

/// All subjects that workers of a pool may write.
#[must_use]
pub fn of_pool(pool: &PoolId) -> String {
    format!("{NAMESPACE}.obj.*.*.{pool}.*.*")
}

/// The number of chunks of an object of this size.
#[must_use]
pub fn chunks(size: u64) -> u64 {
    size.div_ceil(CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_lies_where_its_pool_may_write_and_an_upload_where_none_may() {
        let run: RunId = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id");
        let subject = |id: &str| chunk(&id.parse().expect("an id"), 7);
        let result = subject(&format!("{run}.3.main.00000000000000ff"));
        assert_eq!(result, format!("ty.obj.{run}.3.main.00000000000000ff.7"));
        assert!(result.starts_with(of_run(run).trim_end_matches('>')));
        let upload = subject("upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f");
        let tokens = of_pool(&"main".parse().expect("a pool")).split('.').count();
        assert_eq!(result.split('.').count(), tokens);
        assert_ne!(upload.split('.').count(), tokens, "{upload}");
    }

    #[test]
    fn the_last_chunk_may_be_shorter() {
        let counted = [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1].map(chunks);
        assert_eq!(counted, [0, 1, 1, 2]);
    }
}
