//! `trainit run -- COMMAND`: settings and environment cut into a job, supervised, its verdict published.

use std::io::ErrorKind;
use std::time::Duration;

use tracing::Level;

use super::asked::{Asked, Placed};
use super::{cluster, values};
use crate::cli::Parsed;
use crate::edge::clock::{self, Clock};
use crate::edge::metrics_file::{self, MetricsFile};
use crate::edge::signals::{self, Mask};
use crate::edge::{gpu, limits, machine, process, reaper, stdio};
use crate::rules::cluster::spec::ClusterError;
use crate::rules::env::Env;
use crate::rules::exit;
use crate::rules::framework::Launch;
use crate::rules::gpu::{Discovery, Health};
use crate::rules::job::{Action, ChildFacts, Event, Machine, Outcome, Policy, Processes, Reason};
use crate::rules::metric::contract;
use crate::rules::metric::ledger::Ledger;
use crate::rules::preempt;
use crate::rules::signal::Signal;
use crate::settings::metrics::{Collected, Target, Tuner};
use crate::settings::run::{LogFormat, LogLevel, RunSettings};
use crate::settings::{self, Complaint, Reader};
use crate::supervisor::follow::Files;
use crate::supervisor::output::LOCK_PATIENCE;
use crate::supervisor::{self, GpuWatch, Job, Keep, Lookout, Metrics, Page, Peers, Work};
use crate::telemetry::log::{self, Format};
use crate::telemetry::verdict::{self, Facts};

/// The code of what was demanded of the GPUs and is not met.
const DEMAND: &str = "gpu_demand";

/// What a `tee` that was there before us has for our last lines, before the kernel ends it with its PID 1.
const READERS_PATIENCE: Duration = Duration::from_millis(500);

/// What the metrics file is given when a trial has ended: a file system that hangs must not keep us.
const TRIAL_PATIENCE: Duration = Duration::from_secs(2);

/// The end of the metrics file that is looked at when a trial has ended.
const TRIAL_BYTES: u64 = 1 << 20;

/// Supervises the command; returns trainit's exit code.
#[inline(never)]
pub fn main(parsed: Parsed, env: Env, mask: Mask) -> u8 {
    let clock = Clock::start();
    stdio::hold_closed();
    let (values, complaints) = values(&parsed, &env);
    let mut reader = Reader::new(&values, complaints);
    let mut asked = Asked::read(&mut reader, parsed.on, &env);
    asked.run.policy.outlives_hangup = signals::is_ignored(Signal::HUP);
    start_log(&asked.run);
    require_command(&parsed, &mut reader);
    let goes_on = || ended_already(&asked.run.policy).is_none();
    let is_asked_to_end = !asked.keeping.look(&mut reader, &goes_on);
    let (placed, found) = if is_asked_to_end { (Err(Vec::new()), None) } else { place(&asked, &reader, &env) };
    if (is_asked_to_end || found.is_some())
        && let Some(outcome) = ended_already(&asked.run.policy)
    {
        return end(&outcome, &asked.run, None);
    }
    let Asked { run: mut settings, keeping, gpus, collected, .. } = asked;
    let Placed { resolved, peers } = match placed {
        Ok(placed) => placed,
        Err(mistakes) if mistakes.iter().all(|mistake| mistake.code == DEMAND) => {
            return elsewhere(mistakes.iter().map(ToString::to_string).collect(), &settings);
        }
        Err(mistakes) => return refuse_all(&mistakes, &settings, &env),
    };
    hear_when_orphaned(&settings);
    let odd: Vec<_> = resolved.odd_starts(&env, &parsed.operands).collect();
    for warning in resolved.warnings.iter().chain(&odd) {
        tracing::warn!(code = warning.code, "{}", warning.message);
    }
    let peers = peers.map(|(limit, peers)| Peers { peers, limit });
    settings.policy.peers = peers.as_ref().map(Peers::name);
    let gpu_count = match gpu_count(&gpus, &env, found.as_ref()) {
        Ok(count) => count,
        Err(Unmet { demands, by_faults: true }) => return elsewhere(demands, &settings),
        Err(unmet) => return not_started(&unmet.demands, &settings, &[DEMAND]),
    };
    let lookout = lookout(&settings, &env);
    settings.policy.seed = Some(seed());
    settings.policy.checkpoint_on = resolved.spec.said.traits.checkpoint_signals.to_vec();
    settings.policy.processes = processes(&resolved.launches);
    let keep = keeping.of_node(&resolved, &env);
    settings.policy.model = keep.as_ref().and_then(Keep::model_goes_to);
    let kept = keep.as_ref().and_then(Keep::kept);
    settings.policy.store = keep.as_ref().is_some_and(Keep::has_store);
    let watch = watched(gpus, &env);
    let (metrics, tuner) = measured(collected, resolved.spec.beside_the_first(), &env);
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
    };
    let page = settings.status_addr.and_then(Page::open);
    supervise(job, Work { keep, lookout, peers, page }, clock, &settings, &tuner)
}

/// As the command is told of it: from the root, since it may change its own directory before it looks.
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

/// This replica's place, or all that is wrong with this start; and the GPUs, where they are needed for that or something
/// is demanded of them.
fn place(asked: &Asked, reader: &Reader<'_>, env: &Env) -> (Result<Placed, Vec<ClusterError>>, Option<Discovery>) {
    let mut found = None;
    let discover = || gpu::discover_while(asked.gpus.timeout, env, &|| ended_already(&asked.run.policy).is_none());
    let placed = asked.place(reader, env, || found.insert(discover()).clone());
    if found.is_none() && placed.is_ok() && asked.gpus.demands.any() {
        found = Some(discover());
    }
    (placed, found)
}

fn hear_when_orphaned(settings: &RunSettings) {
    if let Some(signal) = settings.orphaned_signal
        && let Err(error) = process::signal_when_orphaned(signal)
    {
        tracing::warn!("trainit is not told when the process that started it dies: {error}");
    }
}

/// The preemption sources to watch; `None`: nobody is asked.
fn lookout(settings: &RunSettings, env: &Env) -> Option<Lookout> {
    let sources = preempt::pick(settings.preemption, env, &machine::local_facts);
    let watches = sources.into_iter().flat_map(|(source, endpoint)| {
        (source.watches)(&settings.leads, env).into_iter().map(move |watch| (watch, endpoint.clone()))
    });
    let watches: Vec<_> = watches.collect();
    (!watches.is_empty()).then_some(Lookout { watches })
}

/// Differs from run to run.
fn seed() -> u64 {
    clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// What to look for, and what a tuner will look for in it. A tag that nothing reports is warned of here and not missed
/// again at the end. Of several trainits on a node the first reports, or each step would be there as often as ranks are.
fn measured(collected: Option<Collected>, local_rank: Option<u32>, env: &Env) -> (Option<Metrics>, Tuner) {
    let mut tuner = settings::metrics::tuner(env);
    if let (Some(local_rank), true) = (local_rank, collected.is_some()) {
        tracing::info!(
            "metrics are collected by the trainit of local rank 0 on this node, and not by this one, of local rank {local_rank}"
        );
        return (None, Tuner { trial: None, ..tuner });
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

/// Runs the job to its end and publishes that; the exit code.
fn supervise(job: Job, work: Work, clock: Clock, settings: &RunSettings, tuner: &Tuner) -> u8 {
    let looked_for: Option<Vec<String>> =
        job.metrics.as_ref().map(|metrics| metrics.tags().into_iter().map(str::to_owned).collect());
    let ended = match supervisor::run(job, work, clock) {
        Ok(ended) => ended,
        Err(error) => {
            let way_out = limits::way_out(&error, "see that this kernel, or the sandbox, allows what an init needs");
            return not_started(&[format!("the supervisor cannot start: {error}; {way_out}")], settings, &[]);
        }
    };
    let facts = Facts {
        peak_memory_bytes: ended.peak_memory_bytes,
        seconds: clock.now().as_secs_f64(),
        metrics: ended.metrics.last_values(),
        xids: ended.xids,
    };
    if !matches!(ended.outcome.reason, Reason::NotStarted | Reason::Stopped | Reason::Preempted) {
        look_at_the_trial(tuner, looked_for.is_some());
    }
    if ended.outcome.reason == Reason::Finished
        && let Some(looked_for) = looked_for
    {
        miss(&looked_for, &ended.metrics, tuner);
    }
    verdict::publish(&ended.outcome, &facts, settings.verdict_file.as_deref(), None);
    if ended.takes_others_along {
        stdio::hang_up();
        reaper::wait_for_all(READERS_PATIENCE);
    }
    ended.outcome.exit_code
}

/// The end of a job that a signal asks for which has arrived before it began: the machine's own word on it.
fn ended_already(policy: &Policy) -> Option<Outcome> {
    let mut machine = Machine::new(policy.clone());
    let asked = |signal| machine.step(Duration::ZERO, Event::Signal { signal, sender: None });
    signals::waiting().flat_map(asked).find_map(|action| match action {
        Action::Exit(outcome) => Some(*outcome),
        _ => None,
    })
}

/// Publishes how a job ended that never began; its exit code.
fn end(outcome: &Outcome, settings: &RunSettings, code: Option<&str>) -> u8 {
    verdict::publish(outcome, &Facts::default(), settings.verdict_file.as_deref(), code);
    outcome.exit_code
}

/// What to look for, and the one file that it goes to.
fn metrics(collected: Collected) -> Metrics {
    for warning in &collected.warnings {
        tracing::warn!("{warning}");
    }
    let Target { path, keep, trial } = collected.target;
    Metrics {
        patterns: collected.patterns,
        files: Files { events: collected.events, records: collected.records },
        report: collected.report,
        stdout: collected.stdout,
        stderr: collected.stderr,
        file: MetricsFile::new(path, keep, false, LOCK_PATIENCE),
        trial,
    }
}

/// Warns of what a tuner will miss in the metrics file. A run that was stopped may go on elsewhere: nothing is missing yet.
fn look_at_the_trial(tuner: &Tuner, collects: bool) {
    let Some(trial) = &tuner.trial else { return };
    let (path, file) = (tuner.path.to_string_lossy(), tuner.path.clone());
    let file = match signals::in_time("trial", TRIAL_PATIENCE, move || metrics_file::end_of(&file, TRIAL_BYTES)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            tracing::warn!(
                "{path} could not be read within 2 s, so nobody knows whether the tuning service finds this trial's metrics in \
                 it; see whether its file system hangs"
            );
            return;
        }
        // What is no file has gone to its reader.
        Err(_) => return,
    };
    let trial = contract::Trial { id: trial, tag: tuner.tag.as_deref(), path: &path, collects };
    for warning in trial.at_end(&file) {
        tracing::warn!("{warning}");
    }
}

/// Warns of what was looked for and never came. Of a trial without any metric it is told already.
fn miss(looked_for: &[String], measured: &Ledger, tuner: &Tuner) {
    let missing: Vec<&str> = looked_for.iter().map(String::as_str).filter(|tag| !measured.has(tag)).collect();
    let is_told = measured.is_empty() && tuner.trial.is_some();
    if let Some(warning) = contract::never_came(measured.names(), &missing).filter(|_| !is_told) {
        tracing::warn!("{warning}");
    }
}

/// How many there are, and where their ranks begin.
fn processes(launches: &[Launch]) -> Processes {
    let first = launches.first().and_then(|launch| launch.process.as_ref());
    let count = u32::try_from(launches.len()).unwrap_or(u32::MAX);
    Processes { count, first_rank: first.map_or(0, |process| process.rank) }
}

/// What stands before each line of each process's output: its rank, or nothing.
fn names(processes: Processes, has_prefix: bool) -> Vec<String> {
    let prefix = |local_rank| format!("[rank {}] ", processes.first_rank.saturating_add(local_rank));
    (0..processes.count).map(|local_rank| if has_prefix { prefix(local_rank) } else { String::new() }).collect()
}

/// The demands on the GPUs that are not met.
struct Unmet {
    demands: Vec<String>,
    /// Only because GPUs are broken or the driver fails: another machine may meet them.
    by_faults: bool,
}

/// The end of a job whose demands on the GPUs are not met here, and may be on another machine.
fn elsewhere(demands: Vec<String>, settings: &RunSettings) -> u8 {
    let detail = format!("{} (host {})", demands.join("; "), host());
    end(&verdict::broken_gpus(settings.policy.remapped(exit::GPU), detail), settings, Some(DEMAND))
}

/// How many GPUs the command is told of: the device nodes, known at once; or, where something is demanded of them or their
/// number was asked for, what NVML says. Errors: the demands that are not met.
fn gpu_count(gpus: &settings::gpus::Gpus, env: &Env, found: Option<&Discovery>) -> Result<usize, Unmet> {
    let Some(found) = found else { return Ok(gpu::device_count() as usize) };
    let visible = env.get("CUDA_VISIBLE_DEVICES");
    let demands = gpus.demands.unmet(found, visible);
    if demands.is_empty() {
        if let (Health::Unknown, Some(problem)) = (found.driver, &found.problem) {
            tracing::warn!(
                "the GPUs are only counted: {problem}; where the driver is slow to start, raise --gpu-timeout"
            );
        }
        return Ok(found.gpus.len());
    }
    Err(Unmet { demands, by_faults: gpus.demands.unmet_by_faults(found, visible) })
}

/// The GPUs to watch while the command runs, where there are any or somebody names a library for them.
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

/// One mistake is the verdict's own line; several come before it, a line each. The verdict has the code of the first; what
/// has none of its own has the last one's.
fn not_started(mistakes: &[String], settings: &RunSettings, codes: &[&str]) -> u8 {
    let detail = match mistakes {
        [one] => one.clone(),
        many => {
            for (at, mistake) in many.iter().enumerate() {
                tracing::error!(code = codes.get(at).or(codes.last()), "{mistake}");
            }
            format!("{} mistakes in what was given, each on a line above; the first: {}", many.len(), many[0])
        }
    };
    let exit_code = settings.policy.remapped(exit::NOT_STARTED);
    end(&Outcome { exit_code, ..verdict::not_started(detail) }, settings, codes.first().copied())
}

/// A misspelt variable may be why another setting is wrong, so that it is told along with that.
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
