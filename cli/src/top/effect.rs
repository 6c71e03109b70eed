//! What the console requests of the coordinator, and what it receives.

use crossterm::event::KeyEvent;
use proto::v1;

use super::state::Tab;

/// Something that changes the state.
#[derive(Debug)]
pub(super) enum Event {
    Key(KeyEvent),
    Paste(String),
    /// The terminal has so many rows.
    Resize(u16),
    /// The time, in milliseconds since the Unix epoch.
    Tick(u64),
    Loaded(Box<Loaded>),
    /// The coordinator cannot be reached, or does not answer.
    Lost(String),
    /// The coordinator answered, and refused to load the page.
    Refused(String),
    /// Events of the run that is followed.
    Output {
        run_id: String,
        events: Vec<v1::RunEvent>,
    },
    /// The run that is followed has ended, and all of its output was received.
    Over {
        run_id: String,
    },
    /// The output of the run cannot be read.
    Unreadable {
        run_id: String,
        error: String,
    },
    Explained(Box<Explained>),
    Done(Result<Done, String>),
}

/// An action that succeeded.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) text: String,
    /// A run that it made, to be followed.
    pub(super) run_id: Option<String>,
}

/// What was loaded for a page.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) counts: v1::CountRunsResponse,
    pub(super) runs: Option<Vec<v1::RunSummary>>,
    pub(super) inbox: Option<Vec<v1::ListedCall>>,
    pub(super) failed: Option<Vec<v1::ListedCall>>,
    pub(super) fleet: Option<Fleet>,
}

#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) workers: Vec<v1::Worker>,
    pub(super) pauses: Vec<v1::Pause>,
    pub(super) open: Vec<v1::ListedCall>,
    /// Workers and pauses are for admins alone, and the user is none.
    pub(super) is_forbidden: bool,
}

#[derive(Debug)]
pub(super) struct Explained {
    pub(super) run_id: String,
    pub(super) call_id: String,
    pub(super) answer: Result<v1::ExplainCallResponse, String>,
}

/// Something to do, outside of the state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Load(Page),
    /// Read a run's output from its beginning; that of another run is read no more.
    Follow(String),
    Unfollow,
    Explain {
        run_id: String,
        call_id: String,
    },
    Act(Action),
    Quit,
}

/// What a page needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// Only how many runs and calls there are: a run is shown over the page.
    Counts,
    Of(Tab, v1::RunStatus),
}

/// A change that the user requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    CancelRun { run_id: String },
    CancelCall { run_id: String, call_id: String },
    Redrive { run_id: String, call_id: String },
    Approve { run_id: String, call_id: String, arguments: Option<String> },
    Reject { run_id: String, call_id: String, reason: String },
    Answer { run_id: String, call_id: String, text: String },
    Pause { pool: String, reason: String },
    Resume { pool: String },
    Drain { worker_id: String },
}

impl Action {
    /// What the user confirms.
    pub(super) fn question(&self) -> String {
        match self {
            Self::CancelRun { run_id } => format!("cancel {run_id}"),
            Self::CancelCall { call_id, .. } => format!("cancel the call {call_id}"),
            Self::Redrive { call_id, .. } => format!("execute the call {call_id} once more, in a new run"),
            Self::Approve { call_id, .. } => format!("approve the call {call_id} with the arguments above"),
            Self::Reject { call_id, .. } => format!("reject the call {call_id}"),
            Self::Answer { call_id, .. } => format!("answer the call {call_id}"),
            Self::Pause { pool, .. } => format!("pause the pool {pool}"),
            Self::Resume { pool } => format!("resume the pool {pool}"),
            Self::Drain { worker_id } => format!("drain {worker_id}"),
        }
    }
}
