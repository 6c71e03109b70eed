//! The address of a coordinator, the authority of its certificate, and the client's credentials.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use crate::error::Error;

/// Settings of a connection. Secrets are not shown by `Debug`.
#[derive(Clone)]
pub struct Connection {
    url: String,
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    key: Option<String>,
}

/// The credential that every request carries.
#[derive(Debug, Clone)]
pub(crate) struct Key(Option<MetadataValue<Ascii>>);

impl Interceptor for Key {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("authorization", key.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Connection {
    /// To a coordinator at `http://HOST:PORT` or `https://HOST:PORT`, without credentials.
    #[must_use]
    pub fn to(url: impl Into<String>) -> Self {
        Self { url: url.into(), ca: None, identity: None, key: None }
    }

    /// The authorities (PEM) that sign the coordinator's certificate, instead of the system's.
    #[must_use]
    pub fn trusting(mut self, ca: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(ca.into());
        self
    }

    /// The client's own certificate and its private key (both PEM), if the coordinator requires one.
    #[must_use]
    pub fn with_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The caller's key or token, if the coordinator authenticates callers. Whitespace around it is removed.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn key(&self) -> Result<Key, Error> {
        let Some(key) = self.key.as_deref().map(str::trim) else { return Ok(Key(None)) };
        let value = MetadataValue::try_from(format!("Bearer {key}")).ok().filter(|_| !key.is_empty());
        let unusable = || Error::Settings("the key is empty or has characters that a header cannot carry".to_owned());
        let mut value = value.ok_or_else(unusable)?;
        // It is not written into logs.
        value.set_sensitive(true);
        Ok(Key(Some(value)))
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let url = &self.url;
        let malformed = || {
            Error::Settings(format!("{url:?} is not the address of a coordinator: give http://HOST:PORT, or https://"))
        };
        let is_secret = url.starts_with("https://");
        if !is_secret && !url.starts_with("http://") {
            return Err(malformed());
        }
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|_| malformed())?;
        if !is_secret {
            return match self.ca.is_some() || self.identity.is_some() {
                true => Err(Error::Settings(format!("authorities and certificates are for https://, not for {url:?}"))),
                false => Ok(endpoint),
            };
        }
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint
            .tls_config(tls)
            .map_err(|error| Error::Settings(format!("the files for TLS cannot be used: {error:?}")))
    }
}
