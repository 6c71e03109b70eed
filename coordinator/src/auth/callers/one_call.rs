//! Tokens for one answer: a browser gets one, and can answer that call with it and do nothing else.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use run::{CallId, CallerName, RunId, TenantId, Timestamp};
use serde::{Deserialize, Serialize};

/// Prefix of answer tokens.
pub(super) const PREFIX: &str = "tya_";

/// The claims of a token: its bearer may answer this call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OneCall {
    pub(crate) run: RunId,
    pub(crate) call: CallId,
    pub(crate) tenant: Option<TenantId>,
    /// The caller who issued it.
    pub(crate) issued_by: CallerName,
    pub(crate) until: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Written {
    run: String,
    call: String,
    tenant: Option<String>,
    by: String,
    until_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("it is not an answer token of this service")]
    Malformed,
    #[error("it has expired")]
    Expired,
}

pub(super) fn sign(one: &OneCall, key: &hmac::Key) -> String {
    let written = Written {
        run: one.run.to_string(),
        call: one.call.to_string(),
        tenant: one.tenant.as_ref().map(ToString::to_string),
        by: one.issued_by.to_string(),
        until_ms: one.until.0,
    };
    let written = serde_json::to_vec(&written).expect("texts and a number are JSON");
    let body = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(written));
    let tag = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(key, body.as_bytes()));
    format!("{body}.{tag}")
}

pub(super) fn verify(token: &str, key: &hmac::Key, now: Timestamp) -> Result<OneCall, TokenError> {
    let (body, tag) = token.split_once('.').ok_or(TokenError::Malformed)?;
    let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).map_err(|_| TokenError::Malformed)?;
    // In constant time, and before anything of the body is parsed.
    hmac::verify(key, body.as_bytes(), &tag).map_err(|_| TokenError::Malformed)?;
    let one = read(body).ok_or(TokenError::Malformed)?;
    if one.until <= now { Err(TokenError::Expired) } else { Ok(one) }
}

fn read(body: &str) -> Option<OneCall> {
    let written = BASE64_URL_SAFE_NO_PAD.decode(body.strip_prefix(PREFIX)?).ok()?;
    let Written { run, call, tenant, by, until_ms } = serde_json::from_slice(&written).ok()?;
    Some(OneCall {
        run: run.parse().ok()?,
        call: call.parse().ok()?,
        tenant: tenant.map(|tenant| tenant.parse()).transpose().ok()?,
        issued_by: by.parse().ok()?,
        until: Timestamp(until_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> OneCall {
        OneCall {
            run: "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().unwrap(),
            call: "ask".parse().unwrap(),
            tenant: Some("acme".parse().unwrap()),
            issued_by: "shop/ada".parse().unwrap(),
            until: Timestamp(1000),
        }
    }

    #[test]
    fn a_token_says_what_was_signed_until_its_time() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
        let token = sign(&one(), &key);
        assert_eq!(verify(&token, &key, Timestamp(999)), Ok(one()));
        assert_eq!(verify(&token, &key, Timestamp(1000)), Err(TokenError::Expired));
        let other = hmac::Key::new(hmac::HMAC_SHA256, &[8; 32]);
        assert_eq!(verify(&token, &other, Timestamp(0)), Err(TokenError::Malformed));
    }

    #[test]
    fn no_byte_of_a_token_can_be_changed() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
        let token = sign(&one(), &key);
        for index in 0..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            let verified = verify(&forged, &key, Timestamp(0));
            // The last digit of base64 has unused bits; the decoder rejects them if they are set.
            assert_eq!(verified, Err(TokenError::Malformed), "byte {index}");
        }
    }
}
