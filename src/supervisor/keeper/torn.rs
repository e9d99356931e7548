//! Moves a save that was cut off out of the way, before the trainer starts: what takes the highest number by itself, as
//! Transformers and Accelerate do, would load it, die of it, and have the whole checkpoint before it blamed.
//!
//! Of those that were moved what is superseded is removed, or a job that is killed in each save would fill its disk with them.
//! They lie apart from what was moved for a restore, or was given up: that may be whole, and stays.

use std::io;
use std::path::Path;

use super::claim::nonce;
use super::mirror::{Mirror, Restore, Resume, beneath, blocking};
use super::names::is_being_written;
use super::nook::turn;
use crate::edge::beneath::Beneath;
use crate::rules::checkpoint::plan::Age;
use crate::rules::checkpoint::torn::{self, Torn};

/// Where what was moved is kept, each in a place of its own: STEP-NUMBER.
const TORN: &str = ".trainit/torn";
/// What lies here is to be removed, by whoever comes first.
const GONE: &str = ".trainit/gone";

/// Where it was moved to.
struct Moved {
    aside: String,
    /// What was let go of for it.
    before: io::Result<Vec<String>>,
}

impl Mirror {
    /// To be asked when nobody writes. What cannot be moved is told of, and the trainer is started all the same.
    pub(super) async fn clear_the_way(&self, resume: Option<&Resume>) {
        if resume.is_none() && self.is_first && self.config.restore == Restore::Never {
            return;
        }
        if let Some(resume) = resume {
            self.clear_of_what_was_left_behind(resume).await;
        }
        let age = resume.map(|resume| Age { step: resume.step, newest_ns: resume.written_ns });
        let begun_ns = if self.is_first { i64::MAX } else { self.config.options.begun_ns };
        let since_ns = begun_ns.min(self.used_ns);
        let torn = self.asked(move |found, scan| match age {
            Some(age) => torn::in_the_way(found, scan, age),
            None => torn::first(found, scan, since_ns),
        });
        let Ok(Some(torn)) = torn.await else { return };
        let (has_others, entries) = (self.has_other_writers(), torn.entries.clone());
        if blocking(move || Ok(is_being_written(has_others, &entries))).await.unwrap_or(true) {
            return;
        }
        let than = match resume {
            Some(resume) => format!(" and newer than {}, which is gone on from", resume.unit),
            None => ", and nothing whole is there to go on from".to_owned(),
        };
        let begin = format!("{} is not complete ({}){than}", torn.unit, torn.why);
        let cleared = match torn.is_empty {
            true => self.remove_empty(&torn).await.map(|()| "it is removed, as nothing is lost with it".to_owned()),
            false => self.move_aside(&torn, resume.and_then(|r| r.step)).await.map(|moved| self.told(moved)),
        };
        self.note(match cleared {
            Ok(done) => format!("{begin}: {done}"),
            Err(error) => format!(
                "{begin}, and cannot be moved away: {error}; a trainer that takes the highest number by itself fails on it; move it out of {}",
                self.config.dir.display()
            ),
        });
    }

    /// The same of what was passed over for what is gone on from.
    async fn clear_of_what_was_left_behind(&self, resume: &Resume) {
        let Some(step) = resume.step.filter(|_| !self.ignored.is_empty()) else { return };
        let passed_over = self.ignored.clone();
        let left = self.asked(move |found, scan| torn::left_behind(found, scan, step, &passed_over)).await;
        let Ok(Some((paths, entries))) = left else { return };
        let (at, has_others, mut aside) = (self.config.dir.clone(), self.has_other_writers(), self.aside());
        let first = paths[0].clone();
        let cleared = blocking(move || {
            if !is_being_written(has_others, &entries) {
                let dir = beneath(&at)?;
                paths.iter().try_for_each(|path| aside.clear(&dir, path))?;
            }
            Ok(aside)
        });
        match cleared.await {
            Ok(aside) => self.note_all(aside),
            Err(error) => self.note(format!(
                "{first} lies above {}, which is gone on from, and cannot be moved away: {error}; a trainer that starts beside no \
                 later one fails on it; move it out of {}",
                resume.unit,
                self.config.dir.display()
            )),
        }
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

    /// Errors: as rmdir(2), that something has come into it too.
    async fn remove_empty(&self, torn: &Torn) -> io::Result<()> {
        let (at, paths, unit) = (self.config.dir.clone(), torn.paths.clone(), torn.unit.clone());
        blocking(move || {
            let dir = beneath(&at)?;
            paths.iter().try_for_each(|path| dir.remove_empty(path))?;
            dir.look(&unit)?.map_or(Ok(()), |_| Err(io::ErrorKind::DirectoryNotEmpty.into()))
        })
        .await
    }

    /// `whole`: the step that is gone on from.
    async fn move_aside(&self, torn: &Torn, whole: Option<u64>) -> io::Result<Moved> {
        let (at, paths, step) = (self.config.dir.clone(), torn.paths.clone(), torn.step);
        let dir = blocking(move || beneath(&at)).await?;
        let _turn = turn(&dir).await;
        blocking(move || {
            let mut places = (1u32..10_000).map(|n| format!("{}-{n}", step.unwrap_or_default()));
            let is_free = |place: &String| matches!(dir.look(&format!("{TORN}/{place}")), Ok(None));
            let place = places.find(is_free).ok_or(io::ErrorKind::AlreadyExists)?;
            let mut aside = String::new();
            for path in &paths {
                aside = format!("{TORN}/{place}/{path}");
                dir.rename(path, &aside)?;
            }
            let is_kept = |name: &str, step_of_it| name == place || !torn::is_superseded(step_of_it, step, whole);
            Ok(Moved { aside, before: let_go(&dir, is_kept) })
        })
        .await
    }

    fn told(&self, Moved { aside, before }: Moved) -> String {
        let before = match before {
            Ok(before) if before.is_empty() => String::new(),
            Ok(before) => {
                self.remove_what_is_gone();
                format!("; {}, which is superseded, is removed", before.join(" and "))
            }
            Err(error) => format!("; what was cut off before it cannot be removed: {error}; it takes up room"),
        };
        format!(
            "it is kept as {aside}, where no trainer takes it for the newest; delete it when nobody needs it{before}"
        )
    }

    /// Removes what was let go of, while everything else goes on: it may be large. Where that is cut off, the next one that
    /// comes goes on with it.
    pub(super) fn remove_what_is_gone(&self) {
        let path = self.config.dir.clone();
        tokio::spawn(async move {
            let dir = path.clone();
            if let Err(error) = blocking(move || remove_all(&dir)).await {
                tracing::warn!(
                    code = "checkpoint",
                    "cannot remove all of {GONE} in {}: {error}; it takes up room; delete it",
                    path.display()
                );
            }
        });
    }
}

/// Lets go of what is not kept, by the name of its place and its step. What has another name is gone, whoever is killed
/// before it is removed.
fn let_go(dir: &Beneath, is_kept: impl Fn(&str, u64) -> bool) -> io::Result<Vec<String>> {
    let mut gone = Vec::new();
    let step_of = |name: &str| name.split_once('-')?.0.parse().ok();
    for name in dir.names(TORN)?.into_iter().filter(|name| step_of(name).is_some_and(|step| !is_kept(name, step))) {
        let place = format!("{TORN}/{name}");
        let held = dir.names(&place)?.into_iter().next().unwrap_or_default();
        dir.rename(&place, &format!("{GONE}/{name}-{}", nonce()))?;
        gone.push(format!("{place}/{held}"));
    }
    Ok(gone)
}

/// Errors: of the first that stays; the others are removed.
fn remove_all(dir: &Path) -> io::Result<()> {
    // Of a directory that is not there, or is none, the restore tells.
    let Ok(dir) = Beneath::open(dir) else { return Ok(()) };
    // The directory itself stays: somebody may be about to put the next one there.
    let removed: Vec<_> = dir.names(GONE)?.iter().map(|name| dir.remove_tree(&format!("{GONE}/{name}"))).collect();
    removed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::mirror::MirrorConfig;
    use super::super::tests::config;
    use super::*;

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().expect("it lies in a directory")).expect("mkdir");
        fs::write(path, "__0_0.distcp").expect("writes");
    }

    /// A whole one, long ago.
    fn save(dir: &Path, step: u64) {
        for path in ["__0_0.distcp", ".metadata"].map(|name| dir.join(format!("step_{step}")).join(name)) {
            write(&path);
            let file = File::options().append(true).open(path).expect("opens");
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000 + step)).expect("sets the time");
        }
    }

    /// A run without a store, whose trainer has saved step 8.
    async fn begun() -> (tempfile::TempDir, PathBuf, Mirror) {
        let place = tempfile::tempdir().expect("temporary directory");
        let dir = place.path().join("checkpoints");
        save(&dir, 8);
        let mut mirror =
            Mirror::open(MirrorConfig { store: None, claim: false, ..config(place.path()) }).await.expect("opens");
        mirror.restore().await.expect("step 8 is there");
        (place, dir, mirror)
    }

    async fn cut_off(dir: &Path, mirror: &mut Mirror, step: u64) -> String {
        write(&dir.join(format!("step_{step}/__0_0.distcp")));
        cleared(mirror).await
    }

    /// Another attempt is about to start.
    async fn cleared(mirror: &mut Mirror) -> String {
        let resume = mirror.restore().await.expect("step 8 is there");
        mirror.clear_the_way(resume.as_ref()).await;
        mirror.take_notes().join("\n")
    }

    /// Comes back when what was let go of is removed.
    async fn removed(dir: &Path) {
        let is_gone = async {
            while fs::read_dir(dir.join(GONE)).expect("reads").next().is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_gone).await.expect("it is removed");
    }

    fn kept(dir: &Path) -> Vec<PathBuf> {
        let places = fs::read_dir(dir.join(TORN)).into_iter().flatten().flatten();
        let held = places.flat_map(|place| fs::read_dir(place.path()).expect("reads").flatten());
        let mut kept: Vec<PathBuf> = held.map(|entry| entry.path()).collect();
        kept.sort();
        kept
    }

    #[tokio::test]
    async fn of_the_saves_that_were_cut_off_those_that_are_superseded_are_removed_and_of_what_may_be_whole_none() {
        let (place, dir, mut mirror) = begun().await;
        let (whole, outside) = (dir.join(".trainit/aside/local-1/step_2/w"), place.path().join("outside/w"));
        [&whole, &outside].into_iter().for_each(|path| write(path));
        let said = cut_off(&dir, &mut mirror, 12).await;
        assert!(said.contains("is kept as .trainit/torn/12-1/step_12") && !said.contains("removed"), "{said}");
        symlink(outside.parent().expect("it has one"), dir.join(TORN).join("12-1/step_12/link")).expect("symlink");
        let said = cut_off(&dir, &mut mirror, 16).await;
        assert!(!said.contains("removed"), "nothing else has what step 12 has: {said}");
        let said = cut_off(&dir, &mut mirror, 12).await;
        assert!(said.contains("; .trainit/torn/12-1/step_12, which is superseded, is removed"), "{said}");
        removed(&dir).await;
        assert_eq!(kept(&dir), [dir.join(".trainit/torn/12-2/step_12"), dir.join(".trainit/torn/16-1/step_16")]);
        save(&dir, 16);
        cut_off(&dir, &mut mirror, 20).await;
        removed(&dir).await;
        assert_eq!(kept(&dir), [dir.join(".trainit/torn/20-1/step_20")], "step 16 is whole");
        assert!(whole.exists() && outside.exists() && dir.join("step_8/.metadata").exists());
    }

    #[tokio::test]
    async fn what_a_killed_run_was_removing_is_removed_by_the_next() {
        let (_place, dir, mut mirror) = begun().await;
        cut_off(&dir, &mut mirror, 12).await;
        write(&dir.join(GONE).join("local-1-0/step_4/w"));
        mirror.remove_what_is_gone();
        removed(&dir).await;
        assert_eq!(kept(&dir), [dir.join(".trainit/torn/12-1/step_12")]);
    }

    #[tokio::test]
    async fn where_nothing_can_be_removed_the_way_is_clear_all_the_same() {
        let (_place, dir, mut mirror) = begun().await;
        cut_off(&dir, &mut mirror, 12).await;
        fs::write(dir.join(GONE), "in the way").expect("writes");
        let said = cut_off(&dir, &mut mirror, 12).await;
        assert!(
            said.contains("is kept as") && said.contains("; what was cut off before it cannot be removed: "),
            "{said}"
        );
        assert_eq!((kept(&dir).len(), dir.join("step_12").exists()), (2, false));
    }

    #[tokio::test]
    async fn an_empty_directory_is_removed_and_nothing_is_let_go_of_for_it() {
        let (_place, dir, mut mirror) = begun().await;
        cut_off(&dir, &mut mirror, 12).await;
        fs::create_dir_all(dir.join("step_16/optimizer")).expect("mkdir");
        let said = cleared(&mut mirror).await;
        assert!(said.contains("step_16 is not complete (it is empty)") && said.contains(": it is removed"), "{said}");
        assert_eq!((kept(&dir).len(), dir.join("step_16").exists()), (1, false));
    }
}
