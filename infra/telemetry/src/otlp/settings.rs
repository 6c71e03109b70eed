//! Settings of the export: the standard variables of OpenTelemetry. Variables that the SDK reads itself are only
//! checked here, because it would ignore invalid values.

use std::path::PathBuf;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TraceId;
use opentelemetry_otlp::Protocol;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, Sampler};
use opentelemetry_semantic_conventions::attribute::{SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION};

use super::transport::TlsFiles;

/// How long the collector may take: the standard's own.
const TIMEOUT_MS: u64 = 10_000;
/// Spans, and log records, that may wait to be exported: the standard's own.
const QUEUE_MAX: u64 = 2048;

/// Numbers that the SDK reads itself.
const CHECKED: [&str; 5] = [
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BLRP_SCHEDULE_DELAY",
    "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE",
];

/// The signals. Each may have its own endpoint, protocol, timeout and TLS settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
    /// Off by default: usually logs are collected from standard error.
    Logs,
}

impl Signal {
    fn word(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }

    /// The path of its endpoint over HTTP.
    fn path(self) -> &'static str {
        match self {
            Self::Traces => "v1/traces",
            Self::Metrics => "v1/metrics",
            Self::Logs => "v1/logs",
        }
    }
}

/// The settings of the export.
#[derive(Debug, Clone)]
pub struct Settings {
    traces: Way,
    metrics: Way,
    logs: Way,
    pub(super) sampler: Sampler,
    pub(super) queue_max: usize,
    /// Log records that may wait to be exported.
    pub(super) records_max: usize,
    /// Of our own choice, and those of the variables.
    attributes: Vec<(String, String)>,
}

/// How a signal is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Way {
    /// `None`: it is not exported.
    endpoint: Option<String>,
    protocol: Protocol,
    timeout: Duration,
    tls: TlsFiles,
}

/// A variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {text:?}: {advice}")]
pub struct SettingsError {
    pub variable: String,
    pub text: String,
    pub advice: &'static str,
}

fn unusable(variable: impl Into<String>, text: impl Into<String>, advice: &'static str) -> SettingsError {
    SettingsError { variable: variable.into(), text: text.into(), advice }
}

impl Settings {
    /// Reads the variables `OTEL_…` of the exporter, the resource, the sampler and the batches. `endpoint` stands for
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`. `None` if nothing is to be exported.
    ///
    /// # Errors
    /// With the first variable that cannot be used.
    pub fn read(
        endpoint: Option<&str>,
        service: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let read = |name: &str| variable(name).filter(|text| !text.is_empty());
        if read("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let endpoint = endpoint.filter(|text| !text.is_empty());
        let (traces, metrics) = (way(Signal::Traces, endpoint, &read)?, way(Signal::Metrics, endpoint, &read)?);
        let logs = way(Signal::Logs, endpoint, &read)?;
        if [&traces, &metrics, &logs].iter().all(|way| way.endpoint.is_none()) {
            return Ok(None);
        }
        for name in CHECKED {
            whole(name, read(name), 1)?;
        }
        let queue = |name: &str| {
            let max = whole(name, read(name), QUEUE_MAX)?;
            Ok(usize::try_from(max).unwrap_or(usize::MAX))
        };
        Ok(Some(Self {
            traces,
            metrics,
            logs,
            sampler: sampler(read("OTEL_TRACES_SAMPLER"), read("OTEL_TRACES_SAMPLER_ARG"))?,
            queue_max: queue("OTEL_BSP_MAX_QUEUE_SIZE")?,
            records_max: queue("OTEL_BLRP_MAX_QUEUE_SIZE")?,
            attributes: resource(service, &read)?,
        }))
    }

    fn way(&self, signal: Signal) -> &Way {
        match signal {
            Signal::Traces => &self.traces,
            Signal::Metrics => &self.metrics,
            Signal::Logs => &self.logs,
        }
    }

    /// The target of a signal; `None` if it is not exported.
    pub(super) fn endpoint(&self, signal: Signal) -> Option<&str> {
        self.way(signal).endpoint.as_deref()
    }

    pub(super) fn protocol(&self, signal: Signal) -> Protocol {
        self.way(signal).protocol
    }

    pub(super) fn timeout(&self, signal: Signal) -> Duration {
        self.way(signal).timeout
    }

    pub(super) fn tls(&self, signal: Signal) -> &TlsFiles {
        &self.way(signal).tls
    }

    /// The resource of the exporting process.
    pub(super) fn resource(&self) -> Resource {
        let attributes = self.attributes.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        Resource::builder_empty().with_attributes(attributes).build()
    }
}

/// How a signal is exported. A variable of the signal's own counts before that of all signals.
fn way(signal: Signal, endpoint: Option<&str>, read: &impl Fn(&str) -> Option<String>) -> Result<Way, SettingsError> {
    let of = |what: &str| {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.word());
        let all = format!("OTEL_EXPORTER_OTLP_{what}");
        read(&own).map(|text| (own, Some(text))).unwrap_or_else(|| (all.clone(), read(&all)))
    };
    let protocol = protocol(of("PROTOCOL"))?;
    let (variable, text) = of("TIMEOUT");
    let timeout = Duration::from_millis(whole(&variable, text, TIMEOUT_MS)?);
    let (variable, headers) = of("HEADERS");
    if headers.is_some_and(|text| pairs("", &text).is_err()) {
        // They may hold a key, so the text is not repeated.
        return Err(unusable(variable, "…", "write headers as in key=value,key=value"));
    }
    let file = |what: &str| of(what).1.map(PathBuf::from);
    let own = match (file("CLIENT_CERTIFICATE"), file("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(file), None) | (None, Some(file)) => {
            let advice = "name both the client's certificate and its key";
            return Err(unusable("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", file.display().to_string(), advice));
        }
    };
    let tls = TlsFiles { ca: file("CERTIFICATE"), own };
    Ok(Way { endpoint: place(signal, endpoint, protocol, read)?, protocol, timeout, tls })
}

/// The target of a signal. Over HTTP the common endpoint is a base, and each signal has a path below it.
fn place(
    signal: Signal,
    endpoint: Option<&str>,
    protocol: Protocol,
    read: &impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, SettingsError> {
    let switch = format!("OTEL_{}_EXPORTER", signal.word());
    match read(&switch).as_deref() {
        None if signal == Signal::Logs => return Ok(None),
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(text) => return Err(unusable(switch, text, "write otlp or none")),
    }
    let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.word());
    let (variable, found) = match read(&own) {
        Some(text) => (own, Some(text)),
        None => ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), endpoint.map(|base| below(base, signal, protocol))),
    };
    match found {
        Some(text) if !text.starts_with("http://") && !text.starts_with("https://") => {
            Err(unusable(variable, text, "write it as in http://127.0.0.1:4317 or https://collector.example:4317"))
        }
        found => Ok(found),
    }
}

fn below(base: &str, signal: Signal, protocol: Protocol) -> String {
    match protocol {
        Protocol::Grpc => base.to_owned(),
        _ => format!("{}/{}", base.trim_end_matches('/'), signal.path()),
    }
}

fn protocol((variable, text): (String, Option<String>)) -> Result<Protocol, SettingsError> {
    match text.as_deref() {
        None | Some("grpc") => Ok(Protocol::Grpc),
        Some("http/protobuf") => Ok(Protocol::HttpBinary),
        Some(text) => Err(unusable(variable, text, "write grpc or http/protobuf")),
    }
}

fn whole(variable: &str, text: Option<String>, default: u64) -> Result<u64, SettingsError> {
    let Some(text) = text else { return Ok(default) };
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        Ok(_) | Err(_) => Err(unusable(variable, text, "write a whole number above zero; times are in milliseconds")),
    }
}

fn resource(service: &str, read: &impl Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>, SettingsError> {
    let instance: TraceId = RandomIdGenerator::default().new_trace_id();
    let mut attributes = vec![
        (SERVICE_NAME.to_owned(), service.to_owned()),
        (SERVICE_VERSION.to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        (SERVICE_INSTANCE_ID.to_owned(), instance.to_string()),
    ];
    let given = read("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    // Of one key the last value counts.
    attributes.extend(pairs("OTEL_RESOURCE_ATTRIBUTES", &given)?);
    attributes.extend(read("OTEL_SERVICE_NAME").map(|name| (SERVICE_NAME.to_owned(), name)));
    Ok(attributes)
}

/// As in `key=value,key=value`.
fn pairs(variable: &str, text: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
    let found: Option<Vec<_>> = text.split_terminator(',').map(pair).collect();
    found.ok_or_else(|| unusable(variable, text, "write it as in key=value,key=value"))
}

fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler, SettingsError> {
    let ratio = match argument {
        None => 1.0,
        Some(text) => match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            Ok(_) | Err(_) => {
                let advice = "write the part of requests that is traced, from 0 to 1";
                return Err(unusable("OTEL_TRACES_SAMPLER_ARG", text, advice));
            }
        },
    };
    let by_parent = |sampler: Sampler| Sampler::ParentBased(Box::new(sampler));
    Ok(match name.as_deref() {
        None | Some("parentbased_traceidratio") => by_parent(Sampler::TraceIdRatioBased(ratio)),
        Some("parentbased_always_on") => by_parent(Sampler::AlwaysOn),
        Some("parentbased_always_off") => by_parent(Sampler::AlwaysOff),
        Some("traceidratio") => Sampler::TraceIdRatioBased(ratio),
        Some("always_on") => Sampler::AlwaysOn,
        Some("always_off") => Sampler::AlwaysOff,
        Some(text) => {
            let advice = "write one of [parentbased_]always_on, [parentbased_]always_off, [parentbased_]traceidratio";
            return Err(unusable("OTEL_TRACES_SAMPLER", text, advice));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTOR: Option<&str> = Some("http://127.0.0.1:4317");

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        read_of(COLLECTOR, variables)
    }

    fn read_of(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        Settings::read(endpoint, "toolyard", find)
    }

    fn usable(variables: &[(&str, &str)]) -> Settings {
        read(variables).expect("they are well formed").expect("there is a collector")
    }

    #[test]
    fn nothing_is_exported_unless_somebody_says_where() {
        assert!(read_of(None, &[]).is_ok_and(|settings| settings.is_none()));
        assert!(read(&[("OTEL_SDK_DISABLED", "true")]).is_ok_and(|settings| settings.is_none()));
        let none = [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")];
        assert!(read(&none).is_ok_and(|settings| settings.is_none()));
        let traces = usable(&none[1..]);
        assert_eq!((traces.endpoint(Signal::Traces), traces.endpoint(Signal::Metrics)), (COLLECTOR, None));
        assert_eq!(traces.endpoint(Signal::Logs), None, "nobody asked for logs");
        assert_eq!(usable(&[("OTEL_LOGS_EXPORTER", "otlp")]).endpoint(Signal::Logs), COLLECTOR);
    }

    #[test]
    fn a_signal_has_a_path_below_the_endpoint_of_all_or_an_endpoint_of_its_own() {
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://metrics.example/in");
        let settings = usable(&[http, own]);
        assert_eq!(settings.endpoint(Signal::Traces), Some("http://127.0.0.1:4317/v1/traces"));
        assert_eq!(settings.endpoint(Signal::Metrics), Some("https://metrics.example/in"));
        let alone = read_of(None, &[own]).expect("it is well formed").expect("it says where");
        assert_eq!((alone.endpoint(Signal::Traces), alone.endpoint(Signal::Metrics)), (None, Some(own.1)));
    }

    #[test]
    fn the_standard_variables_count() {
        let settings = usable(&[
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/tls/ca.crt"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team=agents,service.name=a"),
            ("OTEL_SERVICE_NAME", "b"),
        ]);
        assert_eq!(settings.timeout(Signal::Metrics), Duration::from_millis(250));
        assert_eq!(settings.protocol(Signal::Traces), Protocol::HttpBinary);
        assert_eq!(settings.protocol(Signal::Metrics), Protocol::Grpc);
        assert_eq!(settings.tls(Signal::Traces).ca, Some(PathBuf::from("/tls/ca.crt")));
        assert_eq!(settings.queue_max, 10);
        let resource = settings.resource();
        let of = |key: &'static str| resource.get(&key.into()).map(|value| value.to_string());
        assert_eq!((of("team"), of("service.name")), (Some("agents".to_owned()), Some("b".to_owned())));
    }

    #[test]
    fn what_cannot_be_used_is_told_by_its_variable_and_a_secret_never() {
        for (variable, text) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/tls/client.crt"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "a minute"),
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hush"),
        ] {
            let error = read(&[(variable, text)]).expect_err(variable);
            assert_eq!(error.variable, variable);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
