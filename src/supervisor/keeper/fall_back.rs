//! Goes back to an older checkpoint where the trainer failed twice soon after the newest. The one that does no good is
//! never deleted: here it is moved aside, so that no framework finds it by itself, and in the store a note lies beside
//! it.

use std::collections::BTreeSet;
use std::io;

use super::look::Local;
use super::mirror::{Mirror, MirrorError, Resume, beneath, blocking};
use super::names::what_lies;
use super::place::set_aside;
use super::restore::Which;
use crate::edge::beneath::Beneath;
use crate::rules::checkpoint::names::Attempt;
use crate::rules::checkpoint::{Kind, There};

impl Mirror {
    /// Puts the next older checkpoint in place, to be asked when nobody writes. `None`: there is none, and nothing was
    /// changed. Errors: as [`Mirror::restore`].
    pub async fn fall_back(&mut self) -> Result<Option<Resume>, MirrorError> {
        let look = self.look(None).await.map_err(|error| self.unusable(&error))?;
        let Some(bad) = look.newest else { return Ok(None) };
        let unit = bad.candidate.unit.clone();
        self.suspect(&unit, bad.age).await;
        // What is committed is known all the while: this may be cut off.
        let committed = self.committed.as_ref().map(|committed| committed.stamp.clone());
        self.naming = None;
        self.bad.extend(committed.clone());
        let ignored = self.ignored.insert(unit.clone(), bad.age.newest_ns);
        let look = self.look_to_resume(None).await.map_err(|error| self.unusable(&error))?;
        let found = match self.store.clone() {
            None => self.local_only(&look),
            Some(store) => {
                let chosen = self.choose(&store, &look, Which::Older).await;
                if let (Ok(Some(_)), Some(committed)) = (&chosen, &committed) {
                    let note = serde_json::json!({"unit": unit, "step": bad.age.step, "why": "the trainer failed twice soon after going on from it"});
                    if let Err(error) = store.create(&committed.bad_key(), note.to_string().into_bytes()).await {
                        self.note(format!("{error}; the note about {unit} is not written"));
                    }
                }
                chosen?
            }
        };
        let Some(found) = found else {
            self.bad.retain(|stamp| Some(stamp) != committed.as_ref());
            match ignored {
                Some(before) => self.ignored.insert(unit, before),
                None => self.ignored.remove(&unit),
            };
            return Ok(None);
        };
        self.committed.take_if(|held| Some(&held.stamp) == committed.as_ref());
        self.settle_account(&look, Some(&found), false).await.map_err(|error| self.unusable(&error))?;
        self.put_away(bad, &found).await.map_err(|error| self.unusable(&error))?;
        match (&found.commit, &look.newest) {
            (None, Some(good)) => self.name_local(good).await?,
            _ => self.name_committed().await?,
        }
        Ok(Some(found))
    }

    /// Moves the bad one aside with its copies, unless the good one has taken its place.
    async fn put_away(&self, bad: Local, found: &Resume) -> io::Result<()> {
        if found.unit == bad.candidate.unit {
            return Ok(());
        }
        let (at, good) = (self.config.dir.clone(), found.unit.clone());
        let attempt = self.attempt.as_ref().map_or("local".to_owned(), Attempt::to_string);
        blocking(move || move_away(&*beneath(&at)?, &attempt, &bad, &good)).await
    }
}

fn move_away(dir: &Beneath, attempt: &str, bad: &Local, good: &str) -> io::Result<()> {
    let unit = &bad.candidate.unit;
    let inside = format!("{unit}/");
    let entries = bad.entries.iter().filter(|e| e.kind != Kind::Directory || e.path == *unit);
    let mut paths: BTreeSet<&str> =
        entries.map(|e| if e.path.starts_with(&inside) { unit.as_str() } else { e.path.as_str() }).collect();
    // Another may have come there: the good one, under its other name.
    let is_it = |path: &str| {
        let before = bad.entries.iter().find(|e| e.path == path && e.kind == Kind::File);
        before.is_none_or(|before| matches!(dir.look(path), Ok(Some(now)) if before.same_bytes(&now)))
    };
    paths.retain(|path| is_it(path));
    if let Some(own) = dir.look(unit)?.filter(|_| is_it(unit)) {
        let is_copy = |path: &&str| {
            let there = dir.look(path).ok().flatten();
            there.is_some_and(|file| what_lies(dir, &file, &own).is_ok_and(|lies| lies == There::Same))
        };
        paths.extend(bad.names.copies.iter().map(String::as_str).filter(is_copy));
    }
    paths.remove(good);
    for path in paths {
        set_aside(dir, attempt, path)?;
    }
    Ok(())
}
