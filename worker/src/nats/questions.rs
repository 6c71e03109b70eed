//! Asks the owner of a run to ask the client, for a tool, until the question has ended.

use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use proto::convert::worker::{UserQuestion, UserReply, decode_user_answer, encode_user_question};
use proto::names;
use run::{AskedBy, AttemptId, NewQuestion, PoolId, RunId};
use tokio::time::{Instant, sleep, timeout};
use toolyard_tool::runtime::{AskRequest, Asker, UserAnswer};

/// How long a question is requested that no owner has stored yet: if an owner is lost, another takes its runs over
/// within about 8 s. Once a question is stored, it is requested until it ends, at the latest with its call.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an owner may take to answer. It keeps a request for 3 s if the question is open.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// An owner that has too many requests to keep answers at once. Then the next request waits.
const KEPT_AT_LEAST: Duration = Duration::from_secs(1);
/// The pause before the next request, which doubles.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// The way of one attempt to its client. `sequence`: of its job in the log.
pub(super) fn asker(client: Client, pool: PoolId, (run, attempt): (RunId, AttemptId), sequence: u64) -> Asker {
    Asker::new(move |AskRequest { number, arguments, timeout }| {
        let (client, pool) = (client.clone(), pool.clone());
        let question = NewQuestion { asked_by: AskedBy { attempt, number }, arguments, timeout };
        let asks = UserQuestion { run, sequence, question };
        Box::pin(async move { ask(&client, &pool, &asks).await })
    })
}

async fn ask(client: &Client, pool: &PoolId, asks: &UserQuestion) -> Result<UserAnswer, String> {
    let (subject, payload) = (names::question(pool, asks.run.shard()), encode_user_question(asks));
    let (give_up, mut pause, mut is_stored) = (Instant::now() + PATIENCE, PAUSE, false);
    let mut why = "the owner of its run does not answer";
    loop {
        let asked = Instant::now();
        match request(client, subject.clone(), payload.clone(), asks.run).await {
            Some(UserReply::Known(UserAnswer::Open)) => {
                (is_stored, pause) = (true, PAUSE);
                sleep(KEPT_AT_LEAST.saturating_sub(asked.elapsed())).await;
                continue;
            }
            Some(UserReply::Known(answer)) => return Ok(answer),
            Some(UserReply::OwnerTooOld) => {
                why = "the coordinator that owns its run is of a release without questions: upgrade coordinators first";
            }
            Some(UserReply::AskAgain) | None => {}
        }
        if !is_stored && Instant::now() >= give_up {
            return Err(why.to_owned());
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

async fn request(client: &Client, subject: String, payload: Bytes, run: RunId) -> Option<UserReply> {
    match timeout(ANSWER_PATIENCE, client.request(subject, payload)).await {
        Ok(Ok(answer)) => decode_user_answer(answer.payload)
            .inspect_err(|error| tracing::warn!(run.id = %run, %error, "reading the answer to a question failed"))
            .ok(),
        Ok(Err(error)) => {
            tracing::debug!(run.id = %run, %error, "no owner takes a question to the client yet");
            None
        }
        Err(_) => {
            tracing::debug!(run.id = %run, "the owner is slow to take a question to the client");
            None
        }
    }
}
