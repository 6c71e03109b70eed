//! The index in a store that is reached through TLS, by coordinators that trust its certificate.

use std::net::SocketAddr;
use std::sync::Arc;

use harness::{Authority, Client, Fixture, PATIENCE, Yard, call};
use proto::v1;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::FIXTURE;

/// Ends TLS in front of a store: the store's own program may be built without it.
async fn terminate(listener: TcpListener, acceptor: TlsAcceptor, store: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            let (Ok(mut client), Ok(mut store)) = (acceptor.accept(client).await, TcpStream::connect(store).await)
            else {
                return;
            };
            drop(tokio::io::copy_bidirectional(&mut client, &mut store).await);
        });
    }
}

/// Whether a list is complete.
async fn is_complete(client: &Client) -> bool {
    let listed = client.index.clone().list_runs(v1::ListRunsRequest::default()).await;
    listed.is_ok_and(|listed| listed.into_inner().coverage.is_some_and(|coverage| coverage.complete))
}

#[tokio::test]
async fn an_index_is_shared_over_tls_by_coordinators_that_trust_its_certificate() {
    let store = local::Store::start(|_| {}).await.expect("a store starts");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let certified = authority.server("store");
    let chain = CertificateDer::pem_file_iter(&certified.certificate).expect("a file");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the defaults are sound")
        .with_no_client_auth()
        .with_single_cert(
            chain.collect::<Result<_, _>>().expect("certificates"),
            PrivateKeyDer::from_pem_file(&certified.key).expect("a key"),
        )
        .expect("they belong together");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("rediss://127.0.0.1:{}", listener.local_addr().expect("a port").port());
    let mut serving = JoinSet::new();
    let address = SocketAddr::from(([127, 0, 0, 1], store.port()));
    serving.spawn(terminate(listener, TlsAcceptor::from(Arc::new(config)), address));

    let fixture = Fixture::new(FIXTURE).with_redis(&url);
    let yard = Yard::start_with(fixture.with("TOOLYARD_REDIS_CA", authority.file().display())).await;
    let _worker = yard.worker().await;
    yard.client.execute(vec![call("c", "echo", json!({ "text": "hello" }))]).await.to_end().await;
    let known = async {
        while !is_complete(&yard.client).await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("the index is known through TLS");
    // One that trusts another authority does not speak with the store, and goes on without it.
    let other = fixture.with("TOOLYARD_REDIS_CA", stranger.file().display()).coordinator(&yard.broker.url()).await;
    let client = Client::connect(other.address()).await;
    let refused = client.index.clone().list_runs(v1::ListRunsRequest::default()).await.expect_err("no store, no list");
    assert_eq!(harness::reason(&refused), "INDEX_UNAVAILABLE", "{refused:?}");
    client.wait_for_tool("echo").await;
    let events = client.execute(vec![call("c", "echo", json!({ "text": "all the same" }))]).await.to_end().await;
    assert_eq!(crate::check::outcomes(&events)["c"].state(), v1::CallState::Completed);
}
