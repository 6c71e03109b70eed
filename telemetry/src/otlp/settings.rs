//! Where telemetry goes and how much of it: the standard variables of OpenTelemetry, as far as they are here.

use std::time::Duration;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};

use super::wire::Resource;
use crate::trace::Sampler;

/// How long the collector may take: the standard's own.
const TIMEOUT_MS: u64 = 10_000;
/// How often what is counted is exported: the standard's own.
const INTERVAL_MS: u64 = 60_000;

/// Where telemetry goes, and how much of it.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) endpoint: String,
    pub(super) headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    pub(super) timeout: Duration,
    pub(super) resource: Resource,
    pub(super) sampler: Sampler,
    pub(super) interval: Duration,
}

/// A variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {text:?}: {advice}")]
pub struct SettingsError {
    pub variable: &'static str,
    pub text: String,
    pub advice: &'static str,
}

impl Settings {
    /// Reads `OTEL_EXPORTER_OTLP_HEADERS`, `_PROTOCOL` (grpc alone) and `_TIMEOUT` (ms), `OTEL_SERVICE_NAME`,
    /// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` with its `_ARG`, `OTEL_METRIC_EXPORT_INTERVAL` (ms) and
    /// `OTEL_SDK_DISABLED`. `None` where nothing is to be exported.
    ///
    /// # Errors
    /// With the first variable that cannot be used.
    pub fn read(
        endpoint: Option<&str>,
        service: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let read = |name: &str| variable(name).filter(|text| !text.is_empty());
        let Some(endpoint) = endpoint.filter(|text| !text.is_empty()) else { return Ok(None) };
        if read("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        if !endpoint.starts_with("http://") {
            return Err(SettingsError {
                variable: "OTEL_EXPORTER_OTLP_ENDPOINT",
                text: endpoint.to_owned(),
                advice: "write it as in http://127.0.0.1:4317; for TLS put a collector beside the process",
            });
        }
        if let Some(text) = read("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|text| text != "grpc") {
            let advice = "only grpc is spoken here; leave it out, or give the collector's port for it, mostly 4317";
            return Err(SettingsError { variable: "OTEL_EXPORTER_OTLP_PROTOCOL", text, advice });
        }
        let milliseconds = |name: &'static str, default: u64| match read(name) {
            None => Ok(Duration::from_millis(default)),
            Some(text) => match text.parse() {
                Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
                Ok(_) | Err(_) => {
                    Err(SettingsError { variable: name, text, advice: "write milliseconds, more than zero" })
                }
            },
        };
        let mut attributes = vec![
            ("service.name".to_owned(), service.to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id".to_owned(), format!("{:032x}", rand::random::<u128>())),
        ];
        for (key, value) in pairs("OTEL_RESOURCE_ATTRIBUTES", read("OTEL_RESOURCE_ATTRIBUTES"))? {
            attributes.retain(|(known, _)| *known != key);
            attributes.push((key, value));
        }
        if let Some(name) = read("OTEL_SERVICE_NAME") {
            attributes.retain(|(known, _)| known != "service.name");
            attributes.push(("service.name".to_owned(), name));
        }
        Ok(Some(Self {
            endpoint: endpoint.to_owned(),
            headers: headers(read("OTEL_EXPORTER_OTLP_HEADERS"))?,
            timeout: milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT_MS)?,
            resource: Resource::new(&attributes),
            sampler: sampler(read("OTEL_TRACES_SAMPLER"), read("OTEL_TRACES_SAMPLER_ARG"))?,
            interval: milliseconds("OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_MS)?,
        }))
    }
}

/// As in `key=value,key=value`.
fn pairs(variable: &'static str, text: Option<String>) -> Result<Vec<(String, String)>, SettingsError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
    let found: Option<Vec<_>> = text.split(',').map(pair).collect();
    found.ok_or(SettingsError { variable, text, advice: "write it as in key=value,key=value" })
}

fn headers(text: Option<String>) -> Result<Vec<(AsciiMetadataKey, AsciiMetadataValue)>, SettingsError> {
    let variable = "OTEL_EXPORTER_OTLP_HEADERS";
    // It may hold a key: what is wrong with it is not said in its own words.
    let invalid =
        || SettingsError { variable, text: "…".to_owned(), advice: "write headers as in key=value,key=value" };
    let pairs = pairs(variable, text).map_err(|_| invalid())?;
    let header = |(key, value): (String, String)| Some((key.to_lowercase().parse().ok()?, value.parse().ok()?));
    pairs.into_iter().map(|pair| header(pair).ok_or_else(invalid)).collect()
}

fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler, SettingsError> {
    let ratio = match argument {
        None => 1.0,
        Some(text) => match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            Ok(_) | Err(_) => {
                let advice = "write the part of requests that is traced, from 0 to 1";
                return Err(SettingsError { variable: "OTEL_TRACES_SAMPLER_ARG", text, advice });
            }
        },
    };
    let (follows_caller, ratio) = match name.as_deref() {
        None | Some("parentbased_traceidratio") => (true, ratio),
        Some("parentbased_always_on") => (true, 1.0),
        Some("parentbased_always_off") => (true, 0.0),
        Some("traceidratio") => (false, ratio),
        Some("always_on") => (false, 1.0),
        Some("always_off") => (false, 0.0),
        Some(text) => {
            let advice = "write one of [parentbased_]always_on, [parentbased_]always_off, [parentbased_]traceidratio";
            return Err(SettingsError { variable: "OTEL_TRACES_SAMPLER", text: text.to_owned(), advice });
        }
    };
    Ok(Sampler { follows_caller, ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTOR: Option<&str> = Some("http://127.0.0.1:4317");

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        Settings::read(COLLECTOR, "toolyard", find)
    }

    #[test]
    fn nothing_is_exported_unless_somebody_says_where() {
        assert!(Settings::read(None, "toolyard", |_| None).is_ok_and(|settings| settings.is_none()));
        assert!(read(&[("OTEL_SDK_DISABLED", "true")]).is_ok_and(|settings| settings.is_none()));
    }

    #[test]
    fn the_standard_variables_count() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer abc, x-team=agents"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.01"),
        ]);
        let settings = settings.expect("they are well formed").expect("there is a collector");
        let headers: Vec<(&str, &[u8])> =
            settings.headers.iter().map(|(key, value)| (key.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("authorization", &b"Bearer abc"[..]), ("x-team", b"agents")]);
        assert_eq!((settings.timeout, settings.interval), (Duration::from_millis(250), Duration::from_secs(60)));
        assert_eq!(settings.sampler, Sampler { follows_caller: true, ratio: 0.01 });
    }

    #[test]
    fn what_cannot_be_used_is_told_by_its_variable_and_a_secret_never() {
        for (variable, text) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "a minute"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hush"),
        ] {
            let error = read(&[(variable, text)]).expect_err(variable);
            assert_eq!(error.variable, variable);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
        let error = Settings::read(Some("https://collector"), "toolyard", |_| None).expect_err("TLS is not spoken");
        assert!(error.to_string().contains("http://127.0.0.1:4317"), "{error}");
    }
}
