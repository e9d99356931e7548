//! Random lives of trainers: nothing whole that an earlier life left is ever moved, and no commit drops what is there.

use super::*;

/// A small generator of pseudo-random numbers (an LCG with the constants of Knuth's MMIX).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const KINDS: [&[&str]; 7] = [
    &["run/model_N.pt", "run/optim_N.pt"],
    &["last.pt"],
    &["G.pth", "D.pth", "run/state.yaml"],
    &["step_N/model.safetensors", "step_N/optim.pt"],
    &["out/checkpoint-N/model.safetensors", "out/checkpoint-N/rng_state.pth", "out/checkpoint-N/trainer_state.json"],
    &["ck/epoch=N.ckpt", "ck/last.ckpt"],
    &["tokenizer.json"],
];

/// The directory when the present life began.
type Before = BTreeMap<String, File>;

struct Life {
    dir: Dir,
    before: Before,
    step: u64,
}

impl Life {
    /// Writes a save of one kind, perhaps only some of its files, the last of them perhaps torn.
    fn save(&mut self, dice: &mut Dice, is_cut: bool) {
        self.step += 1;
        let kind = KINDS[dice.roll(KINDS.len() as u64) as usize];
        let files = if is_cut { 1 + dice.roll(kind.len() as u64) as usize } else { kind.len() };
        for (at, path) in kind[..files].iter().enumerate() {
            let path = path.replace('N', &self.step.to_string());
            let content = match path.rsplit('/').next() {
                Some("trainer_state.json") => format!("{{\"global_step\": {}}}", self.step).into_bytes(),
                _ => whole_file(&path),
            };
            let is_torn = is_cut && at + 1 == files && dice.roll(2) == 0;
            self.dir.write(&path, &content[..content.len() / if is_torn { 2 } else { 1 }]);
        }
    }

    /// Looks for some time, and checks each commit.
    fn wait(&mut self, looks: u64) {
        for _ in 0..looks {
            self.dir.now += Duration::from_millis(500);
            self.look(Writer::Running);
        }
    }

    fn look(&mut self, writer: Writer) {
        let before = self.dir.stored.as_ref().map(|stored| stored.1.clone()).unwrap_or_default();
        self.dir.look(writer);
        let Some((plan, after)) = &self.dir.stored else { return };
        for path in before.keys().filter(|path| !after.contains_key(*path)) {
            let is_older = plan.older.iter().any(|unit| around(path).any(|outer| outer == unit));
            assert!(!self.dir.files.contains_key(path) || is_older, "{path} was dropped: {:?}", after.keys());
        }
        for (path, file) in after {
            let entry = Entry::file(path, file.bytes.len() as u64);
            let files = BTreeMap::from([(path.clone(), file.clone())]);
            assert_eq!(ends::whole(&files, &entry), Ok(()), "a torn file was committed");
        }
    }

    /// What was moved was changed by the life that ended; then the next life begins.
    fn check_moved(&mut self, had: Before) {
        for (path, why) in &self.dir.back.to_torn {
            assert_ne!(had.get(path), self.before.get(path), "{path} of an earlier life was moved: {why}");
        }
        let moved: BTreeSet<&String> = self.dir.back.to_torn.iter().map(|(path, _)| path).collect();
        for path in had.keys() {
            assert!(self.dir.files.contains_key(path) || moved.contains(path), "{path} is gone");
        }
        self.before = self.dir.files.clone();
    }
}

#[test]
fn no_life_moves_a_file_of_an_earlier_one_or_drops_a_path_that_exists() {
    for seed in 0..24 {
        let mut dice = Dice(seed);
        let mut life = Life { dir: Dir::new(), before: Before::new(), step: 0 };
        for kind in ["placed/bert.ckpt.data-00000-of-00001", "placed/half.pt", "placed/checkpoint-7/rng_state.pth"] {
            life.dir.write(kind, &whole_file(kind)[..20]);
        }
        life.before = life.dir.files.clone();
        life.dir.play("the first start", "forget");
        for _ in 0..30 {
            match dice.roll(8) {
                0..=3 => life.save(&mut dice, false),
                4 => {
                    life.save(&mut dice, true);
                    let had = life.dir.files.clone();
                    match dice.roll(2) {
                        0 => {
                            life.look(Writer::Killed);
                            life.dir.roll_back();
                        }
                        _ => life.dir.crash(),
                    }
                    life.check_moved(had);
                }
                5 => {
                    let files: Vec<String> = life.dir.files.keys().cloned().collect();
                    life.dir.remove(&files[dice.roll(files.len() as u64) as usize]);
                    life.before.retain(|path, _| life.dir.files.contains_key(path));
                }
                _ => {
                    let looks = dice.roll(20);
                    life.wait(looks);
                }
            }
        }
    }
}
