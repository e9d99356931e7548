//! The subcommands: their operands, and their help apart from the settings.

use std::ffi::OsString;

use clap::{Arg, value_parser};

use crate::settings::defs::{SIMULATE, Setting, all, on};

/// A subcommand: its name, its bit in [`on`], its own flags, one line of help, and its operands.
pub(super) struct Sub {
    pub(super) name: &'static str,
    pub(super) on: u8,
    /// Flags that are no settings: without a variable and a key in the file.
    pub(super) own: &'static [Setting],
    pub(super) about: &'static str,
    pub(super) after: &'static str,
    pub(super) operands: fn() -> Vec<Arg>,
}

impl Sub {
    /// Its flags.
    pub(super) fn settings(&self) -> impl Iterator<Item = &'static Setting> {
        let on = self.on;
        all().filter(move |setting| setting.on & on != 0).chain(self.own)
    }
}

const CHECKPOINT_AFTER: &str = "\
list    lists the commits of --checkpoint-store, newest first, and checks their objects and sizes; with --checkpoint-dir
        also the local parts and their states, or only those
explain says for each path of --checkpoint-dir, or each given PATH, which rule decides about it: the pattern that
        excludes it, the format, or the rest; and what it waits for
verify  like list, but reads every byte of every commit and compares the checksums
push    commits the content of --checkpoint-dir when it has been unchanged for --settle, unless it equals the newest
        commit. It takes over the store: a run elsewhere that still commits to it then stops with 205. While a
        run on this machine commits to it, it is refused. It deletes older commits only with --keep-last or --keep-every
pull    restores the newest complete commit, or --restore-step, into --checkpoint-dir, unless the directory has newer
        checkpoints of the same job; equal files are not fetched, different files are moved to .trainit/aside
prune   deletes commits that --keep-last and --keep-every do not keep, and old data without a commit; it checks the sizes
        of files, not their bytes: if verify reports a damaged commit, keep more

The result is on standard output (one JSON object with --json). Everything else is on standard error, including the
progress of push, pull and verify: a bar on a terminal, otherwise a line every 10 s.

Exit codes: 0 done, or nothing to do; 1 verify found a damaged commit, or push found nothing complete, files that keep
changing, or a run that commits to the store; 125 wrong settings, or an unusable checkpoint directory; 204 the store or the
disk failed, or the commit to pull does not exist; 205 a newer run has taken over the store; 128+n signal n stopped it, and a
push deletes what it sent. A missing --checkpoint-dir is 125 for push, and for list without a store; with a store it counts
as empty, and pull creates it. A missing store directory is 204; only push creates it.";

const SIMULATE_AFTER: &str = "\
A SEAT is chief, worker-0, worker-1, ps-0, evaluator-0 and so on. A TIME is 40s, 1m30s, or step:20 for the moment when that
replica reports step 20. A replica's steps are read from lines such as step=12 loss=0.5.

In the command, {own} is the replica's own disk, and {shared} a directory that all replicas see. HOME, TMPDIR,
TRAINIT_CHECKPOINT_DIR and the metrics file of a replica are on its disk.

Exit codes: 0 the platform would call the job succeeded; 1 it would not, or the report names what did not happen: a fault, a
step of any replica, a replica's verdict, equal results (--compare), a resume (--expect-resume); 125 a wrong flag, or a command that does not exist;
128+n signal n ended the simulation.";

/// The command to run.
fn command() -> Arg {
    let command = Arg::new("command").value_name("COMMAND").num_args(1..).trailing_var_arg(true);
    command.value_parser(value_parser!(OsString))
}

/// Replaces `help`, `help run` and `version` by `--help`, `run --help` and `--version`.
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
        own: &[],
        about: "Supervise a training command; the ENTRYPOINT",
        after: "\
Each flag is also a variable (--stop-grace is TRAINIT_STOP_GRACE) and a key of
/etc/trainit/config.toml.

Exit codes: the child's own, 128+n for signal n; 125 trainit could not start the job, 126 not
executable, 127 not found, 143 stopped by SIGTERM or preempted, 201 hung, 202 a GPU failed or only a
broken GPU is left, 203 a peer could not be reached, 204 a necessary commit or restore failed,
205 fenced by a newer run.",
        operands: || vec![command().help("The command and its arguments, passed on unchanged")],
    },
    Sub {
        name: "report-metric",
        on: on::REPORT_METRIC,
        own: &[],
        about: "Append one metric to the hyperparameter tuning file, as cloudml-hypertune would",
        after: "Exit codes: 0 the metric is in the file; 125 a wrong value, step, tag or flag (not written; with --stdin the \
                other lines are written); 1 the file could not be written. For scripts that should continue in any case: \
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
        own: &[],
        about: "Print this replica's derived variables: vars=$(trainit env) || exit; eval \"$vars\"",
        after: "",
        operands: Vec::new,
    },
    Sub {
        name: "inspect",
        // Accepts every setting of `run`, to show it.
        on: on::INSPECT | on::RUN,
        own: &[],
        about: "Show what trainit detects here, and the origin of each value",
        after: "Accepts every flag of run, starts nothing and reads no store. Exit codes: 0 shown; 125 run would not start \
                here, with the mistakes.",
        operands: Vec::new,
    },
    Sub {
        name: "checkpoint",
        on: on::CHECKPOINT,
        own: &[],
        about: "Manage the checkpoint store manually",
        after: CHECKPOINT_AFTER,
        operands: || {
            vec![
                Arg::new("ACTION")
                    .required(true)
                    .value_parser(value_parser!(OsString))
                    .help("list, explain, verify, push, pull or prune"),
                Arg::new("PATH")
                    .num_args(0..)
                    .value_parser(value_parser!(OsString))
                    .help("For explain: paths of the checkpoint directory"),
            ]
        },
    },
    Sub {
        name: "status",
        on: on::STATUS,
        own: &[],
        about: "Show the status of the running job",
        after: "Exit codes: 0 it answered (with --check: healthy); 1 no answer, or --check found the job failing. A \
                run that restores, waits for its next attempt or is being stopped is healthy.",
        operands: Vec::new,
    },
    Sub {
        name: "goodput",
        on: on::GOODPUT,
        own: &[],
        about: "Show the whole life of a job: the time of all its runs by cause, its faults, and how often to save",
        after: "Reads what each run has left in --checkpoint-store, or without a store in --checkpoint-dir. Exit codes: 0 shown; \
                1 there is no run; 125 wrong settings; 204 the store failed.",
        operands: Vec::new,
    },
    Sub {
        name: "gpus",
        on: on::GPUS,
        own: &[],
        about: "Show the GPUs as NVML reports them",
        after: "",
        operands: Vec::new,
    },
    Sub {
        name: "simulate",
        on: 0,
        own: SIMULATE,
        about: "Run the replicas of a distributed job on this machine, as a platform would, with faults",
        after: SIMULATE_AFTER,
        operands: || vec![command().help("The command of each replica; trainit is this program itself")],
    },
    Sub {
        name: "completions",
        on: 0,
        own: &[],
        about: "Print a completion script for a shell",
        after: "bash: source <(trainit completions bash). zsh: trainit completions zsh >DIR/_trainit, with DIR in $fpath. \
                fish: trainit completions fish | source.",
        operands: || {
            vec![Arg::new("SHELL").required(true).value_parser(value_parser!(OsString)).help("bash, zsh or fish")]
        },
    },
    Sub {
        name: "man",
        on: 0,
        own: &[],
        about: "Print a manual page",
        after: "To read one: trainit man run | man -l -. To install all: trainit man >DIR/trainit.1 and trainit man run \
                >DIR/trainit-run.1 and so on, with DIR as /usr/share/man/man1.",
        operands: || {
            vec![
                Arg::new("SUBCOMMAND")
                    .value_parser(value_parser!(OsString))
                    .help("The subcommand [default: trainit itself]"),
            ]
        },
    },
    Sub {
        name: "licenses",
        on: 0,
        own: &[],
        about: "Print the built-in crates and their licences",
        after: "",
        operands: Vec::new,
    },
];
