//! Tests of the file of callers: which files are accepted, which caller matches, and how mistakes are reported.

use super::*;

fn mistakes(text: &str) -> Vec<String> {
    File::parse(Path::new("callers.toml"), text).expect("sound TOML").check(None).expect_err("it has mistakes")
}

#[test]
fn every_mistake_is_told_with_its_place() {
    let (key, hash) = new_key();
    let text = format!(
        r#"
        [[callers]]
        name = "a b"
        roles = ["sumbit"]
        keys = ["{key}"]

        [[callers]]
        name = "twice"
        tenant = "acme"
        roles = ["read"]
        keys = ["{hash}"]
        tools = [{{}}, {{ classes = ["all"], names = ["[x"] }}]

        [[callers]]
        name = "twice"
        tenant = "acme"
        tenant_claim = "org"
        roles = ["admin"]
        keys = ["{hash}"]
        certificates = ["cron"]
        jwt = {{ sub = "x" }}

        [jwt]
        jwks = "http://issuer/keys"

        [tenant]
        tools = []

        [tenants.acme]
        without = [{{ names = ["bash"] }}, {{ classes = ["all"] }}]
        "#
    );
    let found = mistakes(&text);
    let places = [
        "callers[0] (\"a b\").name",
        "callers[0] (\"a b\").roles[0]",
        "callers[0] (\"a b\").roles:",
        "callers[0] (\"a b\").tenant",
        "callers[0] (\"a b\").keys[0]",
        "callers[1] (\"twice\").tools[0]",
        "callers[1] (\"twice\").tools[1].classes",
        "callers[1] (\"twice\").tools[1].names",
        "callers[2] (\"twice\").name",
        "callers[2] (\"twice\").tenant_claim",
        "callers[2] (\"twice\").keys[0]",
        "callers[2] (\"twice\").certificates[0]",
        "jwt.audience",
        "jwt.jwks",
        "tenant.tools:",
        "tenants.acme.without[1].classes",
    ];
    for place in places {
        assert!(found.iter().any(|mistake| mistake.starts_with(place)), "{place} is not among {found:#?}");
    }
    assert!(!found.concat().contains(&key), "a key is told: {found:#?}");
}

#[test]
fn what_cannot_be_read_is_told_with_line_and_column() {
    let error = File::parse(Path::new("callers.toml"), "[[callers]]\nnam = \"x\"\n").expect_err("no such field");
    assert!(error.contains("line 2") && error.contains("nam"), "{error}");
    let error = File::parse(Path::new("callers.json"), "{\n \"callers\": [{ \"name\": 3 }] }").expect_err("no text");
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn an_empty_file_knows_nobody() {
    let book = File::parse(Path::new("callers.toml"), "").expect("sound").check(None).expect("no mistakes");
    assert!(book.by_key(&new_key().0).is_none());
    assert!(book.by_claims(&Map::new()).is_err() && book.by_certificate(b"").is_none());
}

#[test]
fn what_a_tokens_bearer_gives_out_ends_with_the_token() {
    let text = "[jwt]\njwks = 'k'\naudience = ['a']\n[[callers]]\nname = 'p'\ntenant = 't'\nroles = ['read']\n\
                jwt = { sub = 's' }";
    let book = File::parse(Path::new("callers.toml"), text).expect("sound").check(None).expect("no mistakes");
    let claims = serde_json::json!({ "sub": "s", "exp": 7 });
    let known = book.by_claims(claims.as_object().expect("an object")).expect("it is known");
    let caller = Caller::Known(Arc::new(known));
    assert_eq!(caller.gives_until(Timestamp(9000)), Timestamp(7000));
    assert_eq!(caller.gives_until(Timestamp(6000)), Timestamp(6000));
}

#[test]
fn a_weight_that_is_out_of_range_is_refused_with_its_value() {
    for (weight, is_fine) in [(0, false), (1, true), (1000, true), (1001, false)] {
        let text = format!("[quotas.acme]\nweight = {weight}\n");
        let found = File::parse(Path::new("callers.toml"), &text).expect("sound TOML").check(None);
        let found = found.err().unwrap_or_default();
        let told = found.iter().any(|mistake| mistake.contains(&format!("weight {weight} is not from 1 to 1000")));
        assert_eq!(told, !is_fine, "{found:?}");
    }
}
