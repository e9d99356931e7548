//! Directories that a trainer of another user fills: a run ends in time, removes nothing outside, and leaves no work to
//! later runs.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::{Running, Trainit, eventually, is_root, send, shared_dir};

/// Becomes another user, and enters the directory in which that user may create files.
const IN_OPEN_DIRECTORY: &str = "
import os, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chdir(os.path.dirname(os.environ['TRAINIT_HEARTBEAT_FILE']))
place, parent = os.getcwd(), os.getppid()
";

/// More directories in one another than a process may have descriptors, and than a path can name.
const DEEP: &str = "
for _ in range(1500):
    os.mkdir('deep'); os.chdir('deep')
";

const UNTIL_ORPHANED: &str = "
while os.getppid() == parent: time.sleep(0.01)
";

/// A run whose trainer does this; and the run's directory.
fn run(script: &str) -> Option<(Running, PathBuf)> {
    if !is_root() {
        eprintln!("skipped: needs root and a less privileged user");
        return None;
    }
    let few = ["sh", "-c", "ulimit -n 256; exec \"$0\" \"$@\""];
    let script = format!("{IN_OPEN_DIRECTORY}{script}");
    let run = ["run", "--preemption", "off", "--", "python3", "-c", &script];
    let running = Trainit::through(&few, run).start();
    let line = running.after_line("place=");
    let open = PathBuf::from(line.trim().strip_prefix("place=").unwrap());
    Some((running, open.parent().unwrap().to_owned()))
}

fn age(dir: &Path) {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(dir).and_then(|dir| dir.set_modified(old)).unwrap();
}

#[test]
fn directories_nested_to_any_depth_are_removed_at_the_end_of_the_run() {
    let Some((running, dir)) = run(&format!("{DEEP}print('place=' + place, flush=True)")) else { return };
    running.finish().expect_code(0);
    // What a loaded machine does not remove in time is left to the next run.
    if dir.exists() {
        age(&dir);
        let later = Trainit::run(["sleep", "60"]).start();
        eventually("the next run removes the rest", || !dir.exists());
        later.stop().expect_code(143);
    }
}

#[test]
fn a_full_directory_of_a_killed_run_is_removed_by_a_later_one() {
    let script = format!("{DEEP}print('place=' + place, flush=True)\n{UNTIL_ORPHANED}");
    let Some((running, dir)) = run(&script) else { return };
    send(running.pid(), libc::SIGKILL);
    running.finish();
    age(&dir);
    let later = Trainit::run(["sleep", "60"]).start();
    eventually("it is removed", || !dir.exists());
    later.stop().expect_code(143);
}

#[test]
fn a_link_that_takes_the_place_of_a_directory_during_its_removal_is_not_followed() {
    if !is_root() {
        return eprintln!("skipped: needs root and a less privileged user");
    }
    let place = shared_dir();
    let at = |name: &str| place.path().join(name);
    for name in ["checkpoints", "outside", "outside/victim"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("outside/victim/file"), "of root").unwrap();
    chown(at("checkpoints"), Some(65534), Some(65534)).unwrap();
    // Until the removal of `victim` has begun, its directory has the stamp that it was given.
    let script = format!(
        "
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chdir({:?})
def save(n):
    with open('new', 'w') as f: f.write(str(n) * 1000)
    os.rename('new', 'model_%d.pt' % n)
save(0)
while not os.path.isdir('.trainit/pin') or not os.listdir('.trainit/pin'): pass
pin = '.trainit/pin/' + os.listdir('.trainit/pin')[0]
while True:
    try: os.rename('.trainit', '.old%d' % len(os.listdir('.'))); os.makedirs(pin + '/victim'); break
    except OSError: pass
for n in range(20000):
    os.close(os.open(pin + '/victim/%d' % n, os.O_CREAT | os.O_WRONLY))
os.utime(pin + '/victim', (1000, 1000))
os.symlink({:?}, 'link')
save(1)
while os.stat(pin + '/victim').st_mtime < 2000: pass
os.rename(pin, 'moved'); os.rename('link', pin)
print('swapped', flush=True)
while os.listdir('moved/victim'): pass
",
        at("checkpoints"),
        at("outside")
    );
    let (dir, store) = (at("checkpoints"), format!("file://{}", at("store").display()));
    let keeps = ["run", "--checkpoint-dir", dir.to_str().unwrap(), "--checkpoint-store", &store];
    let timing = ["--commit-interval", "100ms", "--settle", "100ms", "--max-restarts", "0"];
    let done = Trainit::new(keeps).args(timing).args(["--", "python3", "-c", &script]).output();
    assert!(done.out().contains("swapped"), "{}", done.err());
    assert!(at("outside/victim/file").exists(), "a file outside was removed");
}
