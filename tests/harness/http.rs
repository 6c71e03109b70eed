//! A client of the HTTP API that returns the answer byte by byte. A connection for each request.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::PATIENCE;

#[derive(Debug, Clone, Copy)]
pub struct Http {
    address: SocketAddr,
}

/// An answer that was read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// An answer that is read bit by bit.
#[derive(Debug)]
pub struct Answering {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    /// The received part of the answer.
    pub bytes: Vec<u8>,
    /// Drives the connection, and closes it when dropped.
    _connection: JoinSet<()>,
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub id: Option<u64>,
    pub name: Option<String>,
    pub data: String,
}

impl Sent {
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).expect("the data of an event is JSON")
    }
}

/// The events of a stream, without comments and incomplete events.
#[must_use]
pub fn events(bytes: &[u8]) -> Vec<Sent> {
    let text = std::str::from_utf8(bytes).expect("a stream of events is text");
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let blocks = whole.split("\n\n").map(|block| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let id = field("id").map(|id| id.parse().expect("an id is a number"));
        Sent { id, name: field("event").map(str::to_owned), data: field("data").unwrap_or_default().to_owned() }
    });
    blocks.filter(|event| !event.data.is_empty()).collect()
}

impl Answer {
    #[must_use]
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{} is no JSON: {error}: {text}", self.status))
    }

    /// The status and the reason of a problem.
    #[must_use]
    pub fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        (self.status, self.json()["reason"].as_str().expect("a problem has a reason").to_owned())
    }
}

impl Http {
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let mut answering = self.begin(method, path, headers, body).await;
        tokio::time::timeout(PATIENCE, answering.to_end())
            .await
            .expect("the answer ends in time")
            .expect("it is whole");
        let Answering { status, headers, bytes, .. } = answering;
        Answer { status, headers, body: bytes.into() }
    }

    /// Sends the request, and returns the answer when its headers have arrived.
    pub async fn begin(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answering {
        let stream = TcpStream::connect(self.address).await.expect("the coordinator listens");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
        let mut driving = JoinSet::new();
        driving.spawn(async move { drop(connection.await) });
        let request = headers.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        let request = request.method(method).uri(path).header("host", self.address.to_string());
        let request = request.body(Full::new(body.into())).expect("a request");
        let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("it answers in time");
        let (parts, body) = answer.expect("it answers").into_parts();
        let (status, headers) = (parts.status.as_u16(), parts.headers);
        Answering { status, headers, body, bytes: Vec::new(), _connection: driving }
    }

    /// The events of a run, from after one of them.
    pub async fn events(&self, run: &str, after: Option<u64>) -> Answering {
        let id = after.map(|after| after.to_string());
        let headers: Vec<(&str, &str)> = id.iter().map(|id| ("last-event-id", id.as_str())).collect();
        let answering = self.begin(Method::GET, &format!("/v1/runs/{run}/events"), &headers, "").await;
        assert_eq!(
            (answering.status, &answering.headers["content-type"]),
            (200, &"text/event-stream".parse().expect("ASCII"))
        );
        answering
    }
}

impl Answering {
    /// Reads the next part; `false` at the end.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<bool, hyper::Error> {
        let Some(frame) = self.body.frame().await.transpose()? else { return Ok(false) };
        if let Some(data) = frame.data_ref() {
            self.bytes.extend_from_slice(data);
        }
        Ok(true)
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn to_end(&mut self) -> Result<(), hyper::Error> {
        while self.next().await? {}
        Ok(())
    }

    /// Reads until the answer is as wanted.
    pub async fn until(&mut self, wanted: impl Fn(&[u8]) -> bool) {
        let read = async {
            while !wanted(&self.bytes) {
                let goes_on = self.next().await.expect("the stream does not break");
                assert!(goes_on, "the stream ended: {}", String::from_utf8_lossy(&self.bytes));
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("it comes in time");
    }

    #[must_use]
    pub fn sent(&self) -> Vec<Sent> {
        events(&self.bytes)
    }
}
