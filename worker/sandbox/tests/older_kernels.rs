//! Programs on the level `none` if the kernel is older. A library replaces the version of Landlock that the kernel
//! reports to a guard, so the guard uses no more than an older kernel has.

#![allow(clippy::unwrap_used, reason = "it is all tests")]
#![cfg(target_os = "linux")]

mod programs_of_tests;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use programs_of_tests::{SOON, end, workspace};
use sandbox::{Exit, Guarded, Request, Sandbox, Settings, Wanted};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;
use toolyard_tool::Left;

/// Landlock of Linux 6.10 and 6.11, the last version without scopes.
const VERSION: u32 = 5;

/// Limits the result of `landlock_create_ruleset` if it is asked for the version (flag 1).
const LIBRARY: &str = "
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
long syscall(long number, ...) {
    long a[6], (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, \"syscall\");
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    return number == CREATE_RULESET && a[2] == 1 && result > VERSION ? VERSION : result;
}
";

/// Makes all guards of this process find the older version. Returns the folder of the files for that, or `None` if this
/// machine has no C compiler or no Landlock.
fn use_older_kernel() -> Option<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("older.c"), LIBRARY).unwrap();
    let mut compiler = Command::new("cc");
    let number = libc::SYS_landlock_create_ruleset;
    compiler.args([format!("-DVERSION={VERSION}"), format!("-DCREATE_RULESET={number}")]);
    compiler.args(["-shared", "-fPIC", "-o"]).args([path("older.so"), path("older.c")]).arg("-ldl");
    let Ok(status) = compiler.status() else {
        eprintln!("NOT TESTED: there is no C compiler (cc)");
        return None;
    };
    assert!(status.success(), "{status}");
    let (library, program) = (path("older.so").display().to_string(), env!("CARGO_BIN_EXE_toolyard-guard"));
    let script = format!("#!/bin/bash\nLD_PRELOAD={library} exec -a toolyard-guard {program} \"$@\"\n");
    fs::write(path("guard"), script).unwrap();
    fs::set_permissions(path("guard"), fs::Permissions::from_mode(0o755)).unwrap();
    sandbox::use_program(path("guard"));
    let tried = Sandbox::new(Settings { level: Wanted::Auto, ..Settings::default() }).unwrap();
    // The test of break-outs fails on such a machine, unless a variable declares that this is known.
    if tried.gaps().iter().any(|gap| gap.what.starts_with("Landlock of Linux 6.2")) {
        eprintln!("NOT TESTED: {:?}", tried.gaps());
        return None;
    }
    Some(folder)
}

fn sandbox() -> Sandbox {
    Sandbox::new(Settings { user: sandbox::choose_user(None).unwrap(), ..Settings::default() }).unwrap()
}

async fn start(script: &str, folder: &Path) -> Guarded {
    // Its guard alone needs the library.
    let request = Request::shell(script, folder).with("LD_PRELOAD", "").with("SECRET", "of-another");
    sandbox().start(request, Left::default()).await.unwrap()
}

#[tokio::test]
async fn a_kernel_without_scopes_keeps_programs_apart_and_takes_nothing_else() {
    let Some(_kernel) = use_older_kernel() else { return };
    let mut victim = start("echo $$; exec sleep 600", Path::new("/")).await;
    let (mut pid, mut stdout) = (String::new(), BufReader::new(victim.pipes().0.unwrap()));
    timeout(SOON, stdout.read_line(&mut pid)).await.unwrap().unwrap();
    let (folder, pid) = (workspace(), pid.trim());
    // Programs of one user may signal each other there, which shows that the guards use the older version.
    let script = format!("kill -0 {pid} && echo signalled; cat /proc/{pid}/environ /proc/{pid}/fd/0 /proc/{pid}/mem");
    let (out, err, _) = end(start(&script, folder.path()).await).await;
    assert_eq!(out, "signalled\n", "{err}");
    assert_eq!(err.matches("denied").count(), 3, "{err}");

    let script = r#"set -e; mkdir a b
        echo one > a/file; mv a/file b/file; ln b/file a/link; ln -s ../b/file a/symbolic; mkfifo a/fifo
        echo two >> a/symbolic; cat b/file; truncate -s 0 a/link; rm a/link
        printf '#!/bin/sh\necho executed\n' > b/program; chmod +x b/program; b/program
        perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, pack_sockaddr_un("a/socket")) or die $!'
        name=toolyard-test-$$; echo x > /dev/shm/$name; mv /dev/shm/$name /tmp/$name; rm /tmp/$name
        head -c 1 /dev/zero > /dev/null; cat /etc/hostname /proc/self/environ > /dev/null; ls / > /dev/null
        rm -r a b; ls"#;
    let done = end(start(script, folder.path()).await).await;
    assert_eq!(done, ("one\ntwo\nexecuted\n".to_owned(), String::new(), Some(Exit::ExitCode(0))));
}
