//! Results of finished tasks, and the interval of checking files.

use std::time::Duration;

use tokio::task::JoinError;

/// How often files are checked for changes. A certificate is replaced days before it expires.
pub(crate) const LOOK: Duration = Duration::from_secs(2);

/// The result of a task. A panic of the task is propagated and ends the process, because what the task had to undo
/// would not be undone.
pub(crate) fn finished<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("a task was cancelled, which must not happen: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    #[should_panic(expected = "of the task")]
    async fn a_panic_of_a_task_is_not_passed_over() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("of the task") });
        finished(tasks.join_next().await.expect("it was spawned"));
    }
}
