//! Which paths are never committed: by default, and by `--checkpoint-exclude` and `--checkpoint-include`.
//!
//! Globs work as in gitignore: a glob without `/` matches any base name, a glob with `/` matches the path from the
//! checkpoint directory, `**` crosses directories, and a `/` at the end means directories only. An excluded directory
//! excludes everything below it.

use std::sync::LazyLock;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::checkpoint::listing::{Entry, Kind, OWN, around, name_of};

/// Excluded unless included by a flag: logs, caches, temporary files, and copies that loggers keep.
const DEFAULTS: &[&str] = &[
    ".git",
    ".cache",
    ".ipynb_checkpoints",
    ".nfs*",
    ".Trash*",
    ".DS_Store",
    ".idea/",
    ".vscode/",
    ".*.sw?",
    ".#*",
    ".~*",
    ".tmp*",
    "._*",
    "*.tmp",
    "*.part",
    "*.partial",
    "*.incomplete",
    "tmp-*",
    "*~",
    "*.bak",
    "*.swp",
    "*.lock",
    "*.log",
    "*.tfevents*",
    "wandb/",
    "mlruns/",
    "lightning_logs/**/events*",
    "__pycache__/",
    // Temporary names of the libraries in the table, before a rename.
    "*.orbax-checkpoint-tmp*",
    "checkpoint_tmp*",
    "workertemp_*/",
    "*.tempstate*",
];
/// The reported reasons for excluding the finished model and core dumps.
const MODEL: &str = "--model-dir";
const CORE_DUMP: &str = "core dump";

/// The default patterns, compiled at the first look, so that a run without checkpoints does not pay for them.
static DEFAULT_SET: LazyLock<Set> = LazyLock::new(|| Set::of(DEFAULTS).unwrap_or_default());

/// The user's patterns, compiled.
#[derive(Debug, Clone, Default)]
pub struct Exclusions {
    include: Set,
    exclude: Set,
    model: Option<String>,
    marker: Option<String>,
}

/// The decision about a path. It also holds for everything below it, unless a pattern decides otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::checkpoint) enum Decision<'a> {
    /// It may be committed.
    Kept,
    /// `--checkpoint-include` brought it back.
    Included,
    /// A default pattern drops it.
    Dropped(&'a str),
    /// Dropped, and no pattern brings it back.
    Forbidden(&'a str),
}

impl<'a> Decision<'a> {
    /// The pattern that drops it.
    pub(in crate::checkpoint) fn pattern(self) -> Option<&'a str> {
        match self {
            Decision::Kept | Decision::Included => None,
            Decision::Dropped(pattern) | Decision::Forbidden(pattern) => Some(pattern),
        }
    }
}

impl Exclusions {
    /// From the flags' globs and the path of the finished model below the checkpoint directory. Errors: the glob and what is
    /// wrong with it.
    pub fn new(exclude: &[String], include: &[String], model_dir: Option<&str>) -> Result<Exclusions, String> {
        let model = model_dir.map(str::to_owned);
        Ok(Exclusions { exclude: Set::of(exclude)?, include: Set::of(include)?, model, marker: None })
    }

    /// The same, but no default pattern excludes files with the name of `--marker`.
    pub fn with_marker(self, marker: Option<String>) -> Exclusions {
        Exclusions { marker, ..self }
    }

    /// The pattern that excludes this file, directly or through one of its parent directories.
    pub fn decide(&self, path: &str) -> Option<&str> {
        let mut parts: Vec<&str> = around(path).collect();
        parts.reverse();
        let below = |outer, part: &&str| self.below(outer, part, part.len() < path.len());
        parts.iter().fold(Decision::Kept, below).pattern()
    }

    /// The decision about an entry whose parent directory has the decision `outer`.
    pub(in crate::checkpoint) fn of_entry<'a>(&'a self, outer: Decision<'a>, entry: &Entry) -> Decision<'a> {
        self.below(outer, &entry.path, entry.kind == Kind::Directory)
    }

    fn below<'a>(&'a self, outer: Decision<'a>, path: &str, is_directory: bool) -> Decision<'a> {
        let forbidden = match outer {
            Decision::Forbidden(pattern) => Some(pattern),
            _ if name_of(path) == OWN => Some(OWN),
            _ if self.model.as_deref() == Some(path) => Some(MODEL),
            _ => self.exclude.matching(path, is_directory),
        };
        if let Some(pattern) = forbidden {
            return Decision::Forbidden(pattern);
        }
        let is_marker = self.marker.as_deref() == Some(name_of(path));
        if outer == Decision::Included || is_marker || self.include.matching(path, is_directory).is_some() {
            return Decision::Included;
        }
        let core = || (!is_directory && is_core_dump(name_of(path))).then_some(CORE_DUMP);
        let dropped = outer.pattern().or_else(|| DEFAULT_SET.matching(path, is_directory)).or_else(core);
        dropped.map_or(Decision::Kept, Decision::Dropped)
    }
}

/// `core`, or `core.` and digits; not a file such as `core.pt`.
fn is_core_dump(name: &str) -> bool {
    let number = name.strip_prefix("core.");
    name == "core" || number.is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Compiled globs, and their source text.
#[derive(Debug, Clone, Default)]
struct Set {
    globs: GlobSet,
    patterns: Vec<String>,
}

impl Set {
    fn of<P: AsRef<str>>(patterns: &[P]) -> Result<Set, String> {
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            let bare = pattern.strip_suffix('/').unwrap_or(pattern);
            let anchored = match bare.strip_prefix('/') {
                Some(rest) => rest.to_owned(),
                None if bare.contains('/') => bare.to_owned(),
                None => format!("**/{bare}"),
            };
            if bare.is_empty() {
                return Err(format!("{pattern:?} matches nothing"));
            }
            let glob = GlobBuilder::new(&anchored).literal_separator(true).build();
            globs.add(glob.map_err(|error| format!("{pattern:?} is not a glob ({})", error.kind()))?);
        }
        let globs = globs.build().map_err(|error| format!("the globs are too large ({})", error.kind()))?;
        Ok(Set { globs, patterns: patterns.iter().map(|p| p.as_ref().to_owned()).collect() })
    }

    /// The first pattern that matches.
    fn matching(&self, path: &str, is_directory: bool) -> Option<&str> {
        if self.patterns.is_empty() {
            return None;
        }
        let all = self.globs.matches(path).into_iter().map(|at| self.patterns[at].as_str());
        all.into_iter().find(|pattern| is_directory || !pattern.ends_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_globs_as_in_gitignore_and_exclude_beats_include_beats_the_defaults() {
        for (exclude, include, path, pattern) in [
            ("", "", "wandb/run-1/files/model.pt", "wandb/"),
            ("", "", "wandb", ""),
            ("", "", "a/.git/objects/aa", ".git"),
            ("", "", "a/.model.pt.swo", ".*.sw?"),
            ("", "", "a/.complete", ""),
            ("", "", "._dlrover_ckpt_stage/5.done/0", "._*"),
            ("", "", "step-5/.metadata", ""),
            ("", "", "step-5/model/.zarray", ""),
            ("", "", "a/model.pt.tmp", "*.tmp"),
            ("", "", "tmp-checkpoint-5/model.pt", "tmp-*"),
            ("", "", "lightning_logs/version_0/events.out.1", "lightning_logs/**/events*"),
            ("", "", "lightning_logs/version_0/a.ckpt", ""),
            ("", "", "events.out.tfevents.17.host", "*.tfevents*"),
            ("", "", "learn/events.out.tfevents", "*.tfevents*"),
            ("", "", "run/core.1234", "core dump"),
            ("", "", "core", "core dump"),
            ("", "", "core.pt", ""),
            ("", "", "core/model.pt", ""),
            ("", "", "run/.trainit/a.pt", ".trainit"),
            ("", ".trainit", ".trainit/torn/a.pt", ".trainit"),
            ("", "", "out/model/weights.pt", "--model-dir"),
            ("", "", "out/model2", ""),
            ("cache", "", "a/cache/b.bin", "cache"),
            ("a/*.bin", "", "a/b/c.bin", ""),
            ("a/**/*.bin", "", "a/b/c.bin", "a/**/*.bin"),
            ("/b.bin", "", "a/b.bin", ""),
            ("", "*.log", "a/train.log", ""),
            ("", "core.*", "core.1", ""),
            ("", "wandb/run/files/*.pt", "wandb/run/files/a.pt", ""),
            ("", "wandb/run/files/*.pt", "wandb/run/b.pt", "wandb/"),
            ("*.log", "*.log", "train.log", "*.log"),
            ("data/", "*.npz", "data/a.npz", "data/"),
        ] {
            let globs =
                |glob: &str| Some(glob.to_owned()).filter(|glob| !glob.is_empty()).into_iter().collect::<Vec<_>>();
            let all = Exclusions::new(&globs(exclude), &globs(include), Some("out/model")).expect("they are globs");
            assert_eq!(all.decide(path).unwrap_or_default(), pattern, "{path} {exclude} {include}");
        }
    }

    #[test]
    fn no_default_pattern_excludes_the_marker_and_a_flag_does() {
        let with = |exclude: &[String]| {
            Exclusions::new(exclude, &[], None).expect("is a glob").with_marker(Some("DONE.lock".to_owned()))
        };
        assert_eq!(with(&[]).decide("step-1/DONE.lock"), None);
        assert_eq!(with(&[]).decide("step-1/OTHER.lock"), Some("*.lock"));
        assert_eq!(with(&["DONE*".to_owned()]).decide("step-1/DONE.lock"), Some("DONE*"));
    }

    #[test]
    fn text_that_is_not_a_glob_is_refused_and_repeated() {
        for (glob, why) in [("a[", "\"a[\""), ("/", "matches nothing")] {
            assert!(Exclusions::new(&[glob.to_owned()], &[], None).expect_err("is not a glob").contains(why));
        }
    }
}
