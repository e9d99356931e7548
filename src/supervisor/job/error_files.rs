//! The files in which the main children leave their last error.

use std::path::Path;

use crate::edge::fs::run_dir::ERROR;
use crate::edge::fs::{small_file, trusted_open};
use crate::rules::job::trainer_error::{self, VARIABLE};
use crate::rules::process::env::{Changes, Env};

/// PyTorch writes the whole traceback.
const LONGEST: usize = 1 << 20;

/// The path of each main child's file.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct ErrorFiles(Vec<String>);

impl ErrorFiles {
    /// Files beside the heartbeat, which the trainer's user may write. A variable that is set already is kept, and its file
    /// is not read: it belongs to another process.
    pub(in crate::supervisor) fn set(heartbeat: Option<&str>, env: &Env, changes: &mut [Changes]) -> ErrorFiles {
        let Some(folder) = heartbeat.map(Path::new).and_then(Path::parent).filter(|_| env.given(VARIABLE).is_none())
        else {
            return ErrorFiles::default();
        };
        let path = |rank: usize| folder.join(format!("{ERROR}{rank}")).to_string_lossy().into_owned();
        let paths: Vec<String> = (0..changes.len()).map(path).collect();
        changes.iter_mut().zip(&paths).for_each(|(changes, path)| changes.set(VARIABLE, path.clone()));
        ErrorFiles(paths)
    }

    /// Before an attempt: removes the errors of the previous one.
    pub(in crate::supervisor) fn begin(&self) {
        self.0.iter().for_each(|path| drop(trusted_open::remove_file(Path::new(path))));
    }

    /// What this child has written, as a clause for the verdict.
    pub(in crate::supervisor) fn clue(&self, local_rank: usize) -> Option<String> {
        let text = small_file::read_small_itself(self.0.get(local_rank)?, LONGEST).ok()??;
        trainer_error::clue(&text)
    }
}
