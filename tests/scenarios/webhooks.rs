//! Webhooks: configured endpoints receive notifications of runs, signed, in order, and after any crash.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{Client, Fixture, Keys, PATIENCE, Run, Shards, Yard, call, client_answer, reason};
use proto::v1::{self, FloorPolicy};
use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backup::{back_up, restore};
use crate::{FIXTURE, check, question};

const SECRETS: [&str; 2] = ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"];
const CONTENT: &str = "the-owl-flies-at-dusk";

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Received {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a notice is JSON")
    }

    fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub(crate) fn what(&self) -> (String, String) {
        let json = self.json();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        (text(&json["data"]["run_id"]), text(&json["type"]))
    }

    /// Checks it as a receiver does that has one of the secrets.
    fn verify(&self, secret: &str) {
        use base64::Engine as _;
        let base64 = base64::prelude::BASE64_STANDARD;
        let key = base64.decode(secret.trim_start_matches("whsec_")).expect("a secret");
        let at = &self.headers["webhook-timestamp"];
        let age = i128::from(::nats::now().0 / 1000) - at.parse::<i128>().expect("seconds");
        assert!((-5..60).contains(&age), "{age}");
        let signed = [format!("{}.{at}.", self.id()).as_bytes(), &self.body].concat();
        let expected = format!("v1,{}", base64.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed)));
        assert!(self.headers["webhook-signature"].split(' ').any(|one| one == expected), "{self:?}");
    }
}

type Answer = Arc<Mutex<Box<dyn FnMut(&Received) -> u16 + Send>>>;

/// An endpoint that receives notifications, and answers as a test sets.
pub(crate) struct Receiver {
    pub(crate) url: String,
    answer: Answer,
    /// The notifications that were answered with success.
    taken: mpsc::Receiver<Received>,
    _serving: JoinSet<()>,
}

impl Receiver {
    pub(crate) async fn start(answer: impl FnMut(&Received) -> u16 + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hooks", listener.local_addr().expect("it listens"));
        let (sender, taken) = mpsc::channel(1024);
        let answer: Answer = Arc::new(Mutex::new(Box::new(answer)));
        let mut serving = JoinSet::new();
        let answering = Arc::clone(&answer);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&answering), sender.clone()));
            }
        });
        Self { url, answer, taken, _serving: serving }
    }

    fn answers(&self, answer: impl FnMut(&Received) -> u16 + Send + 'static) {
        *self.answer.lock().expect("nobody panicked") = Box::new(answer);
    }

    pub(crate) async fn next(&mut self) -> Received {
        tokio::time::timeout(PATIENCE, self.taken.recv()).await.expect("a notice comes in time").expect("it serves")
    }
}

async fn serve(mut stream: TcpStream, answer: Answer, taken: mpsc::Sender<Received>) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await.unwrap_or_default() == 0 {
                return;
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text");
        assert!(head.starts_with("POST /hooks HTTP/1.1\r\n"), "{head}");
        let headers = head.lines().filter_map(|line| line.split_once(": "));
        let headers: HashMap<_, _> = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let length: usize = headers["content-length"].parse().expect("a number");
        while bytes.len() < end + length {
            if stream.read_buf(&mut bytes).await.unwrap_or_default() == 0 {
                return;
            }
        }
        let received = Received { headers, body: bytes[end..end + length].to_vec() };
        bytes.drain(..end + length);
        let status = (answer.lock().expect("nobody panicked"))(&received);
        if (200..300).contains(&status) {
            drop(taken.try_send(received));
        }
        let answered = stream.write_all(format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
        if answered.is_err() {
            return;
        }
    }
}

/// A file of webhooks, and the folder that it lies in.
pub(crate) struct File(TempDir);

impl File {
    pub(crate) fn new(url: &str, lines: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, secret) in ["new.secret", "old.secret"].into_iter().zip(SECRETS) {
            std::fs::write(folder.path().join(name), secret).expect("it can be written");
        }
        let secrets = r#"secret_files = ["new.secret", "old.secret"]"#;
        let text = format!("[[endpoint]]\nname = \"agents\"\nurl = \"{url}\"\n{secrets}\n{lines}\n");
        std::fs::write(folder.path().join("webhooks.toml"), text).expect("it can be written");
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("webhooks.toml")
    }

    pub(crate) fn fixture(&self) -> Fixture {
        Fixture::new(FIXTURE).with("TOOLYARD_WEBHOOKS", self.path().display())
    }
}

fn echo(text: &str) -> v1::NewCall {
    call("echo", "echo", json!({ "text": text }))
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Run {
    let run = client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("a run");
    Run { client: client.clone(), id: run.run_id }
}

async fn parked(client: &Client) -> Vec<v1::ParkedWebhook> {
    let request = v1::ListParkedWebhooksRequest::default();
    client.webhooks.clone().list_parked_webhooks(request).await.expect("it is listed").into_inner().webhooks
}

async fn until_parked(client: &Client, count: usize) -> Vec<v1::ParkedWebhook> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let parked = parked(client).await;
        if parked.len() == count {
            return parked;
        }
        assert!(Instant::now() < give_up, "{parked:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_signed_notice_tells_where_a_run_stands_and_nothing_of_its_content() {
    let mut receiver = Receiver::start(|_| 204).await;
    let file = File::new(&receiver.url, "");
    let yard = Yard::start_with(file.fixture()).await;
    let _worker = yard.worker().await;
    let calls = vec![echo(CONTENT), question("ask")];
    let request = v1::CreateRunRequest { calls, tenant: "acme".to_owned(), ..v1::CreateRunRequest::default() };
    let run = create(&yard.client, request).await;
    let asks = receiver.next().await;
    SECRETS.iter().for_each(|secret| asks.verify(secret));
    let json = asks.json();
    assert_eq!((&json["type"], &json["data"]["run_id"]), (&json!("run.requires_action"), &json!(run.id)));
    let waiting = json!([{ "call_id": "ask", "tool": "ask_user", "state": "CALL_STATE_WAITING_FOR_CLIENT" }]);
    assert_eq!((&json["data"]["tenant"], &json["data"]["calls"]), (&json!("acme"), &waiting));
    assert!(json["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{json}");

    run.submit(vec![client_answer("ask", CONTENT)]).await.expect("it waits");
    let ended = receiver.next().await;
    ended.verify(SECRETS[0]);
    assert_eq!(ended.what(), (run.id.clone(), "run.completed".to_owned()));
    assert_eq!(ended.json()["data"]["calls"].as_array().map(Vec::len), Some(2));
    assert_ne!(asks.id(), ended.id());
    for notice in [asks, ended] {
        assert!(!String::from_utf8_lossy(&notice.body).contains(CONTENT));
        assert_eq!(notice.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn an_endpoint_is_told_only_of_what_it_asked_for() {
    let mut receiver = Receiver::start(|_| 200).await;
    let file = File::new(&receiver.url, "events = [\"run.completed\"]\ntenants = [\"acme\"]");
    let yard = Yard::start_with(file.fixture()).await;
    let _worker = yard.worker().await;
    for tenant in ["", "other", "acme"] {
        let calls = vec![echo("x"), question("ask")];
        let request = v1::CreateRunRequest { calls, tenant: tenant.to_owned(), ..v1::CreateRunRequest::default() };
        let run = create(&yard.client, request).await;
        run.submit(vec![client_answer("ask", "y")]).await.expect("it waits");
        run.watch(FloorPolicy::Arrival).await.to_end().await;
        if tenant == "acme" {
            assert_eq!(receiver.next().await.what(), (run.id, "run.completed".to_owned()));
        }
    }
    assert!(receiver.taken.try_recv().is_err(), "nothing else came before it");
}

#[tokio::test]
async fn the_notices_of_a_run_come_in_order_though_the_first_is_refused_and_no_other_run_waits() {
    let (stubborn, mut refused) = (Arc::new(Mutex::new(String::new())), 0);
    let wanted = Arc::clone(&stubborn);
    let mut receiver = Receiver::start(move |received| {
        let (run, what) = received.what();
        let is_it = run == *wanted.lock().expect("nobody panicked") || wanted.lock().is_ok_and(|it| it.is_empty());
        if is_it && what == "run.requires_action" && refused < 3 {
            refused += 1;
            *wanted.lock().expect("nobody panicked") = run;
            return 500;
        }
        200
    })
    .await;
    let file = File::new(&receiver.url, "");
    let log = tempfile::NamedTempFile::new().expect("a file");
    let yard = Yard::start_with(file.fixture().with("TOOLYARD_LOG", "warn").logging_to(log.path())).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![question("ask")]).await;
    let give_up = Instant::now() + PATIENCE;
    while stubborn.lock().expect("nobody panicked").is_empty() {
        assert!(Instant::now() < give_up, "nobody is told");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run.submit(vec![client_answer("ask", "x")]).await.expect("it waits");
    let other = yard.client.create(vec![echo("y")]).await;
    let mut taken = Vec::new();
    while taken.len() < 3 {
        taken.push(receiver.next().await.what());
    }
    assert_eq!(taken[0], (other.id.clone(), "run.completed".to_owned()), "it did not wait");
    let of = |what: &str| (run.id.clone(), what.to_owned());
    assert_eq!(taken[1..], [of("run.requires_action"), of("run.completed")]);
    // Its operator is warned once for all three attempts. In the same shard the other notice was taken in between, so
    // the endpoint begins to refuse once more.
    let shard = |id: &str| id.split('_').nth(1).map(str::to_owned);
    let most = if shard(&run.id) == shard(&other.id) { 2 } else { 1 };
    let log = std::fs::read_to_string(log.path()).expect("a log");
    let warned: Vec<&str> = log.lines().filter(|line| line.contains("delivering a notification failed")).collect();
    assert!((1..=most).contains(&warned.len()) && warned[0].contains("it answered 500"), "{warned:#?}");
}

#[tokio::test]
async fn every_run_is_told_of_though_its_coordinator_is_killed_before_anything_was_delivered() {
    let mut receiver = Receiver::start(|_| 503).await;
    let file = File::new(&receiver.url, "");
    let mut yard = Yard::start_with(file.fixture()).await;
    let _worker = yard.worker().await;
    let mut runs = HashSet::new();
    for _ in 0..3 {
        for _ in 0..10 {
            let run = yard.client.create(vec![echo("x")]).await;
            let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
            check::whole(&events, true);
            runs.insert(run.id);
        }
        // The last of them has ended this very moment.
        yard.coordinator.kill().await;
        yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
        yard.client = Client::connect(yard.coordinator.address()).await;
        yard.client.wait_for_tool("echo").await;
    }
    receiver.answers(|_| 200);
    let (mut told, mut ids) = (HashSet::new(), HashMap::new());
    while told.len() < runs.len() {
        let received = receiver.next().await;
        let (run, what) = received.what();
        assert_eq!((runs.contains(&run), what.as_str()), (true, "run.completed"));
        let id = ids.entry(run.clone()).or_insert_with(|| received.id().to_owned()).clone();
        assert_eq!(received.id(), id, "what is told twice has the same id");
        told.insert(run);
    }
    // Accepted notifications leave the queue.
    let shards = Shards::at(&yard.broker.url()).await;
    let give_up = Instant::now() + PATIENCE;
    while shards.queued().await > 0 {
        assert!(Instant::now() < give_up, "it is never empty");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_notice_that_nobody_takes_is_parked_and_comes_when_it_is_redriven() {
    let mut receiver = Receiver::start(|_| 500).await;
    let file = File::new(&receiver.url, "give_up_after_s = 2");
    let yard = Yard::start_with(file.fixture()).await;
    let _worker = yard.worker().await;
    let runs = [yard.client.create(vec![echo("x")]).await, yard.client.create(vec![echo("y")]).await];
    let found = until_parked(&yard.client, 2).await;
    let ids: HashSet<&str> = found.iter().map(|webhook| webhook.run_id.as_str()).collect();
    assert_eq!(ids, runs.iter().map(|run| run.id.as_str()).collect());
    assert!(found.iter().all(|webhook| webhook.endpoint == "agents" && webhook.body.contains("run.completed")));

    receiver.answers(|_| 200);
    let mut webhooks = yard.client.webhooks.clone();
    let one = v1::RedriveWebhooksRequest { webhook_ids: vec![found[0].webhook_id.clone()], ..Default::default() };
    assert_eq!(webhooks.redrive_webhooks(one).await.expect("it is taken").into_inner().count, 1);
    let received = receiver.next().await;
    assert_eq!((received.id(), &*received.body), (found[0].webhook_id.as_str(), found[0].body.as_bytes()));
    // Over HTTP, all that is left.
    let answer = yard.http().post("/v1/webhooks/redrive", &json!({ "endpoint": "agents" })).await;
    assert_eq!(answer.json(), json!({ "count": 1 }));
    assert_eq!(receiver.next().await.id(), found[1].webhook_id);
    until_parked(&yard.client, 0).await;
    let other = v1::RedriveWebhooksRequest { endpoint: "a.>".to_owned(), ..Default::default() };
    let refused = webhooks.redrive_webhooks(other).await.expect_err("it is no name");
    assert_eq!(reason(&refused), "MALFORMED");
}

#[tokio::test]
async fn nobody_is_told_of_a_run_that_was_erased_and_all_of_it_within_the_rights_of_a_coordinator() {
    let keys = Keys::new(&["main"]);
    let options = local::BrokerOptions { config: Some(keys.accounts()), ..local::BrokerOptions::default() };
    let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
    let mut receiver = Receiver::start(|_| 500).await;
    let file = File::new(&receiver.url, "");
    let fixture = file.fixture().with("TOOLYARD_ERASE_AFTER", 1);
    let coordinator = keys.coordinators(&fixture).coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = keys.workers(&fixture, "main").worker(&broker.url(), "main", 4).await;
    client.wait_for_tool("echo").await;
    let shards = Shards::through(keys.client(&broker.url(), &nats::access::Party::Coordinator).await);
    let calls = vec![echo("x")];
    let gone = v1::CreateRunRequest { calls: calls.clone(), store: Some(false), ..v1::CreateRunRequest::default() };
    let gone = create(&client, gone).await;
    let give_up = Instant::now() + PATIENCE;
    while client.runs.clone().get_run(v1::GetRunRequest { run_id: gone.id.clone() }).await.is_ok() {
        assert!(Instant::now() < give_up, "it is never erased");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(shards.queued().await, 0);
    let kept = client.create(calls).await;
    receiver.answers(|_| 200);
    assert_eq!(receiver.next().await.what().0, kept.id);
    until_parked(&client, 0).await;
    let log = std::fs::read_to_string(broker.data_dir().join("server.log")).expect("the broker keeps a log");
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("Violation")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[tokio::test]
async fn without_a_file_there_is_no_queue_and_whoever_asks_is_told() {
    let yard = Yard::start(FIXTURE).await;
    let request = v1::ListParkedWebhooksRequest::default();
    let refused = yard.client.webhooks.clone().list_parked_webhooks(request).await.expect_err("there are none");
    assert_eq!(reason(&refused), "WEBHOOKS_OFF");
    let broker = async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("it listens"));
    assert!(broker.get_stream(proto::names::WEBHOOKS_STREAM).await.is_err());
}

#[tokio::test]
async fn what_nobody_took_yet_is_delivered_by_a_broker_that_was_given_a_backup() {
    let mut receiver = Receiver::start(|_| 500).await;
    let file = File::new(&receiver.url, "");
    let mut yard = Yard::start_with(file.fixture()).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![echo("x")]).await;
    let shards = Shards::at(&yard.broker.url()).await;
    let give_up = Instant::now() + PATIENCE;
    while shards.queued().await == 0 {
        assert!(Instant::now() < give_up, "nothing is owed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let broker = async_nats::connect(yard.broker.url()).await.expect("the broker listens");
    let mut backups = Vec::new();
    for stream in ["ty-log", "KV_ty-requests", "KV_ty-tools", "ty-webhooks"] {
        backups.push(back_up(&broker, stream).await);
    }
    yard.coordinator.kill().await;
    drop(yard.broker);
    let other = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let broker = async_nats::connect(other.url()).await.expect("the broker listens");
    for backup in &backups {
        restore(&broker, backup).await;
    }
    receiver.answers(|_| 200);
    let _coordinator = yard.fixture.coordinator(&other.url()).await;
    assert_eq!(receiver.next().await.what(), (run.id, "run.completed".to_owned()));
}
