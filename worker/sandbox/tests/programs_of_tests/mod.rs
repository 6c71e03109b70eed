//! Starts programs and reads them to their end.

#![allow(dead_code, reason = "not all tests need all of it")]

use std::time::Duration;

use sandbox::{Exit, Guarded, Order, Report, Sandbox, Settings, User};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

/// Longer than anything here should take.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Root starts programs as another user, as a worker does.
pub(crate) fn sandbox_with(settings: Settings) -> Sandbox {
    sandbox::use_program(env!("CARGO_BIN_EXE_toolyard-guard").into());
    Sandbox::new(Settings { user: sandbox::choose_user(None).unwrap(), ..settings }).unwrap()
}

/// A folder that programs may change.
pub(crate) fn workspace() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    give(folder.path());
    folder
}

/// Makes the user of programs the owner.
pub(crate) fn give(path: &std::path::Path) {
    if let Some(User { uid, gid }) = sandbox::choose_user(None).unwrap() {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// The output of a program, and how it ends.
pub(crate) async fn end(mut guarded: Guarded) -> (String, String, Option<Exit>) {
    let (stdout, stderr) = guarded.pipes();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (stdout.unwrap(), stderr.unwrap());
    let reading = async { tokio::try_join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err)) };
    let (exit, read) = tokio::join!(exit(&mut guarded), timeout(SOON, reading));
    read.unwrap().unwrap();
    (String::from_utf8_lossy(&out).into_owned(), String::from_utf8_lossy(&err).into_owned(), exit)
}

/// How the program ends; what it leaves behind is killed, and nothing of it lives then.
pub(crate) async fn exit(guarded: &mut Guarded) -> Option<Exit> {
    let mut exit = None;
    let reports = async {
        while let Some(report) = guarded.report().await {
            match report {
                Report::Exited(how) => {
                    exit = Some(how);
                    guarded.order(Order::Kill);
                }
                Report::Gone | Report::PerhapsGone => {}
                Report::Failed(error) => panic!("{error}"),
            }
        }
    };
    timeout(SOON, reports).await.unwrap();
    exit
}
