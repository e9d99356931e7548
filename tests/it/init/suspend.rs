//! A machine that was suspended: deadlines of clouds are absolute, so the time of a suspend counts.

use std::path::Path;
use std::process::Command;

use crate::support::Trainit;

/// A replacement for the C library's clock: when the file exists, the machine was suspended for two hours.
const CLOCK: &str = r#"#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    const char *file = getenv("SUSPENDED");
    if (code == 0 && clock == CLOCK_BOOTTIME && file && access(file, F_OK) == 0) now->tv_sec += 7200;
    return code;
}
"#;

fn clock(dir: &Path) -> std::path::PathBuf {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    let status =
        Command::new("cc").args(["-O1", "-fPIC", "-shared", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(status.success());
    library
}

#[test]
fn a_deadline_that_passed_during_a_suspend_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let suspended = dir.path().join("suspended");
    let command = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let run = Trainit::new(["run", "--stop-grace", "1h", "--", "sh", "-c", command]).env("SUSPENDED", &suspended);
    let running = run.env("LD_PRELOAD", clock(dir.path())).start();
    running.after_line("ready");
    running.signal(libc::SIGTERM);
    running.after_log("SIGTERM received");
    std::fs::write(&suspended, "").unwrap();
    // Like any event after the suspend.
    running.signal(libc::SIGWINCH);
    let done = running.finish().expect_code(143);
    assert_eq!(done.verdict()["child_signal"], libc::SIGKILL);
}
