//! Random lives of a trainer: it writes, saves over and deletes files, ends, fails or is killed with trainit, and starts again on
//! the same disk or on an empty one. trainit deletes no whole file, and each path of a commit is in the next one unless it is
//! gone. `TRAINIT_LIVES=100` tries more seeds, `TRAINIT_LIVES_SEED=N` only this one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::checkpoints::Place;
use crate::support::{Trainit, eventually};

const LIVES: u64 = 5;
const OPERATIONS: u64 = 7;

/// Files beside each other, in a series, and in directories of one save.
const PATHS: [&str; 9] = [
    "last.json",
    "model.json",
    "step-1.json",
    "step-2.json",
    "step-3.json",
    "run/checkpoint-1/state.json",
    "run/checkpoint-1/model.json",
    "run/checkpoint-2/state.json",
    "notes.txt",
];

/// xorshift, which gives the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The files below a directory that were written whole: path to the number inside.
fn whole(root: &Path) -> BTreeMap<PathBuf, u64> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if let Ok(text) = fs::read(&path)
                && let Ok(value) = serde_json::from_slice::<Value>(&text)
                && let Some(number) = value["written"].as_u64()
            {
                found.insert(path, number);
            }
        }
    }
    found
}

/// The paths of each commit in the store, oldest first.
fn commits(store: &Path) -> Vec<BTreeSet<String>> {
    let names = fs::read_dir(store.join(".trainit/commits")).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> = names.map(|entry| entry.path()).filter(|path| path.extension().is_some()).collect();
    names.sort();
    let paths = |manifest: &PathBuf| -> BTreeSet<String> {
        let manifest: Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
        let files = manifest["files"].as_array().unwrap();
        files
            .iter()
            .filter(|file| file["type"] != "directory")
            .map(|f| f["path"].as_str().unwrap().to_owned())
            .collect()
    };
    names.iter().map(paths).collect()
}

fn lives(seed: u64) {
    let (place, mut dice) = (Place::new(), Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
    let (local, store, mut written) = (place.local(), place.store(), 0);
    for life in 0..LIVES {
        if dice.below(4) == 0 {
            // Another machine.
            fs::rename(&local, place.path(&format!("disk-{life}"))).unwrap();
            fs::create_dir(&local).unwrap();
        }
        let (before, committed) = (whole(&local), commits(&store).len());
        let (mut script, mut touched) = (String::new(), BTreeSet::new());
        for _ in 0..dice.below(OPERATIONS) + 1 {
            let path = PATHS[dice.below(PATHS.len() as u64) as usize];
            match dice.below(6) {
                0 => script += "sleep 0.3\n",
                1 => script += &format!("rm -f \"$D/{path}\"\n"),
                _ => {
                    written += 1;
                    let text = format!("{{\"written\": {written}}}");
                    script += &format!(
                        "mkdir -p \"$(dirname \"$D/{path}\")\"; echo '{text}' >\"$D.new\"; mv \"$D.new\" \"$D/{path}\"\n"
                    );
                }
            }
            touched.insert(local.join(path));
        }
        let end = ["exit 0", "exit 9", "kill -9 $$", "kill -9 $PPID"][dice.below(4) as usize];
        let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
        let trainit = Trainit::new(run).args(["--settle", "30ms", "--mirror-interval", "30ms", "--max-restarts", "0"]);
        let trainit =
            trainit.args(["--keep-last", "1000", "--", "sh", "-c", &format!("{script}{end}")]).env("D", &local);
        let done = trainit.output();
        if end.ends_with("PPID") {
            eventually("the trainer has ended", || !local.with_extension("new").exists());
        }
        let told = format!("seed {seed}, life {life}: {script}{end}\n{}", done.err());
        let numbers = |found: BTreeMap<PathBuf, u64>| found.into_values().collect::<BTreeSet<u64>>();
        let found = &numbers(whole(&local)) | &numbers(whole(&store));
        for (path, number) in before.iter().filter(|(path, _)| !touched.contains(*path)) {
            assert!(found.contains(number), "{number} at {} was deleted; {told}", path.display());
        }
        let all = commits(&store);
        for (last, next) in all.iter().zip(all.iter().skip(1)).skip(committed.saturating_sub(1)) {
            let dropped =
                last.difference(next).filter(|path| local.join(path).exists() && !touched.contains(&local.join(path)));
            assert_eq!(dropped.collect::<Vec<_>>(), [""; 0], "dropped from a commit; {told}");
        }
    }
}

#[test]
#[ignore = "takes minutes, and has not been judged yet"]
fn in_any_life_no_whole_file_is_deleted_and_no_path_is_dropped_from_a_commit() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("TRAINIT_LIVES_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("TRAINIT_LIVES").unwrap_or(6) + 1,
    };
    seeds.for_each(lives);
}
