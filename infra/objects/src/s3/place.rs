//! The location of a bucket, and its credentials.

use std::fmt;

use object_store::aws::AmazonS3ConfigKey as Key;

/// A bucket, or a prefix in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLocation {
    pub(super) bucket: String,
    /// Without a slash at either end; may be empty.
    pub(super) prefix: String,
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    pub(super) allow_http: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum InvalidBucket {
    #[error(
        "{0:?} is no place for objects: write s3://bucket or s3://bucket/prefix, of letters, digits and any of .-_"
    )]
    Malformed(String),
    #[error("{0:?} is no endpoint: write https://host or https://host:port")]
    Endpoint(String),
    #[error(
        "{0} would be spoken to without TLS, and so would its objects be: say that it may (--objects-allow-http), or write https://"
    )]
    Plain(String),
    #[error("the object store cannot be spoken to: {0}")]
    Unusable(String),
}

/// Environment variables with credentials, as other programs use them.
pub(super) fn variables() -> [(&'static str, Key); 12] {
    [
        ("AWS_ACCESS_KEY_ID", Key::AccessKeyId),
        ("AWS_SECRET_ACCESS_KEY", Key::SecretAccessKey),
        ("AWS_SESSION_TOKEN", Key::Token),
        ("AWS_DEFAULT_REGION", Key::DefaultRegion),
        ("AWS_REGION", Key::Region),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", Key::WebIdentityTokenFile),
        ("AWS_ROLE_ARN", Key::RoleArn),
        ("AWS_ROLE_SESSION_NAME", Key::RoleSessionName),
        ("AWS_ENDPOINT_URL_STS", Key::StsEndpoint),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", Key::ContainerCredentialsRelativeUri),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Key::ContainerCredentialsFullUri),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Key::ContainerAuthorizationTokenFile),
    ]
}

impl BucketLocation {
    /// `url` is `s3://bucket` or `s3://bucket/prefix`. `endpoint` is the address of a store other than AWS; its buckets
    /// are named in the path.
    ///
    /// # Errors
    /// If one of them is malformed, or the endpoint has no TLS and that is not allowed.
    pub fn parse(
        url: &str,
        endpoint: Option<String>,
        region: Option<String>,
        allow_http: bool,
    ) -> Result<Self, InvalidBucket> {
        let malformed = || InvalidBucket::Malformed(url.to_owned());
        let named = url.strip_prefix("s3://").ok_or_else(malformed)?;
        let (bucket, prefix) = named.split_once('/').unwrap_or((named, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_name = |name: &str| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)) && !["", ".", ".."].contains(&name)
        };
        if !is_name(bucket) || !(prefix.is_empty() || prefix.split('/').all(is_name)) {
            return Err(malformed());
        }
        if let Some(endpoint) = &endpoint {
            let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
            // It has no user name, password or path, so nothing in it is a secret.
            let is_host = |host: &str| !host.is_empty() && !host.contains(['@', '/', '?', '#']);
            if !host.is_some_and(|host| is_host(host.strip_suffix('/').unwrap_or(host))) {
                return Err(InvalidBucket::Endpoint(endpoint.clone()));
            }
            if endpoint.starts_with("http://") && !allow_http {
                return Err(InvalidBucket::Plain(endpoint.clone()));
            }
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned(), endpoint, region, allow_http })
    }
}

impl fmt::Display for BucketLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        self.endpoint.iter().try_for_each(|endpoint| write!(f, " at {endpoint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str, endpoint: Option<&str>, allow_http: bool) -> Result<String, String> {
        let place = BucketLocation::parse(url, endpoint.map(str::to_owned), None, allow_http);
        place.map(|place| place.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_bucket_is_named_with_a_prefix_or_without() {
        assert_eq!(place("s3://ours", None, false).as_deref(), Ok("s3://ours"));
        assert_eq!(place("s3://ours/a/b_c/", None, false).as_deref(), Ok("s3://ours/a/b_c"));
        let minio = place("s3://ours", Some("https://minio:9000"), false);
        assert_eq!(minio.as_deref(), Ok("s3://ours at https://minio:9000"));
        for wrong in
            ["", "ours", "s3://", "s3:///a", "s3://ours//a", "s3://ours/..", "s3://k:s@ours", "s3://a?b=c", "https://a"]
        {
            assert!(place(wrong, None, true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_goes_without_tls_unless_that_is_said() {
        assert!(place("s3://ours", Some("http://minio:9000"), false).unwrap_err().contains("without TLS"));
        assert!(place("s3://ours", Some("http://minio:9000"), true).is_ok());
        for wrong in ["minio:9000", "https://", "https://k:s@minio", "https://minio/ours", "ftp://minio"] {
            assert!(place("s3://ours", Some(wrong), true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_half_key_is_refused_and_a_whole_one_shows_nowhere() {
        let place = BucketLocation::parse("s3://ours", None, None, false).expect("a place");
        let var = |names: &'static [&str]| move |name: &str| names.contains(&name).then(|| "hidden".to_owned());
        let half = super::super::Bucket::new(place.clone(), var(&["AWS_ACCESS_KEY_ID"])).expect_err("half a key");
        assert!(!half.to_string().contains("hidden"), "{half}");
        let whole = super::super::Bucket::new(place, var(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]));
        let whole = format!("{:?}", whole.expect("a bucket"));
        assert!(!whole.contains("hidden"), "{whole}");
    }
}
