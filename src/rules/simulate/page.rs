//! The report of a simulated job as a page in the style of a run's page. It loads nothing from outside.

use std::time::Duration;

use super::report::{HEADS, ReplicaReport, Report};
use crate::status::html::chart::{Bar, Title, Track, tracks};
use crate::status::html::markup::{Html, html};
use crate::status::html::{lasted, still, table};

impl Report {
    /// The page.
    pub fn page(&self) -> String {
        let mut main = Html::default();
        for (at, line) in self.summary().lines().enumerate() {
            let class = Html::of(if at == 0 && !self.is_good() { " class=\"bad\"" } else { "" });
            html!(main, "<p" {class} ">" {line} "</p>\n");
        }
        self.section(&mut main, "Replicas", "job");
        if let Some(undisturbed) = &self.undisturbed {
            undisturbed.section(&mut main, "The same job without faults", "undisturbed");
        }
        let mut below = Html::default();
        html!(below, "<p class=\"dim\">" {lasted(Duration::from_secs_f64(self.seconds))} "</p>");
        still(&format!("A simulated job on {}", self.platform), &below, &main)
    }

    fn section(&self, main: &mut Html, heading: &'static str, id: &str) {
        let rows: Vec<Track> = self.replicas.iter().map(|replica| self.track(replica)).collect();
        let text = format!("Attempts, commits and faults of {} replicas over {:.1} s", rows.len(), self.seconds);
        let drawing = tracks(&Title { id, title: heading, text: &text }, self.seconds, &rows);
        html!(main, "<h2>" {heading} "</h2>\n<figure class=\"tracks\">" {drawing}
            "<p class=\"dim\">Bars: attempts, red where one failed. Green ticks: commits. Red dots: faults.</p></figure>\n");
        table(main, "The replicas at the end", &HEADS, self.replicas.iter().map(|replica| replica.row().to_vec()));
        if !self.faults.is_empty() {
            let rows = self.faults.iter().map(|fault| {
                let missed = if fault.missed { "missed: it was not running" } else { "" };
                vec![format!("{:.1} s", fault.seconds), fault.kind.to_owned(), fault.replica.clone(), missed.to_owned()]
            });
            table(main, "The faults", &["Time", "Fault", "Replica", ""], rows);
        }
    }

    /// The row of a replica.
    fn track(&self, replica: &ReplicaReport) -> Track {
        let bar = |(number, attempt): (usize, &(f64, f64, bool))| {
            let (from, to, failed) = *attempt;
            Bar { from, to, text: format!("attempt {number}: {from:.1} s to {to:.1} s"), failed }
        };
        let faults = self.faults.iter().filter(|fault| fault.replica == replica.name);
        Track {
            name: replica.name.clone(),
            bars: (1..).zip(&replica.track.attempts).map(bar).collect(),
            ticks: replica.track.commits.iter().map(|at| (*at, format!("commit at {at:.1} s"))).collect(),
            dots: faults
                .map(|fault| (fault.seconds, format!("{} at {:.1} s", fault.kind, fault.seconds), true))
                .collect(),
        }
    }
}
