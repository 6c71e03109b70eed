//! The measured values, by path; as one JSON object or as lines.

use std::io::Write as _;

use serde_json::{Map, Value, json};

use crate::measure::rounded;

pub(crate) struct Results(Value);

impl Results {
    pub(crate) fn of_this_machine() -> Self {
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map(|(_, name)| name.to_owned());
        let at_ms = ::nats::time::now().0;
        Self(json!({ "machine": { "processors": processors, "model": model, "at_unix_ms": at_ms } }))
    }

    /// Puts a value at a path as `floor.p50_ms`.
    pub(crate) fn set(&mut self, path: &str, value: impl Into<Value>) {
        let mut at = &mut self.0;
        for name in path.split('.') {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[name];
        }
        *at = value.into();
    }

    pub(crate) fn number(&self, path: &str) -> Option<f64> {
        path.split('.').try_fold(&self.0, |at, name| at.get(name))?.as_f64()
    }

    /// Computes the ratio of two measured values.
    pub(crate) fn compare(&mut self) {
        let pairs = [
            ("ratios.execute_calls", "execute.calls_per_s", "floor.calls_per_s"),
            ("ratios.submit_calls", "submit.calls_per_s", "floor.calls_per_s"),
            ("ratios.p50", "execute.p50_ms", "floor.p50_ms"),
            ("ratios.p99", "execute.p99_ms", "floor.p99_ms"),
            ("ratios.first_chunk", "execute.first_chunk_p50_ms", "floor.p50_ms"),
        ];
        for (path, ours, theirs) in pairs {
            if let (Some(ours), Some(theirs)) = (self.number(ours), self.number(theirs)) {
                self.set(path, rounded(ours / theirs));
            }
        }
        let peers: Vec<String> = self.0["peers"].as_object().into_iter().flat_map(Map::keys).cloned().collect();
        for peer in peers {
            let theirs = self.number(&format!("peers.{peer}.calls_per_s"));
            if let (Some(ours), Some(theirs)) = (self.number("execute.calls_per_s"), theirs) {
                self.set(&format!("peers.{peer}.toolyard_is_times_as_fast"), rounded(ours / theirs));
            }
        }
    }

    pub(crate) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if as_json {
            writeln!(out, "{}", self.0)?;
            return Ok(());
        }
        let mut lines = Vec::new();
        flatten("", &self.0, &mut lines);
        let width = lines.iter().map(|(path, _)| path.len()).max().unwrap_or_default();
        for (path, value) in lines {
            writeln!(out, "{path:<width$}  {value}")?;
        }
        Ok(())
    }
}

fn flatten(path: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| flatten(&below(name), value, lines)),
        Value::Array(rows) => {
            rows.iter().enumerate().for_each(|(row, value)| flatten(&below(&row.to_string()), value, lines));
        }
        Value::String(text) => lines.push((path.to_owned(), text.clone())),
        Value::Null | Value::Bool(_) | Value::Number(_) => lines.push((path.to_owned(), value.to_string())),
    }
}
