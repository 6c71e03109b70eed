//! A service that answers with JSON. It is called with a key, which no other server gets and no log shows.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Url, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Bytes of an answer: a forecast of 14 days has some 300 KB.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Endpoint {
    client: Client,
    url: Url,
}

impl Endpoint {
    /// The endpoint at `base` with this path. Each request has the header.
    pub(crate) fn new(base: &str, path: &str, header: (HeaderName, String), timeout: Duration) -> anyhow::Result<Self> {
        let (name, key) = header;
        let mut key =
            HeaderValue::from_str(&key).with_context(|| format!("the key is no value of the header {name}"))?;
        key.set_sensitive(true);
        // Another server would get the key.
        let client = Client::builder().timeout(timeout).redirect(redirect::Policy::none());
        let client = client.default_headers(HeaderMap::from_iter([(name, key)])).build()?;
        let url = Url::parse(&format!("{}{path}", base.trim_end_matches('/')));
        Ok(Self { client, url: url.with_context(|| format!("base-url is {base:?}"))? })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let mut url = self.url.clone();
        url.query_pairs_mut().extend_pairs(query);
        Self::answer(self.client.get(url)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, body: &Value) -> anyhow::Result<T> {
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        Self::answer(request.body(body.to_string())).await
    }

    async fn answer<T: DeserializeOwned>(request: RequestBuilder) -> anyhow::Result<T> {
        let mut answer = request.send().await?.error_for_status()?;
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await? {
            ensure!(body.len() + part.len() <= ANSWER_BYTES_MAX, "the answer has more than {ANSWER_BYTES_MAX} bytes");
            body.extend_from_slice(&part);
        }
        serde_json::from_slice(&body).context("the answer is not the expected JSON")
    }
}
