//! The settings of `run`, except those for the cluster, checkpoints, metrics and GPUs, which have their own files.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::values::reader::Reader;
use crate::rules::job::{Policy, StoppedCode, Target};
use crate::rules::life::save_plan::{self, SaveInterval};
use crate::rules::preempt;
use crate::rules::process::signal::Signal;
use crate::rules::text::duration;
use crate::settings::values::suggest::one_of;

/// Restarts if there are checkpoints.
const MAX_RESTARTS_WITH_CHECKPOINTS: u32 = 3;

/// The time of `sbatch --signal` without a time.
const DEFAULT_LEAD: Duration = Duration::from_secs(60);

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Text,
    /// For clouds.
    Json,
}

/// The lowest level of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the level of that name")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// The settings.
#[derive(Debug)]
pub struct RunSettings {
    /// The settings that decide about the job.
    pub policy: Policy,
    /// The signal that the child gets when trainit dies and is not PID 1.
    pub death_signal: Option<Signal>,
    /// The signal that trainit gets when its own parent dies.
    pub orphaned_signal: Option<Signal>,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The lowest level of log lines.
    pub log_level: LogLevel,
    /// Each output line of several processes has the rank as its prefix.
    pub rank_prefix: bool,
    /// The directory for the dumps of the flight recorder.
    pub hang_forensics: Option<PathBuf>,
    /// Where frameworks keep compiled code.
    pub cache_dir: Option<PathBuf>,
    /// How often the trainer is asked to save.
    pub save_interval: Option<SaveInterval>,
    /// The file for the verdict.
    pub verdict_file: Option<PathBuf>,
    /// The file for the page about the run.
    pub run_report: Option<PathBuf>,
    /// The training's last step.
    pub steps: Option<u64>,
    /// The HTTP address of the status page.
    pub status_addr: Option<SocketAddr>,
    /// The source of preemption notices.
    pub preemption: preempt::Choice,
    /// The notice period of preemptions without a time.
    pub preemption_lead: Duration,
}

/// Reads the settings. Mistakes are collected in the reader, and the default is used.
pub fn read(reader: &mut Reader<'_>) -> RunSettings {
    let default = Policy::default();
    let has_checkpoints = reader.text("checkpoint-dir").is_some();
    let default_restarts = if has_checkpoints { MAX_RESTARTS_WITH_CHECKPOINTS } else { 0 };
    let backoff = reader.parse("restart-backoff", backoff);
    let policy = Policy {
        stop_grace: reader.parse("stop-grace", duration::parse).unwrap_or(default.stop_grace),
        signal_target: reader
            .choice("signal-target", &[("leader", Target::Leader), ("group", Target::Group)])
            .unwrap_or(Target::Leader),
        rewrite: reader.each_once("rewrite-signal", rewrite),
        remap_exit: reader.each_once("remap-exit", remap),
        stopped_code: reader
            .choice("stopped-exit-code", &[("143", StoppedCode::Always143), ("child", StoppedCode::Child)])
            .unwrap_or(StoppedCode::Always143),
        preempt_signal: reader.parse("preempt-signal", notification_signal).unwrap_or(default.preempt_signal),
        preempt_on: reader.each_once("preempt-on", announcement),
        checkpoint_on: Vec::new(),
        max_restarts: reader.count("max-restarts").map_or(default_restarts, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        backoff_first: backoff.map_or(default.backoff_first, |b| b.0),
        backoff_max: backoff.map_or(default.backoff_max, |b| b.1),
        fetches: reader.text("fetch").is_some(),
        checkpoints: has_checkpoints,
        store: has_checkpoints && reader.text("checkpoint-store").is_some(),
        peers: None,
        processes: default.processes,
        model: None,
        seed: None,
        hang_timeout: hang_timeout(reader),
        asks_for_dumps: reader.text("hang-forensics").is_some(),
        child_has_terminal: false,
        gang: None,
        ignored: Vec::new(),
        may_spin: default.may_spin,
    };
    RunSettings {
        policy,
        death_signal: reader.parse("parent-death-signal", signal_or_none).unwrap_or(Some(Signal::KILL)),
        orphaned_signal: reader.parse("orphaned-signal", signal_or_none).flatten(),
        log_format: log_format(reader),
        log_level: reader
            .choice(
                "log-level",
                &[
                    ("error", LogLevel::Error),
                    ("warn", LogLevel::Warn),
                    ("warning", LogLevel::Warn),
                    ("info", LogLevel::Info),
                    ("debug", LogLevel::Debug),
                ],
            )
            .unwrap_or(LogLevel::Info),
        rank_prefix: reader.choice("output-prefix", &[("rank", true), ("none", false)]).unwrap_or(true),
        hang_forensics: reader.path("hang-forensics").map(|dir| std::path::absolute(&dir).unwrap_or(dir)),
        cache_dir: cache_dir(reader),
        save_interval: reader.parse("save-interval", save_plan::parse).flatten(),
        verdict_file: reader.path("verdict-file"),
        run_report: reader.path("run-report"),
        steps: reader.count("steps"),
        status_addr: reader.parse("status-addr", status_addr),
        preemption: preemption(reader),
        preemption_lead: reader.parse("preemption-lead", duration::parse).unwrap_or(preempt::PREEMPTION_LEAD),
    }
}

/// The directory, absolute; `None`: off.
fn cache_dir(reader: &mut Reader<'_>) -> Option<PathBuf> {
    reader.text("cache-dir").filter(|text| text.trim() != "off")?;
    reader.path("cache-dir").map(|dir| std::path::absolute(&dir).unwrap_or(dir))
}

/// A shorter silence is none: it would end every trainer.
const LEAST_HANG: Duration = Duration::from_millis(100);

/// When silence is a hang; zero means never.
fn hang_timeout(reader: &mut Reader<'_>) -> Option<Duration> {
    let or_never = |text: &str| match duration::parse(text) {
        _ if text.trim() == "never" => Ok(Duration::ZERO),
        Ok(Duration::ZERO) => Ok(Duration::ZERO),
        _ => duration::at_least(LEAST_HANG)(text),
    };
    reader.parse("hang-timeout", or_never).filter(|timeout| !timeout.is_zero())
}

/// The source of preemption notices.
pub fn preemption(reader: &mut Reader<'_>) -> preempt::Choice {
    let choice = reader.parse("preemption", |text| {
        let names: Vec<&str> = ["auto", "off"].into_iter().chain(preempt::SOURCES.iter().map(|s| s.name)).collect();
        one_of(text, &names).map(preempt::choice)
    });
    choice.flatten().unwrap_or(preempt::Choice::Auto)
}

/// Only the format of log lines, for complaints about other settings.
pub fn log_format(reader: &mut Reader<'_>) -> LogFormat {
    let words = [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
    reader.choice("log-format", &words).unwrap_or(LogFormat::Auto)
}

fn signal(text: &str) -> Result<Signal, String> {
    Signal::parse(text).ok_or_else(|| format!("expected a signal such as TERM, SIGUSR1 or 10, found {text:?}"))
}

fn signal_or_none(text: &str) -> Result<Option<Signal>, String> {
    if text.trim() == "0" { Ok(None) } else { signal(text).map(Some) }
}

/// A signal that the trainer can handle, or `0`.
fn notification_signal(text: &str) -> Result<Option<Signal>, String> {
    let signal = signal_or_none(text)?;
    match signal {
        Some(uncatchable @ (Signal::KILL | Signal::STOP)) => Err(format!(
            "{uncatchable} leaves the trainer no time to save; expected a signal that can be caught, such as TERM, or 0"
        )),
        _ => Ok(signal),
    }
}

/// `USR1`, `USR1@120` (seconds, as in Slurm) or `USR1@2m`.
fn announcement(text: &str) -> Result<(Signal, Duration), String> {
    let (name, lead) = text.split_once('@').map_or((text, None), |(name, lead)| (name, Some(lead.trim())));
    let lead = match lead {
        None => DEFAULT_LEAD,
        Some(seconds) if seconds.parse::<u32>().is_ok() => Duration::from_secs(seconds.parse().unwrap_or_default()),
        Some(other) => duration::parse(other)?,
    };
    let signal = signal(name)?;
    if matches!(signal, Signal::KILL | Signal::STOP | Signal::CHLD) {
        return Err(format!(
            "{signal} cannot be used as an announcement; expected a signal that can be caught, such as USR1"
        ));
    }
    Ok((signal, lead))
}

fn status_addr(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        format!("expected an address and a port such as 127.0.0.1:9464, [::1]:9464 or 0.0.0.0:9464, found {text:?}")
    })
}

fn rewrite(text: &str) -> Result<(Signal, Option<Signal>), String> {
    let (from, to) =
        text.split_once(':').ok_or_else(|| format!("expected FROM:TO such as TERM:INT, found {text:?}"))?;
    let (from, to) = (signal(from)?, signal_or_none(to)?);
    if [Signal::KILL, Signal::STOP].contains(&from) {
        return Err(format!(
            "expected FROM to be a signal that a process can receive, found {text:?}: no process receives {from}"
        ));
    }
    Ok((from, to))
}

fn remap(text: &str) -> Result<(u8, u8), String> {
    let expected = || format!("expected FROM:TO such as 143:0, each from 0 to 255, found {text:?}");
    let (from, to) = text.split_once(':').ok_or_else(expected)?;
    let code = |text: &str| text.trim().parse().map_err(|_| expected());
    Ok((code(from)?, code(to)?))
}

fn backoff(text: &str) -> Result<(Duration, Duration), String> {
    let (first, max) = text.split_once("..").unwrap_or((text, text));
    let (first, max) = (duration::parse(first)?, duration::parse(max)?);
    if first > max {
        return Err(format!("expected the first pause to be no longer than the last, found {text:?}"));
    }
    Ok((first, max))
}

#[cfg(test)]
mod tests {
    use super::super::defs::{all, on};
    use super::super::values::layers::Values;
    use super::*;
    use crate::rules::process::env::Env;

    fn read_from(pairs: &[(&str, &str)]) -> (RunSettings, Vec<String>) {
        let mut complaints = Vec::new();
        let values =
            Values::gather(on::RUN, Default::default(), &Env::from_pairs(pairs.iter().copied()), None, &mut complaints);
        let mut reader = Reader::new(&values, complaints);
        let settings = read(&mut reader);
        (settings, reader.complaints.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_defaults_of_the_list_are_the_defaults_of_the_policy() {
        let (settings, complaints) = read_from(&[]);
        assert_eq!(settings.policy, Policy::default());
        assert!(complaints.is_empty(), "{complaints:?}");
        assert!(all().any(|s| s.name == "stop-grace" && s.default == "25s"));
    }

    #[test]
    fn with_a_checkpoint_directory_the_default_is_three_restarts() {
        assert_eq!(read_from(&[("TRAINIT_CHECKPOINT_DIR", "/c")]).0.policy.max_restarts, 3);
        let given = [("TRAINIT_CHECKPOINT_DIR", "/c"), ("TRAINIT_MAX_RESTARTS", "0")];
        assert_eq!(read_from(&given).0.policy.max_restarts, 0);
    }

    #[test]
    fn the_case_of_a_preemption_source_does_not_matter() {
        for (given, word) in [("OFF", "off"), ("Auto", "auto"), ("GCE", "gce")] {
            let (settings, complaints) = read_from(&[("TRAINIT_PREEMPTION", given)]);
            assert_eq!((Some(settings.preemption), complaints.len()), (preempt::choice(word), 0), "{given}");
        }
    }

    #[test]
    fn uncatchable_signals_and_contradictory_rules_are_refused() {
        for (variable, value, found) in [
            ("TRAINIT_REWRITE_SIGNAL", "KILL:TERM", "KILL"),
            ("TRAINIT_REWRITE_SIGNAL", "STOP:TERM", "STOP"),
            ("TRAINIT_PREEMPT_SIGNAL", "KILL", "such as TERM, or 0"),
            ("TRAINIT_PREEMPT_SIGNAL", "19", "such as TERM, or 0"),
            ("TRAINIT_REWRITE_SIGNAL", "TERM:INT\nTERM:HUP", "each FROM once"),
            ("TRAINIT_REMAP_EXIT", "1:1\n143:0\n143:1", "each FROM once, found 143:0 and 143:1"),
            ("TRAINIT_PREEMPT_ON", "USR1@120\n10@3m", "each SIGNAL once, found USR1@120 and 10@3m"),
        ] {
            let (_, complaints) = read_from(&[(variable, value)]);
            assert!(complaints.len() == 1 && complaints[0].contains(found), "{complaints:?}");
        }
        assert_eq!(read_from(&[("TRAINIT_REMAP_EXIT", "143:0\n143:0")]).1, Vec::<String>::new());
    }

    #[test]
    fn rewrites_take_names_and_numbers_and_zero_drops() {
        let (settings, _) = read_from(&[("TRAINIT_REWRITE_SIGNAL", "TERM:INT\n10:0")]);
        let usr1 = Signal::parse("USR1").expect("a signal");
        assert_eq!(settings.policy.rewrite, [(Signal::TERM, Some(Signal::INT)), (usr1, None)]);
    }

    #[test]
    fn an_announcement_has_a_signal_and_a_time_in_slurms_form() {
        let (settings, complaints) = read_from(&[("TRAINIT_PREEMPT_ON", "USR1@120\nSIGUSR2\n14@3m")]);
        let signal = |name| Signal::parse(name).expect("a signal");
        let seconds: Vec<(Signal, u64)> = settings.policy.preempt_on.iter().map(|(s, t)| (*s, t.as_secs())).collect();
        assert_eq!(seconds, [(signal("USR1"), 120), (signal("USR2"), 60), (signal("ALRM"), 180)]);
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(read_from(&[("TRAINIT_PREEMPT_ON", "KILL@1\nUSR1@x\nFOO")]).1.len(), 3);
    }

    #[test]
    fn the_status_address_is_an_ip_address_with_a_port() {
        for right in ["127.0.0.1:9464", "[::1]:0", "0.0.0.0:1", " [::]:9464 "] {
            let (settings, complaints) = read_from(&[("TRAINIT_STATUS_ADDR", right)]);
            assert_eq!((settings.status_addr, complaints.len()), (right.trim().parse().ok(), 0), "{right}");
        }
        for wrong in ["9464", ":9464", "localhost:9464", "127.0.0.1", "127.0.0.1:65536", "::1:9464", "http://[::1]:1"] {
            let (_, complaints) = read_from(&[("TRAINIT_STATUS_ADDR", wrong)]);
            let [line] = &complaints[..] else { panic!("{wrong}: {complaints:?}") };
            assert!(
                line.starts_with("TRAINIT_STATUS_ADDR: expected an address and a port such as 127.0.0.1:9464"),
                "{line}"
            );
        }
    }

    #[test]
    fn every_mistake_names_its_variable() {
        let (_, complaints) = read_from(&[
            ("TRAINIT_STOP_GRACE", "x"),
            ("TRAINIT_REMAP_EXIT", "300:0"),
            ("TRAINIT_RESTART_BACKOFF", "9s..1s"),
            ("TRAINIT_PREEMPT_SIGNAL", "FOO"),
        ]);
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        assert!(
            complaints[1].starts_with("TRAINIT_PREEMPT_SIGNAL")
                || complaints.iter().any(|c| c.starts_with("TRAINIT_PREEMPT_SIGNAL"))
        );
    }
}
