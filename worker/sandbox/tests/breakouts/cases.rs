//! The ways out that are tried. A script that gets out prints ESCAPED, or leaves a trace that the world notices.

/// A way out.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// For `bash`. Names in braces stand for what the world has.
    pub(crate) script: &'static str,
    /// It gets out on `Level::None`, which proves that the script is right.
    pub(crate) works_unconfined: bool,
    /// `Level::Confined` cannot prevent it.
    pub(crate) only_isolated: bool,
}

const fn escapes(name: &'static str, script: &'static str) -> Case {
    Case { name, script, works_unconfined: true, only_isolated: false }
}

/// A way that the user's own rights close on this machine, or a limit: nothing to see without a sandbox.
const fn fails(name: &'static str, script: &'static str) -> Case {
    Case { name, script, works_unconfined: false, only_isolated: false }
}

const fn isolated_only(name: &'static str, script: &'static str) -> Case {
    Case { name, script, works_unconfined: true, only_isolated: true }
}

pub(crate) const CASES: [Case; 47] = [
    // Files.
    fails("read the worker's key", "cat {key} && echo ESCAPED"),
    escapes("read a file outside", "cat {outside}/secret && echo ESCAPED"),
    escapes("create a file outside", "echo x > {outside}/new && echo ESCAPED"),
    escapes("change a file outside", "echo x >> {outside}/secret && echo ESCAPED"),
    escapes("shorten a file outside", "perl -e 'print \"ESCAPED\" if truncate(\"{outside}/secret\", 1)'"),
    escapes("remove a file outside", "rm {outside}/secret && echo ESCAPED"),
    escapes("read through a symbolic link", "ln -s {outside} link; cat link/secret && echo ESCAPED"),
    escapes("write through a symbolic link", "ln -s {outside} link; echo x > link/new && echo ESCAPED"),
    escapes("hard link a file from outside", "ln {outside}/own hard && echo ESCAPED"),
    escapes("move a file out", "touch a; mv a {outside}/a && echo ESCAPED"),
    escapes("go up", "cat {workspace}/../../outside/secret && echo ESCAPED"),
    escapes("go through /proc/self/root", "cat /proc/self/root{outside}/secret && echo ESCAPED"),
    escapes("go through /proc/self/cwd", "cat /proc/self/cwd/../../outside/secret && echo ESCAPED"),
    fails("go through the root of the worker", "cat /proc/{worker}/root{outside}/secret && echo ESCAPED"),
    escapes("read the folder of another call", "cat {other}/data && echo ESCAPED"),
    escapes("learn the name of another tenant's folder", "ls {workspaces} | grep -q other && echo ESCAPED"),
    escapes(
        "write into shared memory of all",
        "echo x > /dev/shm/{marker} && rm /dev/shm/{marker} && [ $PPID != 1 ] && echo ESCAPED",
    ),
    fails(
        "read the memory of the machine",
        "head -c 1 /dev/mem || head -c 1 /dev/kmsg || head -c 1 /dev/vda && echo ESCAPED",
    ),
    fails(
        "write to a control group",
        "for f in $(find /sys/fs/cgroup -maxdepth 3 -name cgroup.procs); do echo $$ > $f && echo ESCAPED; done",
    ),
    fails(
        "change the kernel's settings",
        "for f in /proc/sys/kernel/hostname /proc/sysrq-trigger; do echo h > $f && echo ESCAPED; done",
    ),
    fails(
        "leave a job for cron or at",
        "echo '* * * * * true' | crontab - && echo ESCAPED; echo true | at now && echo ESCAPED; touch /var/spool/cron/x && echo ESCAPED",
    ),
    // Other processes.
    fails("read the environment of the worker", "cat /proc/{worker}/environ && echo ESCAPED"),
    fails("read the memory of the worker", "head -c 1 /proc/{worker}/mem && echo ESCAPED"),
    fails("read the environment of another program", "cat /proc/{victim}/environ && echo ESCAPED"),
    fails("trace another program", "perl -e 'print \"ESCAPED\" if syscall({ptrace}, 16, {victim}, 0, 0) == 0'"),
    fails(
        "read the memory of another program",
        "perl -e '$b = \" \" x 8; $l = pack(\"PQ\", $b, 8); $r = pack(\"QQ\", 4194304, 8); print \"ESCAPED\" if syscall({process_vm_readv}, {victim}, $l, 1, $r, 1, 0) >= 0'",
    ),
    fails(
        "take a file of another program",
        "perl -e '$p = syscall({pidfd_open}, {victim}, 0); print \"ESCAPED\" if $p >= 0 && syscall({pidfd_getfd}, $p, 0, 0) >= 0'",
    ),
    fails("signal another program", "kill -0 {victim} && echo ESCAPED"),
    fails("signal the worker", "kill -0 {worker} && echo ESCAPED"),
    fails("kill its guard", "kill -9 $PPID && echo ESCAPED"),
    isolated_only("list the processes of others", "[ -e /proc/{victim}/stat ] && echo ESCAPED"),
    fails("open files of the worker", "ls -l /proc/self/fd | grep -q secret && echo ESCAPED"),
    // Network.
    escapes("connect to the broker on loopback", "exec 3<>/dev/tcp/127.0.0.1/{tcp} && echo ESCAPED"),
    escapes("send a datagram", "echo x > /dev/udp/127.0.0.1/{udp} && [ {is_none} = 1 ] && echo ESCAPED"),
    escapes(
        "connect to an abstract socket",
        "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0) && connect(S, pack_sockaddr_un(\"\\0{marker}\")) && print \"ESCAPED\"'",
    ),
    escapes(
        "connect to a socket in a folder",
        "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0) && connect(S, pack_sockaddr_un(\"{outside}/socket\")) && print \"ESCAPED\"'",
    ),
    fails(
        "open a raw socket",
        "perl -e 'socket(S, 2, 3, 1) && print \"ESCAPED\"; socket(S, 17, 3, 768) && print \"ESCAPED\"'",
    ),
    // The kernel.
    fails(
        "mount",
        "perl -e 'print \"ESCAPED\" if ($a, $b, $c) = (\"none\", \"{workspace}\", \"tmpfs\") and syscall({mount}, $a, $b, $c, 0, 0) == 0'",
    ),
    escapes("enter a user namespace", "perl -e 'print \"ESCAPED\" if syscall({unshare}, 0x10000000) == 0'"),
    escapes(
        "clone into a user namespace",
        "perl -e '$p = syscall({clone}, 0x10000011, 0, 0, 0, 0); exit if $p == 0; print \"ESCAPED\" if $p > 0'",
    ),
    fails("change the root", "perl -e 'print \"ESCAPED\" if chroot(\"{workspace}\")'"),
    fails("gain rights through a setuid program", "[ \"$(./setuid-id -u)\" = 0 ] && echo ESCAPED"),
    escapes("use a keyring", "perl -e 'print \"ESCAPED\" if syscall({keyctl}, 0, -3, 1) >= 0'"),
    escapes("use io_uring", "perl -e '$p = \"\\0\" x 120; print \"ESCAPED\" if syscall({io_uring_setup}, 1, $p) >= 0'"),
    fails(
        "load a module or a BPF program",
        "perl -e '$a = \"\\0\" x 128; print \"ESCAPED\" if syscall({bpf}, 0, $a, 72) >= 0; print \"ESCAPED\" unless syscall({finit_module}, 0, $a, 0) < 0 && $!{EPERM}'",
    ),
    escapes(
        "type into a terminal",
        "perl -e '$x = \"x\"; print \"ESCAPED\" unless syscall({ioctl}, 0, 0x5412, $x) < 0 && $!{EPERM}'",
    ),
    fails("use the x32 interface", "perl -e 'print \"ESCAPED\" if syscall({keyctl} | 0x40000000, 0, -3, 1) >= 0'"),
];

/// Programs that use too much, or that stay. They are bounded on each level.
pub(crate) const BOUNDED: [Case; 5] = [
    fails(
        "a fork bomb",
        "perl -e 'for (1..9000) { $p = fork; last unless defined $p; if (!$p) { close(STDOUT); close(STDERR); sleep 600; exit } $n++ } print $n > {processes_max} ? \"ESCAPED\" : \"bounded\"'",
    ),
    fails("a memory bomb", "perl -e '$x = \"a\" x (1 << 30); print \"ESCAPED\"'"),
    fails("a large file", "dd if=/dev/zero of=big bs=1M count=64; [ $(stat -c %s big) -gt 16777216 ] && echo ESCAPED"),
    fails(
        "too many open files",
        "perl -e 'for (1..200) { open($f[$_], \"/dev/null\") or last; $n++ } print $n > 128 ? \"ESCAPED\" : \"bounded\"'",
    ),
    fails(
        "a daemon",
        "perl -MPOSIX -e 'unless (fork) { POSIX::setsid(); unless (fork) { $SIG{HUP} = $SIG{TERM} = \"IGNORE\"; exec \"sh\", \"-c\", \"sleep 600 # {marker}\" } }'; nohup setsid sh -c 'sleep 600 # {marker}' & disown; exit 0",
    ),
];
