//! Signals that an init must not lose, invent or misread: those of its neighbours, of the kernel, and of job control.

#![expect(unsafe_code, reason = "a fault is made with ptrace")]

use crate::support::{Trainit, eventually, first_child, is_alive, send};

fn status_of(pid: i32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':')).unwrap_or_default().trim().to_owned()
}

/// A field of the main thread's status. A process counts as stopped (`T`) when all of its threads are, because only
/// then its parent is notified.
pub(crate) fn state_of(pid: i32) -> char {
    let of = |path: String| {
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
    };
    let state = of(format!("/proc/{pid}/stat"));
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let not_yet = threads.map(|thread| of(format!("{}/stat", thread.path().display()))).find(|other| *other != 'T');
    if state == 'T' { not_yet.unwrap_or(state) } else { state }
}

fn pid_in(line: &str) -> i32 {
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// Another PID 1, which starts trainit and a second process, and reports at the end whether that process is unchanged.
const POD: &str = r#"
bash -c 'for s in TERM HUP INT CONT USR1; do trap "echo neighbour heard $s" $s; done; echo neighbour ready; while :; do sleep 0.01; done' &
neighbour=$!
TREE=trainits "$0" "$@" &
trap 'kill -TERM $!' USR2
while wait $!; code=$?; [ $code -gt 128 ] && kill -0 $! 2>/dev/null; do :; done
kill -0 $neighbour && echo neighbour lives
grep -qzx TREE=trainits /proc/[0-9]*/environ 2>/dev/null && echo a process is left
kill -KILL $neighbour
exit $code"#;

#[test]
fn in_a_shared_pid_namespace_it_stops_its_own_orphans_and_no_other_process() {
    let prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "bash", "-c", POD];
    let script = "setsid bash -c 'trap \"\" TERM; echo stubborn ready; while :; do sleep 0.01; done' stubborn & \
                  (setsid bash -c 'trap \"echo orphan drained; exit\" TERM; echo orphan ready; while :; do sleep 0.01; done' &); \
                  trap 'exit 3' TERM; echo main ready; while :; do sleep 0.01; done";
    let options = ["run", "--stop-grace", "500ms", "--stopped-exit-code", "child", "--", "bash", "-c", script];
    let running = Trainit::through(&prefix, options).start();
    for who in ["neighbour ready", "main ready", "orphan ready", "stubborn ready"] {
        running.after_line(who);
    }
    send(first_child(running.pid()).unwrap(), libc::SIGUSR2);
    let done = running.finish().expect_code(3);
    let out = done.out();
    assert!(out.contains("orphan drained") && out.contains("neighbour lives"), "{out}");
    assert!(!out.contains("neighbour heard") && !out.contains("a process is left"), "{out}");
}

/// Reports which of HUP and CONT are pending: they are blocked from the start, so none is lost.
pub(crate) const LOOK: &str = "look() { while read -r name set; do case $name in SigPnd:|ShdPnd:) echo \"pending $1 $set\";; \
                               esac; done </proc/$BASHPID/status; }; ";

/// Checks that no HUP (1) and no CONT (18) was pending in any of these samples.
pub(crate) fn expect_no_hup_or_cont(text: &str, looks: usize) {
    let sets: Vec<&str> = text.lines().filter(|l| l.starts_with("pending ")).collect();
    assert_eq!(sets.len(), 2 * looks, "{text}");
    for line in sets {
        let set = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
        assert_eq!(set & (1 | 1 << 17), 0, "{line}");
    }
}

#[test]
fn the_command_and_its_orphans_get_no_hup_or_cont_that_was_not_sent() {
    for target in ["leader", "group"] {
        let script = format!(
            "{LOOK} look begin; (trap 'look left; exit' TERM; echo ready; while :; do sleep 0.01; done) & \
             setsid bash -c '{LOOK} trap \"look gone; exit\" TERM; echo set; while :; do sleep 0.01; done' & \
             read line; look end; exit 6"
        );
        let options = ["run", "--signal-target", target, "--", "bash", "-c", &script];
        let (stdin, go) = std::io::pipe().unwrap();
        let running = Trainit::through(&["env", "--block-signal=HUP,CONT"], options).stdin(stdin).start();
        running.after_line("ready");
        running.after_line("set");
        drop(go);
        let done = running.finish().expect_code(6);
        expect_no_hup_or_cont(&done.out(), 4);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_crash_of_trainit_ends_the_command_too() {
    let running = Trainit::run(["bash", "-c", "echo pid $$; while :; do sleep 0.01; done"]).start();
    let command = pid_in(&running.after_line("pid "));
    eventually("trainit waits", || state_of(running.pid()) == 'S');
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the registers are of the size that the kernel writes; the program that continues at address 0 is a test
    // program.
    unsafe {
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_ATTACH, running.pid(), none, none), 0, "may we?");
        eventually("it is held", || state_of(running.pid()) == 't');
        assert_eq!(libc::waitpid(running.pid(), std::ptr::null_mut(), libc::WUNTRACED), running.pid());
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, running.pid(), none, &raw mut registers), 0);
        registers.rip = 0;
        registers.orig_rax = u64::MAX; // no system call to go back to
        assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, running.pid(), none, &raw mut registers), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, running.pid(), none, none), 0);
    }
    running.finish().expect_code(128 + libc::SIGSEGV);
    eventually("the command is gone", || !is_alive(command));
}

#[test]
fn a_fault_signal_that_was_sent_is_passed_to_the_command() {
    for (name, number) in [("SEGV", libc::SIGSEGV), ("ABRT", libc::SIGABRT), ("BUS", libc::SIGBUS)] {
        let script = format!("trap 'echo heard; exit 5' {name}; echo ready; while :; do sleep 0.01; done");
        let running = Trainit::run(["bash", "-c", &script]).start();
        running.after_line("ready");
        running.signal(number);
        assert_eq!(running.finish().expect_code(5).out(), "ready\nheard\n");
    }
}

#[test]
fn a_stop_from_a_terminal_stops_trainit_and_its_command_and_sigcont_continues_both() {
    for target in ["leader", "group"] {
        let script = "echo pid $$; trap 'echo woken' CONT; while :; do sleep 0.01; done";
        let running = Trainit::new(["run", "--signal-target", target, "--", "bash", "-c", script]).start();
        let command = pid_in(&running.after_line("pid "));
        eventually("it has set its trap", || traps_cont(command));
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            running.signal(signal);
            eventually("the command is stopped", || state_of(command) == 'T');
            eventually("trainit is stopped", || state_of(running.pid()) == 'T');
            running.signal(libc::SIGCONT);
            eventually("the command goes on", || state_of(command) != 'T');
            eventually("trainit goes on", || state_of(running.pid()) != 'T');
        }
        running.after_line("woken");
        running.stop().expect_code(143);
    }
}

#[test]
fn a_stopped_command_gets_sigterm_at_once() {
    for target in ["leader", "group"] {
        let script = "trap 'exit 4' TERM; echo pid $$; while :; do sleep 0.01; done";
        let run = ["run", "--stop-grace", "1h", "--signal-target", target, "--", "bash", "-c", script];
        let running = Trainit::new(run).start();
        let command = pid_in(&running.after_line("pid "));
        send(command, libc::SIGSTOP);
        eventually("the command is stopped", || state_of(command) == 'T');
        let done = running.stop().expect_code(143);
        assert_eq!(done.verdict()["child_code"], 4);
    }
}

#[test]
fn if_the_command_handles_the_stop_trainit_continues_unless_the_group_is_signalled() {
    let script = "trap 'echo heard' TSTP USR2; trap 'echo passed on' USR1; trap 'echo woken' CONT; echo pid $$; while :; do sleep 0.01; done";
    // The group gets SIGSTOP, which cannot be handled, unless the stop is rewritten.
    for (target, rewrite, stops) in [("leader", "TSTP:TSTP", false), ("group", "TSTP:USR2", true)] {
        let run = ["run", "--signal-target", target, "--rewrite-signal", rewrite, "--", "bash", "-c", script];
        let running = Trainit::new(run).start();
        running.after_line("pid ");
        running.signal(libc::SIGTSTP);
        running.after_line("heard");
        if stops {
            eventually("trainit is stopped", || state_of(running.pid()) == 'T');
            running.signal(libc::SIGCONT);
        } else {
            running.signal(libc::SIGUSR1);
            running.after_line("passed on");
            running.signal(libc::SIGCONT);
        }
        running.after_line("woken");
        running.stop().expect_code(143);
    }
}

fn traps_cont(pid: i32) -> bool {
    u64::from_str_radix(&status_of(pid, "SigCgt"), 16).is_ok_and(|set| set >> 17 & 1 == 1)
}

#[test]
fn as_pid_1_it_does_not_stop_itself_and_keeps_its_deadline() {
    let running = Trainit::pid1(["run", "--stop-grace", "300ms", "--", "bash", "-c", "echo ready; sleep 1000"]).start();
    running.after_line("ready");
    let inner = first_child(running.pid()).unwrap();
    send(inner, libc::SIGTSTP);
    let passed_on = || first_child(inner).is_some_and(|command| state_of(command) == 'T');
    eventually("the command is stopped", passed_on);
    assert_ne!(state_of(inner), 'T');
    send(inner, libc::SIGTERM);
    running.finish().expect_code(143);
}

#[test]
fn under_nohup_a_hangup_between_two_attempts_ends_nothing() {
    let script = "[ $TRAINIT_ATTEMPT = 1 ] || exit 0; exit 3";
    let options = ["run", "--max-restarts", "1", "--restart-backoff", "2s..2s", "--", "sh", "-c", script];
    for (prefix, code) in [(&["nohup"][..], 0), (&["env", "--default-signal=HUP"], 129)] {
        let running = Trainit::through(prefix, options).start();
        running.after_log("restarting");
        running.signal(libc::SIGHUP);
        running.finish().expect_code(code);
    }
}

#[test]
fn below_a_shell_as_pid_1_a_warning_says_that_a_stop_does_not_arrive() {
    let warning = "which does not pass SIGTERM on";
    let run = |script: &str| {
        let shell = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "sh", "-c", script];
        Trainit::through(&shell, ["run", "--", "true"]).output().expect_code(0).err()
    };
    let said = run(r#""$0" "$@"; exit $?"#);
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    assert!(said.contains("exec trainit in the script"), "{said}");
    // The script handles the signal itself; the shell is replaced; trainit is PID 1.
    for silent in [run(r#"trap : TERM; "$0" "$@"; exit $?"#), run(r#"exec "$0" "$@""#)] {
        assert!(!silent.contains(warning), "{silent}");
    }
}

#[test]
fn a_signal_that_trainit_was_started_to_ignore_is_not_passed_on() {
    // Like launchers, which install a handler whatever they inherit.
    let script = "import signal, time\n\
        def heard(number, _): print('heard', number, flush=True)\n\
        for s in (1, 2, 10): signal.signal(s, heard)\n\
        print('ready', flush=True)\n\
        signal.signal(12, lambda *_: exit(0))\n\
        while True: time.sleep(0.01)";
    for ignored in [libc::SIGHUP, libc::SIGINT, libc::SIGUSR1] {
        let prefix = ["env", "--default-signal", &format!("--ignore-signal={ignored}")];
        let running = Trainit::through(&prefix, ["run", "--", "python3", "-c", script]).start();
        running.after_line("ready");
        let others: Vec<i32> = [1, 2, 10].into_iter().filter(|signal| *signal != ignored).collect();
        for signal in [&[ignored][..], &others].concat() {
            running.signal(signal);
        }
        others.iter().for_each(|signal| drop(running.after_line(&format!("heard {signal}"))));
        running.signal(libc::SIGUSR2);
        let done = running.finish().expect_code(0);
        assert!(!done.out().contains(&format!("heard {ignored}\n")), "{}", done.out());
    }
}
