//! Tokens of an issuer: signed with one of its public keys, for our audience, and not expired. Symmetric algorithms are
//! rejected, so that a public key can never be used as a secret.

use std::collections::BTreeSet;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, new_error};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use ring::signature::{self as ring_signature, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Map, Value};

/// Allowed difference between the issuer's clock and ours.
pub(super) const LEEWAY_S: u64 = 30;
/// Keys of an issuer: it has a few, old and new.
const KEYS_MAX: usize = 64;

/// Which tokens are accepted.
#[derive(Debug)]
pub(super) struct Rules {
    /// A token must name one of these.
    pub(super) audience: Vec<String>,
    pub(super) issuer: Option<String>,
}

/// The public keys of an issuer.
#[derive(Debug)]
pub(super) struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The algorithms that it may sign with.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Why a token is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("it is not a token")]
    Malformed,
    #[error("its algorithm is not supported: sign with RS, PS, ES (256, 384) or EdDSA")]
    Algorithm,
    #[error("its issuer has no such key")]
    KeyUnknown,
    #[error("its signature is wrong")]
    Signature,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    TooEarly,
    #[error("it is for another audience")]
    Audience,
    #[error("it is from another issuer")]
    Issuer,
    #[error("its claim {0} is missing or malformed")]
    Claim(String),
}

impl Keys {
    /// Parses a set of keys (JWKS, RFC 7517). Keys that cannot be used here are skipped.
    ///
    /// # Errors
    /// If it is not a key set, or has no usable key.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let set: Value = serde_json::from_slice(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("it has no list `keys`")?;
        let usable = keys.iter().take(KEYS_MAX).filter_map(|key| Key::of(&serde_json::from_value(key.clone()).ok()?));
        let usable: Vec<Key> = usable.collect();
        if usable.is_empty() {
            return Err("none of its keys can be used: public keys for RS, PS, ES or EdDSA are needed".to_owned());
        }
        Ok(Self(usable))
    }

    /// The keys that may have signed a token with this header.
    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&Key> {
        let mut fit = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        match id {
            Some(id) => fit.find(|key| key.id.as_deref() == Some(id)),
            // Without a key id, exactly one key must fit.
            None => fit.next().filter(|_| fit.next().is_none()),
        }
    }
}

impl Key {
    fn of(jwk: &Jwk) -> Option<Self> {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
            AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
                EllipticCurve::P256 => vec![ES256],
                EllipticCurve::P384 => vec![ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => vec![EdDSA],
            _ => return None,
        };
        if let Some(named) = jwk.common.key_algorithm {
            algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == named);
        }
        let key = DecodingKey::from_jwk(jwk).ok().filter(|_| !algorithms.is_empty())?;
        Some(Self { id: jwk.common.key_id.clone(), algorithms, key })
    }
}

/// The claims of a valid token.
pub(super) fn verify(token: &str, keys: &Keys, rules: &Rules) -> Result<Map<String, Value>, TokenError> {
    // An error means that it was installed before: it is the same provider.
    PROVIDER.install_default().ok();
    let header = decode_header(token).map_err(|error| match error.kind() {
        // "none" and unknown algorithms.
        ErrorKind::Json(_) => TokenError::Algorithm,
        _ => TokenError::Malformed,
    })?;
    if verifier(header.alg).is_none() {
        return Err(TokenError::Algorithm);
    }
    if header.crit.is_some() {
        // The token has critical headers, and none are supported.
        return Err(TokenError::Malformed);
    }
    let key = keys.find(header.kid.as_deref(), header.alg).ok_or(TokenError::KeyUnknown)?;
    let mut validation = Validation::new(header.alg);
    validation.leeway = LEEWAY_S;
    validation.validate_nbf = true;
    validation.set_audience(&rules.audience);
    let mut required = BTreeSet::from(["exp", "aud"]);
    if let Some(issuer) = &rules.issuer {
        validation.set_issuer(&[issuer]);
        required.insert("iss");
    }
    validation.set_required_spec_claims(&required.into_iter().collect::<Vec<_>>());
    let decoded = decode::<Map<String, Value>>(token, &key.key, &validation);
    decoded.map(|data| data.claims).map_err(|error| match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::TooEarly,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
            TokenError::Claim(claim.clone())
        }
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => TokenError::Algorithm,
        _ => TokenError::Malformed,
    })
}

/// The cryptography of *ring*, which the program has for TLS anyway. The library's own choices are a second one in C,
/// or one whose RSA is not constant in time.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| {
        Ok(Box::new(Verifier { algorithm: *algorithm, key: key.clone() }) as Box<dyn JwtVerifier>)
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct Verifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

enum Kind {
    Rsa(&'static ring_signature::RsaParameters),
    Raw(&'static dyn ring_signature::VerificationAlgorithm),
}

/// How a signature is verified; `None` for algorithms that are not supported.
fn verifier(algorithm: Algorithm) -> Option<Kind> {
    Some(match algorithm {
        Algorithm::RS256 => Kind::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Kind::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Kind::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Kind::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Kind::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Kind::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Kind::Raw(&ring_signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Kind::Raw(&ring_signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Kind::Raw(&ring_signature::ED25519),
        _ => return None,
    })
}

impl signature::Verifier<Vec<u8>> for Verifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let checked = match (verifier(self.algorithm), self.key.kind()) {
            (Some(Kind::Rsa(parameters)), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Some(Kind::Raw(algorithm)), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            (Some(Kind::Rsa(_) | Kind::Raw(_)) | None, _) => Err(ring::error::Unspecified),
        };
        checked.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Verifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A key made for this test, and two tokens signed with it that are valid until 2100.
    const MODULUS: &str = "6gil1W_uNy5fjdu_KBi6IAt1eZSJeKRsb-\
        xmJAbZjEb2_RiDf_NYMkI0ZCdWwujRCNNvw1kexmNhQzZvmpe35AGpkPs9q0_68ZGOknHH0qxFNNgw-GhI9RpLZ0KFdUO6YWDvJt\
        jZBm1O9QEk7sLpzFEHuw16-\
        tO931pe2nBkdOn1XzDi6xA2o_da8OWkexf5ufvL5Wb7IUJlA5XZcBpnTX4MaIJHDtUUHaa2ehm4E0LFZMy0RLXkkqqhrGJ_f8gsS\
        W-d75dD1ZBkN1mUH-OKOBAnO7_WjKe1TJqlXxLFqqIhVrQaGkqGdqTE7Za3lNZ6yc37T0cWURKaKfllJL3__Q";
    const RS256: &str = "eyJhbGciOiAiUlMyNTYiLCAia2lkIjogInJzYSJ9.eyJhdWQiOiAidG9vbHlhcmQiLCAiZXhwIjogNDEwMjQ0NDgwMCwg\
        InN1YiI6ICJhZGEifQ.V2Wkf3y-iCIbQ0SMIZ4RfIe9rq-PjXoj5jabLvMwMI6GkpwAEtcOAN4DGbbyhRuPblhTD1764wrm0K___CBLuXXU\
        JJwUJWNTIFNA6py2KfRJfRHtzFQTCKEgHKSOEavduJtRWhqU8krgu7yX-KRPNjpqAS1vjeXfKMVM2dpINf1bMUGsdTPMu0JwNPgf\
        LjBIY7Dd8dR3gsJftPNYJrOl8Xhu96fX61nD1gW2uHQcfbScmGCU2Pln70sEzkX37H9G9JGDNjqmsHbUoY4j82TardfsgU0XG637\
        Z7CdqeZ2O5IKM2hbzDt8QsAg3TCa1VRWmAQUTo3_PxPtGjt9TxT2WQ";
    const PS256: &str = "eyJhbGciOiAiUFMyNTYiLCAia2lkIjogInJzYSJ9.eyJhdWQiOiAidG9vbHlhcmQiLCAiZXhwIjogNDEwMjQ0NDgwMCwg\
        InN1YiI6ICJhZGEifQ.M4iAzH52RjMNyX7bRvBMCJKnZcwgDWpRaZ6FlzR5XmKnzvXAH2XkcgHiD7TOY5iVxCMLhi3YZQaQSu9wgNqzVWl7\
        BaX5jvINYuC0VNVTtFN6CmqD8yf4hVZBvAg0pbjAwK-4aBqD4pG4I3c-\
        4OvXZOLYms0kw8M4hXX28oCpJ2ZDnNAQHXe7Z98qVyksItJNDX6n_TwJPZQ7eV8UedIZF-\
        b2aBojmt7Rs8rZSqslMwPH9HUoLIfm04rwcvcMcEe-QafvauMGVHbKpbOx_8Gj7Bjp-q5oGbFCp-\
        nkHIEYziTz87stHaATB7JvJX6q7lDyNwEbj8972ub2gWAjml1aEw";

    fn keys(of: &str) -> Keys {
        let key = serde_json::json!({ "kty": "RSA", "kid": "rsa", "n": MODULUS, "e": "AQAB" });
        let mut key = key.as_object().expect("an object").clone();
        if !of.is_empty() {
            key.insert("alg".to_owned(), of.into());
        }
        Keys::parse(serde_json::json!({ "keys": [key] }).to_string().as_bytes()).expect("a usable key")
    }

    fn rules(audience: &str) -> Rules {
        Rules { audience: vec![audience.to_owned()], issuer: None }
    }

    #[test]
    fn rsa_signatures_of_both_kinds_are_checked() {
        for token in [RS256, PS256] {
            let claims = verify(token, &keys(""), &rules("toolyard")).expect("it is sound");
            assert_eq!(claims.get("sub").and_then(Value::as_str), Some("ada"));
            assert_eq!(verify(token, &keys(""), &rules("other")), Err(TokenError::Audience));
            let (head, signature) = token.rsplit_once('.').expect("three parts");
            let first = if signature.starts_with('A') { "B" } else { "A" };
            let forged = format!("{head}.{first}{}", &signature[1..]);
            assert_eq!(verify(&forged, &keys(""), &rules("toolyard")), Err(TokenError::Signature));
        }
    }

    #[test]
    fn a_key_is_used_for_what_its_issuer_says_alone() {
        assert!(verify(RS256, &keys("RS256"), &rules("toolyard")).is_ok());
        assert_eq!(verify(PS256, &keys("RS256"), &rules("toolyard")), Err(TokenError::KeyUnknown));
    }

    #[test]
    fn a_set_without_a_usable_key_is_refused() {
        let secret = r#"{ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "kid": "rsa" }] }"#;
        let sealing = format!(r#"{{ "keys": [{{ "kty": "RSA", "n": "{MODULUS}", "e": "AQAB", "use": "enc" }}] }}"#);
        for text in ["", "[]", r#"{ "keys": [] }"#, secret, &sealing] {
            assert!(Keys::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
