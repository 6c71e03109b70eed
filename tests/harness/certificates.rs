//! Certificates for tests: an authority, and certificates that it signed, in files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// An authority, and the folder in which its files are as long as this lives.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub struct Certified {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// # Panics
    /// When it cannot be made: the test cannot go on. So all that follows.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let authority = Self { issuer, folder: tempfile::tempdir().expect("a folder") };
        std::fs::write(authority.file(), authority.issuer.pem()).expect("written");
        authority
    }

    /// Its own certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// The folder of its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A certificate for a server on this machine, of this name.
    #[must_use]
    pub fn server(&self, name: &str) -> Certified {
        self.sign(name, vec![SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())], None)
    }

    /// The same, for a certificate that expires after this time.
    #[must_use]
    pub fn server_for(&self, name: &str, life: Duration) -> Certified {
        self.sign(name, vec![SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())], Some(life))
    }

    /// A certificate for a client: its name, and an address of its kind of service.
    #[must_use]
    pub fn client(&self, name: &str, uri: Option<&str>) -> Certified {
        let uri = uri.map(|uri| SanType::URI(uri.try_into().expect("an address")));
        self.sign(name, uri.into_iter().collect(), None)
    }

    fn sign(&self, name: &str, names: Vec<SanType>, life: Option<Duration>) -> Certified {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        if let Some(life) = life {
            params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_millis(::nats::now().0) + life;
        }
        params.subject_alt_names = names;
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        let at = |kind: &str| self.folder.path().join(format!("{name}.{kind}"));
        let certified = Certified { certificate: at("crt"), key: at("key") };
        std::fs::write(&certified.certificate, signed.pem()).expect("written");
        std::fs::write(&certified.key, key.serialize_pem()).expect("written");
        certified
    }

    /// The TLS settings of a client that trusts only this authority and has a certificate.
    #[must_use]
    pub fn trusted(&self, by: Option<&Certified>) -> ClientTlsConfig {
        let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.issuer.pem()));
        let read = |file: &PathBuf| std::fs::read(file).expect("it is there");
        match by {
            Some(by) => trusting.identity(Identity::from_pem(read(&by.certificate), read(&by.key))),
            None => trusting,
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
