//! Links to objects: for a limited time, the bearer can read that object with the rights of the caller who issued the
//! link.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use run::{CallerName, ObjectId, TenantId, Timestamp};
use serde::{Deserialize, Serialize};

/// Prefix of link tokens. It separates them from our other tokens, although one key signs all.
const PREFIX: &str = "tyl_";

/// The claims of a link: its bearer may read this object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) object: ObjectId,
    pub(crate) tenant: Option<TenantId>,
    /// The caller who issued it.
    pub(crate) issued_by: CallerName,
    pub(crate) until: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Written {
    object: String,
    tenant: Option<String>,
    by: String,
    until_ms: u64,
}

pub(super) fn sign(link: &Link, key: &hmac::Key) -> String {
    let written = Written {
        object: link.object.to_string(),
        tenant: link.tenant.as_ref().map(ToString::to_string),
        by: link.issued_by.to_string(),
        until_ms: link.until.0,
    };
    let written = serde_json::to_vec(&written).expect("texts and a number are JSON");
    let body = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(written));
    let tag = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(key, body.as_bytes()));
    format!("{body}.{tag}")
}

/// `None` for a token that is invalid or expired.
pub(super) fn verify(token: &str, key: &hmac::Key, now: Timestamp) -> Option<Link> {
    let (body, tag) = token.split_once('.')?;
    let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
    // In constant time, and before anything of the body is parsed.
    hmac::verify(key, body.as_bytes(), &tag).ok()?;
    let written = BASE64_URL_SAFE_NO_PAD.decode(body.strip_prefix(PREFIX)?).ok()?;
    let Written { object, tenant, by, until_ms } = serde_json::from_slice(&written).ok()?;
    let link = Link {
        object: object.parse().ok()?,
        tenant: tenant.map(|tenant| tenant.parse()).transpose().ok()?,
        issued_by: by.parse().ok()?,
        until: Timestamp(until_ms),
    };
    (now < link.until).then_some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link {
            object: "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.3.main.00000000000000ff".parse().unwrap(),
            tenant: Some("acme".parse().unwrap()),
            issued_by: "shop/ada".parse().unwrap(),
            until: Timestamp(1000),
        }
    }

    #[test]
    fn a_link_says_what_was_signed_until_its_time_and_no_byte_of_it_can_be_changed() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
        let token = sign(&link(), &key);
        assert_eq!(verify(&token, &key, Timestamp(999)), Some(link()));
        assert_eq!(verify(&token, &key, Timestamp(1000)), None);
        assert_eq!(verify(&token, &hmac::Key::new(hmac::HMAC_SHA256, &[8; 32]), Timestamp(0)), None);
        for index in 0..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(verify(&String::from_utf8(forged).unwrap(), &key, Timestamp(0)), None, "byte {index}");
        }
    }
}
