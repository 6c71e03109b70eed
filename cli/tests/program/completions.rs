//! `toolyard completions` and `toolyard man`.

use crate::process::run;

#[test]
fn completions_are_printed_for_each_shell_and_bash_reads_them() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let printed = run(["completions", shell]);
        assert_eq!(printed.code(), 0, "{shell}: {}", printed.stderr());
        assert!(printed.stdout().contains("schedules"), "{shell}");
    }
    let wrong = run(["completions", "tcsh"]);
    assert_eq!(wrong.code(), 2);
    assert!(wrong.stderr().contains("powershell"), "it names the shells: {}", wrong.stderr());
    let script = format!("{}\ntype _toolyard\n", run(["completions", "bash"]).stdout());
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), script).expect("it can be written");
    let sourced = std::process::Command::new("bash").arg("--norc").arg(file.path()).output().expect("bash");
    assert!(sourced.status.success(), "{}", String::from_utf8_lossy(&sourced.stderr));
}

#[test]
fn manual_pages_are_written_into_a_folder_that_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("share/man/man1");
    let written = run(["man".as_ref(), pages.as_os_str()]);
    assert_eq!(written.code(), 0, "{}", written.stderr());
    let page = std::fs::read_to_string(pages.join("toolyard-runs-watch.1")).expect("a page");
    assert!(page.starts_with(".ie") || page.contains(".TH"), "{page}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let refused = run(["man".as_ref(), file.as_os_str()]);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    assert!(refused.stderr().contains("cannot write manual pages into"), "{}", refused.stderr());
}
