//! The report of a simulated job as a page in the style of a run's page. It loads nothing from outside.

use std::fmt::Write as _;
use std::time::Duration;

use super::report::{HEADS, ReplicaReport, Report};
use crate::status::html::{escaped, lasted, static_page, table};

/// The width of the drawing, of the names in it, and the height of a row.
const WIDTH: f64 = 1000.0;
const NAMES: f64 = 110.0;
const ROW: f64 = 30.0;
/// Labels of the time axis, at most.
const LABELS: f64 = 8.0;

impl Report {
    /// The page.
    pub fn page(&self) -> String {
        let mut main = String::new();
        let class = if self.is_good() { "" } else { " class=\"bad\"" };
        for (at, line) in self.summary().lines().enumerate() {
            let class = if at == 0 { class } else { "" };
            let _ = writeln!(main, "<p{class}>{}</p>", escaped(line));
        }
        self.section(&mut main, "Replicas");
        if let Some(undisturbed) = &self.undisturbed {
            undisturbed.section(&mut main, "The same job without faults");
        }
        let heading = escaped(&format!("A simulated job on {}", self.platform));
        static_page(&heading, &format!("<p class=\"dim\">{}</p>", lasted(Duration::from_secs_f64(self.seconds))), &main)
    }

    fn section(&self, main: &mut String, heading: &str) {
        let _ = writeln!(main, "<h2>{heading}</h2>");
        self.drawing(main);
        let rows = self.replicas.iter().map(|replica| replica.row().iter().map(|cell| escaped(cell)).collect());
        table(main, "The replicas at the end", &HEADS, rows);
        if !self.faults.is_empty() {
            let rows = self.faults.iter().map(|fault| {
                let missed = if fault.missed { "missed: it was not running" } else { "" };
                vec![
                    format!("{:.1} s", fault.seconds),
                    fault.kind.to_owned(),
                    escaped(&fault.replica),
                    missed.to_owned(),
                ]
            });
            table(main, "The faults", &["Time", "Fault", "Replica", ""], rows);
        }
    }

    /// One row for each replica over the time of the job: attempts as bars, commits as ticks, faults as dots.
    fn drawing(&self, main: &mut String) {
        let height = ROW * (self.replicas.len() as f64 + 1.0);
        let place = |seconds: f64| NAMES + (WIDTH - NAMES - 20.0) * (seconds / self.seconds.max(1e-3)).clamp(0.0, 1.0);
        let _ = writeln!(
            main,
            "<figure class=\"tracks\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Attempts, commits and faults \
             of each replica over {} seconds\">",
            self.seconds
        );
        let step = axis_step(self.seconds);
        for at in (0..).map(|n| f64::from(n) * step).take_while(|at| *at <= self.seconds) {
            let (x, bottom) = (place(at), height - ROW);
            let _ = writeln!(
                main,
                "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{bottom}\"/><text x=\"{x:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{at} s</text>",
                height - 10.0
            );
        }
        for (number, replica) in self.replicas.iter().enumerate() {
            self.track(main, replica, ROW * (number as f64 + 0.5), &place);
        }
        main.push_str("</svg><p class=\"dim\">Bars: attempts. Green ticks: commits. Red dots: faults.</p></figure>\n");
    }

    fn track(&self, main: &mut String, replica: &ReplicaReport, y: f64, place: &dyn Fn(f64) -> f64) {
        let name = escaped(&replica.name);
        let _ = writeln!(main, "<g data-replica=\"{name}\"><text x=\"4\" y=\"{:.1}\">{name}</text>", y + 5.0);
        for (number, (from, to)) in (1..).zip(&replica.track.attempts) {
            let (x, width) = (place(*from), (place(*to) - place(*from)).max(1.0));
            let _ = writeln!(
                main,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"#00000{}\"><title>attempt {number}: \
                 {from:.1} s to {to:.1} s</title></rect>",
                y - 6.0,
                2 - number % 2
            );
        }
        for at in &replica.track.commits {
            let _ = writeln!(
                main,
                "<rect class=\"done\" x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"22\"><title>commit at {at:.1} s</title></rect>",
                place(*at) - 1.5,
                y - 11.0
            );
        }
        for fault in self.faults.iter().filter(|fault| fault.replica == replica.name) {
            let _ = writeln!(
                main,
                "<circle class=\"fault\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"6\"><title>{} at {:.1} s</title></circle>",
                place(fault.seconds),
                fault.kind,
                fault.seconds
            );
        }
        main.push_str("</g>\n");
    }
}

/// The distance of the labels of the time axis: a round number of seconds.
fn axis_step(seconds: f64) -> f64 {
    let raw = seconds.max(1e-3) / LABELS;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= raw).unwrap_or(raw)
}
