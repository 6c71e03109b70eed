//! Which addresses a request may go to. A name is resolved at each connection, and its addresses are checked then, so a
//! name that begins to point elsewhere reaches nothing more.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tower::Service;

/// The addresses that may be connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All addresses.
    Everything,
    /// Addresses of the public network alone: no loopback, private, link-local, shared or reserved ones.
    Public,
}

impl Reach {
    /// Checks the host of an address, if it is a number. Names are checked when they are resolved.
    pub(crate) fn check_host(self, host: &str) -> Result<(), String> {
        let number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match number {
            Ok(ip) if !self.holds(ip) => Err(format!("{ip} is not an address of the public network")),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn holds(self, ip: IpAddr) -> bool {
        match self {
            Self::Everything => true,
            Self::Public => match ip {
                IpAddr::V4(ip) => is_public_4(ip),
                IpAddr::V6(ip) => is_public_6(ip),
            },
        }
    }
}

fn is_public_4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_special = a == 0 || (a == 192 && b == 0 && c == 0) || (a == 198 && (18..20).contains(&b)) || a >= 240;
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || is_shared
        || is_special)
}

fn is_public_6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_public_4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // Addresses of version 4 in other clothes: mapped, translated (NAT64), tunnelled (6to4).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            embedded(high, low)
        }
        // The public network of version 6 has its first three bits 001; documentation is not of it.
        [first, second, ..] => first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0xdb8),
    }
}

/// Resolves names to those of their addresses that are within reach.
#[derive(Debug, Clone)]
pub(crate) struct Resolver(Reach);

impl Resolver {
    pub(crate) fn new(reach: Reach) -> Self {
        Self(reach)
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let within: Vec<SocketAddr> = found.filter(|address| reach.holds(address.ip())).collect();
            if within.is_empty() {
                let reason = format!("{} has no address of the public network", name.as_str());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            Ok(within.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_network_are_within_reach() {
        for public in ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "[2606:4700::1111]", "example.com"] {
            assert_eq!(Reach::Public.check_host(public), Ok(()), "{public}");
        }
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fd00::1]",
            "[::ffff:10.0.0.1]",
            "[64:ff9b::a00:1]",
            "[2002:7f00:1::1]",
            "[ff02::1]",
        ] {
            assert!(Reach::Public.check_host(private).is_err(), "{private}");
            assert_eq!(Reach::Everything.check_host(private), Ok(()));
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_not_resolved() {
        let name: Name = "localhost".parse().expect("a name");
        let error = Resolver::new(Reach::Public).call(name.clone()).await.expect_err("it is this machine");
        assert!(error.to_string().contains("no address of the public network"), "{error}");
        assert!(Resolver::new(Reach::Everything).call(name).await.is_ok());
    }
}
