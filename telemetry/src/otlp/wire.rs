//! What is exported, in OTLP's own messages.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1 as metric;
use opentelemetry_proto::tonic::resource::v1 as resource;
use opentelemetry_proto::tonic::trace::v1 as trace;

use crate::metrics::{self, BOUNDS_US, Metric, Read, Series};
use crate::trace::{Kind, Span, Value};

/// Who exports.
#[derive(Debug, Clone)]
pub(super) struct Resource(resource::Resource);

impl Resource {
    pub(super) fn new(attributes: &[(String, String)]) -> Self {
        let attributes = attributes.iter().map(|(key, value)| text(key, value)).collect();
        Self(resource::Resource { attributes, ..resource::Resource::default() })
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn scope() -> Option<InstrumentationScope> {
    Some(InstrumentationScope { name: "toolyard".to_owned(), ..InstrumentationScope::default() })
}

fn nanoseconds(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn spans(resource: &Resource, spans: impl Iterator<Item = Span>) -> ExportTraceServiceRequest {
    let scoped = trace::ScopeSpans { scope: scope(), spans: spans.map(span).collect(), ..trace::ScopeSpans::default() };
    let of_resource = trace::ResourceSpans {
        resource: Some(resource.0.clone()),
        scope_spans: vec![scoped],
        ..trace::ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![of_resource] }
}

fn span(span: Span) -> trace::Span {
    let kind = match span.kind {
        Kind::Internal => trace::span::SpanKind::Internal,
        Kind::Server => trace::span::SpanKind::Server,
        Kind::Producer => trace::span::SpanKind::Producer,
        Kind::Consumer => trace::span::SpanKind::Consumer,
    };
    let value = |value: Value| match value {
        Value::Text(text) => any_value::Value::StringValue(text),
        Value::Number(number) => any_value::Value::IntValue(number),
    };
    let (trace_id, span_id) = span.context.ids();
    let error = trace::Status { code: trace::status::StatusCode::Error.into(), message: String::new() };
    trace::Span {
        trace_id: trace_id.to_be_bytes().to_vec(),
        span_id: span_id.to_be_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        // Sampled.
        flags: 1,
        name: span.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(span.start),
        end_time_unix_nano: nanoseconds(span.end),
        attributes: span.attributes.into_iter().map(|(key, said)| attribute(key, value(said))).collect(),
        status: span.failed.then_some(error),
        ..trace::Span::default()
    }
}

/// What is counted, as it stands now; of counters and histograms what came since `began`. Both count from 1970.
pub(super) fn metrics(resource: &Resource, began: Duration, now: Duration) -> ExportMetricsServiceRequest {
    let times = (nanoseconds(began), nanoseconds(now.max(began)));
    let metrics = metrics::published().into_iter().map(|family| metric(family, times)).collect();
    let scoped = metric::ScopeMetrics { scope: scope(), metrics, ..metric::ScopeMetrics::default() };
    let of_resource = metric::ResourceMetrics {
        resource: Some(resource.0.clone()),
        scope_metrics: vec![scoped],
        ..metric::ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }
}

fn metric(family: Metric, times: (u64, u64)) -> metric::Metric {
    let cumulative = metric::AggregationTemporality::Cumulative.into();
    let data = match family {
        Metric::Counter(family) => {
            let value = |count: u64| metric::number_data_point::Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX));
            let points = family.read().into_iter().map(|series| {
                let said = value(series.metric.value());
                number(series, said, times)
            });
            let data_points = points.collect();
            metric::metric::Data::Sum(metric::Sum {
                data_points,
                aggregation_temporality: cumulative,
                is_monotonic: true,
            })
        }
        Metric::Gauge(family) => {
            let points = family.read().into_iter().map(|series| {
                let said = metric::number_data_point::Value::AsDouble(series.metric.value());
                number(series, said, times)
            });
            metric::metric::Data::Gauge(metric::Gauge { data_points: points.collect() })
        }
        Metric::Histogram(family) => {
            let data_points = family.read().into_iter().map(|series| histogram(series, times)).collect();
            metric::metric::Data::Histogram(metric::Histogram { data_points, aggregation_temporality: cumulative })
        }
    };
    // As the scrape calls it, so that a dashboard fits both.
    let unit = if family.name().ends_with("_seconds") { "s" } else { "" };
    metric::Metric {
        name: family.name().to_owned(),
        description: family.help().to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..metric::Metric::default()
    }
}

fn attributes(labels: &[(&'static str, Box<str>)]) -> Vec<KeyValue> {
    labels.iter().map(|(label, value)| text(label, value)).collect()
}

fn number<M>(
    series: Series<M>,
    value: metric::number_data_point::Value,
    (began, now): (u64, u64),
) -> metric::NumberDataPoint {
    metric::NumberDataPoint {
        attributes: attributes(&series.labels),
        start_time_unix_nano: began,
        time_unix_nano: now,
        value: Some(value),
        ..metric::NumberDataPoint::default()
    }
}

fn histogram(series: Series<metrics::Histogram>, (began, now): (u64, u64)) -> metric::HistogramDataPoint {
    let Read { counts, sum_s } = series.metric.read();
    metric::HistogramDataPoint {
        attributes: attributes(&series.labels),
        start_time_unix_nano: began,
        time_unix_nano: now,
        count: counts.iter().sum(),
        sum: Some(sum_s),
        bucket_counts: counts.to_vec(),
        explicit_bounds: BOUNDS_US.iter().map(|bound| Duration::from_micros(*bound).as_secs_f64()).collect(),
        ..metric::HistogramDataPoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Counter, Family, Histogram};

    const TIMES: (u64, u64) = (1, 2);

    #[test]
    fn a_counter_is_a_cumulative_sum_with_its_labels() {
        static CALLS: Family<Counter> = Family::new("calls_total", "Calls.", &["pool"]);
        CALLS.with(&["main"]).add(3);
        let exported = metric(Metric::Counter(&CALLS), TIMES);
        let Some(metric::metric::Data::Sum(sum)) = exported.data else { panic!("no sum: {exported:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality() == metric::AggregationTemporality::Cumulative);
        let [point] = sum.data_points.as_slice() else { panic!("one series has one point: {sum:?}") };
        assert_eq!(point.attributes, [text("pool", "main")]);
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), TIMES);
        assert_eq!(point.value, Some(metric::number_data_point::Value::AsInt(3)));
    }

    #[test]
    fn a_histogram_has_a_bucket_behind_its_last_bound() {
        static WAIT: Family<Histogram> = Family::new("wait_seconds", "Waiting.", &[]);
        WAIT.with(&[]).record(Duration::from_secs(3600));
        WAIT.with(&[]).record(Duration::from_micros(100));
        let exported = metric(Metric::Histogram(&WAIT), TIMES);
        assert_eq!(exported.unit, "s");
        let Some(metric::metric::Data::Histogram(histogram)) = exported.data else { panic!("none: {exported:?}") };
        let [point] = histogram.data_points.as_slice() else { panic!("one series has one point: {histogram:?}") };
        assert_eq!((point.count, point.sum), (2, Some(3600.0001)));
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert_eq!((point.bucket_counts.first(), point.bucket_counts.last()), (Some(&1), Some(&1)));
        assert_eq!(point.explicit_bounds.last(), Some(&1800.0));
    }
}
