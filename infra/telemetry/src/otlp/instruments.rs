//! Our families as instruments of the OpenTelemetry SDK, under OpenTelemetry's names. The SDK reads counters and gauges
//! when it exports. It has no way to read a histogram, so a histogram's values are recorded in both.

use std::borrow::Cow;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use opentelemetry_semantic_conventions::attribute::{
    ERROR_TYPE, RPC_METHOD, RPC_RESPONSE_STATUS_CODE, RPC_SYSTEM_NAME, SERVICE_VERSION,
};

use crate::metrics::{BOUNDS_US, Counter, Family, Gauge, Metric, Series};

/// Lets the SDK export a family.
pub(crate) fn register(meter: &Meter, metric: Metric) {
    match metric {
        Metric::Counter(family) => counter(meter, family),
        Metric::Gauge(family) => gauge(meter, family),
        Metric::Histogram(family) => {
            let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1_000_000.0).collect();
            let (name, unit) = family.exported();
            let histogram = meter.f64_histogram(name).with_unit(unit).with_description(family.help());
            family.export(histogram.with_boundaries(bounds).build());
        }
    }
}

fn counter(meter: &Meter, family: &'static Family<Counter>) {
    let (name, unit) = family.exported();
    let counter = meter.u64_observable_counter(name).with_unit(unit).with_description(family.help());
    counter
        .with_callback(|observer| {
            for Series { labels, metric } in family.read() {
                observer.observe(metric.value(), &attributes(labels));
            }
        })
        .build();
}

fn gauge(meter: &Meter, family: &'static Family<Gauge>) {
    let (name, unit) = family.exported();
    let gauge = meter.f64_observable_gauge(name).with_unit(unit).with_description(family.help());
    gauge
        .with_callback(|observer| {
            for Series { labels, metric } in family.read() {
                observer.observe(metric.value(), &attributes(labels));
            }
        })
        .build();
}

/// Labels as OpenTelemetry's attributes: those that it knows by its names, all others in our namespace.
pub(crate) fn attributes(labels: impl IntoIterator<Item = (&'static str, Box<str>)>) -> Vec<KeyValue> {
    let attribute = |(label, value): (&'static str, Box<str>)| KeyValue::new(key(label), String::from(value));
    labels.into_iter().map(attribute).collect()
}

fn key(label: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(match label {
        "code" => RPC_RESPONSE_STATUS_CODE,
        "method" => RPC_METHOD,
        "protocol" => RPC_SYSTEM_NAME,
        "reason" => ERROR_TYPE,
        // The constants for generative AI left the crate with their conventions.
        "tool" => "gen_ai.tool.name",
        "version" => SERVICE_VERSION,
        other => return Cow::Owned(format!("toolyard.{other}")),
    })
}
