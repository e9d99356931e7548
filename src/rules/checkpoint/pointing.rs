//! Pointers that no layout of ours writes: a small file or a link beside the checkpoints, by whose name and content anybody
//! sees that it names one of them. `latest` beside `step-100`, `last_checkpoint`, `latest.pt`. And the tracker of what saves
//! for others, beside theirs.

use std::cmp::Reverse;

use super::called::{is_best, series_of};
use super::dlrover;
use super::layout::Pointer;
use super::listing::{Entry, Kind, Listing, name_of, parent_of};
use super::steps::step_in;
use super::unit::{Candidate, Scan};

/// Longer files are no pointers.
const LONGEST: u64 = 4 << 10;

/// Those beside the unit that name it, or another step's: these are to name it where it is put, since the trainer moves them
/// after a save, and may have moved them on.
pub(super) fn beside<'a>(scan: &'a Scan, unit: &'a Candidate) -> impl Iterator<Item = Pointer> + 'a {
    let all = scan.listing.within(parent_of(&unit.unit)).filter(|e| is_pointers(e.name()));
    all.filter_map(|entry| pointer(scan, unit, entry)).chain(dlrover::pointers(scan, unit))
}

/// Whether a pointer beside the unit names it, or a later one.
pub(super) fn is_named(scan: &Scan, unit: &Candidate) -> bool {
    let is_later = |said: &str| is_another(unit, said) && step_in(said) > unit.step;
    let mut all = scan.listing.within(parent_of(&unit.unit)).filter(|e| is_pointers(e.name()) && e.size <= LONGEST);
    all.any(|entry| {
        let said = scan.text(&entry.path).unwrap_or_default();
        let said = name_of(said.trim().trim_end_matches('/'));
        said == name_of(&unit.unit) || is_later(said)
    })
}

/// Whether a pointer that is empty named this checkpoint before: whoever moves one on empties it first, and may be killed
/// then. So it did all that are older than the one of these that was written last, which it was to name.
pub(super) fn was_named<'a>(scan: &Scan, unit: &Candidate, all: impl Iterator<Item = (&'a Entry, u64)>) -> bool {
    // Of several that were written at once, as in a copy, none tells more than that of the lowest step.
    let last = all.map(|(entry, step)| (scan.listing.newest_ns(&entry.path), Reverse(step))).max();
    unit.step.zip(last).is_some_and(|(ours, (_, Reverse(last)))| ours < last)
}

/// Whether a pointer that says this was moved on from the checkpoint of this step, is empty, or names an older one that is not
/// there: it was deleted before the pointer was moved. One to an older that `is_there`, or to what has no step, is the
/// trainer's own affair.
pub fn has_moved_on(said: &str, step: Option<u64>, is_there: impl Fn(u64) -> bool) -> bool {
    let first = said.trim().lines().next().unwrap_or_default();
    let Some((said, step)) = step_in(name_of(first.trim_end_matches('/'))).zip(step) else { return first.is_empty() };
    said > step || said < step && !is_there(said)
}

/// Whether a pointer's file says already what it is to say. Of several lines it may say more: TensorFlow's state file names
/// what its manager has yet to delete, too.
pub fn says(said: &str, content: &str) -> bool {
    let is_same_first = said.lines().next() == content.lines().next();
    let has_all = || content.lines().all(|line| said.lines().any(|other| other == line));
    said == content || content.lines().count() > 1 && is_same_first && has_all()
}

/// The directory in which a pointer names the unit by its absolute path.
pub fn home<'a>(said: &'a str, unit: &str) -> Option<&'a str> {
    let home = said.trim().trim_end_matches('/').strip_suffix(unit)?.strip_suffix('/')?;
    (home.starts_with('/') && !home.contains('\n')).then_some(home)
}

/// What such a pointer says where the directory is another; `None`: it is none such.
pub fn moved(said: &str, unit: &str, from: &str, to: &str) -> Option<String> {
    home(said, unit).filter(|home| *home == from).map(|home| said.replacen(home, to, 1))
}

/// Whether something of this step lies where the unit does.
pub fn is_there(listing: &Listing, unit: &str, step: u64) -> bool {
    listing.within(parent_of(unit)).any(|e| step_in(e.name()) == Some(step))
}

/// Whether a pointer may be called so.
fn is_pointers(name: &str) -> bool {
    (name.starts_with("latest") || name.starts_with("last") || name == "checkpoint") && !is_best(name)
}

fn pointer(scan: &Scan, unit: &Candidate, entry: &Entry) -> Option<Pointer> {
    let name = name_of(&unit.unit);
    let path = entry.path.clone();
    match &entry.kind {
        // From a restore it leads to the one beside it, wherever the directory lies then.
        Kind::Symlink(to) => {
            let to = to.trim_end_matches('/');
            let is_beside = to.starts_with('/') || !to.trim_start_matches("./").contains('/');
            let leads = is_beside && (name_of(to) == name || is_another(unit, name_of(to)));
            leads.then(|| Pointer { path, content: name.to_owned(), symlink: true })
        }
        Kind::File if is_emptied(entry) && unit.step.is_some() => {
            Some(Pointer { path, content: name.to_owned(), symlink: false })
        }
        Kind::File if entry.size <= LONGEST && !unit.paths.contains(&path) => {
            let content = scan.text(&path)?;
            let said = Some(content.trim().trim_end_matches('/')).filter(|said| !said.contains('\n'))?;
            let at = content.find(said)? + said.len() - name_of(said).len();
            let said = name_of(said);
            let names = said == name || unit.step.is_some_and(|step| said.parse() == Ok(step));
            let rewritten = match unit.step {
                _ if names => content.clone(),
                _ if is_another(unit, said) => format!("{}{name}{}", &content[..at], &content[at + said.len()..]),
                Some(step) if is_step_of_another(scan, unit, said) => {
                    format!("{}{step}{}", &content[..at], &content[at + said.len()..])
                }
                _ => return None,
            };
            Some(Pointer { path, content: rewritten, symlink: false })
        }
        _ => None,
    }
}

/// Whether a pointer was emptied to be moved on, and its trainer killed then: with none on an empty disk, Detectron2 begins anew.
fn is_emptied(entry: &Entry) -> bool {
    const ALWAYS: [&str; 4] = ["latest", "last", "latest_checkpoint", "last_checkpoint"];
    entry.size == 0 && ALWAYS.contains(&entry.name().trim_end_matches(".txt"))
}

/// Whether a name is that of another step's checkpoint, called as this one is.
fn is_another(unit: &Candidate, said: &str) -> bool {
    let is_alike = series_of(said) == series_of(name_of(&unit.unit));
    unit.step.is_some() && step_in(said).is_some() && step_in(said) != unit.step && is_alike
}

fn is_step_of_another(scan: &Scan, unit: &Candidate, said: &str) -> bool {
    let is_it =
        |e: &Entry| is_another(unit, e.name()) && step_in(e.name()).is_some_and(|step| said == step.to_string());
    scan.listing.within(parent_of(&unit.unit)).any(is_it)
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::recognised;
    use super::super::{Options, Pointer, pointers};
    use super::{has_moved_on, says};

    /// The pointers of the newest unit.
    fn of(memory: &Memory) -> Vec<Pointer> {
        recognised(memory, &Options::default(), |found, scan| pointers(found.layout, scan, &found.candidates[0]))
    }

    fn pointer(path: &str, content: &str, symlink: bool) -> Vec<Pointer> {
        vec![Pointer { path: path.into(), content: content.into(), symlink }]
    }

    #[test]
    fn a_state_file_that_names_the_unit_beside_older_ones_says_so_already_and_a_longer_pointer_of_one_line_does_not() {
        let state = "model: \"m-20\"\nall: \"m-20\"\n";
        assert!(says(state, state) && says("model: \"m-20\"\nall: \"m-10\"\nall: \"m-20\"\ntimes: 1.5\n", state));
        for said in ["model: \"m-30\"\nall: \"m-20\"\nmodel: \"m-20\"\n", "model: \"m-20\"\nall: \"m-10\"\n", ""] {
            assert!(!says(said, state), "{said:?}");
        }
        assert!(says("step-20", "step-20") && !says("step-20\nstep-10", "step-20") && !says("", "step-20"));
    }

    #[test]
    fn a_pointer_that_is_empty_names_the_checkpoint_of_a_step_beside_it() {
        for [name, unit] in
            [["last_checkpoint", "model_20.pth"], ["latest", "step-20"], ["run/latest.txt", "run/step-20"]]
        {
            let file = if unit.ends_with(".pth") { unit.to_owned() } else { format!("{unit}/w.safetensors") };
            let memory = Memory::default().saved(&[&file]).with(name, "");
            assert_eq!(of(&memory), pointer(name, unit.trim_start_matches("run/"), false));
        }
        for [name, file] in
            [["last.lock", "model_20.pth"], ["latest", "last.pt"], ["last_done", "step-20/w.safetensors"]]
        {
            assert_eq!(of(&Memory::default().saved(&[file]).with(name, "")), [], "{name}");
        }
    }

    #[test]
    fn a_pointer_has_moved_on_where_it_names_a_later_step_or_nothing_that_is_there() {
        let has_moved_on = |said: &str, step: Option<u64>| has_moved_on(said, step, |step| step != 5);
        for said in [
            "20",
            "global_step20\n",
            "run_7/model_20.pt",
            "model_checkpoint_path: \"m-20\"\nall: \"m-5\"",
            "",
            " \n",
            "5",
        ] {
            assert!(has_moved_on(said, Some(10)), "{said:?}");
        }
        for said in ["10", "9", "release", "run_20/model_10.h5", "epoch=1-step=10.ckpt", "best"] {
            assert!(!has_moved_on(said, Some(10)), "{said:?}");
        }
        assert!(has_moved_on("", None) && !has_moved_on("20", None));
    }

    #[test]
    fn an_absolute_path_to_the_unit_goes_with_the_directory() {
        let moved = |said: &str| super::moved(said, "run/step-1", "/old", "/new");
        assert_eq!(moved("/old/run/step-1").as_deref(), Some("/new/run/step-1"));
        assert_eq!(moved(" /old/run/step-1/\n").as_deref(), Some(" /new/run/step-1/\n"));
        for other in ["run/step-1", "/run/step-1", "/old/run/step-12", "/older/run/step-1", "/old/step-1", "", "step-1"]
        {
            assert_eq!(moved(other), None, "{other}");
        }
    }

    #[test]
    fn what_names_the_checkpoint_beside_it_is_its_pointer_in_any_layout() {
        let torch = || Memory::default().with("run/model_100.pt", zip_of(b"w", b""));
        let dcp = || Memory::of(&[("step_100/.metadata", "__0_0.distcp"), ("step_100/__0_0.distcp", "x")]);
        let anybodys = || Memory::of(&[("global_step_100/data", "x")]);
        for (memory, path, content) in [
            (torch(), "run/last_checkpoint", "model_100.pt"),
            (torch(), "run/last_checkpoint", "/ckpts/run/model_100.pt\n"),
            (dcp(), "latest", "step_100"),
            (anybodys(), "latest_checkpointed_iteration.txt", "100"),
            (Memory::of(&[("100/w", "x")]), "latest.txt", "100"),
        ] {
            assert_eq!(of(&memory.with(path, content)), pointer(path, content, false), "{path}");
        }
        for (memory, path, to, unit) in [
            (torch(), "run/latest.pt", "model_100.pt", "model_100.pt"),
            (dcp(), "latest", "/ckpt/step_100", "step_100"),
            (dcp(), "latest", "./step_100", "step_100"),
            (dcp(), "latest", "step_100/", "step_100"),
            (anybodys(), "last", "global_step_100", "global_step_100"),
        ] {
            assert_eq!(of(&memory.with(path, format!("-> {to}"))), pointer(path, unit, true), "{path}");
        }
    }

    #[test]
    fn one_that_names_another_step_beside_it_is_rewritten_to_name_this() {
        for said in ["step-90", "step-110"] {
            let memory = || Memory::of(&[("step-100/w", "x"), (&format!("{said}/.tmp"), "x")]);
            for (path, content, rewritten) in [
                ("latest", said.to_owned(), "step-100"),
                ("latest", format!("/old/place/{said}/\n"), "/old/place/step-100/\n"),
                ("latest.txt", said.replace("step-", ""), "100"),
            ] {
                let pointers = recognised(&memory().with(path, &content), &Options::default(), |found, scan| {
                    let unit = found.candidates.iter().find(|unit| unit.unit == "step-100").expect("the unit");
                    pointers(found.layout, scan, unit)
                });
                assert_eq!(pointers, pointer(path, rewritten, false), "{path} {content}");
            }
            assert_eq!(of(&memory().with("last", format!("-> {said}"))).len(), 1);
        }
    }

    #[test]
    fn a_tracker_of_what_saves_for_other_frameworks_goes_with_theirs() {
        let part = zip_of(b"w", b"");
        let megatron = Memory::of(&[("latest_checkpointed_iteration.txt", "10")])
            .with("iter_0000010/mp_rank_00/model_optim_rng.pt", &part);
        let deepspeed =
            Memory::of(&[("latest", "global_step10")]).with("global_step10/mp_rank_00_model_states.pt", &part);
        for (memory, own, said) in
            [(megatron, "latest_checkpointed_iteration.txt", "10"), (deepspeed, "latest", "global_step10")]
        {
            let all = [pointer(own, said, false), pointer("dlrover_latest.txt", "10", false)].concat();
            // It may have moved on, or not have come so far.
            for tracker in ["10", "20", "5"] {
                let memory = memory.clone().with("dlrover_latest.txt", tracker);
                assert_eq!(of(&memory), all, "{own} {tracker}");
            }
            assert_eq!(of(&memory.with("a/dlrover_latest.txt", "10")), all[..1]);
        }
    }

    #[test]
    fn what_names_another_or_is_no_pointer_is_none() {
        for (path, content) in [
            ("latest", "epoch-90"),
            ("latest", "step-100\nstep-90"),
            ("latest", "seen\n/out/step-100"),
            ("latest", "step"),
            ("latest", "80"),
            ("latest", "-> step"),
            ("latest", "-> ../other/step-100"),
            ("notes.txt", "step-100"),
            ("a/latest", "step-100"),
        ] {
            let memory = Memory::of(&[("step-100/w", "x"), ("step-90/w", "x"), (path, content)]);
            assert_eq!(of(&memory), [], "{path} {content}");
        }
        let plain = Memory::default().with("best.pt", zip_of(b"w", b"")).with("latest", "step-100");
        assert_eq!(of(&plain), []);
        let long = format!("{}step-100", " ".repeat(5000));
        assert_eq!(of(&Memory::of(&[("step-100/w", "x"), ("latest", long.as_str())])), []);
    }
}
