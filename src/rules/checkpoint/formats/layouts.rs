//! The known formats, as a table. A row says how to recognise a format, which files a checkpoint of it has, and what proves
//! that it is complete. The engine applies the same rules to every row.
//!
//! Patterns are paths: `*` is any text within a name, `<n>` a decimal number, `(…)` a capture, `|` an alternative; `re:`
//! begins a regular expression. A number in a name is never more than a step.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

/// One format.
#[derive(Debug)]
pub struct Layout {
    /// For `--checkpoint-format`, the manifest and logs.
    pub name: &'static str,
    /// Files below a root, any of which identifies it.
    pub(in crate::checkpoint) telltale: &'static [&'static str],
    /// A file that must exist in the root, too.
    pub(in crate::checkpoint) beside: Option<&'static str>,
    /// The entries of a root that belong to a unit: files, or directories with everything below them. The capture is
    /// the unit's name.
    pub(in crate::checkpoint) unit: &'static [&'static str],
    /// The required files, relative to the unit's directory, or to the root if a unit consists of files.
    pub(in crate::checkpoint) members: &'static [Member],
    /// What proves that a save is finished.
    pub(in crate::checkpoint) proof: Proof,
    /// Where the step comes from.
    pub(in crate::checkpoint) step: Step,
    /// Files and links in the root that name the newest unit.
    pub(in crate::checkpoint) pointers: &'static [&'static str],
    /// Temporary names in a root that are not checkpoints.
    pub(in crate::checkpoint) ignored: &'static [&'static str],
    /// The JSON file of a unit and its field that holds the path of the best unit.
    pub(in crate::checkpoint) best: Option<(&'static str, &'static str)>,
    /// Whether each save writes the same names as the previous one.
    pub(in crate::checkpoint) again: bool,
    /// A directory whose files look like telltales but are not.
    pub(in crate::checkpoint) never: Option<&'static str>,
}

/// A condition on the files of a unit.
#[derive(Debug)]
pub(in crate::checkpoint) enum Member {
    /// One file matches.
    AnyOf(&'static [&'static str]),
    /// No file matches.
    Absent(&'static str),
    /// One file for each rank, whose number is the capture; with some libraries rank 0 writes for all. These files are
    /// counted. The times of other ranks' files are not compared with the proof's, because other ranks may write later
    /// and have other clocks.
    PerRank {
        file: &'static str,
        or_rank_0: bool,
    },
    /// The format's reader decides.
    Tensorflow,
    Huggingface,
    Deepspeed,
    Dcp,
    Orbax,
}

/// What proves that a save is finished.
#[derive(Debug)]
pub(in crate::checkpoint) enum Proof {
    /// The unit has its final name, which it gets by a rename, or it is one file whose end can be checked.
    Itself,
    /// One of these files of the unit is written last. Messages name the first.
    Last(&'static [&'static str]),
    /// One of these files in the root is written last. It holds the unit's name, a path that ends in that name, or its number;
    /// or it is TensorFlow's state file.
    Pointed(&'static [&'static str]),
    /// Nothing: it is complete when the same files would be complete as part of the rest.
    Nothing,
}

/// Where the step of a unit comes from.
#[derive(Debug)]
pub(in crate::checkpoint) enum Step {
    /// The capture in the unit's name.
    Name(&'static str),
    /// A number in a JSON file of the unit.
    Json { file: &'static str, field: &'static str },
}

const ROW: Layout = Layout {
    name: "",
    telltale: &[],
    beside: None,
    unit: &["(*)/"],
    members: &[],
    proof: Proof::Itself,
    step: Step::Name(LAST_NUMBER),
    pointers: &[],
    ignored: &[],
    best: None,
    again: false,
    never: None,
};

/// The step in a name that ends in a number, or has a number before its extension.
const LAST_NUMBER: &str = "re:.*?([0-9]+)[^0-9]*";
/// DeepSpeed's files of one rank.
const OPTIMIZER_STATES: &str = "*zero_pp_rank_(<n>)_mp_rank_(<n>)_optim_states.pt";
/// DLRover's own pointer, written next to the pointer of the library that it saves for.
const DLROVER: &str = "dlrover_latest.txt";

/// Every known format. The first row whose telltale is in a directory takes that directory.
pub static LAYOUTS: &[Layout] = &[
    Layout {
        name: "tensorflow",
        telltale: &["*.data-<n>-of-<n>", "*_temp/*.data-<n>-of-<n>"],
        unit: &["(*).index", "(*).data-<n>-of-<n>", "(*).meta"],
        members: &[Member::Tensorflow],
        proof: Proof::Pointed(&["checkpoint"]),
        step: Step::Name("*-(<n>)"),
        pointers: &["checkpoint"],
        ignored: &["*_temp", "checkpoint.tmp*"],
        // A model that was exported for serving.
        never: Some("variables"),
        ..ROW
    },
    Layout {
        name: "deepspeed",
        telltale: &["*.ckpt/checkpoint/*mp_rank_<n>_model_states.pt", "*.ckpt/checkpoint/*mp_rank_<n>_optim_states.pt"],
        unit: &["(*.ckpt)/"],
        members: &[
            Member::Deepspeed,
            Member::PerRank { file: "checkpoint/*zero_pp_rank_(<n>)_mp_rank_(<n>)_optim_states.pt", or_rank_0: false },
        ],
        proof: Proof::Last(&["latest"]),
        step: Step::Name("*step=(<n>)*"),
        pointers: &["last*.ckpt"],
        ..ROW
    },
    Layout {
        name: "deepspeed",
        telltale: &["*/*mp_rank_<n>_model_states.pt", "*/*mp_rank_<n>_optim_states.pt"],
        members: &[Member::Deepspeed, Member::PerRank { file: OPTIMIZER_STATES, or_rank_0: false }],
        proof: Proof::Pointed(&["latest", "last_checkpoint"]),
        pointers: &["latest", "last_checkpoint", "zero_to_fp32.py", DLROVER],
        ..ROW
    },
    Layout {
        name: "megatron",
        telltale: &["iter_<n>/common.pt", "iter_<n>/mp_rank_*/*", "release/common.pt", "release/mp_rank_*/*"],
        ..MEGATRON
    },
    Layout {
        name: "megatron",
        telltale: &["iter_<n>/*.distcp", "iter_<n>/.metadata", "iter_<n>/metadata.json"],
        beside: Some("latest_checkpointed_iteration.txt"),
        ..MEGATRON
    },
    Layout {
        name: "huggingface",
        telltale: &[
            "checkpoint-<n>/trainer_state.json",
            "checkpoint-<n>/training_args.bin",
            "checkpoint-<n>/rng_state*.pth",
            "checkpoint-<n>/checkpoint-is-incomplete.txt",
        ],
        unit: &["(checkpoint-<n>)/"],
        members: &[
            Member::Absent("checkpoint-is-incomplete.txt"),
            Member::Huggingface,
            Member::PerRank { file: "rng_state_(<n>).pth", or_rank_0: false },
        ],
        proof: Proof::Last(&["trainer_state.json"]),
        pointers: &["latest", DLROVER],
        best: Some(("trainer_state.json", "best_model_checkpoint")),
        ..ROW
    },
    Layout {
        name: "accelerate",
        telltale: &["*/random_states_<n>.pkl", "*/scheduler.bin", "*/sampler.bin"],
        members: &[
            Member::AnyOf(&["*model*", "*.safetensors", "*.distcp", "pytorch_model*/*", "*/*.safetensors"]),
            Member::PerRank { file: "random_states_(<n>).pkl", or_rank_0: false },
        ],
        proof: Proof::Last(&["random_states_<n>.pkl"]),
        again: true,
        ..ROW
    },
    Layout {
        name: "dlrover",
        telltale: &[DLROVER],
        unit: &["re:((?:[A-Za-z_.-]*[_.-])?[0-9]+\\.(?:pt|pth|bin|ckpt))", "re:((?:[A-Za-z_.-]*[_.-])?[0-9]+)/"],
        proof: Proof::Pointed(&[DLROVER]),
        pointers: &[DLROVER],
        ignored: &["*.done"],
        again: true,
        ..ROW
    },
    Layout {
        name: "composer",
        telltale: &["ep<n>-ba<n>-rank<n>.pt"],
        unit: &["(ep<n>-ba<n>)-rank<n>.pt"],
        members: &[Member::PerRank { file: "*-rank(<n>).pt", or_rank_0: true }],
        step: Step::Name("ep<n>-ba(<n>)*"),
        pointers: &["latest-rank<n>.pt"],
        again: true,
        ..ROW
    },
    Layout {
        name: "nvrx",
        telltale: &["<n>/iter_<n>_<n>_local*.pt"],
        unit: &["<n>/(iter_<n>)_<n>_local*.pt"],
        members: &[
            Member::Absent("<n>/iter_<n>_<n>_local.dirty.pt"),
            Member::PerRank { file: "(<n>)/iter_<n>_<n>_local.pt", or_rank_0: false },
        ],
        again: true,
        ..ROW
    },
    Layout {
        name: "dcp",
        telltale: &["*/__<n>_<n>.distcp", "*/.metadata"],
        members: &[Member::Dcp, Member::PerRank { file: "__(<n>)_<n>.distcp", or_rank_0: true }],
        // Lightning writes meta.pt after everything else.
        proof: Proof::Last(&[".metadata", "*/.metadata", "meta.pt"]),
        pointers: &["latest-rank<n>.pt", "last*.ckpt"],
        ..ROW
    },
    Layout {
        name: "orbax",
        telltale: &["*/_CHECKPOINT_METADATA", "*/commit_success.txt"],
        members: &[Member::Orbax],
        ..ROW
    },
    Layout { name: "flax", telltale: &["checkpoint_<n>"], unit: &["(checkpoint_<n>)", "(checkpoint_<n>)_gda/"], ..ROW },
    Layout {
        name: "keras",
        telltale: &["training_metadata.json"],
        unit: &["()latest.weights.h5", "()training_metadata.json", "()*.bkp"],
        members: &[Member::AnyOf(&["latest.weights.h5"])],
        proof: Proof::Last(&["training_metadata.json"]),
        step: Step::Json { file: "training_metadata.json", field: "epoch" },
        ..ROW
    },
    Layout {
        name: "lightning",
        telltale: &["*=*.ckpt", "hpc_ckpt_<n>.ckpt"],
        unit: &["re:((?:[^/]*=[^/]*|last|last-v[0-9]+|hpc_ckpt_[0-9]+)\\.ckpt)"],
        step: Step::Name("*step=(<n>)*"),
        pointers: &["last*.ckpt"],
        ..ROW
    },
];

const MEGATRON: Layout = Layout {
    unit: &["(iter_<n>)/", "(release)/"],
    members: &[Member::AnyOf(&["metadata.json", "mp_rank_*/*", ".metadata"])],
    proof: Proof::Pointed(&["latest_checkpointed_iteration.txt"]),
    pointers: &["latest_checkpointed_iteration.txt", DLROVER],
    ..ROW
};

/// `--marker NAME`: the siblings of the first directory that holds the marker. The engine adds the name.
pub(in crate::checkpoint) static MARKER: Layout = Layout { name: "marker", ..ROW };

const NUMBERED_FILE: &str =
    "re:((?:step|global_step|iter|epoch|checkpoint|ckpt|model|state|snapshot)[-_=]?[0-9]+(?:\\.[A-Za-z0-9_.]*)?)";
const NUMBERED_DIRECTORY: &str =
    "re:((?:step|global_step|iter|epoch|checkpoint|ckpt|model|state|snapshot)[-_=]?[0-9]+)/";

/// Entries of one numbered series in the checkpoint directory. Nothing proves that a save is complete, so a unit is
/// ready by the rule for the rest.
pub(in crate::checkpoint) static NUMBERED: Layout = Layout {
    name: "numbered",
    unit: &[NUMBERED_FILE, NUMBERED_DIRECTORY],
    proof: Proof::Nothing,
    step: Step::Name("re:[^0-9]*([0-9]+).*"),
    again: true,
    ..ROW
};

/// Whether this is the name of one checkpoint of a series, such as `step_100` or `model_100.pt`.
pub(in crate::checkpoint) fn is_numbered(name: &str, is_directory: bool) -> bool {
    let text = NUMBERED.unit[usize::from(is_directory)].trim_end_matches('/');
    pattern(text).is_match(name)
}

/// The name for everything that belongs to no format.
const TREE: &str = "tree";

/// `--checkpoint-format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Every format of the table.
    #[default]
    Auto,
    /// No format: everything belongs to the rest.
    Tree,
    /// The rows of this name, and nothing else is committed.
    Only(&'static str),
}

impl Format {
    /// Whether no format was chosen.
    pub fn is_auto(self) -> bool {
        matches!(self, Format::Auto)
    }

    /// From the flag's value. Errors: one clause with the known names.
    pub fn parse(text: &str) -> Result<Format, String> {
        match text {
            "auto" => Ok(Format::Auto),
            TREE => Ok(Format::Tree),
            name => match format_names().find(|known| *known == name) {
                Some(known) => Ok(Format::Only(known)),
                None => {
                    let all: Vec<&str> = format_names().collect();
                    Err(format!("{name:?} is not a format; expected auto or one of {}", all.join(", ")))
                }
            },
        }
    }
}

/// The names that `--checkpoint-format` accepts in addition to `auto`.
pub fn format_names() -> impl Iterator<Item = &'static str> {
    let mut names: Vec<&str> = LAYOUTS.iter().map(|l| l.name).chain([NUMBERED.name, TREE]).collect();
    names.dedup();
    names.into_iter()
}

/// The regular expression of a pattern, without anchors.
pub(in crate::checkpoint) fn expression(pattern: &str) -> String {
    match pattern.strip_prefix("re:") {
        Some(raw) => raw.to_owned(),
        None => pattern.replace('.', "\\.").replace('*', "[^/]*").replace("<n>", "[0-9]+"),
    }
}

/// The compiled, anchored expression of a pattern of the table, cached at its first use.
#[expect(clippy::unwrap_used, reason = "constant patterns, compiled by every test")]
pub(in crate::checkpoint) fn pattern(text: &'static str) -> &'static Regex {
    static ALL: LazyLock<Mutex<HashMap<&'static str, &'static Regex>>> = LazyLock::new(Mutex::default);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = || Regex::new(&format!("^(?:{})$", expression(text))).unwrap();
    all.entry(text).or_insert_with(|| Box::leak(Box::new(compiled())))
}
