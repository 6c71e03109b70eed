//! The API's certificate: read from files, checked, and reloaded when they change, so that no restart is needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::metrics;
use crate::tasks::LOOK;

/// Protocols behind TLS: gRPC needs the first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of the API's certificate, all in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, followed by the certificates that lead to its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authorities of clients' certificates. If set, clients without a certificate are rejected.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{} is not a usable {what}: {reason}", file.display())]
    Unusable { file: PathBuf, what: &'static str, reason: String },
}

/// The configuration that was loaded last.
pub(crate) type Current = watch::Receiver<Arc<ServerConfig>>;

/// Reloads the files when they change.
#[derive(Debug)]
pub(crate) struct CertificateReload {
    files: TlsFiles,
    seen: [u8; 32],
    current: watch::Sender<Arc<ServerConfig>>,
}

impl TlsFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// If a file cannot be read, or its content is invalid.
    pub(crate) fn load(self) -> Result<(Current, CertificateReload), TlsError> {
        let contents = self.read()?;
        let (current, receiver) = watch::channel(self.config(&contents)?);
        Ok((receiver, CertificateReload { seen: digest(&contents), files: self, current }))
    }

    fn read(&self) -> Result<Contents, TlsError> {
        let client_ca = self.client_ca.as_deref().map(read).transpose()?;
        Ok(Contents { certificate: read(&self.certificate)?, key: read(&self.key)?, client_ca })
    }

    fn config(&self, contents: &Contents) -> Result<Arc<ServerConfig>, TlsError> {
        let unusable = |file: &Path, what, reason: &dyn ToString| TlsError::Unusable {
            file: file.to_owned(),
            what,
            reason: reason.to_string(),
        };
        let chain = certificates(&contents.certificate)
            .map_err(|reason| unusable(&self.certificate, "certificate", &reason))?;
        let expires = chain.first().and_then(|own| Some(X509Certificate::from_der(own).ok()?.1.validity().not_after));
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| unusable(&self.key, "key", &"it has no private key in PEM"))?;
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&self.certificate, "certificate", &error))?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(file), Some(content)) => {
                let unusable = |reason: &dyn ToString| unusable(file, "authority of clients", reason);
                let mut roots = RootCertStore::empty();
                for authority in certificates(content).map_err(|reason| unusable(&reason))? {
                    roots.add(authority).map_err(|error| unusable(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unusable(&error))?)
            }
            (_, _) => builder.with_no_client_auth(),
        };
        let made = builder.with_single_cert(chain, key);
        let mut config = made.map_err(|error| unusable(&self.key, "key of the certificate", &error))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        if let Some(expires) = expires {
            metrics::certificate_expires(expires.timestamp());
        }
        Ok(Arc::new(config))
    }
}

struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl CertificateReload {
    /// Checks the files until `stop`. If they cannot be used, the error is logged and the old content stays in effect.
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut failed = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            match self.look() {
                Ok(true) => {
                    failed = None;
                    tracing::info!(file = %self.files.certificate.display(), "certificate reloaded");
                }
                Ok(false) => {}
                Err(error) => {
                    // Files are replaced one after another, so a mismatch is logged once and checked again.
                    let text = error.to_string();
                    if failed.as_ref() != Some(&text) {
                        tracing::error!(%error, "reloading the certificate failed; the old one stays in effect");
                        failed = Some(text);
                    }
                }
            }
        }
    }

    fn look(&mut self) -> Result<bool, TlsError> {
        let contents = self.files.read()?;
        let seen = digest(&contents);
        if seen == self.seen {
            return Ok(false);
        }
        let config = self.files.config(&contents)?;
        self.seen = seen;
        self.current.send_replace(config);
        Ok(true)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|source| TlsError::Read { file: file.to_owned(), source })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("it is not PEM: {error}"))?;
    if found.is_empty() { Err("it has no certificate in PEM".to_owned()) } else { Ok(found) }
}

fn digest(contents: &Contents) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [&contents.certificate, &contents.key].into_iter().chain(&contents.client_ca) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
