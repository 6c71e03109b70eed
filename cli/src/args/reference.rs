//! The page `docs/reference/cli.md`, generated from clap's definitions, and the commands in the documentation.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, CommandFactory as _, Parser as _};

use super::Cli;
use super::tests::words;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A text in a cell of a table.
fn cell(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.replace('\n', " ").replace('|', "\\|").replace('<', "&lt;")
}

/// How an argument is typed.
fn usage(argument: &Arg) -> String {
    let values: Vec<String> =
        argument.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>")).collect();
    let values = if argument.get_action().takes_values() { values.join(" ") } else { String::new() };
    let short = argument.get_short().map(|letter| format!("-{letter}, ")).unwrap_or_default();
    match argument.get_long() {
        Some(long) if values.is_empty() => format!("{short}--{long}"),
        Some(long) => format!("{short}--{long} {values}"),
        None => values,
    }
}

fn default(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if values.is_empty() { String::new() } else { format!("`{}`", values.join(" ")) }
}

fn table<'a>(out: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let mut arguments = arguments.filter(|argument| !argument.is_hide_set()).peekable();
    if arguments.peek().is_none() {
        return;
    }
    out.push_str("\n| argument | default | variable | |\n|---|---|---|---|\n");
    for argument in arguments {
        let variable = argument.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let help = cell(argument.get_long_help().or_else(|| argument.get_help()));
        let repeats = if matches!(argument.get_action(), ArgAction::Append) { " May be repeated." } else { "" };
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let is_flag = !argument.get_action().takes_values() || values.is_empty();
        let values = if is_flag { String::new() } else { format!(" One of {}.", values.join(", ")) };
        writeln!(out, "| `{}` | {} | {variable} | {help}{values}{repeats} |", usage(argument), default(argument))
            .expect("a string takes everything");
    }
}

fn section(out: &mut String, command: &Command, name: &str) {
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string).unwrap_or_default();
    write!(out, "\n## {name}\n\n{}\n", about.trim()).expect("a string takes everything");
    table(out, command.get_arguments().filter(|argument| !argument.is_global_set()));
    if let Some(after) = command.get_after_help().filter(|_| !command.has_subcommands()) {
        write!(out, "\n```text\n{}\n```\n", after.to_string().trim_end()).expect("a string takes everything");
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        section(out, inner, &format!("{name} {}", inner.get_name()));
    }
}

fn page() -> String {
    let command = Cli::command();
    let mut out = "# Command line\n\n<!-- Generated from the program: TOOLYARD_WRITE_DOCS=1 cargo test -p toolyard \
                   --bins reference -->\n\nThe options of `toolyard` itself may follow any command. `toolyard --help`\n\
                   describes the exit codes and the JSON of `-o json`.\n"
        .to_owned();
    section(&mut out, &command, "toolyard");
    let globals = command.get_arguments().filter(|argument| argument.is_global_set());
    out.push_str("\n## Global options\n");
    table(&mut out, globals);
    out
}

#[test]
fn the_reference_of_the_command_line_is_current() {
    let (path, page) = (root().join("docs/reference/cli.md"), page());
    if std::env::var_os("TOOLYARD_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/reference/cli.md can be read");
    assert!(written == page, "docs/reference/cli.md is not current: run this test with TOOLYARD_WRITE_DOCS=1");
}

/// The pages of the documentation, by their path from the root.
fn pages() -> Vec<(String, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).expect("a text");
                found.push((path.display().to_string(), text));
            }
        }
    }
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md can be read");
    found.push(("README.md".to_owned(), readme));
    assert!(found.len() > 25, "the pages were found");
    found
}

/// The command lines in a page's blocks of shell, with their continuation lines joined.
fn commands(page: &str) -> Vec<String> {
    let mut blocks = page.split("\n```");
    blocks.next();
    let shells = blocks.step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    let lines: Vec<String> =
        shells.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.into_iter().map(|line| line.trim().to_owned()).collect()
}

/// A command of `toolyard` without assignment, comment, the commands around it, and a last `&`.
fn command_of(line: &str) -> Option<String> {
    let start = line.find("toolyard ").filter(|at| {
        let before = &line[..*at];
        before.is_empty() || before.ends_with("$(") || before.ends_with("sudo ")
    })?;
    let inner = line[start..].split(" || ").next()?.split(" # ").next()?.split(" 2>").next()?;
    let inner = if start > 0 { inner.split(')').next()? } else { inner };
    Some(inner.trim_end_matches(['&', ' ']).to_owned())
}

#[test]
fn every_toolyard_command_in_the_documentation_parses() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (path, page) in pages() {
        for command in commands(&page).iter().filter_map(|line| command_of(line)) {
            // "..." stands for further options.
            let words = words(&command).into_iter().filter(|word| word != "...");
            count += 1;
            if let Err(error) = Cli::try_parse_from(words) {
                wrong.push(format!("{path}: {command}: {error}"));
            }
        }
    }
    assert!(count > 40, "the commands were found: {count}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_curl_in_the_documentation_asks_for_a_route_that_exists() {
    let document = std::fs::read_to_string(root().join("docs/openapi.json")).expect("docs/openapi.json can be read");
    let document: serde_json::Value = serde_json::from_str(&document).expect("it is JSON");
    let routes: Vec<Vec<&str>> =
        document["paths"].as_object().expect("paths").keys().map(|path| path.split('/').collect()).collect();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (page, text) in pages() {
        for line in commands(&text).iter().filter(|line| line.contains("curl ")) {
            let path = line.split_once(":7420").map(|(_, rest)| rest).or_else(|| Some(line.split_once("$api")?.1));
            let Some(path) = path.filter(|path| path.starts_with('/')) else { continue };
            let path = path.split(['\'', '"', ' ', '?']).next().unwrap_or_default();
            let path = if line.contains("$api/") { format!("/v1{path}") } else { path.to_owned() };
            let asked: Vec<&str> = path.split('/').collect();
            count += 1;
            let fits = |route: &Vec<&str>| {
                route.len() == asked.len()
                    && route.iter().zip(&asked).all(|(part, asked)| part == asked || part.starts_with('{'))
            };
            if !routes.iter().any(fits) {
                wrong.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(count > 8, "the requests were found: {count}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
