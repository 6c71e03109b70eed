//! Measures how long a program takes that does nothing, on each level.
//!
//! `cargo run --release -p toolyard-sandbox --example start_cost`

use std::error::Error;
use std::time::{Duration, Instant};

use sandbox::{Level, Report, Request, Sandbox, Settings, Wanted};
use toolyard_tool::Left;

const STARTS: usize = 300;

fn main() -> Result<(), Box<dyn Error>> {
    // Before there are threads: a process with several cannot enter a user namespace.
    sandbox::enter();
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let workspace = tempfile::tempdir()?;
    let user = sandbox::choose_user(None)?;
    if let Some(user) = user {
        std::os::unix::fs::chown(workspace.path(), Some(user.uid), Some(user.gid))?;
    }
    for level in [Level::None, Level::Confined, Level::Isolated] {
        let settings = Settings { level: Wanted::Exactly(level), user, ..Settings::default() };
        let sandbox = match Sandbox::new(settings) {
            Ok(sandbox) => sandbox,
            Err(error) => {
                eprintln!("{level}: {error}");
                continue;
            }
        };
        for (kind, pause) in [("one after another", Duration::ZERO), ("with 50 ms between", Duration::from_millis(50))]
        {
            let mut took = Vec::with_capacity(STARTS);
            for _ in 0..STARTS {
                tokio::time::sleep(pause).await;
                let began = Instant::now();
                let mut guarded = sandbox.start(Request::shell("true", workspace.path()), Left::default()).await?;
                while let Some(report) = guarded.report().await {
                    if let Report::Failed(error) = report {
                        return Err(error.into());
                    }
                }
                took.push(began.elapsed());
            }
            took.sort();
            eprintln!("{level}, {kind}: p50 {:.1?}, p99 {:.1?}", took[STARTS / 2], took[STARTS * 99 / 100]);
        }
    }
    Ok(())
}
