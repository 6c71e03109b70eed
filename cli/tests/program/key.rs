//! Keys: made, given to a coordinator as a hash, and used; and the audit, which tells who did what and no secret.

use std::fs;

use local::{Broker, BrokerOptions};
use serde_json::Value;

use crate::process::{Background, run};

fn new_key() -> (String, String) {
    let made = run(["key", "new", "-o", "json"]);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    let text = |name: &str| made.json()[0][name].as_str().expect("a text").to_owned();
    (text("key"), text("hash"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_asks_for_keys_and_its_audit_tells_who_did_what() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let ((key, hash), (_, other)) = (new_key(), new_key());
    assert_ne!(hash, other);
    fs::write(at("key"), format!("{key}\n")).expect("written");
    let file = format!(
        "[[callers]]\nname = \"shop\"\ntenant = \"acme\"\nroles = [\"submit\", \"read\", \"approve\"]\nkeys = [\"{hash}\"]\n\
         tools = [{{ names = [\"bash\"] }}]\n"
    );
    fs::write(at("callers.toml"), &file).expect("written");
    let authority = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    fs::write(at("tls.crt"), authority.cert.pem()).expect("written");
    fs::write(at("tls.key"), authority.signing_key.serialize_pem()).expect("written");

    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let url = broker.url();
    let (callers, cert, secret) = (at("callers.toml"), at("tls.crt"), at("tls.key"));
    let words = ["coordinator", "-o", "json", "--listen", "127.0.0.1:0", "--nats-url", &url, "--auth", &callers];
    let process = Background::start(words.iter().chain(&["--tls-cert", &cert, "--tls-key", &secret]));
    let serving = process.stderr.until(|line| line.contains("\"message\":\"serving\""));
    let serving: Value = serde_json::from_str(&serving).expect("a line of JSON");
    let address = serving["fields"]["address"].as_str().or_else(|| serving["address"].as_str()).expect("an address");
    let door = format!("https://{address}");
    let hosting = Background::start(["worker", "-o", "json", "--pool", "main", "--root", "/usr", "--nats-url", &url]);
    hosting.stderr.until(|line| line.contains("\"message\":\"pulling\""));

    let nobody = run(["--url", &door, "--ca", &cert, "tools", "ls"]);
    assert!(nobody.code() == 2 && nobody.stderr().contains("--key-file"), "{}", nobody.stderr());
    let key_file = at("key");
    let shop = |words: &[&str]| run(["--url", &door, "--ca", &cert, "--key-file", &key_file].iter().chain(words));
    let called = shop(&["call", "bash", "command=echo the secret is s3cr3t"]);
    assert!(called.code() == 0 && called.stdout().contains("s3cr3t"), "{}{}", called.stdout(), called.stderr());
    let untrusted = run(["--url", &door, "--key-file", &key_file, "tools", "ls"]);
    assert_eq!(untrusted.code(), 5, "its certificate is not the system's: {}", untrusted.stderr());
    let refused = shop(&["index", "rebuild"]);
    assert!(refused.code() == 2 && refused.stderr().contains("ROLE_MISSING"), "{}", refused.stderr());

    process.signal(rustix::process::Signal::TERM);
    let lines = process.stderr.rest();
    assert!(!lines.iter().any(|line| line.contains("s3cr3t") || line.contains(&key)), "a secret is told: {lines:#?}");
    let audit = |decision: &str, command: &str| {
        let found = lines.iter().filter(|line| line.contains("toolyard::audit"));
        let found = found.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let fields = |line: Value| if line["fields"].is_object() { line["fields"].clone() } else { line };
        let mut found = found.map(fields).filter(|it| it["decision"] == decision && it["command"] == command);
        found.next().unwrap_or_else(|| panic!("no {decision} {command} in {lines:#?}"))
    };
    let admitted = audit("admitted", "ExecuteRun");
    assert_eq!(
        (&admitted["caller"], &admitted["tenant"], &admitted["tool"]),
        (&"shop".into(), &"acme".into(), &"bash".into())
    );
    assert!(admitted["run.id"].as_str().is_some_and(|run| run.starts_with("run_")), "{admitted}");
    assert_eq!(audit("refused", "ListTools")["reason"], "CREDENTIAL_MISSING");
    let refused = audit("refused", "RebuildIndex");
    assert_eq!((&refused["caller"], &refused["reason"]), (&"shop".into(), &"ROLE_MISSING".into()));
}

#[test]
fn a_file_of_callers_with_mistakes_keeps_a_coordinator_from_starting() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("callers.toml");
    fs::write(&file, "[[callers]]\nname = \"shop\"\nroles = [\"sumbit\"]\n").expect("written");
    let file = file.to_str().expect("a path");
    let refused = run(["coordinator", "--auth", file, "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code(), 1, "{}", refused.stderr());
    for place in ["callers.toml", "roles[0]", "tenant"] {
        assert!(refused.stderr().contains(place), "{place} is not in {}", refused.stderr());
    }
}
