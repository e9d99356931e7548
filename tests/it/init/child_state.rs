//! The command starts in the same state as after a direct exec, in any environment.

#![expect(unsafe_code, reason = "what runs between fork and exec to give the starter an odd state")]

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::support::{Trainit, binary, first_child};

/// An unusual initial state.
#[derive(Clone, Copy, Debug)]
struct Oddity {
    blocked: u64,
    ignored: u64,
    umask: u32,
    files: u64,
    closed: [bool; 3],
}

/// Prints the values in /proc/self that a direct exec would show, without those that identify the process.
const LOOK: &str = r#"exec 9>"$LOOK_OUT"; grep -E '^(Sig(Blk|Ign|Cgt)|Umask|NoNewPrivs|Seccomp|Cap)' /proc/self/status >&9
cat /proc/self/limits /proc/self/oom_score_adj >&9; pwd >&9; env | grep -v -e TRAINIT_ -e TORCHELASTIC_ERROR_FILE | sort >&9
for fd in /proc/self/fd/*; do n=${fd##*/}; [ $n = 9 ] || [ -h $fd ] && echo "fd $n" ; done | sort >&9"#;

fn start_in(oddity: Oddity, mut command: Command) -> Output {
    // SAFETY: only async-signal-safe calls, on integers.
    unsafe {
        command.pre_exec(move || {
            libc::umask(oddity.umask as libc::mode_t);
            let limit = libc::rlimit { rlim_cur: oddity.files, rlim_max: oddity.files };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            for signal in 1..=64 {
                if oddity.ignored >> (signal - 1) & 1 == 1 {
                    libc::signal(signal, libc::SIG_IGN);
                }
                if oddity.blocked >> (signal - 1) & 1 == 1 {
                    libc::sigaddset(&raw mut mask, signal);
                }
            }
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            for (fd, close) in (0..).zip(oddity.closed) {
                if close {
                    libc::close(fd);
                }
            }
            Ok(())
        });
    }
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command.output().unwrap()
}

fn look(oddity: Oddity, through_trainit: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("look");
    let mut command = Command::new(if through_trainit { binary() } else { "sh".into() });
    if through_trainit {
        command.args(["run", "--parent-death-signal", "0", "--", "sh"]);
    }
    command.args(["-c", &LOOK.replace("$LOOK_OUT", out.to_str().unwrap())]);
    let output = start_in(oddity, command);
    std::fs::read_to_string(&out)
        .unwrap_or_else(|e| panic!("{oddity:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_command_inherits_the_same_state_as_from_a_direct_exec() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    // CHLD must stay default for the shell that reads them; 32 and 33 belong to the C library.
    let fixed = !(1u64 << 16 | 1 << 31 | 1 << 32);
    for round in 0..40 {
        let oddity = Oddity {
            blocked: if round == 0 { 0 } else { next() & fixed },
            ignored: if round == 0 { 0 } else { next() & fixed },
            umask: (next() % 0o1000) as u32 & 0o077,
            files: 64 + next() % 1000,
            closed: [round % 2 == 1, round % 3 == 1, round % 5 == 1],
        };
        assert_eq!(look(oddity, true), look(oddity, false), "{oddity:?}");
    }
}

#[test]
fn an_ignored_sigchld_loses_no_exit_code_and_stays_ignored_in_the_command() {
    let oddity = Oddity { blocked: 0, ignored: 1 << 16, umask: 0o22, files: 256, closed: [false; 3] };
    let run = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["run", "--"]).args(args);
        start_in(oddity, command)
    };
    assert_eq!(run(&["sh", "-c", "exit 9"]).status.code(), Some(9));
    // A shell would reset it to the default.
    let output = run(&["grep", "SigIgn", "/proc/self/status"]);
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let ignored = u64::from_str_radix(text.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(ignored >> 16 & 1, 1, "{text}");
}

#[test]
fn the_disposition_of_sigpipe_is_unchanged() {
    for ignored in [0, 1u64 << 12] {
        let oddity = Oddity { blocked: 0, ignored, umask: 0o22, files: 256, closed: [false; 3] };
        assert_eq!(look(oddity, true), look(oddity, false));
    }
}

#[test]
fn it_works_with_every_standard_descriptor_closed_and_no_dev() {
    let script = "mount -t tmpfs none /dev && exec \"$0\" run -- \"$1\" -c 'exit 6' <&- >&- 2>&-";
    let done = Trainit::through(&["unshare", "--mount", "--pid", "--fork", "sh", "-c", script], ["/bin/sh"]).output();
    done.expect_code(6);
}

#[test]
fn every_subcommand_fills_closed_standard_descriptors_so_that_no_file_becomes_one() {
    let fake = crate::support::fake_nvml::FakeNvml::new(&["nvmlInit_v2 hang"]);
    let script = "exec \"$0\" \"$@\" <&- >&- 2>&-";
    let trainit = Trainit::through(&["sh", "-c", script], ["gpus", "--gpu-timeout", "60s"]);
    let library = fake.dir_of_library().join("libnvidia-ml.so.1");
    let running = trainit.env("TRAINIT_NVML_LIBRARY", library).env("FAKE_NVML", fake.path("scenario")).start();
    let leads_to = |fd: &str| std::fs::read_link(format!("/proc/{}/fd/{fd}", running.pid())).unwrap_or_default();
    // The probe has started, and the command has opened all its files.
    crate::support::eventually("the driver is asked", || fake.path("state").exists());
    assert_eq!(["0", "1", "2"].map(leads_to), ["/", "/", "/"].map(std::path::PathBuf::from));
}

#[test]
fn it_works_without_any_environment() {
    let done = Trainit::through(&["env", "-i"], ["run", "--log-format", "json", "--", "sh", "-c", "exit 5"])
        .output()
        .expect_code(5);
    assert_eq!(done.verdict()["reason"], "failed");
}

#[test]
fn without_proc_the_tree_is_still_stopped_as_pid_1() {
    let script = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let command = "setsid sh -c 'trap \"echo drained; exit\" TERM; echo ready; while :; do sleep 0.01; done' & \
                   trap 'exit 4' TERM; while :; do sleep 0.01; done";
    let prefix = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "sh", "-c", script];
    let running = Trainit::through(&prefix, ["run", "--", "sh", "-c", command]).start();
    running.after_line("ready");
    crate::support::send(first_child(running.pid()).unwrap(), libc::SIGTERM);
    let done = running.finish().expect_code(143);
    assert!(done.out().contains("drained"), "{}", done.out());
    assert_eq!(done.verdict()["child_code"], 4);
    assert!(complaints(&done.err()).len() <= 1, "what was lost is said in one line: {}", done.err());
}

#[test]
fn without_proc_a_process_whose_group_was_signalled_is_not_signalled_again() {
    let script = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let command = "(trap 'echo told' TERM; echo ready; while :; do sleep 0.01; done) & \
                   trap 'exit 4' TERM; while :; do sleep 0.01; done";
    let prefix = ["unshare", "--mount", "sh", "-c", script];
    let arguments = ["run", "--signal-target", "group", "--stop-grace", "1s", "--", "sh", "-c", command];
    let running = Trainit::through(&prefix, arguments).start();
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert_eq!(done.out().matches("told").count(), 1, "{}", done.out());
    assert_eq!(done.verdict()["child_code"], 4);
    let complaints = complaints(&done.err()).join("\n");
    assert_eq!(complaints.matches("is not seen and may outlive the job").count(), 1, "{}", done.err());
}

#[test]
fn without_proc_the_rest_of_a_group_gets_sigterm_when_its_leader_has_ended() {
    let script = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let command = "(trap 'echo told; exit' TERM; echo ready; while :; do sleep 0.01; done) & read go; exit 6";
    let prefix = ["unshare", "--mount", "sh", "-c", script];
    let (stdin, go) = std::io::pipe().unwrap();
    let running = Trainit::through(&prefix, ["run", "--", "sh", "-c", command]).stdin(stdin).start();
    running.after_line("ready");
    drop(go);
    let done = running.finish().expect_code(6);
    assert!(done.out().contains("told"), "{}{}", done.out(), done.err());
}

/// Warnings about lost capabilities, before the command runs.
fn complaints(log: &str) -> Vec<&str> {
    log.lines().take_while(|line| !line.contains(r#""started "#)).collect()
}

#[test]
fn it_works_with_a_read_only_root_and_without_privileges() {
    let script = "mount --make-rprivate / && mount -o remount,bind,ro / / 2>/dev/null; mount -o remount,ro / 2>/dev/null; \
                  mount -t tmpfs -o ro none /tmp; mount -t tmpfs -o ro none /run; mount -t tmpfs -o ro none /dev/shm; \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \"$0\" \"$@\"";
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let copy = dir.path().join("trainit");
    std::fs::copy(binary(), &copy).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]).arg(&copy);
    command.args([
        "run",
        "--log-format",
        "json",
        "--",
        "sh",
        "-c",
        "touch /tmp/x 2>/dev/null && exit 1; echo \"file=$TRAINIT_PREEMPTION_FILE\"; exit 8",
    ]);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(8), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "file=\n", "no place for the file: the variable is not set");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(complaints(&log).len(), 1, "what was lost is said in one line: {log}");
}

#[test]
fn arguments_reach_the_command_untouched_and_in_order() {
    let odd = ["", " ", "--", "--help", "a\nb", "\u{e9}", "$HOME", "--stop-grace", "-"];
    let done = Trainit::run(["printf", "<%s>\\n"]).args(odd).output().expect_code(0);
    let expected: String = odd.iter().map(|a| format!("<{a}>\n")).collect();
    assert_eq!(done.out(), expected);
}
