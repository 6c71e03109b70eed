//! A manifest decodes to what was advertised, and each possible error in it is reported on its own.

use std::time::Duration;

use proptest::prelude::*;
use run::{
    AfterPartialOutput, Alias, Backoff, Concurrency, Effects, Manifest, Origin, Permission, Policy, RetryOn, ToolName,
    Version, limit,
};
use schema::InvalidSchema;
use serde_json::{Value, json};
use toolyard_proto::convert::manifest::{InvalidManifest, ManifestError, Usable, manifest_in};
use toolyard_proto::convert::worker::{decode_advertisement, encode_advertisement};
use toolyard_proto::v1;

fn name() -> impl Strategy<Value = ToolName> {
    "[A-Za-z0-9_.-]{1,128}".prop_map(|name| name.parse().expect("a tool name"))
}

fn policy() -> impl Strategy<Value = Policy> {
    let ms = || (1..100_000_u64).prop_map(Duration::from_millis);
    let backoff = (ms(), ms(), 0..=100_u8);
    let backoff = backoff.prop_map(|(first, longest, jitter_percent)| Backoff { first, longest, jitter_percent });
    let retry_on = any::<[bool; 5]>();
    let retry_on = retry_on.prop_map(|[retryable, timeout, panic, lost, other]| RetryOn {
        retryable,
        timeout,
        panic,
        lost,
        other,
    });
    let after = prop::sample::select(vec![
        AfterPartialOutput::Restart,
        AfterPartialOutput::Continue,
        AfterPartialOutput::Buffer,
    ]);
    (any::<bool>(), 1..=limit::ATTEMPTS_MAX, ms(), prop::option::of(ms()), backoff, retry_on, after).prop_map(
        |(repeatable, attempts_max, attempt_timeout, idle_timeout, backoff, retry_on, after_partial_output)| Policy {
            repeatable,
            attempts_max,
            attempt_timeout,
            idle_timeout,
            backoff,
            retry_on,
            after_partial_output,
        },
    )
}

prop_compose! {
    fn manifest()(
        name in name(),
        [description, side_effect_scope] in prop::array::uniform2(".{0,60}"),
        [input, output] in prop::array::uniform2("[a-z]{1,9}"),
        has_output in any::<bool>(),
        policy in policy(),
        flags in any::<[bool; 11]>(),
        category in "[a-z ]{0,64}",
        tags in prop::collection::btree_set("[a-z]{1,64}", 0..=limit::TAGS_MAX),
        context_keys in prop::collection::btree_set("[a-z]{1,64}", 0..=limit::CONTEXT_KEYS_MAX),
        permission in prop::sample::select(vec![Permission::Read, Permission::Write, Permission::External]),
        concurrency in prop::sample::select(vec![Concurrency::Parallel, Concurrency::Exclusive]),
        version in prop::option::of("[0-9]{1,9}([.][0-9]{1,9}){0,3}"),
        limit in prop::option::of(1..u32::MAX),
        aliases in prop::collection::btree_map(name(), ".{0,60}", 0..=limit::ALIASES_MAX),
        origin in prop::sample::select(vec![Origin::BuiltIn, Origin::External, Origin::Mcp, Origin::Plugin]),
    ) -> Manifest {
        let [read_only, idempotent, destructive, open_world, definition_only, streaming, .., hidden] = flags;
        let [.., uses_machine, _, _, _, _] = flags;
        let [.., requires_confirmation, is_final, return_direct, _] = flags;
        Manifest {
            aliases: aliases.into_iter().filter(|(alias, _)| *alias != name)
                .map(|(name, description)| Alias { name, description }).collect(),
            name,
            description,
            input_schema: json!({ "type": "object", "required": [input] }).to_string(),
            output_schema: if has_output { json!({ "const": output }).to_string() } else { String::new() },
            effects: Effects { read_only, idempotent, destructive, open_world, uses_machine },
            policy,
            definition_only,
            streaming,
            category,
            permission,
            side_effect_scope,
            requires_confirmation,
            tags: tags.into_iter().collect(),
            result_use: run::ResultUse { is_final, return_direct, hidden },
            concurrency,
            version: version.map(|version| version.parse().expect("a version")),
            max_concurrent: limit,
            running_max: limit.map(|limit| limit / 2 + 1),
            exclusive_when: if has_output { json!({ "required": [output] }).to_string() } else { String::new() },
            parallel_when: if is_final { json!(true).to_string() } else { String::new() },
            context_keys: context_keys.into_iter().collect(),
            origin,
            title: format!("Title of {input}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn every_field_comes_back_as_it_was_advertised(manifests in prop::collection::vec(manifest(), 0..4)) {
        let (_, advertised) = encode_advertisement(manifests.iter());
        let decoded = decode_advertisement(advertised).expect("an advertisement").into_iter();
        let decoded: Vec<Manifest> = decoded.map(|tool| tool.expect("it can be used").manifest).collect();
        prop_assert_eq!(decoded, manifests);
    }

    #[test]
    fn a_version_with_a_higher_number_is_newer(numbers in prop::collection::vec(0..1000_u64, 1..4), at in 0..4_usize) {
        let written = |numbers: &[u64]| -> Version {
            numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".").parse().expect("a version")
        };
        let at = at % numbers.len();
        let mut higher = numbers.clone();
        higher[at] += 1;
        higher.truncate(at + 1);
        prop_assert!(written(&higher) > written(&numbers));
    }
}

fn tool() -> v1::Tool {
    let input_schema = r#"{"type":"object"}"#.to_owned();
    v1::Tool { name: "tool".to_owned(), input_schema, ..v1::Tool::default() }
}

fn refused(tool: v1::Tool) -> InvalidManifest {
    manifest_in(tool).expect_err("it cannot be used")
}

#[test]
fn what_is_not_said_follows_from_what_is() {
    let classes = |read_only, open_world| {
        let effects = Some(v1::ToolEffects { read_only, open_world, ..v1::ToolEffects::default() });
        let Usable { manifest, .. } = manifest_in(v1::Tool { effects, ..tool() }).expect("it can be used");
        (manifest.permission, manifest.concurrency)
    };
    assert_eq!(classes(true, false), (Permission::Read, Concurrency::Parallel));
    assert_eq!(classes(true, true), (Permission::Read, Concurrency::Parallel));
    assert_eq!(classes(false, true), (Permission::External, Concurrency::Exclusive));
    assert_eq!(classes(false, false), (Permission::Write, Concurrency::Exclusive));
}

#[test]
fn each_field_that_is_wrong_is_refused_by_its_name() {
    let schema = |value: Value| value.to_string();
    let alias = |name: &str| v1::ToolAlias { name: name.to_owned(), description: String::new() };
    let policy = || v1::ToolPolicy { attempts_max: 1, ..v1::ToolPolicy::default() };
    let time = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let of = |policy| v1::Tool { policy: Some(policy), ..tool() };
    let endless = json!({ "type": "object", "allOf": [{ "$ref": "#" }] });
    let foreign = json!({ "type": "object", "$ref": "http://example.org/schema" });
    let cases = [
        ("name", v1::Tool { name: String::new(), ..tool() }),
        ("name", v1::Tool { name: "n".repeat(129), ..tool() }),
        ("name", v1::Tool { name: "no such name!".to_owned(), ..tool() }),
        ("description", v1::Tool { description: "d".repeat(10 << 20), ..tool() }),
        ("input_schema", v1::Tool { input_schema: String::new(), ..tool() }),
        ("input_schema", v1::Tool { input_schema: schema(json!({ "type": "array" })), ..tool() }),
        ("input_schema", v1::Tool { input_schema: schema(endless.clone()), ..tool() }),
        ("input_schema", v1::Tool { input_schema: schema(foreign.clone()), ..tool() }),
        (
            "input_schema",
            v1::Tool {
                input_schema: schema(json!({ "type": "object", "$id": "http://x.org/" })).replace("$id", "$dynamicRef"),
                ..tool()
            },
        ),
        ("output_schema", v1::Tool { output_schema: schema(json!({ "type": "objekt" })), ..tool() }),
        ("output_schema", v1::Tool { output_schema: "{ not json".to_owned(), ..tool() }),
        ("output_schema", v1::Tool { output_schema: schema(endless.clone()), ..tool() }),
        ("output_schema", v1::Tool { output_schema: schema(foreign.clone()), ..tool() }),
        ("category", v1::Tool { category: "c".repeat(65), ..tool() }),
        ("category", v1::Tool { category: "line\nbreak".to_owned(), ..tool() }),
        ("permission", v1::Tool { permission: 9, ..tool() }),
        ("side_effect_scope", v1::Tool { side_effect_scope: "s".repeat(257), ..tool() }),
        ("tags", v1::Tool { tags: (0..33).map(|tag| tag.to_string()).collect(), ..tool() }),
        ("tags", v1::Tool { tags: vec![String::new()], ..tool() }),
        ("tags", v1::Tool { tags: vec!["t".repeat(65)], ..tool() }),
        ("tags", v1::Tool { tags: vec!["line\nbreak".to_owned()], ..tool() }),
        ("tags", v1::Tool { tags: vec!["twice".to_owned(), "twice".to_owned()], ..tool() }),
        ("context_keys", v1::Tool { context_keys: (0..33).map(|key| key.to_string()).collect(), ..tool() }),
        ("context_keys", v1::Tool { context_keys: vec!["k".repeat(65)], ..tool() }),
        ("context_keys", v1::Tool { context_keys: vec![String::new()], ..tool() }),
        ("context_keys", v1::Tool { context_keys: vec!["twice".to_owned(), "twice".to_owned()], ..tool() }),
        ("concurrency", v1::Tool { concurrency: -1, ..tool() }),
        ("exclusive_when", v1::Tool { exclusive_when: "{ not json".to_owned(), ..tool() }),
        ("exclusive_when", v1::Tool { exclusive_when: schema(json!({ "allOf": [{ "$ref": "#" }] })), ..tool() }),
        ("exclusive_when", v1::Tool { exclusive_when: schema(foreign), ..tool() }),
        ("parallel_when", v1::Tool { parallel_when: schema(json!({ "type": "objekt" })), ..tool() }),
        ("parallel_when", v1::Tool { parallel_when: schema(endless), ..tool() }),
        ("version", v1::Tool { version: "1.x".to_owned(), ..tool() }),
        ("version", v1::Tool { version: "1..2".to_owned(), ..tool() }),
        ("version", v1::Tool { version: format!("0.{}", "1".repeat(70)), ..tool() }),
        ("aliases", v1::Tool { aliases: (0..17).map(|name| alias(&name.to_string())).collect(), ..tool() }),
        ("aliases", v1::Tool { aliases: vec![alias("tool")], ..tool() }),
        ("aliases", v1::Tool { aliases: vec![alias("same"), alias("same")], ..tool() }),
        ("aliases.name", v1::Tool { aliases: vec![alias("white space")], ..tool() }),
        ("policy.attempts_max", of(v1::ToolPolicy { attempts_max: 1001, ..policy() })),
        ("policy.attempt_timeout", of(v1::ToolPolicy { attempt_timeout: time(-1), ..policy() })),
        ("policy.attempt_timeout", of(v1::ToolPolicy { attempt_timeout: time(0), ..policy() })),
        ("policy.attempt_timeout", of(v1::ToolPolicy { attempt_timeout: time(25 * 3600), ..policy() })),
        ("policy.idle_timeout", of(v1::ToolPolicy { idle_timeout: time(-5), ..policy() })),
        ("policy.idle_timeout", of(v1::ToolPolicy { idle_timeout: time(25 * 3600), ..policy() })),
        ("policy.backoff_first", of(v1::ToolPolicy { backoff_first: time(i64::MAX), ..policy() })),
        ("policy.backoff_longest", of(v1::ToolPolicy { backoff_longest: time(i64::MIN), ..policy() })),
        ("policy.backoff_jitter_percent", of(v1::ToolPolicy { backoff_jitter_percent: Some(300), ..policy() })),
        ("policy.after_partial_output", of(v1::ToolPolicy { after_partial_output: 7, ..policy() })),
    ];
    for (field, tool) in cases {
        let error = refused(tool);
        let told: Vec<String> = error.faults.iter().map(ToString::to_string).collect();
        assert!(told.iter().all(|fault| fault.starts_with(field) && fault.len() < 1000), "{field}: {told:?}");
        assert!(error.to_string().len() < 2000, "{field} is told in short");
    }
}

#[test]
fn a_name_has_the_characters_that_every_vendor_could_be_told() {
    for name in ["a", "9.lives", "get-city_Time.v2", &"n".repeat(128)] {
        assert!(manifest_in(v1::Tool { name: name.to_owned(), ..tool() }).is_ok(), "{name}");
    }
    for name in ["", " ", "a b", "a/b", "a\0b", "a\nb", "größe", "名前", "a:b", "a@b", "*", "{a,b}", &"n".repeat(129)]
    {
        let error = refused(v1::Tool { name: name.to_owned(), ..tool() });
        assert!(
            matches!(error.faults.as_slice(), [ManifestError::Malformed { field: "name", .. }]),
            "{name:?}: {error}"
        );
    }
}

#[test]
fn ten_megabytes_of_any_text_are_refused_in_few_words() {
    let text = || "x".repeat(10 << 20);
    let alias = |name, description| vec![v1::ToolAlias { name, description }];
    let (name, other) = (String::new, || "other".to_owned());
    let cases = [
        ("name", v1::Tool { name: text(), ..tool() }),
        ("description", v1::Tool { description: text(), ..tool() }),
        ("input_schema", v1::Tool { input_schema: text(), ..tool() }),
        ("output_schema", v1::Tool { output_schema: text(), ..tool() }),
        ("category", v1::Tool { category: text(), ..tool() }),
        ("side_effect_scope", v1::Tool { side_effect_scope: text(), ..tool() }),
        ("tags", v1::Tool { tags: vec![text()], ..tool() }),
        ("tags", v1::Tool { tags: vec![text(), text()], ..tool() }),
        ("version", v1::Tool { version: text(), ..tool() }),
        ("version", v1::Tool { version: "1.".repeat(5 << 20), ..tool() }),
        ("aliases.name", v1::Tool { aliases: alias(text(), name()), ..tool() }),
        ("aliases.description", v1::Tool { aliases: alias(other(), text()), ..tool() }),
        ("exclusive_when", v1::Tool { exclusive_when: text(), ..tool() }),
        ("parallel_when", v1::Tool { parallel_when: text(), ..tool() }),
        ("context_keys", v1::Tool { context_keys: vec![text()], ..tool() }),
        ("title", v1::Tool { title: text(), ..tool() }),
    ];
    for (field, tool) in cases {
        let error = refused(tool);
        assert!(error.faults.iter().all(|fault| fault.to_string().starts_with(field)), "{field}");
        assert!(error.to_string().len() < 2000, "{field} is told in {} bytes", error.to_string().len());
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let error = refused(v1::Tool {
        name: "no name".to_owned(),
        input_schema: "{".to_owned(),
        version: "new".to_owned(),
        tags: vec![String::new()],
        ..tool()
    });
    let [
        ManifestError::Malformed { field: "version", .. },
        ManifestError::Malformed { field: "name", .. },
        ManifestError::NotPlain { .. },
        ManifestError::Schema { error: InvalidSchema::NotJson(_), .. },
    ] = error.faults.as_slice()
    else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("no name"), "{error}");
}

#[test]
fn a_tool_that_cannot_be_used_leaves_the_others_usable() {
    use prost::Message as _;
    let bad = v1::Tool { input_schema: "[]".to_owned(), ..tool() };
    let advertisement = toolyard_proto::wire::v1::Advertisement { version: 1, tools: vec![bad, tool()] };
    let tools = decode_advertisement(advertisement.encode_to_vec().into()).expect("an advertisement");
    assert!(tools[0].is_err() && tools[1].is_ok());
}
