//! `trainit status` finds the run of its container among others, and leftovers of killed runs are removed.

use serde_json::{Value, json};

use crate::support::{Trainit, is_root};

#[test]
fn the_only_run_is_found_without_its_name_even_as_pid_1_by_a_process_next_to_it() {
    if !is_root() {
        crate::support::skip("needs root for a PID namespace");
        return;
    }
    // A separate /dev/shm, so that runs of other tests are not found.
    let script = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && exec trainit run -- sh -c \
                  'trainit status --json; trainit run -- sh -c \"echo inner; trainit status\"'";
    let bin = crate::support::binary();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.parent().unwrap().display());
    let mut trainit =
        Trainit::through(&["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script], [""; 0]);
    let tmp = tempfile::tempdir().unwrap();
    trainit = trainit.env("PATH", path).env("TMPDIR", tmp.path());
    let done = trainit.output().expect_code(0);
    let first: Value = serde_json::from_str(done.out().lines().next().unwrap()).unwrap();
    assert_eq!((&first["pid"], &first["state"]), (&json!(1), &json!("running")));
    assert!(done.out().contains("inner\nrunning (attempt 1"), "its own, by TRAINIT_SOCKET: {}", done.out());
}

#[test]
fn several_runs_and_no_run_are_errors() {
    let tmp = tempfile::tempdir().unwrap();
    if !is_root() {
        crate::support::skip("needs root to hide other runs");
        return;
    }
    let script = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run
        trainit status; echo none=$?; trainit status --check; echo check=$?
        mkfifo $TMPDIR/a $TMPDIR/b
        for name in a b; do trainit run -- sh -c \"echo up; cat $TMPDIR/$name\" >$TMPDIR/out-$name 2>/dev/null & done
        for name in a b; do until grep -q up $TMPDIR/out-$name; do sleep 0.01; done; done
        trainit status; echo two=$?
        echo >$TMPDIR/a; until trainit status >/dev/null 2>&1; do sleep 0.01; done
        trainit status; echo one=$?
        echo >$TMPDIR/b; wait";
    let bin = crate::support::binary();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.parent().unwrap().display());
    let trainit = Trainit::through(&["unshare", "--mount", "sh", "-c", script], [""; 0]);
    let done = trainit.env("PATH", path).env("TMPDIR", tmp.path()).output().expect_code(0);
    let out = done.out();
    for words in ["none=1", "unhealthy: there is no trainit run here", "check=1", "two=1", "one=0"] {
        assert!(out.contains(words), "{words}: {out}\n{}", done.err());
    }
    assert!(
        done.err().contains("there are several runs, select one with --socket: /dev/shm/trainit-0-"),
        "{}",
        done.err()
    );
}

#[test]
fn a_container_that_shares_processes_and_memory_with_another_reports_its_own_run_even_if_it_hangs() {
    let tmp = tempfile::tempdir().unwrap();
    if !is_root() {
        crate::support::skip("needs root for another root directory");
        return;
    }
    let script = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && mkdir $TMPDIR/root
        mount -t tmpfs none $TMPDIR/root
        for at in /*; do
            if [ -L $at ]; then cp -P $at $TMPDIR/root; elif [ -d $at ]; then mkdir $TMPDIR/root$at && mount --rbind $at $TMPDIR/root$at; fi
        done
        mkfifo $TMPDIR/other $TMPDIR/own
        chroot $TMPDIR/root trainit run -- sh -c \"echo up; cat $TMPDIR/other\" >$TMPDIR/out-other 2>/dev/null &
        trainit run -- sh -c \"echo up; cat $TMPDIR/own\" >$TMPDIR/out-own 2>/dev/null & own=$!
        for name in other own; do until grep -q up $TMPDIR/out-$name; do sleep 0.01; done; done
        trainit status --json | grep -q \"\\\"pid\\\": *$own\\b\"; echo own=$?
        kill -STOP $own; trainit status --check; echo hung=$?
        kill -CONT $own; echo >$TMPDIR/other; echo >$TMPDIR/own; wait";
    let bin = crate::support::binary();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.parent().unwrap().display());
    let trainit = Trainit::through(&["unshare", "--mount", "sh", "-c", script], [""; 0]);
    let done = trainit.env("PATH", path).env("TMPDIR", tmp.path()).output().expect_code(0);
    let out = done.out();
    assert!(out.contains("own=0") && out.contains("hung=1"), "{out}\n{}", done.err());
    assert!(out.contains("does not answer in 5 s"), "{out}");
}

#[test]
fn fake_runs_of_other_users_neither_delay_nor_change_the_result() {
    if !is_root() {
        crate::support::skip("needs root to hide other runs");
        return;
    }
    // Each listens, accepts connections and never answers; the last one accepts no connection.
    let fake = "import os, socket, sys, threading
for n in range(5):
    os.mkdir('/dev/shm/trainit-65534-%d-%x' % (os.getpid(), n))
    s = socket.socket(socket.AF_UNIX)
    s.bind('/dev/shm/trainit-65534-%d-%x/socket' % (os.getpid(), n))
    s.listen(0)
    if n < 4: threading.Thread(target=lambda s=s, kept=[]: [kept.append(s.accept()) for _ in iter(int, 1)]).start()
    else: globals().update(kept=s, own=[socket.socket(socket.AF_UNIX) for _ in range(2)])
print('up', flush=True)";
    let script = "mount -t tmpfs -o mode=1777 none /dev/shm && mount -t tmpfs none /run && mkfifo $TMPDIR/end
        setpriv --reuid 65534 --regid 65534 --clear-groups python3 -c \"$FAKE\" >$TMPDIR/fakes & fakes=$!
        until grep -q up $TMPDIR/fakes; do sleep 0.01; done
        trainit run -- sh -c \"echo up; cat $TMPDIR/end\" >$TMPDIR/out 2>/dev/null & own=$!
        until grep -q up $TMPDIR/out; do sleep 0.01; done
        begun=$(date +%s); trainit status --check; echo check=$? took=$(($(date +%s) - begun))
        trainit status --json | grep -q \"\\\"pid\\\": *$own\\b\"; echo own=$?
        kill -STOP $own; trainit status --check; echo hung=$?; kill -CONT $own
        kill -KILL $fakes; echo >$TMPDIR/end; wait";
    let bin = crate::support::binary();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.parent().unwrap().display());
    let tmp = tempfile::tempdir().unwrap();
    let trainit = Trainit::through(&["unshare", "--mount", "sh", "-c", script], [""; 0]);
    let done = trainit.env("PATH", path).env("TMPDIR", tmp.path()).env("FAKE", fake).output();
    let out = done.out();
    for words in ["check=0", "own=0", "hung=1", "does not answer in 5 s"] {
        assert!(out.contains(words), "{words}: {out}\n{}", done.err());
    }
    let took = out.split("took=").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    assert!(took.parse::<u32>().unwrap() < 9, "each fake one was waited for: {took} s");
}

#[test]
fn leftovers_of_a_killed_run_are_removed_by_the_next_run_and_not_by_a_health_check() {
    if !is_root() {
        crate::support::skip("needs root to hide other runs");
        return;
    }
    // The stamps are set back, as if time had passed.
    let script = "mount -t tmpfs none /dev/shm
        trainit run -- sh -c 'kill -9 $PPID; sleep 0.1'
        mkdir /dev/shm/trainit-0-77 && echo x >/dev/shm/trainit-0-77/preemption
        mkdir /dev/shm/trainit-keep && mkdir /dev/shm/trainit-0-x
        ls /dev/shm | grep -c trainit-0-
        touch -d '1 hour ago' /dev/shm/trainit-0-*
        trainit status --check
        ls /dev/shm | grep -c trainit-0-
        trainit run -- sh -c 'until [ ! -e /dev/shm/trainit-0-77 ]; do sleep 0.01; done' 2>/dev/null
        echo last; ls /dev/shm";
    let bin = crate::support::binary();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.parent().unwrap().display());
    let tmp = tempfile::tempdir().unwrap();
    let trainit = Trainit::through(&["unshare", "--mount", "sh", "-c", script], [""; 0]);
    let out = trainit.env("PATH", path).env("TMPDIR", tmp.path()).output().out();
    let left: Vec<&str> = out.lines().skip_while(|line| *line != "last").skip(1).collect();
    let counts = out.lines().filter(|line| *line == "3").count();
    assert!(out.contains("unhealthy"), "{out}");
    assert_eq!(counts, 2, "two left behind and one that is none, before and after trainit status: {out}");
    assert_eq!(left, ["trainit-0-x", "trainit-keep"], "{out}");
}

#[test]
fn a_run_is_found_among_thousands_of_files_and_of_killed_runs() {
    if !is_root() {
        eprintln!("skipped: needs root to hide other runs");
        return;
    }
    // Whether a directory lists its newest or its oldest entries first depends on the kernel.
    let script = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && cd /dev/shm
        touch $(seq -f torch_%g 5000); mkdir $(seq -f trainit-0-%g 5000)
        trainit run -- sh -c 'touch $(seq -f sem.%g 5000); mkdir $(seq -f trainit-0-%g 5001 10000)
                              unset TRAINIT_SOCKET; trainit status --check; echo check=$?' 2>/dev/null";
    let bin = crate::support::binary();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.parent().unwrap().display());
    let tmp = tempfile::tempdir().unwrap();
    let trainit = Trainit::through(&["unshare", "--mount", "sh", "-c", script], [""; 0]);
    let out = trainit.env("PATH", path).env("TMPDIR", tmp.path()).output().out();
    assert!(out.contains("healthy: running") && out.contains("check=0"), "{out}");
}
