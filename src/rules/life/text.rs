//! The report as a person reads it.

use super::report::{CAUSES, Life, Shown};
use crate::text::quantity::short_span as seconds;
use crate::text::safe_text::{counted, printable};

/// The runs that are shown: the newest.
const MOST_RUNS: usize = 30;
/// The hosts that are shown.
const MOST_HOSTS: usize = 10;

/// What a person calls a cause.
fn name(cause: &str) -> &'static str {
    match cause {
        "start" => "before the command",
        "peers" => "waiting for peers",
        "restore" => "restoring",
        "first_step" => "to the first step",
        "repeated" => "repeated steps",
        "training" => "training",
        "commit" => "last commits",
        "stopped" => "stopping",
        _ => "between runs",
    }
}

impl Life {
    /// The report as text. The notes are not part of it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} in {}, {:.1} % training\n\n",
            counted(self.runs.len(), "run"),
            seconds(self.wall_seconds),
            100.0 * self.goodput
        );
        for cause in CAUSES.iter().filter(|cause| self.seconds[*cause] > 0.0) {
            let share = 100.0 * self.seconds[cause] / self.wall_seconds.max(1e-9);
            text.push_str(&format!("  {:<20} {:>9} {share:>6.1} %\n", name(cause), seconds(self.seconds[cause])));
        }
        text.push('\n');
        if self.runs.len() > MOST_RUNS {
            text.push_str(&format!("the newest {MOST_RUNS} runs:\n"));
        }
        text.push_str(
            "  attempt  seat      host                  started               time  steps              end\n",
        );
        self.runs[self.runs.len().saturating_sub(MOST_RUNS)..].iter().for_each(|run| text.push_str(&line(run)));
        text.push('\n');
        text.push_str(&self.faults_text());
        for host in self.hosts.iter().filter(|host| host.suspect).take(MOST_HOSTS) {
            text.push_str(&format!(
                "suspect host: {} had {} in {}, more than its share of the time\n",
                printable(&host.host),
                counted(host.faults as usize, "fault"),
                counted(host.runs as usize, "run")
            ));
        }
        if let Some(advice) = &self.advice {
            text.push_str(&format!("when to save: {}\n", advice.text));
        }
        text
    }

    fn faults_text(&self) -> String {
        if self.faults.count == 0 {
            return "no faults\n".to_owned();
        }
        let reasons: Vec<String> =
            self.faults.by_reason.iter().map(|(reason, count)| format!("{count} {}", printable(reason))).collect();
        let mean = self.faults.mtbf_seconds.map_or(String::new(), |mean| format!(", one in {}", seconds(mean)));
        let steps = [
            ("stopping", self.recovery.stop),
            ("until the next run", self.recovery.between),
            ("restoring", self.recovery.restore),
            ("to the first step", self.recovery.first_step),
        ];
        let means = steps.into_iter().filter_map(|(what, mean)| Some(format!("{what} {}", seconds(mean?))));
        let means: Vec<String> = means.collect();
        format!(
            "{} ({}){mean}; they cost {} of machine time and {}\na recovery on average: {}\n",
            counted(self.faults.count as usize, "fault"),
            reasons.join(", "),
            seconds(self.lost.machine_seconds),
            counted(self.lost.steps as usize, "repeated step"),
            if means.is_empty() { "none yet".to_owned() } else { means.join(", ") }
        )
    }
}

fn line(run: &Shown) -> String {
    let steps = match (run.first_step, run.last_step) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => "none".to_owned(),
    };
    let short = |text: &str, most| -> String { printable(text).chars().take(most).collect() };
    let end = match (&run.ended, run.exit_code) {
        (None, _) => "killed, or still running".to_owned(),
        (_, Some(code)) => format!("{} ({code})", printable(&run.reason)),
        (_, None) => printable(&run.reason),
    };
    format!(
        "  {:>7}  {:<8}  {:<20}  {:<19}  {:>5}  {steps:<17}  {end}\n",
        run.attempt,
        short(&run.seat, 8),
        short(&run.host, 20),
        short(&run.started, 19),
        seconds(run.seconds.values().sum()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::*;

    #[test]
    fn the_text_has_the_shares_the_runs_the_faults_and_the_hosts() {
        let mut runs: Vec<_> = (1..=40)
            .map(|attempt| run(attempt, 1_000 * attempt, &[("training", 60.0), ("start", 3.0)], Some("preempted")))
            .collect();
        runs.iter_mut().skip(30).for_each(|run| run.identity.host = "b\u{1b}[2J".to_owned());
        runs.push(run(41, 41_000, &[("training", 5.0)], None));
        let text = Life::of(runs).expect("runs").text();
        for part in [
            "41 runs in ",
            "between runs",
            "the newest 30 runs",
            "killed, or still running",
            "(1 killed, 40 preempted)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains(" 11  node/0"), "{text}");
    }

    #[test]
    fn a_life_without_a_fault_says_so() {
        let text = Life::of(vec![run(1, 5, &[("training", 60.0)], Some("finished"))]).expect("a run").text();
        assert!(text.contains("no faults") && text.contains("100.0 % training"), "{text}");
    }
}
