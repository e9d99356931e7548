//! Restores exactly what the gang has agreed on. Newer local files go to `.trainit/aside/`, and newer commits are marked in the
//! store, so that no later agreement mixes two histories of training.

use std::io;
use std::sync::Arc;

use crate::edge::store::Store;
use crate::rules::checkpoint::Rewind;
use crate::rules::gang::message::{Choice, Step};
use crate::rules::store::names::{Attempt, CommitName};
use crate::rules::text::safe_text::and_more;
use crate::supervisor::checkpoints::commit::dedup::Known;
use crate::supervisor::checkpoints::config::Restore;
use crate::supervisor::checkpoints::directory::disk::{ASIDE, free_place, move_away, remove_superseded};
use crate::supervisor::checkpoints::directory::record;
use crate::supervisor::checkpoints::failure::{Failure, Refusal};
use crate::supervisor::checkpoints::mirror::{LastCommit, Mirror, Resume};
use crate::supervisor::checkpoints::restore::choose::Which;
use crate::supervisor::checkpoints::restore::offer::hash_of;
use crate::supervisor::checkpoints::restore::offered::Source;
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::{commits, read};

/// The prefix of directories in `.trainit/aside/` with files that a gang's decision moved.
const GANG_PREFIX: &str = "gang-";

impl Mirror {
    /// Installs this choice while no process writes. Returns what the trainer resumes from. Errors: 204 if it fails.
    pub(crate) async fn restore_agreed(&mut self, choice: Choice) -> Result<Option<Resume>, Failure> {
        let resume = match choice {
            Choice::Start => self.start_from_scratch().await?,
            Choice::Own(step) => self.go_back_to(|offered| offered.step == Some(step)).await?,
            Choice::Chiefs(step) | Choice::Shared(step) if self.is_chief() => {
                self.go_back_to(|offered| *offered == step).await?
            }
            Choice::Chiefs(step) if self.config.chiefs_store.is_some() => self.restore_chiefs(step).await?,
            // Node 0 has put it into the shared directory, or shares no store.
            Choice::Chiefs(_) | Choice::Shared(_) => {
                self.in_gang.follows_chief = true;
                self.last = None;
                self.begin(None).await?;
                self.local_resume().await?
            }
        };
        self.in_gang.directory_counts = true;
        if self.config.store.is_some() || resume.is_some() {
            self.write_record().await;
        }
        Ok(resume)
    }

    /// Starts from scratch and moves the offered checkpoints aside.
    async fn start_from_scratch(&mut self) -> Result<Option<Resume>, Failure> {
        if self.config.restoring.what == Restore::Required {
            return Err(self.no_checkpoint(self.config.restoring.step).await);
        }
        self.in_gang.follows_chief = false;
        let had_some = !std::mem::take(&mut self.in_gang.offered).is_empty();
        let is_ignored = self.config.restoring.what == Restore::Never;
        if had_some && !is_ignored {
            self.pass_over(|_| true).await?;
            let listing = self.unfollowed().await.map_err(|error| self.config.unusable(&error))?;
            let exclusions = &self.config.options.exclusions;
            let tops = listing.entries().iter().filter(|entry| !entry.path.contains('/'));
            let aside = tops.filter(|entry| exclusions.decide(&entry.path).is_none()).map(|entry| entry.path.clone());
            self.rewind(Rewind { aside: aside.collect(), pointers: Vec::new() }).await?;
        }
        self.last = None;
        self.sender.known = Known::default();
        self.begin(None).await?;
        Ok(None)
    }

    /// Makes one of this node's own checkpoints the newest.
    async fn go_back_to(&mut self, is_wanted: impl Fn(&Step) -> bool) -> Result<Option<Resume>, Failure> {
        self.in_gang.follows_chief = false;
        let Some((step, source)) = self.in_gang.offered.iter().find(|(step, _)| is_wanted(step)).cloned() else {
            return Err(Failure::store("this node did not offer the agreed checkpoint".to_owned()));
        };
        match source {
            Source::Directory => {}
            Source::Unit(unit) => {
                self.pass_over(|name| name.step == 0 || Some(name.step) > step.step).await?;
                let unusable = |error: io::Error| self.config.unusable(&error);
                let rewind = self.watcher.rewind(unit.clone()).await.map_err(unusable)?;
                let gone = || Failure::store(format!("{unit} is no longer in {}", self.config.dir.display()));
                let rewind = rewind.ok_or_else(gone)?;
                self.rewind(rewind).await?;
                self.last = None;
                self.begin(None).await?;
            }
            Source::Store(name) => {
                let remote = self.remote.clone().ok_or_else(|| Failure::store("there is no store".to_owned()))?;
                self.pass_over(|other| other.stamp > name.stamp).await?;
                let is_it = self.last.as_ref().is_some_and(|last| last.stamp == name.stamp && last.hash == name.hash);
                if !(is_it && self.in_gang.directory_counts && self.is_as_committed().await) {
                    self.bring_agreed(&remote, &name).await?;
                }
            }
        }
        self.local_resume().await
    }

    /// Restores node 0's commit into this node's directory.
    async fn restore_chiefs(&mut self, step: Step) -> Result<Option<Resume>, Failure> {
        let Some(address) = self.config.chiefs_store.clone() else { return self.local_resume().await };
        if !step.is_stored {
            let why = "node 0's checkpoint is in its directory only, and could not be committed: its log says why";
            return Err(Failure::store(why.to_owned()));
        }
        let store =
            Store::open(&address, false, &self.config.access).await.map_err(|error| self.config.away(&error))?;
        let remote = Remote { store: Arc::new(store), address, claim: None };
        let names = commits(&remote.store).await.map_err(|error| self.config.away(&error))?;
        let name = names.into_iter().find(|name| hash_of(name) == step.hash).ok_or_else(|| {
            Failure::store(format!("node 0's commit {:016x} is not in {}", step.hash, remote.address))
        })?;
        let is_it = self.last.as_ref().is_some_and(|last| last.stamp == name.stamp && last.hash == name.hash);
        if !(self.in_gang.follows_chief && is_it && self.is_as_committed().await) {
            self.in_gang.follows_chief = true;
            self.bring_agreed(&remote, &name).await?;
            // This node's store does not have the keys of node 0.
            self.sender.known = Known::default();
        }
        self.local_resume().await
    }

    async fn bring_agreed(&mut self, remote: &Remote, name: &CommitName) -> Result<(), Failure> {
        let cannot = |why: String| Failure::store(format!("the agreed commit {name} cannot be restored: {why}"));
        self.in_gang.directory_counts = false;
        let manifest = read(&remote.store, name).await.map_err(|error| self.config.away(&error))?;
        let brought = match manifest {
            Ok(manifest) => self.install_commit(remote, &manifest).await.map(|()| manifest),
            Err(why) => Err(Refusal::Reject(why)),
        };
        match brought {
            Ok(manifest) => {
                if self.in_gang.follows_chief {
                    self.last = Some(LastCommit::of(name, manifest.step));
                } else {
                    self.set_parent(Which::First(None), name, &manifest);
                }
                self.remember(&manifest).await
            }
            Err(Refusal::Reject(why)) => {
                self.history.bad.push(name.stamp.clone());
                Err(cannot(why))
            }
            Err(Refusal::Fatal(failure)) => Err(failure),
        }
    }

    /// Marks these commits of this node, so that no later agreement resumes from them.
    async fn pass_over(&mut self, is_passed: impl Fn(&CommitName) -> bool) -> Result<(), Failure> {
        let passed = self.in_gang.offered.iter().filter_map(|(_, source)| match source {
            Source::Store(name) if is_passed(name) => Some(name.stamp.clone()),
            _ => None,
        });
        let passed: Vec<_> = passed.collect();
        let Some(remote) = self.remote.clone().filter(|remote| remote.claim.is_some()) else { return Ok(()) };
        for stamp in passed {
            let note = serde_json::json!({"why": "the gang went back to an older checkpoint that all replicas have"});
            let put = remote.store.create(&stamp.bad_key(), note.to_string().into_bytes()).await;
            put.map_err(|error| self.config.away(&error))?;
        }
        Ok(())
    }

    /// Moves newer files aside and updates pointers.
    async fn rewind(&mut self, rewind: Rewind) -> Result<(), Failure> {
        let attempt = self.attempt().map_or("local".to_owned(), Attempt::to_string);
        let name = format!("{GANG_PREFIX}{attempt}");
        let moved = self.in_dir(move |dir| {
            if rewind.aside.is_empty() && rewind.pointers.is_empty() {
                return Ok(None);
            }
            let place = free_place(&dir, ASIDE, &name)?;
            let pointers = rewind.pointers.iter().map(|(path, _)| path);
            move_away(&dir, rewind.aside.iter().chain(pointers), &place)?;
            for (path, text) in &rewind.pointers {
                dir.replace(path, text.as_bytes(), 0o644)?;
            }
            record::end_restore(&dir)?;
            remove_superseded(&dir, ASIDE)?;
            Ok(rewind.aside.first().map(|first| (and_more(first, rewind.aside.len()), place)))
        });
        let moved = moved.await.map_err(|error| self.config.unusable(&error))?;
        if let Some((moved, place)) = moved {
            self.note(format!(
                "{moved} in {} is newer than the checkpoint that the gang has agreed on: it is kept in {place}; delete it \
                 when it is not needed",
                self.config.dir.display()
            ));
        }
        Ok(())
    }
}
