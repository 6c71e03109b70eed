//! Why a loop of an agent ends without an answer.

use formats::turns::Error as TurnError;

use super::{CALLS_MAX, MESSAGE_BYTES_MAX};
use crate::error::Error;

/// Why a loop cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A request to the coordinator failed.
    #[error(transparent)]
    Request(#[from] Error),
    /// The model's message is not of the form.
    #[error("the model's message cannot be read: {0}")]
    Turn(#[from] TurnError),
    /// The message cannot be stored.
    #[error("the model's message has {bytes} bytes, at most {MESSAGE_BYTES_MAX} are stored")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// The model was asked as often as it may be.
    #[error("it stopped after {turns} turns without an answer, which is its limit")]
    Turns {
        /// The limit.
        turns: u32,
    },
    /// The tokens are used up.
    #[error("it used {used} tokens, its limit is {limit}")]
    Tokens {
        /// Tokens so far.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The limits are more than a run has room for.
    #[error("{turns} turns and {calls} calls are more than the {CALLS_MAX} that a run has room for")]
    Limits {
        /// The turns.
        turns: u32,
        /// The calls.
        calls: u32,
    },
    /// A tool that the model may call is not there.
    #[error("the tool {0:?} cannot be offered to the model: {1}")]
    Tool(String, #[source] Error),
    /// The run ended, for example because it was cancelled or is overdue.
    #[error("the run {0} of the loop has ended")]
    Ended(String),
    /// The run has something else in it.
    #[error("the run {run_id} is no loop of an agent: {why}")]
    Foreign {
        /// The run.
        run_id: String,
        /// What does not fit.
        why: String,
    },
}
