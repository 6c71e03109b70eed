//! Seals the state of a request that needs input: the client returns it with the input, to any replica. The keys are
//! in the bucket of request ids, one for each hour, so all replicas have them, and they expire with the runs that the
//! states name.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use run::{RunId, Shard, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Builder;

use super::message::{INVALID_PARAMS, RpcError};
use crate::admission::error::RequestError;
use crate::nats::requests::Requests;
use crate::requests::{Digest, RequestKey, Taken};

const HOUR_MS: u64 = 3_600_000;
/// How long a state is valid. A key is kept for an hour longer.
const VALID_MS: u64 = 24 * HOUR_MS;
/// Keys that a replica remembers: those that may be valid.
const KEYS_MAX: usize = 26;

/// The state of a request that waits for input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) run: String,
    /// The caller of the request; empty if callers are not authenticated.
    pub(super) by: String,
    /// Of the request's name and arguments.
    pub(super) request: String,
    /// The events up to this one were reported.
    pub(super) after: Option<u64>,
    pub(super) until_ms: u64,
}

impl State {
    pub(super) fn new(run: RunId, (by, request): (String, String), after: Option<u64>) -> Self {
        Self { run: run.to_string(), by, request, after, until_ms: ::nats::now().0 + VALID_MS }
    }
}

/// The keys.
#[derive(Debug, Default)]
pub(super) struct Seals(Mutex<BTreeMap<u64, Digest>>);

impl Seals {
    /// The state as a text that nobody else can make.
    pub(super) async fn seal(&self, requests: &Requests, state: &State) -> Result<String, RequestError> {
        let hour = ::nats::now().0 / HOUR_MS;
        let key = match self.key(requests, hour).await? {
            Some(key) => key,
            None => self.make(requests, hour).await?,
        };
        Ok(sealed(state, hour, &key))
    }

    /// The state of a text; an error if it was not sealed here, was changed, or has expired.
    pub(super) async fn open(&self, requests: &Requests, text: &str) -> Result<State, RpcError> {
        let invalid =
            || RpcError::new(INVALID_PARAMS, "requestState is not one of this service, was changed, or has expired");
        let now = ::nats::now();
        let hour = hour_of(text).ok_or_else(invalid)?;
        // An older key would be valid no longer, and the broker need not be queried for it.
        if hour.abs_diff(now.0 / HOUR_MS) > VALID_MS / HOUR_MS {
            return Err(invalid());
        }
        let key = self.key(requests, hour).await?.ok_or_else(invalid)?;
        opened(text, &key, now).ok_or_else(invalid)
    }

    async fn key(&self, requests: &Requests, hour: u64) -> Result<Option<Digest>, RequestError> {
        if let Some(known) = self.known().get(&hour) {
            return Ok(Some(*known));
        }
        let found = requests.newest(&RequestKey::seal(hour)).await?.taken.map(|taken| taken.digest);
        Ok(found.inspect(|key| self.remember(hour, *key)))
    }

    /// Another replica may make the key of the hour at the same time: the first one counts.
    async fn make(&self, requests: &Requests, hour: u64) -> Result<Digest, RequestError> {
        let digest: Digest = rand::random();
        let uuid = Builder::from_unix_timestamp_millis(::nats::now().0, &rand::random()).into_uuid();
        let taken = Taken { run: RunId::new(Shard(0), uuid), digest };
        if requests.put(&RequestKey::seal(hour), &taken, 0).await?.is_some() {
            self.remember(hour, digest);
            return Ok(digest);
        }
        self.key(requests, hour).await?.ok_or(RequestError::Contended)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, hour: u64, key: Digest) {
        let mut known = self.known();
        known.insert(hour, key);
        while known.len() > KEYS_MAX {
            known.pop_first();
        }
    }
}

fn sealed(state: &State, hour: u64, key: &Digest) -> String {
    let written = serde_json::to_vec(state).expect("texts and numbers are JSON");
    let body = format!("{hour}.{}", BASE64_URL_SAFE_NO_PAD.encode(written));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), body.as_bytes());
    format!("{body}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
}

fn hour_of(text: &str) -> Option<u64> {
    text.split_once('.').and_then(|(hour, _)| hour.parse().ok())
}

fn opened(text: &str, key: &Digest, now: Timestamp) -> Option<State> {
    let (body, tag) = text.rsplit_once('.')?;
    let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
    // In constant time, and before anything of the body is parsed.
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), body.as_bytes(), &tag).ok()?;
    let (_, written) = body.split_once('.')?;
    let state: State = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(written).ok()?).ok()?;
    (now.0 < state.until_ms).then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_what_was_sealed_until_its_time_and_no_byte_of_it_can_be_changed() {
        let run = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".to_owned();
        let (by, request) = ("shop/ada".to_owned(), "d".to_owned());
        let state = State { run, by, request, after: Some(7), until_ms: 1000 };
        let text = sealed(&state, 12, &[7; 32]);
        assert_eq!(hour_of(&text), Some(12));
        assert_eq!(opened(&text, &[7; 32], Timestamp(999)), Some(state));
        assert_eq!(opened(&text, &[7; 32], Timestamp(1000)), None, "it has expired");
        assert_eq!(opened(&text, &[8; 32], Timestamp(0)), None, "another key");
        for index in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(opened(&String::from_utf8(forged).unwrap(), &[7; 32], Timestamp(0)), None, "byte {index}");
        }
    }
}
