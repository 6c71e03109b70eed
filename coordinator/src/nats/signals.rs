//! Messages between owners and workers: stopping attempts, taking jobs back, and workers' questions about jobs.

use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use nats::access::{may_be_answered, may_be_handed_back};
use proto::convert::worker::{
    Answer, Question, Stop, UserAnswer, UserQuestion, WorkerRequest, decode_request, encode_answer, encode_user_answer,
};
use proto::names;
use run::{AttemptId, PoolId, RunId, Shard, ToolName, WorkerId};

use super::Broker;
use crate::fleet::registry::Hosts;

/// The pause before a request to the broker is repeated after an error.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Signals(Client);

/// A worker's request, and the subject of its answer.
#[derive(Debug)]
pub(crate) struct Asked<R = WorkerRequest> {
    pub(crate) request: R,
    pub(crate) pool: PoolId,
    reply: async_nats::Subject,
}

impl Asked {
    pub(crate) fn run(&self) -> RunId {
        match &self.request {
            WorkerRequest::Job(question) => question.run,
            WorkerRequest::Ask(asks) => asks.run,
        }
    }

    /// The request by its kind.
    pub(crate) fn sort(self) -> Sorted {
        let Self { request, pool, reply } = self;
        match request {
            WorkerRequest::Job(request) => Sorted::AboutJob(Asked { request, pool, reply }),
            WorkerRequest::Ask(request) => Sorted::ToClient(Asked { request, pool, reply }),
        }
    }
}

/// A worker's request by its kind.
pub(crate) enum Sorted {
    AboutJob(Asked<Question>),
    /// A question of a running tool.
    ToClient(Asked<UserQuestion>),
}

impl Signals {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(broker.client.clone())
    }

    /// Sends a request to stop an attempt to the pool. Not confirmed: repeated until the log shows that it stopped.
    pub(crate) async fn stop(&self, pool: &PoolId, run: RunId, attempt: AttemptId) {
        self.send(names::stop(pool), Stop::Attempt(run, attempt).encode()).await;
    }

    /// Sends a request to drain to a worker of the pool. Not confirmed: repeated until the worker's heartbeat confirms
    /// it.
    pub(crate) async fn drain(&self, pool: &PoolId, worker: WorkerId) {
        self.send(names::stop(pool), Stop::Worker(worker).encode()).await;
    }

    /// Informs a pool which tools are paused, its own or not. Not confirmed: repeated while any tool is paused.
    pub(crate) async fn held(&self, pool: &PoolId, tools: Vec<ToolName>) {
        self.send(names::stop(pool), Stop::Held(tools).encode()).await;
    }

    /// Informs workers with a tool set which names they may not host. Not confirmed: repeated while any name is
    /// rejected.
    pub(crate) async fn refused(&self, (pool, set): &Hosts, names: Vec<(String, String)>) {
        self.send(names::stop(pool), Stop::Refused(set.clone(), names).encode()).await;
    }

    /// Informs a pool whether the broker stores messages. Not confirmed: repeated while it does not.
    pub(crate) async fn storing(&self, pool: &PoolId, storing: bool) {
        self.send(names::stop(pool), Stop::Storing(storing).encode()).await;
    }

    /// Informs a pool how many partitions the log has. Not confirmed: repeated while there is more than one.
    pub(crate) async fn partitions(&self, pool: &PoolId, count: usize) {
        self.send(names::stop(pool), Stop::Partitions(count).encode()).await;
    }

    /// Returns a lost worker's job to its queue: `lease` is the subject of its acknowledgement. If this message is lost
    /// too, the broker returns the job when the lease runs out.
    pub(crate) async fn hand_back(&self, pool: &PoolId, lease: &Bytes) {
        match std::str::from_utf8(lease) {
            Ok(subject) if may_be_handed_back(pool, subject) => {
                self.send(subject.to_owned(), Bytes::from_static(b"-NAK")).await;
            }
            _ => tracing::warn!(%pool, "ignoring a lease of another pool"),
        }
    }

    /// The questions of workers.
    pub(crate) fn questions(&self) -> Questions {
        Questions { client: self.0.clone(), state: Subscription::Opening(open(self.0.clone()).boxed()) }
    }

    pub(crate) async fn answer(&self, asked: &Asked<Question>, answer: Option<&Answer>) {
        self.send(asked.reply.to_string(), encode_answer(answer)).await;
    }

    /// Informs a worker how a question to the client stands; `None` if that is not known yet.
    pub(crate) async fn answer_for_user(&self, asked: &Asked<UserQuestion>, answer: Option<&UserAnswer>) {
        self.send(asked.reply.to_string(), encode_user_answer(answer)).await;
    }

    async fn send(&self, subject: String, payload: Bytes) {
        if let Err(error) = self.0.publish(subject, payload).await {
            tracing::warn!(%error, "sending a signal failed");
        }
    }
}

/// Questions of workers, received while it is polled.
pub(crate) struct Questions {
    client: Client,
    state: Subscription,
}

enum Subscription {
    /// Kept here, so that waiting for a question is cancel safe: the broker may be away for long.
    Opening(BoxFuture<'static, Subscriber>),
    Open(Subscriber),
}

async fn open(client: Client) -> Subscriber {
    loop {
        match client.subscribe(names::QUESTIONS).await {
            Ok(messages) => return messages,
            Err(error) => tracing::warn!(%error, "subscribing to questions failed, retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Questions {
    /// The next question about a shard of ours. Invalid questions are logged and skipped. Cancel safe.
    pub(crate) async fn next(&mut self, is_ours: impl Fn(Shard) -> bool) -> Asked {
        loop {
            match &mut self.state {
                Subscription::Opening(opening) => self.state = Subscription::Open(opening.await),
                Subscription::Open(messages) => match messages.next().await {
                    Some(message) => {
                        if let Some(asked) = asked(message, &is_ours) {
                            return asked;
                        }
                    }
                    None => self.state = Subscription::Opening(open(self.client.clone()).boxed()),
                },
            }
        }
    }
}

fn asked(message: Message, is_ours: impl Fn(Shard) -> bool) -> Option<Asked> {
    let (pool, shard) = names::question_of(&message.subject)?;
    if !is_ours(shard) {
        return None;
    }
    let reply = message.reply?;
    if !may_be_answered(&pool, &reply) {
        tracing::warn!(%pool, %reply, "ignoring a question: its reply subject is not one of the pool's");
        return None;
    }
    let request = decode_request(message.payload)
        .inspect_err(|error| tracing::warn!(%pool, %error, "ignoring a question that cannot be decoded"))
        .ok()?;
    Some(Asked { request, pool, reply })
}

#[cfg(test)]
mod tests {
    use async_nats::connection::State;
    use proto::convert::worker::encode_question;
    use run::CallIndex;
    use tokio::task::JoinSet;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn who_listens_for_questions_is_not_held_up_by_a_broker_that_is_away_and_hears_them_later() {
        let mut server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let options = async_nats::ConnectOptions::new().client_capacity(1);
        let client = options.connect(server.url()).await.expect("it listens");
        server.kill().await;
        while client.connection_state() == State::Connected {
            tokio::time::sleep(SHORT).await;
        }
        // There is no room for any command to the broker.
        let mut commands = JoinSet::new();
        for _ in 0..8 {
            let client = client.clone();
            commands.spawn(async move { client.publish("nowhere", Bytes::new()).await });
        }
        let mut questions = Signals(client.clone()).questions();
        for _ in 0..5 {
            let waited = tokio::time::timeout(SHORT, questions.next(|_| true)).await;
            assert!(waited.is_err(), "nobody asked");
        }
        server.restart().await.expect("it starts again");
        let (pool, shard): (PoolId, _) = ("main".parse().expect("a name"), Shard(0));
        let run = RunId::new(shard, uuid::Uuid::now_v7());
        let question = Question { run, call: CallIndex(0), delivered: 1, sequence: 1, attempt: None, executed: false };
        let (subject, reply) = (names::question(&pool, shard), format!("_INBOX.pool.{pool}.1"));
        let asked = async {
            loop {
                let published =
                    client.publish_with_reply(subject.clone(), reply.clone(), encode_question(&question)).await;
                published.expect("the client lives");
                if let Ok(asked) = tokio::time::timeout(SHORT, questions.next(|_| true)).await {
                    return asked;
                }
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await.expect("the question arrives");
        assert_eq!((asked.run(), asked.pool), (run, pool));
    }
}
