//! The web console under `/console`: a page whose files are embedded. They hold no data and need no authentication; the
//! page reads everything through the HTTP API, with the key of its user.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

use super::routes::text_response;
use crate::ConsoleOptions;
use crate::api::Api;

/// The files by their paths, as `coordinator/build.rs` found them. A path that ends in `.gz` is another one,
/// compressed.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/console.rs"));

const ROOT: &str = "/console";
const INDEX: &str = "index.html";
/// Files in this folder have their content's hash in their names.
const HASHED: &str = "assets/";
const COMPRESSED: &str = ".gz";

/// What the page may load and do: its own files, requests to its own host, and pictures that it made itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    bytes: &'static [u8],
    compressed: Option<&'static [u8]>,
    hash: String,
}

static BY_PATH: LazyLock<HashMap<&str, File>> = LazyLock::new(|| {
    let plain = FILES.iter().filter(|(path, _)| !path.ends_with(COMPRESSED));
    let files = plain.map(|(path, bytes)| {
        let compressed = FILES.iter().find(|(other, _)| other.strip_suffix(COMPRESSED) == Some(path));
        let hash = Sha256::digest(bytes).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        (*path, File { bytes, compressed: compressed.map(|(_, bytes)| *bytes), hash })
    });
    files.collect()
});

pub(super) fn routes(options: &ConsoleOptions) -> Router<Api> {
    let settings = serde_json::json!({ "trace_url": options.trace_url }).to_string();
    Router::new()
        .route("/console", get(redirect))
        .route("/console/settings.json", get(|| async move { self::settings(settings) }))
        .route("/console/", get(|headers: HeaderMap| async move { file(INDEX, &headers) }))
        .route(
            "/console/{*path}",
            get(|Path(path): Path<String>, headers: HeaderMap| async move { file(&path, &headers) }),
        )
}

/// Whether a path is that of the console.
pub(super) fn has(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// To the address with a slash, on which the relative addresses of the page depend. It is relative itself, because a
/// proxy may serve the console under a longer path.
async fn redirect() -> Response {
    let mut response = empty(StatusCode::TEMPORARY_REDIRECT);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("console/"));
    response
}

/// What the page cannot know by itself.
fn settings(json: String) -> Response {
    let mut response = text_response(json);
    add_protection(response.headers_mut());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn file(path: &str, asked: &HeaderMap) -> Response {
    let Some(file) = BY_PATH.get(path) else { return empty(StatusCode::NOT_FOUND) };
    let has = |name: HeaderName, wanted: &str| {
        let mut values = asked.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.any(|value| value.split([',', ';']).any(|part| part.trim() == wanted))
    };
    let compressed = file.compressed.filter(|_| has(header::ACCEPT_ENCODING, "gzip"));
    // Each form has a tag of its own, because the tag names the bytes.
    let tag = format!("\"{}{}\"", file.hash, if compressed.is_some() { "-gz" } else { "" });
    let is_known = has(header::IF_NONE_MATCH, &tag);
    let mut response = if is_known {
        empty(StatusCode::NOT_MODIFIED)
    } else {
        Response::new(Body::from(compressed.unwrap_or(file.bytes)))
    };
    let headers = response.headers_mut();
    add_protection(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(path)));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if compressed.is_some() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let kept = if path.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    add_protection(response.headers_mut());
    response
}

fn add_protection(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(HeaderName, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_has_no_inline_script() {
        let page = str::from_utf8(BY_PATH[INDEX].bytes).expect("text");
        assert!(!page.contains("://"), "{page}");
        assert!(!page.contains("<style"), "{page}");
        for script in page.split("<script").skip(1) {
            assert!(script.contains(" src=\"./"), "{script}");
        }
    }

    #[test]
    fn what_has_its_hash_in_its_name_is_kept_and_the_page_is_checked_again() {
        let page = file(INDEX, &HeaderMap::new());
        assert_eq!(page.headers()[header::CACHE_CONTROL], "no-cache");
        let (script, _) = FILES.iter().find(|(path, _)| path.ends_with(".js")).expect("a script");
        let script = file(script, &headers(&[(header::ACCEPT_ENCODING, "br, gzip;q=0.8")]));
        assert!(script.headers()[header::CACHE_CONTROL].to_str().expect("text").contains("immutable"));
        assert_eq!(script.headers()[header::CONTENT_ENCODING], "gzip");
        for response in [page, script] {
            let tag = response.headers()[header::ETAG].to_str().expect("text").to_owned();
            assert!(tag.starts_with('"') && tag.ends_with('"') && tag.matches('"').count() == 2, "{tag}");
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
        let tag = format!("\"{}\"", BY_PATH[INDEX].hash);
        assert_eq!(file(INDEX, &headers(&[(header::IF_NONE_MATCH, &tag)])).status(), StatusCode::NOT_MODIFIED);
    }

    #[test]
    fn other_paths_are_not_found() {
        for path in ["", "nothing", "../Cargo.toml", "assets/", "index.html.gz"] {
            assert_eq!(file(path, &HeaderMap::new()).status(), StatusCode::NOT_FOUND, "{path}");
        }
        assert!(has("/console") && has("/console/assets/x.js") && !has("/consoles") && !has("/v1/console"));
    }

    #[test]
    fn it_is_small() {
        let compressed: usize =
            FILES.iter().filter(|(path, _)| path.ends_with(COMPRESSED)).map(|(_, it)| it.len()).sum();
        assert!(compressed < 300 * 1024, "{compressed} bytes");
    }
}
