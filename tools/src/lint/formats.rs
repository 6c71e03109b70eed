//! Reads what linters write. A part that is not as expected is passed over: versions differ.

use std::sync::LazyLock;

use regex_automata::meta::Regex;
use serde_json::Value;

use super::Severity;
use super::table::Format;

/// What a linter wrote.
#[derive(Debug)]
pub(super) struct Said<'a> {
    pub(super) stdout: &'a [u8],
    pub(super) stderr: &'a str,
    pub(super) is_cut: bool,
}

/// A finding with the file as the linter named it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) file: String,
    pub(super) line: u64,
    pub(super) column: u64,
    pub(super) severity: Severity,
    pub(super) rule: Option<String>,
    pub(super) message: String,
    pub(super) fixable: bool,
}

/// The findings; `None` if the output cannot be read.
pub(super) fn read(format: Format, said: &Said<'_>) -> Option<Vec<Found>> {
    let text = String::from_utf8_lossy(said.stdout);
    let json = || serde_json::from_str::<Value>(&text).ok().filter(|_| !said.is_cut);
    match format {
        Format::Ruff => Some(list(&json()?).iter().filter_map(ruff).collect()),
        Format::Eslint => Some(list(&json()?).iter().flat_map(eslint).collect()),
        Format::Shellcheck => Some(list(&json()?["comments"]).iter().filter_map(shellcheck).collect()),
        Format::Sarif => Some(list(&json()?["runs"]).iter().flat_map(sarif).collect()),
        Format::Cargo => Some(text.lines().filter_map(|line| cargo(&serde_json::from_str(line).ok()?)).collect()),
        Format::Github => Some(text.lines().filter_map(github).collect()),
        Format::Text => Some(text.lines().chain(said.stderr.lines()).filter_map(plain).collect()),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(1)
}

fn severity(word: &str) -> Severity {
    match word {
        "error" | "fatal" => Severity::Error,
        "info" | "information" | "note" | "notice" | "style" | "help" | "none" => Severity::Info,
        _ => Severity::Warning,
    }
}

fn ruff(found: &Value) -> Option<Found> {
    Some(Found {
        file: string(&found["filename"])?,
        line: number(&found["location"]["row"]),
        column: number(&found["location"]["column"]),
        severity: found["severity"].as_str().map_or(Severity::Error, severity),
        rule: string(&found["code"]),
        message: string(&found["message"])?,
        fixable: found["fix"].is_object(),
    })
}

fn eslint(file: &Value) -> Vec<Found> {
    let read = |message: &Value| {
        Some(Found {
            file: string(&file["filePath"])?,
            line: number(&message["line"]),
            column: number(&message["column"]),
            severity: if message["severity"] == 2 { Severity::Error } else { Severity::Warning },
            rule: string(&message["ruleId"]),
            message: string(&message["message"])?,
            fixable: message["fix"].is_object(),
        })
    };
    list(&file["messages"]).iter().filter_map(read).collect()
}

fn shellcheck(found: &Value) -> Option<Found> {
    Some(Found {
        file: string(&found["file"])?,
        line: number(&found["line"]),
        column: number(&found["column"]),
        severity: severity(found["level"].as_str()?),
        rule: found["code"].as_u64().map(|code| format!("SC{code}")),
        message: string(&found["message"])?,
        fixable: found["fix"].is_object(),
    })
}

fn cargo(line: &Value) -> Option<Found> {
    let message = &line["message"];
    // The summary at the end has no place.
    let place = list(&message["spans"]).iter().find(|span| span["is_primary"] == true)?;
    let applies = |child: &Value| {
        list(&child["spans"]).iter().any(|span| span["suggestion_applicability"] == "MachineApplicable")
    };
    Some(Found {
        file: string(&place["file_name"])?,
        line: number(&place["line_start"]),
        column: number(&place["column_start"]),
        severity: severity(message["level"].as_str()?),
        rule: string(&message["code"]["code"]),
        message: string(&message["message"])?,
        fixable: list(&message["children"]).iter().any(applies),
    })
}

fn sarif(run: &Value) -> Vec<Found> {
    let read = |result: &Value| {
        let place = &result["locations"][0]["physicalLocation"];
        let file = string(&place["artifactLocation"]["uri"])?;
        Some(Found {
            file: file.strip_prefix("file://").map(str::to_owned).unwrap_or(file),
            line: number(&place["region"]["startLine"]),
            column: number(&place["region"]["startColumn"]),
            severity: severity(result["level"].as_str().unwrap_or("warning")),
            rule: string(&result["ruleId"]),
            message: string(&result["message"]["text"])?,
            fixable: !list(&result["fixes"]).is_empty(),
        })
    };
    list(&run["results"]).iter().filter_map(read).collect()
}

/// `::error title=rule,file=a.js,line=1,col=2::message`
fn github(line: &str) -> Option<Found> {
    let (head, message) = line.trim_start().strip_prefix("::")?.split_once("::")?;
    let (level, properties) = head.split_once(' ')?;
    let property = |wanted: &str| {
        let pairs = properties.split(',').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(name, _)| *name == wanted).map(|(_, value)| unescaped(value))
    };
    let number = |name: &str| property(name).and_then(|value| value.parse().ok()).unwrap_or(1);
    Some(Found {
        file: property("file")?,
        line: number("line"),
        column: number("col"),
        severity: severity(level),
        rule: property("title"),
        message: unescaped(message),
        fixable: false,
    })
}

fn unescaped(text: &str) -> String {
    let text = text.replace("%0A", "\n").replace("%0D", "\r").replace("%2C", ",").replace("%3A", ":");
    text.replace("%25", "%")
}

/// `path:line:column: severity: message [rule]`, where all but path, line and message may be missing.
fn plain(line: &str) -> Option<Found> {
    static LINE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(
            r"(?x)^(?:vet:\ )?([^:\s][^:]*):(\d+)(?::(\d+))?:\s*
            (?i:(error|warning|note|info)\b:?\s*)?(.+?)(?:\s*\[([\w./-]+)\])?\s*$",
        )
        .ok()
    });
    let regex = LINE.as_ref()?;
    let mut captures = regex.create_captures();
    regex.captures(line, &mut captures);
    let group = |index| captures.get_group(index).map(|span| &line[span.range()]);
    Some(Found {
        file: group(1)?.to_owned(),
        line: group(2)?.parse().ok()?,
        column: group(3).and_then(|column| column.parse().ok()).unwrap_or(1),
        severity: severity(&group(4).unwrap_or("warning").to_lowercase()),
        rule: group(6).map(str::to_owned),
        message: group(5)?.to_owned(),
        fixable: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(format: Format, text: &str) -> Vec<Found> {
        read(format, &Said { stdout: text.as_bytes(), stderr: "", is_cut: false }).unwrap()
    }

    fn found(place: (&str, u64, u64), severity: Severity, rule: Option<&str>, message: &str) -> Found {
        let (file, line, column) = (place.0.to_owned(), place.1, place.2);
        Found { file, line, column, severity, rule: rule.map(str::to_owned), message: message.into(), fixable: false }
    }

    #[test]
    fn lines_of_compilers_are_read() {
        let text =
            "a.c:3:7: error: expected ';' [-Werror]\nsrc/b.py:12: unused\n\nFound 2 errors\nvet: x.go:1:2: bad\n";
        let expected = [
            found(("a.c", 3, 7), Severity::Error, Some("-Werror"), "expected ';'"),
            found(("src/b.py", 12, 1), Severity::Warning, None, "unused"),
            found(("x.go", 1, 2), Severity::Warning, None, "bad"),
        ];
        assert_eq!(read_text(Format::Text, text), expected);
    }

    #[test]
    fn annotations_are_read() {
        let text = "::error title=lint/x,file=a.js,line=2,endLine=2,col=5,endColumn=6::Use a%0Ab\nother\n";
        assert_eq!(
            read_text(Format::Github, text),
            [found(("a.js", 2, 5), Severity::Error, Some("lint/x"), "Use a\nb")]
        );
    }

    #[test]
    fn sarif_and_eslint_are_read() {
        let sarif = r#"{"runs":[{"results":[{"ruleId":"r","level":"note","message":{"text":"m"},"locations":
            [{"physicalLocation":{"artifactLocation":{"uri":"file:///x/a.ts"},"region":{"startLine":4}}}]}]}]}"#;
        assert_eq!(read_text(Format::Sarif, sarif), [found(("/x/a.ts", 4, 1), Severity::Info, Some("r"), "m")]);
        let eslint = r#"[{"filePath":"/x/a.js","messages":[{"ruleId":null,"severity":2,"message":"Parsing error",
            "line":1,"column":3}]}]"#;
        assert_eq!(
            read_text(Format::Eslint, eslint),
            [found(("/x/a.js", 1, 3), Severity::Error, None, "Parsing error")]
        );
    }

    #[test]
    fn output_that_is_none_gives_no_findings() {
        for format in [Format::Ruff, Format::Eslint, Format::Shellcheck, Format::Sarif] {
            assert_eq!(read(format, &Said { stdout: b"Traceback", stderr: "", is_cut: false }), None);
            assert_eq!(read_text(format, "[1, null, {}]"), []);
        }
        for format in [Format::Cargo, Format::Github, Format::Text] {
            assert_eq!(read_text(format, "Traceback\n{}\n:: ::\n"), []);
        }
    }
}
