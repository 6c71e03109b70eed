//! The ordered output of a run together with that of the runs below it: those that its calls made, as calls of agents
//! do, and those that calls of these made.
//!
//! A call names the run that it made in the message of a progress report ([`made_run`]).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use proto::v1::RunEvent;
use proto::v1::call_output::Piece;
use proto::v1::run_event::Event;
use tokio::time::{Instant, sleep_until};

use crate::client::Client;
use crate::error::Error;
use crate::watch::{Floor, Watch};

/// Runs below each other that are followed. Tools make at most three.
pub const DEPTH_MAX: u32 = 8;
/// Runs that are followed at once: a coordinator serves 256 requests of a connection at the same time.
const RUNS_MAX: usize = 100;
/// How long the first events of a run are waited for, and more of its output at the end of the call that made it.
const SETTLE: Duration = Duration::from_secs(2);
/// How long a run that was read a moment ago is waited for, if another one has an event.
const QUIET: Duration = Duration::from_millis(25);
const RUN: &str = "run ";

/// The message of the progress report by which a call names the run that it made.
#[must_use]
pub fn made_run(run_id: &str) -> String {
    format!("{RUN}{run_id}")
}

/// A run that is followed, and the call that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The run; empty before its first event if it is new.
    pub run_id: String,
    /// The run of the call that made it; empty for the run that is watched.
    pub parent_run_id: String,
    /// The call that made it; empty for the run that is watched.
    pub parent_call_id: String,
    /// How many runs it is below the run that is watched.
    pub depth: u32,
}

/// What [`NestedWatch::next`] gives out.
#[derive(Debug)]
pub enum Nested {
    /// The next events of one of the runs.
    Events(Arc<Place>, Vec<RunEvent>),
    /// A run below cannot be read; the others are followed further.
    Unreadable(Arc<Place>, Error),
}

/// The ordered output of a run and of the runs below it. Each event is given once. The events of one run are in its
/// order, those of several are put together by their times as far as they arrive in time, and the output of a run below
/// comes before the end of the call that made it. It connects again as [`Watch`] does.
#[derive(Debug)]
pub struct NestedWatch {
    client: Client,
    floor: Floor,
    depth_max: u32,
    /// Events up to these numbers are not given out, by their runs.
    after: HashMap<String, u64>,
    /// The runs that are read, in the order in which they were found; the one that is watched is the first.
    nodes: BTreeMap<usize, Node>,
    reading: FuturesUnordered<BoxFuture<'static, Read>>,
    /// All runs that are or were followed, so that each is followed once.
    known: HashSet<String>,
    unreadable: VecDeque<Nested>,
}

/// The number of the run that is watched.
const ROOT: usize = 0;

/// A run that is read.
#[derive(Debug)]
struct Node {
    place: Arc<Place>,
    /// `None` while it is read.
    watch: Option<Watch>,
    /// What was read and not given out.
    pending: VecDeque<RunEvent>,
    /// Since when it is read without an answer.
    asked: Instant,
    was_read: bool,
}

type Read = (usize, Watch, Result<Option<Vec<RunEvent>>, Error>);

/// What is to be done next.
enum Next {
    Give(Nested),
    /// Events were passed over.
    Again,
    Wait(Option<Instant>),
    Ended,
}

impl Node {
    /// When it may be taken to have nothing at the moment.
    fn quiet_at(&self) -> Instant {
        self.asked + if self.was_read { QUIET } else { SETTLE }
    }

    fn made_by(&self, run_id: &str, call_id: &str) -> bool {
        self.place.parent_run_id == run_id && self.place.parent_call_id == call_id
    }

    /// The order of the next event among those of other runs. The end of a call comes after what happened at the same
    /// time.
    fn rank(&self) -> Option<(u128, bool, u32)> {
        let next = self.pending.front()?;
        Some((millis(next), ended_call(next).is_some(), self.place.depth))
    }
}

impl NestedWatch {
    /// Follows the run of a watch, which must begin with the run's first event to find all runs below it.
    #[must_use]
    pub fn new(client: &Client, watch: Watch) -> Self {
        let (run_id, floor) = (watch.run_id().to_owned(), watch.floor());
        let (parent_run_id, parent_call_id) = (String::new(), String::new());
        let mut this = Self {
            client: client.clone(),
            floor,
            depth_max: DEPTH_MAX,
            after: HashMap::new(),
            nodes: BTreeMap::new(),
            reading: FuturesUnordered::new(),
            known: HashSet::from([run_id.clone()]),
            unreadable: VecDeque::new(),
        };
        this.follow(ROOT, Place { run_id, parent_run_id, parent_call_id, depth: 0 }, watch);
        this
    }

    /// How far below the run others are followed; 0 for none.
    #[must_use]
    pub fn depth_max(mut self, depth: u32) -> Self {
        self.depth_max = depth;
        self
    }

    /// Leaves out the events of a run up to this number, which were given out before. They are read all the same,
    /// because they name the runs below.
    #[must_use]
    pub fn after(mut self, run_id: impl Into<String>, sequence: u64) -> Self {
        self.after.insert(run_id.into(), sequence);
        self
    }

    /// The next events, at least one, or a run that cannot be read; `None` once the run that is watched has ended.
    /// Cancel safe: if it is dropped while it waits, no event is lost.
    ///
    /// # Errors
    /// As [`Watch::next`], about the run that is watched.
    pub async fn next(&mut self) -> Result<Option<Nested>, Error> {
        loop {
            let until = match self.choose(Instant::now()) {
                Next::Give(nested) => return Ok(Some(nested)),
                Next::Ended => return Ok(None),
                Next::Again => continue,
                Next::Wait(until) => until,
            };
            tokio::select! {
                biased;
                Some(read) = self.reading.next() => self.take(read)?,
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            }
        }
    }

    fn follow(&mut self, number: usize, place: Place, watch: Watch) {
        let node = Node {
            place: Arc::new(place),
            watch: Some(watch),
            pending: VecDeque::new(),
            asked: Instant::now(),
            was_read: false,
        };
        self.nodes.insert(number, node);
        self.read(number);
    }

    /// Reads a run further, if all that was read of it is given out.
    fn read(&mut self, number: usize) {
        let Some(node) = self.nodes.get_mut(&number).filter(|node| node.pending.is_empty()) else { return };
        let Some(mut watch) = node.watch.take() else { return };
        node.asked = Instant::now();
        let is_new = !node.was_read;
        self.reading.push(Box::pin(async move {
            if is_new && number != ROOT {
                // What fails now is tried again, and reported, by the read.
                drop(watch.open().await);
            }
            let read = watch.next().await;
            (number, watch, read)
        }));
    }

    fn take(&mut self, (number, watch, read): Read) -> Result<(), Error> {
        // Otherwise its parent went on without it.
        let Some(node) = self.nodes.get_mut(&number) else { return Ok(()) };
        match read {
            Ok(Some(events)) => {
                node.pending = events.into();
                (node.watch, node.was_read) = (Some(watch), true);
            }
            Ok(None) => drop(self.nodes.remove(&number)),
            Err(error) if number == ROOT => return Err(error),
            Err(error) => {
                let place = Arc::clone(&node.place);
                self.nodes.remove(&number);
                self.unreadable.push_back(Nested::Unreadable(place, error));
            }
        }
        Ok(())
    }

    /// Chooses the oldest event. It waits for runs that were read a moment ago and may have an older one.
    fn choose(&mut self, now: Instant) -> Next {
        if let Some(unreadable) = self.unreadable.pop_front() {
            return Next::Give(unreadable);
        }
        if !self.nodes.contains_key(&ROOT) {
            return Next::Ended;
        }
        let ranked = self.nodes.iter().filter_map(|(number, node)| Some((node.rank()?, *number)));
        let Some((_, number)) = ranked.min() else { return Next::Wait(None) };
        let silent = self.nodes.values().filter(|node| node.pending.is_empty());
        if let Some(until) = silent.map(Node::quiet_at).max().filter(|until| *until > now) {
            return Next::Wait(Some(until));
        }
        self.advance(number, now)
    }

    fn advance(&mut self, number: usize, now: Instant) -> Next {
        match self.unfinished(number) {
            Some(child) => self.finish(number, child, now),
            None => self.give(number),
        }
    }

    /// A run that is still read, of the call whose end is next.
    fn unfinished(&self, number: usize) -> Option<usize> {
        let node = self.nodes.get(&number)?;
        let call_id = ended_call(node.pending.front()?)?;
        let made = |(_, child): &(&usize, &Node)| child.made_by(&node.place.run_id, call_id);
        self.nodes.iter().find(made).map(|(child, _)| *child)
    }

    /// Gives out the rest of a run before the end of the call that made it. A run that outlives the call, by the times
    /// of its events, or has nothing for a while, is followed no more.
    fn finish(&mut self, number: usize, child: usize, now: Instant) -> Next {
        let end = self.nodes.get(&number).and_then(|node| node.pending.front()).map(millis).unwrap_or_default();
        let Some(node) = self.nodes.get(&child) else { return Next::Again };
        match node.pending.front().map(millis) {
            Some(next) if next <= end + SETTLE.as_millis() => return self.advance(child, now),
            None if now < node.asked + SETTLE => return Next::Wait(Some(node.asked + SETTLE)),
            Some(_) | None => {}
        }
        self.nodes.remove(&child);
        Next::Again
    }

    /// Gives out the next event of a run: all that it has if it is the only one.
    fn give(&mut self, number: usize) -> Next {
        let mut given = Vec::new();
        while let Some(event) = self.nodes.get_mut(&number).and_then(|node| node.pending.pop_front()) {
            let Some(node) = self.nodes.get_mut(&number) else { break };
            if let Some(Event::RunOpened(opened)) = &event.event
                && node.place.run_id.is_empty()
            {
                node.place = Arc::new(Place { run_id: opened.run_id.clone(), ..Place::clone(&node.place) });
                self.known.insert(opened.run_id.clone());
            }
            let place = Arc::clone(&node.place);
            self.learn(&place, &event);
            if self.after.get(&place.run_id).is_none_or(|after| event.sequence > *after) {
                given.push(event);
            }
            if self.nodes.len() > 1 {
                break;
            }
        }
        self.read(number);
        match self.nodes.get(&number) {
            Some(node) if !given.is_empty() => Next::Give(Nested::Events(Arc::clone(&node.place), given)),
            Some(_) | None => Next::Again,
        }
    }

    /// Follows the run that an event names, unless it is followed or there are too many.
    fn learn(&mut self, parent: &Place, event: &RunEvent) {
        let Some((call_id, run_id)) = named_run(event) else { return };
        if parent.depth >= self.depth_max || self.nodes.len() > RUNS_MAX || !self.known.insert(run_id.to_owned()) {
            return;
        }
        let place = Place {
            run_id: run_id.to_owned(),
            parent_run_id: parent.run_id.clone(),
            parent_call_id: call_id.to_owned(),
            depth: parent.depth + 1,
        };
        let watch = Watch::of_run(self.client.clone(), run_id, None, self.floor.clone());
        self.follow(self.known.len(), place, watch);
    }
}

fn ended_call(event: &RunEvent) -> Option<&str> {
    match &event.event {
        Some(Event::CallEnded(ended)) => Some(&ended.call_id),
        _ => None,
    }
}

/// The call and the run that it made, if the event is a progress report that names one.
#[must_use]
pub fn named_run(event: &RunEvent) -> Option<(&str, &str)> {
    let Some(Event::CallOutput(output)) = &event.event else { return None };
    let Some(Piece::Progress(progress)) = &output.piece else { return None };
    let run_id = progress.message.strip_prefix(RUN)?;
    let is_id = run_id.starts_with("run_") && run_id.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_');
    is_id.then_some((&output.call_id, run_id))
}

/// By the broker's clock.
fn millis(event: &RunEvent) -> u128 {
    let time = event.time.unwrap_or_default();
    let (seconds, nanos) = (u128::try_from(time.seconds), u128::try_from(time.nanos));
    seconds.unwrap_or_default() * 1000 + nanos.unwrap_or_default() / 1_000_000
}
