//! The subcommands: their operands, and what their help says beside the settings.

use std::ffi::OsString;

use clap::{Arg, value_parser};

use crate::settings::defs::on;

/// A subcommand: its name, its bit in [`on`], one line of help, and the operands it takes.
pub(super) struct Sub {
    pub(super) name: &'static str,
    pub(super) on: u8,
    pub(super) about: &'static str,
    pub(super) after: &'static str,
    pub(super) operands: fn() -> Vec<Arg>,
}

const CHECKPOINT_AFTER: &str = if !cfg!(feature = "store") {
    ""
} else {
    "\
list    the commits of --checkpoint-store, newest first, each looked at (are its objects there, with their sizes?); with
        --checkpoint-dir the local checkpoints too, or these alone
verify  list, and reads every byte of every commit and compares its checksums
push    commits the newest complete checkpoint of --checkpoint-dir, or --push-step; where the newest commit is just that,
        nothing is done. It takes the store over: a run elsewhere that still commits to it then stops with 205; beside
        one on this machine nothing is pushed without --take-over. Deletes older commits only where --keep-last or
        --keep-every is given
pull    restores the newest commit that is whole, or --restore-step, into --checkpoint-dir, unless a newer local one of
        its run is there; what is there already is not fetched, what is in the way is moved aside
prune   deletes what --keep-last and --keep-every do not keep, and old data of no commit; a commit counts by the sizes of its
        files, their bytes are not read: where verify calls one bad, keep more

What was asked for goes to standard output (one JSON object with --json), all else to standard error, progress of push,
pull and verify too: a bar on a terminal, else a line every 10 s.

Exit codes: 0 done, or nothing to do; 1 verify found a commit that is no good, push found nothing complete, one that
keeps changing, or a run that commits to the store; 125 wrong settings, or a checkpoint directory that cannot be used; 204 the store or the disk failed, or
what must be pulled is not there; 205 a newer run has taken the store over; 128+n signal n stopped it, and a push takes back
what it sent. A --checkpoint-dir that is not there is 125 for push, and for list without a store; beside a store it is empty,
and pull makes it. A store's directory that is not there is 204; only push makes it."
};

/// `help`, `help run` and `version`, as most programs know them, are `--help`, `run --help` and `--version`.
pub(super) fn as_flags(argv: &mut Vec<OsString>) {
    match argv.get(1).and_then(|word| word.to_str()) {
        Some("help") if argv.len() <= 3 => {
            argv.remove(1);
            argv.push("--help".into());
        }
        Some("version") if argv.len() == 2 => argv[1] = "--version".into(),
        _ => {}
    }
}

pub(super) const SUBS: &[Sub] = &[
    Sub {
        name: "run",
        on: on::RUN,
        about: "Supervise a training command; the ENTRYPOINT",
        after: "Exit codes: the child's own, 128+n for signal n; 125 trainit could not start the job, 126 not executable, \
                127 not found, 143 stopped by SIGTERM or preempted, 201 hung, 202 a GPU failed or a broken one is \
                demanded, 203 a peer could not be reached, 204 what had to be committed or restored could not be, 205 fenced by a newer run.",
        operands: || {
            vec![
                Arg::new("command")
                    .value_name("COMMAND")
                    .help("The command and its arguments, passed on untouched")
                    .num_args(1..)
                    .trailing_var_arg(true)
                    .value_parser(value_parser!(OsString)),
            ]
        },
    },
    Sub {
        name: "report-metric",
        on: on::REPORT_METRIC,
        about: "Append one metric to the hyperparameter tuning file, as cloudml-hypertune would",
        after: "Exit codes: 0 the metric is in the file; 125 a wrong value, step, tag or flag (not written; of --stdin the \
                other lines are, each as it comes); 1 the file could not be written. Scripts that should go on either way: \
                --best-effort, or || true.",
        operands: || {
            vec![
                Arg::new("TAG").value_parser(value_parser!(OsString)).help("The metric's name"),
                Arg::new("VALUE")
                    .allow_hyphen_values(true)
                    .value_parser(value_parser!(OsString))
                    .help("The metric's value"),
            ]
        },
    },
    Sub {
        name: "env",
        on: on::ENV,
        about: "Print this replica's derived variables: vars=$(trainit env) || exit; eval \"$vars\"",
        after: "",
        operands: Vec::new,
    },
    Sub {
        name: "inspect",
        // Every setting of `run` is taken, so that it can be shown.
        on: on::INSPECT | on::RUN,
        about: "Show what trainit sees here, and where each value came from",
        after: "Takes every flag of run, starts nothing and asks no store. Exit codes: 0 it was shown; 125 run would not start \
                here, with what is wrong.",
        operands: Vec::new,
    },
    Sub {
        name: "checkpoint",
        on: on::CHECKPOINT,
        about: "Work on the checkpoint store by hand",
        after: CHECKPOINT_AFTER,
        operands: || {
            vec![
                Arg::new("ACTION")
                    .required(true)
                    .value_parser(value_parser!(OsString))
                    .help("list, verify, push, pull or prune"),
            ]
        },
    },
    Sub {
        name: "status",
        on: on::STATUS,
        about: "Ask the running agent how it stands",
        after: "Exit codes: 0 it answered (with --check: all is well); 1 nobody answered, or --check found the job failing. A \
                run that restores, waits for its next attempt or is being stopped is well: trainit has it in hand.",
        operands: Vec::new,
    },
    Sub { name: "gpus", on: on::GPUS, about: "Show the GPUs, over NVML", after: "", operands: Vec::new },
    Sub {
        name: "completions",
        on: 0,
        about: "Print a completion script for a shell",
        after: "bash: source <(trainit completions bash). zsh: trainit completions zsh >DIR/_trainit, with DIR in $fpath. \
                fish: trainit completions fish | source.",
        operands: || {
            vec![Arg::new("SHELL").required(true).value_parser(value_parser!(OsString)).help("bash, zsh or fish")]
        },
    },
    Sub {
        name: "licenses",
        on: 0,
        about: "Print what is built in, and the licences of it",
        after: "",
        operands: Vec::new,
    },
];
