//! `toolyard tail`: the output of all calls that match, of new runs too, as lines with the names of their calls.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use client::Client;
use formats::openai::share::call_of;
use proto::v1;
use proto::v1::call_output::Piece;
use proto::v1::run_event::Event;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::list::{ago, span};
use crate::server::Server;
use crate::tally::Tally;
use crate::terminal::{Paint, Terminal};
use crate::words::{content, contents, harmless, short_id, word};

const EXAMPLES: &str = "\
Examples:
  toolyard tail
  toolyard tail --tool bash --tenant acme
  toolyard tail --pool builds --since 10m
  toolyard tail -o json | jq -r .call_output.content.text

New runs are looked for once a second, among the newest 500. A line has the end
of the run's id, the call and its tool. With -o json each event has run_id.
Ctrl-C ends it; the runs go on.";

/// How often new runs are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Runs that are looked through.
const RUNS_MAX: usize = 500;
/// Runs that are read at once; others are read when one of them ends.
const READ_MAX: usize = 100;
/// Messages that wait to be shown.
const MESSAGES_MAX: usize = 64;
/// A line that becomes longer is shown in parts.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Follow the output of everything: all new runs, or those of a pool, a tool or a tenant
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only calls that this pool executes
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Only runs of this tenant
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    /// Also runs that are at most so old, as 30s, 10m, 2h or 1d [default: only those that have not ended]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    since: Option<Duration>,
}

/// Events of a run that is read, or why it cannot be read.
type Message = (String, Result<Vec<v1::RunEvent>, String>);

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    let (sender, received) = channel(MESSAGES_MAX);
    let tail = Tail { client, args, sender, known: HashSet::new(), waiting: Vec::new(), reading: JoinSet::new() };
    tail.follow(received, terminal).await
}

struct Tail {
    client: Client,
    args: Args,
    sender: Sender<Message>,
    /// Runs that were found.
    known: HashSet<String>,
    /// Runs that are not read yet, the newest first.
    waiting: Vec<String>,
    reading: JoinSet<()>,
}

impl Tail {
    async fn follow(mut self, mut received: Receiver<Message>, terminal: &Terminal) -> Result<Exit, Failure> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut printer, mut is_first, mut is_away) = (Printer::new(terminal.paint()), true, false);
        loop {
            tokio::select! {
                _ = looks.tick() => match self.look(is_first).await {
                    Ok(()) => {
                        if is_first {
                            terminal.note("following new runs; Ctrl-C ends it, and the runs go on");
                        }
                        (is_first, is_away) = (false, false);
                    }
                    Err(client::Error::Unreachable { reason, .. }) if !is_first => {
                        if !std::mem::replace(&mut is_away, true) {
                            terminal.note(&format!("the coordinator is away, waiting for it: {reason}"));
                        }
                    }
                    Err(error) => return Err(error.into()),
                },
                Some((run_id, events)) = received.recv() => match events {
                    Ok(events) => {
                        for event in &events {
                            self.show(&mut printer, &run_id, event, terminal)?;
                        }
                    }
                    Err(why) => terminal.note(&format!("{run_id} cannot be read: {why}")),
                },
                Some(_) = self.reading.join_next(), if !self.reading.is_empty() => self.read_more(),
            }
        }
    }

    /// Finds runs that are new.
    async fn look(&mut self, is_first: bool) -> Result<(), client::Error> {
        let created_from = if is_first { ago(self.args.since) } else { None };
        let tenant = self.args.tenant.clone();
        let request = v1::ListRunsRequest { tenant, created_from, ..v1::ListRunsRequest::default() };
        let (runs, _) = self.client.list_runs(request, RUNS_MAX).await?;
        let mut found = Vec::new();
        for run in runs {
            // Runs that had ended before are not shown, unless their age was given.
            let is_old = is_first && self.args.since.is_none() && has_ended(&run);
            let is_new = self.known.insert(run.run_id.clone());
            if is_new && !is_old && (run.calls.is_empty() || run.calls.iter().any(|call| self.wants(call))) {
                found.push(run.run_id);
            }
        }
        found.append(&mut self.waiting);
        self.waiting = found;
        self.read_more();
        Ok(())
    }

    fn wants(&self, call: &v1::CallSummary) -> bool {
        let is_of = |wanted: &Option<String>, of: &str| wanted.as_ref().is_none_or(|wanted| wanted == of);
        is_of(&self.args.tool, &call.tool) && is_of(&self.args.pool, &call.pool)
    }

    /// Reads the runs that wait, the oldest first, as far as there is room.
    fn read_more(&mut self) {
        while self.reading.len() < READ_MAX {
            let Some(run_id) = self.waiting.pop() else { return };
            let (client, sender) = (self.client.clone(), self.sender.clone());
            self.reading.spawn(async move {
                if let Err(error) = read(&client, &run_id, &sender).await {
                    drop(sender.send((run_id, Err(Failure::from(error).to_string()))).await);
                }
            });
        }
    }

    fn show(
        &self,
        printer: &mut Printer,
        run_id: &str,
        event: &v1::RunEvent,
        terminal: &Terminal,
    ) -> Result<(), Failure> {
        let printed = printer.print(run_id, event);
        let call = event.event.as_ref().and_then(call_of);
        let tool = call.and_then(|call| printer.tool(run_id, call)).unwrap_or_default();
        if self.args.tool.as_ref().is_some_and(|wanted| call.is_some() && *wanted != tool) {
            return Ok(());
        }
        if terminal.is_json() {
            let of = Object::default().field("run_id", run_id).to_string();
            let event = proto::json::write(event);
            return terminal.json(&format!("{},{}", of.trim_end_matches('}'), event.trim_start_matches('{')));
        }
        terminal.write(printed.as_bytes())
    }
}

fn has_ended(run: &v1::RunSummary) -> bool {
    !matches!(run.status(), v1::RunStatus::InProgress | v1::RunStatus::RequiresAction | v1::RunStatus::Unspecified)
}

async fn read(client: &Client, run_id: &str, sender: &Sender<Message>) -> Result<(), client::Error> {
    let mut watch = client.watch(run_id, None, v1::FloorPolicy::Interleaved).await?;
    while let Some(events) = watch.next().await? {
        if sender.send((run_id.to_owned(), Ok(events))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Puts output of several calls into whole lines with a prefix.
#[derive(Debug)]
pub(crate) struct Printer {
    paint: Paint,
    runs: HashMap<String, Tally>,
    /// Lines that are not ended, by run, call and channel.
    unended: HashMap<(String, String, String), String>,
}

impl Printer {
    pub(crate) fn new(paint: Paint) -> Self {
        Self { paint, runs: HashMap::new(), unended: HashMap::new() }
    }

    fn tool(&self, run_id: &str, call_id: &str) -> Option<String> {
        let (_, call) = self.runs.get(run_id)?.call(call_id)?;
        Some(call.tool.clone())
    }

    /// The whole lines that an event brings.
    pub(crate) fn print(&mut self, run_id: &str, event: &v1::RunEvent) -> String {
        let tally = self.runs.entry(run_id.to_owned()).or_insert_with(|| Tally::of_run(run_id.to_owned()));
        tally.note(event);
        match &event.event {
            Some(Event::CallOutput(output)) => match &output.piece {
                Some(Piece::Content(said)) => self.add(run_id, &output.call_id, &output.channel, &content(said)),
                Some(Piece::Progress(_)) | None => String::new(),
            },
            Some(Event::CallOutputWithdrawn(withdrawn)) => {
                self.line(run_id, &withdrawn.call_id, "", "↺ the output above is void, it starts again")
            }
            Some(Event::CallEnded(ended)) => {
                let mut text = self.rest(run_id, &ended.call_id);
                let has_said =
                    self.runs.get(run_id).and_then(|run| run.call(&ended.call_id)).is_some_and(|(_, it)| it.said);
                let result = ended.outcome.as_ref().filter(|_| !has_said).map(|outcome| contents(&outcome.result));
                let result = result.filter(|result| !result.is_empty());
                text.extend(result.map(|result| self.add(run_id, &ended.call_id, "", &(result + "\n"))));
                let state = ended.outcome.as_ref().map_or(v1::CallState::Unspecified, v1::CallOutcome::state);
                let why = ended.outcome.as_ref().and_then(|outcome| outcome.error.as_ref()).map(crate::words::error);
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let line = format!("· {}{why}", word(state.as_str_name(), "CALL_STATE_"));
                text.push_str(&self.line(run_id, &ended.call_id, "", &line));
                text
            }
            Some(Event::RunEnded(_)) => {
                self.runs.remove(run_id);
                String::new()
            }
            _ => String::new(),
        }
    }

    fn add(&mut self, run_id: &str, call_id: &str, channel: &str, text: &str) -> String {
        let key = (run_id.to_owned(), call_id.to_owned(), channel.to_owned());
        let mut unended = self.unended.remove(&key).unwrap_or_default();
        unended.push_str(text);
        let mut lines = String::new();
        let whole = unended.rfind('\n').map_or(0, |at| at + 1);
        let rest = unended.split_off(whole);
        unended.lines().for_each(|line| lines.push_str(&self.line(run_id, call_id, channel, line)));
        let unended = rest;
        if unended.len() > LINE_BYTES_MAX {
            lines.push_str(&self.line(run_id, call_id, channel, &unended));
        } else if !unended.is_empty() {
            self.unended.insert(key, unended);
        }
        lines
    }

    /// The lines of a call that will not be ended any more.
    fn rest(&mut self, run_id: &str, call_id: &str) -> String {
        let of_call = self.unended.extract_if(|(run, call, _), _| run == run_id && call == call_id);
        let rest: Vec<_> = of_call.collect();
        rest.into_iter().map(|((_, _, channel), line)| self.line(run_id, call_id, &channel, &line)).collect()
    }

    fn line(&self, run_id: &str, call_id: &str, channel: &str, line: &str) -> String {
        let found = self.runs.get(run_id).and_then(|tally| tally.call(call_id));
        let tool = found.map_or("", |(_, call)| call.tool.as_str());
        let short = short_id(run_id);
        let run = short.rsplit('…').next().unwrap_or_default();
        let prefix = format!("{run} {} {}", harmless(call_id), harmless(tool));
        let hue = run.bytes().map(usize::from).sum();
        let bar = if channel == "stderr" { self.paint.bad("!") } else { self.paint.hue(hue, "│") };
        format!("{} {bar} {}\n", self.paint.hue(hue, &prefix), harmless(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(call_id: &str, channel: &str, text: &str) -> v1::RunEvent {
        let piece = Some(Piece::Content(v1::content::Body::Text(text.to_owned()).into()));
        let (call_id, channel) = (call_id.to_owned(), channel.to_owned());
        let output = v1::CallOutput { call_id, channel, piece, ..v1::CallOutput::default() };
        v1::RunEvent { sequence: 0, time: None, event: Some(Event::CallOutput(output)) }
    }

    fn ended(call_id: &str) -> v1::RunEvent {
        let outcome = Some(v1::CallOutcome { state: v1::CallState::Completed.into(), ..v1::CallOutcome::default() });
        let ended = v1::CallEnded { call_id: call_id.to_owned(), outcome, ..v1::CallEnded::default() };
        v1::RunEvent { sequence: 0, time: None, event: Some(Event::CallEnded(ended)) }
    }

    #[test]
    fn output_of_several_calls_is_shown_in_whole_lines_with_their_names() {
        let mut printer = Printer::new(Paint(false));
        let events = [
            output("a", "stdout", "half"),
            output("b", "stderr", "other\n"),
            output("a", "stdout", " a line\nrest\x1b[2J"),
            ended("a"),
        ];
        let printed: String = events.iter().map(|event| printer.print("run_1", event)).collect();
        let expected =
            ["run_1 b  ! other", "run_1 a  │ half a line", "run_1 a  │ rest\u{fffd}[2J", "run_1 a  │ · completed", ""];
        assert_eq!(printed, expected.join("\n"));
    }

    #[test]
    fn a_line_that_does_not_end_is_shown_in_parts() {
        let mut printer = Printer::new(Paint(false));
        let printed = printer.print("run_1", &output("a", "", &"x".repeat(LINE_BYTES_MAX + 1)));
        assert_eq!(printed.matches('x').count(), LINE_BYTES_MAX + 1);
    }
}
