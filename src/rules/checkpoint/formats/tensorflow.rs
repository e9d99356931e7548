//! TensorFlow: `tf.train.Checkpoint`, `CheckpointManager`, Keras' TF format, `PreemptionCheckpointHandler`.
//!
//! A unit is `P-N.index` with its `P-N.data-KKKKK-of-NNNNN`; the text proto `checkpoint`, renamed into place last, names
//! the finished ones: `all_model_checkpoint_paths: "ckpt-10"`. A graph `P-N.meta` (TensorFlow 1) goes with them. What the workers that are not chief write
//! (`workertemp_*`) and half-written parts (`*_temp/`, `*.tempstate*`) are never looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::generic::with_rest;
use crate::rules::checkpoint::containers;
use crate::rules::checkpoint::layout::{Layout, Makeup, Pointer};
use crate::rules::checkpoint::listing::{join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::steps::step_in_stem;
use crate::rules::checkpoint::unit::{Candidate, Scan};

/// The state file's name.
const STATE: &str = "checkpoint";

pub(super) const TENSORFLOW: Layout = Layout {
    pointers,
    makeup: Makeup::Told,
    is_handed_out: true,
    order: obey,
    ..Layout::of("tensorflow", "files named PREFIX-N.index and PREFIX-N.data-K-of-N", find, complete)
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let mut units: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in scan.listing.files() {
        let directory = parent_of(&file.path);
        if directory.split('/').any(|part| part.ends_with("_temp")) || file.name().contains(".tempstate") {
            continue;
        }
        let named = [".index", ".meta"].iter().find_map(|end| file.path.strip_suffix(end));
        if let Some(prefix) = named.or_else(|| Some(shard(&file.path)?.0)) {
            units.entry(prefix).or_default().push(file.path.clone());
        }
    }
    // An index alone may be anybody's; data shards are TensorFlow's own.
    let is_ours = |paths: &Vec<String>| paths.iter().any(|p| shard(p).is_some());
    let units = units.into_iter().filter(|(prefix, paths)| is_ours(paths) && !is_exported(prefix));
    let units = units.filter_map(|(prefix, paths)| {
        let step = scan.step(prefix, step_in_stem(name_of(prefix)))?;
        Some(Candidate::of(prefix.to_owned(), step, paths))
    });
    with_rest(scan, units.collect(), STATE)
}

/// Whether these are the variables of a SavedModel, which no state file ever names. Keras 2 saves checkpoints as such
/// directories; they are left to the rule for any.
fn is_exported(prefix: &str) -> bool {
    name_of(prefix) == "variables" && name_of(parent_of(prefix)) == "variables"
}

/// `P.data-00001-of-00004` as `(P, 1, 4)`.
fn shard(path: &str) -> Option<(&str, u32, u32)> {
    let (prefix, rest) = path.rsplit_once(".data-")?;
    let (number, count) = rest.split_once("-of-")?;
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let index = format!("{}.index", candidate.unit);
    let index = scan.listing.file(&index).ok_or_else(|| format!("{index} is missing"))?;
    containers::table(scan.peek, index).map_err(|why| format!("{}: {why}", index.path))?;
    let shards: Vec<_> = candidate.paths.iter().filter_map(|p| shard(p)).collect();
    let count = shards.first().map_or(0, |s| s.2);
    if shards.iter().any(|s| s.2 != count) {
        return Err("its data files disagree on how many there are".to_owned());
    }
    if let Some(missing) = (0..count).find(|k| !shards.iter().any(|s| s.1 == *k)) {
        return Err(format!("data file {missing} of {count} is missing"));
    }
    scan.all_whole(candidate)?;
    let state = join(parent_of(&candidate.unit), STATE);
    scan.text(&state).ok_or_else(|| format!("the state file {state} is not there yet"))?;
    // By directory and name.
    let named = memo.names(|| {
        let states = scan.listing.files().filter(|f| f.name() == STATE);
        let texts = states.filter_map(|state| Some((parent_of(&state.path), scan.text(&state.path)?)));
        let key = |home: &str, named: &str| (join(home, name_of(named)), String::new());
        texts
            .flat_map(|(home, text)| {
                names(&text, "all_model_checkpoint_paths").iter().map(|named| key(home, named)).collect::<Vec<_>>()
            })
            .collect()
    });
    if named.contains_key(&candidate.unit) { Ok(()) } else { Err(format!("the state file {state} does not name it")) }
}

fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let name = escape(name_of(&candidate.unit));
    let state = scan.text(&join(parent_of(&candidate.unit), STATE));
    let line = state.and_then(|state| timestamp(&state, name_of(&candidate.unit))).unwrap_or_default();
    let content = format!("model_checkpoint_path: \"{name}\"\nall_model_checkpoint_paths: \"{name}\"\n{line}");
    Pointer::file(scan, candidate, STATE, content).into_iter().collect()
}

/// The line that says when this one was saved: a manager never deletes what is there without.
fn timestamp(state: &str, name: &str) -> Option<String> {
    const KEY: &str = "all_model_checkpoint_timestamps:";
    let at = names(state, "all_model_checkpoint_paths").iter().position(|path| name_of(path) == name)?;
    let line = state.lines().filter(|line| line.starts_with(KEY)).nth(at)?;
    line[KEY.len()..].trim().parse::<f64>().ok().map(|_| format!("{line}\n"))
}

/// Puts below what a state file calls the latest what is no younger, whatever its step: an earlier run's.
fn obey(scan: &Scan, candidates: &mut [Candidate]) {
    let homes: BTreeSet<String> = candidates.iter().map(|c| parent_of(&c.unit).to_owned()).collect();
    for home in homes {
        let text = scan.text(&join(&home, STATE)).unwrap_or_default();
        let Some(named) = names(&text, "model_checkpoint_path").pop() else { continue };
        let named = join(&home, name_of(&named));
        let Some(at) = candidates.iter().position(|c| c.unit == named) else { continue };
        let time = |c: &Candidate| c.newest_ns(scan.listing);
        let latest = time(&candidates[at]);
        let is_below = |c: &Candidate| parent_of(&c.unit) == home && c.unit != named && time(c) <= latest;
        candidates[..=at].sort_by_cached_key(is_below);
    }
}

/// The strings under a key in a state file, each field on a line of its own or not.
fn names(text: &str, key: &str) -> Vec<String> {
    let (mut all, mut rest) = (Vec::new(), text);
    while let Some((before, quote)) = rest.find(['"', '\'']).and_then(|at| rest.split_at_checked(at)) {
        let mut is_escaped = false;
        let end = quote.char_indices().skip(1).find(|(_, c)| {
            let ends = !is_escaped && quote.starts_with(*c);
            is_escaped = !is_escaped && *c == '\\';
            ends
        });
        let Some((end, _)) = end else { break };
        if before.trim_end_matches(|c: char| c == ':' || c.is_ascii_whitespace()).ends_with(key) {
            all.push(unescape(&quote[1..end]));
        }
        rest = &quote[end + 1..];
    }
    all
}

/// The text proto's escapes in a string: `\"`, `\\`, `\n`, `\303`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes().peekable();
    while let Some(byte) = rest.next() {
        let Some(next) = (byte == b'\\').then(|| rest.next()).flatten() else {
            bytes.push(byte);
            continue;
        };
        match next {
            b'0'..=b'7' => {
                let mut value = u32::from(next - b'0');
                for _ in 0..2 {
                    if let Some(digit) = rest.next_if(|b| (b'0'..=b'7').contains(b)) {
                        value = value * 8 + u32::from(digit - b'0');
                    }
                }
                bytes.push(value as u8);
            }
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => escaped.extend(['\\', char::from(byte)]),
            b' '..=b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("\\{byte:03o}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::Options;
    use crate::rules::checkpoint::check::tests::{table_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, reason};

    fn saved() -> Memory {
        let state = "model_checkpoint_path: \"ckpt-20\"\nall_model_checkpoint_paths: \"ckpt-10\"\n\
                     all_model_checkpoint_paths: \"/old/place/ckpt-20\"\nall_model_checkpoint_timestamps: 1.5\n";
        Memory::of(&[("checkpoint", state)])
            .with("ckpt-10.index", table_of(b"x"))
            .with("ckpt-10.data-00000-of-00001", "w")
            .with("ckpt-20.index", table_of(b"y"))
            .with("ckpt-20.data-00000-of-00002", "v")
            .with("ckpt-20.data-00001-of-00002", "w")
    }

    #[test]
    fn a_finished_checkpoint_is_its_index_and_all_shards_named_by_the_state_file() {
        assert_eq!(complete_units(&saved()), [("ckpt-20".into(), Some(20)), ("ckpt-10".into(), Some(10))]);
    }

    #[test]
    fn the_time_of_a_save_stays_with_its_name() {
        let state = "all_model_checkpoint_paths: \"a-1\"\nall_model_checkpoint_paths: \"/old/a-2\"\n\
                     all_model_checkpoint_timestamps: 1.5\nall_model_checkpoint_timestamps: 2.5\nlast_preserved_timestamp: 9\n";
        assert_eq!(timestamp(state, "a-1").as_deref(), Some("all_model_checkpoint_timestamps: 1.5\n"));
        assert_eq!(timestamp(state, "a-2").as_deref(), Some("all_model_checkpoint_timestamps: 2.5\n"));
        assert_eq!(timestamp(state, "a-3"), None);
        assert_eq!(timestamp(&state.replace("2.5", "\"soon\""), "a-2"), None);
    }

    #[test]
    fn a_graph_goes_with_its_checkpoint_and_need_not_be_there() {
        let memory = saved().with("ckpt-20.meta", "graph").with("graph-30.meta", "of no checkpoint");
        let units = memory.scanned(&Options::default(), find);
        let of =
            |unit: &str| units.iter().find(|u| u.unit == unit).map(|u| u.paths.last().cloned().unwrap_or_default());
        assert_eq!(of("ckpt-20").as_deref(), Some("ckpt-20.meta"));
        assert_eq!((of("ckpt-10").as_deref(), of("graph-30")), (Some("ckpt-10.index"), None));
        assert_eq!(complete_units(&memory), [("ckpt-20".into(), Some(20)), ("ckpt-10".into(), Some(10))]);
    }

    #[test]
    fn without_any_one_part_it_is_not_finished() {
        for part in ["ckpt-20.index", "ckpt-20.data-00000-of-00002", "ckpt-20.data-00001-of-00002"] {
            assert_eq!(complete_units(&saved().without(part)), [("ckpt-10".into(), Some(10))], "{part}");
        }
        assert_eq!(complete_units(&saved().without("checkpoint")), []);
        let cut = saved().with("ckpt-20.index", &table_of(b"y")[..8]);
        assert_eq!(complete_units(&cut), [("ckpt-10".into(), Some(10))]);
    }

    #[test]
    fn one_that_the_state_file_does_not_name_is_not_finished() {
        let memory = saved().with("ckpt-30.index", table_of(b"z")).with("ckpt-30.data-00000-of-00001", "w");
        assert_eq!(complete_units(&memory)[0].0, "ckpt-20");
        assert!(reason(&memory, "ckpt-30").contains("does not name it"));
    }

    #[test]
    fn what_the_state_file_calls_the_latest_goes_before_higher_steps_that_are_no_younger() {
        let memory = saved().with(
            "checkpoint",
            "model_checkpoint_path: \"ckpt-10\" \
            all_model_checkpoint_paths: 'ckpt-20' all_model_checkpoint_paths:\"/old/ckpt-10\"",
        );
        let at = |memory: Memory, unit: &str, at: i64| memory.at(&format!("{unit}.data-00000-of-00001"), at);
        let newest = |memory: &Memory| complete_units(memory)[0].0.clone();
        let left_over = at(memory, "ckpt-10", 9);
        assert_eq!(complete_units(&left_over), [("ckpt-10".into(), Some(10)), ("ckpt-20".into(), Some(20))]);
        assert_eq!(newest(&left_over.clone().at("ckpt-20.index", 10)), "ckpt-20", "the state file lags behind");
        let elsewhere = left_over.clone().with("b/checkpoint", "all_model_checkpoint_paths:\"ckpt-30\"");
        let elsewhere = elsewhere.with("b/ckpt-30.index", table_of(b"z")).with("b/ckpt-30.data-00000-of-00001", "w");
        assert_eq!(newest(&elsewhere), "b/ckpt-30");
        for state in ["model_checkpoint_path: \"ckpt-7\"\n", "model_checkpoint_path: \"ckpt-10\n"] {
            let state = format!("all_model_checkpoint_paths: \"ckpt-20\"\n{state}");
            assert_eq!(newest(&left_over.clone().with("checkpoint", state)), "ckpt-20", "it names nothing");
        }
    }

    #[test]
    fn a_lone_shard_is_tensorflows_and_unfinished_never_a_file_of_no_format() {
        assert_eq!(complete_units(&Memory::of(&[("ckpt-1.data-00000-of-00001", "w")])), []);
    }

    #[test]
    fn other_workers_copies_are_never_looked_at() {
        let memory = saved()
            .with("workertemp_1/ckpt-99.index", table_of(b"z"))
            .with("workertemp_1/ckpt-99.data-00000-of-00001", "w");
        assert_eq!(complete_units(&memory).len(), 2);
    }

    #[test]
    fn a_saved_model_hides_nothing_and_is_a_directory_like_any() {
        let saved = |memory: Memory, home: &str| {
            memory
                .with(&format!("{home}/variables/variables.index"), table_of(b"x"))
                .with(&format!("{home}/variables/variables.data-00000-of-00001"), "w")
        };
        let exported = saved(Memory::default(), "export/1").with("export/1/saved_model.pb", "p");
        let memory = exported.with("m-02.keras", zip_of(b"w", b""));
        assert_eq!(complete_units(&memory), [("m-02.keras".into(), Some(2))]);
        let begun = saved(Memory::default(), "m-02");
        assert!(reason(&begun, "m-02").contains("m-02/saved_model.pb is not there yet"));
        assert_eq!(complete_units(&begun.with("m-02/saved_model.pb", "p")), [("m-02".into(), Some(2))]);
    }

    #[test]
    fn the_pointer_names_the_unit_alone_with_its_escapes() {
        let name = "a \"b\" \u{fc}-3";
        let state = format!("all_model_checkpoint_paths: \"{}\"\n", escape(name));
        let memory = Memory::of(&[("checkpoint", state.as_str())])
            .with(&format!("{name}.index"), table_of(b"x"))
            .with(&format!("{name}.data-00000-of-00001"), "w");
        assert_eq!(complete_units(&memory), [(name.to_owned(), Some(3))]);
        assert_eq!(names(&state, "all_model_checkpoint_paths"), [name]);
    }
}
