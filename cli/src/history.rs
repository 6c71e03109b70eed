//! The arguments of a coordinator that keeps runs that have ended.

use std::time::Duration;

use coordinator::{History, HistoryLocation};

use crate::exit::Failure;

/// How long runs are kept by default.
pub(crate) const RETENTION: Duration = Duration::from_secs(30 * 86_400);
/// The longest time for which runs are kept.
const RETENTION_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Shorter than the log keeps them anyway.
const RETENTION_MIN: Duration = Duration::from_secs(25 * 3600);

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Where runs that have ended are kept for longer than in the log: file:///FOLDER, which all coordinators share,
    /// s3://BUCKET or s3://BUCKET/PREFIX, or none (docs/howto/history.md). The bucket's key is that of --objects
    #[arg(long, env = "TOOLYARD_HISTORY", value_name = "URL", default_value = "none")]
    history: String,
    /// How long they are kept after their end, as 90d: from 25h to 366d
    #[arg(long, env = "TOOLYARD_HISTORY_RETENTION", value_name = "SPAN", default_value = "30d")]
    #[arg(value_parser = retention)]
    history_retention: Duration,
    /// The endpoint of the history's bucket if it is not AWS: MinIO, Ceph and others that support S3 with conditional
    /// writes
    #[arg(long, env = "TOOLYARD_HISTORY_ENDPOINT", value_name = "URL")]
    history_endpoint: Option<String>,
    /// The region of the history's bucket. Without it AWS_REGION counts, or us-east-1
    #[arg(long, env = "TOOLYARD_HISTORY_REGION", value_name = "NAME")]
    history_region: Option<String>,
    /// Allow an http:// endpoint, although runs can then be read on the network
    #[arg(long, env = "TOOLYARD_HISTORY_ALLOW_HTTP")]
    history_allow_http: bool,
}

impl HistoryArgs {
    /// `None`: runs are kept in the log alone.
    pub(crate) fn open(self) -> Result<Option<History>, Failure> {
        if self.history == "none" {
            return Ok(None);
        }
        let var = |name: &str| std::env::var(name).ok();
        let (endpoint, region, allow_http) = (self.history_endpoint, self.history_region, self.history_allow_http);
        let location = HistoryLocation::parse(&self.history, endpoint, region, allow_http, var);
        let history = location.and_then(|location| History::new(&location, self.history_retention));
        history.map(Some).map_err(|error| Failure::Usage(format!("--history: {error}")))
    }
}

pub(crate) fn retention(text: &str) -> Result<Duration, String> {
    let retention = crate::list::span(text)?;
    if (RETENTION_MIN..=RETENTION_MAX).contains(&retention) {
        Ok(retention)
    } else {
        Err("it is at least 25h and at most 366d".to_owned())
    }
}
