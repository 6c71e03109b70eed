//! Reads what git writes for programs.

use std::collections::HashMap;

use serde::Serialize;

/// The state of the work tree.
#[derive(Debug, Default, Serialize)]
pub(super) struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<u64>,
    files: Vec<FileStatus>,
    cut: bool,
}

/// A file that is not as it was committed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct FileStatus {
    path: String,
    /// `modified`, `added`, `deleted`, `renamed`, `copied`, `type_changed`, `unmerged`: what would be committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    staged: Option<&'static str>,
    /// The same, of what is not staged; `untracked` for a file that git does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    unstaged: Option<&'static str>,
    /// The path before a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records that end with a zero byte. The last one is left out if the output was cut.
fn records(output: &[u8], is_cut: bool) -> Vec<String> {
    let whole = if is_cut { output.iter().rposition(|byte| *byte == 0).unwrap_or(0) } else { output.len() };
    output[..whole].split(|byte| *byte == 0).filter(|record| !record.is_empty()).map(text).collect()
}

/// Reads `git status --porcelain=v2 --branch -z`.
pub(super) fn status(output: &[u8], is_cut: bool) -> Status {
    let mut status = Status { cut: is_cut, ..Status::default() };
    let mut records = records(output, is_cut).into_iter();
    while let Some(record) = records.next() {
        let (kind, rest) = record.split_once(' ').unwrap_or((&record, ""));
        match kind {
            "#" => status.note(rest),
            "1" => status.files.extend(changed(rest, 7, None)),
            "2" => status.files.extend(changed(rest, 8, records.next())),
            "u" => status.files.push(FileStatus {
                path: rest.splitn(10, ' ').last().unwrap_or_default().to_owned(),
                staged: None,
                unstaged: Some("unmerged"),
                from: None,
            }),
            "?" => status.files.push(FileStatus {
                path: rest.to_owned(),
                staged: None,
                unstaged: Some("untracked"),
                from: None,
            }),
            _ => {}
        }
    }
    status
}

impl Status {
    fn note(&mut self, header: &str) {
        let Some((name, value)) = header.split_once(' ') else { return };
        match name {
            "branch.oid" if value != "(initial)" => self.head = Some(value.to_owned()),
            "branch.head" if value != "(detached)" => self.branch = Some(value.to_owned()),
            "branch.upstream" => self.upstream = Some(value.to_owned()),
            "branch.ab" => {
                let mut numbers = value.split(' ').map(|number| number[1..].parse().ok());
                (self.ahead, self.behind) = (numbers.next().flatten(), numbers.next().flatten());
            }
            _ => {}
        }
    }
}

/// `XY` and other fields, and then the path.
fn changed(record: &str, fields: usize, from: Option<String>) -> Option<FileStatus> {
    let path = record.splitn(fields + 1, ' ').nth(fields)?.to_owned();
    let mut letters = record.chars();
    let (staged, unstaged) = (word(letters.next()?), word(letters.next()?));
    Some(FileStatus { path, staged, unstaged, from })
}

fn word(letter: char) -> Option<&'static str> {
    match letter {
        'M' => Some("modified"),
        'A' => Some("added"),
        'D' => Some("deleted"),
        'R' => Some("renamed"),
        'C' => Some("copied"),
        'T' => Some("type_changed"),
        'U' => Some("unmerged"),
        _ => None,
    }
}

/// A file of a diff.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Counted {
    path: String,
    /// Lines; none for a binary file.
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
}

/// Reads `--numstat -z`: of a renamed file the path is empty, and both paths follow.
pub(super) fn counts(output: &[u8]) -> Vec<Counted> {
    let output = output.strip_suffix(b"\0").unwrap_or(output);
    let mut records = output.split(|byte| *byte == 0).map(text);
    let mut files = Vec::new();
    while let Some(record) = records.next() {
        let mut fields = record.trim_start_matches('\n').splitn(3, '\t');
        let (added, removed) = (fields.next(), fields.next());
        let Some(path) = fields.next() else { continue };
        let (from, path) = match path {
            "" => (records.next(), records.next().unwrap_or_default()),
            path => (None, path.to_owned()),
        };
        let number = |field: Option<&str>| field.and_then(|field| field.parse().ok());
        files.push(Counted { path, added: number(added), removed: number(removed), from });
    }
    files
}

/// A commit.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Commit {
    hash: String,
    author: String,
    email: String,
    time: String,
    parents: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
    subject: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    body: String,
}

/// Reads commits in the format [`COMMIT`](super::read::COMMIT).
pub(super) fn commits(output: &[u8], is_cut: bool) -> Vec<Commit> {
    let read = |record: String| {
        let mut fields = record.splitn(8, '\u{1f}').map(str::trim);
        let mut next = || fields.next().map(str::to_owned);
        Some(Commit {
            hash: next()?,
            author: next()?,
            email: next()?,
            time: next()?,
            parents: next()?.split_whitespace().map(str::to_owned).collect(),
            names: next()?.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            subject: next()?,
            body: next()?,
        })
    };
    records(output, is_cut).into_iter().filter_map(read).collect()
}

/// A line, and the commit that it comes from.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Blamed {
    line: u64,
    hash: String,
    author: String,
    /// Seconds since 1970.
    time: u64,
    summary: String,
    text: String,
}

/// Reads `git blame --porcelain`: of each commit the facts stand only once.
pub(super) fn blamed(output: &[u8], most: usize) -> Vec<Blamed> {
    let output = text(output);
    let mut known: HashMap<String, (String, u64, String)> = HashMap::new();
    let (mut hash, mut line) = (String::new(), 0);
    let mut blamed = Vec::new();
    for row in output.lines() {
        if let Some(text) = row.strip_prefix('\t') {
            let (author, time, summary) = known.get(&hash).cloned().unwrap_or_default();
            blamed.push(Blamed { line, hash: hash.clone(), author, time, summary, text: text.to_owned() });
            if blamed.len() == most {
                break;
            }
            continue;
        }
        let (name, value) = row.split_once(' ').unwrap_or((row, ""));
        let facts = known.entry(hash.clone()).or_default();
        match name {
            "author" => value.clone_into(&mut facts.0),
            "author-time" => facts.1 = value.parse().unwrap_or_default(),
            "summary" => value.clone_into(&mut facts.2),
            name if name.len() >= 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                name.clone_into(&mut hash);
                line = value.split(' ').nth(1).and_then(|number| number.parse().ok()).unwrap_or_default();
            }
            _ => {}
        }
    }
    blamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_file_has_both_paths_and_a_binary_one_no_lines() {
        let output = b"1\t2\ta.txt\x003\t0\t\x00old name\x00new name\x00-\t-\tp.png\x00";
        let counted = counts(output);
        assert_eq!(counted[0], Counted { path: "a.txt".into(), added: Some(1), removed: Some(2), from: None });
        assert_eq!((counted[1].path.as_str(), counted[1].from.as_deref()), ("new name", Some("old name")));
        assert_eq!((counted[2].added, counted[2].path.as_str()), (None, "p.png"));
    }

    #[test]
    fn a_status_that_was_cut_has_only_whole_files() {
        let status = status(b"# branch.head main\0# branch.ab +2 -1\0? a b\0? c", true);
        assert_eq!((status.branch.as_deref(), status.ahead, status.behind), (Some("main"), Some(2), Some(1)));
        assert_eq!(status.files.len(), 1);
        assert_eq!(status.files[0].path, "a b");
    }
}
