//! Records at a real broker.

use bytes::Bytes;
use nats::Credentials;
use run::{AttemptNumber, CallIndex, RunId};

use super::*;
use crate::nats::setup::LogOptions;

async fn records() -> (local::Broker, Records) {
    let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let options = LogOptions { bytes_max: 64 << 20, objects_bytes_max: 4 << 20, ..LogOptions::default() };
    let broker = Broker::connect(&server.url(), &Credentials::default(), &options).await.expect("it can be set up");
    let records = Records::of(&broker);
    (server, records)
}

fn space(tenant: Option<&str>) -> Space {
    let tenant = tenant.map(|tenant| tenant.parse().expect("a tenant"));
    Space { pool: "main".parse().expect("a pool"), tenant }
}

fn key(text: &str) -> RecordKey {
    text.parse().expect("a key")
}

fn request(call: u16, operation: RecordOperation) -> RecordRequest {
    let run: RunId = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id");
    RecordRequest { run, call: CallIndex(call), attempt: AttemptNumber(1), operation }
}

async fn put(records: &Records, space: &Space, call: u16, record: (&str, &[u8]), revision: u64) -> RecordReply {
    let (name, value) = record;
    let value = Bytes::copy_from_slice(value);
    records.perform(space, request(call, RecordOperation::Put { key: key(name), value, revision })).await
}

async fn get(records: &Records, space: &Space, call: u16, name: &str) -> Option<Record> {
    let reply = records.perform(space, request(call, RecordOperation::Get(key(name)))).await;
    let RecordReply::Page(page) = reply else { panic!("{reply:?}") };
    page.records.into_iter().next()
}

fn stored(reply: RecordReply) -> u64 {
    let RecordReply::Stored(revision) = reply else { panic!("{reply:?}") };
    revision
}

#[tokio::test]
async fn of_two_writers_of_a_revision_one_wins_whatever_the_sizes_are() {
    let (_server, records) = records().await;
    let space = space(None);
    let first = stored(put(&records, &space, 1, ("a", b"one"), 0).await);
    assert_eq!(put(&records, &space, 2, ("a", b"longer"), 0).await, RecordReply::Conflict(first));
    let second = stored(put(&records, &space, 2, ("a", b"longer"), first).await);
    assert_eq!(put(&records, &space, 3, ("a", b"1"), first).await, RecordReply::Conflict(second));
    let found = get(&records, &space, 2, "a").await.expect("it is there");
    assert_eq!((found.value.as_ref(), found.revision, found.is_own), (b"longer".as_ref(), second, true));
    let messages = records.store.stream.get_info().await.expect("the broker answers").state.messages;
    assert_eq!(messages, 1, "what was replaced is removed");
    let racers = (10..20_u16).map(|call| {
        let (records, space) = (&records, &space);
        async move { put(records, space, call, ("a", &vec![b'x'; usize::from(call)]), second).await }
    });
    let won = futures::future::join_all(racers).await;
    assert_eq!(won.iter().filter(|reply| matches!(reply, RecordReply::Stored(_))).count(), 1, "{won:?}");
}

#[tokio::test]
async fn a_repeated_write_of_a_call_is_stored_once() {
    let (_server, records) = records().await;
    let space = space(None);
    let first = stored(put(&records, &space, 1, ("a", b"one"), 0).await);
    assert_eq!(stored(put(&records, &space, 1, ("a", b"one"), 0).await), first, "it was stored before");
    assert!(!get(&records, &space, 2, "a").await.expect("it is there").is_own);
    let second = stored(put(&records, &space, 2, ("a", b"two"), first).await);
    assert_eq!(
        put(&records, &space, 1, ("a", b"one"), 0).await,
        RecordReply::Conflict(second),
        "another call was here"
    );
    let delete = |revision| request(1, RecordOperation::Delete { key: key("a"), revision });
    assert_eq!(records.perform(&space, delete(first)).await, RecordReply::Conflict(second));
    assert_eq!(records.perform(&space, delete(second)).await, RecordReply::Stored(0));
    assert_eq!(records.perform(&space, delete(second)).await, RecordReply::Stored(0), "it is gone already");
    assert!(get(&records, &space, 1, "a").await.is_none());
    stored(put(&records, &space, 3, ("a", b"new"), 0).await);
}

#[tokio::test]
async fn records_are_listed_by_page_and_a_tenant_sees_only_its_own() {
    let (_server, records) = records().await;
    let (none, acme) = (space(None), space(Some("acme")));
    for number in 0..7 {
        stored(put(&records, &none, number, (&format!("task/{number}"), b"x"), 0).await);
    }
    stored(put(&records, &none, 8, ("note", b"y"), 0).await);
    stored(put(&records, &acme, 9, ("task/acme", b"z"), 0).await);
    let (mut after, mut all) = (String::new(), Vec::new());
    loop {
        let list = RecordOperation::List { prefix: "task/".to_owned(), after: after.clone(), limit: 3 };
        let reply = records.perform(&none, request(1, list)).await;
        let RecordReply::Page(page) = reply else { panic!("{reply:?}") };
        assert!(page.records.len() <= 3);
        all.extend(page.records.into_iter().map(|record| record.key.to_string()));
        if !page.more {
            break;
        }
        after = all.last().expect("a page has records").clone();
    }
    assert_eq!(all, (0..7).map(|number| format!("task/{number}")).collect::<Vec<_>>());
    assert!(get(&records, &acme, 1, "task/1").await.is_none() && get(&records, &none, 1, "task/acme").await.is_none());
}

#[tokio::test]
async fn a_pool_may_fill_half_of_the_bucket_and_a_tenant_half_of_that() {
    let (_server, records) = records().await;
    // The bucket has 2 MiB.
    let large = vec![b'x'; 60 * 1024];
    let fill = async |space: &Space| {
        for number in 0..40_u16 {
            match put(&records, space, number, (&format!("k{number}"), &large), 0).await {
                RecordReply::Stored(_) => {}
                RecordReply::Full(reason) => return (number, reason),
                other => panic!("{other:?}"),
            }
        }
        panic!("there is no limit")
    };
    let acme = space(Some("acme"));
    let (count, reason) = fill(&acme).await;
    assert_eq!(count, 8, "{reason}");
    assert!(reason.contains("tenant acme in pool main"), "{reason}");
    let repeated = put(&records, &acme, 0, ("k0", &large), 0).await;
    assert!(matches!(repeated, RecordReply::Stored(_)), "{repeated:?}");
    let (count, reason) = fill(&space(None)).await;
    assert_eq!(count, 9, "{reason}");
    let other = Space { pool: "other".parse().expect("a pool"), tenant: None };
    stored(put(&records, &other, 1, ("k", &large), 0).await);
}
