//! `trainit run -- COMMAND`: builds a job from settings and environment, supervises it, and publishes the verdict.

mod caches;
mod forensics;
pub mod gang;
mod gpus;
mod metrics;
pub mod options;

use std::time::Duration;

use tracing::Level;

use super::{cluster, values};
use crate::cli::Parsed;
use crate::command::run::options::{Placed, RunOptions};
use crate::edge::clock::{self, Clock};
use crate::edge::gpu;
use crate::edge::host::{dmi, limits};
use crate::edge::io::stdio;
use crate::edge::process::signals::{self, Mask};
use crate::edge::process::{descendants, reaper, spawn};
use crate::rules::cluster::fact_variable;
use crate::rules::cluster::first::is_first;
use crate::rules::cluster::framework::Launch;
use crate::rules::cluster::seat::Seat;
use crate::rules::cluster::spec::{ClusterError, ClusterSpec, Fact, Reading};
use crate::rules::gang::place::on_notice;
use crate::rules::gpu::Discovery;
use crate::rules::job::{Action, ChildFacts, Event, InGang, Machine, Outcome, Policy, Processes, Reason};
use crate::rules::life::run::Identity;
use crate::rules::preempt::{self, NoticeFacts};
use crate::rules::process::env::Env;
use crate::rules::process::exit;
use crate::rules::process::signal::Signal;
use crate::rules::push;
use crate::rules::status::Who;
use crate::settings::fetch::Fetching;
use crate::settings::metrics::Tuner;
use crate::settings::run::{LogFormat, LogLevel, RunSettings};
use crate::settings::{Complaint, Reader};
use crate::supervisor::checkpoints::config;
use crate::supervisor::{self, Fetch, Job, Keep, Page, Peers, PreemptionWatch, Work};
use crate::telemetry::log::{self, Format};
use crate::telemetry::verdict::{self, Facts};
use gpus::{Unmet, gpu_count, watched};
use metrics::{check_metrics_file, collected_metrics, warn_of_missing};

/// The code of an unmet demand on the GPUs.
const DEMAND: &str = "gpu_demand";

/// The time for an outer `tee` to read the last lines, before the kernel ends it together with PID 1.
const READER_LIMIT: Duration = Duration::from_millis(500);

/// Supervises the command; returns trainit's exit code.
#[inline(never)]
pub fn main(parsed: Parsed, env: Env, mask: Mask) -> u8 {
    let clock = Clock::start();
    let (values, complaints) = values(&parsed, &env);
    let mut reader = Reader::new(&values, complaints);
    let mut options = RunOptions::read(&mut reader, parsed.on, &env);
    options.run.policy.ignored = signals::ignored();
    start_log(&options.run, &env);
    require_command(&parsed, &mut reader);
    let may_continue = || stopped_before_start(&options.run.policy).is_none();
    let is_asked_to_end = !options.keeping.resolve_places(&mut reader, &may_continue);
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
    if let Some(shell) = descendants::shell_that_drops(Signal::TERM) {
        tracing::warn!(
            code = "stop_does_not_arrive",
            "PID 1 is the shell {shell}, which does not pass SIGTERM on: trainit will not learn of a stop, and the trainer is killed without saving; make trainit PID 1: ENTRYPOINT [\"trainit\", \"run\", \"--\", ...] in the JSON form, or exec trainit in the script"
        );
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
    settings.policy.checkpoint_on = resolved.spec.reading.traits.checkpoint_signals.to_vec();
    settings.policy.processes = processes(&resolved.launches);
    settings.policy.may_spin =
        gpu_count > 0 || settings.policy.processes.count > 1 || resolved.spec.reading.has_peers();
    let on_notice = on_notice(&resolved.spec);
    let places = (keeping.directory(), keeping.shared_store(&env));
    if place.is_none() {
        gang::report_none(&gang_settings, &resolved, settings.policy.max_restarts);
    }
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
    if let Some(keep) = &mut keep {
        let seat = gang.as_ref().map(|gang| gang.place.own);
        keep.identity = Some(identity(&resolved.spec, seat, gpu_count, &env));
        keep.cache_dir = settings.cache_dir.clone();
    }
    settings.policy.model = keep.as_ref().and_then(Keep::model_goes_to);
    let kept = keep.as_ref().and_then(Keep::kept);
    settings.policy.store = keep.as_ref().is_some_and(Keep::has_store);
    let watch = watched(gpus, &env);
    let (metrics, tuner) = collected_metrics(collected, resolved.spec.reading.process.as_ref(), &env);
    if let Some(dir) = &settings.hang_forensics {
        forensics::prepare(dir, &env, &mut resolved.launches);
    }
    let (receivers, unusable) = push::receivers(&env, is_first(&env));
    unusable.iter().for_each(|warning| tracing::warn!(code = "progress_not_sent", "{warning}"));
    if let Some(dir) = &settings.cache_dir {
        caches::prepare(dir, &gang::job_id(&env), &host(), &env, &mut resolved.launches);
    }
    let who = who(&resolved.spec.reading, &env);
    let job = Job {
        policy: settings.policy.clone(),
        argv: parsed.operands,
        env,
        changes: resolved.launches.into_iter().map(|launch| launch.changes).collect(),
        who,
        names: names(settings.policy.processes, settings.rank_prefix),
        hostfile: resolved.hostfile,
        facts: ChildFacts { checkpoint_dir: checkpoint_dir(&reader), gpu_count, ..ChildFacts::default() },
        kept,
        death_signal: settings.death_signal,
        mask,
        gpus: watch,
        metrics,
        gang,
        steps: settings.steps,
        report: settings.run_report.clone(),
        save_interval: settings.save_interval,
        accelerators: gpu_count.max(1) as u64 * u64::from(resolved.spec.reading.num_nodes.unwrap_or(1)),
        hang_forensics: settings.hang_forensics.clone(),
    };
    let page = settings.status_addr.and_then(Page::open);
    supervise(job, Work { fetches, keep, preemption_watch, peers, page, receivers }, clock, &settings, &tuner)
}

/// This replica, for the object that its run leaves about itself.
fn identity(spec: &ClusterSpec, seat: Option<Seat>, gpus: usize, env: &Env) -> Identity {
    let other = || seat.map_or_else(|| format!("{}/0", spec.reading.role.word()), |seat| seat.to_string());
    Identity {
        job: gang::job_id(env),
        seat: spec.reading.node_rank.map_or_else(other, |rank| format!("node/{rank}")),
        host: host(),
        platform: spec.reading.platform.word().to_owned(),
        nodes: spec.reading.num_nodes.unwrap_or(1),
        gpus: u32::try_from(gpus).unwrap_or(0),
    }
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
    let sources = preempt::sources_to_watch(settings.preemption, env, &dmi::local_facts);
    let facts = NoticeFacts { preemption: settings.preemption_lead, has_gpus: gpu::device_count() > 0 };
    let watches = sources.into_iter().flat_map(|(source, endpoint)| {
        (source.watches)(&facts, env).into_iter().map(move |watch| (watch, endpoint.clone()))
    });
    let watches: Vec<_> = watches.collect();
    (!watches.is_empty()).then_some(PreemptionWatch { watches })
}

/// A seed that differs for each run.
fn seed() -> u64 {
    clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
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
        metrics: ended.reported.into_iter().chain(ended.metrics.last_values()).collect(),
        pace: ended.pace,
        xids: ended.xids,
        gang: ended.gang,
    };
    let is_stopped = matches!(ended.outcome.reason, Reason::NotStarted | Reason::Stopped | Reason::Preempted);
    check_metrics_file(tuner, looked_for.as_ref().map(|_| &ended.metrics.sources), is_stopped);
    if ended.outcome.reason == Reason::Finished
        && let Some(looked_for) = looked_for
    {
        warn_of_missing(&looked_for, step_name.as_deref(), &ended.metrics, tuner);
    }
    verdict::publish(&ended.outcome, &facts, settings.verdict_file.as_deref(), None, ended.end_by.left());
    if let Some(run_dir) = ended.run_dir {
        run_dir.remove();
    }
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
    verdict::publish(outcome, &Facts::default(), settings.verdict_file.as_deref(), code, verdict::FILE_LIMIT);
    outcome.exit_code
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

/// Ends a job whose demands on the GPUs may be met on another machine.
fn end_for_other_machine(demands: Vec<String>, settings: &RunSettings) -> u8 {
    let detail = format!("{} (host {})", demands.join("; "), host());
    end(&verdict::broken_gpus(settings.policy.remapped(exit::GPU), detail), settings, Some(DEMAND))
}

/// This replica, for the page about the run.
fn who(reading: &Reading, env: &Env) -> Who {
    let of = reading.num_nodes.map(|count| format!(" of {count}")).unwrap_or_default();
    Who {
        host: limits::hostname(),
        platform: Some(reading.platform.0.to_owned()),
        rank: reading.node_rank.map(|rank| format!("{rank}{of}")),
        job: fact_variable(Fact::Job, env).map(|(_, id)| id.to_owned()).or_else(|| reading.launch.clone()),
    }
}

fn host() -> String {
    limits::hostname().unwrap_or_else(|| "unknown".to_owned())
}

/// Publishes why the job did not start. A single mistake is in the verdict only; several are logged before it, one on
/// each line. The verdict has the code of the first mistake, or else the word of the reason.
fn not_started(mistakes: &[String], settings: &RunSettings, codes: &[&str]) -> u8 {
    let detail = match mistakes {
        [one] => one.clone(),
        many => {
            for (at, mistake) in many.iter().enumerate() {
                tracing::error!(code = codes.get(at).or(codes.last()), "{mistake}");
            }
            format!("{} problems, each on a line above; the first: {}", many.len(), many[0])
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

fn start_log(settings: &RunSettings, env: &Env) {
    let format = match settings.log_format {
        LogFormat::Auto => log::auto_format(env),
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
