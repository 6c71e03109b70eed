//! With the key of a pool or of the observer nothing at the broker is changed or read that is not the pool's, whatever
//! is published, and wherever its answer shall go. The broker answers on any subject that a request names; accounts
//! keep it in.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use harness::{Admin, Authority, Certified, Fixture, Keys, PATIENCE};
use nats::access::Party;
use nats::access::config::{self, Cluster, Server, Tls};

use crate::FIXTURE;

/// A secret in the stored data of pool `main`, of the coordinators and of requests: no intruder may get it.
const SECRET: &str = "the secret of pool main";
const RUN: &str = "ty.run.00.run_00_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";
/// The account token of `TOOLYARD` in the second form of acknowledgements.
const ACCOUNT_HASH: &str = "JMWm4pvQ";
/// Payloads with a meaning for the broker as an acknowledgement or a request.
const PAYLOADS: [&str; 5] = ["", "+WPI", "-NAK", "+NXT {\"batch\":5,\"no_wait\":true}", "{}"];

/// A broker with all kinds of stored data, and without running processes.
struct Place {
    url: String,
    keys: Keys,
    all: Context,
}

/// The sequence of a subject's last message, how many the subject has, and the last one's payload.
type Last = (u64, usize, Bytes);

/// The stored data, except for the parts that pool `other` may write: configurations, messages, queues.
#[derive(Debug, PartialEq, Eq)]
struct State {
    /// The configuration of each stream, and the last message on each of its subjects.
    streams: BTreeMap<String, (String, BTreeMap<String, Last>)>,
    queues: BTreeMap<String, String>,
}

impl Place {
    async fn furnish(url: String, keys: Keys) -> Self {
        let fixture = Fixture::new(FIXTURE);
        let mut coordinator = keys.coordinators(&fixture).coordinator(&url).await;
        for pool in ["main", "other"] {
            let mut worker = keys.workers(&fixture, pool).worker(&url, pool, 1).await;
            worker.terminate().await;
        }
        coordinator.terminate().await;
        let all = jetstream::new(keys.administrator(&url).await);
        for (subject, payload) in [
            (format!("{RUN}._.run"), SECRET),
            (format!("{RUN}.0.job.main"), SECRET),
            (format!("{RUN}.1.job.main"), SECRET),
            (format!("{RUN}.2.job.other"), "a job of pool other"),
            (format!("{RUN}.3.job.other"), "a job of pool other"),
            (format!("{RUN}.0.out.main"), SECRET),
            ("ty.obj.up.upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.0".to_owned(), SECRET),
            ("$KV.ty-snapshots.00".to_owned(), SECRET),
            ("$KV.ty-requests.some".to_owned(), SECRET),
            ("$KV.ty-pauses.pool.main".to_owned(), "{}"),
            ("$KV.ty-records.other.=.note.6".to_owned(), SECRET),
        ] {
            let stored = all.publish(subject, payload.into()).await.expect("the broker answers");
            stored.await.expect("it is stored");
        }
        for stream in names(&all).await {
            // Feeds of the coordinator that has left: the broker forgets them some time.
            let stream = all.get_stream(stream).await.expect("it is there");
            let queues: Vec<_> = stream.consumers().try_collect().await.expect("they are listed");
            for queue in queues.into_iter().filter(|queue| queue.config.durable_name.is_none()) {
                stream.delete_consumer(&queue.name).await.expect("it goes");
            }
        }
        // One job of pool main is out, unacknowledged.
        let queue: jetstream::consumer::PullConsumer =
            all.get_consumer_from_stream("pool-main", "ty-log").await.expect("the queue is there");
        let mut jobs = queue.fetch().max_messages(1).messages().await.expect("it is asked");
        assert_eq!(jobs.next().await.expect("a job").expect("a job").payload, SECRET);
        Self { url, keys, all }
    }

    async fn alone() -> (local::Broker, Self) {
        let keys = Keys::new(&["main", "other"]).with_second_keys().with_administrator();
        let options = local::BrokerOptions { config: Some(keys.accounts()), ..local::BrokerOptions::default() };
        let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
        let place = Self::furnish(broker.url(), keys).await;
        (broker, place)
    }

    /// The stored data when the broker is idle.
    async fn state(&self) -> State {
        let mut state = State::of(&self.all).await;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let later = State::of(&self.all).await;
            if later == state {
                return state;
            }
            state = later;
        }
    }

    async fn intruder(&self, party: &Party) -> (Client, Subscriber) {
        self.listening(party, self.keys.client(&self.url, party).await).await
    }

    /// With the second key of a party whose key is being replaced.
    async fn second_intruder(&self, party: &Party) -> (Client, Subscriber) {
        self.listening(party, self.keys.second_client(&self.url, party).await).await
    }

    async fn listening(&self, party: &Party, client: Client) -> (Client, Subscriber) {
        let inbox = client.subscribe(format!("{}.>", party.inbox())).await.expect("its own inbox");
        (client, inbox)
    }
}

impl State {
    async fn of(all: &Context) -> Self {
        let mut found = Self { streams: BTreeMap::new(), queues: BTreeMap::new() };
        for name in names(all).await {
            let stream = all.get_stream(&name).await.expect("it is there");
            let config = serde_json::to_value(&stream.cached_info().config).expect("it is JSON").to_string();
            let subjects = stream.info_with_subjects(">").await.expect("it is told");
            let subjects: Vec<(String, usize)> = subjects.try_collect().await.expect("it is told");
            let mut last = BTreeMap::new();
            for (subject, count) in subjects.into_iter().filter(|(subject, _)| !is_others(subject)) {
                let message = stream.get_last_raw_message_by_subject(&subject).await.expect("it is there");
                last.insert(subject, (message.sequence, count, message.payload));
            }
            let queues: Vec<_> = stream.consumers().try_collect().await.expect("they are listed");
            for queue in queues.into_iter().filter(|queue| queue.name != "pool-other") {
                let config = serde_json::to_value(&queue.config).expect("it is JSON").to_string();
                let at = (queue.delivered.stream_sequence, queue.ack_floor.stream_sequence, queue.num_pending);
                let out = (queue.num_ack_pending, queue.num_redelivered, queue.num_waiting, queue.paused);
                found.queues.insert(format!("{name} {}", queue.name), format!("{config} {at:?} {out:?}"));
            }
            found.streams.insert(name, (config, last));
        }
        found
    }
}

async fn names(all: &Context) -> Vec<String> {
    all.stream_names().try_collect().await.expect("they are listed")
}

/// Whether pool `other` may write there.
fn is_others(subject: &str) -> bool {
    match subject.split('.').collect::<Vec<_>>()[..] {
        ["ty", "run", _, _, _, "out", pool] | ["ty", "obj", _, _, pool, ..] | ["$KV", "ty-tools", pool, _] => {
            pool == "other"
        }
        _ => false,
    }
}

/// A subject for each that a party may publish on, or two.
fn requests(party: &Party) -> Vec<String> {
    let mut subjects = Vec::new();
    for pattern in party.publishes() {
        match pattern.as_str() {
            "ty.run.*.*.*.out.other" => subjects.push(format!("{RUN}.0.out.other")),
            _ if pattern.starts_with("$JS.ACK.*.*.") => {
                let rest = pattern["$JS.ACK.*.*.".len()..].replace('*', "1").replace('>', "x");
                subjects.push(format!("$JS.ACK._.{ACCOUNT_HASH}.{rest}"));
            }
            _ if pattern.ends_with(".$KV.ty-tools.>") => {
                subjects.push(pattern.replace('>', "nothing"));
                subjects.push(pattern.replace('>', "other.set"));
            }
            _ => subjects.push(pattern.replace('*', "1").replace('>', "x")),
        }
    }
    subjects
}

/// Subjects on which an empty message, or an answer of the broker, would do harm in the account of the coordinators.
fn replies(streams: &[String]) -> Vec<String> {
    let mut subjects = Vec::new();
    let mut api = |request: &str, of: &str| subjects.push(format!("$JS.API.{request}.{of}"));
    for stream in streams {
        for request in ["DELETE", "PURGE", "UPDATE", "CREATE", "MSG.GET", "MSG.DELETE", "LEADER.STEPDOWN", "SNAPSHOT"] {
            api(&format!("STREAM.{request}"), stream);
        }
        for request in ["STREAM.PEER.REMOVE", "STREAM.RESTORE", "DIRECT.GET", "CONSUMER.CREATE"] {
            api(request, stream);
        }
    }
    for queue in ["pool-main", "pool-other"] {
        for request in
            ["DELETE", "PAUSE", "CREATE", "DURABLE.CREATE", "LEADER.STEPDOWN", "MSG.NEXT", "RESET", "UNPIN", "INFO"]
        {
            api(&format!("CONSUMER.{request}"), &format!("ty-log.{queue}"));
        }
    }
    api("META.LEADER", "STEPDOWN");
    for queue in ["pool-main", "pool-other"] {
        // The job that is out is the second entry of the log.
        subjects.push(format!("$JS.ACK.ty-log.{queue}.1.2.1.1.1"));
        subjects.push(format!("$JS.ACK._.{ACCOUNT_HASH}.ty-log.{queue}.1.2.1.1.1"));
    }
    subjects.push("$JS.ACK.ty-log.pool-main.ty-log.pool-other.1.1.1".to_owned());
    for key in ["leases.shard.00", "snapshots.00", "requests.some", "pauses.pool.main", "tools.main.set"] {
        subjects.push(format!("$KV.ty-{key}"));
    }
    for place in ["_.run", "0.job.main", "0.job.other", "0.out.main", "0.ctl", "9.job.main"] {
        subjects.push(format!("{RUN}.{place}"));
    }
    subjects.extend(
        [
            "ty.run.00._.mark",
            "ty.obj.up.upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.0",
            "ty.notice.00.endpoint.run.1",
            "ty.stop.main",
            "ty.stop.other",
            "ty.alive.main",
            "ty.ask.main.00",
            "_INBOX.pool.main.x",
            "_INBOX.coordinator.x",
            "_R_.x.y",
        ]
        .map(str::to_owned),
    );
    subjects
}

/// Publishes on every subject that the party may use, with every reply subject and payload, and checks the effects.
async fn besiege(place: &Place, party: &Party, (intruder, mut inbox): (Client, Subscriber)) {
    let before = place.state().await;
    let own = format!("{}.own", party.inbox());
    let last = match party {
        Party::Pool(_) => "$JS.API.CONSUMER.INFO.ty-log.pool-other",
        Party::Observer | Party::Coordinator | Party::Operator => "$JS.API.INFO",
    };
    for reply in replies(&names(&place.all).await).into_iter().chain([own]) {
        for request in requests(party) {
            for payload in PAYLOADS {
                let sent = intruder.publish_with_reply(request.clone(), reply.clone(), payload.into()).await;
                sent.expect("it is sent");
            }
        }
        // Earlier requests are done when this is answered.
        let answered = tokio::time::timeout(PATIENCE, intruder.request(last, "".into())).await;
        answered.expect("the broker answers").expect("the broker answers");
        while let Some(Some(message)) = inbox.next().now_or_never() {
            let text = String::from_utf8_lossy(&message.payload);
            assert!(!text.contains(SECRET), "{} reads {}", party.name(), message.subject);
        }
    }
    let after = place.state().await;
    for (stream, found) in &before.streams {
        assert_eq!(after.streams.get(stream), Some(found), "{} has changed {stream}", party.name());
    }
    assert_eq!(after, before, "{}", party.name());
}

fn other() -> Party {
    Party::Pool("other".parse().expect("a name"))
}

#[tokio::test]
async fn the_answer_to_an_acknowledgement_deletes_no_queue_and_no_stream() {
    let (_broker, place) = Place::alone().await;
    let before = place.state().await;
    let (intruder, mut inbox) = place.intruder(&other()).await;
    let next = "$JS.API.CONSUMER.MSG.NEXT.ty-log.pool-other";
    let reply = format!("{}.job", other().inbox());
    intruder.publish_with_reply(next, reply, "".into()).await.expect("it is sent");
    let job = tokio::time::timeout(PATIENCE, inbox.next()).await.expect("a job of its own").expect("the client lives");
    let acknowledgement = job.reply.expect("it can be acknowledged");
    for request in ["CONSUMER.DELETE.ty-log.pool-main", "STREAM.PURGE.ty-log", "STREAM.DELETE.ty-log"] {
        let request = format!("$JS.API.{request}");
        intruder.publish_with_reply(acknowledgement.clone(), request, "+WPI".into()).await.expect("it is sent");
    }
    let held = tokio::time::timeout(PATIENCE, intruder.request(acknowledgement, "+WPI".into())).await;
    held.expect("the broker answers").expect("the job is still its own");
    assert_eq!(place.state().await, before);
}

#[tokio::test]
async fn the_answer_to_a_look_of_the_observer_purges_no_stream() {
    let (_broker, place) = Place::alone().await;
    let before = place.state().await;
    let (intruder, _inbox) = place.intruder(&Party::Observer).await;
    let nothing = "$JS.API.DIRECT.GET.KV_ty-leases.$KV.ty-leases.nothing";
    for request in ["STREAM.PURGE.ty-log", "STREAM.DELETE.ty-log"] {
        let sent = intruder.publish_with_reply(nothing, format!("$JS.API.{request}"), "".into()).await;
        sent.expect("it is sent");
    }
    let answered = tokio::time::timeout(PATIENCE, intruder.request(nothing, "".into())).await;
    answered.expect("the broker answers").expect("the broker answers");
    assert_eq!(place.state().await, before);
}

#[tokio::test]
async fn an_acknowledgement_that_looks_like_a_pools_own_brings_no_job_of_another_pool() {
    let (_broker, place) = Place::alone().await;
    let before = place.state().await;
    let (intruder, mut inbox) = place.intruder(&other()).await;
    let mixed = "$JS.ACK.ty-log.pool-main.ty-log.pool-other.1.1.1";
    let reply = format!("{}.job", other().inbox());
    let next = "+NXT {\"batch\":10,\"expires\":1000000000}";
    intruder.publish_with_reply(mixed, reply, next.into()).await.expect("it is sent");
    intruder.flush().await.expect("the broker answers");
    assert_eq!(place.state().await, before);
    assert!(inbox.next().now_or_never().is_none());
}

#[tokio::test]
async fn whatever_is_published_with_a_pools_key_or_the_observers_nothing_of_others_changes() {
    let (_broker, place) = Place::alone().await;
    for party in [other(), Party::Observer] {
        besiege(&place, &party, place.intruder(&party).await).await;
        besiege(&place, &party, place.second_intruder(&party).await).await;
    }
}

#[tokio::test]
async fn whatever_is_published_in_a_cluster_nothing_of_others_changes() {
    let keys = Keys::new(&["main", "other"]).with_administrator();
    let options = local::ClusterOptions { config: Some(keys.accounts()), ..local::ClusterOptions::default() };
    let cluster = local::Cluster::start_with(options, |_| {}).await.expect("a cluster starts");
    let place = Place::furnish(cluster.url(), keys).await;
    for party in [other(), Party::Observer] {
        besiege(&place, &party, place.intruder(&party).await).await;
    }
}

/// A server that runs until it is dropped, and its folder.
struct Running {
    _process: tokio::process::Child,
    folder: tempfile::TempDir,
}

impl Running {
    /// Configured by the text of `nats-config`, to join the cluster that meets at `meeting`. Without a certificate it
    /// is as one that an older `nats-config` wrote.
    async fn start(name: &str, meeting: Admin, port: Admin, shows: Option<(&Authority, Certified)>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
        let tls = shows.map(|(trusts, Certified { certificate, key })| Tls {
            cert: path(&certificate),
            key: path(&key),
            ca: Some(path(&trusts.file())),
        });
        let routes = vec![format!("nats-route://{}", meeting.address())];
        let text = config::server(&Server {
            port: Admin::anywhere().address().port(),
            monitor_port: None,
            store_dir: path(folder.path()),
            store_bytes: 1 << 20,
            sync_always: false,
            tls,
            cluster: Some(Cluster { name: "toolyard".to_owned(), port: port.address().port(), routes }),
        });
        let file = folder.path().join("nats.conf");
        std::fs::write(&file, text).expect("written");
        std::fs::copy(Keys::new(&["main"]).accounts(), folder.path().join("accounts.conf")).expect("copied");
        let program = local::find(local::Program::NatsServer, &local::Lookup::from_env(), |_| {}).await;
        let mut command = tokio::process::Command::new(program.expect("there is one"));
        command.env("SERVER_NAME", name).arg("--config").arg(file).arg("--log").arg(folder.path().join("log"));
        Self { _process: command.kill_on_drop(true).spawn().expect("it starts"), folder }
    }

    /// Waits until its log has these words so many times.
    async fn until(&self, words: &str, times: usize) {
        let log = self.folder.path().join("log");
        let told = async {
            while std::fs::read_to_string(&log).unwrap_or_default().matches(words).count() < times {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.unwrap_or_else(|_| panic!("{words} is not in the log"));
    }
}

#[tokio::test]
async fn no_server_joins_a_cluster_but_those_that_its_authority_signed() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let [meeting, second, third, fourth] = std::array::from_fn(|_| Admin::anywhere());
    let first = Running::start("first", meeting, meeting, Some((&ours, ours.server("first")))).await;
    first.until("Server is ready", 1).await;
    let signed = Running::start("signed", meeting, second, Some((&ours, theirs.server("signed")))).await;
    first.until("certificate signed by unknown authority", 2).await;
    let open = Running::start("open", meeting, third, None).await;
    first.until("first record does not look like a TLS handshake", 2).await;
    let friend = Running::start("friend", meeting, fourth, Some((&ours, ours.server("friend")))).await;
    // Two servers of three are a majority and elect a leader. The strangers know no server.
    friend.until("metadata leader", 1).await;
    for stranger in [signed, open] {
        let log = std::fs::read_to_string(stranger.folder.path().join("log")).expect("there is a log");
        assert!(!log.contains("metadata leader"), "{log}");
    }
}
