//! `run --metric-file`: metrics from JSON, tables and text.

use std::fs;

use crate::metrics::followed::{Place, append, pairs, warns};

#[test]
fn a_file_of_records_is_followed_when_it_appears_grows_is_emptied_or_is_renamed() {
    let place = Place::new();
    let running = place.waiting(&["--metric-file", "out/log.jsonl"]);
    let log = place.at("out/log.jsonl");
    fs::create_dir(place.at("out")).unwrap();
    append(&log, "{\"loss\": 0.5, \"step\": 1}\n{\"loss\": 0.25, ");
    place.after_reports("loss", 1);
    append(&log, "\"step\": 2}\n");
    place.after_reports("loss", 2);
    fs::write(&log, "step=3 loss=0.125\n").unwrap();
    place.after_reports("loss", 3);
    fs::rename(&log, place.at("out/log.jsonl.1")).unwrap();
    append(&place.at("out/log.jsonl.1"), "step=4 loss=0.0625\n");
    append(&log, "step=5 loss=1e-5\nnothing\n{\"loss\": \n{broken}\n");
    place.after_reports("loss", 5);
    append(&log, "{\"tag\": \"loss\", \"value\": \"2\", \"step\": 6}");
    let done = place.finish(running);
    let expected = [("0.5", "1"), ("0.25", "2"), ("0.125", "3"), ("0.0625", "4"), ("1e-05", "5"), ("2.0", "6")];
    assert_eq!(place.reports("loss"), pairs(&expected), "{}", done.err());
    warns(&done, "an object of 2 lines in out/log.jsonl is skipped", 1);
    assert_eq!(done.verdict()["metrics"]["loss"], 2.0);
}

#[test]
fn unreadable_records_are_reported_once_for_each_reason() {
    let place = Place::new();
    let running = place.waiting(&["--metric-file", "log"]);
    let bad = [&b"\xff acc=9\nloss=1,234.5 step=2\nstep=1,000 loss=9\n"[..], &vec![b'x'; 2 << 20], b"\n"].concat();
    append(
        &place.at("log"),
        [&b"\xef\xbb\xbf{\"loss\": 0.5, \"step\": 1e0}\n"[..], &bad, &bad, b"loss=0.25 step=3.0\n"].concat(),
    );
    place.after_reports("loss", 2);
    let done = place.finish(running);
    assert_eq!(place.reports("loss"), pairs(&[("0.5", "1"), ("0.25", "3")]), "{}", done.err());
    for what in [
        "a line in another encoding is in log",
        "a value in a line of log is",
        "skipped: its step",
        "a long line of log is",
    ] {
        warns(&done, what, 1);
    }
}

#[test]
fn the_header_of_a_table_may_be_older_than_the_run_or_repeated() {
    let place = Place::new();
    place.golden("old.csv", b"epoch,val_acc\n1,0.5\n");
    let script = "printf '2,0.75\\nepoch,loss,val_acc\\n3,\"0.25\",\\n4,,0.875\\n' >>old.csv";
    let args = ["--metric-file", "old.csv", "--metric-step", "epoch"];
    let done = place.trainer(&args, script).output().expect_code(0);
    assert_eq!(place.reports("val_acc"), pairs(&[("0.75", "2"), ("0.875", "4")]), "{}", done.err());
    assert_eq!(place.reports("loss"), pairs(&[("0.25", "3")]));
    assert_eq!(done.err().matches("WARNING").count(), 0, "{}", done.err());
}

#[test]
fn a_table_rewritten_with_one_more_column_reports_no_row_twice() {
    let place = Place::new();
    let running = place.waiting(&["--metric-file", "metrics.csv"]);
    fs::write(place.at("metrics.csv"), "step,loss\n1,0.5\n2,0.25\n").unwrap();
    place.after_reports("loss", 2);
    fs::write(place.at("metrics.csv"), "acc,step,loss\n,1,0.5\n,2,0.25\n0.75,3,0.125\n").unwrap();
    place.after_reports("acc", 1);
    let done = place.finish(running);
    assert_eq!(place.reports("loss"), pairs(&[("0.5", "1"), ("0.25", "2"), ("0.125", "3")]), "{}", done.err());
}

#[test]
fn a_progress_bar_is_read_the_same_in_a_file_as_in_the_output() {
    let place = Place::new();
    let bar = "printf '50%%|# | 5/10 [00:01<00:01, 5.0it/s, step=5, loss=0.5]\\r99%%|##| 9/10 [00:02<00:00, step=9, loss=nan]' >log";
    let done = place.trainer(&["--metric-file", "log"], bar).output().expect_code(0);
    assert_eq!(place.reports("loss"), pairs(&[("0.5", "5"), ("nan", "9")]), "{}", done.err());
    warns(&done, "the metric \\\"loss\\\": the value is nan", 1);
}

#[test]
fn the_files_are_followed_through_the_attempts_of_a_run() {
    let place = Place::new();
    let script = "printf \"loss=0.$TRAINIT_ATTEMPT\" >>log; [ $TRAINIT_ATTEMPT = 3 ]";
    let run = place.trainer(&["--metric-file", "log"], script);
    let run = run.env("TRAINIT_MAX_RESTARTS", "2").env("TRAINIT_RESTART_BACKOFF", "1ms..1ms");
    run.output().expect_code(0);
    assert_eq!(place.reports("loss"), pairs(&[("0.1", "1"), ("0.2", "2"), ("0.3", "3")]));
}

#[test]
fn a_file_without_metrics_of_a_later_attempt_is_named_once() {
    let place = Place::new();
    let script = "mkdir v$TRAINIT_ATTEMPT; printf \"step,loss\\n$TRAINIT_ATTEMPT,0.5\\n\" >v$TRAINIT_ATTEMPT/m.csv; \
                  [ $TRAINIT_ATTEMPT = 3 ]";
    let run = place.trainer(&["--metric-file", "v1/m.csv"], script);
    let run = run.env("TRAINIT_MAX_RESTARTS", "2").env("TRAINIT_RESTART_BACKOFF", "1ms..1ms");
    let done = run.output().expect_code(0);
    assert_eq!(place.reports("loss"), pairs(&[("0.5", "1")]));
    warns(&done, "v1/m.csv has metrics of an earlier attempt, but none of the attempt that has ended", 1);
}

#[test]
fn a_metric_of_the_output_and_of_a_file_causes_one_warning() {
    let place = Place::new();
    let args = ["--metric", "loss=loss: (\\S+)", "--metric-file", "log"];
    let done = place.trainer(&args, "for i in 1 2 3; do echo loss: 0.$i; echo loss=0.$i >>log; done").output();
    warns(&done.expect_code(0), "the metric \\\"loss\\\" is found in the output and in the file of --metric-file", 1);
}

#[test]
fn an_object_over_several_lines_is_read_whole_or_not_at_all() {
    let place = Place::new();
    let args = ["--metric-file", "state.json"];
    let write = |text: &str| format!("printf '%s\\n' '{text}' >>state.json");
    let whole = "{\n  \"name\": \"acc\",\n  \"value\": 0.5,\n  \"best\": {\n    \"loss\": 0.1\n  },\n  \"step\": 7\n}";
    let done = place.trainer(&args, &write(whole)).output().expect_code(0);
    assert_eq!((place.reports("acc"), place.reports("loss")), (pairs(&[("0.5", "7")]), Vec::new()), "{}", done.err());
    let done = place.trainer(&args, &write("{\n  \"f1\": 0.5,\n  \"loss\": 0.1,\n}")).output().expect_code(0);
    assert_eq!((place.reports("f1"), place.reports("loss")), (Vec::new(), Vec::new()), "{}", done.err());
    warns(&done, "an object of 4 lines in state.json is skipped, and no part of it is reported", 1);
}
