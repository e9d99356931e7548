//! At a terminal: it belongs to the command; Ctrl-C, Ctrl-Z and the window's size work as without trainit.

#![expect(unsafe_code, reason = "a pseudo-terminal of our own, and a session on it")]

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::init::signals::{LOOK, expect_no_hup_or_cont, state_of};
use crate::support::{TIMEOUT, binary, eventually, send};

/// A program in a separate session on a pseudo-terminal.
struct Terminal {
    master: File,
    child: Child,
    screen: Arc<(Mutex<String>, Condvar)>,
}

/// A program in a separate session on a pseudo-terminal, which hangs up when its other end is dropped.
fn on_terminal(program: &str, args: &[&str]) -> (File, Child) {
    let (mut options, mut name) = (OpenOptions::new(), [0; 64]);
    options.read(true).write(true).custom_flags(libc::O_NOCTTY);
    // Closed on exec, so that a program of another test does not inherit it and prevent the hang-up.
    let master = options.open("/dev/ptmx").unwrap();
    // SAFETY: the descriptor is open, and no more than is given is written to the name.
    let slave = unsafe {
        assert_eq!(libc::grantpt(master.as_raw_fd()), 0);
        assert_eq!(libc::unlockpt(master.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        CStr::from_ptr(name.as_ptr()).to_str().unwrap()
    };
    let slave = options.open(slave).unwrap();
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("TRAINIT", binary());
    let tty = slave.as_raw_fd();
    // SAFETY: async-signal-safe calls on integers.
    unsafe {
        command.pre_exec(move || {
            libc::login_tty(tty);
            // As after a login, because an ignored signal cannot be trapped.
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    (master, child)
}

impl Terminal {
    fn start(program: &str, args: &[&str]) -> Terminal {
        let (master, child) = on_terminal(program, args);
        let screen = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let (shared, mut reader) = (Arc::clone(&screen), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                shared.0.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
                shared.1.notify_all();
            }
        });
        Terminal { master, child, screen }
    }

    fn keys(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        let mut screen = self.screen.0.lock().unwrap();
        while !screen.contains(text) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{text:?} never came: {screen}");
            screen = self.screen.1.wait_timeout(screen, left).unwrap().0;
        }
    }

    fn count(&self, text: &str) -> usize {
        self.screen.0.lock().unwrap().matches(text).count()
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

const LOOP: &str = "while :; do sleep 0.01; done";

#[test]
fn ctrl_c_reaches_the_command_once_and_its_code_is_kept() {
    // Not in a loop of foreground commands, because after a SIGINT between its fork and its wait bash signals itself
    // for ever.
    let script = "trap 'echo INT-$((n+=1))' INT; trap 'exit 3' QUIT; sleep 100 & echo ready; while :; do wait; done";
    let mut terminal = Terminal::start(binary().to_str().unwrap(), &["run", "--", "bash", "-c", script]);
    terminal.shows("ready");
    terminal.keys(b"\x03");
    terminal.shows("INT-1");
    terminal.keys(b"\x1c");
    terminal.shows("exit_code=3");
    assert_eq!(terminal.count("INT-2"), 0);
    assert_eq!(terminal.code(), Some(3));
}

#[test]
fn the_command_can_read_the_terminal() {
    let terminal =
        Terminal::start(binary().to_str().unwrap(), &["run", "--", "sh", "-c", "echo ask; read x; echo got-$x"]);
    terminal.shows("ask");
    let mut terminal = terminal;
    terminal.keys(b"hello\n");
    terminal.shows("got-hello");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_new_window_size_reaches_the_command() {
    let script = format!("trap 'echo WINCH; exit 0' WINCH; echo ready; {LOOP}");
    let terminal = Terminal::start(binary().to_str().unwrap(), &["run", "--", "bash", "-c", &script]);
    terminal.shows("ready");
    let size = libc::winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the structure is alive for the call.
    unsafe { libc::ioctl(terminal.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    terminal.shows("WINCH");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_z_returns_the_shells_prompt_and_fg_continues() {
    stops_and_goes_on("");
}

#[test]
fn ctrl_z_returns_the_shells_prompt_also_if_the_command_does_not_read_the_terminal() {
    stops_and_goes_on("</dev/null");
}

/// Ctrl-Z and fg of a run below a shell, with this redirection.
fn stops_and_goes_on(redirection: &str) {
    let script = format!(
        "set -m; \"$TRAINIT\" run -- bash -c 'trap \"echo went-on; exit 5\" USR1; echo pid-$$-; {LOOP}' {redirection}; \
         echo stopped-$?; read line; fg; echo ended-$?"
    );
    let mut terminal = Terminal::start("bash", &["-c", &script]);
    terminal.shows("pid-");
    terminal.keys(b"\x1a");
    terminal.shows("stopped-14");
    terminal.keys(b"\n");
    terminal.shows("bash -c"); // fg prints the command that it moves to the foreground
    let screen = terminal.screen.0.lock().unwrap().clone();
    let pid = screen.split("pid-").nth(1).unwrap().split('-').next().unwrap().to_owned();
    Command::new("kill").args(["-USR1", &pid]).status().unwrap();
    terminal.shows("went-on");
    terminal.shows("ended-5");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn at_a_terminal_the_command_gets_no_hup_or_cont_that_was_not_sent() {
    let script =
        format!("{LOOK} look begin; (trap 'look left; exit' TERM; echo ready; {LOOP}) & read line; look end; exit 6");
    let trainit = binary();
    let args = ["--block-signal=HUP,CONT", trainit.to_str().unwrap(), "run", "--", "bash", "-c", &script];
    let mut terminal = Terminal::start("env", &args);
    terminal.shows("ready");
    terminal.keys(b"\n");
    terminal.shows("exit_code=6");
    expect_no_hup_or_cont(&terminal.screen.0.lock().unwrap().replace('\r', ""), 3);
    assert_eq!(terminal.code(), Some(6));
}

#[test]
fn ctrl_z_is_undone_when_no_process_could_continue_the_command() {
    let script = format!("trap 'echo on; exit 0' USR1; echo pid-$$-; {LOOP}");
    let mut terminal = Terminal::start(binary().to_str().unwrap(), &["run", "--", "bash", "-c", &script]);
    terminal.shows("pid-");
    terminal.keys(b"\x1a");
    terminal.shows("is undone");
    let screen = terminal.screen.0.lock().unwrap().clone();
    let pid = screen.split("pid-").nth(1).unwrap().split('-').next().unwrap().to_owned();
    Command::new("kill").args(["-USR1", &pid]).status().unwrap();
    terminal.shows("on");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn output_held_with_ctrl_s_does_not_delay_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("read");
    // Typed keys are read in order, so when the line is read, the key before it has had its effect.
    let script = format!("trap 'exit 3' TERM; echo ready; read line; : >{}; {LOOP}", file.display());
    let mut terminal = Terminal::start(binary().to_str().unwrap(), &["run", "--", "bash", "-c", &script]);
    terminal.shows("ready");
    terminal.keys(b"\x13\n");
    eventually("the line is read", || file.exists());
    send(terminal.child.id() as i32, libc::SIGTERM);
    eventually("it ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.code(), Some(143));
}

#[test]
fn a_hang_up_reaches_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!("trap 'exit 9' HUP; : >{}; {LOOP}", ready.display());
    let (master, mut child) = on_terminal(binary().to_str().unwrap(), &["run", "--", "bash", "-c", &script]);
    eventually("the command is ready", || ready.exists());
    drop(master);
    eventually("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn ctrl_c_between_two_attempts_ends_the_job() {
    let backoff = ["run", "--max-restarts", "5", "--restart-backoff", "1h..1h", "--", "sh", "-c", "exit 3"];
    let mut terminal = Terminal::start(binary().to_str().unwrap(), &backoff);
    terminal.shows("restarting");
    terminal.keys(b"\x03");
    // The last output may be lost, because a terminal is flushed when its session leader ends.
    eventually("it ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.code(), Some(130));
}

#[test]
fn ctrl_c_while_the_command_runs_ends_the_job_although_restarts_are_on() {
    let command = ["--", "sh", "-c", "echo ready-$TRAINIT_ATTEMPT; exec sleep 1000"];
    for (key, code) in [(b"\x03", 130), (b"\x1c", 131)] {
        let run = [&["run", "--max-restarts", "5", "--restart-backoff", "1ms"][..], &command].concat();
        let mut terminal = Terminal::start(binary().to_str().unwrap(), &run);
        terminal.shows("ready-1");
        terminal.keys(key);
        eventually("it ends", || terminal.child.try_wait().unwrap().is_some());
        assert_eq!(terminal.code(), Some(code));
    }
}

#[test]
fn a_rank_that_the_terminal_stops_is_named() {
    let run = [
        "run",
        "--nproc",
        "2",
        "--log-level",
        "warn",
        "--",
        "sh",
        "-c",
        "[ $LOCAL_RANK = 0 ] || stty echo; sleep 1000",
    ];
    let mut terminal = Terminal::start(binary().to_str().unwrap(), &run);
    terminal.shows("local rank 1 was stopped by SIGTTOU");
    send(terminal.child.id() as i32, libc::SIGTERM);
    eventually("it ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.code(), Some(143));
}

#[test]
fn after_bg_and_fg_ctrl_c_reaches_the_command() {
    // The foreground group of the terminal: a shell does not notify a job that it is in the foreground again.
    let look = "trap 'exit 9' INT; was=; while sleep 0.01; do read -r _ _ _ _ _ _ _ front _ </proc/$$/stat; \
                case $front in $$) is=command;; $PPID) is=trainit;; *) is=shell;; esac; \
                [ $is = \"$was\" ] || echo front-$is; was=$is; done";
    let script = "set -m; \"$TRAINIT\" run -- bash -c \"$0\"; bg; read line; fg; echo ended-$?";
    let mut terminal = Terminal::start("bash", &["-c", script, look]);
    terminal.shows("front-command");
    terminal.keys(b"\x1a");
    terminal.shows("front-shell");
    terminal.keys(b"\n");
    terminal.shows("front-trainit");
    terminal.keys(b"\x03");
    terminal.shows("ended-9");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_command_started_in_the_background_reads_the_terminal_after_fg() {
    let read = "echo asks-$PPID-; read line; echo got-$line; exit 5";
    let script = "set -m; \"$TRAINIT\" run -- bash -c \"$0\" & read line; fg; echo ended-$?";
    let mut terminal = Terminal::start("bash", &["-c", script, read]);
    terminal.shows("asks-");
    let screen = terminal.screen.0.lock().unwrap().clone();
    let trainit = screen.split("asks-").nth(1).unwrap().split('-').next().unwrap().parse().unwrap();
    eventually("it is stopped, with its command", || state_of(trainit) == 'T');
    terminal.keys(b"\n");
    terminal.shows("bash -c");
    terminal.keys(b"hello\n");
    terminal.shows("got-hello");
    terminal.shows("ended-5");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_long_push_shows_a_bar_that_is_removed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let unit = dir.path().join("ck/step-1");
        std::fs::create_dir_all(&unit).unwrap();
        std::fs::write(unit.join(name), [1; 1000]).unwrap();
    }
    // It stops after its first file, so that the others take long enough.
    let script = "TERM=xterm TRAINIT_TEST_FAULT=4:stop $TRAINIT checkpoint push --checkpoint-dir $0/ck --settle 0 \
                  --checkpoint-store file://$0/store & \
                  until grep -q 'State:.T' /proc/$!/status; do sleep 0.01; done; sleep 0.2; kill -CONT $!; wait $!";
    let terminal = Terminal::start("sh", &["-c", script, dir.path().to_str().unwrap()]);
    terminal.shows("committed");
    assert!(terminal.count("[####") > 0, "{}", terminal.screen.0.lock().unwrap());
    let screen = terminal.screen.0.lock().unwrap().clone();
    assert!(screen.contains("of 2.93 KiB (67 %)") && screen.contains("\x1b[2Kcommitted step-1"), "{screen:?}");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn the_progress_line_of_a_simulation_stays_below_the_output_and_is_removed_at_the_end() {
    let script =
        "TERM=xterm exec $TRAINIT simulate --workers 1 -- trainit run -- sh -c 'echo step=7 loss=0.5; sleep 1'";
    let terminal = Terminal::start("sh", &["-c", script]);
    terminal.shows("2 of 2 running, step 7, 0 faults");
    terminal.shows("worker-0 | step=7 loss=0.5");
    terminal.shows("vertex would call this job succeeded");
    let screen = terminal.screen.0.lock().unwrap().clone();
    let (_, after) = screen.rsplit_once(" running").unwrap();
    assert!(after.contains("\x1b[2K"), "it is still there: {screen:?}");
    assert_eq!(terminal.code(), Some(0));
}
