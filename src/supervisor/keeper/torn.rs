//! Moves a save that was cut off out of the way, before the trainer starts: what takes the highest number by itself, as
//! Transformers and Accelerate do, would load it, die of it, and have the whole checkpoint before it blamed.

use std::io;

use super::look::walked;
use super::mirror::{Mirror, Restore, Resume, beneath, blocking};
use super::nook::turn;
use super::place::set_aside;
use crate::edge::links::Files;
use crate::rules::checkpoint::names::Attempt;
use crate::rules::checkpoint::plan::Age;
use crate::rules::checkpoint::torn::{self, Torn};
use crate::rules::checkpoint::{Found, Scan, recognise};

impl Mirror {
    /// To be asked when nobody writes. What cannot be moved is told of, and the trainer is started all the same.
    pub(super) async fn clear_the_way(&self, resume: Option<&Resume>) {
        if resume.is_none() && self.is_first && self.config.restore == Restore::Never {
            return;
        }
        let age = resume.map(|resume| Age { step: resume.step, newest_ns: resume.written_ns });
        let since_ns = if self.is_first { self.used_ns } else { self.config.options.begun_ns };
        let torn = self.asked(move |found, scan| match age {
            Some(age) => torn::in_the_way(found, scan, age),
            None => torn::first(found, scan, since_ns),
        });
        let Ok(Some(torn)) = torn.await else { return };
        if self.is_being_written(&torn.entries) {
            return;
        }
        let than = match resume {
            Some(resume) => format!(" and newer than {}, which is gone on from", resume.unit),
            None => ", and nothing whole is there to go on from".to_owned(),
        };
        let begin = format!("{} is not complete ({}){than}", torn.unit, torn.why);
        let cleared = match torn.is_empty {
            true => self.remove_empty(&torn).await.map(|()| "it is removed, as nothing is lost with it".to_owned()),
            false => self.move_aside(&torn).await.map(|aside| {
                format!(
                    "it is kept as {aside}, where no trainer takes it for the newest; delete it when nobody needs it"
                )
            }),
        };
        self.note(match cleared {
            Ok(done) => format!("{begin}: {done}"),
            Err(error) => format!(
                "{begin}, and cannot be moved away: {error}; a trainer that takes the highest number by itself fails on it; move it out of {}",
                self.config.dir.display()
            ),
        });
    }

    /// Tells of one that was left where it is, as the trainer failed twice: it, not the whole one, may be to blame.
    pub(super) async fn suspect(&self, blamed: &str, age: Age) {
        let newest = self.asked(move |found, scan| {
            let (torn, why) = torn::newest(found, scan, age)?;
            Some((torn.unit.clone(), why))
        });
        if let Ok(Some((torn, why))) = newest.await {
            self.note(format!(
                "the trainer failed twice soon after going on from {blamed}, and {torn} above it is not complete ({why}): one that \
                 takes the highest number by itself fails on that, not on {blamed}; if so, move it out of {}",
                self.config.dir.display()
            ));
        }
    }

    /// What a rule says of what lies there.
    async fn asked<T: Send + 'static>(
        &self,
        rule: impl FnOnce(&Found, &Scan) -> Option<T> + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (dir, options) = (self.config.dir.clone(), self.config.options.clone());
        blocking(move || {
            let (listing, beneath) = (walked(&dir, &options)?, beneath(&dir)?);
            let peek = Files { beneath: &beneath, listing: &listing };
            let scan = Scan { listing: &listing, peek: &peek, options: &options };
            Ok(recognise(&scan).and_then(|found| rule(&found, &scan)))
        })
        .await
    }

    /// Errors: as rmdir(2), that something has come into it too.
    async fn remove_empty(&self, torn: &Torn) -> io::Result<()> {
        let (dir, paths, unit) = (beneath(&self.config.dir)?, torn.paths.clone(), torn.unit.clone());
        blocking(move || {
            paths.iter().try_for_each(|path| dir.remove_empty(path))?;
            dir.look(&unit)?.map_or(Ok(()), |_| Err(io::ErrorKind::DirectoryNotEmpty.into()))
        })
        .await
    }

    /// Returns where the unit is then.
    async fn move_aside(&self, torn: &Torn) -> io::Result<String> {
        let (dir, paths) = (beneath(&self.config.dir)?, torn.paths.clone());
        let attempt = self.attempt.as_ref().map_or("local".to_owned(), Attempt::to_string);
        let _turn = turn(&dir).await;
        blocking(move || {
            let mut aside = String::new();
            for path in &paths {
                aside = set_aside(&dir, &attempt, path)?;
            }
            Ok(aside)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::mirror::MirrorConfig;
    use super::super::tests::config;
    use super::*;

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().expect("it lies in a directory")).expect("mkdir");
        fs::write(path, "__0_0.distcp").expect("writes");
    }

    /// A run without a store, whose trainer has saved step 8.
    async fn begun() -> (tempfile::TempDir, PathBuf, Mirror) {
        let place = tempfile::tempdir().expect("temporary directory");
        let dir = place.path().join("checkpoints");
        for path in ["__0_0.distcp", ".metadata"].map(|name| dir.join("step_8").join(name)) {
            write(&path);
            let file = File::options().append(true).open(path).expect("opens");
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000)).expect("sets the time");
        }
        let mut mirror =
            Mirror::open(MirrorConfig { store: None, claim: false, ..config(place.path()) }).await.expect("opens");
        mirror.restore().await.expect("step 8 is there");
        (place, dir, mirror)
    }

    /// Another attempt is about to start.
    async fn cleared(mirror: &mut Mirror) -> String {
        let resume = mirror.restore().await.expect("step 8 is there");
        mirror.clear_the_way(resume.as_ref()).await;
        mirror.take_notes().join("\n")
    }

    #[tokio::test]
    async fn an_empty_directory_is_removed_and_moved_nowhere() {
        let (_place, dir, mut mirror) = begun().await;
        fs::create_dir_all(dir.join("step_16/optimizer")).expect("mkdir");
        let said = cleared(&mut mirror).await;
        assert!(said.contains("step_16 is not complete (it is empty)") && said.contains(": it is removed"), "{said}");
        assert!(!dir.join("step_16").exists() && !dir.join(".trainit").exists());
    }
}
