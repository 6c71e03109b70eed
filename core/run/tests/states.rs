//! The tables of `docs/reference/states.md` are what the fold and `decide` do:
//! `TOOLYARD_WRITE_STATES=1 cargo test -p toolyard-run --test states` writes them.

mod story;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use story::{
    Story, answered, approved, cancel_requested, client, completed, delay_ended, delayed, dispatched, ended, expired,
    expired_by, failed, failed_for_now, id, no_worker_lives, rejected, repeatable, returned, run_cancel_requested,
    run_erase_requested, run_id, shared, started, text, unapproved,
};
use toolyard_run::{
    Answer, AttemptOutcome, CallIndex, Command, CommandError, DeadlineKind, Decision, Event, Timestamp, limit,
};

const DELAY: Duration = Duration::from_secs(60);

/// Call `a` in each state that a call can have, beside a call that keeps its run from ending.
fn states() -> Vec<(&'static str, Story)> {
    let of = |call| Story::of([call, client("other")]);
    let accepted = of(repeatable("a"));
    let waiting = of(client("a"));
    let queued = accepted.clone().told(dispatched(0));
    let running = queued.clone().told(started(0, 1));
    vec![
        ("accepted", accepted),
        ("awaiting approval", of(unapproved("a", Duration::from_secs(600)))),
        ("delayed", of(delayed("a", DELAY))),
        ("waiting for the client", waiting.clone()),
        ("queued", queued.clone()),
        ("running", running.clone()),
        ("running, to be cancelled", running.clone().told(cancel_requested(0))),
        ("ended with a result", running.told(completed(0, 1, 0))),
        ("ended by its client", waiting.told(answered(0, "yes"))),
        ("parked", queued.told(expired_by(0, DeadlineKind::Queue))),
    ]
}

/// What the log can say about a call.
fn entries() -> Vec<(&'static str, Event)> {
    vec![
        ("it is approved", approved(0)),
        ("it is rejected", rejected(0, "no")),
        ("its delay is over", delay_ended(0)),
        ("its job is queued", dispatched(0)),
        ("an attempt starts", started(0, 1)),
        ("the attempt completes", completed(0, 1, 0)),
        ("the attempt fails, and may be repeated", failed_for_now(0, 1)),
        ("the attempt fails for good", failed(0, 1)),
        ("the attempt is returned by its worker", returned(0, 1)),
        ("the attempt is stopped", ended(0, 1, AttemptOutcome::Cancelled)),
        ("its client answers", answered(0, "yes")),
        ("its cancellation is requested", cancel_requested(0)),
        ("the cancellation of its run is requested", run_cancel_requested()),
        ("the erasure of its run is requested", run_erase_requested()),
        ("its owner ends it after a cancellation", Event::CallCancelled { call: CallIndex(0) }),
        ("no worker lives for its tool", no_worker_lives(0)),
        ("it was in the queue for too long", expired_by(0, DeadlineKind::Queue)),
        ("its deadline passes", expired(0)),
        ("the deadline of its run passes", Event::RunExpired { without_worker: Vec::new() }),
    ]
}

fn answer(with: &str) -> Command {
    let answers = vec![Answer { call: id("a"), output: Ok(text(with)) }];
    Command::SubmitOutputs { answers, all_required: false }
}

/// The commands of clients that are about a call.
fn commands() -> Vec<(&'static str, Command)> {
    let decide = |decision| Command::Decide { decisions: vec![(id("a"), decision)] };
    vec![
        ("answer `yes` (`SubmitToolOutputs`)", answer("yes")),
        ("answer `no` (`SubmitToolOutputs`)", answer("no")),
        ("approve (`DecideCalls`)", decide(Decision::Approved { arguments: None })),
        ("reject (`DecideCalls`)", decide(Decision::Rejected { reason: "no".into() })),
        ("cancel (`CancelCall`)", Command::CancelCall { call: id("a"), reason: "not needed".into() }),
        ("execute again (`RedriveCall`)", Command::Redrive { call: id("a"), into: run_id() }),
        ("put aside (`DropCall`)", Command::Drop { call: id("a") }),
    ]
}

fn code(error: &CommandError) -> &'static str {
    match error {
        CommandError::CallNotWaiting { .. } => "CALL_NOT_WAITING",
        CommandError::AlreadyAnswered { .. } => "CALL_ALREADY_ANSWERED",
        CommandError::NotAwaitingApproval { .. } => "CALL_NOT_AWAITING_APPROVAL",
        CommandError::NotParked { .. } => "CALL_NOT_PARKED",
        CommandError::RunClosed => "RUN_CLOSED",
        CommandError::RunEnded => "RUN_ENDED",
        other => panic!("the table has no column for {other:?}"),
    }
}

/// What a command does: the events that it appends, or the reason for which it is refused.
fn effect(story: &Story, command: &Command, state: impl Fn(&Story) -> &'static str) -> String {
    match story.run.decide(command.clone(), story.now) {
        Err(error) => format!("`{}`", code(&error)),
        Ok(events) if events.is_empty() => "no change".to_owned(),
        Ok(events) => {
            let mut after = story.clone();
            after.tell_together(events);
            match (state(story), state(&after)) {
                (before, after) if before == after => "recorded".to_owned(),
                (_, after) => format!("→ {after}"),
            }
        }
    }
}

fn table(corner: &str, columns: &[&str], rows: impl Iterator<Item = (&'static str, Vec<String>)>) -> String {
    let mut text = format!("| {corner} | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for (name, cells) in rows {
        writeln!(text, "| {name} | {} |", cells.join(" | ")).expect("a string takes everything");
    }
    text
}

fn of_entries() -> String {
    let states: Vec<(&str, Story)> = states();
    let columns: Vec<&str> = states.iter().map(|(name, _)| *name).collect();
    let rows = entries().into_iter().map(|(name, event)| {
        let cells = states.iter().map(|(_, story)| {
            let (before, mut after) = (story.state(0), story.clone());
            after.wait(DELAY);
            after.tell(event.clone());
            if after.state(0) == before { String::new() } else { after.state(0).to_owned() }
        });
        (name, cells.collect())
    });
    table("entry in the log", &columns, rows)
}

fn of_commands() -> String {
    let states = states();
    let columns: Vec<&str> = states.iter().map(|(name, _)| *name).collect();
    let rows = commands().into_iter().map(|(name, command)| {
        (name, states.iter().map(|(_, story)| effect(story, &command, |story| story.state(0))).collect())
    });
    table("command", &columns, rows)
}

fn of_runs() -> String {
    let open = Story::open([client("a")]);
    let closed = Story::of([client("a")]);
    let ended = closed.clone().told(answered(0, "yes"));
    let cancel = || "not needed".to_owned();
    let commands = [
        ("add calls (`AppendCalls`)", Command::AppendCalls { calls: shared([client("b")]) }),
        ("close (`CloseRun`)", Command::Close),
        ("cancel (`CancelRun`)", Command::CancelRun { reason: cancel() }),
    ];
    let stories = [open, closed, ended];
    let state = |story: &Story| match (story.run.status().is_final(), story.run.is_open()) {
        (true, _) => "ended",
        (false, true) => "open",
        (false, false) => "closed",
    };
    let rows = commands
        .into_iter()
        .map(|(name, command)| (name, stories.iter().map(|story| effect(story, &command, state)).collect()));
    table("command", &["open", "closed", "ended"], rows)
}

fn page(of: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference")).join(of)
}

#[test]
fn the_tables_of_states_are_what_the_fold_does() {
    let file = page("states.md");
    let before = std::fs::read_to_string(&file).expect("the page is there");
    let mut now = before;
    for (name, table) in [("entries", of_entries()), ("commands", of_commands()), ("runs", of_runs())] {
        let (begin, end) = (format!("<!-- table: {name} -->\n"), "<!-- end -->");
        let (head, rest) = now.split_once(&begin).unwrap_or_else(|| panic!("the page has the mark {begin}"));
        let (_, tail) = rest.split_once(end).expect("each table has its end");
        now = format!("{head}{begin}\n{table}\n{end}{tail}");
    }
    if std::env::var_os("TOOLYARD_WRITE_STATES").is_some() {
        std::fs::write(&file, &now).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&file).expect("the page is there");
    assert!(written == now, "docs/reference/states.md is old: write it with TOOLYARD_WRITE_STATES=1");
}

#[test]
fn every_reason_of_the_tables_is_one_that_clients_know() {
    let reasons = std::fs::read_to_string(page("reasons.md")).expect("the page is there");
    for cell in (of_commands() + &of_runs()).split('`').filter(|cell| cell.contains('_')) {
        assert!(reasons.contains(&format!("`{cell}`")), "docs/reference/reasons.md has no {cell}");
    }
}

/// Calls that are asked nothing end by their deadlines, and so does every state of the tables.
#[test]
fn every_state_of_the_tables_has_an_entry_that_ends_it() {
    for (name, story) in states() {
        let mut after = story.clone();
        after.now = Timestamp(after.now.0 + u64::try_from(limit::RUN_LIFE_MAX.as_millis()).expect("a day"));
        after.tell(Event::RunExpired { without_worker: Vec::new() });
        assert!(after.call(0).outcome().is_some(), "{name}");
        assert!(after.run.status().is_final(), "{name}");
    }
}
