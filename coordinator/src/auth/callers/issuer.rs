//! The public keys of the tokens' issuer. They are fetched over https, regularly and when a token names a key that we
//! do not have.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

use super::jwt::Keys;

/// Maximum age of the keys. Issuers announce new ones hours before they use them.
const FRESH: Duration = Duration::from_secs(300);
/// Minimum pause between fetches, whatever tokens name and however fetches failed.
const AGAIN: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a set of keys.
const KEYS_BYTES_MAX: usize = 256 * 1024;
const HTTPS: u16 = 443;

/// Fetches the keys.
#[derive(Debug)]
pub(super) struct Issuer {
    uri: Uri,
    host: String,
    tls: Arc<ClientConfig>,
}

impl Issuer {
    /// # Errors
    /// If the address is not an https URL, or the authorities cannot be used.
    pub(super) fn new(url: &str, ca: Option<&Path>) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| format!("{url:?} is not a URL with https://"))?.to_owned();
        let mut roots = RootCertStore::empty();
        match ca {
            Some(file) => {
                let unusable = |reason: &dyn ToString| format!("{}: {}", file.display(), reason.to_string());
                let authorities = CertificateDer::pem_file_iter(file).map_err(|error| unusable(&error))?;
                for authority in authorities {
                    roots.add(authority.map_err(|error| unusable(&error))?).map_err(|error| unusable(&error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        Ok(Self { uri, host, tls: Arc::new(builder.with_root_certificates(roots).with_no_client_auth()) })
    }

    async fn fetch(&self) -> Result<Keys, String> {
        let text = timeout(PATIENCE, self.ask()).await.map_err(|_| format!("no answer within {PATIENCE:?}"))??;
        Keys::parse(&text)
    }

    async fn ask(&self) -> Result<Bytes, String> {
        let failed = |error: &dyn std::error::Error| error.to_string();
        let at = (self.host.trim_matches(['[', ']']), self.uri.port_u16().unwrap_or(HTTPS));
        let socket = TcpStream::connect(at).await.map_err(|error| failed(&error))?;
        let name = ServerName::try_from(at.0.to_owned()).map_err(|error| failed(&error))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(name, socket).await.map_err(|error| failed(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // The connection's task ends with this set, at the latest.
        let mut driving = JoinSet::new();
        driving.spawn(connection);
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.uri.authority().map_or(self.host.as_str(), |authority| authority.as_str());
        let request = Request::get(path).header(header::HOST, authority).header(header::ACCEPT, "application/json");
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        if !response.status().is_success() {
            return Err(format!("the issuer answered {}", response.status()));
        }
        let body = Limited::new(response.into_body(), KEYS_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    }
}

/// Fetches keys until `stop`, from the issuer that the file names at the time.
pub(super) async fn keep(
    mut issuer: watch::Receiver<Option<Arc<Issuer>>>,
    keys: Arc<watch::Sender<Option<Arc<Keys>>>>,
    wanted: Arc<Notify>,
    stop: CancellationToken,
) {
    loop {
        let current = issuer.borrow_and_update().clone();
        let due = match current {
            None => None,
            Some(current) => Some(match current.fetch().await {
                Ok(fetched) => {
                    keys.send_replace(Some(Arc::new(fetched)));
                    Instant::now() + FRESH
                }
                Err(reason) => {
                    tracing::error!(issuer = %current.uri, reason, "fetching the issuer's keys failed; the loaded \
                        keys stay valid");
                    Instant::now() + AGAIN
                }
            }),
        };
        let next = async {
            match due {
                None => std::future::pending().await,
                Some(due) => {
                    sleep(AGAIN).await;
                    tokio::select! {
                        () = sleep_until(due) => {}
                        () = wanted.notified() => {}
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = next => {}
            Ok(()) = issuer.changed() => {}
        }
    }
}
