//! A log without a reader delays no signal, no deadline and no commit.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Instant;

use crate::support::{TIMEOUT, Trainit, eventually, send};

/// A run whose standard error is full from the start and is never read.
struct Unread {
    child: Child,
    _reader: std::io::PipeReader,
}

impl Unread {
    fn start(mut trainit: Trainit) -> Unread {
        let (reader, writer) = std::io::pipe().unwrap();
        let room = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
        (&writer).write_all(&vec![b'x'; room as usize]).unwrap();
        let child = trainit.command().stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        Unread { child, _reader: reader }
    }

    fn term(&self) {
        send(self.child.id() as i32, libc::SIGTERM);
    }

    #[track_caller]
    fn code(mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a file when it is ready, because its output is not read.
const READY: &str = "trap 'exit 3' TERM; : >ready; while :; do sleep 0.01; done";

#[test]
fn a_stop_reaches_the_command_and_the_verdict_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let run = ["run", "--verdict-file", "verdict", "--log-level", "debug", "--", "bash", "-c", READY];
    let unread = Unread::start(Trainit::new(run).dir(dir.path()));
    eventually("the command is ready", || dir.path().join("ready").exists());
    unread.term();
    assert_eq!(unread.code(), Some(143));
    let verdict = std::fs::read_to_string(dir.path().join("verdict")).unwrap();
    assert!(verdict.contains(r#""child_code":3"#), "{verdict}");
}

#[test]
fn a_deadline_is_kept_although_the_command_waits_for_a_reader() {
    for options in [&[][..], &["--nproc", "2"], &["--metric", "loss=loss ([0-9]+)"]] {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; : >ready; while :; do echo unread output >&2; done";
        let run = Trainit::new(["run", "--stop-grace", "300ms"]).args(options).args(["--", "bash", "-c", script]);
        let unread = Unread::start(run.dir(dir.path()));
        eventually("the command is ready", || dir.path().join("ready").exists());
        let begin = Instant::now();
        unread.term();
        assert_eq!(unread.code(), Some(143), "{options:?}");
        assert!(begin.elapsed() < TIMEOUT / 10, "{options:?}: {:?}", begin.elapsed());
    }
}

#[test]
fn a_save_on_a_stop_is_committed() {
    let place = crate::support::checkpoints::Place::new();
    let local = place.local();
    let script = "trap 'mkdir tmp && echo w >tmp/model.bin && mv tmp step-7; exit 0' TERM; : >../ready; \
                  while :; do sleep 0.01; done";
    let run = Trainit::new(["run", "--settle", "0", "--checkpoint-dir", local.to_str().unwrap()]).args([
        "--checkpoint-store",
        &place.url(),
        "--",
        "bash",
        "-c",
        script,
    ]);
    let ready = local.join("../ready");
    let unread = Unread::start(run.dir(&local));
    eventually("the command is ready", || ready.exists());
    unread.term();
    assert_eq!(unread.code(), Some(143));
    assert_eq!(place.commits().len(), 1);
}

#[test]
fn a_slow_reader_gets_all_output_and_does_not_delay_the_last_commit() {
    let save = "mkdir tmp; echo w >tmp/model.bin; mv tmp step-7; head -c 600000 /dev/zero";
    slowly_read(&format!("trap '{save}; exit 0' TERM; : >../ready; while :; do sleep 0.01; done"), true, 143);
    slowly_read(&format!("{save}; : >../ready"), false, 0);
    slowly_read(&format!("{save}; : >../ready; exit 3"), false, 3);
}

fn slowly_read(script: &str, is_stopped: bool, code: i32) {
    use std::io::Read;
    const BYTES: usize = 600_000;
    let place = crate::support::checkpoints::Place::new();
    let local = place.local();
    let run = Trainit::new(["run", "--settle", "0", "--commit-interval", "1h", "--max-restarts", "0"])
        .args(["--metric", "loss=loss ([0-9]+)"])
        .env("TRAINIT_CHECKPOINT_DIR", &local)
        .env("TRAINIT_CHECKPOINT_STORE", place.url())
        .env("CLOUD_ML_HP_METRIC_FILE", place.path("metrics"));
    let mut run = run.args(["--", "bash", "-c", script]).dir(&local);
    let mut child = run.command().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    if is_stopped {
        eventually("the command is ready", || local.join("../ready").exists());
        send(child.id() as i32, libc::SIGTERM);
    }
    let mut taken = 0;
    eventually("the commit is made", || {
        // At least some bytes between two checks.
        taken += output.read(&mut [0; 1024]).unwrap();
        place.steps() == [7]
    });
    assert!(taken < BYTES / 2, "the commit waited for the reader");
    taken += output.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!((taken, child.wait().unwrap().code()), (BYTES, Some(code)));
}
