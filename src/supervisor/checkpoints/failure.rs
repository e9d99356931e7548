//! An operation that failed: the reason, the exit code and the way out.

use std::io;
use std::path::Path;

use crate::edge::host::limits;
use crate::edge::store::{StoreError, Trouble};
use crate::rules::process::exit;
use crate::rules::store::names::Attempt;
use crate::supervisor::checkpoints::config::{Config, Role};

/// The cause of [`libc::ENOTDIR`], and what to do about it.
pub(crate) const IN_THE_WAY: &str = "a file or a symbolic link lies where a directory must be (the directory itself, .trainit, or a part of the checkpoint's path); move it away";

/// An error of the mirror, with its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// One line: what, where, why it matters, what to do.
    pub message: String,
    /// [`exit::NOT_STARTED`], [`exit::STORE`] or [`exit::FENCED`].
    pub code: u8,
}

impl Failure {
    pub(crate) fn store(message: String) -> Failure {
        Failure { message, code: exit::STORE }
    }

    /// For a subcommand, such as `checkpoint list`.
    pub fn asking(error: &StoreError) -> Failure {
        let way_out = match error.trouble {
            Trouble::NoDirectory | Trouble::Absent => "see that this is the store that the run was given",
            Trouble::NoCredentials => "then ask again",
            Trouble::Unreachable => "see that it is well and can be reached from here, then ask again",
            Trouble::Unsupported | Trouble::Other => {
                "see that the store, and what is between here and there, is well, then ask again"
            }
            _ => way_out(error),
        };
        Failure::store(format!("{error}; {way_out}"))
    }

    /// The checkpoint directory cannot be read.
    pub fn no_directory(dir: &Path, error: &io::Error) -> Failure {
        let way_out = limits::way_out(error, "give a --checkpoint-dir that can be read");
        Failure {
            message: format!("cannot read the checkpoint directory {}: {error}; {way_out}", dir.display()),
            code: exit::NOT_STARTED,
        }
    }
}

/// What to do about a store that failed.
pub(crate) fn way_out(error: &StoreError) -> &'static str {
    match error.trouble {
        Trouble::Full => "free space in the store, by trainit checkpoint prune with a smaller --keep-last if need be",
        Trouble::Denied => {
            "the user that runs this must be allowed to list, read, create and delete there; a directory must be mounted, and not read-only"
        }
        Trouble::InvalidCredentials => {
            "give credentials that hold now (a variable's stay what they are, a role's are renewed), and see that this machine's clock is right"
        }
        Trouble::StaleCredentials => "give credentials that hold now, and see that this machine's clock is right",
        Trouble::NoBucket => "make the bucket, or name the right one and its region",
        // The error contains the rest.
        Trouble::NoCredentials => "then start again",
        Trouble::Unreachable => "see that it is well and can be reached from here, then start again",
        Trouble::NoDirectory => "name a directory, or one to be made",
        Trouble::Limit(way_out) => way_out,
        Trouble::OddName => "delete that object, or use a prefix of which only trainit writes",
        Trouble::Absent | Trouble::Unsupported => "see that the store is there, then start again",
        Trouble::Other => "see that the store, and what is between here and there, is well, then start again",
    }
}

/// Why a commit was stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A file changed while it was copied.
    Changed(String),
    /// A newer run has taken over.
    Fenced(Attempt),
    Failed(String),
    /// The store does not hold an object that it acknowledged.
    Lost(String),
    Store(StoreError),
    OutOfTime(String),
}

impl Stop {
    /// Whether the same commit may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(
            self,
            Stop::Lost(_)
                | Stop::Store(StoreError {
                    trouble: Trouble::Other | Trouble::Limit(_) | Trouble::Absent | Trouble::StaleCredentials,
                    ..
                })
        )
    }

    /// One line.
    pub(crate) fn words(self) -> String {
        match self {
            Stop::Changed(why) | Stop::Failed(why) | Stop::Lost(why) | Stop::OutOfTime(why) => why,
            Stop::Store(error) => format!("{error}; {}", way_out(&error)),
            Stop::Fenced(by) => format!("a newer run (incarnation {by}) has taken over"),
        }
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Store(error)
    }
}

/// Why a commit was not restored.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// This commit cannot be restored; an older one may.
    Reject(String),
    /// No commit can be restored.
    Fatal(Failure),
}

impl Config {
    /// The error of a store that fails. A run needs its store; for a subcommand no training depends on it.
    pub(crate) fn away(&self, error: &StoreError) -> Failure {
        match self.role == Role::Keeps {
            true => Failure::store(format!(
                "{error}; without the store no checkpoint survives this machine; {}",
                way_out(error)
            )),
            false => Failure::asking(error),
        }
    }

    /// The checkpoint directory cannot be used for a restore.
    pub(crate) fn unusable(&self, error: &io::Error) -> Failure {
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
        let dir = self.dir.display();
        let message =
            format!("cannot restore into the checkpoint directory {dir}: {error}; {}; {way_out}", self.nothing_done());
        // A run has checked the directory before it claimed its attempt.
        let is_refused = matches!(
            error.raw_os_error(),
            Some(libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EACCES | libc::EPERM | libc::EROFS)
        );
        let code = if is_refused && !self.claims() { exit::NOT_STARTED } else { exit::STORE };
        Failure { message, code }
    }

    /// A path cannot be moved into place or out of the way.
    pub(crate) fn unmovable(&self, path: &str, error: &io::Error) -> Failure {
        let mut unusable = self.unusable(error);
        if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            unusable.message = format!(
                "cannot restore {path} into the checkpoint directory {}: {error}; {}; this user must be allowed to rename {path} there",
                self.dir.display(),
                self.nothing_done()
            );
        }
        unusable
    }

    /// A file of a restore cannot be written.
    pub(crate) fn unwritable(&self, path: &str, error: &io::Error) -> Refusal {
        Refusal::Fatal(match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Failure::store(format!(
                "no space left in {} while restoring {path}; what was written of it is removed, nothing else; free space there",
                self.dir.display()
            )),
            _ => self.unusable(error),
        })
    }

    /// The checkpoint directory cannot be read for a commit.
    pub(crate) fn unreadable(&self, error: &io::Error) -> Stop {
        let way_out = limits::way_out(error, "see that trainit's user can read it, and that its disk is sound");
        Stop::Failed(format!("cannot read the checkpoint directory {}: {error}; {way_out}", self.dir.display()))
    }
}
