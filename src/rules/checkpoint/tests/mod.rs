//! A checkpoint directory, a trainer, a store and two clocks, all in memory.

mod lives;
mod random;
mod rewinds;
mod saves;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::formats::ends::tests::whole_file;
use super::listing::{around, join, parent_of};
use super::*;

/// `--settle` of every test.
const SETTLE: Duration = Duration::from_secs(2);
const HOUR_NS: i64 = 3_600_000_000_000;
/// Names that users give to run directories.
const RUNS: [&str; 9] = [
    "",
    "run",
    "resnet50",
    "exp_5",
    "seed42",
    "llama3-8b",
    "00001-run",
    "2024-05-01_12-30-00",
    "out/run-May-01-0000000",
];

/// A file: content, time by the file server's clock, inode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct File {
    bytes: Vec<u8>,
    mtime_ns: i64,
    inode: u64,
}

/// A checkpoint directory, its tracker and its store.
pub(super) struct Dir {
    files: BTreeMap<String, File>,
    pub(super) options: Options,
    pub(super) open: BTreeSet<String>,
    now: Duration,
    /// The file server's clock minus the local clock, nanoseconds.
    pub(super) skew_ns: i64,
    inodes: u64,
    pub(super) tracker: Tracker,
    /// The last commit and the content of its files.
    pub(super) stored: Option<(Plan, BTreeMap<String, File>)>,
    pub(super) commits: usize,
    warnings: Vec<String>,
    /// The results of the last look and the last rollback.
    parts: Vec<PartState>,
    back: Rollback,
    /// What the record of the directory says.
    recorded: Beside,
    unproven: Beside,
}

impl Peek for BTreeMap<String, File> {
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        let bytes = &self.get(path)?.bytes;
        let from = (from as usize).min(bytes.len());
        Some(bytes[from..(from + length).min(bytes.len())].to_vec())
    }
}

impl Dir {
    pub(super) fn new() -> Dir {
        Dir {
            files: BTreeMap::new(),
            options: Options::default(),
            open: BTreeSet::new(),
            now: Duration::from_secs(1000),
            skew_ns: 0,
            inodes: 0,
            tracker: Tracker::begin(
                Duration::from_secs(1000),
                &Listing::default(),
                &BTreeMap::new(),
                None,
                Earlier::default(),
            ),
            stored: None,
            commits: 0,
            warnings: Vec::new(),
            parts: Vec::new(),
            back: Rollback::default(),
            recorded: Beside::new(),
            unproven: Beside::new(),
        }
    }

    /// Writes a whole file of its type, which takes a fifth of a second.
    pub(super) fn save(&mut self, path: &str) {
        self.write(path, whole_file(path));
    }

    pub(super) fn write(&mut self, path: &str, bytes: impl AsRef<[u8]>) {
        self.now += Duration::from_millis(200);
        self.inodes += 1;
        let mtime_ns = self.now.as_nanos() as i64 + self.skew_ns;
        self.files.insert(path.to_owned(), File { bytes: bytes.as_ref().to_vec(), mtime_ns, inode: self.inodes });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        let is_of = |path: &str| around(path).any(|outer| outer == from);
        let (moved, stays) = std::mem::take(&mut self.files).into_iter().partition(|(path, _)| is_of(path));
        self.files = stays;
        let renamed = |(path, file): (String, File)| (format!("{to}{}", &path[from.len()..]), file);
        self.files.extend(BTreeMap::into_iter(moved).map(renamed));
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.files.retain(|other, _| !around(other).any(|outer| outer == path));
    }

    pub(super) fn listing(&self) -> Listing {
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for (path, file) in &self.files {
            for outer in around(parent_of(path)) {
                let directory = Entry { kind: Kind::Directory, ..Entry::file(outer, 0) };
                entries.entry(outer.to_owned()).or_insert(directory);
            }
            let target = std::str::from_utf8(&file.bytes).ok().and_then(|text| text.strip_prefix("-> "));
            let kind = target.map_or(Kind::File, |target| Kind::Symlink(target.to_owned()));
            let (mtime_ns, inode) = (file.mtime_ns, file.inode);
            let entry = Entry { kind, mtime_ns, inode, ..Entry::file(path, file.bytes.len() as u64) };
            entries.insert(path.clone(), entry);
        }
        entries.remove("");
        Listing::new(entries.into_values().collect())
    }

    /// Applies a rule to the present state.
    pub(super) fn with<T>(&mut self, writer: Writer, rule: impl FnOnce(&mut Tracker, &Facts) -> T) -> T {
        let listing = self.listing();
        let scan = Scan { listing: &listing, peek: &self.files, options: &self.options };
        let facts = Facts {
            now: self.now,
            scan,
            open: &self.open,
            heartbeat_step: None,
            writer,
            died_ns: None,
            settle: SETTLE,
        };
        rule(&mut self.tracker, &facts)
    }

    /// One look, and the commit that it plans.
    fn look(&mut self, writer: Writer) {
        let look = self.with(writer, |tracker, facts| tracker.look(facts));
        self.warnings.extend(look.warning);
        self.parts = look.parts;
        let Some(plan) = look.plan else { return };
        let before = self.stored.take().map(|stored| stored.1).unwrap_or_default();
        let file = |file: &PlanFile| match file {
            PlanFile::Local { entry, .. } => Some((entry.path.clone(), self.files.get(&entry.path)?.clone())),
            PlanFile::Carried(path) => Some((path.clone(), before.get(path).expect("the last commit has it").clone())),
        };
        let named: usize = plan.parts.iter().map(|part| part.record.files.len()).sum();
        assert_eq!(named, plan.files.len(), "each file is of one part");
        let files = plan.files.iter().filter_map(file).collect();
        self.tracker.committed(&plan);
        self.stored = Some((plan, files));
        self.commits += 1;
        self.write_record();
    }

    /// Lets time pass, with a look each half second.
    pub(super) fn wait(&mut self, seconds: f64) {
        for _ in 0..(seconds * 2.0) as usize {
            self.now += Duration::from_millis(500);
            self.look(Writer::Running);
        }
        self.look(Writer::Running);
    }

    /// The trainer is killed and its next attempt starts, on the same disk.
    pub(super) fn kill(&mut self) {
        self.look(Writer::Killed);
        self.roll_back();
    }

    /// The whole machine dies; the next attempt finds the disk, but not the earlier looks.
    fn crash(&mut self) {
        self.begin(Some(self.recorded.clone()));
        self.roll_back();
    }

    /// The machine and its disk are lost: the next attempt gets the last commit.
    pub(super) fn lose_disk(&mut self) {
        self.files = self.stored.as_ref().map(|stored| stored.1.clone()).unwrap_or_default();
        let mut last = self.tracker.last().cloned();
        let listing = self.listing();
        if let Some(last) = &mut last {
            last.entries = listing.entries().iter().map(|e| (e.path.clone(), e.clone())).collect();
        }
        self.tracker = Tracker::begin(self.now, &listing, &self.files, last, Earlier::default());
        self.write_record();
    }

    /// Begins again with the same record.
    fn begin(&mut self, before: Option<Beside>) {
        let last = self.tracker.last().cloned();
        let earlier = Earlier { before, unproven: std::mem::take(&mut self.unproven) };
        self.unproven = earlier.unproven.clone();
        self.tracker = Tracker::begin(self.now, &self.listing(), &self.files, last, earlier);
    }

    /// As at each start and commit.
    fn write_record(&mut self) {
        self.recorded = self.tracker.beside().clone();
    }

    fn roll_back(&mut self) {
        self.back = self.with(Writer::Killed, |tracker, facts| tracker.after_death(facts));
        for (path, _) in &self.back.to_torn {
            self.files.remove(path).expect("the moved file exists");
        }
        for path in self.back.put_back.clone() {
            let file = self.stored.as_ref().and_then(|stored| stored.1.get(&path)).expect("the commit has it").clone();
            self.inodes += 1;
            self.files.insert(path.clone(), File { inode: self.inodes, ..file });
            let entry = self.listing().get(&path).expect("is there").clone();
            let last = self.tracker.history.last.as_mut().expect("there is a commit");
            last.entries.insert(path, entry);
        }
        self.unproven.clone_from(&self.back.unproven);
        self.begin(None);
        self.write_record();
    }

    /// The checkpoint that the next attempt resumes from.
    pub(super) fn resume(&mut self) -> Option<(String, Option<u64>)> {
        let found = self.with(Writer::Running, |tracker, facts| {
            tracker.update(facts);
            resume(&facts.scan, tracker)
        });
        found.map(|resume| (resume.unit.unwrap_or_else(|| ".".to_owned()), resume.step))
    }

    /// Whether the store has this file with its present content.
    pub(super) fn has_stored(&self, path: &str) -> bool {
        let stored = self.stored.as_ref().and_then(|stored| stored.1.get(path));
        stored.is_some_and(|file| self.files.get(path).is_some_and(|here| here.mtime_ns == file.mtime_ns))
    }

    pub(super) fn stored_paths(&self) -> Vec<&str> {
        self.stored.as_ref().map(|stored| stored.1.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Every unit, with its row and state.
    pub(super) fn units(&mut self) -> Vec<(String, &'static str, UnitState)> {
        self.with(Writer::Running, |tracker, facts| {
            tracker.update(facts);
            let found = partition(&facts.scan, tracker.history());
            let of = |root: &Root| -> Vec<_> {
                root.units.iter().map(|u| (u.path.clone(), root.layout.name, u.state.clone())).collect()
            };
            found.roots.iter().flat_map(of).collect()
        })
    }

    pub(super) fn is_complete(&mut self, unit: &str) -> bool {
        self.units().iter().any(|(path, _, state)| path == unit && *state == UnitState::Complete)
    }

    /// Plays a life: statements of a word and its arguments, separated by `;` or a new line. The words in the second half of
    /// the match are assertions.
    pub(super) fn play(&mut self, name: &str, life: &str) {
        for statement in life.split([';', '\n']).map(str::trim).filter(|statement| !statement.is_empty()) {
            let place = format!("{name}: {statement}: {:?}, stored {:?}", self.parts, self.stored_paths());
            let (word, rest) = statement.split_once(' ').unwrap_or((statement, ""));
            let args: Vec<&str> = rest.split_whitespace().collect();
            let number = || rest.parse::<u32>().ok();
            match word {
                "save" => args.iter().for_each(|path| self.save(path)),
                "tear" => self.write(rest, &whole_file(rest)[..whole_file(rest).len() / 2]),
                "write" => {
                    let (path, text) = rest.split_once(' ').unwrap_or((rest, ""));
                    self.write(path, text);
                }
                "remove" => self.remove(rest),
                "huggingface" => {
                    for file in
                        "config.json model.safetensors training_args.bin optimizer.pt rng_state.pth trainer_state.json"
                            .split(' ')
                    {
                        let unit = join(args[0].trim_matches('.'), &format!("checkpoint-{}", args[1]));
                        self.save(&join(&unit, file));
                    }
                }
                "deepspeed" => {
                    let (root, tag) = (args[0], format!("global_step{}", args[1]));
                    self.save(&format!("{root}/{tag}/mp_rank_00_model_states.pt"));
                    self.save(&format!("{root}/{tag}/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"));
                    self.write(&format!("{root}/latest"), tag);
                }
                "metadata" => self.write(&format!("{rest}/.metadata"), b"\x80\x04.__0_0.distcp\x80\x04."),
                "open" => self.open = BTreeSet::from([rest.to_owned()]),
                "close" => self.open.clear(),
                "skew" => self.skew_ns = rest.parse::<i64>().expect("hours") * HOUR_NS,
                "wait" => self.wait(rest.parse().expect("seconds")),
                "look" => self.look(Writer::Running),
                "finish" => self.look(Writer::Finished),
                "kill" => self.kill(),
                "crash" => self.crash(),
                "lose" => self.lose_disk(),
                "forget" => {
                    self.tracker = Tracker::begin(self.now, &self.listing(), &self.files, None, Earlier::default());
                    self.write_record();
                }
                "push" => self.tracker = Tracker::pushed(self.now, &self.listing(), &self.files),
                "world" => self.options.world_size = number(),
                "keep" => self.options.keep_saves = number(),
                "marker" => self.options.marker = Some(rest.to_owned()),
                "format" => self.options.format = Format::parse(rest).expect("is known"),
                "step" => self.options.step = regex::Regex::new(rest).ok(),
                "commits" => assert_eq!(Some(self.commits as u32), number(), "{place}"),
                "count" => assert_eq!(Some(self.stored_paths().len() as u32), number(), "{place}"),
                "stored" => assert!(args.iter().all(|path| self.has_stored(path)), "{place}"),
                "only" => assert_eq!(self.stored_paths(), args, "{place}"),
                "without" => assert!(!self.stored_paths().iter().any(|path| path.contains(rest)), "{place}"),
                "torn" => assert!(self.back.to_torn.iter().map(|torn| &torn.0).eq(&args), "{place} {:?}", self.back),
                "back" => assert_eq!(self.back.put_back, args, "{place}"),
                "state" => assert!(format!("{:?}", self.parts).contains(rest), "{place}"),
                "unit" => {
                    let state = format!("{:?}", self.units()[0].2);
                    let (kind, why) = rest.split_once(' ').unwrap_or((rest, ""));
                    assert!(state.starts_with(kind) && state.contains(why), "{place}: {state}");
                }
                "no-unit" => assert_eq!(self.units(), [], "{place}"),
                "warned" => {
                    assert!(self.warnings.len() == 1 && self.warnings[0].contains(rest), "{place} {:?}", self.warnings)
                }
                "resume" => {
                    let step = args[1].parse().ok();
                    assert_eq!(self.resume(), Some((args[0].to_owned(), step)), "{place}");
                }
                "explain" => {
                    let found = self.with(Writer::Running, |tracker, facts| explain(facts, tracker, args[0]));
                    let explanation = format!("{} {}", found.decided_by, found.detail);
                    assert!(
                        explanation.starts_with(args[1]) && explanation.contains(&args[2..].join(" ")),
                        "{place}: {explanation}"
                    );
                }
                other => panic!("{other} is an unknown word: {place}"),
            }
        }
    }
}
