//! The metrics file under load and kills: many writers, readers that poll, and a lock that is held.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

use trainit::rules::metric::report::plan::{Tail, plan};

use crate::metrics::report_metric::{folder, is_root, lines, report};
use crate::support::{Finished, Trainit, assert_prompt, binary, eventually};

/// `report-metric` as `"$@"` at the end of a shell script, optionally in a separate mount namespace.
pub(crate) fn scripted(file: &Path, namespace: bool, script: &str, args: &[&str]) -> Finished {
    let shell = ["sh", "-c", script, "sh"];
    let prefix = if namespace { [&["unshare", "-m"][..], &shell].concat() } else { shell.to_vec() };
    let dir = file.parent().unwrap();
    Trainit::through(&prefix, ["report-metric"])
        .args(args)
        .env("CLOUD_ML_HP_METRIC_FILE", file)
        .env("DIR", dir)
        .env("FILE", file)
        .output()
}

/// A prefix that takes from root the capability to ignore permissions; empty for other users.
pub(crate) fn without_power() -> &'static [&'static str] {
    if is_root() { &["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] } else { &[] }
}

/// A pseudo-random number, good enough to choose instants and texts.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn eight_writers_at_once_lose_nothing() {
    const EACH: usize = 30;
    for (keep, expected) in [("0", 8 * EACH), ("100", 100)] {
        let (_dir, file) = folder();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    for step in 1..=EACH {
                        let done = report(
                            file,
                            [
                                format!("w{writer}"),
                                step.to_string(),
                                format!("--step={step}"),
                                format!("--keep={keep}"),
                            ],
                        )
                        .output();
                        assert_eq!(done.expect_code(0).err(), "");
                    }
                });
            }
        });
        let found = lines(&file);
        assert_eq!(found.len(), expected, "--keep {keep}");
        for writer in 0..8 {
            let steps: Vec<usize> = found
                .iter()
                .filter(|line| line.get(format!("w{writer}")).is_some())
                .map(|line| line["global_step"].as_str().unwrap().parse().unwrap())
                .collect();
            let first = EACH + 1 - steps.len();
            assert_eq!(steps, (first..=EACH).collect::<Vec<_>>(), "the last reports of writer {writer}, in order");
        }
    }
}

/// Two writers of 150 reports each, and a reader that polls without pause and passes the content to `look`.
fn beside_a_reader(file: &Path, keep: &str, mut look: impl FnMut(&[u8]) + Send) {
    report(file, ["first", "1"]).output().expect_code(0);
    let inode = fs::metadata(file).unwrap().ino();
    let done = AtomicBool::new(false);
    let write = |writer| {
        for step in 0..150 {
            let args = [format!("w{writer}"), step.to_string(), format!("--keep={keep}")];
            report(file, args).output().expect_code(0);
        }
    };
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| scope.spawn(move || write(writer)));
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                let mut open = fs::File::open(file).unwrap();
                let mut bytes = Vec::new();
                open.read_to_end(&mut bytes).unwrap();
                assert_eq!(open.metadata().unwrap().ino(), inode);
                look(&bytes);
                reads += 1;
            }
            reads
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 100, "the reader hardly ever looked");
    });
}

#[test]
fn a_reader_that_polls_without_pause_sees_only_whole_lines_added() {
    let (_dir, file) = folder();
    let mut before = Vec::new();
    beside_a_reader(&file, "0", |bytes| {
        assert!(!bytes.is_empty() && bytes.starts_with(&before), "rewritten");
        // The kernel shows a write page by page.
        assert!(bytes.ends_with(b"\n") || bytes.len() % 4096 == 0, "cut at {}", bytes.len());
        before = bytes.to_vec();
    });
    assert_eq!(lines(&file).len(), 301);
}

#[test]
fn during_a_trim_a_reader_finds_the_lines_and_never_an_empty_file() {
    let (_dir, file) = folder();
    let (mut reads, mut mixtures) = (0, 0);
    beside_a_reader(&file, "10", |bytes| {
        // A read during a write may return a mixture, because the kernel allows both at once. That is one read of thousands.
        let whole = bytes
            .split(|b| *b == b'\n')
            .filter(|line| serde_json::from_slice::<Value>(line).is_ok_and(|v| v.is_object()));
        let whole = whole.count();
        assert!(whole >= 1, "{:?}", String::from_utf8_lossy(bytes));
        reads += 1;
        mixtures += usize::from(bytes.len() >= 900 && whole < 8);
    });
    assert!(mixtures <= 1, "{mixtures} of {reads}");
    assert_eq!(lines(&file).len(), 10);
}

/// One report without the builder's threads, for exact instants.
fn bare(file: &Path, value: u32, keep: &str) -> Child {
    let mut command = Command::new(binary());
    command.args(["report-metric", "loss", &value.to_string(), "--keep", keep]).env_clear();
    command.env("CLOUD_ML_HP_METRIC_FILE", file).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn five_hundred_kills_at_random_instants_leave_lines_that_parse() {
    // One file is appended to, the other is trimmed. Both fit one page, so that a kill cannot cut a write.
    let dir = tempfile::tempdir().unwrap();
    let files = [("append", "0"), ("trim", "20")].map(|(name, keep)| (dir.path().join(name), keep));
    let clock = Instant::now();
    for (file, keep) in &files {
        for value in 0..20 {
            assert!(bare(file, value, keep).wait().unwrap().success());
        }
    }
    let mut usual = clock.elapsed() / 40;
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut killed = 0;
    for turn in 0.. {
        let (file, keep) = &files[turn % 2];
        let mut child = bare(file, killed, keep);
        // The file is written towards the end of a process's life.
        let instant = Instant::now() + usual.mul_f64(0.3 + dice.below(700) as f64 / 1000.0);
        while Instant::now() < instant {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        let acknowledged = child.wait().unwrap().success();
        let text = fs::read_to_string(file).unwrap();
        let whole: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        for line in &whole {
            let parsed: Result<Value, _> = serde_json::from_str(line);
            assert!(parsed.is_ok_and(|v| v.is_object()), "after {killed} kills: {line:?}");
        }
        // A kill between the append and the trim leaves one line more.
        assert!(whole.len() >= 20 && (*keep == "0" || whole.len() <= 21), "{} lines left", whole.len());
        if acknowledged {
            assert!(whole.last().unwrap().contains(&format!("\"loss\": \"{killed}.0\"")), "acknowledged and not there");
        }
        killed += u32::from(!acknowledged);
        // The speed of the machine varies; most processes must be killed, and some must not.
        usual = usual.mul_f64(if acknowledged { 0.95 } else { 1.02 });
        if text.len() > 3500 && *keep == "0" {
            fs::write(file, &text[..text.match_indices('\n').nth(19).unwrap().0 + 1]).unwrap();
        }
        if killed == 500 {
            break;
        }
    }
    for (file, keep) in &files {
        assert!(bare(file, 1, keep).wait().unwrap().success());
        assert!(lines(file).len() >= 20);
    }
}

#[test]
fn a_torn_line_is_cut_off_and_a_whole_one_gets_its_newline() {
    let (_dir, file) = folder();
    fs::write(&file, "{\"a\": \"1\"}\n{\"b\": \"0.").unwrap();
    let done = report(&file, ["c", "1"]).output().expect_code(0);
    assert!(done.err().contains("torn"), "{}", done.err());
    assert!(fs::read_to_string(&file).unwrap().starts_with("{\"a\": \"1\"}\n{\"c\""));
    fs::write(&file, "{\"a\": \"1\"}\n{\"b\": \"0\"}").unwrap();
    assert_eq!(report(&file, ["c", "1"]).output().expect_code(0).err(), "");
    assert_eq!(lines(&file).len(), 3);
}

#[test]
fn a_file_that_is_not_a_metrics_file_is_not_changed() {
    let (_dir, file) = folder();
    let model = vec![7u8; 3 << 20];
    fs::write(&file, &model).unwrap();
    for keep in ["0", "100"] {
        let done = report(&file, ["a", "1", "--keep", keep]).output().expect_code(1);
        assert!(done.err().contains("not a metrics file"), "{}", done.err());
        assert_eq!(fs::read(&file).unwrap(), model);
    }
}

#[test]
fn a_frozen_lock_holder_prevents_no_report() {
    let (_dir, file) = folder();
    fs::write(&file, "{\"a\": \"1\"}\n{\"b\"").unwrap();
    let holder = fs::File::open(&file).unwrap();
    holder.lock().unwrap();
    let done = report(&file, ["c", "1", "--keep", "1"]).output().expect_code(0);
    assert!(done.err().contains("without a lock") && done.err().contains("5s"), "{}", done.err());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("{\"a\": \"1\"}\n{\"b\"\n{\"c\": \"1.0\""), "{text}");
}

#[test]
fn after_a_lock_timed_out_later_reports_do_not_wait_for_it_until_it_is_free() {
    let (_dir, file) = folder();
    fs::write(&file, "").unwrap();
    let holder = fs::File::open(&file).unwrap();
    holder.lock().unwrap();
    let (read, mut feeder) = std::io::pipe().unwrap();
    let running = report(&file, ["--stdin", "--keep", "1"]).stdin(read).start();
    let mut feed = |step: usize, holds: usize| {
        std::io::Write::write_all(&mut feeder, format!("loss {step}\n").as_bytes()).unwrap();
        eventually("the line is in the file", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            text.matches("}\n").count() == holds && text.contains(&format!("\"loss\": \"{step}.0\""))
        });
    };
    feed(1, 1);
    let clock = Instant::now();
    (2..=5).for_each(|step| feed(step, step));
    // Four reports that wait for the lock take 20 s.
    assert_prompt(clock);
    holder.unlock().unwrap();
    feed(6, 1);
    drop(feeder);
    let done = running.finish().expect_code(0);
    assert_eq!((done.err().lines().count(), done.err().matches("held it for 5s").count()), (1, 1), "{}", done.err());
}

#[test]
fn a_report_waits_for_the_lock() {
    let (_dir, file) = folder();
    fs::write(&file, "{\"a\": \"1\"}\n").unwrap();
    let holder = fs::File::open(&file).unwrap();
    holder.lock().unwrap();
    let run = report(&file, ["b", "1", "--keep", "1"]).start();
    eventually("the file is open", || {
        let open = fs::read_dir(format!("/proc/{}/fd", run.pid())).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target == file)
    });
    assert_eq!(lines(&file).len(), 1);
    holder.unlock().unwrap();
    assert_eq!(run.finish().expect_code(0).err(), "");
    assert!(lines(&file).len() == 1 && lines(&file)[0]["b"] == "1.0");
}

/// Metrics files of several pages, in which a report was killed at each page of its trim; and the lines that must stay.
fn killed_trims() -> Vec<(tempfile::TempDir, PathBuf, Vec<Value>)> {
    let line = |step: usize| format!("{{\"loss\": \"{step}.0\", \"padding\": \"{}\"}}\n", "x".repeat(step % 7 * 40));
    let before: String = (0..100).map(line).collect();
    // One report, a batch, and a batch longer than the file may be. All lines may be equally long, too.
    let even = |step: usize| format!("{{\"loss\": \"{step:05}.0\", \"padding\": \"{}\"}}\n", "x".repeat(225));
    let cases = [1, 40, 150].map(|count| (before.clone(), (100..100 + count).map(line).collect::<String>()));
    let evenly = ((0..100).map(even).collect(), (100..116).map(even).collect());
    let mut killed = Vec::new();
    for (before, new) in cases.into_iter().chain([evenly]) {
        let plan = plan(Tail { bytes: before.as_bytes(), start: 0 }, new.as_bytes(), 100);
        let trim = plan.trim.expect("a trim");
        let file = [before.as_bytes(), &plan.append].concat();
        let all: Vec<Value> = (before + &new).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = &all[all.len() - 100..];
        for page in 0..=file.len() / 4096 {
            let (dir, path) = folder();
            let mixed = [&trim.content[..page * 4096], &file[page * 4096..]].concat();
            fs::write(&path, mixed).unwrap();
            killed.push((dir, path, last.to_vec()));
        }
    }
    killed
}

#[test]
fn the_next_writer_finishes_a_trim_that_was_killed_at_any_page() {
    for (_dir, file, last) in killed_trims() {
        assert_eq!(report(&file, ["next", "1"]).output().expect_code(0).err(), "");
        let found = lines(&file);
        assert_eq!(&found[..99], &last[1..]);
        assert_eq!(found[99]["next"], "1.0");
    }
}

#[test]
fn a_writer_that_never_trims_finishes_a_killed_trim_too() {
    for (_dir, file, last) in killed_trims() {
        report(&file, ["next", "1", "--keep", "0"]).output().expect_code(0);
        assert_eq!(&lines(&file)[..100], last);
    }
}

#[test]
fn the_end_of_the_run_finishes_a_trim_that_was_killed_at_any_page() {
    for (_dir, file, last) in killed_trims() {
        let done = Trainit::new(["run", "--", "true"]).env("CLOUD_ML_HP_METRIC_FILE", &file).output().expect_code(0);
        assert_eq!(lines(&file), last, "{}", done.err());
    }
}

#[test]
fn the_python_package_finishes_a_trim_that_was_killed_at_any_page() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let code = "import sys\nfrom trainit._metrics_file import MetricsFile\n\
                for path in sys.argv[1:]: MetricsFile(path).append(b'{\"next\": 1}\\n')";
    let killed = killed_trims();
    let files = killed.iter().map(|(_, file, _)| file);
    let python = Command::new("python3").args(["-c", code]).args(files).env("PYTHONPATH", &package).status().unwrap();
    assert!(python.success());
    for (_dir, file, last) in &killed {
        let found = lines(file);
        assert_eq!(&found[..99], &last[1..]);
        assert_eq!(found[99]["next"], 1);
    }
}
