//! What lies in the checkpoint directory, judged unit by unit. For people; commits and restores look for the newest only.

use std::io;

use super::in_place::half;
use super::look::{sought, unreadable, walked};
use super::mirror::{Mirror, MirrorError, blocking};
use crate::edge::beneath::Beneath;
use crate::edge::links::Files;
use crate::rules::checkpoint::{Candidate, Layout, Scan, complete, linked, recognise};

/// What lies in the directory.
#[derive(Debug, Default)]
pub struct Survey {
    /// Every unit, newest first.
    pub units: Vec<Surveyed>,
    /// Where nothing is recognised: as what it was looked for, and where not.
    pub sought: String,
    /// Why there is no directory.
    pub absent: Option<io::Error>,
}

/// A local unit and what the rules say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// What the framework loads, relative to the checkpoint directory.
    pub unit: String,
    /// The training step, where known.
    pub step: Option<u64>,
    /// The layout that recognised it.
    pub framework: &'static str,
    /// What gave it away.
    pub evidence: &'static str,
    /// How many regular files it has.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Why it is not complete; `None` when it is (whether it lies still is for a commit to see).
    pub problem: Option<String>,
}

impl Mirror {
    /// Every local unit; none where there is no directory. Errors: it cannot be read.
    pub async fn survey(&self) -> Result<Survey, MirrorError> {
        self.surveyed().await.map_err(|error| self.no_directory(&error))
    }

    async fn surveyed(&self) -> io::Result<Survey> {
        let (dir, options) = (self.config.dir.clone(), self.config.options.clone());
        blocking(move || {
            let beneath = match Beneath::open(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Survey { absent: Some(error), ..Survey::default() });
                }
                opened => opened?,
            };
            let half = half(&beneath);
            let listing = walked(&dir, &options)?;
            let files = Files { beneath: &beneath, listing: &listing };
            let scan = Scan { listing: &listing, peek: &files, options: &options };
            let Some(found) = recognise(&scan) else {
                return Ok(Survey { sought: sought(&scan), ..Survey::default() });
            };
            let surveyed = |candidate: &Candidate, problem| {
                let (files, bytes) = (candidate.files(&listing).count(), candidate.bytes(&listing));
                let Candidate { unit, step, .. } = candidate.clone();
                let Layout { name: framework, evidence, .. } = found.layout;
                Surveyed { unit, step, framework, evidence, files, bytes, problem }
            };
            let judged = found.candidates.iter().map(|candidate| {
                let is_half = half.contains(&candidate.unit);
                let cut = || "a restore that was cut short may have left it half in place".to_owned();
                let unread = || unreadable(&files, candidate);
                let problem = complete(&found, &scan, candidate).err().or_else(|| is_half.then(cut)).or_else(unread);
                surveyed(candidate, problem)
            });
            let linked = linked::find(&scan, &found.candidates);
            let linked = linked.iter().map(|link| surveyed(link, scan.all_whole(link).err()));
            Ok(Survey { units: judged.chain(linked).collect(), ..Survey::default() })
        })
        .await
    }
}
