//! The coordinator's door as a client command finds it: where it is, whom to trust there, and as whom to come.

use std::path::{Path, PathBuf};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use crate::exit::Failure;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Door {
    /// The coordinator that client commands talk to: http://HOST:PORT, or https://
    #[arg(long, env = "TOOLYARD_URL", default_value = "http://127.0.0.1:7420", global = true)]
    pub(crate) url: String,
    /// The file of the authorities (PEM) by which the coordinator's certificate is signed [default: the system's]
    #[arg(long, env = "TOOLYARD_CA", value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// The file of our own certificate (PEM), where the coordinator asks for one
    #[arg(long, env = "TOOLYARD_CLIENT_CERT", value_name = "FILE", requires = "client_key", global = true)]
    client_cert: Option<PathBuf>,
    /// The file of its private key (PEM)
    #[arg(long, env = "TOOLYARD_CLIENT_KEY", value_name = "FILE", requires = "client_cert", global = true)]
    client_key: Option<PathBuf>,
    /// The file of our key or token, where the coordinator asks who we are
    #[arg(long, env = "TOOLYARD_KEY_FILE", value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
}

/// What says who we are, put on every request.
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

impl Door {
    /// A door of this machine, open to all.
    pub(crate) fn at(url: String) -> Self {
        Self { url, ca: None, client_cert: None, client_key: None, key_file: None }
    }

    /// What the key's file holds.
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        let Some(file) = &self.key_file else { return Ok(Key(None)) };
        let text = String::from_utf8_lossy(&read(file)?).trim().to_owned();
        let value = MetadataValue::try_from(format!("Bearer {text}")).ok().filter(|_| !text.is_empty());
        let mut value = value.ok_or_else(|| Failure::Usage(format!("{} holds no key", file.display())))?;
        // It is not written into logs.
        value.set_sensitive(true);
        Ok(Key(Some(value)))
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Failure> {
        let url = &self.url;
        let malformed = || {
            Failure::Usage(format!("--url {url:?} is no address of a coordinator: give http://HOST:PORT, or https://"))
        };
        let is_secret = url.starts_with("https://");
        if !is_secret && !url.starts_with("http://") {
            return Err(malformed());
        }
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|_| malformed())?;
        if !is_secret {
            return match self.ca.as_ref().or(self.client_cert.as_ref()) {
                Some(_) => {
                    Err(Failure::Usage(format!("--ca and --client-cert are for https://, and --url is {url:?}")))
                }
                None => Ok(endpoint),
            };
        }
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
            None => tls.with_native_roots(),
        };
        if let (Some(certificate), Some(key)) = (&self.client_cert, &self.client_key) {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        endpoint.tls_config(tls).map_err(|error| Failure::Usage(format!("the files for TLS cannot be used: {error:?}")))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
}
