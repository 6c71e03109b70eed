//! The messages of a model that are stored, and what became of their calls.

use std::collections::{HashMap, HashSet};

use formats::heard::Heard;
use formats::turns::{Answer, Turn};
use proto::v1;
use serde::{Deserialize, Serialize};

use super::{Message, Said, TURN_TOOL, turn_id};
use crate::client::Client;
use crate::error::Error;

/// A stored message, as the arguments of its call.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) message: Box<Message>,
    pub(super) tokens: u64,
    /// Tokens of the runs that the calls before this message made, if the loop has a limit.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(super) below: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(below: &u64) -> bool {
    *below == 0
}

/// A message of the model that is stored, and its calls.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) said: Said,
    /// As in its [`Record`].
    pub(super) below: u64,
    pub(super) turn: Turn,
    /// The ids in the run of the calls that are executed, by the model's ids.
    pub(super) calls: HashMap<String, String>,
    /// Why the others are not executed.
    pub(super) refused: HashMap<String, String>,
}

impl Stored {
    /// Corrects what is executed by the calls that the run has: tools and limits may have changed since.
    pub(super) fn correct(&mut self, number: usize, ids: &HashSet<&str>) {
        for (index, call) in self.turn.calls.iter().enumerate() {
            let id = format!("{}.{index}", turn_id(number));
            if ids.contains(id.as_str()) {
                self.refused.remove(&call.id);
                self.calls.insert(call.id.clone(), id);
            } else if self.calls.remove(&call.id).is_some() {
                self.refused.insert(call.id.clone(), "it was not executed".to_owned());
            }
        }
    }

    /// The calls that are executed, in the order of the message.
    pub(super) fn executed(&self) -> impl Iterator<Item = &str> {
        self.turn.calls.iter().filter_map(|call| self.calls.get(&call.id)).map(String::as_str)
    }

    /// The results that are the answer: those of all its calls, if all of their tools return directly.
    pub(super) fn direct<'a>(&self, heard: &'a Heard) -> Option<Vec<Answer<'a>>> {
        let calls = self.turn.calls.iter();
        let results = calls.map(|call| heard.direct(self.calls.get(&call.id)?)).collect::<Option<Vec<_>>>()?;
        Some(results).filter(|results| !results.is_empty())
    }
}

/// Tokens of a loop that is in a run, and of the runs that its calls made, as far as the loop has counted them. A run
/// that cannot be read any more, or is no loop, has none.
pub(super) async fn tokens_of(client: &Client, run_id: &str) -> Result<u64, Error> {
    let run = match client.run(run_id).await {
        Ok(run) => run,
        Err(Error::Refused(_)) => return Ok(0),
        Err(error) => return Err(error),
    };
    Ok(run.calls.iter().filter_map(record_of).map(|record| record.tokens.saturating_add(record.below)).sum())
}

fn record_of(call: &v1::Call) -> Option<Record> {
    let is_turn = call.tool == TURN_TOOL;
    is_turn.then(|| serde_json::from_str(&call.arguments).ok()).flatten()
}
