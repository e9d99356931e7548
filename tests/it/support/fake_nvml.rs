//! A fake `libnvidia-ml.so.1`, built from `tests/fake_nvml/nvml.c`, and the scenario that controls it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::Trainit;

/// The driver that the library imitates.
#[derive(Clone, Copy, PartialEq)]
pub enum Driver {
    Current,
    /// Before R510: no second memory call, no row remapper.
    Old,
    /// Before R450: the first event wait only.
    Ancient,
}

/// A scenario file in a temporary directory, and the library that reads it.
pub struct FakeNvml {
    dir: tempfile::TempDir,
    file: &'static Path,
}

impl FakeNvml {
    /// A library with these scenario lines.
    pub fn new(lines: &[&str]) -> FakeNvml {
        FakeNvml::of(Driver::Current, lines)
    }

    pub fn of(driver: Driver, lines: &[&str]) -> FakeNvml {
        let fake = FakeNvml { dir: tempfile::tempdir().unwrap(), file: library(driver) };
        fake.play(lines);
        fake
    }

    /// Replaces the scenario; a running probe reads it at its next call.
    pub fn play(&self, lines: &[&str]) {
        let trace = format!("trace {}", self.path("trace").display());
        let state = format!("state {}", self.path("state").display());
        let text = [lines, &[&trace, &state]].concat().join("\n") + "\n";
        std::fs::write(self.path("next"), text).unwrap();
        std::fs::rename(self.path("next"), self.path("scenario")).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The library's directory, for `LD_LIBRARY_PATH`.
    pub fn dir_of_library(&self) -> &Path {
        self.file.parent().unwrap()
    }

    /// trainit with this driver.
    pub fn trainit(&self, args: &[&str]) -> Trainit {
        Trainit::new(args).env("TRAINIT_NVML_LIBRARY", self.file).env("FAKE_NVML", self.path("scenario"))
    }

    /// `trainit gpus --json` with this driver, as an object.
    #[track_caller]
    pub fn gpus(&self) -> serde_json::Value {
        let done = self.trainit(&["gpus", "--json"]).output().expect_code(0);
        serde_json::from_str(&done.out()).unwrap_or_else(|e| panic!("{e}: {}", done.out()))
    }

    /// The calls made so far: the process and the function.
    pub fn calls(&self) -> Vec<(i32, String)> {
        let text = std::fs::read_to_string(self.path("trace")).unwrap_or_default();
        let pair = |line: &str| line.split_once(' ').map(|(pid, name)| (pid.parse().unwrap(), name.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    /// The state of the last probe, as it was at `nvmlInit_v2`: the value after this key.
    #[track_caller]
    pub fn state(&self, key: &str) -> String {
        let text = std::fs::read_to_string(self.path("state")).unwrap();
        let found =
            text.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim_matches([' ', '\t', ':']));
        found.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
    }

    /// All lines of the probe's state with this key.
    pub fn states(&self, key: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("state")).unwrap();
        text.lines().filter_map(|line| line.strip_prefix(key)).map(|rest| rest.trim().to_owned()).collect()
    }
}

/// Builds each library when its source is newer. Each test may be a separate process, so the file is renamed into place.
fn library(driver: Driver) -> &'static Path {
    static BUILT: [OnceLock<PathBuf>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let (slot, name, flags): (_, _, &[&str]) = match driver {
        Driver::Current => (0, "current", &[]),
        Driver::Old => (1, "old", &["-DOLD_DRIVER"]),
        Driver::Ancient => (2, "ancient", &["-DOLD_DRIVER", "-DEVENTS_V1"]),
    };
    BUILT[slot].get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-nvml").join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvml/nvml.c");
        let library = dir.join("libnvidia-ml.so.1");
        let changed = |path: &Path| std::fs::metadata(path).and_then(|about| about.modified()).ok();
        if changed(&library) > changed(&source) {
            return library;
        }
        let mine = dir.join(format!("{}.tmp", std::process::id()));
        let status = Command::new("cc")
            .args(["-std=c11", "-O1", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1"])
            .args(flags)
            .arg(source)
            .arg("-o")
            .arg(&mine)
            .status()
            .expect("the fake driver needs a C compiler named cc");
        assert!(status.success(), "cc failed");
        std::fs::rename(mine, &library).unwrap();
        library
    })
}
