//! `run --metric` and `--metric-filter`: which patterns are accepted, and what they find.

use std::fs;

use super::scraped::{LOSS, trainer, warnings};
use crate::metrics::report_metric::{folder, lines};
use crate::support::Trainit;

#[test]
fn a_progress_bar_and_an_unfinished_line_are_searched() {
    let (_dir, file) = folder();
    let script = "printf '\\r10%%|#   | loss: 0.5\\r20%%|##  | loss: 0.4\\r'; printf '\\033[32mloss: 0.3\\033[0m'";
    let done = trainer(&file, &[LOSS], script).output().expect_code(0);
    let found: Vec<_> = lines(&file).iter().map(|l| l["loss"].clone()).collect();
    assert_eq!(found, ["0.5", "0.4", "0.3"], "{}", done.err());
}

#[test]
fn a_line_without_its_optional_step_has_the_last_step() {
    let (_dir, file) = folder();
    let script = "echo 'step 40 loss 0.5'; echo 'loss 0.25'; echo 'step 50 loss 0.125'";
    let run = trainer(&file, &["loss=(?:step (?<step>\\d+) )?loss (?<value>\\S+)"], script);
    run.output().expect_code(0);
    let found: Vec<_> = lines(&file).iter().map(|l| (l["global_step"].clone(), l["loss"].clone())).collect();
    let expected = [("40", "0.5"), ("40", "0.25"), ("50", "0.125")].map(|(step, loss)| (step.into(), loss.into()));
    assert_eq!(found, expected);
}

#[test]
fn patterns_come_from_the_configuration_file_in_sagemakers_and_katibs_form() {
    let (dir, file) = folder();
    let config = dir.path().join("config.toml");
    let text = r##"
        metric = ["loss=loss: ([0-9.]+)", { Name = "validation:rmse", Regex = "#011validation-rmse:([0-9.]+)" }]
        metric-filter = ['([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)']
        report = ["validation:rmse", "accuracy"]
    "##;
    fs::write(&config, text).unwrap();
    let script = "echo loss: 0.5; echo '[3]#011validation-rmse:0.25'; echo 'epoch=1 accuracy=0.75 trial=9'";
    let done = trainer(&file, &[], script).env("TRAINIT_CONFIG", &config).output().expect_code(0);
    let found = lines(&file);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0]["validation:rmse"] == "0.25" && found[1]["accuracy"] == "0.75", "{found:?}");
    let metrics = &done.verdict()["metrics"];
    assert!(metrics["loss"] == 0.5 && metrics["epoch"] == 1.0, "{metrics}");

    let done = trainer(&file, &[LOSS], "echo started").env("TRAINIT_REPORT", "los").output().expect_code(125);
    assert!(done.err().contains("did you mean loss?"), "{}", done.err());
}

#[test]
fn katibs_own_filter_and_the_list_of_a_sagemaker_job_are_accepted_unchanged() {
    let (_dir, file) = folder();
    let list = r#"[{"Name": "loss", "Regex": "loss: (\\S+)"}, {"Name": "f1", "Regex": "{f1: (?P<value>[0-9.]+)}\\Z"}]"#;
    let filter = r"{metricName: ([\w|-]+), metricValue: ((-?\d+)(\.\d+)?)}";
    let script = "echo loss: 0.5; echo '{f1: 0.75}'; echo '{metricName: val-acc, metricValue: 0.25}'";
    let done = trainer(&file, &[list], script).env("TRAINIT_METRIC_FILTER", filter).output().expect_code(0);
    let metrics = &done.verdict()["metrics"];
    assert!(metrics["loss"] == 0.5 && metrics["f1"] == 0.75 && metrics["val-acc"] == 0.25, "{metrics}");
    assert_eq!(lines(&file).len(), 3);

    let done = trainer(&file, &["my loss=loss: (\\S+)"], "printf 'loss: 0.5'").output().expect_code(0);
    assert_eq!(warnings(&done, "the tag \\\"my loss\\\" has white space"), 1, "{}", done.err());

    let done = trainer(&file, &["loss=(?<=loss: )(\\S+)"], "echo started").output().expect_code(125);
    assert!(done.err().contains("look-around, which is not supported"), "{}", done.err());
}

#[test]
fn every_bad_pattern_is_named_before_anything_starts() {
    let (_dir, file) = folder();
    let done = trainer(&file, &["loss", "acc=(", "trial=(x)"], "echo started").output().expect_code(125);
    assert!(done.out().is_empty());
    for reason in ["expected TAG=REGEX", "unclosed group", "choose another tag"] {
        assert!(done.err().contains(reason) && done.err().contains("--metric"), "{reason}: {}", done.err());
    }
}

#[test]
fn a_metric_that_was_never_found_is_named_at_the_end() {
    let (dir, file) = folder();
    let patterns = [LOSS, "acc=acc: (\\S+)"];
    let missed = |run: Trainit| {
        let done = run.output();
        let named = "no value of acc was found, so the metrics file has none; found were loss; ";
        (warnings(&done, "no metric was found"), warnings(&done, named))
    };
    assert_eq!(missed(trainer(&file, &patterns, "echo Loss 0.5")), (1, 0));
    assert_eq!(missed(trainer(&file, &patterns, "echo loss: 0.5")), (0, 1));
    assert_eq!(missed(trainer(&file, &patterns, "echo loss: 0.5 acc: 0.75")), (0, 0));
    assert_eq!(missed(trainer(&file, &patterns, "exit 3")), (0, 0), "why is plain to see");
    let unnamed = |source: &str| {
        let found = dir.path().join("found");
        trainer(&file, &[], "echo step loss >\"$FOUND\"; echo 1 0.5 >>\"$FOUND\"")
            .env("FOUND", &found)
            .env(source, &found)
    };
    assert_eq!(missed(unnamed("TRAINIT_METRIC_FILE")), (1, 0));
    assert_eq!(missed(trainer(&file, &[], "true").env("TRAINIT_TENSORBOARD_DIR", dir.path())), (1, 0));
    assert_eq!(missed(trainer(&file, &[], "true")), (0, 0), "nothing was asked for");
}

#[test]
fn a_non_finite_value_is_found_by_a_pattern_of_digits_and_causes_one_warning() {
    let (_dir, file) = folder();
    let filter = r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)";
    let script = "echo loss: 0.5; echo loss: NaN; echo loss: -inf; echo f1=nan";
    let done = trainer(&file, &[LOSS], script).env("TRAINIT_METRIC_FILTER", filter).output().expect_code(0);
    let found: Vec<_> = lines(&file).iter().map(|l| l.get("loss").or(l.get("f1")).cloned().unwrap()).collect();
    assert_eq!(found, ["0.5", "nan", "-inf", "nan"], "{}", done.err());
    assert_eq!(warnings(&done, "the training may have diverged"), 1, "{}", done.err());
}

#[test]
fn punctuation_around_a_number_is_ignored_and_an_invalid_value_is_reported_once() {
    let (_dir, file) = folder();
    let script =
        "echo 'loss: 0.5, acc: (93.2%) f1: np.float64(0.25)'; echo loss: n/a; echo loss: 1,234; echo device=cuda";
    let patterns = ["loss=loss: (\\S+)", "acc=acc: (\\S+)", "f1=f1: (\\S+)"];
    let done = trainer(&file, &patterns, script).env("TRAINIT_METRIC_FILTER", "(\\w+)=(\\S+)").output().expect_code(0);
    let metrics = done.verdict()["metrics"].clone();
    assert_eq!(metrics, serde_json::json!({"loss": 0.5, "acc": 93.2, "f1": 0.25}));
    assert_eq!(warnings(&done, "the metric loss: the value \\\"n/a\\\""), 1, "{}", done.err());
    assert_eq!(warnings(&done, "the metric device: the value \\\"cuda\\\""), 1, "{}", done.err());
    assert_eq!(warnings(&done, "1,234"), 0, "{}", done.err());

    let done = trainer(&file, &["lr=lr: ([0-9.]+)"], "echo lr: 1e-05").output().expect_code(0);
    assert_eq!(warnings(&done, "matches only \\\"1\\\" of a longer number"), 1, "{}", done.err());
}

#[test]
fn the_step_follows_the_given_name() {
    let (_dir, file) = folder();
    let script = "echo 'Epoch 3/10'; echo 'loss: 0.5'; echo '[epoch=4] loss: 0.25'; echo 'acc at=7: 1'";
    let patterns = [LOSS, "acc=acc at=(?<step>\\d+): (?<value>\\d)"];
    let run = trainer(&file, &patterns, script).env("TRAINIT_METRIC_STEP", "epoch");
    run.env("TRAINIT_METRIC_FILTER", "(epoch)=(\\d+)").output().expect_code(0);
    let found: Vec<_> = lines(&file).iter().map(|l| l["global_step"].clone()).collect();
    assert_eq!(found, ["3", "4", "7"], "the name of the step is no metric");
}

#[test]
fn both_streams_of_a_process_have_one_last_step() {
    let (_dir, file) = folder();
    let steps = |args: &[&str]| -> Vec<String> {
        let _ = fs::remove_file(&file);
        // The order of the two streams is unknown, so the loss is repeated.
        let script = "echo step 7 >&2; for i in 1 2 3 4 5 6 7 8 9; do echo loss: 0.5; sleep 0.1; done";
        let run = Trainit::new(["run", "--metric", LOSS, "--metric-step", "step"])
            .args(args)
            .args(["--", "sh", "-c", script]);
        run.env("CLOUD_ML_HP_METRIC_FILE", &file).output().expect_code(0);
        lines(&file).iter().map(|line| line["global_step"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(steps(&[])[8], "7");
    assert_eq!(steps(&["--nproc", "2", "--metric-rank", "all"])[16..], ["7", "7"]);
}
