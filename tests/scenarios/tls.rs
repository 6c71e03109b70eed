//! The API behind TLS: clients that do not trust it or are not trusted cannot connect, and new certificates need no
//! restart.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Authority, Certified, Client, Fixture};
use proto::v1;
use serde_json::json;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::FIXTURE;

fn behind(certified: &Certified) -> Fixture {
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_TLS_CERT", certified.certificate.display());
    fixture.with("TOOLYARD_TLS_KEY", certified.key.display())
}

async fn broker() -> local::Broker {
    local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts")
}

fn api(address: SocketAddr, tls: ClientTlsConfig) -> Endpoint {
    Channel::from_shared(format!("https://{address}")).expect("a URL").tls_config(tls).expect("sound files")
}

/// Whether a client can connect: in TLS 1.3 a client learns only with its first request that its certificate is
/// missing.
async fn is_let_in(endpoint: &Endpoint) -> bool {
    let Ok(channel) = endpoint.connect().await else { return false };
    let client = Client::through(channel);
    client.tools.clone().list_tools(v1::ListToolsRequest::default()).await.is_ok()
}

#[tokio::test]
async fn who_trusts_the_door_calls_through_it_and_nobody_else_does() {
    let (authority, stranger, broker) = (Authority::new(), Authority::new(), broker().await);
    let fixture = behind(&authority.server("api"));
    let coordinator = fixture.coordinator(&broker.url()).await;
    let _worker = fixture.worker(&broker.url(), "main", 4).await;
    let address = coordinator.address();

    let channel = api(address, authority.trusted(None)).connect().await.expect("it is trusted");
    let client = Client::through(channel);
    client.wait_for_tool("echo").await;
    let said = client.execute(vec![harness::call("a", "echo", json!({ "text": "in secret" }))]).await.to_end().await;
    assert!(crate::check::outcomes(&said)["a"].error.is_none(), "{said:#?}");

    assert!(!is_let_in(&api(address, stranger.trusted(None))).await, "its certificate is of another authority");
    let plain = Channel::from_shared(format!("http://{address}")).expect("a URL");
    assert!(!is_let_in(&plain).await, "nothing is said without TLS");
}

#[tokio::test]
async fn with_an_authority_of_clients_nobody_comes_in_without_a_certificate_of_it() {
    let (authority, stranger, broker) = (Authority::new(), Authority::new(), broker().await);
    let fixture = behind(&authority.server("api")).with("TOOLYARD_TLS_CLIENT_CA", authority.file().display());
    let coordinator = fixture.coordinator(&broker.url()).await;
    let address = coordinator.address();
    let known = authority.client("known", None);
    assert!(is_let_in(&api(address, authority.trusted(Some(&known)))).await);
    assert!(!is_let_in(&api(address, authority.trusted(None))).await, "it shows none");
    let unknown = stranger.client("known", None);
    assert!(!is_let_in(&api(address, authority.trusted(Some(&unknown)))).await, "another authority's has its name");
}

#[tokio::test]
async fn a_new_certificate_counts_without_a_restart_and_a_broken_one_does_not() {
    let (first, second, broker) = (Authority::new(), Authority::new(), broker().await);
    let files = first.server("api");
    let coordinator = behind(&files).coordinator(&broker.url()).await;
    let address = coordinator.address();
    let channel = api(address, first.trusted(None)).connect().await.expect("it is trusted");
    let before = Client::through(channel);

    // A certificate without its key, as one sees it in the middle of a replacement.
    let next = second.server("api");
    std::fs::copy(&next.certificate, &files.certificate).expect("replaced");
    // Longer than it takes to be noticed.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(is_let_in(&api(address, first.trusted(None))).await, "the old one goes on");

    std::fs::copy(&next.key, &files.key).expect("replaced");
    let replaced = async {
        while !is_let_in(&api(address, second.trusted(None))).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, replaced).await.expect("the new one is used");
    assert!(!is_let_in(&api(address, first.trusted(None))).await, "the old one is not");
    let listed = before.tools.clone().list_tools(v1::ListToolsRequest::default()).await;
    assert!(listed.is_ok(), "a connection that stood goes on");
}

#[tokio::test]
async fn a_door_whose_files_are_no_certificate_does_not_open() {
    let (authority, broker) = (Authority::new(), broker().await);
    let mut files = authority.server("api");
    files.key = authority.server("another").key;
    let options = coordinator::Options {
        nats_url: broker.url(),
        credentials: nats::Credentials::default(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        log: coordinator::LogOptions::default(),
        bucket: None,
        redis_url: None,
        redis_ca: None,
        admin: None,
        api: coordinator::ApiOptions {
            pools: None,
            tls: Some(coordinator::TlsFiles {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
                client_ca: None,
            }),
            ..coordinator::ApiOptions::default()
        },
    };
    let bind = async |options| {
        let bound = coordinator::Coordinator::bind(options).await;
        bound.expect_err("it must not serve").to_string()
    };
    let error = bind(options.clone()).await;
    assert!(error.contains("another.key"), "it names the file: {error}");
    let mut missing = options;
    missing.api.tls.as_mut().expect("set above").certificate = authority.folder().join("nowhere.crt");
    let error = bind(missing).await;
    assert!(error.contains("nowhere.crt"), "it names the file: {error}");
}
