//! A checkpoint directory and a store in a temporary directory, with the commands to move between them.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{Finished, Running, Trainit, shared_dir, stopped};

/// A place for one test.
pub struct Place {
    dir: TempDir,
    /// A store other than a neighbouring directory, and the settings to access it.
    bucket: Option<(String, Vec<(&'static str, String)>)>,
}

impl Place {
    pub fn new() -> Place {
        let place = Place { dir: shared_dir(), bucket: None };
        fs::create_dir(place.local()).unwrap();
        place
    }

    /// With a store elsewhere.
    pub fn with_store(url: &str, env: Vec<(&'static str, String)>) -> Place {
        Place { bucket: Some((url.to_owned(), env)), ..Place::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The checkpoint directory.
    pub fn local(&self) -> PathBuf {
        self.path("checkpoints")
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    pub fn url(&self) -> String {
        let file = || format!("file://{}", self.store().display());
        self.bucket.as_ref().map_or_else(file, |(url, _)| url.clone())
    }

    /// `trainit checkpoint ACTION` on the store and the checkpoint directory.
    pub fn checkpoint(&self, action: &str) -> Trainit {
        self.checkpoint_in(action, &self.local())
    }

    /// The same with another directory: another machine.
    pub fn checkpoint_in(&self, action: &str, local: &Path) -> Trainit {
        self.checkpoint_through(&[], action, local)
    }

    /// The same, started by another program.
    pub fn checkpoint_through(&self, prefix: &[&str], action: &str, local: &Path) -> Trainit {
        let (url, local) = (self.url(), local.to_str().unwrap());
        let args = ["checkpoint", action, "--checkpoint-store", &url, "--checkpoint-dir", local, "--settle", "0"];
        let trainit = Trainit::through(prefix, args);
        self.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value))
    }

    /// The variables to access the store.
    pub fn env(&self) -> &[(&'static str, String)] {
        self.bucket.as_ref().map_or(&[], |(_, env)| env)
    }

    #[track_caller]
    pub fn push(&self) -> Finished {
        self.checkpoint("push").output().expect_code(0)
    }

    /// Pushes only the newest save.
    #[track_caller]
    pub fn push_one(&self) -> Finished {
        self.checkpoint("push").args(["--keep-saves", "1"]).output().expect_code(0)
    }

    /// Starts a push that stops itself at a fault point, and waits until it has.
    pub fn push_stopped_at(&self, point: &str) -> Running {
        let push = self.checkpoint("push").env("TRAINIT_TEST_FAULT", point).start();
        stopped(&push);
        push
    }

    /// A push that stops at this point while another one commits is fenced, and commits nothing more.
    #[track_caller]
    pub fn expect_fenced_at(&self, point: &str) {
        self.save(1);
        let older = self.push_stopped_at(point);
        self.push();
        older.signal(libc::SIGCONT);
        let done = older.finish().expect_code(205);
        assert!(done.err().contains("incarnation 2"), "{}", done.err());
        assert_eq!(self.commits().len(), 1);
    }

    /// Restores into a new directory; returns its path.
    #[track_caller]
    pub fn pull_afresh(&self, name: &str) -> PathBuf {
        let to = self.path(name);
        self.checkpoint_in("pull", &to).output().expect_code(0);
        to
    }

    /// Writes a checkpoint of three files that only this step has.
    pub fn save(&self, step: u64) -> BTreeMap<String, Vec<u8>> {
        save_in(&self.local(), step);
        tree(&self.local().join(format!("step-{step}")))
    }

    /// Saves and pushes these steps, one after another.
    #[track_caller]
    pub fn save_and_push(&self, steps: RangeInclusive<u64>) {
        for step in steps {
            self.save(step);
            self.push_one();
        }
    }

    /// The commits of the store as `list --json` shows them, newest first.
    #[track_caller]
    pub fn commits(&self) -> Vec<Value> {
        let done = self.checkpoint("list").args(["--json"]).output().expect_code(0);
        let value: Value = serde_json::from_str(&done.out()).unwrap();
        value["commits"].as_array().unwrap().clone()
    }

    /// Steps of the commits that can be restored, newest first.
    #[track_caller]
    pub fn steps(&self) -> Vec<u64> {
        let commits = self.commits();
        commits.iter().filter(|c| c["complete"] == true).map(|c| c["step"].as_u64().unwrap()).collect()
    }

    /// The newest manifest's path and content.
    pub fn manifest(&self) -> (PathBuf, Value) {
        let dir = self.store().join(".trainit/commits");
        let mut paths: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        let path = paths.pop().unwrap();
        let value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        (path, value)
    }

    /// Puts a manifest into the store as attempt 9, under a name that fits it.
    pub fn forge(&self, mut manifest: Value) {
        manifest["attempt"] = 9.into();
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let hash = blake3::hash(&bytes).to_hex();
        let (seq, step) = (manifest["seq"].as_u64().unwrap_or(1), manifest["step"].as_u64().unwrap_or(0));
        let name = format!(".trainit/commits/0000000009-{seq:06}-{step:012}-{}.json", &hash.as_str()[..16]);
        fs::write(self.store().join(name), bytes).unwrap();
    }
}

pub fn save_in(local: &Path, step: u64) {
    let unit = local.join(format!("step-{step}"));
    fs::create_dir_all(unit.join("layers")).unwrap();
    fs::write(unit.join("weights.bin"), format!("weights of {step} ").repeat(1000)).unwrap();
    fs::write(unit.join("layers/0.bin"), vec![step as u8 + 1; 5000]).unwrap();
    fs::write(unit.join("state.json"), format!("{{\"step\": {step}}}")).unwrap();
}

/// Every file under a directory except trainit's own: path to content. Directories end in `/`, links have their target,
/// and any other entry has its mode and time before its content.
pub fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn visit(root: &Path, at: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if name == ".trainit" {
            } else if metadata.is_dir() {
                found.insert(format!("{name}/"), Vec::new());
                visit(root, &path, found);
            } else if metadata.is_symlink() {
                found.insert(name, format!("-> {}", fs::read_link(&path).unwrap().display()).into_bytes());
            } else {
                let stat = format!("{:o} {}.{} ", metadata.mode() & 0o777, metadata.mtime(), metadata.mtime_nsec());
                found.insert(name, [stat.into_bytes(), fs::read(&path).unwrap()].concat());
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(root, root, &mut found);
    found
}
