//! What is said where nothing was restored, and what to do about it.

use std::io;

use super::look::Look;
use super::mirror::{Mirror, MirrorError};
use super::restore::{NAMED, Which};
use super::retention::commits;
use crate::edge::limits;
use crate::rules::exit;
use crate::rules::plain::named;

/// What lies where [`libc::ENOTDIR`] came from, and what to do about it.
pub(super) const IN_THE_WAY: &str = "a file or a symbolic link lies where a directory must be (the directory itself, .trainit, or a part of the checkpoint's path); move it away";

impl Mirror {
    /// What must be restored is not there.
    pub(super) async fn nothing_there(&self, step: Option<u64>, look: &Look) -> MirrorError {
        let what = step.map_or("no complete checkpoint".to_owned(), |s| format!("no complete checkpoint of step {s}"));
        let place = self.config.store.as_ref().map_or(String::new(), |s| format!(" or {s}"));
        let names = match &self.store {
            Some(store) if step.is_some() => commits(store).await.unwrap_or_default(),
            _ => Vec::new(),
        };
        // The name says 0 of one without a step, too.
        let others = names.iter().map(|name| name.step).filter(|other| Some(*other) != step);
        let told = |step: u64| if step == 0 { "0 (or without a step)".to_owned() } else { step.to_string() };
        let way_out = match (step, named(others.map(told), NAMED)) {
            (None, _) if self.is_by_hand() => "see that this is the store that the run was given".to_owned(),
            (None, _) => "--restore latest would start from scratch".to_owned(),
            (Some(_), None) => "without --restore-step the newest is taken, if there is any".to_owned(),
            (Some(_), Some(others)) => format!("committed are {others}"),
        };
        let dir = self.config.dir.display();
        let why =
            look.passed.first().filter(|_| look.layout.is_some()).map_or(String::new(), |why| format!(" ({why})"));
        MirrorError::store(format!("there is {what} in {dir}{place}{why}; {}; {way_out}", self.nothing_done()))
    }

    /// Something may not be moved from where the restore puts the path, or to there.
    pub(super) fn unmovable(&self, path: &str, error: &io::Error) -> MirrorError {
        let mut unusable = self.unusable(error);
        if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            unusable.message = format!(
                "cannot restore {path} into the checkpoint directory {}: {error}; {}; this user must be allowed to rename {path} there",
                self.config.dir.display(),
                self.nothing_done()
            );
        }
        unusable
    }

    /// The checkpoint directory cannot be used as a restore must.
    pub(super) fn unusable(&self, error: &io::Error) -> MirrorError {
        let way_out = match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => IN_THE_WAY,
            Some(libc::ENAMETOOLONG) => "give it a shorter name",
            Some(libc::ENOSPC | libc::EDQUOT) => "free space there",
            Some(libc::EXDEV) => {
                "something is mounted within it, and nothing is put in place across a mount; name that as the checkpoint directory"
            }
            Some(libc::EBUSY) => {
                "something is mounted at a checkpoint's own path within it, and what is mounted is not moved: unmount it, or mount the directory itself"
            }
            Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT) => "it must be there for this user to write",
            _ => limits::way_out(error, "see that its disk is sound"),
        };
        let dir = self.config.dir.display();
        let message =
            format!("cannot restore into the checkpoint directory {dir}: {error}; {}; {way_out}", self.nothing_done());
        // A run has tried it out before it claimed its attempt.
        let is_refused = matches!(
            error.raw_os_error(),
            Some(libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EACCES | libc::EPERM | libc::EROFS)
        );
        let code = if is_refused && self.attempt.is_none() { exit::NOT_STARTED } else { exit::STORE };
        MirrorError { message, code }
    }

    /// There are commits and none that can be restored, or there were some.
    pub(super) fn none_good(&self, which: Which, tried: usize, why: Option<&String>) -> MirrorError {
        let place = self.config.store.as_ref().map_or(String::new(), ToString::to_string);
        let Some(why) = why else {
            return MirrorError::store(format!(
                "the commits of this run are gone from {place}, and nothing lies in {} to go on from; nothing was started; find out who deleted them, or start again, from scratch",
                self.config.dir.display()
            ));
        };
        let (which, way_out) = match which {
            Which::First(Some(step)) => (
                format!("no commit of step {step}"),
                "give another --restore-step, or none for the newest that can be restored",
            ),
            _ if self.is_by_hand() => (format!("none of the {tried} commits"), "repair the store"),
            _ => {
                (format!("none of the {tried} commits"), "repair the store, or start from scratch with --restore none")
            }
        };
        let nothing = self.nothing_done();
        MirrorError::store(format!(
            "{which} in {place} can be restored (the newest: {why}); {nothing}; trainit checkpoint verify says what each lacks; {way_out}"
        ))
    }
}
