//! The restore before another attempt of the same run, where what the crash left is gone on from: nothing is fetched, but what
//! names the newest may name what the trainer was cut off in.

use std::collections::HashMap;

use super::fetch::Stop;
use super::look::{Local, Look, same_bytes};
use super::mirror::{Mirror, MirrorError, Resume, SMALL, beneath, blocking};
use super::names::Names;
use crate::edge::beneath::Beneath;
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::checkpoint::{Kind, Pointer, is_composers_link, pointing};

impl Mirror {
    /// Where the store cannot be reached: the newest local checkpoint, which this run has committed or made since. `None`:
    /// there is none, and the store must be asked.
    pub async fn restore_without_store(&mut self) -> Option<Resume> {
        let look = self.look(None).await.ok()?;
        self.has_older = look.has_older();
        let local = look.newest.as_ref().filter(|_| self.begun)?;
        let unit = &local.candidate.unit;
        let (commit, is) = match &self.committed {
            Some(committed) if same_bytes(&local.entries, &committed.entries) => (Some(committed.stamp.clone()), "is"),
            Some(committed) if !committed.is_before(unit, local.age) => return None,
            _ => (None, "is not yet"),
        };
        let place = self.config.store.as_ref()?;
        self.note(format!("{place} cannot be reached: the next attempt goes on from {unit}, which {is} committed"));
        self.name_newest(&look).await;
        Some(self.resume(unit, local.age, commit))
    }

    /// The newest local checkpoint, where the store is known to hold just that.
    pub(super) fn still_there(&self, look: &Look) -> Option<Resume> {
        let (local, committed) = (look.newest.as_ref()?, self.committed.as_ref()?);
        let is_it = same_bytes(&local.entries, &committed.entries) && look.half.is_empty();
        is_it.then(|| self.resume(&local.candidate.unit, local.age, Some(committed.stamp.clone())))
    }

    /// Lets pointers that moved on, are empty or gone, or lead nowhere name the newest local checkpoint (Composer's whatever they
    /// say), and puts it under its other names, those too that it had when it was committed. Where that cannot be, the trainer is started all the same.
    pub(super) async fn name_newest(&self, look: &Look) {
        let Some(local) = &look.newest else { return };
        let mut names = self.names_of(local);
        let step = local.age.step;
        let unit = &local.candidate.unit;
        let said = self.said(&names.pointers).await;
        names.pointers.retain(|pointer| {
            let said = said.get(&pointer.path).map_or("", String::as_str);
            let is_elsewhere = parent_of(&pointer.path) != parent_of(unit);
            let is_there = |step| is_elsewhere || pointing::is_there(&look.listing, unit, step);
            match is_composers_link(&pointer.path) {
                true => look.listing.file(&pointer.path).is_none(),
                false => pointing::has_moved_on(said, step, is_there),
            }
        });
        if let Err(error) = self.name_unit(unit, &names).await {
            self.note(format!("what names the newest checkpoint may name another than {unit}: {error}"));
        }
    }

    /// The same for one of them. Errors: as [`Mirror::restore`].
    pub(super) async fn name_local(&self, local: &Local) -> Result<(), MirrorError> {
        self.name_unit(&local.candidate.unit, &self.names_of(local)).await
    }

    fn names_of(&self, local: &Local) -> Names {
        let before = self.committed.as_ref().filter(|committed| same_bytes(&committed.entries, &local.entries));
        before.map_or_else(|| local.names.clone(), |committed| local.names.and(&committed.names))
    }

    /// What pointers say, by path, as far as they are there and are any.
    async fn said(&self, pointers: &[Pointer]) -> HashMap<String, String> {
        let at = self.config.dir.clone();
        let paths: Vec<String> = pointers.iter().map(|pointer| pointer.path.clone()).collect();
        let said = |dir: &Beneath, path: &str| match dir.look(path).ok()??.kind {
            Kind::Symlink(to) => Some(to),
            _ => String::from_utf8(dir.read(path, SMALL).ok()?).ok(),
        };
        let all = blocking(move || {
            let dir = beneath(&at)?;
            Ok(paths
                .into_iter()
                .filter_map(|path| Some((said(&dir, &path)?, path)))
                .map(|(to, path)| (path, to))
                .collect())
        });
        all.await.unwrap_or_default()
    }

    /// The same for what was restored.
    pub(super) async fn name_committed(&self) -> Result<(), MirrorError> {
        match &self.committed {
            Some(committed) => self.name_unit(&committed.unit, &committed.names).await,
            None => Ok(()),
        }
    }

    async fn name_unit(&self, unit: &str, names: &Names) -> Result<(), MirrorError> {
        let at = self.config.dir.clone();
        let dir = blocking(move || beneath(&at)).await.map_err(|error| self.unusable(&error))?;
        match self.put_names(&dir, unit, names).await {
            Err(Stop::Fatal(error)) => Err(error),
            _ => Ok(()),
        }
    }
}
