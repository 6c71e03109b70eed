//! Generated schemas and values: what fits is what another implementation says, and no check needs much time, memory or
//! stack, whatever is checked against what.

use std::cell::Cell;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use schema::Schema;
use serde_json::{Map, Value, json};

/// Set in the process that is limited.
const IS_LIMITED: &str = "TOOLYARD_TEST_LIMITED";
/// KiB of address space of that process.
const LIMIT_KIB: u32 = 1024 * 1024;
/// How long it may take.
const TIME_MAX: Duration = Duration::from_secs(60);

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..4_i64).prop_map(Value::from),
        prop::sample::select(vec![0.5, 1.0, 2.5, -1.5]).prop_map(Value::from),
        "[ab1é]{0,3}".prop_map(Value::from),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned)
}

fn value(depth: u32) -> impl Strategy<Value = Value> {
    scalar().prop_recursive(depth, 48, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..4)
                .prop_map(|members| members.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

/// One keyword that holds no other subschema.
fn leaf() -> impl Strategy<Value = (&'static str, Value)> {
    let kind = prop::sample::select(vec!["null", "boolean", "integer", "number", "string", "array", "object"]);
    let count = 0..4_u64;
    let names = || prop::collection::btree_set(name(), 0..3).prop_map(Value::from_iter);
    let pattern = prop::sample::select(vec!["^a", "b$", r"^\w*$", r"\d", "^[ab]{1,2}$", "é", "^(a|b1)+$"]);
    prop_oneof![
        3 => kind.prop_map(|kind| ("type", kind.into())),
        1 => scalar().prop_map(|value| ("const", value)),
        1 => prop::collection::vec(value(1), 1..4).prop_map(|values| ("enum", values.into())),
        1 => (-2..3_i64).prop_map(|limit| ("minimum", limit.into())),
        1 => (-2..3_i64).prop_map(|limit| ("exclusiveMaximum", limit.into())),
        1 => prop::sample::select(vec![0.5, 1.0, 2.0]).prop_map(|of| ("multipleOf", of.into())),
        1 => count.clone().prop_map(|count| ("minLength", count.into())),
        1 => count.clone().prop_map(|count| ("maxItems", count.into())),
        1 => count.clone().prop_map(|count| ("minItems", count.into())),
        1 => count.prop_map(|count| ("maxProperties", count.into())),
        1 => Just(("uniqueItems", true.into())),
        2 => names().prop_map(|names| ("required", names)),
        1 => (name(), names()).prop_map(|(name, names)| ("dependentRequired", json!({ name: names }))),
        2 => pattern.prop_map(|pattern| ("pattern", pattern.into())),
    ]
}

/// A schema whose references lead to `$defs` of the names of members.
fn schema() -> impl Strategy<Value = Value> {
    let leaves = || prop::collection::vec(leaf(), 0..3);
    let plain = leaves().prop_map(Value::from_iter);
    let simple = prop_oneof![
        8 => plain,
        1 => any::<bool>().prop_map(Value::from),
        3 => name().prop_map(|name| json!({ "$ref": format!("#/$defs/{name}") })),
    ];
    simple.prop_recursive(4, 24, 4, move |inner| {
        let list = || prop::collection::vec(inner.clone(), 1..4).prop_map(Value::from);
        let map = |names| prop::collection::btree_map(names, inner.clone(), 1..3).prop_map(Value::from_iter);
        let patterns = prop::sample::select(vec!["^a".to_owned(), "b|c".to_owned(), ".".to_owned()]);
        let one = prop::sample::select(vec![
            "items",
            "contains",
            "additionalProperties",
            "propertyNames",
            "not",
            "if",
            "then",
            "else",
            "unevaluatedItems",
            "unevaluatedProperties",
        ]);
        let keyword = prop_oneof![
            3 => (one, inner.clone()).boxed(),
            3 => (prop::sample::select(vec!["allOf", "anyOf", "oneOf", "prefixItems"]), list()).boxed(),
            3 => (Just("properties"), map(name().boxed())).boxed(),
            1 => (Just("patternProperties"), map(patterns.boxed())).boxed(),
            1 => (Just("dependentSchemas"), map(name().boxed())).boxed(),
        ];
        (prop::collection::vec(keyword, 1..4), prop::collection::vec(leaf(), 0..2))
            .prop_map(|(keywords, leaves)| Value::from_iter(keywords.into_iter().chain(leaves)))
    })
}

fn whole() -> impl Strategy<Value = Value> {
    (schema(), [schema(), schema(), schema()]).prop_map(|(schema, [a, b, c])| {
        let mut schema = if schema.is_object() { schema } else { json!({ "allOf": [schema] }) };
        schema["$defs"] = json!({ "a": a, "b": b, "c": c });
        schema
    })
}

fn object(depth: u32) -> impl Strategy<Value = Value> {
    prop::collection::btree_map(name(), value(depth), 0..4)
        .prop_map(|members| members.into_iter().collect::<Map<_, _>>().into())
}

#[test]
fn what_fits_is_what_another_implementation_says() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) };
    let (compared, fitting) = (Cell::new(0), Cell::new(0));
    let checked = TestRunner::new(config).run(&(whole(), object(3)), |(schema, value)| {
        let Ok(ours) = Schema::compile(&schema.to_string()) else { return Ok(()) };
        if ours.accepts(value.to_string().as_bytes()) == Ok(true) {
            fitting.set(fitting.get() + 1);
        }
        compared.set(compared.get() + 1);
        let other = jsonschema::validator_for(&schema).expect("it takes what we take");
        let found = ours.check(value.to_string().as_bytes());
        prop_assert_eq!(found.is_ok(), other.is_valid(&value), "{} for {}: {:?}", schema, value, found);
        for violation in found.err().into_iter().flatten() {
            prop_assert!(value.pointer(&violation.path).is_some(), "{:?}", violation);
        }
        Ok(())
    });
    checked.expect("they agree");
    let (compared, fitting) = (compared.get(), fitting.get());
    assert!(fitting > 50 && compared - fitting > 50, "{fitting} of {compared} fit: the values are of use");
}

/// Runs in a process of its own, whose memory and time are limited.
#[test]
fn no_check_of_any_schema_needs_much() {
    if std::env::var_os(IS_LIMITED).is_some() {
        return without_much();
    }
    let this = std::env::current_exe().expect("a path");
    let limited = format!("ulimit -v {LIMIT_KIB} && exec \"$0\" --exact no_check_of_any_schema_needs_much --nocapture");
    let mut child = Command::new("sh");
    child.arg("-c").arg(limited).arg(this).env(IS_LIMITED, "1").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("a shell");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            break status;
        }
        if start.elapsed() > TIME_MAX {
            child.kill().expect("it is our child");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut told = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut told).expect("it is text");
    assert!(status.success(), "{status}: {told}");
}

fn without_much() {
    // As small a stack as those of async runtimes.
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(|| {
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(120) };
        let nested = (object(3), 1..120_usize, name());
        let checked = TestRunner::new(config).run(&(whole(), nested), |(mut schema, (value, depth, name))| {
            // Each way leads back to the whole, one step into the value.
            schema["properties"] =
                json!({ "a": { "$ref": "#" }, "b": { "anyOf": [{ "$ref": "#" }, { "$ref": "#/$defs/a" }] } });
            let Ok(schema) = Schema::compile(&schema.to_string()) else { return Ok(()) };
            let text = format!("{}{value}{}", format!("{{\"{name}\":").repeat(depth), "}".repeat(depth));
            let start = Instant::now();
            drop(schema.check(text.as_bytes()));
            let _accepted = schema.accepts(text.as_bytes());
            prop_assert!(start.elapsed() < Duration::from_secs(5), "{} takes too long", text);
            Ok(())
        });
        checked.expect("all were quick");
    });
    thread.expect("a thread").join().expect("no panic");
}
