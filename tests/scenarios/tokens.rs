//! Tokens of an issuer: taken when they are signed by it, for us and in their time; everything else is refused.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use harness::{Authority, Callers, Client, Fixture, Guarded, call, reason};
use proto::v1::{self, CallErrorKind, CallState};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::{Code, Status};

use crate::FIXTURE;
use crate::callers::ManyRuns;
use crate::check::outcomes;

const CALLERS: &str = r#"
    [jwt]
    jwks = "JWKS"
    audience = ["toolyard"]
    issuer = "https://issuer.example"

    [[callers]]
    name = "people"
    tenant_claim = "org"
    roles = ["submit", "read"]
    tools = [{ names = ["echo"] }]
    jwt = { groups = "agents" }

    [[callers]]
    name = "robot"
    tenant = "acme"
    roles = ["read"]
    jwt = { sub = "robot-1", kind = "service" }
"#;

/// An issuer of tokens.
struct Issuer {
    id: String,
    key: EcdsaKeyPair,
}

fn encoded(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

fn now_s() -> u64 {
    ::nats::now().0 / 1000
}

/// The claims of a token that is taken.
fn claims() -> Value {
    json!({
        "iss": "https://issuer.example", "aud": "toolyard", "sub": "ada@example.com", "exp": now_s() + 300,
        "groups": ["staff", "agents"], "org": "acme",
    })
}

fn claims_with(name: &str, value: impl Into<Value>) -> Value {
    let mut claims = claims();
    claims[name] = value.into();
    claims
}

fn claims_without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().expect("an object").remove(name);
    claims
}

impl Issuer {
    fn new(id: &str) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).expect("a key");
        Self { id: id.to_owned(), key }
    }

    fn public(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let part = |from: usize| BASE64_URL_SAFE_NO_PAD.encode(&point[from..from + 32]);
        json!({ "kty": "EC", "crv": "P-256", "kid": self.id, "use": "sig", "x": part(1), "y": part(33) })
    }

    fn keys(&self) -> String {
        json!({ "keys": [self.public()] }).to_string()
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": "ES256", "typ": "JWT", "kid": self.id }), claims)
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header), encoded(claims));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).expect("it signs");
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

async fn guarded(issuer: &Issuer) -> Guarded {
    let callers = Callers::new("");
    callers.beside("keys.json", issuer.keys().as_bytes());
    callers.write(&CALLERS.replace("JWKS", "keys.json"));
    let guarded = Guarded::start(Fixture::new(FIXTURE), callers).await;
    guarded.stranger.with_key(&issuer.token(&claims())).wait_for_tool("echo").await;
    guarded
}

async fn list(client: &Client) -> Result<v1::ListRunsResponse, Status> {
    client.index.clone().list_runs(v1::ListRunsRequest::default()).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn a_token_of_the_issuer_makes_its_subject_a_caller() {
    let issuer = Issuer::new("first");
    let yard = guarded(&issuer).await;
    let ada = yard.stranger.with_key(&issuer.token(&claims()));
    let echo = call("a", "echo", json!({ "text": "hello" }));
    let forbidden = call("b", "sleep", json!({ "ms": 1, "text": "" }));
    let stream = ada.execute(vec![echo, forbidden]).await;
    let events = stream.to_end().await;
    let ended = outcomes(&events);
    assert_eq!(ended["a"].state(), CallState::Completed);
    assert_eq!(ended["b"].error.clone().expect("it is refused").kind(), CallErrorKind::NotPermitted);

    let robot = json!({ "sub": "robot-1", "kind": "service" });
    let mut claims = claims_without("groups");
    claims.as_object_mut().expect("an object").extend(robot.as_object().expect("an object").clone());
    let robot = yard.stranger.with_key(&issuer.token(&claims));
    let seen = async {
        loop {
            if let Some(run) = list(&robot).await.expect("it may read").runs.pop() {
                return run.run_id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let id = tokio::time::timeout(harness::PATIENCE, seen).await.expect("the index follows");
    let run = harness::Run { client: robot, id }.get().await;
    assert_eq!((run.caller.as_str(), run.tenant.as_str()), ("people/ada@example.com", "acme"));
    let stranger = yard.stranger.with_key(&issuer.token(&claims_with("org", "other")));
    assert!(list(&stranger).await.expect("it may read").runs.is_empty(), "it is of another tenant");
}

#[tokio::test]
async fn what_is_not_signed_by_the_issuer_for_us_and_in_time_is_refused() {
    let issuer = Issuer::new("first");
    let yard = guarded(&issuer).await;
    let impostor = Issuer::new("first");
    let unknown = Issuer::new("unknown");
    let now = now_s();
    let signed = |claims: Value| issuer.token(&claims);
    let none = format!("{}.{}.", encoded(&json!({ "alg": "none", "typ": "JWT" })), encoded(&claims()));
    // The public key taken for a secret.
    let point = BASE64_URL_SAFE_NO_PAD.encode(issuer.key.public_key().as_ref());
    let symmetric = |secret: &[u8]| {
        let message = format!("{}.{}", encoded(&json!({ "alg": "HS256", "kid": "first" })), encoded(&claims()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
    };
    let good = issuer.token(&claims());
    let (head, signature) = good.rsplit_once('.').expect("three parts");
    let mut other = claims();
    other["org"] = "rival".into();
    let swapped = format!("{}.{}.{signature}", head.split('.').next().expect("a header"), encoded(&other));
    let ed25519 = {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let key = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key");
        let message = format!("{}.{}", encoded(&json!({ "alg": "EdDSA", "kid": "first" })), encoded(&claims()));
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(key.sign(message.as_bytes())))
    };
    let critical = json!({ "alg": "ES256", "kid": "first", "crit": ["b64"], "b64": false });
    let refused = [
        ("expired", signed(claims_with("exp", now - 120)), "expired"),
        ("not valid yet", signed(claims_with("nbf", now + 600)), "not valid yet"),
        ("for somebody else", signed(claims_with("aud", json!(["billing"]))), "audience"),
        ("for nobody", signed(claims_without("aud")), "aud"),
        ("for ever", signed(claims_without("exp")), "exp"),
        ("of a time that is none", signed(claims_with("exp", "tomorrow")), "exp"),
        ("of a beginning that is none", signed(claims_with("nbf", "yesterday")), "nbf"),
        ("of another issuer", signed(claims_with("iss", "https://other.example")), "issuer"),
        ("of no caller", signed(claims_with("groups", json!(["guests"]))), "no caller"),
        ("of no tenant", signed(claims_without("org")), "tenant"),
        ("of a malformed tenant", signed(claims_with("org", "a b")), "tenant"),
        ("signed by somebody else under the same name", impostor.token(&claims()), "signature"),
        ("signed by a key that nobody knows", unknown.token(&claims()), "no such key"),
        ("with other claims than were signed", swapped, "signature"),
        ("not signed", none, "algorithm"),
        ("without its signature", format!("{head}."), "signature"),
        ("signed with the public key", symmetric(issuer.key.public_key().as_ref()), "algorithm"),
        ("signed with the public key's text", symmetric(point.as_bytes()), "algorithm"),
        ("of another kind of key", ed25519, "no such key"),
        ("that demands what is not understood", issuer.token_with(&critical, &claims()), "not a token"),
        ("garbage", "not.a.token".to_owned(), ""),
        ("half", head.to_owned(), ""),
    ];
    for (what, token, why) in refused {
        let status = list(&yard.stranger.with_key(&token)).await.expect_err(what);
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "TOKEN_REFUSED"), "{what}");
        assert!(status.message().contains(why), "{what}: {}", status.message());
        assert!(!status.message().contains(&token), "a token is told: {}", status.message());
    }
    let oversize = signed(claims_with("padding", "x".repeat(8 * 1024)));
    let status = list(&yard.stranger.with_key(&oversize)).await.expect_err("it is too large");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "CREDENTIAL_TOO_LARGE"));
    list(&yard.stranger.with_key(&good)).await.expect("the good one is still taken");
}

/// Serves a given document over https.
async fn serve(listener: TcpListener, tls: TlsAcceptor, keys: tokio::sync::watch::Receiver<String>) {
    while let Ok((socket, _)) = listener.accept().await {
        let Ok(mut stream) = tls.accept(socket).await else { continue };
        let mut request = [0; 4096];
        let asked = stream.read(&mut request).await.unwrap_or_default();
        assert!(request[..asked].starts_with(b"GET /keys.json HTTP/1.1\r\n"), "it asks for the keys");
        let body = keys.borrow().clone();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        drop(stream.write_all(format!("{head}{body}").as_bytes()).await);
        drop(stream.shutdown().await);
    }
}

#[tokio::test]
async fn keys_are_fetched_over_https_and_again_when_a_token_names_a_new_one() {
    let (first, second, authority) = (Issuer::new("first"), Issuer::new("second"), Authority::new());
    let server = authority.server("issuer");
    let chain = vec![CertificateDer::from_pem_file(&server.certificate).expect("a certificate")];
    let secret = PrivateKeyDer::from_pem_file(&server.key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the defaults are sound")
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .expect("they belong together");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("a port");
    let (keys, current) = tokio::sync::watch::channel(first.keys());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), current));

    let callers = Callers::new("");
    callers.beside("issuer-ca.crt", &std::fs::read(authority.file()).expect("it is there"));
    let jwks = format!("https://{address}/keys.json\"\n    ca = \"issuer-ca.crt");
    callers.write(&CALLERS.replace("JWKS", &jwks));
    let yard = Guarded::start(Fixture::new(FIXTURE), callers).await;
    let until_taken = async |issuer: &Issuer| {
        let client = yard.stranger.with_key(&issuer.token(&claims()));
        while list(&client).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, until_taken(&first)).await.expect("the keys come");
    assert!(list(&yard.stranger.with_key(&second.token(&claims()))).await.is_err(), "nobody knows it yet");
    keys.send_replace(second.keys());
    tokio::time::timeout(harness::PATIENCE, until_taken(&second)).await.expect("the new keys come");
    assert!(list(&yard.stranger.with_key(&first.token(&claims()))).await.is_err(), "the old one was withdrawn");
}

#[tokio::test]
async fn a_stream_of_many_runs_takes_none_after_its_token_has_expired() {
    let issuer = Issuer::new("first");
    let yard = guarded(&issuer).await;
    // A token is accepted for 30 s after its end, because clocks differ.
    let client = yard.stranger.with_key(&issuer.token(&claims_with("exp", now_s() - 25)));
    let mut runs = ManyRuns::begin(&client).await;
    assert_eq!(runs.next(&[]).await, None);
    let over = async {
        while list(&client).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, over).await.expect("it expires");
    assert_eq!(runs.next(&[]).await.as_deref(), Some("ROLE_MISSING"));
}
