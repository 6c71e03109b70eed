//! Appends at a real broker.

use proto::nats::Credentials;
use run::Shard;

use super::*;
use crate::nats::setup::LogOptions;

pub(crate) async fn journal() -> (local::Broker, Journal) {
    let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
    let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("it can be set up");
    let journal = Journal::new(&broker);
    (server, journal)
}

pub(crate) fn fresh() -> RunId {
    RunId::new(Shard(0), uuid::Uuid::now_v7())
}

#[tokio::test]
async fn an_entry_is_known_again_behind_which_others_came() {
    let (_server, journal) = journal().await;
    let id = fresh();
    let subject = Subject { run: id, place: Place::Run }.to_string();
    let events = [Event::RunClosed];
    let first = journal.append(id, &events, None, 0).await.expect("stored");
    let ours = log::encode_as(1, &events, None);
    let sequence = journal.publish(&subject, ours.clone(), first).await.expect("stored");
    journal.append(id, &events, None, sequence).await.expect("stored");
    assert_eq!(journal.own_or_conflict(&subject, first, &ours).await.expect("it is there"), sequence);
    // Others say the same; they are not ours.
    let other = log::encode_as(2, &events, None);
    let unknown = journal.own_or_conflict(&subject, first, &other).await;
    assert!(matches!(unknown, Err(AppendError::Conflict)), "{unknown:?}");
    // And what stood there before is nobody's answer.
    let before = journal.own_or_conflict(&subject, sequence, &ours).await;
    assert!(matches!(before, Err(AppendError::Conflict)), "{before:?}");
}

#[tokio::test]
async fn what_does_not_fit_and_what_finds_no_room_are_told_apart_at_once() {
    let (_server, journal) = journal().await;
    let cancel = |bytes: usize| [Event::RunCancelRequested { reason: "x".repeat(bytes) }];
    let began = Instant::now();
    let large = journal.append(fresh(), &cancel(2 << 20), None, 0).await;
    assert!(matches!(large, Err(AppendError::TooLarge)), "{large:?}");
    let mut last = Ok(0);
    for _ in 0..10 {
        last = journal.append(fresh(), &cancel(512 << 10), None, 0).await;
    }
    assert!(matches!(last, Err(AppendError::Full)), "{last:?}");
    assert!(began.elapsed() < APPEND_PATIENCE, "neither is tried again");
}

#[test]
fn a_page_that_lost_a_message_on_its_way_is_refused() {
    let naming = |before: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Last-Sequence", before);
        headers
    };
    assert!(follows(Some(&naming("7")), 7).is_ok());
    assert!(follows(None, 7).is_ok(), "a broker that names none is believed");
    let lost = follows(Some(&naming("9")), 7).expect_err("entry 9 is missing");
    assert!(lost.to_string().contains("entry 9 was lost on its way"), "{lost}");
}
