//! Moves a save that was cut off out of the way, before the trainer starts: what takes the highest number by itself, as
//! Transformers and Accelerate do, would load it, die of it, and have the whole checkpoint before it blamed.

use std::io;

use super::look::walked;
use super::mirror::{Mirror, Resume, beneath, blocking};
use super::nook::turn;
use super::place::set_aside;
use crate::edge::links::Files;
use crate::rules::checkpoint::names::Attempt;
use crate::rules::checkpoint::plan::Age;
use crate::rules::checkpoint::{Candidate, Entry, Found, Scan, recognise, torn};

/// Which unit is looked for.
type Rule = for<'a> fn(&'a Found, &Scan, Age) -> Option<(&'a Candidate, String)>;

/// One that lies in the way.
struct Torn {
    unit: String,
    why: String,
    files: Vec<Entry>,
    paths: Vec<String>,
}

impl Mirror {
    /// To be asked when nobody writes. What cannot be moved is told of, and the trainer is started all the same.
    pub(super) async fn clear_the_way(&self, resume: &Resume) {
        let age = Age { step: resume.step, newest_ns: resume.written_ns };
        let Ok(Some(torn)) = self.torn_after(age, torn::in_the_way).await else { return };
        if self.is_being_written(&torn.files) {
            return;
        }
        let begin = format!("{} is not complete ({}) and newer than {}", torn.unit, torn.why, resume.unit);
        self.note(match self.move_aside(torn).await {
            Ok(aside) => format!(
                "{begin}, which is gone on from: it is kept as {aside}, where no trainer takes it for the newest; delete it when nobody needs it"
            ),
            Err(error) => format!(
                "{begin}, which is gone on from, and cannot be moved away: {error}; a trainer that takes the highest number by itself fails on it; move it out of {}",
                self.config.dir.display()
            ),
        });
    }

    /// Tells of one that was left where it is, as the trainer failed twice: it, not the whole one, may be to blame.
    pub(super) async fn suspect(&self, blamed: &str, age: Age) {
        if let Ok(Some(torn)) = self.torn_after(age, torn::newest).await {
            self.note(format!(
                "the trainer failed twice soon after going on from {blamed}, and {} above it is not complete ({}): one that takes \
                 the highest number by itself fails on that, not on {blamed}; if so, move it out of {}",
                torn.unit,
                torn.why,
                self.config.dir.display()
            ));
        }
    }

    async fn torn_after(&self, resumed: Age, rule: Rule) -> io::Result<Option<Torn>> {
        let (dir, options) = (self.config.dir.clone(), self.config.options.clone());
        blocking(move || {
            let (listing, beneath) = (walked(&dir, &options)?, beneath(&dir)?);
            let peek = Files { beneath: &beneath, listing: &listing };
            let scan = Scan { listing: &listing, peek: &peek, options: &options };
            let Some(found) = recognise(&scan) else { return Ok(None) };
            let torn = rule(&found, &scan, resumed);
            Ok(torn.map(|(unit, why)| Torn {
                unit: unit.unit.clone(),
                why,
                files: unit.files(&listing).cloned().collect(),
                paths: torn::parts(unit, &scan).into_iter().map(str::to_owned).collect(),
            }))
        })
        .await
    }

    /// Returns where the unit is then.
    async fn move_aside(&self, torn: Torn) -> io::Result<String> {
        let dir = beneath(&self.config.dir)?;
        let attempt = self.attempt.as_ref().map_or("local".to_owned(), Attempt::to_string);
        let _turn = turn(&dir).await;
        blocking(move || {
            let mut aside = String::new();
            for path in &torn.paths {
                aside = set_aside(&dir, &attempt, path)?;
            }
            Ok(aside)
        })
        .await
    }
}
