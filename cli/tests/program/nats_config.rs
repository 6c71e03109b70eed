//! The broker's configuration: written once, and good for a broker that asks for keys and speaks TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use local::{Broker, BrokerOptions};
use serde_json::Value;

use crate::process::{Background, run};

fn config(arguments: &[&str]) -> Vec<Value> {
    let ended = run(["nats-config", "-o", "json"].iter().chain(arguments));
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    ended.json()
}

/// The user's public key and the file of its seed.
fn key(said: &[Value], user: &str) -> (String, String) {
    let keys = said[0]["keys"].as_array().expect("it lists the keys");
    let key = keys.iter().find(|key| key["user"] == user).unwrap_or_else(|| panic!("{user} is not among {keys:#?}"));
    let text = |name: &str| key[name].as_str().expect("a text").to_owned();
    (text("public_key"), text("file"))
}

#[test]
fn keys_are_secret_and_stay_what_they_are_when_a_pool_is_added() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("broker");
    let out = out.to_str().expect("a path");
    let first = config(&["--out", out, "--pool", "main"]);
    let (public, file) = key(&first, "pool-main");
    let seed = fs::read_to_string(&file).expect("the key was written");
    assert!(seed.starts_with("SU") && public.starts_with('U'));
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(Path::new(&file)), mode(&Path::new(out).join("keys"))), (0o600, 0o700));

    let second = run(["nats-config", "--out", out, "--pool", "main", "--pool", "builds", "--pool", "main"]);
    assert_eq!(second.code(), 0, "{}", second.stderr());
    assert_eq!(fs::read_to_string(&file).expect("it is there"), seed);
    let accounts = fs::read_to_string(Path::new(out).join("accounts.conf")).expect("it was written");
    assert!(accounts.contains(&public) && accounts.contains("ty.run.*.*.*.out.builds"));
    assert_eq!(accounts.matches("nkey:").count(), 5, "a coordinator, an observer, an operator, two pools: {accounts}");
    assert_eq!(
        accounts.matches("users = [").count(),
        4,
        "each in an account of its own, but for the operator: {accounts}"
    );
    let (_, operator) = key(&first, "operator");
    assert_eq!(Path::new(&operator).parent(), Some(Path::new(out)), "not among the keys that are given to others");
    for text in [&second.stdout(), &second.stderr(), &accounts, &first[0].to_string()] {
        assert!(!text.contains(seed.trim()), "a secret is told: {text}");
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let alone = run(["nats-config", "--out", out, "--durability", "strict"]);
    assert_eq!(alone.code(), 2);
    assert!(alone.stderr().contains("--route"), "{}", alone.stderr());
    assert_eq!(run(["nats-config", "--out", out, "--tls-cert", "a.pem"]).code(), 2);
    let tls = ["--tls-cert", "a.crt", "--tls-key", "a.key"];
    for tls in [&[][..], &tls] {
        let open = run(["nats-config", "--out", out, "--route", "nats-route://a:6222"].iter().chain(tls));
        assert!(open.code() == 2 && open.stderr().contains("--tls-ca"), "{}", open.stderr());
    }
    assert_eq!(run(["nats-config", "--out", out, "--pool", "not a name"]).code(), 2);
    fs::create_dir(folder.path().join("keys")).expect("made");
    fs::write(folder.path().join("keys/coordinator.nk"), "SUGARBAGE").expect("written");
    let garbage = run(["nats-config", "--out", out]);
    assert!(garbage.code() == 2 && garbage.stderr().contains("coordinator.nk"), "{}", garbage.stderr());
}

#[test]
fn a_strict_cluster_is_told_to_write_at_once_and_to_know_its_servers() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let routes = ["--route", "nats-route://a:6222", "--route", "nats-route://b:6222", "--route", "nats-route://c:6222"];
    let tls = ["--tls-cert", "/tls/tls.crt", "--tls-key", "/tls/tls.key", "--tls-ca", "/tls/ca.crt"];
    config(&[&["--out", out, "--durability", "strict", "--monitor-port", "8222"], &routes[..], &tls[..]].concat());
    let text = fs::read_to_string(folder.path().join("nats.conf")).expect("it was written");
    for part in ["sync_interval: always", "nats-route://b:6222", "verify: true", "http_port: 8222"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_works_with_the_configuration_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, secret) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    fs::write(&cert, made.cert.pem()).expect("written");
    fs::write(&secret, made.signing_key.serialize_pem()).expect("written");
    let [out, cert, secret] = [folder.path(), &cert, &secret].map(|path| path.to_str().expect("a path"));
    let said = config(&["--out", out, "--pool", "main", "--tls-cert", cert, "--tls-key", secret]);
    let [coordinator, observer, worker] = ["coordinator", "observer", "pool-main"].map(|user| key(&said, user).1);

    // The name, the port and the folder are the test's.
    let conf = folder.path().join("nats.conf");
    let text = fs::read_to_string(&conf).expect("it was written").replace("$SERVER_NAME", "alone");
    let text = text.replace("  store_dir: \"/data\"\n", "");
    fs::write(&conf, text).expect("written");
    let options = BrokerOptions { config: Some(conf), ..BrokerOptions::default() };
    let broker = Broker::start(options, |_| {}).await.expect("the broker takes its configuration");
    let url = broker.url();
    let as_whom = |command: &[&str], nkey: &str| -> Vec<String> {
        let broker = ["--nats-url", &url, "--nats-ca", cert, "--nats-nkey", nkey];
        command.iter().chain(&broker).map(|&word| word.to_owned()).collect()
    };
    let process = Background::start(as_whom(&["coordinator", "-o", "json", "--listen", "127.0.0.1:0"], &coordinator));
    let serving = process.stderr.until(|line| line.contains("\"message\":\"serving\""));
    let serving: Value = serde_json::from_str(&serving).expect("a line of JSON");
    let address = serving["fields"]["address"].as_str().or_else(|| serving["address"].as_str()).expect("an address");
    let hosting = Background::start(as_whom(&["worker", "-o", "json", "--pool", "main", "--root", "/usr"], &worker));
    hosting.stderr.until(|line| line.contains("\"message\":\"pulling\""));
    let door = format!("http://{address}");
    let called = run(["call", "--url", &door, "bash", "command=echo hello"]);
    assert_eq!(called.code(), 0, "{}", called.stderr());
    assert!(called.stdout().contains("hello"), "{}", called.stdout());
    // A command cannot read the key, wherever it is; and no worker starts in a folder with its key.
    for read in [format!("cat {worker}"), "cat /proc/$PPID/environ /proc/[0-9]*/environ | tr '\\0' '\\n'".to_owned()] {
        let attack = run(["call", "--url", &door, "bash", &format!("command={read}")]);
        let said = attack.stdout();
        assert!(!said.contains("SU") && !said.contains("TOOLYARD_"), "{read}: {said}");
    }
    let beside = Path::new(&worker).parent().expect("a folder").to_str().expect("a path of text");
    let refused = run(as_whom(&["worker", "--pool", "main", "--root", beside], &worker));
    assert!(refused.code() == 1 && refused.stderr().contains("must not read"), "{}", refused.stderr());
    let well = run(as_whom(&["doctor"], &observer));
    assert_eq!(well.code(), 0, "{}", well.stdout());

    // The queue of a pool that no worker has come for yet, as an autoscaler finds it.
    let queued = run(as_whom(&["queues", "builds"], &coordinator));
    assert_eq!((queued.code(), queued.stdout().trim()), (0, "pool-builds"), "{}", queued.stderr());
    let refused = run(as_whom(&["queues", "builds", "--durability", "standard"], &coordinator));
    assert!(refused.code() == 1 && refused.stderr().contains("replicas"), "{}", refused.stderr());

    // Without the certificate, or with a key that is none, nobody gets in.
    let untrusted = run(["doctor", "--nats-url", &url, "--nats-nkey", &observer]);
    assert_eq!(untrusted.code(), 1, "{}", untrusted.stdout());
    let no_key = run(as_whom(&["doctor"], cert));
    assert!(no_key.stdout().contains("not the seed"), "{}", no_key.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_an_older_configuration_in_which_all_pools_share_an_account() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let (public, seed) = key(&config(&["--out", out, "--pool", "main"]), "observer");
    let older = folder.path().join("older.conf");
    let text = format!("accounts {{\n TOOLYARD {{\n jetstream: enabled\n users = [ {{ nkey: {public} }} ]\n }}\n}}\n");
    fs::write(&older, text).expect("written");
    let options = BrokerOptions { config: Some(older), ..BrokerOptions::default() };
    let broker = Broker::start(options, |_| {}).await.expect("the broker takes its configuration");
    let found = run(["doctor", "--nats-url", &broker.url(), "--nats-nkey", &seed]);
    assert_eq!(found.code(), 1);
    let line = found.stdout().lines().find(|line| line.contains("accounts")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("{}", found.stdout()));
    assert!(line.starts_with("fail") && line.contains("older release"), "{line}");
}
