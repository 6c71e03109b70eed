//! How code and comments are written, as far as a machine can check it. Each rule says what to do instead. What does
//! not keep a rule yet stands in a list beside it; an entry that keeps the rule must leave the list, so the lists only
//! shrink.

use std::path::{Path, PathBuf};

/// Lines of a function, its signature included.
const FUNCTION_LINES_MAX: usize = 70;
/// Parameters of a function beside `self`. A tuple counts as many as it has parts.
const PARAMETERS_MAX: usize = 5;
/// Columns of a line, of code and of comments.
const COLUMNS_MAX: usize = 120;

/// Functions that are longer: lists of what is wired to what, or flat tables.
const LONG: &[&str] = &[
    "formats/src/openai/responses/input.rs: opened",
    "formats/src/openai/responses/items.rs: item",
    "formats/src/openai/responses/stream.rs: tell",
    "proto/src/convert/api.rs: single_event",
    "proto/src/convert/log.rs: event_in",
    "proto/tests/manifest.rs: each_field_that_is_wrong_is_refused_by_its_name",
    "tests/bench/main.rs: measure_all",
    "tests/bench/open.rs: measure",
    "tests/fixture/main.rs: serve",
    "tests/release/together.rs: shards_move_between_both_releases_under_load_and_every_reader_sees_one_order",
    "tests/scenarios/http.rs: a_request_that_cannot_be_read_is_told_where_and_what_to_do",
    "tests/scenarios/retention.rs: what_has_ended_leaves_a_full_log_and_what_is_open_goes_on_and_nothing_runs_twice",
    "tests/scenarios/traces.rs: one_trace_holds_a_call_from_its_caller_to_both_its_attempts_though_a_worker_was_killed",
    "worker/src/attempt.rs: drive",
];
/// Functions with more parameters.
const MANY_PARAMETERS: &[&str] = &[
    "coordinator/src/quotas.rs: admit",
    "coordinator/src/quotas.rs: check",
    "formats/src/turns/forms/responses.rs: read_call",
    "formats/tests/openai/mutated.rs: an_id_is_read_as_it_is_written_or_not_at_all",
    "proto/tests/round_trip.rs: what_owners_and_workers_say_comes_back",
    "tests/bench/calls.rs: measure",
    "tests/simulation/coordinator.rs: watch",
    "tests/torture/check/judge.rs: completed",
    "tests/torture/check/judge.rs: wrong",
    "worker/src/attempt.rs: conclude",
    "worker/src/attempt.rs: keep",
    "worker/src/publisher.rs: new",
];
/// Files with wider lines.
const WIDE: &[&str] = &[
    "cli/src/nats_config.rs",
    "cli/src/nats_keys.rs",
    "cli/src/tools.rs",
    "cli/tests/program/key.rs",
    "cli/tests/program/webhooks.rs",
    "coordinator/src/api/problem.rs",
    "core/run/src/command.rs",
    "core/run/src/lib.rs",
    "core/run/src/turn.rs",
    "core/run/tests/calls.rs",
    "core/run/tests/histories.rs",
    "core/run/tests/state.rs",
    "core/run/tests/why.rs",
    "core/schema/src/lib.rs",
    "core/schema/src/references.rs",
    "core/schema/tests/arguments.rs",
    "core/schema/tests/cost.rs",
    "formats/grammar/src/tests.rs",
    "formats/src/openai/responses/items.rs",
    "formats/src/openai/responses/message.rs",
    "formats/src/openai/responses/stream.rs",
    "formats/src/tools.rs",
    "formats/src/turns.rs",
    "formats/tests/openai/mutated.rs",
    "formats/tests/openai/properties.rs",
    "formats/tests/openai/requests.rs",
    "formats/tests/turns/answers.rs",
    "formats/tests/turns/mutated.rs",
    "formats/tests/turns/properties.rs",
    "formats/tests/turns/turns.rs",
    "infra/hooks/tests/asking.rs",
    "infra/nats/src/lib.rs",
    "infra/objects/src/s3.rs",
    "infra/objects/src/s3/place.rs",
    "infra/objects/src/s3/refusals.rs",
    "infra/telemetry/src/admin.rs",
    "proto/src/json.rs",
    "proto/tests/round_trip.rs",
    "sdk/rust/tool/src/answer.rs",
    "sdk/rust/tool/src/lib.rs",
    "tests/drill/main.rs",
    "tests/drill/rest.rs",
    "tests/harness/admin.rs",
    "tests/harness/costly.rs",
    "tests/release/main.rs",
    "tests/scenarios/costly.rs",
    "tests/scenarios/erasure.rs",
    "tests/scenarios/hooks.rs",
    "tests/scenarios/http_api.rs",
    "tests/scenarios/http_batch.rs",
    "tests/scenarios/http_callers.rs",
    "tests/scenarios/openai.rs",
    "tests/scenarios/resolvers.rs",
    "tests/scenarios/tenants.rs",
    "tests/torture/report.rs",
    "worker/src/hooked.rs",
    "tools/src/lib.rs",
    "tools/tests/bash.rs",
];
/// Files with comments that are divided by banners.
const BANNERS: &[&str] = &[
    "core/run/tests/attempts.rs",
    "core/run/tests/calls.rs",
    "core/run/tests/commands.rs",
    "core/run/tests/histories.rs",
    "core/run/tests/story/mod.rs",
    "core/run/tests/world/plan.rs",
    "sdk/rust/tool/tests/interceptors.rs",
    "sdk/rust/tool/tests/tool_macro.rs",
    "tests/torture/check/tests.rs",
    "tests/torture/load.rs",
    "tests/torture/load/after.rs",
];
/// Types whose name says that they do something with something.
const VAGUE: &[&str] = &[];
/// Files with phrases of [`RIDDLES`].
const RIDDLING: &[&str] = &[
    "cli/src/dev.rs",
    "cli/src/key.rs",
    "cli/src/nats_keys.rs",
    "core/run/src/fields.rs",
    "core/run/src/limit.rs",
    "core/run/tests/erasure.rs",
    "core/run/tests/floor.rs",
    "core/schema/tests/arguments.rs",
    "infra/local/src/fetch.rs",
    "sdk/rust/tool/src/interceptor/large_result.rs",
    "tests/bench/main.rs",
    "tests/bench/readers.rs",
    "tests/bench/stream.rs",
    "tests/bench/submission.rs",
    "tests/bench/watch.rs",
    "tests/drill/load.rs",
    "tests/harness/costly.rs",
    "tests/scenarios/cluster.rs",
    "tests/scenarios/cost.rs",
    "tests/scenarios/costly.rs",
    "tests/scenarios/http_callers.rs",
    "tests/scenarios/limits.rs",
    "tests/scenarios/listeners.rs",
    "tests/scenarios/manifest.rs",
    "tests/scenarios/objects.rs",
    "tests/scenarios/ownership.rs",
    "tests/scenarios/pauses.rs",
    "tests/scenarios/registry.rs",
    "tests/scenarios/requests.rs",
    "tests/scenarios/rollout.rs",
    "tests/scenarios/tokens.rs",
    "tests/scenarios/traces.rs",
    "tests/scenarios/webhooks.rs",
    "tests/torture/check.rs",
    "tests/torture/load.rs",
    "tests/torture/main.rs",
    "worker/src/nats.rs",
    "tools/tests/bash.rs",
];

/// Endings of names that say nothing of what a type is.
const VAGUE_ENDINGS: [&str; 7] = ["Keeper", "Manager", "Helper", "Handler", "Util", "Utils", "Misc"];
/// Phrases that stand for a noun, a condition or an actor which can be named.
const RIDDLES: [&str; 8] = [
    "whoever",
    "what is owed",
    "of which",
    "as it is said",
    "nobody hears",
    "waits since",
    "somebody else",
    "is told so",
];

struct Source {
    path: String,
    lines: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

fn sources() -> Vec<Source> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a text");
                let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.push(Source { path, lines: text.lines().map(str::to_owned).collect() });
            }
        }
    }
    assert!(found.len() > 50, "the sources were found");
    found
}

/// Fails if something that is not in the list breaks the rule, or something in the list keeps it.
fn check(rule: &str, list: &[&str], mut broken: Vec<String>) {
    broken.sort();
    broken.dedup();
    let new: Vec<&String> = broken.iter().filter(|name| !list.contains(&name.as_str())).collect();
    let kept: Vec<&&str> = list.iter().filter(|name| !broken.iter().any(|broken| broken == *name)).collect();
    assert!(new.is_empty(), "{rule}: {new:#?}");
    assert!(kept.is_empty(), "these keep the rule now, take them off its list: {kept:#?}");
}

/// A function as it stands in its file.
struct Function<'a> {
    name: String,
    lines: &'a [String],
}

impl Function<'_> {
    /// The text between the parentheses of its parameters.
    fn parameters(&self) -> Vec<String> {
        let text = self.lines.join(" ");
        let from = text.find("fn ").map_or(0, |at| at + 3);
        let signature = &text[from..];
        let (mut depth, mut angles, mut begun) = (0_u32, 0_u32, false);
        let (mut parameters, mut current, mut before) = (Vec::new(), String::new(), ' ');
        for letter in signature.chars() {
            match letter {
                '<' => angles += 1,
                '>' if before != '-' && before != '=' => angles = angles.saturating_sub(1),
                '(' if angles == 0 || depth > 0 => depth += 1,
                ')' if depth > 0 => depth -= 1,
                _ => {}
            }
            if depth == 1 && letter == '(' && !begun {
                begun = true;
            } else if begun && depth == 0 {
                break;
            } else if begun && letter == ',' && depth == 1 && angles == 0 {
                parameters.push(std::mem::take(&mut current));
            } else if begun {
                current.push(letter);
            }
            before = letter;
        }
        parameters.push(current);
        parameters.into_iter().map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
    }

    fn count(&self) -> usize {
        let own = |parameter: &&String| !parameter.split(':').next().unwrap_or_default().trim_end().ends_with("self");
        self.parameters().iter().filter(own).map(|parameter| parts(parameter)).sum()
    }
}

/// A pattern in parentheses has as many parts as it names.
fn parts(parameter: &str) -> usize {
    if !parameter.starts_with('(') {
        return 1;
    }
    let pattern = parameter.split(':').next().unwrap_or_default();
    pattern.split(['(', ')', ',']).filter(|part| !part.trim().is_empty()).count()
}

fn functions(source: &Source) -> Vec<Function<'_>> {
    let begins = |line: &str| {
        let words: Vec<&str> = line.trim_start().split(' ').collect();
        let at = words.iter().position(|word| *word == "fn")?;
        let is_qualifier = |word: &&str| {
            word.starts_with("pub") || ["const", "async", "unsafe", "in"].contains(word) || word.ends_with(')')
        };
        words[..at].iter().all(is_qualifier).then(|| words.get(at + 1).map(|name| (*name).to_owned()))?
    };
    let mut found = Vec::new();
    for (from, line) in source.lines.iter().enumerate() {
        let Some(name) = begins(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |later: &String| *later == format!("{indent}}}") || later.starts_with(&format!("{indent}}} "));
        let is_short = line.trim_end().ends_with(['}', ';']);
        let length = if is_short { 1 } else { source.lines[from..].iter().position(ends).map_or(1, |at| at + 1) };
        let name = name.split(['(', '<']).next().unwrap_or_default().to_owned();
        found.push(Function { name: format!("{}: {name}", source.path), lines: &source.lines[from..from + length] });
    }
    found
}

fn named<'a>(sources: &'a [Source], breaks: impl Fn(&Function) -> bool + 'a) -> Vec<String> {
    let functions = sources.iter().flat_map(functions);
    functions.filter(breaks).map(|function| function.name).collect()
}

fn files(sources: &[Source], breaks: impl Fn(&Source, &str) -> bool) -> Vec<String> {
    let broken = sources.iter().filter(|source| source.lines.iter().any(|line| breaks(source, line)));
    broken.map(|source| source.path.clone()).collect()
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[test]
fn functions_are_short() {
    let long = named(&sources(), |function| function.lines.len() > FUNCTION_LINES_MAX);
    check("split them by what they do, or name the steps", LONG, long);
}

#[test]
fn functions_have_few_parameters_and_no_tuples_to_hide_them() {
    let many = named(&sources(), |function| function.count() > PARAMETERS_MAX);
    check("give what belongs together a struct", MANY_PARAMETERS, many);
}

#[test]
fn lines_fit_the_page() {
    let wide = files(&sources(), |_, line| line.chars().count() > COLUMNS_MAX);
    check("wrap them at 120 columns", WIDE, wide);
}

#[test]
fn comments_have_no_banners() {
    let banners = files(&sources(), |_, line| line.trim_start().starts_with("// ----"));
    check("split the file, or let the code show its parts", BANNERS, banners);
}

#[test]
fn types_are_named_for_what_they_are() {
    let sources = sources();
    let declared = sources
        .iter()
        .flat_map(|source| source.lines.iter().filter(|line| !is_comment(line)).map(move |line| (source, line)));
    let vague = declared.filter_map(|(source, line)| {
        let words: Vec<&str> = line.split(|letter: char| !letter.is_alphanumeric()).collect();
        let mut pairs = words.windows(2).filter(|pair| ["struct", "enum", "trait"].contains(&pair[0]));
        let name = pairs.find(|pair| VAGUE_ENDINGS.iter().any(|ending| pair[1].ends_with(ending)))?[1];
        Some(format!("{}: {name}", source.path))
    });
    check("name them for what they own or do", VAGUE, vague.collect());
}

#[test]
fn comments_name_the_thing() {
    let riddles = files(&sources(), |source, line| {
        let text = line.to_lowercase();
        source.path != "tests/style.rs" && RIDDLES.iter().any(|riddle| text.contains(riddle))
    });
    check("say who and what: a noun of the field, an actor and a plain verb", RIDDLING, riddles);
}
