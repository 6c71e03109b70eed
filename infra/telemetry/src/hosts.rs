//! Which host names a port serves over HTTP. A web page can have its own name resolve to any address, and a browser
//! then takes the port for a part of that page; the name in the request gives it away.

use std::net::IpAddr;
use std::sync::Arc;

/// Addresses, `localhost`, and configured names. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    names: Arc<[String]>,
    any: bool,
}

/// Stands for every name.
const ANY: &str = "*";

impl Hosts {
    /// These names beside addresses and `localhost`; `*` is every name.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Arc<[String]> = names.into_iter().map(str::to_ascii_lowercase).collect();
        Self { any: names.iter().any(|name| name == ANY), names }
    }

    /// Every name.
    #[must_use]
    pub fn any() -> Self {
        Self::new([ANY])
    }

    /// Whether a request with this `Host` is served.
    #[must_use]
    pub fn serve(&self, host: &str) -> bool {
        if self.any {
            return true;
        }
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or_default(),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok()
            || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_listed_names_are_served() {
        let hosts = Hosts::new(["Toolyard.internal"]);
        for host in [
            "127.0.0.1:7420",
            "10.1.2.3",
            "[::1]:7420",
            "localhost:7420",
            "toolyard.INTERNAL:7420",
            "toolyard.internal.",
        ] {
            assert!(hosts.serve(host), "{host}");
        }
        for host in ["evil.example:7420", "", "toolyard.internal.evil.example", "127.0.0.1.evil.example"] {
            assert!(!hosts.serve(host), "{host}");
        }
        assert!(Hosts::any().serve("evil.example"));
    }
}
