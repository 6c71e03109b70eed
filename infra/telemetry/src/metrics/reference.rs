//! The page `docs/reference/metrics.md`, for the tests of the crates that count. Each crate keeps one section of it.

use std::path::Path;

use super::Metric;

impl Metric {
    /// Kind, name, labels and help.
    fn described(&self) -> (&'static str, &'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Counter(family) => ("counter", family.name, family.labels, family.help),
            Self::Gauge(family) => ("gauge", family.name, family.labels, family.help),
            Self::Histogram(family) => ("histogram", family.name, family.labels, family.help),
        }
    }
}

/// Rows of a table, one for each metric.
fn rows(metrics: &[Metric]) -> String {
    let row = |metric: &Metric| {
        let (kind, name, labels, help) = metric.described();
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {kind} | {} | {} |\n", labels.join(", "), help.replace('|', "\\|"))
    };
    let rows: String = metrics.iter().map(row).collect();
    format!("\n| metric | kind | labels | help |\n|---|---|---|---|\n{rows}")
}

/// Compares a section of the page with `metrics`. With `TOOLYARD_WRITE_DOCS` set, writes the section first.
///
/// # Panics
/// If the page has no such section, or another text in it.
pub fn check_reference(section: &str, metrics: &[Metric]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).expect("docs/reference/metrics.md can be read");
    let (begin, end) = (format!("<!-- {section}: begin -->\n"), format!("<!-- {section}: end -->"));
    let (before, rest) = page.split_once(&begin).expect("the section begins");
    let (written, after) = rest.split_once(&end).expect("the section ends");
    let current = format!("{}\n", rows(metrics));
    if std::env::var_os("TOOLYARD_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{current}{end}{after}")).expect("the page can be written");
        return;
    }
    assert!(written == current, "docs/reference/metrics.md is not current: run this test with TOOLYARD_WRITE_DOCS=1");
}
