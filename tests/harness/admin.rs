//! The admin port of a process, as probes and scrapers use it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Fixture, PATIENCE};

/// An address at which one process at a time may have its admin port.
#[derive(Debug, Clone, Copy)]
pub struct Admin(SocketAddr);

impl Admin {
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn anywhere() -> Self {
        Self((Ipv4Addr::LOCALHOST, local::free_port().expect("a port is free")).into())
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0
    }

    /// The fixture with its admin port here.
    #[must_use]
    pub fn of(&self, fixture: &Fixture) -> Fixture {
        fixture.with("TOOLYARD_ADMIN_LISTEN", self.0)
    }

    /// Status and body of `GET path`.
    pub async fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "").await
    }

    /// The answer of `GET /metrics` to a scraper that accepts OpenMetrics.
    pub async fn openmetrics(&self) -> String {
        let host = format!("{}\r\nAccept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5", self.0);
        self.ask_for(&host, "GET", "/metrics", "").await.1
    }

    /// Status and body of a request.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.ask_for(&self.0.to_string(), method, path, body).await
    }

    /// As [`Self::ask`], for a host of this name.
    ///
    /// # Panics
    /// When nobody answers.
    pub async fn ask_for(&self, host: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let asked = async {
            let mut stream = TcpStream::connect(self.0).await.expect("the admin port listens");
            let length = body.len();
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).await.expect("it takes a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("it answers with text");
            answer
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await.expect("it answers in time");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// Repeats the request until the answer is as wanted.
    ///
    /// # Panics
    /// When it never is.
    pub async fn until(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) {
        let mut last = (0, String::new());
        let turned = async {
            while !wanted(last.0, &last.1) {
                tokio::time::sleep(Duration::from_millis(50)).await;
                last = self.get(path).await;
            }
        };
        let turned = tokio::time::timeout(PATIENCE, turned).await;
        assert!(turned.is_ok(), "{path} answers {last:?}");
    }
}
