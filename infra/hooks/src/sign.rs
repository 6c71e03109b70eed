//! Signatures according to Standard Webhooks 1.0: HMAC-SHA256 over id, time and body, one for each secret.

use ::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use run::Timestamp;

const PREFIX: &str = "whsec_";
/// Bytes of a secret, from the specification.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret with which a receiver verifies notifications.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// `whsec_` and the base64 of 24 to 64 bytes.
    ///
    /// # Errors
    /// If it is none. Errors do not contain any part of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let encoded = text.strip_prefix(PREFIX).ok_or_else(|| format!("a secret must begin with {PREFIX}"))?;
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| format!("the part after {PREFIX} is not base64"))?;
        if !SECRET_BYTES.contains(&bytes.len()) {
            let (first, last) = (SECRET_BYTES.start(), SECRET_BYTES.end());
            return Err(format!("the secret has {} bytes, {first} to {last} are needed", bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    fn sign(&self, signed: &[u8]) -> String {
        format!("v1,{}", BASE64_STANDARD.encode(hmac::sign(&self.0, signed)))
    }
}

/// The headers that identify the notification and prove its sender.
#[must_use]
pub fn headers(secrets: &[Secret], id: &str, at: Timestamp, body: &[u8]) -> HeaderMap {
    let at_s = at.0 / 1000;
    let signed = [format!("{id}.{at_s}.").as_bytes(), body].concat();
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(&signed)).collect();
    let header = |text: String| HeaderValue::try_from(text).expect("ids, numbers and base64 are plain ASCII");
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", header(id.to_owned()));
    headers.insert("webhook-timestamp", header(at_s.to_string()));
    headers.insert("webhook-signature", header(signatures.join(" ")));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    #[test]
    fn a_signature_is_the_one_that_the_specifications_own_libraries_make() {
        let secret = Secret::parse(SECRET).expect("a secret");
        let body = br#"{"email":"test@example.com","username":"test_user"}"#;
        let headers = headers(&[secret], "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", Timestamp(1_649_367_553_999), body);
        assert_eq!(headers["webhook-timestamp"], "1649367553");
        assert_eq!(headers["webhook-signature"], "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
    }

    #[test]
    fn each_secret_signs_while_one_replaces_another() {
        let secrets = [SECRET, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"].map(|text| Secret::parse(text).expect("one"));
        let both = headers(&secrets, "msg_1", Timestamp(1000), b"{}");
        let alone = headers(&secrets[..1], "msg_1", Timestamp(1000), b"{}");
        let both: Vec<&str> = both["webhook-signature"].to_str().expect("ASCII").split(' ').collect();
        assert_eq!((both.len(), both[0]), (2, alone["webhook-signature"].to_str().expect("ASCII")));
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_not_repeated() {
        for text in ["C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_!!!", "whsec_c2hvcnQ=", ""] {
            let reason = Secret::parse(text).expect_err(text);
            assert!(text.is_empty() || !reason.contains(text.trim_start_matches(PREFIX)), "{reason}");
        }
    }
}
