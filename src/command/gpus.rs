//! `trainit gpus`: the GPUs and their state, as a table or as one JSON object; with --watch repeatedly.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use serde::Serialize;

use crate::cli::Parsed;
use crate::command;
use crate::edge::clock::Clock;
use crate::edge::gpu;
use crate::edge::io::{eventfd, stdio};
use crate::edge::process::reaper::{self, Wait};
use crate::rules::gpu::ledger::XidCount;
use crate::rules::gpu::lifecycle::GpuEvent;
use crate::rules::gpu::{Discovery, Evidence, Health, table};
use crate::rules::process::env::Env;
use crate::settings::{Reader, gpus};
use crate::supervisor::GpuWatch;

/// The interval for checking whether a probe died without closing its output.
const DEATH_CHECK: Duration = Duration::from_millis(100);

/// An object of `--watch --json`.
#[derive(Serialize)]
struct Frame<'a> {
    #[serde(flatten)]
    discovery: &'a Discovery,
    /// The XIDs since the start.
    xids: &'a [XidCount],
}

/// Exits with 0 if a result could be printed, even without a GPU.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    let (values, complaints) = command::values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    let settings = gpus::read(&mut reader, parsed.on, env);
    let (json, watch) = (reader.switch("json"), reader.switch("watch"));
    if !reader.complaints.is_empty() {
        return command::refuse(&reader.complaints);
    }
    let discovery = gpu::discover(settings.timeout, env);
    let shown = if watch { watched(discovery, &settings, json, env) } else { show(&discovery, json) };
    u8::from(shown.is_err())
}

fn show(discovery: &Discovery, json: bool) -> io::Result<()> {
    match json {
        true => print_json(discovery),
        false => stdio::print(&table::render(discovery)),
    }
}

fn show_frame(discovery: &Discovery, xids: &[XidCount], json: bool) -> io::Result<()> {
    match json {
        true => print_json(&Frame { discovery, xids }),
        false => stdio::print(&(table::render(discovery) + &table::xids(xids))),
    }
}

fn print_json(object: &impl Serialize) -> io::Result<()> {
    stdio::print(&format!("{}\n", serde_json::to_string(object).map_err(io::Error::other)?))
}

/// Prints until standard output is closed. With NVML one probe runs and reports events; without it the machine is
/// scanned again and again.
fn watched(mut discovery: Discovery, settings: &gpus::Gpus, json: bool, env: &Env) -> io::Result<()> {
    while discovery.source != Evidence::Nvml {
        show_frame(&discovery, &[], json)?;
        eventfd::wait_readable(&[], Some(settings.interval));
        discovery = gpu::discover(settings.timeout, env);
    }
    show_frame(&discovery, &[], json)?;
    let clock = Clock::start();
    let mut watch = GpuWatch::new(settings.timeout, settings.interval, settings.policy.clone(), env);
    let mut shown_at = clock.now();
    loop {
        // While no readings are available, that is printed at every interval, too.
        let next_at = shown_at + settings.interval * 2;
        let due = watch.deadline().map_or(next_at, |at| at.min(next_at));
        let fds: Vec<RawFd> = watch.fd().into_iter().collect();
        let is_deaf = fds.is_empty() && watch.pid().is_some();
        let left = due.saturating_sub(clock.now());
        eventfd::wait_readable(&fds, Some(if is_deaf { left.min(DEATH_CHECK) } else { left }));
        let now = clock.now();
        let mut events = Vec::new();
        while let Wait::Ended { pid, end } = reaper::wait() {
            events.extend(watch.ended(now, pid, end).unwrap_or_default());
        }
        events.extend(watch.pump(now));
        let is_news = |event: &GpuEvent| !matches!(event, GpuEvent::Found(_) | GpuEvent::Available);
        if events.iter().any(is_news) || now >= next_at {
            let state = watch.state();
            discovery.gpus = state.gpus.into_iter().map(|(gpu, _)| gpu).collect();
            for gpu in discovery.gpus.iter_mut().filter(|_| state.unavailable.is_some()) {
                (gpu.health, gpu.health_reason) = (Health::Unknown, None);
            }
            discovery.problem = state.unavailable;
            show_frame(&discovery, &state.xids, json)?;
            shown_at = now;
        }
    }
}
