//! What an operator paused, as coordinators say it every second: jobs of these tools go back to the queue.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use proto::names::HELD_FOR;
use run::ToolName;
use tokio::time::Instant;

/// A job that is held comes again after a second, then after two, and so on up to this: a long pause of many jobs must not keep
/// the broker busy with them.
const AGAIN_LONGEST: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Held(RefCell<Said>);

#[derive(Default)]
struct Said {
    tools: HashSet<ToolName>,
    at: Option<Instant>,
}

impl Held {
    pub(super) fn replace(&self, tools: Vec<ToolName>) {
        let mut said = self.0.borrow_mut();
        let tools = tools.into_iter().collect();
        if said.tools != tools {
            tracing::info!(?tools, "what is paused has changed");
        }
        *said = Said { tools, at: Some(Instant::now()) };
    }

    /// Jobs of the tool are not executed now. Its own name is looked up only where something is paused.
    pub(super) fn holds<'a>(&self, own_name: impl FnOnce() -> &'a ToolName) -> bool {
        let said = self.0.borrow();
        !said.tools.is_empty() && said.at.is_some_and(|at| at.elapsed() < HELD_FOR) && said.tools.contains(own_name())
    }
}

/// Gives a job back that was delivered for the `delivered`-th time.
pub(super) fn not_while_paused(delivered: u32) -> Bytes {
    let seconds = 1_u64.checked_shl(delivered.saturating_sub(1)).unwrap_or(u64::MAX);
    let delay = Duration::from_secs(seconds).min(AGAIN_LONGEST);
    format!(r#"-NAK {{"delay": {}}}"#, delay.as_nanos()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_held_comes_again_ever_later() {
        let nak = |delivered| String::from_utf8(not_while_paused(delivered).to_vec()).unwrap();
        assert_eq!(nak(1), r#"-NAK {"delay": 1000000000}"#);
        assert_eq!(nak(3), r#"-NAK {"delay": 4000000000}"#);
        for late in [6, 64, 65, u32::MAX] {
            assert_eq!(nak(late), r#"-NAK {"delay": 30000000000}"#);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_says_any_more_is_not_held() {
        let (held, [echo, other]) = (Held::default(), ["echo", "other"].map(|name| name.parse::<ToolName>().unwrap()));
        assert!(!held.holds(|| &echo));
        held.replace(vec![echo.clone()]);
        assert!(held.holds(|| &echo) && !held.holds(|| &other));
        held.replace(vec![other.clone()]);
        assert!(!held.holds(|| &echo) && held.holds(|| &other));
        tokio::time::advance(HELD_FOR).await;
        assert!(!held.holds(|| &other));
    }
}
