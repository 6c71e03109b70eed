//! Where the history is.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use objects::{Bucket, BucketLocation, InvalidBucket};

/// A folder, or a bucket.
#[derive(Debug, Clone)]
pub enum HistoryLocation {
    Folder(PathBuf),
    Bucket(Bucket),
}

#[derive(Debug, thiserror::Error)]
pub enum InvalidLocation {
    #[error("{0:?} is no place for the history: write file:///folder, s3://bucket, s3://bucket/prefix, or none")]
    Malformed(String),
    #[error(transparent)]
    Bucket(#[from] InvalidBucket),
    #[error("cannot use the folder {folder} for the history: {reason}")]
    Folder { folder: PathBuf, reason: String },
}

impl HistoryLocation {
    /// `url` is `file:///folder`, `s3://bucket` or `s3://bucket/prefix`. `endpoint` is the address of a store other
    /// than AWS. `var` reads the environment, for the bucket's key.
    ///
    /// # Errors
    /// If one of them is malformed, or the endpoint has no TLS and that is not allowed.
    pub fn parse(
        url: &str,
        endpoint: Option<String>,
        region: Option<String>,
        allow_http: bool,
        var: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidLocation> {
        if let Some(folder) = url.strip_prefix("file://") {
            let folder = PathBuf::from(folder);
            return if folder.is_absolute() {
                Ok(Self::Folder(folder))
            } else {
                Err(InvalidLocation::Malformed(url.to_owned()))
            };
        }
        if !url.starts_with("s3://") {
            return Err(InvalidLocation::Malformed(url.to_owned()));
        }
        Ok(Self::Bucket(Bucket::new(BucketLocation::parse(url, endpoint, region, allow_http)?, var)?))
    }

    /// The store, and the path of the history in it.
    pub(crate) fn open(&self) -> Result<(Arc<dyn ObjectStore>, Path), InvalidLocation> {
        match self {
            Self::Bucket(bucket) => Ok((bucket.store(), Path::from(format!("{}/history", bucket.prefix())))),
            Self::Folder(folder) => {
                let unusable = |reason: &dyn std::fmt::Display| {
                    let reason = reason.to_string();
                    InvalidLocation::Folder { folder: folder.clone(), reason }
                };
                std::fs::create_dir_all(folder).map_err(|error| unusable(&error))?;
                let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| unusable(&error))?;
                // Folders of runs whose objects are removed go with them.
                let store = store.with_automatic_cleanup(true);
                Ok((Arc::new(store.with_fsync(true)), Path::from("history")))
            }
        }
    }
}

impl std::fmt::Display for HistoryLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "file://{}", folder.display()),
            Self::Bucket(bucket) => write!(f, "{}", bucket.location()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_or_a_bucket_is_named_and_nothing_else() {
        let parse = |url: &str| {
            HistoryLocation::parse(url, None, None, false, |_| None)
                .map(|place| place.to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(parse("file:///var/lib/toolyard").as_deref(), Ok("file:///var/lib/toolyard"));
        assert_eq!(parse("s3://ours/a").as_deref(), Ok("s3://ours/a"));
        for wrong in ["", "none", "/var/lib", "file://here", "gs://ours", "s3://"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
