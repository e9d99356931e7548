//! One look at the checkpoint directory: what lies there, and which complete checkpoint is the newest.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use super::in_place::half;
use super::mirror::{Mirror, blocking};
use super::names::Names;
use crate::edge::beneath::Beneath;
use crate::edge::links::{Files, Heeded};
use crate::edge::{limits, links, walk};
use crate::rules::checkpoint::listing::is_below;
use crate::rules::checkpoint::manifest::ORDINARY;
use crate::rules::checkpoint::names::{Stamp, data_key};
use crate::rules::checkpoint::plan::Age;
use crate::rules::checkpoint::{
    Candidate, Entry, Found, Kind, Layout, Listing, Options, Scan, complete, copies, goes_on, is_as_before, linked,
    of_the_same_save, pointers, recognise,
};

/// A complete local checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) layout: &'static Layout,
    pub(crate) candidate: Candidate,
    pub(crate) entries: Vec<Entry>,
    /// Permission bits of its directory, where they are not the ordinary ones.
    pub(crate) mode: Option<u32>,
    /// What is to name it where it is put.
    pub(crate) names: Names,
    /// The step that the trainer itself calls the best.
    pub(crate) best: Option<u64>,
    pub(crate) age: Age,
    /// It lacks what the step before has, as one does that is still being saved, or whose writer leaves it out.
    pub(crate) is_less: bool,
    /// Another unit of the same save, which is not in it.
    pub(crate) other: Option<String>,
}

impl Local {
    fn of(found: &Found, scan: &Scan, candidate: &Candidate) -> Local {
        let pointers = pointers(found.layout, scan, candidate);
        let mut copies = copies(scan, found, candidate);
        copies.retain(|path| pointers.iter().all(|pointer| pointer.path != *path));
        let directory = scan.listing.get(&candidate.unit).filter(|entry| entry.kind == Kind::Directory);
        Local {
            layout: found.layout,
            candidate: candidate.clone(),
            entries: Vec::new(),
            mode: directory.map(|entry| entry.mode).filter(|mode| *mode != ORDINARY),
            names: Names { pointers, copies },
            best: (found.layout.best_step)(scan, candidate),
            age: age(scan, candidate),
            is_less: false,
            other: of_the_same_save(scan, candidate, &found.candidates),
        }
    }

    /// The key of one of its files in the store.
    pub(super) fn key(&self, stamp: &Stamp, path: &str) -> String {
        let unit = &self.candidate.unit;
        // Beside a directory another may be called as one in it.
        let is_beside = !is_below(path, unit) && self.candidate.paths.iter().any(|path| is_below(path, unit));
        data_key(if is_beside { path } else { unit }, stamp, path)
    }
}

/// One look at the directory.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// How the checkpoints are written, where there are any, finished or not.
    pub(crate) layout: Option<&'static Layout>,
    pub(crate) listing: Listing,
    /// The newest complete checkpoint among those asked for.
    pub(crate) newest: Option<Local>,
    /// How new every unit is, finished or not.
    pub(crate) ages: BTreeMap<String, Age>,
    /// Units that a restore which was cut short may have left half in place.
    pub(crate) half: Vec<String>,
    /// Why newer ones are not complete, newest first; or why there is nothing.
    pub(crate) passed: Vec<String>,
    /// The newest of those that were written since this run began.
    pub(crate) lacking: Option<Lacking>,
    /// Of another format and beyond all of this one: the unit and its format. Without one: later than all of these.
    pub(crate) mixed: Option<(String, Option<&'static str>)>,
    /// Where every complete one has a file that may not be read: the newest, and which file. Only of a look for what to resume from.
    pub(crate) unread: Option<(Local, String)>,
}

impl Look {
    /// Whether one of an earlier step than the newest lies there. Whether it is whole is seen when it is wanted.
    pub(super) fn has_older(&self) -> bool {
        let Some(newest) = &self.newest else { return false };
        self.ages.values().any(|age| age.step.is_some() && age.step < newest.age.step)
    }
}

/// What is not complete, as far as can be seen.
#[derive(Debug, Clone)]
pub(crate) struct Lacking {
    unit: String,
    entries: Vec<Entry>,
    /// What the disk did not give when it was judged.
    fault: Option<String>,
}

impl Mirror {
    /// Walks the directory and finds the newest complete checkpoint, of the given step if one is given.
    pub(crate) async fn look(&self, step: Option<u64>) -> io::Result<Look> {
        self.look_for(step, false).await
    }

    /// The same for a start: one that may not be read is passed over for one that may be.
    pub(crate) async fn look_to_resume(&self, step: Option<u64>) -> io::Result<Look> {
        self.look_for(step, true).await
    }

    async fn look_for(&self, step: Option<u64>, to_resume: bool) -> io::Result<Look> {
        let (dir, options) = (self.config.dir.clone(), self.config.options.clone());
        let passed_over = self.ignored.clone();
        let judged = self.committed.as_ref().map_or(Vec::new(), |committed| committed.entries.clone());
        blocking(move || {
            let half = Beneath::open(&dir).map(|dir| half(&dir)).unwrap_or_default();
            let look =
                look(&dir, &options, walked(&dir, &options)?, &Asked { step, to_resume, half, passed_over, judged });
            if !look.passed.is_empty() {
                has_files_to_see_with(&dir)?;
            }
            Ok(look)
        })
        .await
    }
}

/// So many are open at once to judge one.
const OPEN_FILES: usize = 4;

/// Where no more files can be opened, what is whole seems to lack something. Errors: that it is so.
fn has_files_to_see_with(dir: &Path) -> io::Result<()> {
    let all: io::Result<Vec<File>> = (0..OPEN_FILES).map(|_| File::open(dir)).collect();
    all.map_or_else(|error| if limits::of_files(&error) { Err(error) } else { Ok(()) }, |_| Ok(()))
}

/// What is looked for, and what was decided about units, which holds as long as they are as they were.
#[derive(Debug, Default)]
struct Asked {
    /// This step alone.
    step: Option<u64>,
    /// Whether it is to be gone on from, and not only to be told of or committed, where what may not be read is an error.
    to_resume: bool,
    /// What a killed restore may have left half in place is no checkpoint, however complete it looks.
    half: Vec<String>,
    /// Neither to be committed nor resumed from unless asked for by their step, with their newest modification times.
    passed_over: BTreeMap<String, i64>,
    /// The entries of the one that the store holds: it was found complete, and is not read again at each look.
    judged: Vec<Entry>,
}

impl Asked {
    fn is_for(&self, candidate: &Candidate, listing: &Listing) -> bool {
        let is_passed_over = || self.passed_over.get(&candidate.unit) == Some(&candidate.newest_ns(listing));
        let is_wanted = self.step.map_or_else(|| !is_passed_over(), |step| candidate.step == Some(step));
        is_wanted && !self.half.contains(&candidate.unit)
    }
}

/// That everybody may read a file.
const ANYBODY: u32 = 0o444;

/// Of what is not recognised, so many are named.
pub(super) const NAMED: usize = 2;

impl Mirror {
    /// Why the newest that this run's trainer saved is not committed, where that is because it cannot be read. To be asked
    /// after the last commit, when nobody writes any more. Behind it, the way out.
    pub(crate) async fn denied(&self) -> Option<(String, &'static str)> {
        let Lacking { unit, entries, fault } = self.lacking.clone()?;
        let at = self.config.dir.clone();
        let (why, way_out) = match fault {
            Some(fault) => (fault, "see that its disk is sound"),
            None => (
                blocking(move || Ok(denied(&Beneath::open(&at)?, &entries))).await.ok().flatten()?,
                "trainit's user must be allowed to read what the trainer writes",
            ),
        };
        Some((format!("{unit} is not committed: {why}"), way_out))
    }

    /// What belongs to the unit now; `None`: it is gone.
    pub(super) async fn entries_of(&self, unit: &str) -> io::Result<Option<Vec<Entry>>> {
        let unit = unit.to_owned();
        let entries = move |found: &Found, scan: &Scan| {
            let candidate = found.candidates.iter().find(|c| c.unit == unit)?;
            Some(candidate.entries(scan.listing).cloned().collect())
        };
        self.asked(entries).await
    }

    /// What a rule says of what lies there.
    pub(super) async fn asked<T: Send + 'static>(
        &self,
        rule: impl FnOnce(&Found, &Scan) -> Option<T> + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (dir, options) = (self.config.dir.clone(), self.config.options.clone());
        blocking(move || {
            let (listing, beneath) = (walked(&dir, &options)?, Beneath::open(&dir)?);
            let peek = Files { beneath: &beneath, listing: &listing };
            let scan = Scan { listing: &listing, peek: &peek, options: &options };
            Ok(recognise(&scan).and_then(|found| rule(&found, &scan)))
        })
        .await
    }
}

/// The directory's listing, links followed where that was asked for.
pub(crate) fn walked(dir: &Path, options: &Options) -> io::Result<Listing> {
    let listing = walk::walk(dir)?;
    if !options.follow {
        return Ok(listing);
    }
    let listing = links::follow(dir, &listing, &links::leading_out(dir, &listing));
    let Ok(beneath) = Beneath::open(dir) else { return Ok(listing) };
    // Those that lead to another checkpoint are only known once it is known what a checkpoint is.
    let scan = Scan { listing: &listing, peek: &Files { beneath: &beneath, listing: &listing }, options };
    let found = recognise(&scan).map(|found| found.candidates).unwrap_or_default();
    let leaving = found.iter().flat_map(|unit| unit.leaving(&listing)).map(str::to_owned).collect();
    Ok(links::follow(dir, &listing, &leaving))
}

fn look(dir: &Path, options: &Options, listing: Listing, asked: &Asked) -> Look {
    let mut look = Look { listing, half: asked.half.clone(), ..Look::default() };
    let Ok(beneath) = Beneath::open(dir) else {
        look.passed.push(format!("{} is not there", dir.display()));
        return look;
    };
    let heeded = Heeded { files: Files { beneath: &beneath, listing: &look.listing }, fault: RefCell::default() };
    let files = &heeded.files;
    let scan = Scan { listing: &look.listing, peek: &heeded, options };
    let Some(found) = recognise(&scan) else {
        look.passed.push(format!("nothing in {} looks like a checkpoint{}", dir.display(), sought(&scan)));
        return look;
    };
    look.layout = Some(found.layout);
    look.mixed = goes_on(&scan, &found);
    let ages = found.candidates.iter().map(|candidate| (candidate.unit.clone(), age(&scan, candidate)));
    look.ages = ages.collect();
    for candidate in found.candidates.iter().filter(|candidate| asked.is_for(candidate, &look.listing)) {
        let entries: Vec<Entry> = candidate.entries(&look.listing).cloned().collect();
        let is_judged = !entries.is_empty() && same_bytes(&asked.judged, &entries);
        heeded.fault.take();
        let judged = if is_judged { Ok(()) } else { complete(&found, &scan, candidate) };
        if let Err(why) = judged {
            look.passed.push(format!("{} is not complete: {why}", candidate.unit));
            if entries.iter().any(|entry| entry.mtime_ns >= options.begun_ns) {
                let (unit, fault) = (candidate.unit.clone(), heeded.fault.take());
                look.lacking.get_or_insert(Lacking { unit, entries, fault });
            }
            continue;
        }
        let is_less = !is_judged && !is_as_before(&found, &scan, candidate);
        let local = Local { is_less, entries, ..Local::of(&found, &scan, candidate) };
        match asked.to_resume.then(|| unreadable(files, candidate)).flatten() {
            Some(why) => _ = look.unread.get_or_insert((local, why)),
            None => {
                let unread = look.unread.take();
                let unread = unread.map(|(local, why)| format!("{} is not complete: {why}", local.candidate.unit));
                look.passed.extend(unread);
                look.newest = Some(local);
                break;
            }
        }
    }
    // Behind what the trainer itself writes there, which is told of first.
    let newest = look.newest.as_ref().and_then(|local| local.age.step);
    let linked = linked::find(&scan, &found.candidates).into_iter().next().filter(|link| link.step > newest);
    if let Some((unit, why)) = linked.and_then(|link| Some((link.unit.clone(), scan.all_whole(&link).err()?))) {
        look.passed.push(format!("{unit} is not complete: {why}"));
    }
    look
}

fn age(scan: &Scan, candidate: &Candidate) -> Age {
    Age { step: candidate.step, newest_ns: candidate.newest_ns(scan.listing) }
}

/// Which of its files cannot be opened, and why, if there is one. What everybody may read is not tried: there can be a
/// hundred thousand, on a slow file system.
pub(super) fn unreadable(files: &Files, candidate: &Candidate) -> Option<String> {
    let mut all = candidate.files(files.listing).filter(|file| file.mode & ANYBODY != ANYBODY);
    all.find_map(|file| Some(format!("{} cannot be read: {}", file.path, opened(files.beneath, file).err()?)))
}

fn opened(dir: &Beneath, file: &Entry) -> io::Result<File> {
    match &file.through {
        Some(real) => links::open(real),
        None => dir.read_file(&file.path),
    }
}

/// Which part may not be read, a directory too, and why.
fn denied(dir: &Beneath, entries: &[Entry]) -> Option<String> {
    let tried = |entry: &Entry| match entry.kind {
        Kind::File if entry.mode & ANYBODY != ANYBODY => opened(dir, entry).map(drop),
        Kind::Lost(_) => dir.names(&entry.path).map(drop),
        _ => Ok(()),
    };
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    entries.iter().find_map(|e| Some(format!("{} cannot be read: {}", e.path, tried(e).err().filter(is_denied)?)))
}

/// Where nothing is recognised: as what it was looked for, and where not.
pub(super) fn sought(scan: &Scan) -> String {
    let format = scan.options.format.as_ref().map_or(String::new(), |f| format!(" of the format {f}"));
    let step = scan.options.step.as_ref();
    let step = step.map_or(String::new(), |s| format!(" with a step in its name that --step-regex {s} finds"));
    format!("{format}{step}{}", unread_links(scan))
}

/// What is not looked into, where a trainer may save through it.
fn unread_links(scan: &Scan) -> String {
    let links: Vec<&str> = linked::leading_out(scan).take(NAMED).map(|link| link.path.as_str()).collect();
    match links.join(", ") {
        links if links.is_empty() => links,
        links => format!(" (without --follow-symlinks, what these links lead to is not looked at: {links})"),
    }
}

/// Whether two looks saw the same files with the same bytes.
pub(crate) fn same_bytes(before: &[Entry], after: &[Entry]) -> bool {
    before.len() == after.len() && before.iter().zip(after).all(|(b, a)| b.path == a.path && b.same_bytes(a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::time::{Duration, UNIX_EPOCH};

    fn save(dir: &Path, name: &str, text: &str, at: u64) {
        fs::write(dir.join(name), text).expect("writes");
        let file = File::options().append(true).open(dir.join(name)).expect("opens");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(at)).expect("sets the time");
    }

    #[test]
    fn what_the_store_holds_is_not_read_again_and_what_is_newer_is_judged() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir = dir.path();
        let options = Options::default();
        let look = |asked: &Asked| look(dir, &options, walked(dir, &options).expect("walks"), asked);
        let newest = |look: Look| look.newest.map(|local| local.candidate.unit);
        save(dir, "ckpt-1.json", "{}", 10);
        let first = look(&Asked::default()).newest.expect("it is complete");
        let committed = Asked { judged: first.entries, ..Asked::default() };
        // The same for stat(2): only who reads it sees a difference.
        save(dir, "ckpt-1.json", "{{", 10);
        assert_eq!(newest(look(&Asked::default())), None);
        assert_eq!(newest(look(&committed)).as_deref(), Some("ckpt-1.json"));
        save(dir, "ckpt-2.json", "{", 20);
        let then = look(&committed);
        assert!(then.passed[0].contains("ckpt-2.json is not complete"), "{:?}", then.passed);
        assert_eq!(newest(then).as_deref(), Some("ckpt-1.json"));
        save(dir, "ckpt-2.json", "{}", 20);
        assert_eq!(newest(look(&committed)).as_deref(), Some("ckpt-2.json"));
        save(dir, "ckpt-2.json", "{", 20);
        save(dir, "ckpt-1.json", "{{", 11);
        assert_eq!(newest(look(&committed)), None, "written again, it is judged again");
    }
}
