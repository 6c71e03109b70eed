//! Whatever a model writes as arguments: it fits, or is refused with places that are there. Never a panic.

use std::sync::LazyLock;

use proptest::prelude::*;
use schema::{Schema, describe};
use serde_json::{Map, Value, json};

/// One of everything that says where something is wrong.
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": { "type": "integer", "minimum": 0 },
            "b": { "type": "array", "items": { "$ref": "#/$defs/point" }, "maxItems": 2 },
            "a/b~c": { "type": "string", "pattern": "^[a-z]*$" },
            "d": { "oneOf": [{ "type": "null" }, { "type": "object", "required": ["a"] }] },
        },
        "required": ["a"],
        "additionalProperties": false,
        "$defs": { "point": { "type": "object", "properties": { "x": { "enum": [1, "one"] } }, "required": ["x"] } },
    });
    Schema::of_arguments(&schema.to_string()).expect("a schema")
});

/// JSON of which parts are likely to be known to the schema.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,9}".prop_map(Value::from),
    ];
    let key = prop_oneof![prop::sample::select(vec!["a", "b", "a/b~c", "d", "x"]).prop_map(str::to_owned), ".{0,3}"];
    leaf.prop_recursive(4, 64, 5, move |inner| {
        let members = prop::collection::vec((key.clone(), inner.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| members.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn any_bytes_are_taken_or_refused(arguments in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Err(violations) = SCHEMA.check(&arguments) {
            prop_assert!(!violations.is_empty() && !describe(&violations).is_empty());
        }
    }

    #[test]
    fn any_json_is_taken_as_it_is_or_refused_with_places_that_are_there(value in value()) {
        let text = value.to_string();
        match SCHEMA.check(text.as_bytes()) {
            Ok(taken) => {
                let as_it_is = if value.is_null() { json!({}) } else { value };
                prop_assert_eq!(&taken, &as_it_is);
                // A null takes the place of no arguments, which lack what is required.
                // A number with no fraction is an integer, however it is written: `-0.0`, `1e300`.
                prop_assert!(taken["a"].as_f64().is_some_and(|a| a >= 0.0 && a.fract() == 0.0), "{}", taken);
            }
            Err(violations) => {
                prop_assert!(!violations.is_empty());
                for violation in &violations {
                    prop_assert!(value.pointer(&violation.path).is_some() || violation.path.ends_with('…'), "{:?}", violation);
                    prop_assert!(!violation.message.is_empty() && violation.message.len() < 4000);
                }
            }
        }
    }

    #[test]
    fn what_was_cut_off_is_refused_and_what_was_spoilt_says_why_if_it_is(value in value(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = value.to_string().into_bytes();
        let at = at.index(text.len());
        prop_assert!(SCHEMA.check(&text[..at]).is_err(), "the beginning of something is nothing");
        text[at] = byte;
        if let Err(violations) = SCHEMA.check(&text) {
            prop_assert!(!violations.is_empty());
        }
    }
}
