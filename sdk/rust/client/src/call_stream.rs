//! The output of one call as a stream of its own.

use std::collections::VecDeque;

use futures::{Stream, stream};
use proto::v1;
use proto::v1::run_event::Event;

use crate::error::Error;
use crate::watch::Watch;

/// What happened to a call that is followed alone.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CallEvent {
    /// A piece of its output.
    Chunk {
        /// Distinguishes streams of one call, such as `stdout` and `stderr`; empty if there is only one.
        channel: String,
        /// The piece.
        content: v1::Content,
    },
    /// How far it is.
    Progress(v1::Progress),
    /// Its chunks so far are void: another attempt starts over.
    Withdrawn,
    /// It waits for an approval.
    AwaitingApproval(v1::CallAwaitingApproval),
    /// It waits for the client's answer.
    Waiting(v1::CallWaiting),
    /// It ended. The last event.
    Done {
        /// Its tool.
        tool: String,
        /// How it ended.
        outcome: v1::CallOutcome,
    },
}

impl Watch {
    /// The output of one call of the run, piece by piece, up to its end. Events of other calls, the call's own
    /// questions included, are left out. The stream ends with an error, or after [`CallEvent::Done`]; without one only
    /// if the run ends and has no such call.
    pub fn of_call(self, call_id: impl Into<String>) -> impl Stream<Item = Result<CallEvent, Error>> + Send {
        let state = Following { watch: self, call_id: call_id.into(), pending: VecDeque::new(), is_done: false };
        stream::try_unfold(state, async |mut state| Ok(state.next().await?.map(|event| (event, state))))
    }
}

struct Following {
    watch: Watch,
    call_id: String,
    pending: VecDeque<CallEvent>,
    is_done: bool,
}

impl Following {
    async fn next(&mut self) -> Result<Option<CallEvent>, Error> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.is_done = matches!(event, CallEvent::Done { .. });
                return Ok(Some(event));
            }
            if self.is_done {
                return Ok(None);
            }
            let Some(events) = self.watch.next().await? else { return Ok(None) };
            let of_call = events.into_iter().filter_map(|event| of_call(event.event?, &self.call_id));
            self.pending.extend(of_call);
        }
    }
}

fn of_call(event: Event, call: &str) -> Option<CallEvent> {
    match event {
        Event::CallOutput(it) if it.call_id == call => match it.piece? {
            v1::call_output::Piece::Content(content) => Some(CallEvent::Chunk { channel: it.channel, content }),
            v1::call_output::Piece::Progress(progress) => Some(CallEvent::Progress(progress)),
        },
        Event::CallOutputWithdrawn(it) if it.call_id == call => Some(CallEvent::Withdrawn),
        Event::CallAwaitingApproval(it) if it.call_id == call => Some(CallEvent::AwaitingApproval(it)),
        Event::CallWaiting(it) if it.call_id == call => Some(CallEvent::Waiting(it)),
        Event::CallEnded(it) if it.call_id == call => {
            Some(CallEvent::Done { tool: it.tool, outcome: it.outcome.unwrap_or_default() })
        }
        _ => None,
    }
}
