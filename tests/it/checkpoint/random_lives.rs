//! Random lives of a trainer: it saves, saves over and deletes files, ends, fails or is killed with trainit, and starts again on
//! the same disk or on an empty one. `TRAINIT_LIVES=100` tries more seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

const LIVES: u64 = 4;
/// A series, files of one save beside each other, a directory that is one save, a pointer.
const PATHS: [&str; 8] = [
    "step-1.json",
    "step-2.json",
    "model.json",
    "optimizer.json",
    "run/checkpoint-1/model.json",
    "run/checkpoint-1/trainer_state.json",
    "run/checkpoint-2/model.json",
    "latest.txt",
];

/// xorshift, which gives the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// The numbers in the whole files below a directory, also in what trainit keeps there.
fn numbers(root: &Path) -> BTreeSet<u64> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let of = |path: &Path| match fs::read(path) {
        // The store joins small files.
        Ok(bytes) => String::from_utf8_lossy(&bytes).split("{\"saved\": ").skip(1).filter_map(number).collect(),
        Err(_) => numbers(path),
    };
    entries.flat_map(|path| of(&path)).collect()
}

fn number(text: &str) -> Option<u64> {
    text.split_once('}')?.0.parse().ok()
}

/// The paths of each commit in the store, oldest first.
fn commits(store: &Path) -> Vec<BTreeSet<String>> {
    let mut names: Vec<_> = fs::read_dir(store.join(".trainit/commits"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    names.sort();
    let paths = |name| -> Option<BTreeSet<String>> {
        let manifest: Value = serde_json::from_slice(&fs::read(name).ok()?).ok()?;
        let files = manifest["files"].as_array()?.iter().filter(|file| file["type"] == "file");
        Some(files.map(|file| file["path"].as_str().unwrap().to_owned()).collect())
    };
    names.iter().filter_map(paths).collect()
}

/// A script that saves and deletes at random, and the effect: each path that it changed, with the last number or a deletion.
fn script(dice: &mut Dice, saved: &mut u64) -> (String, BTreeMap<&'static str, Option<u64>>) {
    let (mut script, mut changed) = ("cd \"$D\"\n".to_owned(), BTreeMap::new());
    for _ in 0..dice.roll(8) + 1 {
        let path = PATHS[dice.roll(PATHS.len() as u64) as usize];
        match dice.roll(6) {
            0 => script += "sleep 0.2\n",
            1 => {
                script += &format!("rm -f {path}\n");
                changed.insert(path, None);
            }
            how => {
                *saved += 1;
                let save = format!("mkdir -p \"$(dirname {path})\"; echo '{{\"saved\": {saved}}}'");
                script += &match how {
                    2 => format!("{save} >{path}\n"),
                    _ => format!("{save} >.tmp-save; mv .tmp-save {path}\n"),
                };
                changed.insert(path, Some(*saved));
            }
        }
    }
    script += ["exit 0", "exit 9", "kill -9 $$", "kill -9 $PPID; exec sleep 60"][dice.roll(4) as usize];
    (script, changed)
}

fn lives(seed: u64) {
    let (place, mut dice, mut saved) = (Place::new(), Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), 0);
    let (local, store, mut disk) = (place.local(), place.store(), BTreeMap::new());
    for life in 0..LIVES {
        if dice.roll(4) == 0 {
            fs::rename(&local, place.path(&format!("disk-{life}"))).unwrap();
            fs::create_dir(&local).unwrap();
            disk.clear();
        }
        let committed = commits(&store).len();
        let (script, changed) = script(&mut dice, &mut saved);
        let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
        let run = Trainit::new(run).args(["--settle", "30ms", "--mirror-interval", "30ms", "--max-restarts", "0"]);
        let run = run.args(["--keep-last", "1000", "--", "sh", "-c", &script]).env("D", &local);
        let done = run.output();
        let told = format!("seed {seed}, life {life}: {script}\n{}", done.err());
        for (path, change) in &changed {
            match change {
                Some(number) => disk.insert(*path, *number),
                None => disk.remove(path),
            };
        }
        let found = &numbers(&local) | &numbers(&store);
        for (path, number) in &disk {
            assert!(found.contains(number), "{number} at {path} was deleted; {told}");
        }
        let all = commits(&store);
        for (last, next) in all.iter().zip(all.iter().skip(1)).skip(committed.saturating_sub(1)) {
            let is_there = |path: &&String| local.join(path).exists() && !changed.contains_key(path.as_str());
            let dropped: Vec<_> = last.difference(next).filter(is_there).collect();
            assert!(dropped.is_empty(), "{dropped:?} was dropped from a commit; {told}");
        }
    }
}

#[test]
fn in_any_life_no_whole_file_is_deleted_and_no_commit_drops_a_path_that_is_there() {
    let seeds = std::env::var("TRAINIT_LIVES").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    (1..=seeds).for_each(lives);
}
