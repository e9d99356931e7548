//! The sources that a run searches for metrics, and the names found there, for the warning about missing metrics.
//!
//! Deliberately absent: the content of lines, which may hold secrets.

use std::collections::BTreeSet;

use crate::metric::files::records::Counts;
use crate::metric::output::searched::Searched;
use crate::metric::report::line::shown;
use crate::text::safe_text::{counted, named};

/// The limit for tags of event files that are named.
const TAGS: usize = 10;

/// All sources; `None` for a source that is not used.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The trainer's output.
    pub output: Option<Output>,
    /// The file with records.
    pub file: Option<Records>,
    /// TensorBoard's event files.
    pub events: Option<Events>,
}

/// The trainer's output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Output {
    /// The number of searched lines, up to [`crate::metric::output::scrape::MOST_LINES`].
    pub lines: u64,
    /// The searched processes and their total number, if there are several.
    pub of: Option<(Searched, u32)>,
}

/// A file with records.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Its name.
    pub shown: String,
    /// It existed at some time.
    pub exists: bool,
    /// The number of lines that could be read.
    pub counts: Counts,
}

/// Event files.
#[derive(Debug, Clone, Default)]
pub struct Events {
    /// The name of their directory.
    pub shown: String,
    /// The number of event files, including those from before the run.
    pub files: usize,
    /// Some of the tags of this run's scalars, selected or not.
    tags: BTreeSet<String>,
    /// The number of this run's scalars.
    scalars: u64,
}

impl Events {
    /// The event files of a directory with this name, before the first search.
    pub fn new(shown: String) -> Events {
        Events { shown, ..Events::default() }
    }

    /// Records a scalar in an event file of this directory (relative, empty for the top).
    pub fn note(&mut self, directory: &str, tag: &str) {
        self.scalars += 1;
        if self.tags.len() <= TAGS {
            let name = if directory.is_empty() { tag.to_owned() } else { format!("{directory}/{tag}") };
            self.tags.insert(shown(&name));
        }
    }
}

impl Sources {
    /// The content of each source, as clauses; empty without sources.
    pub fn summary(&self) -> String {
        let output = self.output.map(Output::summary);
        let places = [output, self.file.as_ref().map(Records::summary), self.events.as_ref().map(Events::summary)];
        places.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// The same for files without a measurement; `None` if there is no such file.
    pub fn without_metrics(&self) -> Option<String> {
        let file = self.file.as_ref().filter(|file| file.counts.understood == 0).map(Records::summary);
        let events = self.events.as_ref().filter(|events| events.tags.is_empty()).map(Events::summary);
        let places: Vec<String> = file.into_iter().chain(events).collect();
        (!places.is_empty()).then(|| places.join("; "))
    }

    /// Warnings about files that had metrics at the end of the attempt `before`, and no more since then.
    pub fn without_new_metrics(&self, before: &Sources) -> Vec<String> {
        let file = |sources: &Sources| sources.file.as_ref().map(|file| (file.shown.clone(), file.counts.understood));
        let events = |sources: &Sources| sources.events.as_ref().map(|events| (events.shown.clone(), events.scalars));
        let now = [file(self), events(self)];
        let unchanged = now.into_iter().zip([file(before), events(before)]).filter(|(now, before)| now == before);
        let with_metrics = unchanged.filter_map(|(now, _)| now).filter(|(_, count)| *count > 0);
        let warning = |(shown, _): (String, u64)| {
            format!(
                "{shown} has metrics of an earlier attempt, but none of the attempt that has ended, so those are missing in \
                 the reports if that attempt wrote to another place, such as version_1 after version_0; let each attempt \
                 write to the same place"
            )
        };
        with_metrics.map(warning).collect()
    }
}

impl Output {
    fn summary(self) -> String {
        let lines = match self.lines {
            0 => "no line".to_owned(),
            many if many >= crate::metric::output::scrape::MOST_LINES => {
                format!("more than {} lines", crate::metric::output::scrape::MOST_LINES)
            }
            lines => count_of(lines),
        };
        let of = match self.of {
            None => String::new(),
            Some((Searched::All, count)) => format!(" of all {count} local ranks"),
            Some((searched, count)) => format!(
                " of {} (without the other {} of this node, see --metric-rank)",
                searched.shown(count),
                counted(count.saturating_sub(1) as usize, "rank")
            ),
        };
        format!("the output{of} had {lines}")
    }
}

impl Records {
    fn summary(&self) -> String {
        let (shown, Counts { lines, understood }) = (&self.shown, self.counts);
        match (self.exists, lines, understood) {
            (false, ..) => format!("{shown} never existed"),
            (true, 0, _) => format!("nothing was written to {shown}"),
            (_, _, 0) => format!(
                "none of {} of {shown} had a metric in a supported form: name=value, name: value, a JSON object, or a \
                 table (CSV) with a header",
                count_of(lines)
            ),
            _ => format!("{understood} of {} of {shown} had a metric", count_of(lines)),
        }
    }
}

impl Events {
    fn summary(&self) -> String {
        let shown = &self.shown;
        match (self.files, named(self.tags.iter().cloned(), TAGS)) {
            (0, _) => format!("there is no event file in {shown}"),
            (files, None) => format!("no scalar was written to the {} in {shown}", counted(files, "event file")),
            (_, Some(tags)) => format!("the event files in {shown} have {tags}"),
        }
    }
}

fn count_of(lines: u64) -> String {
    counted(usize::try_from(lines).unwrap_or(usize::MAX), "line")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(exists: bool, lines: u64, understood: u64) -> Sources {
        let counts = Counts { lines, understood };
        Sources { file: Some(Records { shown: "log".into(), exists, counts }), ..Sources::default() }
    }

    fn events(files: usize, tags: usize) -> Sources {
        let mut events = Events { shown: "logs".into(), files, ..Events::default() };
        (0..tags).for_each(|n| events.note("a", &format!("t{n:03}")));
        Sources { events: Some(events), ..Sources::default() }
    }

    #[test]
    fn the_summary_describes_a_file() {
        assert_eq!(file(false, 0, 0).summary(), "log never existed");
        assert_eq!(file(true, 0, 0).summary(), "nothing was written to log");
        assert!(file(true, 7, 0).summary().starts_with("none of 7 lines of log had a metric in a supported form"));
        assert_eq!(file(true, 7, 3).summary(), "3 of 7 lines of log had a metric");
        assert_eq!((file(true, 7, 1).without_metrics(), file(true, 7, 0).without_metrics().is_some()), (None, true));
    }

    #[test]
    fn a_file_whose_metrics_stopped_with_an_attempt_is_named() {
        let warnings = |now: &Sources, before: &Sources| now.without_new_metrics(before).len();
        assert_eq!(warnings(&file(true, 7, 3), &file(true, 7, 3)), 1);
        assert_eq!(warnings(&file(true, 9, 4), &file(true, 7, 3)), 0, "there are more");
        assert_eq!(warnings(&file(true, 9, 0), &file(true, 7, 0)), 0, "there were none");
        assert_eq!(warnings(&file(true, 7, 3), &Sources::default()), 0, "the first attempt");
        assert_eq!(warnings(&events(1, 2), &events(1, 2)), 1);
        assert_eq!(warnings(&events(1, 3), &events(1, 2)), 0);
    }

    #[test]
    fn at_most_ten_tags_are_named() {
        assert_eq!(events(0, 0).summary(), "there is no event file in logs");
        assert_eq!(events(2, 0).summary(), "no scalar was written to the 2 event files in logs");
        assert_eq!(events(1, 2).summary(), "the event files in logs have a/t000, a/t001");
        assert!(events(1, 5000).summary().ends_with("a/t008, a/t009, ..."));
    }

    #[test]
    fn the_summary_names_the_ranks_that_were_not_searched() {
        let summary = |searched| {
            let output = Output { lines: 3, of: Some((searched, 4)) };
            Sources { output: Some(output), ..Sources::default() }.summary()
        };
        assert!(
            summary(Searched::First)
                .contains("of local rank 0 (without the other 3 ranks of this node, see --metric-rank)")
        );
        assert!(summary(Searched::All).contains("all 4 local ranks"));
        let alone = Sources { output: Some(Output::default()), ..file(false, 0, 0) };
        assert_eq!(alone.summary(), "the output had no line; log never existed");
    }
}
