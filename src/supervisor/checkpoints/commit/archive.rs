//! The object keys of a commit's files: one object for each file, or one archive for many small files.

use std::collections::BTreeMap;

use crate::rules::checkpoint::Entry;
use crate::rules::store::archive::{Load, loads};
use crate::rules::store::names::{Stamp, data_key};

/// The objects to upload and their keys. `gathers`: small files may share one; `home`: the prefix for a file's data.
pub(crate) fn outgoing<'a>(
    entries: &[&'a Entry],
    stamp: &Stamp,
    gathers: bool,
    home: impl Fn(&str) -> String,
) -> Vec<(Load<'a>, String)> {
    let mut by_home: BTreeMap<String, Vec<&'a Entry>> = BTreeMap::new();
    for entry in entries {
        by_home.entry(home(&entry.path)).or_default().push(entry);
    }
    let mut all = Vec::new();
    for (home, entries) in by_home {
        let (name, mut archives) = (name_of_archives(&home, &entries), 0);
        all.extend(loads(entries.into_iter(), gathers).into_iter().map(|load| {
            let path = match &load {
                Load::Alone(entry) => entry.path.clone(),
                Load::Together(_) => {
                    archives += 1;
                    format!("{home}/{name}-{archives:05}.tar")
                }
            };
            (load, data_key(&home, stamp, &path))
        }));
    }
    all
}

/// A prefix for the names of archives that no file has.
fn name_of_archives(home: &str, entries: &[&Entry]) -> String {
    let inside = format!("{home}/");
    let names = || entries.iter().map(|entry| entry.path.strip_prefix(&inside).unwrap_or(&entry.path));
    let mut name = "small-files".to_owned();
    while names().any(|other| other.starts_with(&name)) {
        name.push('_');
    }
    name
}

pub(crate) fn files_of<'a>(load: &Load<'a>) -> Vec<&'a Entry> {
    match load {
        Load::Alone(entry) => vec![entry],
        Load::Together(members) => members.iter().map(|member| member.entry).collect(),
    }
}
