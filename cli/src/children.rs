//! The runs that calls of a run made, as text: indented, below the call that made each.

use std::collections::{HashMap, HashSet};

use client::Place;
use proto::v1;

use crate::story::{Story, named};
use crate::tally::Tally;
use crate::terminal::Paint;

/// Columns for each run between a run and the one that is watched.
const INDENT: &str = "  ";

/// What is shown beside the output of a run.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct ShowArgs {
    /// Show the runs that calls make, as calls of agents do, below these calls. It is so for people; with -o json each
    /// event then has run_id, parent_run_id, parent_call_id and depth
    #[arg(long, overrides_with = "no_children")]
    children: bool,
    /// Do not show them
    #[arg(long)]
    no_children: bool,
    /// Show the output and the results of hidden tools, too. With -o json they are always there
    #[arg(long)]
    pub(crate) hidden: bool,
}

impl ShowArgs {
    /// Whether the runs that calls make are shown.
    pub(crate) fn children_or(self, usual: bool) -> bool {
        self.children || (usual && !self.no_children)
    }
}

/// The runs below the one that is watched.
#[derive(Debug)]
pub(crate) struct Children {
    paint: Paint,
    runs: HashMap<String, Child>,
    /// The run whose text came last, if it was one of these.
    last: Option<String>,
    /// Calls of hidden tools are shown.
    hidden: bool,
    /// Runs below calls of hidden tools.
    passed_over: HashSet<String>,
}

#[derive(Debug)]
struct Child {
    story: Story,
    tally: Tally,
    indent: String,
    at_start: bool,
}

impl Child {
    fn indented(&mut self, text: &str) -> String {
        let mut indented = String::with_capacity(text.len());
        for piece in text.split_inclusive('\n') {
            if self.at_start && piece != "\n" {
                indented.push_str(&self.indent);
            }
            indented.push_str(piece);
            self.at_start = piece.ends_with('\n');
        }
        indented
    }

    /// Ends its line, because the text of another run follows.
    fn leave(&mut self) -> String {
        let text = self.story.leave();
        self.indented(&text)
    }
}

impl Children {
    pub(crate) fn new(paint: Paint, hidden: bool) -> Self {
        Self { paint, runs: HashMap::new(), last: None, hidden, passed_over: HashSet::new() }
    }

    /// The text about an event of a run below. `watched`: the calls of the run that is watched.
    pub(crate) fn tell(&mut self, place: &Place, event: &v1::RunEvent, watched: &Tally) -> String {
        if self.is_below_hidden(place, watched) {
            self.passed_over.insert(place.run_id.clone());
            return String::new();
        }
        let mut text = match self.last.as_deref() {
            Some(last) if last != place.run_id => self.leave(),
            Some(_) | None => String::new(),
        };
        if !self.runs.contains_key(&place.run_id) {
            let header = self.header(place, watched);
            let (story, tally) = (Story::of_child(self.paint), Tally::of_run(place.run_id.clone()));
            let indent = INDENT.repeat(usize::try_from(place.depth).unwrap_or(usize::MAX).min(16));
            let mut child = Child { story, tally, indent, at_start: true };
            text.push_str(&child.indented(&header));
            self.runs.insert(place.run_id.clone(), child);
        }
        if let Some(child) = self.runs.get_mut(&place.run_id) {
            child.tally.note(event);
            if self.hidden || child.tally.hidden(event).is_none() {
                let told = child.story.tell(event, &child.tally);
                text.push_str(&child.indented(&told));
            }
        }
        self.last = Some(place.run_id.clone());
        text
    }

    /// Whether a call of a hidden tool made the run, or made one above it.
    fn is_below_hidden(&self, place: &Place, watched: &Tally) -> bool {
        let parent = self.runs.get(&place.parent_run_id).map_or(watched, |parent| &parent.tally);
        let is_hidden = parent.call(&place.parent_call_id).is_some_and(|(_, call)| call.is_hidden);
        !self.hidden && (is_hidden || self.passed_over.contains(&place.parent_run_id))
    }

    /// Ends the line of the run whose text came last.
    pub(crate) fn leave(&mut self) -> String {
        let last = self.last.take();
        last.and_then(|last| self.runs.get_mut(&last)).map(Child::leave).unwrap_or_default()
    }

    /// The call that made the run, and the run.
    fn header(&self, place: &Place, watched: &Tally) -> String {
        let parent = self.runs.get(&place.parent_run_id).map_or(watched, |parent| &parent.tally);
        let who = named(&place.parent_call_id, parent);
        format!("{}\n", self.paint.dim(&format!("↳ {who} · {}", place.run_id)))
    }
}
