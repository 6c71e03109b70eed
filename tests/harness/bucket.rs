//! A bucket of a real store that speaks S3, in which objects lie in place of the broker, with a key for each party.

use std::net::SocketAddr;

use objects::BucketLocation;
use serde_json::json;

use crate::http::Http;
use crate::process::Fixture;

/// The prefix of all secrets of these keys. It must not appear in any output.
const SECRET: &str = "do-not-tell";

#[derive(Debug)]
pub struct Bucket {
    pub server: local::Buckets,
}

impl Bucket {
    /// A bucket with nothing in it.
    ///
    /// # Panics
    /// When the store does not start: the test cannot go on.
    pub async fn start() -> Self {
        let identity = |name: &str, actions: &[&str]| {
            let key = json!([{ "accessKey": name, "secretKey": secret(name) }]);
            json!({ "name": name, "credentials": key, "actions": actions })
        };
        let identities = [
            identity("maker", &["Admin"]),
            // The permissions of each, as in docs/howto/objects.md.
            identity("coordinator", &["Read:yard/tests/*", "Write:yard/tests/*", "List:yard"]),
            identity("worker-main", &["Write:yard/tests/ty/obj/run_*/*/main/*"]),
            identity("worker-other", &["Write:yard/tests/ty/obj/run_*/*/other/*"]),
            // So that a test can look without a signature.
            json!({ "name": "anonymous", "actions": ["Read:yard", "List:yard"] }),
        ];
        let config = json!({ "identities": identities }).to_string();
        let server = local::Buckets::start(&config, |_| {}).await.expect("a store of buckets starts");
        let bucket = Self { server };
        // The first writer creates the bucket.
        bucket.with_key("maker").check().await.expect("the store is fit");
        bucket
    }

    /// The bucket as the holder of this key sees it.
    ///
    /// # Panics
    /// Never: the place is well formed.
    #[must_use]
    pub fn with_key(&self, name: &str) -> objects::Bucket {
        let place = BucketLocation::parse("s3://yard/tests", Some(self.server.url()), None, true).expect("a place");
        objects::Bucket::new(place, |variable| {
            key(name).into_iter().find(|(at, _)| *at == variable).map(|(_, value)| value)
        })
        .expect("a bucket")
    }

    #[must_use]
    pub fn coordinators(&self, fixture: &Fixture) -> Fixture {
        self.fixture(fixture, key("coordinator"))
    }

    /// Workers of a pool.
    #[must_use]
    pub fn workers(&self, fixture: &Fixture, pool: &str) -> Fixture {
        self.fixture(fixture, key(&format!("worker-{pool}")))
    }

    /// A client with a key that the store does not know.
    #[must_use]
    pub fn strangers(&self, fixture: &Fixture) -> Fixture {
        self.fixture(
            fixture,
            [("AWS_ACCESS_KEY_ID", "worker-main".to_owned()), ("AWS_SECRET_ACCESS_KEY", "x".to_owned())],
        )
    }

    fn fixture(&self, fixture: &Fixture, key: [(&'static str, String); 2]) -> Fixture {
        let fixture = fixture.with("TOOLYARD_OBJECTS", "s3://yard/tests");
        let fixture = fixture.with("TOOLYARD_OBJECTS_ENDPOINT", self.server.url());
        key.into_iter().fold(fixture, |fixture, (name, value)| fixture.with(name, value))
    }

    /// The objects whose names begin with this.
    ///
    /// # Panics
    /// When the store does not answer.
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let url = self.server.url();
        let address: SocketAddr = url.trim_start_matches("http://").parse().expect("an address");
        let answer = Http::new(address).get(&format!("/yard?list-type=2&prefix=tests/{prefix}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let keys = text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        keys.map(|(key, _)| key.to_owned()).collect()
    }
}

fn secret(name: &str) -> String {
    format!("{SECRET}-{name}")
}

fn key(name: &str) -> [(&'static str, String); 2] {
    [("AWS_ACCESS_KEY_ID", name.to_owned()), ("AWS_SECRET_ACCESS_KEY", secret(name))]
}
