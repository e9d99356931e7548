//! `trainit run -- COMMAND`: builds a job from settings and environment, supervises it, and publishes the verdict.

mod forensics;
pub mod gang;
pub mod options;

use std::io::ErrorKind;
use std::time::Duration;

use tracing::Level;

use super::{cluster, values};
use crate::cli::Parsed;
use crate::command::run::options::{Placed, RunOptions};
use crate::edge::clock::{self, Clock};
use crate::edge::fs::metrics_file::{self, MetricsFile};
use crate::edge::gpu;
use crate::edge::host::{dmi, limits};
use crate::edge::io::stdio;
use crate::edge::process::signals::{self, Mask};
use crate::edge::process::{reaper, spawn};
use crate::rules::cluster::spec::{ClusterError, Process};
use crate::rules::framework::Launch;
use crate::rules::gang::place::on_notice;
use crate::rules::gpu::answer::NO_UVM;
use crate::rules::gpu::{Discovery, Health};
use crate::rules::job::{Action, ChildFacts, Event, InGang, Machine, Outcome, Policy, Processes, Reason};
use crate::rules::metric::ledger::Ledger;
use crate::rules::metric::report::contract;
use crate::rules::metric::sources::Sources;
use crate::rules::preempt;
use crate::rules::process::env::Env;
use crate::rules::process::exit;
use crate::rules::process::signal::Signal;
use crate::settings::fetch::Fetching;
use crate::settings::metrics::{Collected, Target, Tuner};
use crate::settings::run::{LogFormat, LogLevel, RunSettings};
use crate::settings::{self, Complaint, Reader};
use crate::supervisor::checkpoints::config;
use crate::supervisor::metrics::files::Files;
use crate::supervisor::output::LOCK_TIMEOUT;
use crate::supervisor::{self, Fetch, GpuWatch, Job, Keep, Metrics, Page, Peers, PreemptionWatch, Work};
use crate::telemetry::log::{self, Format};
use crate::telemetry::verdict::{self, Facts};

/// The code of an unmet demand on the GPUs.
const DEMAND: &str = "gpu_demand";

/// The time for an outer `tee` to read the last lines, before the kernel ends it together with PID 1.
const READER_LIMIT: Duration = Duration::from_millis(500);

/// The limit for reading the metrics file after a trial, because a file system may hang.
const TRIAL_LIMIT: Duration = Duration::from_secs(2);

/// The size of the end of the metrics file that is checked after a trial.
const TRIAL_BYTES: u64 = 1 << 20;

/// Supervises the command; returns trainit's exit code.
#[inline(never)]
pub fn main(parsed: Parsed, env: Env, mask: Mask) -> u8 {
    let clock = Clock::start();
    let (values, complaints) = values(&parsed, &env);
    let mut reader = Reader::new(&values, complaints);
    let mut options = RunOptions::read(&mut reader, parsed.on, &env);
    options.run.policy.outlives_hangup = signals::is_ignored(Signal::HUP);
    start_log(&options.run);
    require_command(&parsed, &mut reader);
    let goes_on = || stopped_before_start(&options.run.policy).is_none();
    let is_asked_to_end = !options.keeping.look(&mut reader, &goes_on);
    let (placed, found) = if is_asked_to_end { (Err(Vec::new()), None) } else { place(&options, &reader, &env) };
    if (is_asked_to_end || found.is_some())
        && let Some(outcome) = stopped_before_start(&options.run.policy)
    {
        return end(&outcome, &options.run, None);
    }
    let RunOptions { run: mut settings, keeping, fetches, gpus, collected, gang: gang_settings, .. } = options;
    let Placed { mut resolved, peers, gang: place } = match placed {
        Ok(placed) => placed,
        Err(mistakes) if mistakes.iter().all(|mistake| mistake.code == DEMAND) => {
            return end_for_other_machine(mistakes.iter().map(ToString::to_string).collect(), &settings);
        }
        Err(mistakes) => return refuse_all(&mistakes, &settings, &env),
    };
    request_orphan_signal(&settings);
    let odd: Vec<_> = resolved.start_warnings(&env, &parsed.operands).collect();
    for warning in resolved.warnings.iter().chain(&odd) {
        tracing::warn!(code = warning.code, "{}", warning.message);
    }
    let peers = peers.map(|(limit, peers)| Peers { peers, limit });
    settings.policy.peers = peers.as_ref().map(Peers::name);
    let gpu_count = match gpu_count(&gpus, &env, found.as_ref()) {
        Ok(count) => count,
        Err(Unmet { demands, by_faults: true }) => return end_for_other_machine(demands, &settings),
        Err(unmet) => return not_started(&unmet.demands, &settings, &[DEMAND]),
    };
    let preemption_watch = preemption_watch(&settings, &env);
    settings.policy.seed = Some(seed());
    settings.policy.checkpoint_on = resolved.spec.said.traits.checkpoint_signals.to_vec();
    settings.policy.processes = processes(&resolved.launches);
    let on_notice = on_notice(&resolved.spec);
    let places = (keeping.directory(), keeping.shared_store(&env));
    let gang = place.map(|place| gang::gang(&gang_settings, place, &settings.policy, places, &env, host(), on_notice));
    let gang = match gang.transpose() {
        Ok(gang) => gang,
        Err(mistake) => return refuse_all(&[mistake], &settings, &env),
    };
    if let Some(gang) = &gang {
        settings.policy.gang = Some(InGang { seat: gang.place.own, stop_grace: gang.timing.stop_grace });
        // A trainer that outlives its agent would train beside the next generation.
        settings.death_signal = settings.death_signal.or(Some(Signal::KILL));
        resolved.launches.iter_mut().for_each(|launch| launch.changes.remove(gang::TOKEN));
    }
    let fetch = |Fetching { source, dir }| Fetch { source, dir, access: keeping.access(&env) };
    let fetches = fetches.into_iter().map(fetch).collect();
    let mut keep = keeping.of_node(&resolved, &env);
    if let (Some(gang), Some(keep)) = (&gang, &mut keep)
        && gang.place.own.is_required()
    {
        keep.join_gang(config::GangNode { mode: gang.mode, is_chief: gang.place.leads() });
    }
    settings.policy.model = keep.as_ref().and_then(Keep::model_goes_to);
    let kept = keep.as_ref().and_then(Keep::kept);
    settings.policy.store = keep.as_ref().is_some_and(Keep::has_store);
    let watch = watched(gpus, &env);
    let (metrics, tuner) = collected_metrics(collected, resolved.spec.said.process.as_ref(), &env);
    if let Some(dir) = &settings.hang_forensics {
        forensics::prepare(dir, &env, &mut resolved.launches);
    }
    let job = Job {
        policy: settings.policy.clone(),
        argv: parsed.operands,
        env,
        changes: resolved.launches.into_iter().map(|launch| launch.changes).collect(),
        names: names(settings.policy.processes, settings.rank_prefix),
        hostfile: resolved.hostfile,
        facts: ChildFacts { checkpoint_dir: checkpoint_dir(&reader), gpu_count, ..ChildFacts::default() },
        kept,
        death_signal: settings.death_signal,
        mask,
        gpus: watch,
        metrics,
        gang,
        report: settings.run_report.clone(),
        hang_forensics: settings.hang_forensics.clone(),
    };
    let page = settings.status_addr.and_then(Page::open);
    supervise(job, Work { fetches, keep, preemption_watch, peers, page }, clock, &settings, &tuner)
}

/// The directory for the command. It is absolute, because the command may change its working directory before it uses
/// it.
fn checkpoint_dir(reader: &Reader<'_>) -> Option<String> {
    let dir = reader.text("checkpoint-dir")?;
    let whole = std::path::absolute(&dir).ok().and_then(|whole| whole.into_os_string().into_string().ok());
    Some(whole.unwrap_or(dir))
}

fn require_command(parsed: &Parsed, reader: &mut Reader<'_>) {
    if parsed.operands.is_empty() {
        let message = "no command given; write it after --, as in: trainit run -- python -m trainer.task".to_owned();
        reader.complaints.push(Complaint { place: "command line".to_owned(), message });
    }
}

/// This replica's place, or all mistakes of this start; and the GPUs, if they are needed for that or for a demand.
fn place(
    options: &RunOptions,
    reader: &Reader<'_>,
    env: &Env,
) -> (Result<Placed, Vec<ClusterError>>, Option<Discovery>) {
    let mut found = None;
    let discover =
        || gpu::discover_while(options.gpus.timeout, env, &|| stopped_before_start(&options.run.policy).is_none());
    let placed = options.place(reader, env, || found.insert(discover()).clone());
    if found.is_none() && placed.is_ok() && options.gpus.demands.any() {
        found = Some(discover());
    }
    (placed, found)
}

fn request_orphan_signal(settings: &RunSettings) {
    if let Some(signal) = settings.orphaned_signal
        && let Err(error) = spawn::signal_when_orphaned(signal)
    {
        tracing::warn!("trainit will not get a signal when its parent process dies: {error}");
    }
}

/// The preemption sources to watch; `None` if there are none.
fn preemption_watch(settings: &RunSettings, env: &Env) -> Option<PreemptionWatch> {
    let sources = preempt::pick(settings.preemption, env, &dmi::local_facts);
    let watches = sources.into_iter().flat_map(|(source, endpoint)| {
        (source.watches)(&settings.leads, env).into_iter().map(move |watch| (watch, endpoint.clone()))
    });
    let watches: Vec<_> = watches.collect();
    (!watches.is_empty()).then_some(PreemptionWatch { watches })
}

/// A seed that differs for each run.
fn seed() -> u64 {
    clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// The metrics to collect, and the tuner's expectations. A tag that nothing reports causes a warning here, and none at
/// the end. Of several trainits on a node only the first one follows the files, and only those with searched output
/// search it; otherwise each step would be reported once for each rank.
fn collected_metrics(
    mut collected: Option<Collected>,
    process: Option<&Process>,
    env: &Env,
) -> (Option<Metrics>, Tuner) {
    let mut tuner = settings::metrics::tuner(env);
    if let (Some(all), Some(process)) = (&mut collected, process) {
        let (local_rank, count) = (process.local_rank, process.local_size.unwrap_or(1));
        if local_rank > 0 {
            (all.events, all.records) = (None, None);
        }
        if !all.searched.includes(local_rank, count) {
            all.patterns.clear();
        }
        if !all.has_source() {
            let searched = all.searched.shown(count);
            tracing::info!(
                "metrics are collected by the trainit of {searched} on this node, not by this one with local rank {local_rank}"
            );
            return (None, Tuner { trial: None, ..tuner });
        }
    }
    let metrics = collected.map(metrics);
    if let Some(metrics) = &metrics
        && let Some(warning) = contract::tag_differs(tuner.tag.as_deref(), &metrics.tags())
    {
        tracing::warn!("{warning}");
        tuner.tag = None;
    }
    (metrics, tuner)
}

/// Runs the job to its end and publishes the verdict. Returns the exit code.
fn supervise(job: Job, work: Work, clock: Clock, settings: &RunSettings, tuner: &Tuner) -> u8 {
    let looked_for: Option<Vec<String>> =
        job.metrics.as_ref().map(|metrics| metrics.tags().into_iter().map(str::to_owned).collect());
    let step_name = job.metrics.as_ref().and_then(|metrics| metrics.step.clone());
    let ended = match supervisor::run(job, work, clock) {
        Ok(ended) => ended,
        Err(error) => {
            let way_out =
                limits::way_out(&error, "check that this kernel or sandbox allows what an init process needs");
            return not_started(&[format!("the supervisor cannot start: {error}; {way_out}")], settings, &[]);
        }
    };
    let facts = Facts {
        peak_memory_bytes: ended.peak_memory_bytes,
        seconds: ended.goodput.sum().as_secs_f64(),
        goodput: Some(ended.goodput),
        metrics: ended.metrics.last_values(),
        xids: ended.xids,
        gang: ended.gang,
    };
    if !matches!(ended.outcome.reason, Reason::NotStarted | Reason::Stopped | Reason::Preempted) {
        check_trial(tuner, looked_for.as_ref().map(|_| &ended.metrics.sources));
    }
    if ended.outcome.reason == Reason::Finished
        && let Some(looked_for) = looked_for
    {
        warn_of_missing(&looked_for, step_name.as_deref(), &ended.metrics, tuner);
    }
    verdict::publish(&ended.outcome, &facts, settings.verdict_file.as_deref(), None);
    if ended.takes_others_along {
        stdio::hang_up();
        reaper::wait_for_all(READER_LIMIT);
    }
    ended.outcome.exit_code
}

/// The outcome of a job that a signal stopped before it started, from the job machine.
fn stopped_before_start(policy: &Policy) -> Option<Outcome> {
    let mut machine = Machine::new(policy.clone());
    let options = |signal| machine.step(Duration::ZERO, Event::Signal { signal, sender: None });
    signals::waiting().flat_map(options).find_map(|action| match action {
        Action::Exit(outcome) => Some(*outcome),
        _ => None,
    })
}

/// Publishes the outcome of a job that never started. Returns the exit code.
fn end(outcome: &Outcome, settings: &RunSettings, code: Option<&str>) -> u8 {
    verdict::publish(outcome, &Facts::default(), settings.verdict_file.as_deref(), code);
    outcome.exit_code
}

/// The metrics to collect, and the file for them.
fn metrics(collected: Collected) -> Metrics {
    for warning in &collected.warnings {
        tracing::warn!("{warning}");
    }
    let Target { path, keep, trial } = collected.target;
    Metrics {
        patterns: collected.patterns,
        files: Files {
            events: collected.events,
            records: collected.records,
            step: collected.step.clone(),
            asked: collected.report.clone(),
        },
        step: collected.step,
        searched: collected.searched,
        report: collected.report,
        stdout: collected.stdout,
        stderr: collected.stderr,
        file: MetricsFile::new(path, keep, false, LOCK_TIMEOUT),
        trial,
    }
}

/// Warns about metrics that a tuner will miss. A run that was stopped may continue elsewhere, so nothing is missing
/// yet.
fn check_trial(tuner: &Tuner, sources: Option<&Sources>) {
    let Some(trial) = &tuner.trial else { return };
    let (path, file) = (tuner.path.to_string_lossy(), tuner.path.clone());
    let file = match signals::in_time("trial", TRIAL_LIMIT, move || metrics_file::end_of(&file, TRIAL_BYTES)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            tracing::warn!(
                "{path} could not be read within 2 s, so it is unknown whether the tuning service will find this trial's metrics in \
                 it; check whether its file system hangs"
            );
            return;
        }
        // A file that is not a regular file has been read by its reader.
        Err(_) => return,
    };
    let trial = contract::Trial { id: trial, tag: tuner.tag.as_deref(), path: &path, sources };
    for warning in trial.at_end(&file) {
        tracing::warn!("{warning}");
    }
}

/// Warns about metrics and steps that were not found. A trial without any metric has its own warning.
fn warn_of_missing(looked_for: &[String], step_name: Option<&str>, measured: &Ledger, tuner: &Tuner) {
    let missing: Vec<&str> = looked_for.iter().map(String::as_str).filter(|tag| !measured.has(tag)).collect();
    let is_told = measured.is_empty() && tuner.trial.is_some();
    if let Some(warning) = contract::not_found(measured.names(), &missing, &measured.sources).filter(|_| !is_told) {
        tracing::warn!("{warning}");
    }
    if let Some(name) = step_name.filter(|_| !measured.is_empty() && !measured.has_steps()) {
        tracing::warn!("{}", contract::no_steps(name));
    }
}

/// The number of processes, and their first rank.
fn processes(launches: &[Launch]) -> Processes {
    let first = launches.first().and_then(|launch| launch.process.as_ref());
    let count = u32::try_from(launches.len()).unwrap_or(u32::MAX);
    Processes { count, first_rank: first.map_or(0, |process| process.rank) }
}

/// The prefix of each process's output lines: its rank, or nothing.
fn names(processes: Processes, has_prefix: bool) -> Vec<String> {
    let prefix = |local_rank| format!("[rank {}] ", processes.first_rank.saturating_add(local_rank));
    (0..processes.count).map(|local_rank| if has_prefix { prefix(local_rank) } else { String::new() }).collect()
}

/// Unmet demands on the GPUs.
struct Unmet {
    demands: Vec<String>,
    /// Only because GPUs are broken or the driver fails, so another machine may meet them.
    by_faults: bool,
}

/// Ends a job whose demands on the GPUs may be met on another machine.
fn end_for_other_machine(demands: Vec<String>, settings: &RunSettings) -> u8 {
    let detail = format!("{} (host {})", demands.join("; "), host());
    end(&verdict::broken_gpus(settings.policy.remapped(exit::GPU), detail), settings, Some(DEMAND))
}

/// The number of GPUs for the command: from the device nodes, which need no waiting; or from NVML if there is a demand
/// on GPUs or their number is needed anyway. Errors: the unmet demands.
fn gpu_count(gpus: &settings::gpus::Gpus, env: &Env, found: Option<&Discovery>) -> Result<usize, Unmet> {
    if gpu::lacks_uvm() && !gpus.demands.demands_number() {
        tracing::warn!(code = "gpu", "{NO_UVM}");
    }
    let Some(found) = found else { return Ok(gpu::device_count() as usize) };
    let visible = env.get("CUDA_VISIBLE_DEVICES");
    let demands = gpus.demands.unmet(found, visible);
    if demands.is_empty() {
        if let (Health::Unknown, Some(problem)) = (found.driver, &found.problem) {
            tracing::warn!("the GPUs are only counted: {problem}; if the driver starts slowly, raise --gpu-timeout");
        }
        return Ok(found.gpus.len());
    }
    Err(Unmet { demands, by_faults: gpus.demands.unmet_by_faults(found, visible) })
}

/// The GPUs to watch while the command runs, if there are any or the user names a library for them.
fn watched(gpus: settings::gpus::Gpus, env: &Env) -> Option<(GpuWatch, String)> {
    let is_worth_it = gpu::device_count() > 0 || env.given("TRAINIT_NVML_LIBRARY").is_some();
    is_worth_it.then(|| {
        let watch = GpuWatch::new(gpus.timeout, gpus.interval, gpus.policy, env);
        (watch, host())
    })
}

fn host() -> String {
    limits::hostname().unwrap_or_else(|| "unknown".to_owned())
}

/// Publishes mistakes. A single one is in the verdict only; several are logged before it, one on each line. The verdict
/// has the code of the first; a mistake without a code gets the reason's.
fn not_started(mistakes: &[String], settings: &RunSettings, codes: &[&str]) -> u8 {
    let detail = match mistakes {
        [one] => one.clone(),
        many => {
            for (at, mistake) in many.iter().enumerate() {
                tracing::error!(code = codes.get(at).or(codes.last()), "{mistake}");
            }
            format!("{} mistakes in the settings, each on a line above; the first: {}", many.len(), many[0])
        }
    };
    let exit_code = settings.policy.remapped(exit::NOT_STARTED);
    end(&Outcome { exit_code, ..verdict::not_started(detail) }, settings, codes.first().copied())
}

/// A misspelt variable may be the cause of another mistake, so it is reported together with it.
fn refuse_all(mistakes: &[ClusterError], settings: &RunSettings, env: &Env) -> u8 {
    for warning in cluster::unknown(env) {
        tracing::warn!(code = warning.code, "{}", warning.message);
    }
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    let codes: Vec<&str> = mistakes.iter().map(|mistake| mistake.code).collect();
    not_started(&lines, settings, &codes)
}

fn start_log(settings: &RunSettings) {
    let format = match settings.log_format {
        LogFormat::Auto => log::auto_format(),
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    };
    let level = match settings.log_level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
    };
    log::start(format, level);
}
