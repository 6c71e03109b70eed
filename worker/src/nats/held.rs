//! Paused tools, as coordinators publish them every second: jobs of these tools go back to the queue.

use std::cell::RefCell;
use std::collections::HashSet;

use proto::names::HELD_FOR;
use run::ToolName;
use tokio::time::Instant;

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

    /// Whether jobs of the tool are not executed now. Its own name is looked up only if some tool is paused.
    pub(super) fn holds<'a>(&self, own_name: impl FnOnce() -> &'a ToolName) -> bool {
        let said = self.0.borrow();
        !said.tools.is_empty() && said.at.is_some_and(|at| at.elapsed() < HELD_FOR) && said.tools.contains(own_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
