//! The levels, with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod programs_of_tests;

use programs_of_tests::{end, sandbox_with, workspace};
use sandbox::{Level, Request, Settings, Wanted};
use toolyard_tool::Left;

#[tokio::test]
async fn smoke() {
    for level in [Level::None, Level::Confined, Level::Isolated] {
        let folder = workspace();
        let sandbox = sandbox_with(Settings {
            level: Wanted::Exactly(level),
            workspace: Some(folder.path().to_owned()),
            ..Settings::default()
        });
        let text = "id; pwd; echo $HOME $TMPDIR; ls -la . / /dev; touch a $TMPDIR/b && echo written; ls /proc | head -3; cat /proc/self/status | grep -E 'Cap|NoNew|Seccomp|NSpid'; cat /proc/mounts | wc -l; ulimit -a | grep proc; cat /proc/net/dev; sleep 1 & exit 3";
        let guarded = sandbox.start(Request::shell(text, folder.path()), Left::default()).await.unwrap();
        let (out, err, exit) = end(guarded).await;
        eprintln!("---- {level}: {exit:?}\n{out}\n{err}");
    }
}
