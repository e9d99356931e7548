//! Metrics and steps that the trainer reports itself: they reach the status, the page, `/metrics` and the verdict.

use serde_json::Value;

use crate::metrics::report_metric::folder;
use crate::support::{Trainit, binary, eventually};

/// Reports with `trainit report-metric` and with the Python package, then waits for the file `over`.
const TRAINER: &str = r#"
echo socket=$TRAINIT_SOCKET
"$TRAINIT" report-metric acc 0.75 --step 3
python3 -c '
import time, trainit
from trainit.hypertune import HyperTune
trainit.report("f1", 0.5, step=4)
HyperTune().report_hyperparameter_tuning_metric("auc", 0.25, global_step=5)
for n in range(6, 9):
    trainit.step(n, loss=1 / n)
    time.sleep(1.1)
'
while [ ! -e "$DIR/over" ]; do sleep 0.01; done
echo '{"step": 20}' >"$TRAINIT_HEARTBEAT_FILE""#;

#[test]
fn what_the_trainer_reports_reaches_the_status_the_page_and_the_verdict() {
    let (dir, file) = folder();
    let run = Trainit::new(["run", "--status-addr", "127.0.0.1:0", "--", "sh", "-c", TRAINER]);
    let run = run.env("CLOUD_ML_HP_METRIC_FILE", &file).env("DIR", dir.path()).env("TRAINIT", binary());
    let running = run.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python")).start();
    let line = running.after_line("socket=");
    let socket = line.trim().strip_prefix("socket=").unwrap();
    let ask = |args: &[&str]| Trainit::new(["status"]).args(args).env("TRAINIT_SOCKET", socket).output().out();
    let mut status = Value::Null;
    eventually("the last step is known", || {
        status = serde_json::from_str(&ask(&["--json"])).unwrap_or_default();
        status["step"] == 8
    });
    for (tag, value) in [("acc", 0.75), ("f1", 0.5), ("auc", 0.25), ("loss", 1.0 / 7.0)] {
        let reported = status["metrics"][tag].as_f64().unwrap_or_default();
        assert!(tag == "loss" && reported > 0.0 || reported == value, "{tag}: {status}");
    }
    assert!(status["steps_per_second"].as_f64().is_some_and(|pace| pace > 0.0), "{status}");
    let text = ask(&[]);
    assert!(text.contains("\nstep        8 (") && text.contains(" a second)\n"), "{text}");
    let at = running.after_log("the status is at http://");
    let at = at.split("http://").nth(1).and_then(|rest| rest.split(": ").next()).unwrap().parse().unwrap();
    let series = crate::status::page::get(at, "/metrics").1;
    assert!(series.contains("\ntrainit_step 8\n") && series.contains("trainit_metric{tag=\"acc\"} 0.75\n"), "{series}");
    let page = crate::status::page::get(at, "/").1;
    assert!(page.contains("<dt>Step</dt><dd>8 (") && page.contains("auc"), "{page}");
    std::fs::write(dir.path().join("over"), "").unwrap();
    let done = running.finish().expect_code(0);
    let verdict = done.verdict();
    assert_eq!((&verdict["step"], &verdict["metrics"]["f1"]), (&20.into(), &0.5.into()), "{verdict}");
}

#[test]
fn the_last_line_of_text_says_what_a_person_wants_to_know() {
    let (_dir, file) = folder();
    let script = "\"$TRAINIT\" report-metric loss 0.25 --step 7; [ $TRAINIT_ATTEMPT = 2 ]";
    let run = Trainit::new(["run", "--log-format", "text", "--max-restarts", "1", "--restart-backoff", "1ms", "--"]);
    let run = run.args(["sh", "-c", script]).env("TRAINIT", binary()).env("CLOUD_ML_HP_METRIC_FILE", &file);
    let said = run.output().expect_code(0).err();
    let last = said.lines().last().unwrap_or_default();
    for part in ["finished: the command finished with exit code 0; 2 attempts in ", "% training, step 7, loss 0.25"] {
        assert!(last.contains(part), "{last}");
    }
}
