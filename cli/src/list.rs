//! Common parts of lists: time spans, columns, and a note if the index is incomplete.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use proto::v1;

use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use crate::words::{call_state, counted, duration, error_kind, harmless};

/// Default number of items that a list shows.
pub(crate) const LIMIT: usize = 50;

/// `30s`, `10m`, `2h`, `1d`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no span of time: give a number and s, m, h or d, as 10m");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number = text.strip_suffix(unit).and_then(|number| number.parse::<u32>().ok()).ok_or_else(wrong)?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// `2030-01-01T00:00:00Z`, or with another offset.
pub(crate) fn time(text: &str) -> Result<prost_types::Timestamp, String> {
    text.parse().map_err(|_| format!("{text:?} is no time: write it as 2030-01-01T00:00:00Z"))
}

/// The moment that lies so far ahead, by the clock of this machine.
pub(crate) fn ahead(delay: Duration) -> prost_types::Timestamp {
    proto::convert::api::timestamp(::nats::now().after(delay))
}

/// The moment that lies so long ago.
pub(crate) fn ago(since: Option<Duration>) -> Option<prost_types::Timestamp> {
    let since = u64::try_from(since?.as_millis()).unwrap_or(u64::MAX);
    Some(proto::convert::api::timestamp(run::Timestamp(::nats::now().0.saturating_sub(since))))
}

/// How long ago a moment was, in words.
pub(crate) fn age(at: Option<prost_types::Timestamp>) -> String {
    let Some(at) = at else { return String::new() };
    let millis = i128::from(::nats::now().0) - (i128::from(at.seconds) * 1000 + i128::from(at.nanos) / 1_000_000);
    format!("{} ago", duration(Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// One of the API's names, in lower case and without their prefix.
pub(crate) fn named<T: Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
    find: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words)
        .map(move |word| find(&word.to_uppercase()).expect("the possible values are names of the API"))
}

/// Writes lines with aligned columns.
pub(crate) fn columns<const N: usize>(lines: &[[String; N]], terminal: &Terminal) -> Result<(), Failure> {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    lines.iter().try_for_each(|line| {
        let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        terminal.line(cells.join("  ").trim_end())
    })
}

/// Prints a note if the index is incomplete.
pub(crate) fn tell_coverage(coverage: Option<v1::IndexCoverage>, terminal: &Terminal) {
    let coverage = coverage.unwrap_or_default();
    if !coverage.complete {
        terminal
            .note("the index is incomplete: it is being rebuilt, or other coordinators keep a part of it in memory");
    }
    if let Some(cut) = coverage.cut_before {
        terminal.note(&format!("runs from before {cut} that have ended may not be listed"));
    }
}

/// How a command ends that did something with everything that the index listed: there may be more if it is incomplete.
/// A coordinator of an earlier release may not say what it covered.
pub(crate) fn all_or_failed(coverage: Option<v1::IndexCoverage>, terminal: &Terminal) -> Exit {
    let Some(covered) = coverage else { return Exit::Completed };
    tell_coverage(coverage, terminal);
    if covered.complete { Exit::Completed } else { Exit::Failed }
}

/// Writes what is listed: the rows with aligned columns; with the names of the columns, or the first `keys` columns
/// alone, as the user wants it.
pub(crate) fn table(names: &[&str], keys: usize, rows: Vec<Vec<String>>, terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_names() {
        return rows.iter().try_for_each(|row| terminal.line(&row[..keys.min(row.len())].join(" ")));
    }
    let names = terminal.is_wide().then(|| names.iter().map(|name| (*name).to_owned()).collect());
    let rows: Vec<Vec<String>> = names.into_iter().chain(rows).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or_default()).map(width).collect();
    rows.iter().try_for_each(|row| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        terminal.line(cells.join("  ").trim_end())
    })
}

/// Writes a list of calls.
pub(crate) fn call_table(calls: &[v1::ListedCall], terminal: &Terminal) -> Result<(), Failure> {
    table(&call_names(terminal), 2, calls.iter().map(|call| call_row(call, terminal)).collect(), terminal)
}

/// The names of the columns of a listed call.
pub(crate) fn call_names(terminal: &Terminal) -> Vec<&'static str> {
    let wide: &[&str] = if terminal.is_wide() { &["POOL", "TENANT"] } else { &[] };
    [["RUN", "CALL", "TOOL", "STATE", "AGE"].as_slice(), wide].concat()
}

/// The columns of a listed call.
pub(crate) fn call_row(listed: &v1::ListedCall, terminal: &Terminal) -> Vec<String> {
    let call = listed.call.clone().unwrap_or_default();
    let mut stands = vec![call_state(call.state())];
    if let (v1::CallState::Delayed, Some(until)) = (call.state(), call.not_before) {
        stands.push(format!("until {until}"));
    }
    if call.error_kind() != v1::CallErrorKind::Unspecified {
        stands.push(error_kind(call.error_kind()));
    }
    if call.parked {
        stands.push("parked".to_owned());
    }
    if call.attempts > 1 {
        stands.push(counted(call.attempts as usize, "attempt"));
    }
    let run = listed.run_id.clone();
    let mut row = vec![run, harmless(&call.call_id), harmless(&call.tool), stands.join(", "), age(listed.create_time)];
    if terminal.is_wide() {
        row.extend([call.pool, harmless(&listed.tenant)]);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_a_number_and_a_unit() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "m", "10", "1.5h", "-1s", "10 m", "5mm"] {
            assert!(span(wrong).is_err(), "{wrong:?}");
        }
    }
}
