//! Programs in control groups, with real ones where the machine has a group that can be written.

#![allow(clippy::unwrap_used, reason = "it is all tests")]
#![cfg(target_os = "linux")]

mod programs_of_tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use programs_of_tests::{SOON, end, sandbox_with, workspace};
use sandbox::{ControlGroups, Exit, Level, Request, Sandbox, SandboxError, Settings, StartError, Wanted};
use toolyard_tool::Left;

/// A group of version 2 below which groups can be made.
fn group() -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
    let group = root.join(format!("toolyard-test-{}", std::process::id()));
    std::fs::create_dir(&group).ok()?;
    Some(group)
}

#[tokio::test]
async fn a_program_runs_in_a_group_that_goes_with_it() {
    let Some(folder) = group() else {
        eprintln!("NOT TESTED: there is no control group of version 2 that can be written");
        return;
    };
    for level in [Level::None, Level::Isolated] {
        let groups = Some(ControlGroups { folder: folder.clone(), ..ControlGroups::default() });
        let sandbox = sandbox_with(Settings { level: Wanted::Exactly(level), groups, ..Settings::default() });
        let workspace = workspace();
        let request = Request::shell("echo ready; cat /proc/self/cgroup", workspace.path());
        let guarded = sandbox.start(request, Left::default()).await.unwrap();
        let (out, ..) = end(guarded).await;
        // An isolated program sees its group as the root of all.
        let sees = if level == Level::Isolated { "0::/\n" } else { "/toolyard-test-" };
        assert!(out.contains(sees) && out.contains("ready"), "{out}");
    }
    // Guards that wait end with their sandbox.
    let deadline = Instant::now() + SOON;
    while !removed(&folder) {
        assert!(Instant::now() < deadline, "processes are left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_program_that_was_started_is_returned_although_no_guard_can_be_made_for_the_next_one() {
    let (folder, workspace) = (tempfile::tempdir().unwrap(), workspace());
    // Files as those of a control group, which any kernel lets a guard write.
    let (group, hidden) = (folder.path().join("group"), folder.path().join("hidden"));
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("cgroup.controllers"), "").unwrap();
    let groups = Some(ControlGroups { folder: group.clone(), ..ControlGroups::default() });
    let sandbox = sandbox_with(Settings { groups, ..Settings::default() });
    let start = || sandbox.start(Request::shell("echo started", workspace.path()), Left::default());
    let started = || ("started\n".to_owned(), String::new(), Some(Exit::ExitCode(0)));
    assert_eq!(end(start().await.unwrap()).await, started());
    let deadline = Instant::now() + SOON;
    while entered(&group) < 2 {
        assert!(Instant::now() < deadline, "the next guard does not enter its group");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::fs::rename(&group, &hidden).unwrap();
    assert_eq!(end(start().await.unwrap()).await, started(), "its guard was made before the group vanished");
    assert!(matches!(start().await, Err(StartError::Guard(_))), "there is neither a guard nor a group");
    std::fs::rename(&hidden, &group).unwrap();
    assert_eq!(end(start().await.unwrap()).await, started(), "a start makes its own guard if none is ready");
}

/// Groups below a folder that a process has entered.
fn entered(folder: &Path) -> usize {
    let groups = std::fs::read_dir(folder).unwrap().flatten();
    groups.filter(|group| group.path().join("cgroup.procs").exists()).count()
}

/// Removes a group with those below it, unless the kernel still counts a process in one.
fn removed(folder: &Path) -> bool {
    let groups = std::fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let left = groups.filter(|group| std::fs::remove_dir(group.path()).is_err()).count();
    left == 0 && std::fs::remove_dir(folder).is_ok()
}

#[test]
fn a_folder_that_is_no_control_group_is_refused() {
    sandbox::use_program(env!("CARGO_BIN_EXE_toolyard-guard").into());
    let groups = Some(ControlGroups { folder: "/usr".into(), ..ControlGroups::default() });
    let error = Sandbox::new(Settings { groups, ..Settings::default() }).unwrap_err();
    assert!(matches!(error, SandboxError::ControlGroup(_)) && error.to_string().contains("/usr"), "{error}");
}
