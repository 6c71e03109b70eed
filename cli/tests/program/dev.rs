//! `toolyard dev` with the options of a deployment: callers, TLS, an admin port.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::process::{Dev, Ended, run, toolyard};

#[test]
fn dev_authenticates_callers_over_tls_and_has_an_admin_port() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let made = run(["key", "new", "-o", "json"]).json().remove(0);
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    std::fs::write(path("ops.key"), text("key")).expect("it can be written");
    let caller = format!(
        "[[callers]]\nname = \"ops\"\nroles = [\"admin\"]\ntools = [{{ names = [\"*\"] }}]\nkeys = [\"{}\"]\n",
        text("hash")
    );
    std::fs::write(path("callers.toml"), caller).expect("it can be written");
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(path("tls.crt"), certified.cert.pem()).expect("it can be written");
    std::fs::write(path("tls.key"), certified.signing_key.serialize_pem()).expect("it can be written");
    // Free a moment ago.
    let admin =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").to_string();

    let (auth, key, certificate, tls_key) = (path("callers.toml"), path("ops.key"), path("tls.crt"), path("tls.key"));
    let options = [
        ["--auth", &auth],
        ["--key-file", &key],
        ["--tls-cert", &certificate],
        ["--tls-key", &tls_key],
        ["--ca", &certificate],
        ["--admin-listen", &admin],
    ];
    let dev = Dev::with(&options.concat());
    assert!(dev.url().starts_with("https://127.0.0.1:"), "{}", dev.url());
    let unknown = dev.run(["tools", "ls", "--ca", &certificate]);
    assert!(unknown.code() == 2 && unknown.stderr().contains("--key-file"), "{}", unknown.stderr());
    let untrusted = dev.run(["tools", "ls", "--key-file", &key]);
    assert_eq!(untrusted.code(), 5, "{}", untrusted.stderr());
    let mut call = toolyard(["--url", dev.url(), "--ca", &certificate, "--key-file", &key]);
    call.args(["call", "get_current_time", "time_zone=UTC"]);
    let called = Ended::of(&mut call);
    assert_eq!(called.code(), 0, "{}", called.stderr());
    let tools = dev.run(["tools", "ls", "--ca", &certificate, "--key-file", &key, "-o", "name"]).stdout();
    assert!(tools.lines().any(|tool| tool == "team_agent"), "tools that call the fleet have the key: {tools}");

    let mut probe = TcpStream::connect(&admin).expect("the admin port");
    probe
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        .expect("it takes a request");
    let mut answer = String::new();
    probe.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains(" 200 "), "{answer}");
}
