//! The cost of checks: small schemas and values that multiply take bounded time, memory and stack, and valid ones are
//! accepted.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use schema::{InvalidSchema, Schema};
use serde_json::{Value, json};

/// Bytes that a check may take at most.
const BYTES_MAX: u64 = 50 * 1024 * 1024;
/// Time that a check may take at most. It takes a fifth of a tenth of that; tests run unoptimised, and side by side.
const TIME_MAX: Duration = Duration::from_secs(2);

static ALONE: Mutex<()> = Mutex::new(());

/// Does something on a thread with a stack as small as those of async runtimes, and measures it.
fn measured<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    let _alone = ALONE.lock();
    let mut done = None;
    std::thread::scope(|scope| {
        let work = || {
            let (start, mut done) = (Instant::now(), None);
            let info = allocation_counter::measure(|| done = Some(work()));
            (done.expect("it was done"), info.bytes_max, start.elapsed())
        };
        let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn_scoped(scope, work);
        let (value, bytes, time) = thread.expect("a thread").join().expect("no panic");
        eprintln!("{what}: {} KiB, {time:?}", bytes / 1024);
        assert!(bytes < BYTES_MAX, "{what} takes {bytes} bytes");
        assert!(time < TIME_MAX, "{what} takes {time:?}");
        done = Some(value);
    });
    done.expect("it was done")
}

/// Where arguments do not fit. Checking them is measured.
fn misfits(what: &str, schema: &Value, arguments: &str) -> Vec<(String, String)> {
    let schema = Schema::compile(&schema.to_string()).expect(what);
    let violations = measured(what, || schema.check(arguments.as_bytes()).expect_err("they do not fit"));
    violations.into_iter().map(|violation| (violation.path, violation.message)).collect()
}

fn nested(depth: usize, innermost: &str) -> String {
    format!("{}{innermost}{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
}

#[test]
fn a_step_into_the_value_behind_many_alternatives_or_references_does_not_overflow_the_stack() {
    for union in ["anyOf", "oneOf"] {
        let mut schema = json!({ "type": "object", "properties": { "a": { "$ref": "#" } } });
        for _ in 0..58 {
            schema = json!({ union: [schema] });
        }
        let found = misfits(union, &schema, &nested(120, "1"));
        assert!(found[0].1.contains("too deep") && found[0].0.starts_with("/a/a"), "{found:?}");
    }
    let mut defs = serde_json::Map::new();
    for step in 0..120 {
        defs.insert(step.to_string(), json!({ "$ref": format!("#/$defs/{}", step + 1) }));
    }
    defs.insert("120".to_owned(), json!({ "properties": { "a": { "$ref": "#/$defs/0" } }, "type": "object" }));
    let schema = json!({ "type": "object", "$ref": "#/$defs/0", "$defs": defs });
    let found = misfits("references", &schema, &nested(125, "1"));
    assert!(found[0].1.contains("too deep"), "{found:?}");
}

#[test]
fn a_union_that_recurs_through_two_branches_names_the_misfit_at_any_depth() {
    let schema = json!({ "type": "object", "anyOf": [
        { "required": ["x"], "properties": { "a": { "$ref": "#" } } },
        { "required": ["y"], "properties": { "a": { "$ref": "#" } } },
    ] });
    for depth in [12, 16, 20, 60, 120] {
        let found = misfits(&format!("depth {depth}"), &schema, &nested(depth, "1"));
        assert!(!found[0].1.contains("too long") && !found[0].1.contains("too deep"), "{found:?}");
    }
}

/// A union of six operations over expressions, and a field.
fn expressions() -> Value {
    let operations = ["add", "and", "max", "min", "mul", "or"].map(|operation| {
        json!({
            "type": "object",
            "properties": { "op": { "const": operation }, "args": { "type": "array", "items": { "$ref": "#/$defs/expression" } } },
            "required": ["op", "args"],
            "additionalProperties": false,
        })
    });
    let field = json!({
        "type": "object", "properties": { "field": { "type": "string" } }, "required": ["field"], "additionalProperties": false,
    });
    let all: Vec<Value> = operations.into_iter().chain([field]).collect();
    json!({
        "type": "object",
        "properties": { "filter": { "$ref": "#/$defs/expression" } },
        "required": ["filter"],
        "$defs": { "expression": { "anyOf": all } },
    })
}

fn filter(depth: usize, leaf: &str) -> String {
    let (before, after) = (r#"{"op":"and","args":[{"field":"b"},"#.repeat(depth), "]}".repeat(depth));
    format!(r#"{{"filter":{before}{leaf}{after}}}"#)
}

#[test]
fn one_misspelt_member_in_a_recursive_union_is_named_with_its_place() {
    for depth in [1, 7, 30] {
        let leaf = "/args/1".repeat(depth);
        let found = misfits("a misspelt field", &expressions(), &filter(depth, r#"{"feild":"a"}"#));
        let misspelt = found.iter().find(|(path, _)| *path == format!("/filter{leaf}/feild"));
        assert!(misspelt.is_some_and(|(_, message)| message.contains("feild")), "{found:?}");
        assert!(found.iter().any(|(_, message)| message.contains("\"field\" is a required")), "{found:?}");
        let found = misfits("a misspelt operation", &expressions(), &filter(depth, r#"{"op":"ad","args":[]}"#));
        assert_eq!(found[0].0, format!("/filter{leaf}/op"), "{found:?}");
        assert!(found[0].1.contains("\"add\"") && found[0].1.contains("\"or\""), "{found:?}");
        let found = misfits("a wrong argument", &expressions(), &filter(depth, r#"{"op":"or","args":[1]}"#));
        assert_eq!(found[0].0, format!("/filter{leaf}/args/0"), "{found:?}");
    }
    let schema = Schema::compile(&expressions().to_string()).expect("a schema");
    let fits = measured("a valid filter", || schema.check(filter(30, r#"{"field":"a"}"#).as_bytes()).is_ok());
    assert!(fits);
}

#[test]
fn large_values_of_wide_schemas_are_checked_or_refused_in_time() {
    let consts: Vec<Value> = (0..3500).map(|n| json!({ "const": n })).collect();
    let schema = json!({ "type": "object", "properties": { "a": { "items": { "anyOf": consts } } } });
    let many = |item: &str, count: usize| format!(r#"{{"a":[{}]}}"#, vec![item; count].join(","));
    let found = misfits("constants", &schema, &many("1.5", 20_000));
    assert!(found[0].1.contains("too long") || found[0].0.starts_with("/a"), "{found:?}");

    let arrays: Vec<Value> = (0..8000).map(|n| json!([n])).collect();
    let schema = json!({ "type": "object", "properties": { "a": { "items": { "enum": arrays } } } });
    let found = misfits("an enum of arrays", &schema, &many("[9000]", 30_000));
    assert!(found[0].0.starts_with("/a/0"), "{found:?}");

    let patterns: serde_json::Map<_, _> = (0..1000).map(|n| (format!("^k{n}$"), json!(true))).collect();
    let schema = json!({ "type": "object", "patternProperties": patterns, "additionalProperties": false });
    let names: serde_json::Map<_, _> = (0..200).map(|n| (format!("x{n}"), json!(1))).collect();
    let found = misfits("names and patterns", &schema, &Value::from(names).to_string());
    assert!(!found.is_empty());

    let found = misfits(
        "names",
        &json!({ "type": "object", "uniqueItems": true, "properties": { "a": { "uniqueItems": true } } }),
        &many("7", 100_000),
    );
    assert_eq!(found[0].0, "/a/1");
}

#[test]
fn many_large_patterns_are_refused_with_the_place_of_the_first_that_is_too_many() {
    let properties: serde_json::Map<_, _> =
        (0..1700).map(|n| (format!("p{n}"), json!({ "pattern": format!(r"\p{{L}}{{99}}{n:04}") }))).collect();
    let schema = json!({ "type": "object", "properties": properties }).to_string();
    let refused = measured("patterns", || Schema::of_arguments(&schema).expect_err("they are too large"));
    let InvalidSchema::Invalid(why) = refused else { panic!("{refused}") };
    assert!(why.contains("/properties/p") && why.contains("patterns are too large"), "{why}");

    let backtracking = json!({ "items": { "pattern": "^(?:(a)|a)*(?!x)b$" } }).to_string();
    let refused = Schema::compile(&backtracking).expect_err("it needs backtracking").to_string();
    assert!(refused.contains("/items/pattern") && refused.contains("lookahead"), "{refused}");

    // Quadratic in their text for engines that look at each state.
    let schema = json!({ "type": "object", "properties": { "a": { "pattern": "^[ab]*a[ab]{9000}$" } } });
    let text: String = (0..200_000_u64).map(|n| if (n * n / 7) % 3 == 0 { 'a' } else { 'b' }).collect();
    let found = misfits("a pattern of many states", &schema, &json!({ "a": text }).to_string());
    assert!(found[0].0 == "/a" && found[0].1.contains("too long"), "{found:?}");
}

#[test]
fn a_large_honest_value_is_taken() {
    let row = json!({ "type": "object", "required": ["id"], "additionalProperties": false, "properties": {
        "id": { "type": "integer" }, "name": { "type": ["string", "null"], "maxLength": 40 },
        "at": { "type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$" }, "kind": { "enum": ["a", "b", "c"] },
    } });
    let schema = json!({ "type": "object", "properties": { "rows": { "type": "array", "items": { "anyOf": [{ "type": "null" }, row] } } } });
    let row = json!({ "id": 12, "name": "someone", "at": "2026-11-22", "kind": "b" });
    let rows = json!({ "rows": vec![row; 4000] }).to_string();
    let schema = Schema::of_arguments(&schema.to_string()).expect("a schema");
    assert!(measured("rows", || schema.check(rows.as_bytes())).is_ok(), "{} bytes", rows.len());
    let many = json!({ "rows": vec![Value::Null; 50_000] }).to_string();
    assert!(measured("nulls", || schema.check(many.as_bytes())).is_ok());
}
