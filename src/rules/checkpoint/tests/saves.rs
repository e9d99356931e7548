//! Recorded saves of every format of the table (`tests/golden/saves`): no prefix of one is complete, and the whole is.

use super::*;

struct Recorded {
    name: &'static str,
    unit: &'static str,
    is_saved_over: bool,
    world_size: Option<u32>,
    steps: Vec<Vec<&'static str>>,
}

/// The recordings, each with its name.
macro_rules! recordings {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../tests/golden/saves/", $name, ".txt")))),*]
    };
}

const RECORDED: [(&str, &str); 20] = recordings![
    "accelerate",
    "composer",
    "dcp",
    "dcp-lightning",
    "deepspeed",
    "deepspeed-fixed",
    "dlrover",
    "flax",
    "huggingface",
    "huggingface-sharded",
    "keras",
    "lightning",
    "lightning-deepspeed",
    "megatron",
    "megatron-legacy",
    "nvrx",
    "orbax",
    "orbax-commit-file",
    "tensorflow",
    "tensorflow-fixed",
];

fn recorded() -> impl Iterator<Item = Recorded> {
    RECORDED.into_iter().map(|(name, text)| {
        let (head, lines) = text.split_once('\n').expect("has a head");
        let word = |key: &str| Some(head.split_once(key)?.1.split_whitespace().next()?.trim_end_matches('.'));
        Recorded {
            name,
            unit: word("Unit: ").expect("names the unit"),
            is_saved_over: head.contains("Saved over"),
            world_size: word("World: ").and_then(|world| world.parse().ok()),
            steps: lines.lines().map(|line| line.splitn(4, ' ').collect()).collect(),
        }
    })
}

impl Recorded {
    /// The row whose name the recording has.
    fn layout(&self) -> &str {
        let own = self.name.strip_prefix("lightning-").unwrap_or(self.name);
        own.split('-').next().filter(|name| LAYOUTS.iter().any(|layout| layout.name == *name)).expect("is called so")
    }

    /// A directory after the first `count` steps, below a run directory; with `is_halved` also half of the next write.
    fn after(&self, run: &str, count: usize, is_halved: bool) -> Dir {
        let mut dir = Dir::new();
        dir.options.world_size = self.world_size;
        self.replay(&mut dir, run, count, is_halved);
        dir
    }

    fn replay(&self, dir: &mut Dir, run: &str, count: usize, is_halved: bool) {
        for (at, step) in self.steps.iter().enumerate().take(count + usize::from(is_halved)) {
            let path = join(run, step[1]);
            let content = step.get(3).map_or_else(|| whole_file(&path), |text| unescaped(text));
            match step[0] {
                "write" if at == count => dir.write(&path, &content[..content.len() / 2]),
                "write" => dir.write(&path, content),
                _ if at == count => {}
                "rename" => dir.rename(&path, &join(run, step[2])),
                "remove" => dir.remove(&path),
                other => panic!("{other}"),
            }
        }
    }
}

/// `\n` and `\x80`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut pieces = text.replace("\\n", "\n").into_bytes();
    while let Some(at) = pieces.windows(2).position(|two| two == b"\\x") {
        let code = std::str::from_utf8(&pieces[at + 2..at + 4]).ok().and_then(|code| u8::from_str_radix(code, 16).ok());
        pieces.splice(at..at + 4, code);
    }
    pieces
}

#[test]
fn only_a_whole_save_is_complete_under_any_run_name() {
    for save in recorded() {
        let unit_of = |run: &str| join(run, save.unit);
        for (run, count) in RUNS.iter().flat_map(|run| (0..=save.steps.len()).map(move |count| (run, count))) {
            let units = save.after(run, count, false).units();
            let is_whole = count == save.steps.len();
            let is_complete = |unit: &(String, &str, UnitState)| unit.2 == UnitState::Complete && unit.1 != "numbered";
            let complete: Vec<_> =
                units.iter().filter(|unit| is_complete(unit)).map(|unit| (&unit.0, unit.1)).collect();
            let wanted = is_whole.then(|| unit_of(run));
            let wanted: Vec<_> = wanted.iter().map(|unit| (unit, save.layout())).collect();
            assert_eq!(complete, wanted, "{} in {run:?} after {count}: {units:?}", save.name);
        }
        // Orbax also accepts an empty `commit_success.txt`.
        for count in (0..save.steps.len()).filter(|at| !save.steps[*at][1].ends_with("commit_success.txt")) {
            let units = save.after("run", count, true).units();
            assert!(units.iter().all(|u| u.2 != UnitState::Complete), "{} in step {count}: {units:?}", save.name);
        }
    }
}

/// Clocks of file servers: right, an hour behind, an hour ahead, and set back by an hour between two saves.
const CLOCKS: [[i64; 2]; 4] = [[0, 0], [-1, -1], [1, 1], [0, -1]];

#[test]
fn a_save_over_the_same_names_is_complete_only_at_its_end_with_any_clock() {
    for save in recorded() {
        let unit = join("run", save.unit);
        let steps = |is_half: bool| (1..=save.steps.len() - usize::from(is_half)).map(move |count| (count, is_half));
        for (clock, (count, is_half)) in
            CLOCKS.iter().flat_map(|c| steps(false).chain(steps(true)).map(move |s| (c, s)))
        {
            let place = format!("{} {clock:?} after {count}", save.name);
            let mut dir = Dir::new();
            dir.options.world_size = save.world_size;
            dir.skew_ns = clock[0] * HOUR_NS;
            save.replay(&mut dir, "run", save.steps.len(), false);
            dir.wait(8.0);
            assert!(dir.is_complete(&unit) && dir.commits > 0, "{place}");
            let first = dir.stored.clone().expect("is committed").1;
            dir.skew_ns = clock[1] * HOUR_NS;
            save.replay(&mut dir, "run", count, is_half);
            // Temporary names alone do not change the unit.
            let is_begun = first.iter().any(|(path, file)| dir.files.get(path) != Some(file));
            let is_whole = count == save.steps.len();
            if is_begun && save.is_saved_over {
                assert_eq!(dir.is_complete(&unit), is_whole, "{place}: {:?}", dir.units());
            }
            // After a kill here, the store has all of one save or all of the other, and so has the disk.
            dir.kill();
            let stored = dir.stored.clone().expect("is committed").1;
            let of_first = |path: &&String| stored.get(*path) == first.get(*path);
            let members: Vec<&String> = first.keys().filter(|path| !path.ends_with(".py")).collect();
            if save.is_saved_over {
                assert!(
                    [0, members.len()].contains(&members.iter().copied().filter(of_first).count()),
                    "{place}: mixed"
                );
                assert!(members.iter().all(|path| dir.has_stored(path)), "{place}: the disk is mixed");
            }
        }
    }
}

#[test]
fn a_first_save_that_was_cut_short_is_never_committed_and_a_whole_one_is() {
    for save in recorded() {
        let whole = save.steps.len();
        for (count, is_half) in (1..whole).flat_map(|count| [(count, false), (count, true)]) {
            // Orbax also accepts an empty `commit_success.txt`.
            if is_half && save.steps[count][1].ends_with("commit_success.txt") {
                continue;
            }
            let mut dir = save.after("run", count, is_half);
            dir.kill();
            assert_eq!(dir.stored_paths(), Vec::<&str>::new(), "{} after {count} of {whole}, {is_half}", save.name);
        }
        let mut dir = save.after("run", whole, false);
        dir.kill();
        assert!(dir.stored.is_some(), "{} is whole", save.name);
    }
}

#[test]
fn the_commit_of_a_save_is_the_newest_unit_and_its_pointers() {
    for save in recorded() {
        let mut dir = save.after("run", save.steps.len(), false);
        dir.wait(8.0);
        let (plan, _) = dir.stored.clone().unwrap_or_else(|| panic!("{} is not committed", save.name));
        let unit = join("run", save.unit);
        assert_eq!(plan.resume.unit.as_deref(), Some(unit.as_str()), "{}", save.name);
        let root = plan.parts.iter().find(|part| part.record.root.is_some()).expect("a root");
        assert_eq!(root.record.layout.as_deref(), Some(save.layout()), "{}", save.name);
        let is_on_disk = |path: &&str| !path.contains("_stage") && dir.files.contains_key(*path);
        let on_disk: Vec<&str> = dir.files.keys().map(String::as_str).filter(is_on_disk).collect();
        assert_eq!(dir.stored_paths().into_iter().filter(is_on_disk).collect::<Vec<_>>(), on_disk, "{}", save.name);
        dir.lose_disk();
        assert_eq!(dir.resume().map(|resume| resume.0), Some(unit), "{}: the restored is complete as well", save.name);
        dir.wait(30.0);
        assert_eq!(dir.commits, 1, "{}: a restore adds nothing new", save.name);
    }
}
