//! The documentation: links and anchors lead somewhere, every page is in the book, tests and functions that it names
//! exist, and lines fit a screen.

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

use harness::rows::{Test, page, rows};

/// Longest line of prose, in characters.
const COLUMNS_MAX: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// Files below `folder` with this extension, without build output and hidden folders.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                let is_ours = !["target", "node_modules"].contains(&&*name.to_string_lossy());
                if is_ours && !name.to_string_lossy().starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn from_root(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn pages() -> Vec<(PathBuf, String)> {
    let pages: Vec<_> = files(&root(), "md").into_iter().map(|path| (path.clone(), read(&path))).collect();
    assert!(pages.len() > 30, "the pages were found");
    pages
}

/// The lines of a page that are not code, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number, line))
    })
}

/// The text without what is between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of a line's links.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(page).filter(|(_, line)| line.starts_with('#'));
    let slug = |line: &str| -> String {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    let mut found = BTreeSet::new();
    for (_, line) in headings {
        let slug = slug(line);
        let count = seen.entry(slug.clone()).or_default();
        found.insert(if *count == 0 { slug.clone() } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

/// The path without `..` and `.`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

#[test]
fn every_link_and_every_anchor_leads_somewhere() {
    let pages = pages();
    let anchors: HashMap<&Path, BTreeSet<String>> =
        pages.iter().map(|(path, page)| (path.as_path(), anchors(page))).collect();
    let (mut broken, mut count) = (Vec::new(), 0);
    for (path, page) in &pages {
        for (number, line) in prose(page) {
            for link in links(line).into_iter().filter(|link| !link.contains("://")) {
                count += 1;
                let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
                let folder = path.parent().expect("a page lies in a folder");
                let target = if file.is_empty() { path.clone() } else { plain(&folder.join(file)) };
                let known = anchors.get(target.as_path());
                let leads =
                    target.exists() && (anchor.is_empty() || known.is_some_and(|anchors| anchors.contains(anchor)));
                if !leads {
                    broken.push(format!("{}:{number}: {link}", from_root(path)));
                }
            }
        }
    }
    assert!(count > 150, "the links were found: {count}");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_of_the_documentation_is_in_the_book() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = summary.lines().flat_map(links).map(|link| docs.join(link)).collect();
    let there: BTreeSet<PathBuf> =
        files(&docs, "md").into_iter().filter(|path| !path.ends_with("SUMMARY.md")).collect();
    let difference: Vec<String> = listed.symmetric_difference(&there).map(|path| from_root(path)).collect();
    assert!(difference.is_empty(), "in docs/SUMMARY.md or in docs/, and not in both: {difference:#?}");
}

#[test]
fn no_line_of_prose_is_wider_than_a_screen() {
    // A line of the generated page of tools is a tool's description.
    let others = ["CHANGELOG.md", "docs/reference/tools.md"];
    let mut wide = Vec::new();
    for (path, page) in pages().into_iter().filter(|(path, _)| !others.contains(&&*from_root(path))) {
        let lines = prose(&page).filter(|(_, line)| !line.trim_start().starts_with('|'));
        // An address cannot be wrapped.
        let lines = lines.filter(|(_, line)| line.chars().count() > COLUMNS_MAX && line.trim().contains(' '));
        wide.extend(lines.map(|(number, _)| format!("{}:{number}", from_root(&path))));
    }
    assert!(wide.is_empty(), "wider than {COLUMNS_MAX} columns: {wide:#?}");
}

/// What stands between backticks.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_proves_a_promise_exists() {
    let mut sources: HashMap<String, String> = HashMap::new();
    for path in files(&root(), "rs") {
        let stem = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        sources.entry(stem).or_default().push_str(&read(&path));
    }
    let page = read(&root().join("docs/reference/promises.md"));
    let (mut missing, mut count) = (Vec::new(), 0);
    for (number, line) in prose(&page).filter(|(_, line)| line.starts_with("| ") && line.contains("::")) {
        for (module, test) in code(line).filter_map(|name| name.split_once("::")) {
            count += 1;
            // "…" stands for the rest of a long name.
            let test = test.trim_end_matches('…');
            let exists =
                sources.get(module).is_some_and(|text| test.is_empty() || text.contains(&format!("fn {test}")));
            if !exists {
                missing.push(format!("docs/reference/promises.md:{number}: {module}::{test}"));
            }
        }
    }
    assert!(count > 60, "the tests were found: {count}");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_row_has_tests_that_exist_or_a_reason() {
    let rows = rows();
    let expected: Vec<String> = (1..=73).map(|number| format!("D{number:02}")).collect();
    assert_eq!(rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>(), expected);
    let mut wrong = Vec::new();
    for row in &rows {
        let missing = row.tests.iter().filter_map(|test| Test::parse(test).source().err());
        wrong.extend(missing.map(|why| format!("{}: {why}", row.id)));
        let texts = [&row.title, &row.behaviour, &row.check].into_iter().chain(&row.open);
        wrong.extend(texts.filter(|text| text.trim().is_empty()).map(|_| format!("{}: an empty text", row.id)));
        if row.tests.is_empty() && row.open.is_none() {
            wrong.push(format!("{} has neither tests nor a reason (`open`)", row.id));
        }
        let names: BTreeSet<&String> = row.tests.iter().collect();
        if names.len() < row.tests.len() {
            wrong.push(format!("{} names a test twice", row.id));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_page_of_rows_is_current() {
    let file = root().join("docs/evidence/rows.md");
    if std::env::var_os("TOOLYARD_WRITE_ROWS").is_some() {
        std::fs::write(&file, page()).expect("the page can be written");
    }
    assert!(read(&file) == page(), "docs/evidence/rows.md is old: write it with TOOLYARD_WRITE_ROWS=1");
}

#[test]
fn every_function_that_the_architecture_points_to_is_in_its_file() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let table = page.split("\n## ").find(|part| part.starts_with("Where do I look for X")).expect("the table is there");
    let (mut missing, mut count) = (Vec::new(), 0);
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [_, functions, named] = cells[..] else { panic!("three cells: {row}") };
        let mut text = String::new();
        for file in code(named) {
            let path = root().join(file);
            if path.is_file() {
                text.push_str(&read(&path));
            } else {
                missing.push(format!("no file {file}"));
            }
        }
        for function in code(functions) {
            count += 1;
            let name = function.rsplit("::").next().unwrap_or(function);
            let declared = ["fn ", "struct "]
                .iter()
                .any(|word| [" ", "(", "<"].iter().any(|after| text.contains(&format!("{word}{name}{after}"))));
            if !declared {
                missing.push(format!("{function} is not in {}", named.trim()));
            }
        }
    }
    assert!(count > 50, "the functions were found: {count}");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_source_file_that_the_documentation_names_exists() {
    let rooms = [
        "core/",
        "proto/",
        "formats/",
        "infra/",
        "coordinator/",
        "worker/",
        "cli/",
        "sdk/",
        "tests/",
        "deploy/",
        "fuzz/",
    ];
    // Made by a command, and not kept.
    let made = ["fuzz/found"];
    let mut missing = Vec::new();
    for (path, page) in pages().into_iter().filter(|(path, _)| !path.ends_with("CHANGELOG.md")) {
        for (number, line) in prose(&page) {
            let named = code(line).filter(|name| rooms.iter().any(|room| name.starts_with(room)));
            let named = named.filter(|name| !name.contains(['*', '<', '{', ' ', '…']) && !made.contains(name));
            let lost = named.filter(|name| !root().join(name).exists());
            missing.extend(lost.map(|name| format!("{}:{number}: {name}", from_root(&path))));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
