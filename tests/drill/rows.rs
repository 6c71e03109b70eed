//! All rows: failures and their promises.

use std::pin::Pin;
use std::time::Duration;

use crate::report::Seen;
use crate::{brokers, coordinators, rest, workers};

type Running = Pin<Box<dyn Future<Output = Seen> + Send>>;

/// A failure, and its promise to clients.
pub(crate) struct Row {
    /// For the command line.
    pub(crate) name: &'static str,
    pub(crate) cause: &'static str,
    /// The promised recovery, and its time limit.
    pub(crate) promised: &'static str,
    pub(crate) within: Duration,
    /// Causes it. Panics if something else than the promised happens.
    pub(crate) run: fn() -> Running,
}

macro_rules! rows {
    ($($name:literal: $cause:literal => $promised:literal, $within:literal s, $run:path;)*) => {
        &[$(Row {
            name: $name,
            cause: $cause,
            promised: $promised,
            within: Duration::from_secs($within),
            run: || Box::pin($run()),
        }),*]
    };
}

pub(crate) const ROWS: &[Row] = rows! {
    "worker-dies": "a worker dies with a call that may be repeated"
        => "another worker of the pool begins it again; no output is doubled", 9 s, workers::one_dies;
    "worker-dies-once": "the only worker of a pool dies with a call that may not be repeated"
        => "it ends as `INTERRUPTED`, and its tool is not called again", 10 s, workers::one_dies_with_an_effect;
    "worker-stalls": "a worker stands still (SIGSTOP) and comes back"
        => "its call goes to another worker; what it says later is not heard", 12 s, workers::one_stalls;
    "no-worker": "no worker of a pool is left"
        => "a call that does not wait ends with `NO_WORKER`; one that waits runs when a worker comes", 10 s,
        workers::none_is_left;
    "worker-wrong-key": "a worker has the key of another pool"
        => "its log says what the broker refused", 15 s, workers::has_the_wrong_key;
    "worker-drained": "an operator drains a worker under load"
        => "its process ends with 0, and no call fails", 15 s, workers::is_drained;
    "coordinator-dies": "one of two coordinators dies under load"
        => "no call fails, and its shards are taken over", 9 s, coordinators::one_dies;
    "coordinators-die": "all coordinators die while a call runs"
        => "the call goes on; a new coordinator tells all of its output", 12 s, coordinators::all_die;
    "coordinators-restart": "both coordinators are restarted, one after the other, under load"
        => "no call fails; the longest run takes", 5 s, coordinators::are_restarted;
    "coordinator-wrong-key": "a coordinator starts with a key that the broker does not know"
        => "its process ends with an error", 10 s, coordinators::is_not_let_in;
    "broker-leader": "of three servers of the broker the leader of the log dies under load"
        => "no call fails; the longest waits for the election", 20 s, brokers::the_leader_dies;
    "broker-leader-doctor": "one of three servers of the broker is gone"
        => "`doctor` says which", 10 s, brokers::doctor_names_the_lost_one;
    "broker-quorum": "two of three servers of the broker die"
        => "coordinators and workers say that they do not serve", 6 s, brokers::most_die;
    "broker-quorum-back": "one of the two comes back"
        => "coordinators serve again, as soon as the log has a leader", 15 s, brokers::most_come_back;
    "broker-restarts": "the only server of the broker is killed and started again"
        => "the run that was open goes on, nothing is lost or doubled", 15 s, brokers::the_only_one_restarts;
    "broker-disk": "the disk of the only server of the broker is lost"
        => "everything in it is gone; a coordinator that is restarted accepts runs", 15 s, brokers::its_disk_is_lost;
    "log-full": "the log is full"
        => "new runs are refused with `LOG_FULL`, what runs ends, and `log resize` has runs accepted", 5 s,
        brokers::the_log_is_full;
    "redis-dies": "Redis dies and comes back empty"
        => "lists answer `INDEX_UNAVAILABLE`, calls go on; the index is complete again", 15 s, rest::redis_dies;
    "clocks": "a coordinator's clock is 5 minutes ahead, a worker's 5 minutes behind"
        => "a deadline of 2 s ends its call in time", 5 s, rest::clocks_differ;
    "call-parked": "a call is parked"
        => "`redrive` runs it once more, asked twice as well", 5 s, rest::a_call_is_parked;
    "webhook-parked": "nobody takes a webhook within its time (2 s here)"
        => "it is parked", 10 s, rest::a_webhook_is_parked;
    "pool-paused": "a pool is paused and resumed"
        => "its calls wait, and run when it is resumed", 5 s, rest::a_pool_is_paused;
};
