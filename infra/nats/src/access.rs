//! Permissions at the broker: each party gets exactly the subjects that its code uses.
//!
//! The broker does not check the reply subject of a request: it publishes its answer on whatever subject the request
//! names, its own API included, where an empty message is a valid request to delete a stream. So permissions alone keep
//! nobody out. Each pool and the observer live in an account of their own ([`config`]), which imports the subjects
//! below from the account of the coordinators. Across accounts the broker replaces the reply subject by one of its own,
//! and delivers the answer in the account of the requester.

pub mod config;

use run::PoolId;

use proto::names::{
    self, CARRIED_BUCKET, LEASES_BUCKET, OBJECTS, PAUSES_BUCKET, RECORDS_BUCKET, REQUESTS_BUCKET, SCHEDULES_BUCKET,
    SNAPSHOTS_BUCKET, STREAM, STREAMS, TOOLS_BUCKET, WEBHOOKS_STREAM,
};
use proto::object;

/// The account of all streams and of the coordinators.
pub const ACCOUNT: &str = "TOOLYARD";
/// The prefix of the inboxes of all pools.
const POOL_INBOXES: &str = "_INBOX.pool.";
/// The prefix of the reply subjects that the broker substitutes in requests from other accounts. No client may use such
/// a subject as a reply itself.
const REPLIES_TO_OTHER_ACCOUNTS: &str = "_R_.";

/// The parties that connect to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    /// Every coordinator: reads and writes all of ours.
    Coordinator,
    /// `toolyard doctor`: changes nothing and reads no entry of the log.
    Observer,
    /// An operator, by hand: changes the sizes of streams, backs them up and restores them. Its key lies on no
    /// machine that runs anything of ours.
    Operator,
    /// The workers of a pool. They can impersonate each other, and no other party.
    Pool(PoolId),
}

/// A subject on which a party may make requests of another account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub subject: String,
    pub answers: Answers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// One at most.
    One,
    /// A request for jobs brings many, and the broker's word that it still holds it.
    Many,
}

impl Party {
    /// The name of its user and of the file of its key.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Coordinator => "coordinator".to_owned(),
            Self::Observer => "observer".to_owned(),
            Self::Operator => "operator".to_owned(),
            Self::Pool(pool) => names::pool_consumer(pool),
        }
    }

    /// The party of this [name](Self::name).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "coordinator" => Some(Self::Coordinator),
            "observer" => Some(Self::Observer),
            "operator" => Some(Self::Operator),
            pool => names::pool_of_consumer(pool).map(Self::Pool),
        }
    }

    /// Its account. Messages of one account are not visible in another, except for exported and imported subjects.
    #[must_use]
    pub fn account(&self) -> String {
        match self {
            Self::Coordinator | Self::Operator => ACCOUNT.to_owned(),
            Self::Observer => format!("{ACCOUNT}-OBSERVER"),
            Self::Pool(pool) => format!("{ACCOUNT}-POOL-{pool}"),
        }
    }

    /// The prefix of the subjects on which it receives answers.
    #[must_use]
    pub fn inbox(&self) -> String {
        match self {
            Self::Coordinator => "_INBOX.coordinator".to_owned(),
            Self::Observer => "_INBOX.observer".to_owned(),
            Self::Operator => "_INBOX.operator".to_owned(),
            Self::Pool(pool) => format!("{POOL_INBOXES}{pool}"),
        }
    }

    /// The subjects that its account imports from the account of the coordinators, for requests.
    #[must_use]
    pub fn services(&self) -> Vec<Service> {
        match self {
            Self::Coordinator | Self::Operator => Vec::new(),
            Self::Observer => observer(),
            Self::Pool(pool) => worker(pool),
        }
    }

    /// Subjects that it may publish on.
    #[must_use]
    pub fn publishes(&self) -> Vec<String> {
        match self {
            Self::Coordinator => coordinator(),
            Self::Operator => operator(),
            Self::Observer => self
                .services()
                .into_iter()
                .map(|it| it.subject)
                .chain([SETTINGS, WHO_AM_I].map(str::to_owned))
                .collect(),
            Self::Pool(_) => self.services().into_iter().map(|it| it.subject).collect(),
        }
    }

    /// Subjects that it may subscribe to.
    #[must_use]
    pub fn subscribes(&self) -> Vec<String> {
        let inbox = format!("{}.>", self.inbox());
        match self {
            Self::Coordinator => {
                let questions = [names::QUESTIONS, names::FILE_QUESTIONS, names::RECORD_QUESTIONS];
                let all = [&inbox, names::HEARTBEATS, names::OVERVIEW].into_iter().chain(questions);
                all.map(str::to_owned).collect()
            }
            Self::Observer => vec![inbox, names::HEARTBEATS.to_owned()],
            Self::Operator => vec![inbox],
            Self::Pool(pool) => vec![inbox, names::stop(pool)],
        }
    }
}

/// Whether an answer to a pool's question may go there: to another account, whose pool the broker vouches for by the
/// subject of the question, or, at a broker without accounts, to an inbox of that pool. A coordinator may publish where
/// a pool may not, and would otherwise do so for a requester who names such a place as the reply subject.
#[must_use]
pub fn may_be_answered(pool: &PoolId, reply: &str) -> bool {
    reply.starts_with(REPLIES_TO_OTHER_ACCOUNTS)
        || reply
            .strip_prefix(POOL_INBOXES)
            .and_then(|rest| rest.split_once('.'))
            .is_some_and(|(whose, _)| whose == pool.as_str())
}

/// Whether the subject acknowledges a job of the pool. A coordinator may acknowledge any job, so without this check a
/// worker could make it hand back a job of another pool.
#[must_use]
pub fn may_be_handed_back(pool: &PoolId, lease: &str) -> bool {
    let queue = names::pool_consumer(pool);
    match lease.split('.').collect::<Vec<_>>()[..] {
        ["$JS", "ACK", stream, consumer, _, _, _, _, _] => STREAMS.contains(&stream) && consumer == queue,
        ["$JS", "ACK", _, _, stream, consumer, _, _, _, _, _, ..] => STREAMS.contains(&stream) && consumer == queue,
        _ => false,
    }
}

/// Only the streams of the log, one for each partition, have a consumer with the name of a pool's queue: so a pool may
/// name any stream beside it.
fn worker(pool: &PoolId) -> Vec<Service> {
    let queue = names::pool_consumer(pool);
    let one = |subject| Service { subject, answers: Answers::One };
    [
        format!("{}.run.*.*.*.out.{pool}", names::NAMESPACE),
        object::of_pool(pool),
        names::heartbeat(pool),
        format!("{}.ask.{pool}.*", names::NAMESPACE),
        format!("{}.file.{pool}.*", names::NAMESPACE),
        format!("{}.record.{pool}.*", names::NAMESPACE),
        format!("$KV.{TOOLS_BUCKET}.{pool}.*"),
        // Of the first partition only: two exports that match one import would be one too many.
        format!("$JS.API.CONSUMER.INFO.{STREAM}.{queue}"),
    ]
    .into_iter()
    .chain(acknowledgements(&queue))
    .map(one)
    .chain([Service { subject: format!("$JS.API.CONSUMER.MSG.NEXT.*.{queue}"), answers: Answers::Many }])
    .collect()
}

/// Acknowledgements of a queue's jobs, in both forms that the broker gives them. The number of tokens is exact: the
/// form of 9 tokens names its queue at the third, the other one at the sixth, and no subject may be both.
fn acknowledgements(queue: &str) -> [String; 3] {
    [
        format!("$JS.ACK.*.{queue}.*.*.*.*.*"),
        format!("$JS.ACK.*.*.*.{queue}.*.*.*.*.*"),
        format!("$JS.ACK.*.*.*.{queue}.*.*.*.*.*.>"),
    ]
}

fn coordinator() -> Vec<String> {
    let mut subjects = vec![
        names::STREAM_SUBJECTS.to_owned(),
        object::SUBJECTS.to_owned(),
        format!("{}.stop.*", names::NAMESPACE),
        names::OVERVIEW.to_owned(),
        format!("{REPLIES_TO_OTHER_ACCOUNTS}>"),
        // It listens to itself.
        format!("{}.>", Party::Coordinator.inbox()),
        "$JS.API.INFO".to_owned(),
        SETTINGS.to_owned(),
        // Flow control of push consumers.
        "$JS.FC.>".to_owned(),
        format!("$JS.API.STREAM.PURGE.KV_{LEASES_BUCKET}"),
        format!("$JS.API.STREAM.PURGE.KV_{TOOLS_BUCKET}"),
        // Parts of snapshots that were replaced.
        format!("$JS.API.STREAM.PURGE.KV_{SNAPSHOTS_BUCKET}"),
        // What is carried of runs that are erased.
        format!("$JS.API.STREAM.PURGE.KV_{CARRIED_BUCKET}"),
        // How many partitions the log has.
        "$JS.API.STREAM.NAMES".to_owned(),
        format!("$JS.API.STREAM.PURGE.KV_{REQUESTS_BUCKET}"),
        // Records that were replaced or deleted.
        format!("$JS.API.STREAM.PURGE.KV_{RECORDS_BUCKET}"),
        format!("$JS.API.STREAM.PURGE.{WEBHOOKS_STREAM}"),
        names::WEBHOOKS_SUBJECTS.to_owned(),
        format!("$JS.API.STREAM.MSG.DELETE.{WEBHOOKS_STREAM}"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{WEBHOOKS_STREAM}.>"),
    ];
    subjects.extend(
        [
            CARRIED_BUCKET,
            LEASES_BUCKET,
            PAUSES_BUCKET,
            RECORDS_BUCKET,
            REQUESTS_BUCKET,
            SCHEDULES_BUCKET,
            SNAPSHOTS_BUCKET,
        ]
        .map(|bucket| format!("$KV.{bucket}.>")),
    );
    subjects.extend(STREAMS.iter().flat_map(|stream| coordinator_of(stream)));
    subjects.extend(
        ["STREAM.INFO", "STREAM.CREATE", "STREAM.MSG.GET", "STREAM.PURGE"]
            .map(|request| format!("$JS.API.{request}.{OBJECTS}")),
    );
    subjects.push(format!("$JS.API.DIRECT.GET.{OBJECTS}.>"));
    for stream in streams() {
        subjects.extend(
            ["STREAM.INFO", "STREAM.CREATE", "STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.CREATE"]
                .map(|request| format!("$JS.API.{request}.{stream}")),
        );
        subjects.extend(
            ["DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.INFO", "CONSUMER.DELETE"]
                .map(|request| format!("$JS.API.{request}.{stream}.>")),
        );
    }
    subjects
}

/// What a coordinator may do with a partition of the log, beside what it may do with each stream.
fn coordinator_of(partition: &str) -> [String; 6] {
    [
        // Queues of pools that are paused.
        format!("$JS.API.CONSUMER.PAUSE.{partition}.*"),
        // Of runs that are not to be stored nothing is kept.
        format!("$JS.API.STREAM.PURGE.{partition}"),
        format!("$JS.API.STREAM.MSG.DELETE.{partition}"),
        // One server should not lead most partitions.
        format!("$JS.API.STREAM.LEADER.STEPDOWN.{partition}"),
        format!("$JS.ACK.{partition}.>"),
        format!("$JS.ACK.*.*.{partition}.>"),
    ]
}

/// All streams may be changed, backed up and restored, and partitions of the log added. None may be deleted, but a
/// smaller limit of bytes or age removes entries.
fn operator() -> Vec<String> {
    let requests = ["STREAM.INFO", "STREAM.UPDATE", "STREAM.SNAPSHOT", "STREAM.RESTORE"];
    let of = |stream: String| {
        let requests = requests.map(|request| format!("$JS.API.{request}.{stream}"));
        requests.into_iter().chain(["ACK", "RESTORE"].map(|what| format!("$JS.SNAPSHOT.{what}.{stream}.>")))
    };
    let further = STREAMS.iter().skip(1).map(|stream| format!("$JS.API.STREAM.CREATE.{stream}"));
    streams().chain([OBJECTS.to_owned()]).flat_map(of).chain(further).collect()
}

/// It may see how everything is set, and what stands in these buckets, which hold no arguments and no results. It may
/// make no consumer: one of its choice would publish what is stored, on a subject of its choice, in the account of the
/// coordinators.
fn observer() -> Vec<Service> {
    let mut subjects = vec!["$JS.API.INFO".to_owned()];
    subjects.extend(streams().map(|stream| format!("$JS.API.STREAM.INFO.{stream}")));
    subjects.push(format!("$JS.API.STREAM.INFO.{OBJECTS}"));
    subjects.push("$JS.API.STREAM.NAMES".to_owned());
    for stream in STREAMS {
        subjects.extend([format!("$JS.API.CONSUMER.NAMES.{stream}"), format!("$JS.API.CONSUMER.INFO.{stream}.*")]);
    }
    subjects.extend(
        [LEASES_BUCKET, PAUSES_BUCKET, TOOLS_BUCKET]
            .map(|bucket| format!("$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.>")),
    );
    subjects.into_iter().map(|subject| Service { subject, answers: Answers::One }).collect()
}

/// Answered by every server of a cluster: how it writes to disk. Only to accounts that import it from the system's.
pub const SETTINGS: &str = "$SYS.REQ.SERVER.PING.JSZ";
/// Answered by the server with the account and the permissions of the requester. Every account may ask.
pub const WHO_AM_I: &str = "$SYS.REQ.USER.INFO";

/// The log, and the buckets beside it.
fn streams() -> impl Iterator<Item = String> {
    let buckets = [
        CARRIED_BUCKET,
        LEASES_BUCKET,
        PAUSES_BUCKET,
        RECORDS_BUCKET,
        REQUESTS_BUCKET,
        SCHEDULES_BUCKET,
        SNAPSHOTS_BUCKET,
        TOOLS_BUCKET,
    ];
    STREAMS
        .into_iter()
        .chain([WEBHOOKS_STREAM])
        .map(str::to_owned)
        .chain(buckets.into_iter().map(|bucket| format!("KV_{bucket}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str) -> PoolId {
        name.parse().expect("a name")
    }

    #[test]
    fn the_users_of_an_accounts_file_are_read_back_and_an_edited_file_is_not() {
        let user = |party, key: &str| config::User { party, public_key: key.to_owned() };
        let users = [
            user(Party::Coordinator, "UA"),
            user(Party::Coordinator, "UB"),
            user(Party::Operator, "UC"),
            user(Party::Observer, "UD"),
            user(Party::Pool(pool("main")), "UE"),
            user(Party::Pool(pool("operator")), "UF"),
            user(Party::Pool(pool("main")), "UG"),
        ];
        let text = config::accounts(&users);
        let found = config::users(&text).expect("it is as it was written");
        assert_eq!(config::accounts(&found), text);
        assert!(found.len() == users.len() && users.iter().all(|user| found.contains(user)), "{found:?}");
        assert_eq!(text.matches("\"TOOLYARD-POOL-main\" {").count(), 1, "one account for both keys: {text}");
        assert_eq!(config::users(&text.replace("UA", "UA UH")), None);
        assert_eq!(config::users(&text.replace("# operator", "# admin")), None);
        assert_eq!(config::users(""), None);
    }

    #[test]
    fn every_subject_of_a_pool_names_the_pool() {
        let ours = Party::Pool(pool("main"));
        for subject in [ours.publishes(), ours.subscribes()].concat() {
            assert!(subject.split('.').any(|token| token == "main" || token == "pool-main"), "{subject}");
        }
    }

    /// Whether the broker takes a subject for one of the pattern's.
    fn matches(pattern: &str, subject: &str) -> bool {
        let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
        loop {
            match (pattern.next(), subject.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some(token), Some(given)) if token == "*" || token == given => {}
                (Some(_) | None, _) => return false,
            }
        }
    }

    fn may_publish(party: &Party, subject: &str) -> bool {
        party.publishes().iter().any(|pattern| matches(pattern, subject))
    }

    #[test]
    fn coordinators_leave_marks_and_nobody_else_does() {
        let mark = proto::subject::mark(run::Shard(7));
        for party in [Party::Coordinator, Party::Observer, Party::Pool(pool("main")), Party::Pool(pool("mark"))] {
            assert_eq!(may_publish(&party, &mark), party == Party::Coordinator, "{}", party.name());
        }
    }

    #[test]
    fn a_pool_acknowledges_its_own_jobs_in_either_form_and_no_others() {
        let other = Party::Pool(pool("other"));
        for own in [
            "$JS.ACK.ty-log.pool-other.1.2.3.4.5",
            "$JS.ACK._.hash.ty-log.pool-other.1.2.3.4.5",
            "$JS.ACK._.hash.ty-log.pool-other.1.2.3.4.5.token",
            "$JS.ACK.ty-log-3.pool-other.1.2.3.4.5",
            "$JS.ACK._.hash.ty-log-15.pool-other.1.2.3.4.5",
        ] {
            assert!(may_publish(&other, own), "{own}");
        }
        for foreign in [
            "$JS.ACK.ty-log.pool-main.1.2.3.4.5",
            "$JS.ACK._.hash.ty-log.pool-main.1.2.3.4.5",
            // Of nine tokens, so the queue is the one at the third.
            "$JS.ACK.ty-log.pool-main.ty-log.pool-other.1.2.3",
            "$JS.ACK.ty-log.pool-main.ty-log.pool-other.1.2.3.4",
            "$JS.ACK.ty-log-1.pool-main.1.2.3.4.5",
        ] {
            assert!(!may_publish(&other, foreign), "{foreign}");
        }
    }

    #[test]
    fn a_job_is_handed_back_to_the_pool_whose_it_is() {
        let main = pool("main");
        for ours in [
            "$JS.ACK.ty-log.pool-main.1.2.3.4.5",
            "$JS.ACK._.hash.ty-log.pool-main.1.2.3.4.5.token",
            "$JS.ACK.ty-log-15.pool-main.1.2.3.4.5",
        ] {
            assert!(may_be_handed_back(&main, ours), "{ours}");
            assert!(!may_be_handed_back(&pool("other"), ours), "{ours}");
        }
        for none in [
            "$JS.ACK.ty-log.pool-other.ty-log.pool-main.3.4.5",
            "$JS.ACK.ty-webhooks.pool-main.1.2.3.4.5",
            "$JS.ACK.ty-log-16.pool-main.1.2.3.4.5",
            "$JS.ACK.ty-log.pool-main.>",
            "ty.stop.main",
            "",
        ] {
            assert!(!may_be_handed_back(&main, none), "{none}");
        }
    }

    #[test]
    fn a_question_is_answered_in_another_account_or_in_the_inbox_of_the_pool_that_asks() {
        let main = pool("main");
        assert!(may_be_answered(&main, &format!("{}.abc.1", Party::Pool(main.clone()).inbox())));
        assert!(may_be_answered(&main, "_R_.a106zb.2kpddd"));
        for elsewhere in
            ["ty.run.00.run_1._.run", "_INBOX.pool.other.abc", "_INBOX.pool.main", "_INBOX.coordinator.abc"]
        {
            assert!(!may_be_answered(&main, elsewhere), "{elsewhere}");
        }
    }
}
