//! If something outside the trainer explains its death, the verdict's sentence names the cause and the remedy, at the first
//! occurrence.

#![expect(unsafe_code, reason = "a seccomp filter, installed between fork and exec")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::support::{Finished, Trainit, is_root};

fn detail(done: &Finished) -> String {
    done.verdict()["detail"].as_str().unwrap().to_owned()
}

#[test]
fn a_full_dev_shm_is_named_at_the_first_death_by_sigbus_and_at_any_failure() {
    if !is_root() {
        crate::support::skip("needs root for a mount namespace");
        return;
    }
    let script = "mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" \"$@\"";
    let run = |command: &str| {
        Trainit::through(&["unshare", "--mount", "sh", "-c", script], ["run", "--", "sh", "-c", command]).output()
    };
    let fill = "dd if=/dev/zero of=/dev/shm/full bs=4096 2>/dev/null";
    for (command, code) in [("kill -BUS $$", 135), (&format!("{fill}; exit 3"), 3)] {
        let done = run(command).expect_code(code);
        assert!(detail(&done).contains("--shm-size"), "{}", done.err());
    }
    let done = run("exit 3").expect_code(3);
    assert!(!detail(&done).contains("shm"), "{}", done.err());
}

#[test]
fn a_forwarded_signal_that_killed_the_trainer_is_reported_as_from_outside() {
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")];
    let slurm =
        [&slurm[..], &[("SLURM_STEP_NODELIST", "node1"), ("SLURM_NNODES", "1"), ("SLURM_NODEID", "0")]].concat();
    for (variables, has_slurm) in [(Vec::new(), false), (slurm, true)] {
        let mut run = Trainit::run(["sh", "-c", "echo ready; while :; do sleep 0.01; done"]);
        for (name, value) in variables {
            run = run.env(name, value);
        }
        let running = run.start();
        running.after_line("ready");
        running.signal(libc::SIGUSR1);
        let done = running.finish().expect_code(138);
        let detail = detail(&done);
        assert!(detail.contains("SIGUSR1 arrived from outside"), "{detail}");
        assert_eq!(detail.contains("--preempt-on USR1"), has_slurm, "{detail}");
    }
}

#[test]
fn a_script_that_env_cannot_start_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bin");
    fs::create_dir(&path).unwrap();
    std::os::unix::fs::symlink("/usr/bin/env", path.join("env")).unwrap();
    fs::write(path.join("python3"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(path.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
    for (line, words) in [
        ("#!/usr/bin/env python3\r", "python3\\r\"; correct it with: sed -i"),
        ("#!/usr/bin/env python", "python, which is not in PATH; python3 is installed"),
    ] {
        let script = dir.path().join("train");
        fs::write(&script, format!("{line}\nprint()\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let done = Trainit::run([&script]).env("PATH", &path).output().expect_code(127);
        assert!(detail(&done).contains(words), "{}", done.err());
    }
    let done = Trainit::run(["python", "train.py"]).env("PATH", &path).output().expect_code(127);
    assert!(detail(&done).contains("python3 is installed"), "{}", done.err());
}

#[test]
fn no_secret_of_a_command_line_is_in_log_or_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let verdict = dir.path().join("verdict");
    for command in [
        &["PASSWORD=hunter2", "python", "--token", "hunter2"][..],
        &["PASSWORD=hunter2 python train.py"],
        &["python train.py --token hunter2"],
        &[&format!("python --token hunter2 {}", "x".repeat(5000))],
    ] {
        let flags = ["run", "--log-level", "debug", "--verdict-file", verdict.to_str().unwrap(), "--"];
        let done = Trainit::new(flags).args(command).output();
        let output = done.err() + &done.out() + &fs::read_to_string(&verdict).unwrap();
        assert!(output.contains("not_started") && !output.contains("hunter2"), "{output}");
    }
}

#[test]
fn clone3_that_a_seccomp_profile_refuses_is_named_when_the_trainer_fails() {
    let run = |refused: bool| {
        let mut run = Trainit::run(["sh", "-c", "exit 3"]);
        if refused {
            // SAFETY: prctl(2) only, on a filter that lives for the call.
            unsafe { run.command().pre_exec(|| refuse(libc::SYS_clone3)) };
        }
        run.output().expect_code(3)
    };
    assert!(detail(&run(true)).contains("refuses clone3 with EPERM"), "{}", run(true).err());
    assert!(!detail(&run(false)).contains("clone3"));
}

/// Makes this system call fail with EPERM, as Docker's profile did before 20.10.10.
fn refuse(call: libc::c_long) -> std::io::Result<()> {
    let jump = |k| libc::sock_filter { code: 0x15, jt: 0, jf: 1, k };
    let give = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let load = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let mut filter =
        [load, jump(call as u32), give(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32), give(libc::SECCOMP_RET_ALLOW)];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers, and a filter that lives for the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn the_verdict_names_the_exception_that_ended_a_python_trainer() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let script = "import trainit\nraise ValueError('no such layer')";
    let done = Trainit::run(["python3", "-c", script]).env("PYTHONPATH", package).output().expect_code(1);
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("exit code 1; its error: ValueError: no such layer"), "{detail}");
}

#[test]
fn each_process_leaves_its_error_in_the_file_of_the_elastic_launcher_and_a_file_that_is_set_is_kept() {
    let script = r#"[ "$LOCAL_RANK" = 1 ] || exec sleep 60
        echo '{"message": {"message": "OSError: disk"}}' >"$TORCHELASTIC_ERROR_FILE"; exit 3"#;
    let done = Trainit::new(["run", "--nproc", "2", "--", "sh", "-c", script]).output().expect_code(3);
    assert!(done.verdict()["detail"].as_str().unwrap().contains("its error: OSError: disk"), "{}", done.err());
    let set = Trainit::run(["sh", "-c", "echo $TORCHELASTIC_ERROR_FILE"]).env("TORCHELASTIC_ERROR_FILE", "/mine");
    assert_eq!(set.output().expect_code(0).out(), "/mine\n");
}
