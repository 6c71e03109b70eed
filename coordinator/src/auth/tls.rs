//! The door's certificate: read from files, checked, and read again when they change, so that nobody need restart anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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

/// How often files are looked at. A certificate is replaced days before it ends.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// What is spoken behind TLS: gRPC needs the first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where the door's certificate lies, all in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those that lead to its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authorities of clients' certificates. With it nobody is let in without one.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{} is no usable {what}: {reason}", file.display())]
    Unusable { file: PathBuf, what: &'static str, reason: String },
}

/// What of the files counts, as it was read last.
pub(crate) type Current = watch::Receiver<Arc<ServerConfig>>;

/// Reads the files again when they change.
#[derive(Debug)]
pub(crate) struct Keeper {
    files: TlsFiles,
    seen: [u8; 32],
    current: watch::Sender<Arc<ServerConfig>>,
}

impl TlsFiles {
    /// Reads and checks them.
    ///
    /// # Errors
    /// When a file cannot be read, or is not what it should be.
    pub(crate) fn load(self) -> Result<(Current, Keeper), TlsError> {
        let contents = self.read()?;
        let (current, receiver) = watch::channel(self.config(&contents)?);
        Ok((receiver, Keeper { seen: digest(&contents), files: self, current }))
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
            .map_err(|_| unusable(&self.key, "key", &"it holds no private key in PEM"))?;
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

impl Keeper {
    /// Looks at the files until told to stop. What cannot be used is told, and what was read before goes on counting.
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
                    tracing::info!(file = %self.files.certificate.display(), "the door's certificate was read again");
                }
                Ok(false) => {}
                Err(error) => {
                    // Files are replaced one after another: said once, and looked at again.
                    let text = error.to_string();
                    if failed.as_ref() != Some(&text) {
                        tracing::error!(%error, "the door's new certificate cannot be used; the old one goes on");
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
    if found.is_empty() { Err("it holds no certificate in PEM".to_owned()) } else { Ok(found) }
}

fn digest(contents: &Contents) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [&contents.certificate, &contents.key].into_iter().chain(&contents.client_ca) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
