//! Pointers that no layout of ours writes: a small file or a link beside the checkpoints, by whose name and content anybody
//! sees that it names one of them. `latest` beside `step-100`, `last_checkpoint`, `latest.pt`.

use super::listing::{Entry, Kind, name_of, parent_of};
use super::unit::{Candidate, Pointer, Scan};

/// Longer files are no pointers.
const LONGEST: u64 = 4 << 10;

/// Those beside the unit that name it.
pub(super) fn beside<'a>(scan: &'a Scan, unit: &'a Candidate) -> impl Iterator<Item = Pointer> + 'a {
    let all = scan.listing.within(parent_of(&unit.unit)).filter(|e| is_called_so(e.name()));
    all.filter_map(|entry| pointer(scan, unit, entry))
}

fn is_called_so(name: &str) -> bool {
    name.starts_with("latest") || name.starts_with("last") || name == "checkpoint"
}

/// Whether a link says the name beside it, as `./step-100` does, too.
fn is_beside(to: &str, name: &str) -> bool {
    to.trim_end_matches('/').trim_start_matches("./") == name
}

fn pointer(scan: &Scan, unit: &Candidate, entry: &Entry) -> Option<Pointer> {
    let name = name_of(&unit.unit);
    let path = entry.path.clone();
    match &entry.kind {
        // From a restore it leads to the one beside it, wherever the directory lies then.
        Kind::Symlink(to)
            if is_beside(to, name) || to.starts_with('/') && name_of(to.trim_end_matches('/')) == name =>
        {
            Some(Pointer { path, content: name.to_owned(), symlink: true })
        }
        Kind::File if entry.size <= LONGEST && !unit.paths.contains(&path) => {
            let content = scan.text(&path)?;
            let said = content.trim();
            let is_step = unit.step.is_some_and(|step| said.parse() == Ok(step));
            let names = is_step || !said.contains('\n') && name_of(said.trim_end_matches('/')) == name;
            names.then_some(Pointer { path, content, symlink: false })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::{Options, Pointer, Scan, pointers, recognise};

    /// The pointers of the newest unit.
    fn of(memory: &Memory) -> Vec<Pointer> {
        let (listing, options) = (memory.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: memory, options: &options };
        let found = recognise(&scan).expect("something is recognised");
        pointers(found.layout, &scan, &found.candidates[0])
    }

    fn pointer(path: &str, content: &str, symlink: bool) -> Vec<Pointer> {
        vec![Pointer { path: path.into(), content: content.into(), symlink }]
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
    fn what_names_another_or_is_no_pointer_is_none() {
        for (path, content) in [
            ("latest", "step-90"),
            ("latest", "step-100\nstep-90"),
            ("latest", "-> step-90"),
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
