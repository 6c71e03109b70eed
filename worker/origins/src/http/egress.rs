//! Which hosts and addresses HTTP tools may reach. Hosts are checked for every request and redirect, addresses when a
//! connection is made: the connection goes to the very address that was checked, whatever a name resolves to later.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;
use url::Url;

/// The rules of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Egress {
    pub(crate) hosts: Vec<HostRule>,
    /// Private networks that may be reached all the same.
    pub(crate) networks: Vec<Network>,
}

/// A host that may be reached, or all hosts below a domain, at one port or at those of http and https.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostRule {
    host: String,
    port: Option<u16>,
}

/// Addresses with a common beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u8,
}

/// A request that the rules forbid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EgressError {
    #[error("{0:?} is no address of http or https")]
    Scheme(String),
    #[error("an address must not contain a name and password: use a header")]
    Credentials,
    #[error("the host {host}:{port} is not allowed: name it in egress.allow")]
    Host { host: String, port: u16 },
    #[error("the host {host} has no address that may be reached: private ones need egress.addresses")]
    Address { host: String },
    #[error("the host {host} cannot be found: {error}")]
    Unknown { host: String, error: String },
    #[error("the host {host} cannot be connected: {error}")]
    Unreachable { host: String, error: String },
    #[error("the host {host} could not be connected within {within:?}")]
    Slow { host: String, within: Duration },
}

impl Egress {
    /// Checks scheme, host and port. The address is checked when it is connected.
    pub(crate) fn check(&self, url: &Url) -> Result<(), EgressError> {
        let (Some(host), Some(port), "http" | "https") = (url.host_str(), url.port_or_known_default(), url.scheme())
        else {
            return Err(EgressError::Scheme(url.scheme().to_owned()));
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressError::Credentials);
        }
        match self.hosts.iter().any(|rule| rule.allows(host, port)) {
            true => Ok(()),
            false => Err(EgressError::Host { host: host.to_owned(), port }),
        }
    }

    fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.networks.iter().any(|network| network.contains(address))
    }

    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, EgressError> {
        let unknown = |error: std::io::Error| EgressError::Unknown { host: host.to_owned(), error: error.to_string() };
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.map_err(unknown)?.collect();
        let (allowed, refused): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| self.allows(address.ip()));
        if !refused.is_empty() {
            tracing::warn!(host, ?refused, "a host of an HTTP tool has addresses that may not be reached");
        }
        let mut last = EgressError::Address { host: host.to_owned() };
        for address in allowed {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Without it small requests only wait longer.
                    drop(stream.set_nodelay(true));
                    return Ok(stream);
                }
                Err(error) => last = EgressError::Unreachable { host: host.to_owned(), error: error.to_string() },
            }
        }
        Err(last)
    }
}

impl HostRule {
    /// The host and port of an address.
    pub(crate) fn of(url: &Url) -> Option<Self> {
        Some(Self { host: url.host_str()?.to_owned(), port: url.port_or_known_default() })
    }

    fn allows(&self, host: &str, port: u16) -> bool {
        let host_fits = match self.host.strip_prefix('*') {
            Some("") => true,
            Some(domain) => host.len() > domain.len() && host.ends_with(domain),
            None => host == self.host,
        };
        host_fits && self.port.map_or(port == 443 || port == 80, |only| only == port)
    }
}

/// `api.example.com`, `api.example.com:8443`, `*.example.com`, `*`, `[::1]:80`.
impl std::str::FromStr for HostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no host: write api.example.com, api.example.com:8443 or *.example.com");
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().map_err(|_| wrong())?)),
            _ => (text, None),
        };
        let plain = host.strip_prefix("*.").unwrap_or(host);
        if host != "*" && (plain.is_empty() || plain.contains(['*', '/', '@', ' '])) {
            return Err(wrong());
        }
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        let begins_alike = |ours: u128, theirs: u128, width: u32| {
            let rest = width - u32::from(self.bits);
            ours.checked_shr(rest).unwrap_or(0) == theirs.checked_shr(rest).unwrap_or(0)
        };
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                begins_alike(u32::from(ours).into(), u32::from(theirs).into(), Ipv4Addr::BITS)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => begins_alike(ours.into(), theirs.into(), Ipv6Addr::BITS),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// `10.1.2.3` or `10.0.0.0/8`.
impl std::str::FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address or network: write 127.0.0.1, 10.0.0.0/8 or fd00::/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > width { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

/// Whether an address belongs to the public internet. Everything that is special in some way does not.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        // This network, private, shared (carriers), loopback, link-local.
        (0 | 10 | 127, _, _) | (100, 64..=127, _) | (169, 254, _) | (172, 16..=31, _) | (192, 168, _)
        // Protocol assignments, documentation, benchmarks; multicast, reserved, broadcast.
        | (192, 0, 0 | 2) | (192, 88, 99) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) | (224..=255, _, _)
    );
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    // Addresses that lead to one of IPv4: translated (NAT64), or in a tunnel (6to4).
    let inner = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match parts {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(inner(high, low)),
        [0x2002, high, low, ..] => is_public_v4(inner(high, low)),
        // Teredo, benchmarks, ORCHID, documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Of the rest only global unicast.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Connects, for the HTTP client, to addresses that the rules allow and to no others.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    pub(crate) egress: Arc<Egress>,
    pub(crate) timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = EgressError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, EgressError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), EgressError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { egress, timeout } = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
            let connected = tokio::time::timeout(timeout, egress.connect(&host, port)).await;
            let stream = connected.map_err(|_| EgressError::Slow { host, within: timeout })??;
            Ok(TokioIo::new(stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        let public = ["1.1.1.1", "93.184.215.14", "172.15.0.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::101:101"];
        let special = [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fec0::1",
            "fd00::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "::127.0.0.1",
        ];
        let egress = Egress::default();
        let allowed = |text: &&str| egress.allows(text.parse().unwrap());
        assert_eq!(public.iter().filter(|text| !allowed(text)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(special.iter().filter(|text| allowed(text)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn a_network_contains_the_addresses_that_begin_like_it() {
        let contains =
            |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        assert!(contains("10.0.0.0/8", "10.9.8.7") && !contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("0.0.0.0/0", "192.168.1.1") && contains("::/0", "fd00::1"));
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe80::1"));
        let egress = Egress { networks: vec!["127.0.0.1".parse().unwrap()], ..Egress::default() };
        assert!(egress.allows("::ffff:127.0.0.1".parse().unwrap()), "it is the same address");
        for wrong in ["", "10.0.0.0/33", "10.0.0", "a/8", "::1/129"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_are_allowed_by_name_domain_and_port() {
        let hosts = ["api.example.com", "*.example.org", "[::1]:8080", "b.example.com:8443"];
        let egress = Egress { hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(), ..Egress::default() };
        let check = |url: &str| egress.check(&url.parse().unwrap());
        for url in [
            "https://api.example.com/x",
            "http://API.example.com",
            "https://a.b.example.org",
            "http://[::1]:8080/",
            "https://b.example.com:8443",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in [
            "https://example.org",
            "https://evil-example.org",
            "https://api.example.com.evil.net",
            "https://api.example.com:22",
            "https://b.example.com",
        ] {
            assert!(matches!(check(url), Err(EgressError::Host { .. })), "{url}");
        }
        assert!(matches!(check("ftp://api.example.com"), Err(EgressError::Scheme(_))));
        assert_eq!(check("https://a:b@api.example.com"), Err(EgressError::Credentials));
        for wrong in ["", "a b", "*a.example.com", "a.*.com", "a:b", "a/b", "*."] {
            assert!(wrong.parse::<HostRule>().is_err(), "{wrong}");
        }
    }
}
