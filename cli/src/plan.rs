//! `toolyard plan`: how much of everything a load needs, from coefficients that were measured.

use std::time::Duration;

use run::Partition;

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::list::span;
use crate::log::{readable, size};
use crate::serve::request_ids_for;
use crate::terminal::Terminal;
use crate::words::duration;

const EXAMPLES: &str = "\
Examples:
  toolyard plan --calls-per-s 100
  toolyard plan --calls-per-s 2000 --output-bytes 8KiB --call-time 5s \\
    --runs-open 50000 --tail 6h --request-ids --request-ids-for 2h
  toolyard plan --calls-per-s 500 --tail 1h --history
  toolyard plan --calls-per-s 100 -o json | jq .log_max_bytes

It multiplies what you give with coefficients that docs/howto/capacity.md lists
with the place where each was measured. It asks no server. The processor time
and memory of the tools themselves are not in it, and neither are objects
(results of more than 256 KiB, and uploads) and Redis.

The exit code is 1 if one partition of the log was never seen to take the load.

With -o json it writes one object: calls_per_s, log_messages_per_s,
log_bytes_per_s, log_max_bytes, log_max_messages, tail_percent, request_ids,
broker_servers, broker_memory_bytes (of each server, its GOMEMLIMIT),
broker_disk_bytes (of each server), processor_cores {broker, coordinators,
workers, output} (busy on average), coordinators, coordinator_memory_bytes (of
each), history_bytes_per_day (0 without --history), worker_slots, workers,
log_share (of the highest rate of one partition that was measured), partitions
(of the log; log_max_bytes and log_max_messages are of each), fits.";

/// The part of a log's messages or bytes that open runs and runs that have ended may fill together. From 85 % on new
/// runs are refused.
const FILLED_PERCENT: u64 = 80;
const PARTITIONS_MAX: u64 = Partition::MAX as u64;
/// Bytes of a message of the log without arguments and output, and messages of a call: its job and its end.
const MESSAGE_BYTES: u64 = 250;
const CALL_MESSAGES: u64 = 2;
/// Output is stored in messages of this size at most, if the tool writes it fast.
const OUTPUT_MESSAGE_BYTES: u64 = 64 << 10;
/// Bytes of a run that waits and is carried beside the log, without its arguments: the message's subject, headers and
/// bookkeeping, and its opening. The bucket of carried runs has this part of the log's bytes.
const CARRIED_RUN_BYTES: u64 = 450;
const LOG_BYTES_PER_CARRIED_BYTE: u64 = 16;
/// Bytes of the log for each request id: their bucket has an eighth of its bytes, and one takes 260 if it expires. The
/// bucket is planned to be as full as the log.
const LOG_BYTES_PER_REQUEST_ID: u64 = 8 * 260 * 100 / FILLED_PERCENT;
/// The room for request ids and for carried runs beside the log, as coordinators and the chart count it for the memory
/// of the broker: one for each so many bytes of the log.
const LOG_BYTES_PER_ROOM: [u64; 2] = [8 * 240, LOG_BYTES_PER_CARRIED_BYTE * CARRIED_RUN_BYTES];
/// The broker's memory: a fixed part, and a part for each message that the log may hold, and for each request id and
/// each carried run for which there is room beside it.
const BROKER_FIXED_BYTES: u64 = 128 << 20;
const BROKER_MESSAGE_BYTES: u64 = 1 << 10;
/// A coordinator's memory: without runs, for each run that is executed, and for each that waits, without its arguments.
const COORDINATOR_FIXED_BYTES: u64 = 64 << 20;
const COORDINATOR_RUN_BYTES: u64 = 5 << 10;
const COORDINATOR_WAITING_BYTES: u64 = 1 << 10;
/// What a call costs: by `ExecuteRun` with 256 in flight on 2026-11-26, the broker's time of 2026-11-22.
const WITHOUT_HISTORY: Costs = Costs {
    broker_us: 53.0,
    coordinator_us: 72.0,
    worker_us: 24.0,
    measured_calls_per_s: 11_160.0,
    coordinator_bytes: COORDINATOR_FIXED_BYTES,
};
/// The same after a million calls with a history, with 64 in flight, on 2026-11-28.
const WITH_HISTORY: Costs = Costs {
    broker_us: 65.0,
    coordinator_us: 81.0,
    worker_us: 26.0,
    measured_calls_per_s: 7_734.0,
    coordinator_bytes: 500 << 20,
};
/// Bytes of a run of one call in the history, without its arguments and output; files that were merged included, which
/// stay for a day.
const HISTORY_RUN_BYTES: u64 = 2 << 10;
/// Processor time of a byte of output in all processes together, in microseconds.
const OUTPUT_BYTE_US: f64 = 0.0104;
/// A partition is planned for this part of that rate at most, so that it also takes a while of more.
const PARTITION_SHARE: f64 = 0.5;
/// Beside the log, each server stores request ids, snapshots and other buckets (a third of the log), the queue of
/// webhooks and the small buckets.
const DISK_BESIDE_BYTES: u64 = 276 << 20;
/// Sizes of logs are multiples of this.
const LOG_STEP: u64 = 64 << 20;
/// A log keeps a message for 25 h at most.
const KEPT_MAX: Duration = Duration::from_secs(25 * 60 * 60);

/// Processor time of a call in microseconds, and what follows from the same measurement.
struct Costs {
    broker_us: f64,
    coordinator_us: f64,
    worker_us: f64,
    /// The highest rate of one log, on two cores that broker, coordinator, worker and client shared.
    measured_calls_per_s: f64,
    /// The memory of a coordinator without its runs.
    coordinator_bytes: u64,
}

/// Calculate what a load needs: the log, the broker, coordinators and workers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Calls a second, in the busiest hour
    #[arg(long, value_name = "N", value_parser = rate)]
    calls_per_s: f64,
    /// Bytes of the arguments of a call
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = size)]
    argument_bytes: u64,
    /// Bytes of output and result of a call
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = size)]
    output_bytes: u64,
    /// How long a call runs
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = span)]
    call_time: Duration,
    /// Runs that wait for a client, an approval or a time, beside those that run
    #[arg(long, value_name = "N", default_value_t = 0)]
    runs_open: u32,
    /// How long runs that have ended are to be readable
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = span)]
    tail: Duration,
    /// Each call has a run of its own with a request id
    #[arg(long)]
    request_ids: bool,
    /// How long such an id is kept, as given to coordinators
    #[arg(long, value_name = "SPAN", default_value = "25h", value_parser = request_ids_for, requires = "request_ids")]
    request_ids_for: Duration,
    /// Runs that have ended go to a history
    #[arg(long)]
    history: bool,
    /// Copies of the log, each on a server of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    copies: u8,
    /// Slots of a worker
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,
}

fn rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no rate: give a number above zero, 10000000 at most");
    text.parse().ok().filter(|rate| (f64::MIN_POSITIVE..=1e7).contains(rate)).ok_or_else(wrong)
}

/// What a load needs.
#[derive(Debug, PartialEq)]
struct Plan {
    messages_per_s: f64,
    bytes_per_s: f64,
    log_bytes: u64,
    log_messages: u64,
    tail_percent: u64,
    request_ids: u64,
    broker_memory: u64,
    broker_disk: u64,
    broker_cores: f64,
    coordinator_cores: f64,
    worker_cores: f64,
    output_cores: f64,
    coordinators: u64,
    coordinator_memory: u64,
    /// Bytes that the history grows by a day; 0 without one.
    history_per_day: u64,
    slots: u64,
    workers: u64,
    /// The rate, as a part of the highest of one partition that was measured.
    log_share: f64,
    /// Partitions of the log, also if there may not be so many.
    partitions: u64,
}

impl Plan {
    fn of(args: &Args) -> Self {
        let rate = args.calls_per_s;
        let costs = if args.history { WITH_HISTORY } else { WITHOUT_HISTORY };
        let output_messages = args.output_bytes / OUTPUT_MESSAGE_BYTES;
        let call_messages = CALL_MESSAGES + u64::from(args.request_ids) + output_messages;
        let call_bytes = call_messages * MESSAGE_BYTES + args.argument_bytes + args.output_bytes;
        let (messages_per_s, bytes_per_s) = (rate * float(call_messages), rate * float(call_bytes));
        let tail = args.tail.min(KEPT_MAX).as_secs_f64();
        let (ended_messages, ended_bytes) = (messages_per_s * tail, bytes_per_s * tail);
        // Of a run that waits, the log has the opening.
        let executed = rate * args.call_time.as_secs_f64();
        let open = f64::from(args.runs_open) + executed;
        let open_messages = open * float(1 + u64::from(args.request_ids));
        let open_bytes = open_messages * float(MESSAGE_BYTES) + open * float(args.argument_bytes);
        let room = |ended: f64, open: f64| round_up((ended + open) * 100.0 / float(FILLED_PERCENT));
        let log_messages = room(ended_messages, open_messages).max(10_000);
        // Runs that wait for long are carried, and all of them may be.
        let carried_bytes =
            u64::from(args.runs_open).saturating_mul(CARRIED_RUN_BYTES.saturating_add(args.argument_bytes));
        let kept_ids = if args.request_ids { rate * args.request_ids_for.as_secs_f64() } else { 0.0 };
        let request_ids = round_up(kept_ids);
        let log_bytes = room(ended_bytes, open_bytes)
            .max(carried_bytes.saturating_mul(LOG_BYTES_PER_CARRIED_BYTE))
            .max(request_ids.saturating_mul(LOG_BYTES_PER_REQUEST_ID));
        // Messages and bytes of each partition.
        let log_share = rate / costs.measured_calls_per_s;
        let partitions = round_up(log_share / PARTITION_SHARE).max(1);
        let log_bytes = log_bytes.div_ceil(partitions).div_ceil(LOG_STEP).max(1).saturating_mul(LOG_STEP);
        let log_messages = log_messages.div_ceil(partitions);
        let all = |of_each: u64| of_each.saturating_mul(partitions);
        let ended_part = |ended: f64, limit: u64| round_up(ended * 100.0 / float(all(limit)));
        let tail_percent = ended_part(ended_messages, log_messages).max(ended_part(ended_bytes, log_bytes));
        let beside = LOG_BYTES_PER_ROOM.iter().map(|bytes| all(log_bytes) / bytes).sum();
        let subjects = all(log_messages).saturating_add(beside);
        let slots = round_up(rate * args.call_time.as_secs_f64() * 1.25).max(1);
        let coordinator_cores = rate * costs.coordinator_us / 1e6;
        let coordinators = round_up(coordinator_cores / 0.5).max(2);
        // One of them may be away.
        let of_one = |runs: f64| round_up(runs / float(coordinators - 1));
        let history_run = HISTORY_RUN_BYTES.saturating_add(args.argument_bytes).saturating_add(args.output_bytes);
        let history_per_day = if args.history { round_up(rate * 86_400.0 * float(history_run)) } else { 0 };
        let waiting_bytes = COORDINATOR_WAITING_BYTES.saturating_add(args.argument_bytes);
        Self {
            messages_per_s,
            bytes_per_s,
            log_bytes,
            log_messages,
            tail_percent: tail_percent.clamp(10, 80),
            request_ids,
            broker_memory: BROKER_MESSAGE_BYTES.saturating_mul(subjects).saturating_add(BROKER_FIXED_BYTES),
            broker_disk: all(log_bytes).saturating_add(all(log_bytes) / 3).saturating_add(DISK_BESIDE_BYTES),
            broker_cores: rate * costs.broker_us / 1e6,
            coordinator_cores,
            worker_cores: rate * costs.worker_us / 1e6,
            output_cores: rate * float(args.output_bytes) * OUTPUT_BYTE_US / 1e6,
            coordinators,
            coordinator_memory: COORDINATOR_RUN_BYTES
                .saturating_mul(of_one(executed))
                .saturating_add(waiting_bytes.saturating_mul(of_one(f64::from(args.runs_open))))
                .saturating_add(costs.coordinator_bytes),
            history_per_day,
            slots,
            workers: slots.div_ceil(u64::from(args.slots)),
            log_share,
            partitions,
        }
    }

    fn fits(&self) -> bool {
        self.log_share <= 1.0
    }

    fn object(&self, args: &Args) -> Object {
        let cores = Object::default()
            .field("broker", self.broker_cores)
            .field("coordinators", self.coordinator_cores)
            .field("workers", self.worker_cores)
            .field("output", self.output_cores);
        Object::default()
            .field("calls_per_s", args.calls_per_s)
            .field("log_messages_per_s", self.messages_per_s)
            .field("log_bytes_per_s", self.bytes_per_s)
            .field("log_max_bytes", self.log_bytes)
            .field("log_max_messages", self.log_messages)
            .field("tail_percent", self.tail_percent)
            .field("request_ids", self.request_ids)
            .field("broker_servers", args.copies)
            .field("broker_memory_bytes", self.broker_memory)
            .field("broker_disk_bytes", self.broker_disk)
            .field("processor_cores", cores)
            .field("coordinators", self.coordinators)
            .field("coordinator_memory_bytes", self.coordinator_memory)
            .field("history_bytes_per_day", self.history_per_day)
            .field("worker_slots", self.slots)
            .field("workers", self.workers)
            .field("log_share", self.log_share)
            .field("partitions", self.partitions)
            .field("fits", self.fits())
    }

    fn lines(&self, args: &Args) -> Vec<String> {
        let servers = if args.copies == 1 { "1 server".to_owned() } else { format!("{} servers, each", args.copies) };
        let mut lines = vec![
            format!(
                "log           {:.0} messages and {} a second",
                self.messages_per_s,
                readable(whole(self.bytes_per_s))
            ),
            format!(
                "              --log-max-bytes {} --log-max-messages {} --tail-percent {}",
                self.log_bytes, self.log_messages, self.tail_percent
            ),
            format!(
                "broker        {servers} {} of memory (GOMEMLIMIT, and --broker-memory {}), {} of disk",
                readable(self.broker_memory),
                self.broker_memory,
                readable(self.broker_disk)
            ),
            format!("coordinators  {}, each {} of memory", self.coordinators, readable(self.coordinator_memory)),
            format!("workers       {} with {} slots: {} calls at a time", self.workers, args.slots, self.slots),
            format!(
                "processor     {:.2} cores busy: broker {:.2}, coordinators {:.2}, workers {:.2}, output {:.2}",
                self.broker_cores + self.coordinator_cores + self.worker_cores + self.output_cores,
                self.broker_cores,
                self.coordinator_cores,
                self.worker_cores,
                self.output_cores
            ),
        ];
        if args.history {
            lines.push(format!(
                "history       {} a day, {} with --history-retention 30d",
                readable(self.history_per_day),
                readable(self.history_per_day.saturating_mul(30))
            ));
        }
        if args.request_ids {
            let (ids, kept) = (self.request_ids, duration(args.request_ids_for));
            lines.push(format!("request ids   {ids}, kept for {kept}: fewer with a shorter --request-ids-for"));
        }
        let share = self.log_share * 100.0;
        lines.push(match self.log_share {
            ..=0.5 => format!("one log       takes it: {share:.1} % of the highest rate that was measured"),
            ..=1.0 => {
                format!("one partition {share:.0} % of the highest rate that was measured: measure it on your machines")
            }
            _ => format!(
                "one partition was never seen to take it: {:.1} times the highest rate that was measured \
                (docs/howto/capacity.md)",
                self.log_share
            ),
        });
        if self.partitions > PARTITIONS_MAX {
            lines.push(format!(
                "partitions    {} would be needed, and a log may have {PARTITIONS_MAX}: divide the load among \
                 deployments",
                self.partitions
            ));
        } else if self.partitions > 1 {
            lines.push(format!(
                "partitions    toolyard log partitions {}: the sizes above are of each. Several on machines of their \
                 own were not measured",
                self.partitions
            ));
        }
        lines
    }
}

/// Exact below 2^53, and near enough above.
fn float(number: u64) -> f64 {
    number as f64
}

fn whole(number: f64) -> u64 {
    number as u64
}

fn round_up(number: f64) -> u64 {
    whole(number.ceil())
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let plan = Plan::of(args);
    if terminal.is_json() {
        terminal.object(&plan.object(args))?;
    } else {
        plan.lines(args).iter().try_for_each(|line| terminal.line(line))?;
    }
    Ok(if plan.fits() { Exit::Completed } else { Exit::Failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(calls_per_s: f64) -> Args {
        Args {
            calls_per_s,
            argument_bytes: 256,
            output_bytes: 1024,
            call_time: Duration::from_secs(1),
            runs_open: 0,
            tail: Duration::from_secs(3600),
            request_ids: false,
            request_ids_for: KEPT_MAX,
            history: false,
            copies: 3,
            slots: 16,
        }
    }

    #[test]
    fn a_load_has_room_for_what_is_open_and_what_has_ended_below_the_refusal() {
        let plan = Plan::of(&args(100.0));
        assert_eq!((plan.log_messages, plan.workers, plan.coordinators), (900_125, 8, 2));
        assert_eq!(plan.tail_percent, 80);
        assert!(float(plan.log_bytes) >= 100.0 * 3600.0 * 1780.0 / 0.8, "{plan:?}");
        assert!(plan.fits() && plan.broker_memory > 900 << 20, "{plan:?}");
        let waiting = Plan::of(&Args { runs_open: 1_000_000, ..args(100.0) });
        assert!(waiting.log_messages > 2_100_000 && waiting.tail_percent < 50, "{waiting:?}");
        assert!(waiting.coordinator_memory > 1 << 30, "one of two may be away: {waiting:?}");
        assert!(waiting.log_bytes / 16 >= 1_000_000 * 450, "all of them may be carried: {waiting:?}");
    }

    #[test]
    fn a_load_that_one_log_was_never_seen_to_take_does_not_fit() {
        assert!(Plan::of(&args(11_000.0)).fits() && !Plan::of(&args(12_000.0)).fits());
        let said = [
            (10.0, "one log       takes it"),
            (10_000.0, "measure it"),
            (10_000.0, "log partitions 2:"),
            (100_000.0, "was never seen to take it"),
            (1e7, "divide the load among deployments"),
        ];
        for (rate, said) in said {
            let args = args(rate);
            let lines = Plan::of(&args).lines(&args).join("\n");
            assert!(lines.contains(said), "{lines}");
        }
    }

    #[test]
    fn partitions_divide_the_log_and_no_server_gets_less_memory() {
        let plan = Plan::of(&args(40_000.0));
        assert_eq!(plan.partitions, 8);
        let alone = Plan::of(&args(4000.0));
        assert!(plan.log_bytes < 2 * alone.log_bytes, "{plan:?}");
        assert!(plan.broker_memory > 9 * (alone.broker_memory - BROKER_FIXED_BYTES), "{plan:?}");
    }

    #[test]
    fn the_log_is_so_large_that_all_request_ids_find_room_beside_it_for_as_long_as_they_are_kept() {
        let day = Args { request_ids: true, ..args(1_000.0) };
        let hour = Args { request_ids_for: Duration::from_secs(3600), ..day };
        let (without, long, short) = (Plan::of(&args(1_000.0)), Plan::of(&day), Plan::of(&hour));
        assert_eq!((without.request_ids, long.request_ids, short.request_ids), (0, 90_000_000, 3_600_000));
        // 259 bytes were seen.
        assert!(long.log_bytes / 8 * 80 / 100 >= 90_000_000 * 259, "{long:?}");
        assert!(short.log_bytes < long.log_bytes / 10 && short.broker_memory < long.broker_memory / 5, "{short:?}");
        let said = short.lines(&hour).join("\n");
        assert!(said.contains("request ids   3600000, kept for 1 h"), "{said}");
    }

    #[test]
    fn a_history_costs_rate_memory_and_room_of_its_own() {
        let (plan, without) = (Plan::of(&Args { history: true, ..args(1_000.0) }), Plan::of(&args(1_000.0)));
        assert!(plan.coordinator_cores > without.coordinator_cores && plan.log_share > 1.4 * without.log_share);
        assert_eq!((plan.history_per_day, without.history_per_day), (1_000 * 86_400 * (2048 + 256 + 1024), 0));
        let said = plan.lines(&Args { history: true, ..args(1_000.0) }).join("\n");
        assert!(said.contains("history       267.7 GiB a day"), "{said}");
    }

    #[test]
    fn the_least_and_the_largest_load_have_a_plan() {
        let least = Args { tail: Duration::ZERO, call_time: Duration::ZERO, ..args(f64::MIN_POSITIVE) };
        assert_eq!(Plan::of(&least).log_bytes, LOG_STEP);
        let most = Args { output_bytes: 1 << 40, runs_open: u32::MAX, request_ids: true, ..args(1e7) };
        assert!(!Plan::of(&most).lines(&most).is_empty());
        for wrong in ["0", "-1", "NaN", "inf", "1e8", "many", ""] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
