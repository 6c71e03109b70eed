//! Tasks that end before whoever started them.

use tokio::task::JoinError;

/// What a task gave. Its panic becomes ours and ends the process: what the task was to undo, nobody else does.
pub(crate) fn finished<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("a task was stopped, which nothing does: {error}"),
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
