//! The arguments of a coordinator or worker that store objects in a bucket.

use objects::{Bucket, BucketLocation};

use crate::exit::Failure;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BucketArgs {
    /// The bucket of objects, as s3://BUCKET or s3://BUCKET/PREFIX: the same for all coordinators and workers
    /// (docs/howto/objects.md). The key is in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or comes from the machine's
    /// role. Without it objects are stored at the broker
    #[arg(long, env = "TOOLYARD_OBJECTS", value_name = "URL")]
    objects: Option<String>,
    /// The endpoint of the bucket if it is not AWS: MinIO, Ceph and others that support S3 with conditional writes
    #[arg(long, env = "TOOLYARD_OBJECTS_ENDPOINT", value_name = "URL", requires = "objects")]
    objects_endpoint: Option<String>,
    /// The bucket's region. Without it AWS_REGION counts, or us-east-1
    #[arg(long, env = "TOOLYARD_OBJECTS_REGION", value_name = "NAME", requires = "objects")]
    objects_region: Option<String>,
    /// Allow an http:// endpoint, although objects can then be read on the network
    #[arg(long, env = "TOOLYARD_OBJECTS_ALLOW_HTTP", requires = "objects")]
    objects_allow_http: bool,
}

impl BucketArgs {
    /// `None`: objects lie at the broker.
    pub(crate) fn open(self) -> Result<Option<Bucket>, Failure> {
        let Some(url) = self.objects else { return Ok(None) };
        let place = BucketLocation::parse(&url, self.objects_endpoint, self.objects_region, self.objects_allow_http);
        let bucket = place.and_then(|place| Bucket::new(place, |name| std::env::var(name).ok()));
        bucket.map(Some).map_err(|error| Failure::Usage(format!("--objects: {error}")))
    }
}
