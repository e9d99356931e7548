//! `report-metric --stdin`: many metrics, one on each line.

use std::fs;
use std::path::Path;

use crate::metrics::report_metric::{folder, lines, report};
use crate::support::{Finished, eventually};

fn from_stdin(file: &Path, text: &str, args: &[&str]) -> Finished {
    let mut input = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut input, text.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    report(file, ["--stdin"]).args(args).stdin(input).output()
}

#[test]
fn many_metrics_come_from_stdin_in_both_forms() {
    let (_dir, file) = folder();
    let text = "loss 0.5 1\n\n{\"tag\": \"acc\", \"value\": 0.1, \"step\": \"2\", \"checkpoint_path\": \"gs://b\"}\n{\"value\": NaN}";
    let done = from_stdin(&file, text, &["--tag", "standard", "--fsync"]).expect_code(0);
    assert!(done.err().lines().count() == 1 && done.err().contains("warning: the value is nan"), "{}", done.err());
    let found = lines(&file);
    assert!(found[0]["loss"] == "0.5" && found[0]["global_step"] == "1", "{found:?}");
    assert!(
        found[1]["acc"] == "0.1" && found[1]["checkpoint_path"] == "gs://b" && found[1]["trial"] == "0",
        "{found:?}"
    );
    assert!(found[2]["standard"] == "nan" && found.len() == 3, "{found:?}");
}

#[test]
fn each_wrong_line_on_stdin_is_named_and_delays_no_other_line() {
    let (_dir, file) = folder();
    let done = from_stdin(&file, "a 1\nb x\n{\"tag\": \"c\"}\nd 1\n", &[]).expect_code(125);
    assert!(done.err().contains("line 2: ") && done.err().contains("line 3: "), "{}", done.err());
    assert_eq!(done.err().lines().count(), 2, "{}", done.err());
    let found = lines(&file);
    assert!(found.len() == 2 && found[0]["a"] == "1.0" && found[1]["d"] == "1.0", "{found:?}");
}

#[test]
fn lines_on_stdin_are_written_at_once_each_with_its_time() {
    let (_dir, file) = folder();
    let (read, mut feeder) = std::io::pipe().unwrap();
    let running = report(&file, ["--stdin"]).stdin(read).start();
    let mut feed = |text: &str| std::io::Write::write_all(&mut feeder, text.as_bytes()).unwrap();
    // The rest of the line may still arrive.
    let holds = |count| fs::read_to_string(&file).unwrap_or_default().matches("}\n").count() == count;
    feed("a 1\nb 2\nc");
    eventually("the whole lines are in the file", || holds(2));
    feed(" 3\n");
    eventually("the rest of a line makes it whole", || holds(3));
    running.signal(libc::SIGKILL);
    running.finish().expect_code(137);
    let found = lines(&file);
    assert!(found[2]["c"] == "3.0" && found[2]["timestamp"].as_f64() > found[0]["timestamp"].as_f64(), "{found:?}");
}

#[test]
fn an_endless_line_is_refused_and_the_next_one_is_written() {
    let (_dir, file) = folder();
    let text = format!("a 1\nb {}\nc 3", "1".repeat(3 << 20));
    let done = from_stdin(&file, &text, &[]).expect_code(125);
    assert!(done.err().contains("line 2: longer than 1 MiB"), "{}", done.err());
    let found = lines(&file);
    assert!(found.len() == 2 && found[0]["a"] == "1.0" && found[1]["c"] == "3.0", "{found:?}");
}

#[test]
fn an_empty_stdin_makes_no_file() {
    let (_dir, file) = folder();
    let done = from_stdin(&file, "\n", &[]).expect_code(0);
    assert!(done.err().contains("no metric"), "{}", done.err());
    assert!(!file.exists());
}

#[test]
fn with_best_effort_no_mistake_in_a_metric_ends_a_script() {
    let (_dir, file) = folder();
    for args in [&["a", ""][..], &["a", "1", "--keep", "x"], &["a", "1", "--file", "/"]] {
        let done = report(&file, args).args(["--best-effort"]).output().expect_code(0);
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    }
    let done = from_stdin(&file, "a x\nb 1\n", &["--best-effort"]).expect_code(0);
    assert!(done.err().contains("line 1: ") && lines(&file)[0]["b"] == "1.0", "{}", done.err());
}
