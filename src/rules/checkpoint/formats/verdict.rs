//! Whether a unit is complete. The same rules hold for every row of the table: the members, the proof, the order of the
//! files, one save, the ends of the files, and the number of ranks.

use std::collections::{BTreeMap, BTreeSet};

use super::layouts::{Member, Proof, pattern};
use super::readers::{dcp, deepspeed, huggingface, orbax, tensorflow};
use super::rest;
use super::units::{Case, UnitState};
use crate::checkpoint::history::History;
use crate::checkpoint::listing::{Entry, Kind, end_of, extension_of, is_below, join, name_of, parent_of};

/// Why a unit is not complete, in one clause.
type Check = Result<(), String>;

/// Whether the unit is complete, without regard to recent changes.
pub(in crate::checkpoint) fn judge(case: &Case) -> UnitState {
    match proven(case) {
        Err(why) => UnitState::Incomplete(why),
        Ok(()) => as_before(case).map_or_else(UnitState::Unproven, |()| UnitState::Complete),
    }
}

/// Whether the file that proves a save of this format is there, or, if the name is the proof, what the format needs.
pub(in crate::checkpoint) fn shows_its_format(case: &Case) -> bool {
    match case.root.layout.proof {
        Proof::Last(_) | Proof::Pointed(_) => proof(case).is_ok(),
        Proof::Itself | Proof::Nothing => members(case).is_ok(),
    }
}

fn proven(case: &Case) -> Check {
    if case.files().next().is_none() {
        return Err(format!("{} holds no file", case.unit().path));
    }
    refused(case)?;
    members(case)?;
    let proof = proof(case)?;
    order(case, proof)?;
    one_save(case, proof)?;
    nothing_gone(case)?;
    ends(case, proof)?;
    nested(case)
}

/// Refuses a unit with an entry that cannot be committed, because the unit is not whole without it.
fn refused(case: &Case) -> Check {
    let below = if case.unit().is_directory { case.scan.listing.below(case.base()) } else { &[] };
    let missing = below.iter().find(|entry| matches!(entry.kind, Kind::Uncopyable(_)));
    missing.map_or(Ok(()), |entry| Err(format!("{}: {}", entry.path, entry.refused().unwrap_or_default())))
}

fn members(case: &Case) -> Check {
    for member in case.root.layout.members {
        match member {
            Member::AnyOf(all) if all.iter().any(|text| case.first(text).is_some()) => {}
            Member::AnyOf(all) => return Err(format!("{} lacks {}", case.unit().path, all.join(" or "))),
            Member::Absent(text) => {
                if let Some(entry) = case.first(text) {
                    return Err(format!("{} exists", entry.path));
                }
            }
            Member::PerRank { file, or_rank_0 } => ranks(case, file, *or_rank_0)?,
            Member::Tensorflow => tensorflow::complete(case)?,
            Member::Huggingface => huggingface::state(case)?,
            Member::Deepspeed => deepspeed::any_states(case)?,
            Member::Dcp => dcp::lightning_metadata(case)?,
            Member::Orbax => orbax::items(case)?,
        }
    }
    Ok(())
}

/// Checks that every rank has a file. Files that have not changed since the start may come from a run with another
/// number of ranks.
fn ranks(case: &Case, text: &'static str, or_rank_0: bool) -> Check {
    let Some(world) = case.scan.options.world_size else { return Ok(()) };
    if !case.history.is_pushed && case.files().all(|(entry, _)| case.history.is_unchanged_since_start(entry)) {
        return Ok(());
    }
    let captures = case.files().filter_map(|(_, path)| pattern(text).captures(path));
    let found: BTreeSet<Vec<&str>> =
        captures.map(|found| found.iter().skip(1).flatten().map(|group| group.as_str()).collect()).collect();
    let is_by_rank_0 = or_rank_0 && found.iter().eq([&vec!["0"]]);
    if found.is_empty() || is_by_rank_0 || found.len() >= world as usize {
        return Ok(());
    }
    let what = text.replace("<n>", "N").replace(['(', ')'], "");
    Err(format!("{} has {} of {world} ranks' {what}", case.unit().path, found.len()))
}

/// The file that proves the save, if the row has one.
fn proof<'a>(case: &Case<'a, '_>) -> Result<Option<&'a Entry>, String> {
    let missing = |name: &str| format!("{} is not there yet", join(&case.unit().path, name));
    let proof = match &case.root.layout.proof {
        Proof::Itself | Proof::Nothing => None,
        Proof::Last(files) => {
            let found = files.iter().find_map(|text| case.first(text));
            Some(found.ok_or_else(|| missing(&files[0].replace("<n>", "N")))?)
        }
        Proof::Pointed(files) => Some(pointed(case, files)?),
    };
    let Some(marker) = &case.scan.options.marker else { return Ok(proof) };
    let file = case.scan.listing.get(&join(case.base(), marker)).filter(|_| case.unit().is_directory);
    file.map(Some).ok_or_else(|| missing(marker))
}

/// The pointer, if it names the unit.
fn pointed<'a>(case: &Case<'a, '_>, files: &[&str]) -> Result<&'a Entry, String> {
    let place = |name: &&str| case.scan.listing.get(&join(&case.root.dir, name));
    let entry = files.iter().find_map(place);
    let entry = entry.ok_or_else(|| format!("{} is not there yet", join(&case.root.dir, files[0])))?;
    let text = case.scan.text(&entry.path).ok_or_else(|| format!("{} cannot be read", entry.path))?;
    let text = text.trim();
    let key = case.unit().key.as_str();
    let names = |key: &str| {
        let number =
            || key.rsplit(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse::<u64>().ok();
        name_of(text.trim_end_matches('/')) == key
            || text.parse::<u64>().is_ok_and(|named| Some(named) == number())
            || tensorflow::names(text, key)
    };
    let is_named = case.root.units[case.newest..=case.at].iter().any(|unit| names(&unit.key));
    let shown: String = text.lines().next().unwrap_or_default().chars().take(80).collect();
    if is_named { Ok(entry) } else { Err(format!("{} does not name {key} yet (it says {shown:?})", entry.path)) }
}

/// Whether a file describes weights but holds none; such a file may be written at any time.
fn is_note(history: &History, file: &Entry) -> bool {
    history.is_text(file) || ["json", "py"].contains(&extension_of(file.name()))
}

/// If a unit of this name existed before, no file that was overwritten may be younger than the proof. For a new name, and
/// for new files, the proof's existence is enough, because a callback may write after the proof. A unit that was found at
/// the start and is in no commit may have been overwritten, too.
fn order(case: &Case, proof: Option<&Entry>) -> Check {
    let (history, Some(proof)) = (case.history, proof) else { return Ok(()) };
    let is_over = |entry: &Entry| {
        let is_rewritten = history.seen(entry).is_some_and(|seen| seen.is_rewritten);
        is_rewritten && history.look_of(entry) > history.look_of(proof)
            || history.is_unchanged_since_start(entry) && history.is_fresh(entry)
            || history.differs(entry) == Some(true)
            || history.is_pushed
    };
    let last: &[&str] = if let Proof::Last(files) = case.root.layout.proof { files } else { &[] };
    let is_proof = |path: &str| last.iter().any(|text| pattern(text).is_match(path));
    let is_late = |entry: &Entry, path: &str| {
        let is_ordered = !is_note(case.history, entry) && !case.is_unordered(path) && !is_proof(path);
        is_ordered && entry.mtime_ns > proof.mtime_ns && is_over(entry)
    };
    match case.files().find(|(entry, path)| is_late(entry, path)) {
        Some((late, _)) => Err(format!("{} is younger than {}, which is written last", late.path, proof.path)),
        None => Ok(()),
    }
}

/// If a unit is overwritten, the proof and all its files that change with each save must be of the new save.
fn one_save(case: &Case, proof: Option<&Entry>) -> Check {
    let is = |differs: bool| move |entry: &&Entry| case.history.differs(entry) == Some(differs);
    let files = || case.files().map(|(entry, _)| entry).filter(|entry| !case.history.is_text(entry));
    let compared = files().filter(|entry| case.history.is_together(&entry.path)).chain(proof);
    match (files().find(is(true)), compared.into_iter().find(is(false))) {
        (Some(new), Some(old)) => Err(format!("{} is of another save than {}", old.path, new.path)),
        _ => Ok(()),
    }
}

/// No file of the last commit of the same name may be missing; otherwise the unit is being deleted.
fn nothing_gone(case: &Case) -> Check {
    let last = case.history.part(Some(&case.root.dir));
    let Some(last) = last.filter(|part| part.units.contains_key(&case.unit().path)) else { return Ok(()) };
    let is_of_it = |path: &&String| {
        let relative = path.strip_prefix(case.base()).unwrap_or(path).trim_start_matches('/');
        let mut keys = case.root.layout.unit.iter().filter_map(|text| pattern(text).captures(relative)?.get(1));
        let is_inside = match case.unit().is_directory {
            true => is_below(path, &case.unit().path),
            false => keys.any(|key| key.as_str() == case.unit().key),
        };
        let is_counted = case.scan.options.world_size.is_some() && case.is_per_rank(relative);
        let is_pointer = case.root.layout.pointers.iter().any(|text| pattern(text).is_match(name_of(path)));
        is_inside && !is_counted && !is_pointer && !rest::is_text_name(name_of(path))
    };
    match last.files.iter().filter(is_of_it).find(|path| case.scan.listing.get(path).is_none()) {
        Some(gone) => Err(format!("{gone} is gone, which the last commit has")),
        None => Ok(()),
    }
}

/// Each file, and the proof, has the end that its type requires, and each link leads to something.
fn ends(case: &Case, proof: Option<&Entry>) -> Check {
    case.files().map(|(entry, _)| entry).chain(proof).try_for_each(|file| case.history.whole(case.scan.peek, file))?;
    let dangles = |entry: &&&Entry| {
        let Kind::Symlink(target) = &entry.kind else { return false };
        end_of(&entry.path, target).is_none_or(|end| case.scan.listing.get(&end).is_none())
    };
    match case.unit().members.iter().find(dangles) {
        Some(link) => Err(format!("{} leads to nothing", link.path)),
        None => Ok(()),
    }
}

/// Checkpoints of other libraries inside the unit must be whole, too.
fn nested(case: &Case) -> Check {
    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (entry, _) in case.files().filter(|_| case.unit().is_directory) {
        homes.entry(parent_of(&entry.path)).or_default().push(entry.name());
    }
    for (home, names) in homes {
        if names.iter().any(|name| dcp::is_shard(name)) {
            dcp::whole(case.scan, home)?;
        }
        if names.iter().any(|name| deepspeed::is_state(name)) {
            deepspeed::whole(case.scan, home)?;
            let outer = parent_of(home);
            if home != case.base() && case.scan.listing.file(&join(outer, "latest")).is_some() {
                deepspeed::named(case.scan, outer)?;
            }
        }
        for name in names.iter().filter(|name| name.ends_with(".index.json")) {
            huggingface::indexed(case.scan, home, name)?;
        }
    }
    Ok(())
}

/// If each save writes the same names, the unit must have every name of the previous unit.
fn as_before(case: &Case) -> Check {
    if !case.root.layout.again || case.at + 1 == case.root.units.len() {
        return Ok(());
    }
    let before = Case { at: case.at + 1, ..*case };
    // A number in a name may be the step, or the same in every save.
    let paths: BTreeSet<String> =
        case.files().flat_map(|(_, path)| [path.to_owned(), without_numbers(case, path)]).collect();
    let is_counted = |path: &str| case.scan.options.world_size.is_some() && case.is_per_rank(path);
    let is_there = |path: &str| paths.contains(path) || paths.contains(&without_numbers(&before, path));
    match before.files().find(|(entry, path)| !case.history.is_text(entry) && !is_counted(path) && !is_there(path)) {
        Some((entry, _)) => Err(format!("{} has no counterpart of {}", case.unit().path, entry.path)),
        None => Ok(()),
    }
}

/// The path with the numbers of the unit's name replaced by `#`.
fn without_numbers(case: &Case, path: &str) -> String {
    let own = case.unit().key.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let own: Vec<&str> = own.map(|digits| digits.trim_start_matches('0')).collect();
    rest::with_numbers(path, |digits| own.contains(&digits.trim_start_matches('0')))
}
