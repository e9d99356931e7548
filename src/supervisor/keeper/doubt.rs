//! What a trainer that was cut off had under its hands. Nobody writes any more, so it lies still as a finished one does; where
//! its format does not tell the two apart, it is passed over until it is written again.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::mirror::{Mirror, beneath, blocking};
use crate::rules::checkpoint::{complete, is_sure, plan};

/// When the trainer was cut off, nanoseconds since 1970; zero: it was not, or what it left was looked at since.
#[derive(Debug, Default)]
pub(super) struct CutOff(AtomicI64);

impl CutOff {
    pub(super) fn note(&self, at_ns: i64) {
        self.0.store(at_ns, Ordering::Relaxed);
    }
}

impl Mirror {
    /// Passes over what was written less than `settle`, and no more than `most`, before the trainer was cut off and need not
    /// be whole. Errors: as stat(2), and of the note about it in the directory.
    pub(super) async fn doubt(&mut self, settle: Duration, most: Duration) -> io::Result<()> {
        let at = self.cut_off.0.swap(0, Ordering::Relaxed);
        let since = at.saturating_sub(i64::try_from((settle + plan::TICK).min(most).as_nanos()).unwrap_or(i64::MAX));
        // Who says 0 knows that nobody writes.
        if at == 0 || settle.is_zero() {
            return Ok(());
        }
        let doubtful = self.asked(move |found, scan| {
            let units = found.candidates.iter().map(|unit| (unit, unit.newest_ns(scan.listing)));
            let doubtful = units.filter(|(unit, _)| {
                let is_late = unit.files(scan.listing).any(|file| file.mtime_ns > since);
                is_late && complete(found, scan, unit).is_ok() && !is_sure(found, scan, unit, since)
            });
            Some(doubtful.map(|(unit, newest)| (unit.unit.clone(), newest)).collect::<Vec<_>>())
        });
        let doubtful = match doubtful.await {
            // What is not there holds nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            asked => asked?,
        };
        let before = self.ignored.clone();
        for (unit, newest) in doubtful.unwrap_or_default() {
            let is_safe = self.committed.as_ref().is_some_and(|c| c.unit == unit && c.age.newest_ns == newest);
            // Nobody would go on from what is older.
            let is_news = self.committed.as_ref().is_none_or(|c| c.age.newest_ns <= newest);
            if !is_safe && self.ignored.insert(unit.clone(), newest) != Some(newest) && is_news {
                self.note(format!(
                    "{unit} was written as the command was cut off, and how it is written does not show whether it is whole: it is passed over for the one before it; if it is whole, touch it, and save so that it shows (under another name that is changed at the end, or with --marker)"
                ));
            }
        }
        if self.ignored != before && self.attempt.is_some() {
            let at = self.config.dir.clone();
            let dir = blocking(move || beneath(&at)).await?;
            self.write_lineage(&dir, self.lineage.clone()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::path::Path;
    use std::time::UNIX_EPOCH;

    use super::super::mirror::Committed;
    use super::super::tests::config;
    use super::*;
    use crate::rules::checkpoint::names::{Attempt, Stamp};
    use crate::rules::checkpoint::plan::Age;

    /// Puts a unit there, as old as that.
    fn save(dir: &Path, unit: &str, since_1970: Duration) {
        fs::create_dir_all(dir.join(unit)).expect("mkdir");
        fs::write(dir.join(unit).join("weights.bin"), "maybe whole").expect("writes");
        let file = File::options().append(true).open(dir.join(unit).join("weights.bin")).expect("opens");
        file.set_modified(UNIX_EPOCH + since_1970).expect("sets the time");
    }

    #[tokio::test]
    async fn what_looks_older_than_it_is_by_a_tick_of_the_kernel_is_in_doubt_too() {
        let (written, settle) = (Duration::from_secs(1_000), Duration::from_secs(2));
        for (later, is_doubtful) in [(5, true), (15, false)] {
            let place = tempfile::tempdir().expect("temporary directory");
            save(&place.path().join("checkpoints"), "step-1", written);
            let mut mirror = Mirror::open(config(place.path())).await.expect("opens");
            mirror.cut_off.note((written + settle + Duration::from_millis(later)).as_nanos() as i64);
            mirror.doubt(settle, Duration::MAX).await.expect("it can be looked at");
            assert_eq!(mirror.ignored.contains_key("step-1"), is_doubtful, "{later} ms later");
        }
    }
    #[tokio::test]
    async fn what_is_older_than_the_last_commit_is_told_to_nobody() {
        let place = tempfile::tempdir().expect("temporary directory");
        let (dir, secs) = (place.path().join("checkpoints"), Duration::from_secs);
        for step in 1..=3 {
            save(&dir, &format!("step-{step}"), secs(1_000 + step));
        }
        let mut mirror = Mirror::open(config(place.path())).await.expect("opens");
        mirror.committed = Some(Committed {
            unit: "step-2".to_owned(),
            beside: BTreeMap::new(),
            entries: Vec::new(),
            names: Default::default(),
            age: Age { step: Some(2), newest_ns: secs(1_002).as_nanos() as i64 },
            fixed: Vec::new(),
            stamp: Stamp { attempt: Attempt { number: 1, tag: None }, seq: 1 },
        });
        mirror.cut_off.note(secs(1_004).as_nanos() as i64);
        mirror.doubt(secs(10), Duration::MAX).await.expect("it can be looked at");
        assert_eq!(mirror.ignored.keys().collect::<Vec<_>>(), ["step-1", "step-3"]);
        assert!(matches!(&mirror.take_notes()[..], [only] if only.starts_with("step-3 ")));
    }
}
