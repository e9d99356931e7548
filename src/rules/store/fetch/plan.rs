//! The plan of a fetch: a listing and an index in, the files to fetch out.

use super::index::{INDEX, Index};
use super::source::Source;
use crate::checkpoint::listing::{around, name_of};
use crate::store::hostile;
use crate::store::names::{FRESH, hash16};

/// An object of the store, which becomes a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Relative to the source's address and to the directory.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// The store's tag for this version.
    pub tag: String,
    /// Time of its last change, since 1970.
    pub modified_ns: i64,
}

/// The work of one fetch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The objects to fetch, by path.
    pub fetch: Vec<Object>,
    /// The objects that are in place in the same version.
    pub unchanged: Vec<Object>,
    /// Files of an earlier fetch that the store no longer has. They stay.
    pub gone: Vec<Object>,
}

impl Plan {
    /// Bytes to be fetched.
    pub fn bytes(&self) -> u64 {
        self.fetch.iter().map(|object| object.size).fold(0, u64::saturating_add)
    }
}

/// Plans for a listing that is sorted by path. `local` returns the size of a file in the directory. Errors: why the
/// listing does not fit a directory, as a clause.
pub fn plan(
    mut listed: Vec<Object>,
    source: &Source,
    index: Index,
    local: impl Fn(&str) -> Option<u64>,
) -> Result<Plan, String> {
    listed.retain(|object| source.wants(&object.path));
    if listed.is_empty() {
        return Err("it has no objects".to_owned());
    }
    let has = |path: &str| listed.binary_search_by(|object| object.path.as_str().cmp(path)).is_ok();
    for Object { path, .. } in &listed {
        hostile::path(path)?;
        if path == INDEX || name_of(path).ends_with(FRESH) {
            return Err(format!("trainit itself uses the name {path:?} there"));
        }
        if let Some(above) = around(path).skip(1).find(|above| has(above)) {
            return Err(format!("the name {above:?} would be both a file and, for {path:?}, a directory"));
        }
    }
    let is_known = |object: &Object| index.has(object) && local(&object.path) == Some(object.size);
    let known: Vec<bool> = listed.iter().map(is_known).collect();
    let mut gone: Vec<Object> = index.into_files().filter(|object| !has(&object.path)).collect();
    gone.retain(|object| local(&object.path).is_some());
    let mut plan = Plan { gone, ..Plan::default() };
    for (object, is_known) in listed.into_iter().zip(known) {
        if is_known { &mut plan.unchanged } else { &mut plan.fetch }.push(object);
    }
    Ok(plan)
}

/// The temporary name of a file: hidden, short, and the same after a kill.
pub fn temporary(path: &str) -> String {
    let (parent, name) = path.split_at(path.len() - name_of(path).len());
    format!("{parent}.{}{FRESH}", hash16(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::index;
    use super::*;

    const URL: &str = "gs://b/p";

    fn object(path: &str, tag: &str) -> Object {
        Object { path: path.to_owned(), size: 3, tag: tag.to_owned(), modified_ns: 0 }
    }

    fn decide(url: &str, listed: &[&str], known: &[Object], local: &[&str]) -> Result<Plan, String> {
        let mut index = Index::default();
        let lines = [index::head(url)].into_iter().chain(known.iter().map(index::entry));
        lines.for_each(|line| index.read(url, &line));
        let listed = listed.iter().map(|path| object(path, "1")).collect();
        plan(listed, &Source::parse(url).expect("a URL"), index, |path| local.contains(&path).then_some(3))
    }

    fn paths(objects: &[Object]) -> Vec<&str> {
        objects.iter().map(|object| object.path.as_str()).collect()
    }

    #[test]
    fn an_object_that_is_in_place_in_the_same_version_is_not_fetched_again() {
        let known = [object("a", "1"), object("b", "0"), object("c", "1"), object("old", "1"), object("lost", "1")];
        let plan = decide(URL, &["a", "b", "c", "d"], &known, &["a", "b", "d", "old"]).expect("a plan");
        assert_eq!(paths(&plan.unchanged), ["a"]);
        assert_eq!(paths(&plan.fetch), ["b", "c", "d"], "another version, deleted here, not in the index");
        assert_eq!((paths(&plan.gone), plan.bytes()), (vec!["old"], 9));
    }

    #[test]
    fn only_objects_that_match_the_wildcard_are_fetched() {
        let plan = decide("gs://b/p/train-*", &["test-1", "train-1", "train-2"], &[], &[]).expect("a plan");
        assert_eq!(paths(&plan.fetch), ["train-1", "train-2"]);
        assert!(decide("gs://b/p/train-*", &["test-1"], &[], &[]).is_err());
    }

    #[test]
    fn names_that_cannot_be_files_below_the_directory_are_refused() {
        for listed in [
            &["a/../../x"][..],
            &["/etc/passwd"],
            &["a//b"],
            &["./a"],
            &["a\0b"],
            &["a/"],
            &[INDEX],
            &["x.trainit-new"],
            &["a", "a-b", "a/b"],
            &[],
        ] {
            assert!(decide(URL, listed, &[], &[]).is_err(), "{listed:?}");
        }
    }

    #[test]
    fn a_temporary_file_lies_beside_its_file_and_is_hidden() {
        let one = temporary("a/b/c.bin");
        assert!(one.starts_with("a/b/.") && one.ends_with(FRESH), "{one}");
        assert!(temporary(&"x".repeat(250)).len() < 40 && temporary("x").starts_with('.'));
        assert_ne!(temporary("a/x"), temporary("a/y"));
    }
}
