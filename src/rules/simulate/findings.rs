//! What was asked for and did not happen: faults, steps, verdicts, equal results, resumes.

use serde_json::Value;

use super::fault::{Fault, When};
use super::machine::{FaultRecord, Outcome, Simulation};
use super::report::{ReplicaReport, Report};
use super::seats::name;

/// The least difference of two results that counts.
const NOISE: f64 = 1e-9;

/// The findings of a job that is over. A job that the user has interrupted has none.
pub(super) fn of(simulation: &Simulation) -> Vec<String> {
    if matches!(simulation.outcome(), Some(Outcome::Interrupted(_))) {
        return Vec::new();
    }
    let (plan, replicas) = (simulation.plan(), simulation.replicas());
    let records = simulation.fault_records();
    let asked = records.iter().filter(|record| !record.fault.is_random);
    let mut found: Vec<String> = asked.filter_map(|record| absent(simulation, record)).collect();
    let random: Vec<_> = records.iter().filter(|record| record.fault.is_random).collect();
    if !random.is_empty() && random.iter().all(|record| record.at.is_none() || record.is_missed) {
        found.push("no random fault happened before the job ended; give a higher rate, or a longer job".to_owned());
    }
    for (seat, replica) in plan.seats.iter().zip(replicas) {
        if replica.lives.last().is_some_and(|life| !life.has_verdict) {
            let name = name(*seat);
            found.push(match replica.verdicts.is_empty() {
                true => format!("{name} has no verdict: let its command start trainit run"),
                false => format!("{name} has no verdict of its last life, which ended without trainit's last line"),
            });
        }
    }
    if replicas.iter().all(|replica| replica.step.is_none()) {
        found.push("no replica reported a step, in a line such as step=12 loss=0.5".to_owned());
    }
    found
}

/// Why a fault did not happen, if it did not.
fn absent(simulation: &Simulation, record: &FaultRecord) -> Option<String> {
    let Fault { kind, when, replica: at, .. } = record.fault;
    let name = name(simulation.plan().seats[at]);
    let why = match (record.at, when, simulation.replicas()[at].step) {
        (Some(_), ..) if record.is_missed => format!("{name} was not running"),
        (Some(_), ..) => return None,
        (None, When::Step(_), Some(step)) => format!("{name} reached only step {step}"),
        (None, When::Step(_), None) => format!("{name} reported no step"),
        (None, When::At(_), _) => "the job had ended before".to_owned(),
    };
    Some(format!("{} of {name} at {when} did not happen: {why}", kind.word()))
}

impl Report {
    /// Adds the same job without faults, and names the results that differ by more than this share.
    pub fn compare_with(&mut self, undisturbed: Report, tolerance: f64) {
        if self.signal.is_none() && undisturbed.signal.is_none() {
            self.problems.extend(different(self, &undisturbed, tolerance));
        }
        self.undisturbed = Some(Box::new(undisturbed));
    }

    /// Names each replica that lost its disk and did not resume above step 0.
    pub fn expect_resume(&mut self) {
        let lost: Vec<&ReplicaReport> = self.replicas.iter().filter(|of| !of.resumed_steps.is_empty()).collect();
        let mut found: Vec<String> = Vec::new();
        for replica in &lost {
            let again = replica.resumed_steps.iter().filter(|step| step.is_none_or(|step| step == 0)).count();
            if again > 0 {
                found.push(format!("{} lost its disk and started from the beginning", replica.name));
            }
        }
        if lost.is_empty() {
            found.push("no replica lost its disk, so none could resume; add a --preempt or --kill".to_owned());
        }
        self.problems.extend(found);
    }
}

/// The results that differ. Only replicas that finished in both jobs have results: a platform stops the others when the
/// chief has finished.
fn different(disturbed: &Report, undisturbed: &Report, tolerance: f64) -> Vec<String> {
    let mut found: Vec<String> =
        undisturbed.why.iter().map(|why| format!("the job without faults did not succeed: {why}")).collect();
    found.extend(undisturbed.problems.iter().map(|problem| format!("in the job without faults, {problem}")));
    let mut compared = 0;
    for (one, other) in disturbed.replicas.iter().zip(&undisturbed.replicas) {
        if one.exits.last() != Some(&0) || other.exits.last() != Some(&0) {
            continue;
        }
        let (results, others) = (results(one), results(other));
        compared += results.len();
        for (what, value) in &results {
            let equal = others.iter().find(|(name, _)| name == what).map(|(_, other)| (other, *value - other));
            let is_equal = |other: f64, by: f64| by.abs() <= tolerance * value.abs().max(other.abs()) + NOISE;
            match equal {
                Some((other, by)) if !is_equal(*other, by) => {
                    found.push(format!("{} ended with {what} {value}, and with {other} without faults", one.name));
                }
                Some(_) => {}
                None => found.push(format!("{} reported {what} only in the job with faults", one.name)),
            }
        }
        let missing = others.iter().filter(|(name, _)| !results.iter().any(|(what, _)| what == name));
        found.extend(missing.map(|(what, _)| format!("{} reported {what} only in the job without faults", one.name)));
    }
    if compared == 0 && found.is_empty() {
        found.push("no replica finished both jobs with a step or a metric, so nothing was compared".to_owned());
    }
    found
}

/// The results of a replica: its step, its loss, and the metrics of its verdict.
fn results(replica: &ReplicaReport) -> Vec<(String, f64)> {
    let metrics = replica.verdicts.last().and_then(|verdict| verdict.get("metrics")?.as_object());
    let metrics = metrics.into_iter().flatten().filter_map(|(tag, value)| Some((tag.clone(), Value::as_f64(value)?)));
    let mut all: Vec<(String, f64)> = replica.step.map(|step| ("step".to_owned(), step as f64)).into_iter().collect();
    all.extend(replica.loss.map(|loss| ("loss".to_owned(), loss)));
    all.extend(metrics.filter(|(tag, _)| tag != "loss" && tag != "step"));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(loss: f64, resumed_steps: Vec<Option<u64>>, metrics: Value) -> Report {
        let replica = ReplicaReport {
            name: "chief".into(),
            exits: vec![0],
            step: Some(9),
            loss: Some(loss),
            resumed_steps,
            verdicts: vec![json!({ "metrics": metrics })],
            ..ReplicaReport::default()
        };
        Report { succeeded: true, replicas: vec![replica], ..Report::default() }
    }

    fn compared(loss: f64, metrics: Value) -> String {
        let mut one = report(0.5, Vec::new(), json!({ "acc": 0.9 }));
        one.compare_with(report(loss, Vec::new(), metrics), 0.01);
        one.problems.join("; ")
    }

    #[test]
    fn results_that_differ_by_more_than_the_tolerance_are_named() {
        assert_eq!(compared(0.504, json!({ "acc": 0.9 })), "");
        assert_eq!(compared(0.6, json!({ "acc": 0.9 })), "chief ended with loss 0.5, and with 0.6 without faults");
        assert!(compared(0.5, json!({ "acc": 0.7 })).contains("acc 0.9, and with 0.7"));
        assert!(compared(0.5, json!({})).contains("acc only in the job with faults"));
        assert!(compared(0.5, json!({ "acc": 0.9, "f1": 1 })).contains("f1 only in the job without faults"));
    }

    #[test]
    fn a_replica_that_lost_its_disk_must_resume_above_step_0() {
        let expected = |steps: Vec<Option<u64>>| {
            let mut report = report(0.5, steps, json!({}));
            report.expect_resume();
            report.problems.join("; ")
        };
        assert_eq!(expected(vec![Some(5)]), "");
        for steps in [vec![Some(5), None], vec![Some(0)]] {
            assert_eq!(expected(steps), "chief lost its disk and started from the beginning");
        }
        assert!(expected(Vec::new()).contains("no replica lost its disk"));
    }
}
