//! Which directories are roots of a known format, which units they hold, and whether each unit is complete.
//!
//! A directory is a root because it holds a telltale file of a format, never because of a number in a name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use regex::RegexSet;

use super::exclude::Decision;
use super::layouts::{Format, LAYOUTS, Layout, MARKER, NUMBERED, Proof, Step, expression, is_numbered, pattern};
use super::units::{Case, Options, Partition, Root, Scan, Unit, UnitState};
use super::verdict::{judge, shows_its_format};
use super::{ends, rest};
use crate::checkpoint::history::History;
use crate::checkpoint::listing::{Entry, Kind, around, end_of, join, name_of, parent_of};

/// The number of units of a root that a commit takes if `--keep-saves` does not say.
const KEPT: u32 = 3;
/// How many more complete units are judged, because the newest may have changed a moment ago.
const MORE: usize = 8;

/// Divides a walk into roots, the rest and the excluded paths. `history` must have been updated with this walk.
///
/// A directory is a root if a unit in it has the proof of the format, or if the last commit has a part of it. In another directory the
/// files of a format are part of the rest. Units that have nothing in common with a complete one belong to the rest, too.
pub fn partition<'a>(scan: &Scan<'a>, history: &History) -> Partition<'a> {
    let mut division = Division::of(scan);
    let (mut roots, mut unproven) = (Vec::new(), Vec::new());
    for ((_, dir), rows) in division.telltales() {
        let Some((row, keys)) = rows.into_iter().next() else { continue };
        if around(&dir).any(|path| division.claimed.contains(path)) {
            continue;
        }
        let layout = LAYOUTS.get(row).unwrap_or(&MARKER);
        let units = division.units(&dir, layout, &keys);
        if units.is_empty() {
            continue;
        }
        let pointers = division.pointers(&dir, layout);
        let mut root = judged(scan, history, Root { dir, layout, units, pointers });
        let is_known = history.part(Some(&root.dir)).is_some_and(|part| part.layout.as_deref() == Some(layout.name));
        let shows_it = |at: usize| shows_its_format(&Case { scan, history, root: &root, at, newest: 0 });
        if is_known || (0..root.units.len()).any(shows_it) || !scan.options.format.is_auto() {
            if is_known {
                division.release_odd_units(&mut root, history);
            }
            roots.push(root);
        } else {
            root.units.iter().for_each(|unit| division.release(&unit.members));
            division.release(&root.pointers);
            unproven.push(root);
        }
    }
    let asks_numbered = matches!(scan.options.format, Format::Auto | Format::Only("numbered"));
    if asks_numbered && roots.is_empty() && unproven.is_empty() && scan.options.marker.is_none() {
        roots.extend(division.numbered(history).map(|root| judged(scan, history, root)));
    }
    let mut rest: Vec<&Entry> = division.free.into_values().filter(|entry| entry.kind != Kind::Directory).collect();
    let mut excluded = division.excluded;
    if let Format::Only(name) = scan.options.format {
        excluded.extend(rest.drain(..).map(|entry| (entry.path.clone(), format!("--checkpoint-format {name}"))));
    }
    Partition { roots, unproven, rest, excluded }
}

/// Sorts the units, the newest first, and judges them until enough are complete.
fn judged<'a>(scan: &Scan<'a>, history: &History, mut root: Root<'a>) -> Root<'a> {
    for unit in &mut root.units {
        let files: Vec<&Entry> = unit.leaves().collect();
        let last: &[&'static str] = if let Proof::Last(files) = &root.layout.proof { files } else { &[] };
        let is_last = |entry: &&&Entry| {
            let path =
                entry.path[if unit.is_directory { unit.path.len() } else { root.dir.len() }..].trim_start_matches('/');
            last.iter().any(|text| pattern(text).is_match(path))
        };
        unit.place = history.place(&unit.path, &files, files.iter().find(is_last).copied());
    }
    root.units.sort_by(|a, b| b.age().cmp(&a.age()));
    let (mut complete, mut newest) = (0, None);
    for at in 0..root.units.len() {
        let state = judge(&Case { scan, history, root: &root, at, newest: newest.unwrap_or(at) });
        if state == UnitState::Complete {
            complete += 1;
            newest.get_or_insert(at);
        }
        root.units[at].state = state;
        if complete == scan.options.kept_units() + MORE {
            break;
        }
    }
    root
}

impl Options {
    /// The number of units of a root that a commit takes.
    pub(in crate::checkpoint) fn kept_units(&self) -> usize {
        self.keep_saves.unwrap_or(KEPT).max(1) as usize
    }
}

/// Directories with telltales, by depth and path. For each: the matching rows in the order of the table, and the names of
/// the entries that hold the telltales.
type Telltales = BTreeMap<(usize, String), BTreeMap<usize, BTreeSet<String>>>;

/// Every telltale of the table: its row, and the number of directories in its pattern.
static TELLTALES: LazyLock<(RegexSet, Vec<(usize, usize)>)> = LazyLock::new(|| {
    let rows = LAYOUTS.iter().enumerate();
    let all = rows.flat_map(|(row, layout)| layout.telltale.iter().map(move |text| (row, *text)));
    let (expressions, places): (Vec<String>, _) =
        all.map(|(row, text)| (format!("(?:^|/)(?:{})$", expression(text)), (row, text.matches('/').count()))).unzip();
    #[expect(clippy::unwrap_used, reason = "constant patterns, compiled by every test")]
    let set = RegexSet::new(expressions).unwrap();
    (set, places)
});

/// A walk while it is divided.
struct Division<'a, 's> {
    scan: &'s Scan<'a>,
    /// Entries that no part has taken yet, by path.
    free: BTreeMap<&'a str, &'a Entry>,
    /// Directories that are units or ignored.
    claimed: HashSet<&'a str>,
    excluded: Vec<(String, String)>,
}

impl<'a, 's> Division<'a, 's> {
    /// Starts with all entries that may be committed.
    fn of(scan: &'s Scan<'a>) -> Division<'a, 's> {
        let (mut free, mut excluded) = (BTreeMap::new(), Vec::new());
        let mut directories: HashMap<&str, Decision> = HashMap::new();
        for entry in scan.listing.entries() {
            let outer = directories.get(parent_of(&entry.path)).copied().unwrap_or(Decision::Kept);
            let decision = scan.options.exclusions.of_entry(outer, entry);
            if entry.kind == Kind::Directory {
                directories.insert(&entry.path, decision);
            }
            let why = decision.pattern().or_else(|| entry.refused()).or_else(|| leaves(entry));
            match why {
                None => drop(free.insert(entry.path.as_str(), entry)),
                Some(_) if outer.pattern().is_some() => {}
                Some(why) => excluded.push((entry.path.clone(), why.to_owned())),
            }
        }
        Division { scan, free, claimed: HashSet::new(), excluded }
    }

    /// Takes an entry and everything below it. Returns the entry, or for a directory the entries below it.
    fn claim(&mut self, entry: &'a Entry) -> Vec<&'a Entry> {
        if entry.kind == Kind::Directory {
            self.claimed.insert(&entry.path);
            self.free.remove(entry.path.as_str());
            return self
                .scan
                .listing
                .below(&entry.path)
                .iter()
                .filter_map(|e| self.free.remove(e.path.as_str()))
                .collect();
        }
        self.free.remove(entry.path.as_str()).into_iter().collect()
    }

    /// Gives entries back to the rest. Roots inside them are not looked for.
    fn release(&mut self, entries: &[&'a Entry]) {
        self.free.extend(entries.iter().map(|entry| (entry.path.as_str(), *entry)));
    }

    /// Gives back the incomplete units whose names have nothing in common with a complete unit or one of the last commit.
    fn release_odd_units(&mut self, root: &mut Root<'a>, history: &History) {
        let committed = history.part(Some(&root.dir)).into_iter().flat_map(|part| part.units.keys());
        let mut series: BTreeSet<String> = committed.map(|path| rest::series(name_of(path))).collect();
        series.extend(root.units.iter().filter(|unit| unit.is_good()).map(Unit::series));
        let is_odd = |unit: &mut Unit| unit.is_directory && !series.contains(&unit.series());
        let odd: Vec<Unit> = root.units.extract_if(.., is_odd).collect();
        odd.iter().for_each(|unit| self.release(&unit.members));
    }

    fn telltales(&self) -> Telltales {
        let (set, places) = &*TELLTALES;
        let options = self.scan.options;
        let mut found = Telltales::new();
        let mut note = |home: &str, path: &str, row: usize| {
            let key = path[home.len()..].trim_start_matches('/').split('/').next().unwrap_or_default();
            let depth = around(home).filter(|path| !path.is_empty()).count();
            found.entry((depth, home.to_owned())).or_default().entry(row).or_default().insert(key.to_owned());
        };
        for path in self.free.values().filter(|entry| entry.kind == Kind::File).map(|entry| entry.path.as_str()) {
            let home_of = |depth: usize| (0..=depth).fold(path, |path, _| parent_of(path));
            let marker = options.marker.as_deref().filter(|_| options.format.is_auto());
            if marker == Some(name_of(path)) && path.contains('/') {
                note(home_of(1), path, LAYOUTS.len());
            }
            for (row, depth) in set.matches(path).into_iter().map(|at| places[at]) {
                let (layout, home) = (&LAYOUTS[row], home_of(depth));
                let is_asked = match options.format {
                    Format::Auto => options.marker.is_none(),
                    Format::Tree => false,
                    Format::Only(name) => layout.name == name,
                };
                let is_alone = layout.beside.is_some_and(|name| self.scan.listing.file(&join(home, name)).is_none());
                let is_never = layout.never.is_some_and(|never| name_of(parent_of(path)) == never);
                if is_asked && !is_alone && !is_never {
                    note(home, path, row);
                }
            }
        }
        raise_composites(&mut found);
        found
    }

    /// The units of a root, not yet judged. Takes their entries, and the names that the row ignores.
    fn units(&mut self, dir: &str, row: &'static Layout, keys: &BTreeSet<String>) -> Vec<Unit<'a>> {
        let scan = self.scan;
        let series: BTreeSet<String> = keys.iter().map(|key| rest::series(key)).collect();
        let is_anything = row.unit == ["(*)/"];
        let mut units: BTreeMap<&str, Unit> = BTreeMap::new();
        for entry in scan.listing.below(dir) {
            let path = entry.path[dir.len()..].trim_start_matches('/');
            if path.matches('/').count() > 1 || !self.free.contains_key(entry.path.as_str()) {
                continue;
            }
            if let Some(text) = row.ignored.iter().find(|text| pattern(text).is_match(path)) {
                self.claim(entry);
                self.excluded.push((entry.path.clone(), format!("{}: {text}", row.name)));
                continue;
            }
            let is_directory = entry.kind == Kind::Directory;
            let mut patterns = row.unit.iter().filter(|text| text.ends_with('/') == is_directory);
            let found = patterns.find_map(|text| pattern(text.trim_end_matches('/')).captures(path));
            let Some(key) = found.and_then(|found| Some(found.get(1)?.as_str())) else { continue };
            if entry.kind != Kind::File && !is_directory || is_anything && !series.contains(&rest::series(key)) {
                continue;
            }
            let members = self.claim(entry);
            let unit = units.entry(key).or_insert_with(|| Unit {
                path: join(parent_of(&entry.path), key).trim_end_matches('/').to_owned(),
                key: key.to_owned(),
                step: None,
                members: Vec::new(),
                is_directory,
                state: UnitState::Older,
                place: (0, 0),
            });
            unit.members.extend(members);
        }
        let mut units: Vec<Unit> = units.into_values().collect();
        for unit in &mut units {
            // If a unit is a single file, the framework loads that file.
            if let ([only], 1, false) = (unit.members.as_slice(), row.unit.len(), unit.is_directory) {
                unit.path = only.path.clone();
            }
            unit.step = scan.options.step_in(&unit.path).or_else(|| step_of(scan, row, unit));
        }
        units
    }

    /// The files and links in a root that name its newest unit.
    fn pointers(&mut self, dir: &str, row: &Layout) -> Vec<&'a Entry> {
        let scan = self.scan;
        let is_one = |entry: &&Entry| {
            entry.kind != Kind::Directory && row.pointers.iter().any(|text| pattern(text).is_match(entry.name()))
        };
        let beside = if row.pointers.is_empty() { &[] } else { scan.listing.below(dir) };
        let beside = beside.iter().filter(|entry| parent_of(&entry.path) == dir);
        beside.filter(is_one).filter_map(|entry| self.free.remove(entry.path.as_str())).collect()
    }

    /// A single series of numbered entries in the checkpoint directory, if nothing else in it changes with the saves.
    fn numbered(&mut self, history: &History) -> Option<Root<'a>> {
        let series_of = |entry: &Entry| {
            let is_one =
                |is_directory| !matches!(entry.kind, Kind::Symlink(_)) && is_numbered(&entry.path, is_directory);
            is_one(entry.kind == Kind::Directory).then(|| (entry.kind == Kind::Directory, rest::series(&entry.path)))
        };
        let tops: HashMap<&str, (bool, String)> =
            self.free.values().filter_map(|entry| Some((entry.path.as_str(), series_of(entry)?))).collect();
        let top_of = |path: &'a str| path.split('/').next().unwrap_or_default();
        let (_, series) = tops.values().next()?;
        let leaves = self.free.values().copied().filter(|entry| entry.kind != Kind::Directory);
        let (inside, outside): (Vec<&Entry>, Vec<&Entry>) =
            leaves.partition(|entry| tops.contains_key(top_of(&entry.path)));
        let when = |entry: &&Entry| (history.look_of(entry), entry.mtime_ns);
        let first = inside.iter().map(when).min()?;
        let was_rest = |path: &String| rest::series(path.split('/').next().unwrap_or_default()) == *series;
        let is_mixed =
            outside.iter().any(|entry| when(entry) > first && history.delays(entry) && entry.kind == Kind::File)
                || history.part(None).is_some_and(|part| part.files.iter().any(was_rest));
        let is_one_series = tops.values().collect::<BTreeSet<_>>().len() == 1;
        if !is_one_series || is_mixed && self.scan.options.format.is_auto() {
            return None;
        }
        let units = self.units("", &NUMBERED, &BTreeSet::new());
        Some(Root { dir: String::new(), layout: &NUMBERED, units, pointers: Vec::new() })
    }
}

fn leaves(entry: &Entry) -> Option<&'static str> {
    let Kind::Symlink(target) = &entry.kind else { return None };
    match end_of(&entry.path, target) {
        Some(_) => None,
        None => Some("a symbolic link that leaves the checkpoint directory; --follow-symlinks copies its target"),
    }
}

/// A directory with several distributed checkpoints under names without a number (`model`, `optim`) is one unit of its
/// parent directory. Its neighbours with such names are units, too.
fn raise_composites(found: &mut Telltales) {
    let Some(dcp) = LAYOUTS.iter().position(|layout| layout.name == "dcp") else { return };
    let outer = |home: &str| (parent_of(home).to_owned(), rest::series(name_of(home)));
    let is_plain = |key: &&String| !key.bytes().any(|byte| byte.is_ascii_digit());
    let is_composite = |keys: &BTreeSet<String>| keys.iter().filter(is_plain).count() > 1;
    let homes = found.iter().filter(|((_, home), _)| !home.is_empty());
    let homes = homes.filter_map(|(place, rows)| Some((place.clone(), outer(&place.1), is_composite(rows.get(&dcp)?))));
    let homes: Vec<_> = homes.collect();
    let alike: HashSet<_> = homes.iter().filter(|home| home.2).map(|home| home.1.clone()).collect();
    for ((depth, home), outer, _) in homes.into_iter().filter(|home| alike.contains(&home.1)) {
        if let Some(rows) = found.get_mut(&(depth, home.clone())) {
            rows.remove(&dcp);
        }
        let rows = found.entry((depth - 1, outer.0)).or_default();
        rows.entry(dcp).or_default().insert(name_of(&home).to_owned());
    }
}

/// The step of the unit, from the source that the row names.
fn step_of(scan: &Scan, row: &Layout, unit: &Unit) -> Option<u64> {
    match &row.step {
        Step::Name(text) => pattern(text).captures(&unit.key)?.get(1)?.as_str().parse().ok(),
        Step::Json { file, field } => {
            let file = scan.listing.file(&join(parent_of(&unit.members.first()?.path), file))?;
            ends::json::read::<serde_json::Value>(scan.peek, file)?.get(field)?.as_u64()
        }
    }
}
