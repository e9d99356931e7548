//! Runs the GPU probe within the event loop: its descriptor, its deadline, its death.
//!
//! The loop polls [`GpuWatch::fd`] until [`GpuWatch::deadline`], calls [`GpuWatch::pump`] after every poll, and passes
//! every reaped process to [`GpuWatch::ended`] first. Nothing here blocks. The probe is not part of the job's tree, and
//! the end of the tree does not wait for it, because it may be stuck in the kernel. Deliberately absent: what an event
//! means for the job.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::edge::gpu::probe::{Mode, ProbeProcess};
use crate::edge::gpu::{program, site};
use crate::rules::gpu::Gpu;
use crate::rules::gpu::lifecycle::{GpuEvent, Lifecycle, Order};
use crate::rules::gpu::watch::{Watch, WatchPolicy};
use crate::rules::process::env::Env;
use crate::rules::process::exit::End;
use crate::rules::status::Gpus;

/// The maximum number of reads in one turn: 64 KiB in all.
const READS: usize = 4;

/// Runs at most one probe at a time. Call it only on the main thread, because the probe dies with the thread that
/// started it.
#[derive(Debug)]
pub struct GpuWatch {
    lifecycle: Lifecycle,
    /// The process, and whether its output is still open.
    probe: Option<(ProbeProcess, bool)>,
    interval: Duration,
    env: Env,
}

impl GpuWatch {
    /// Starts nothing before the first [`GpuWatch::pump`]. `call_limit` is the time limit of one NVML call.
    pub fn new(call_limit: Duration, interval: Duration, policy: WatchPolicy, env: &Env) -> GpuWatch {
        let lifecycle = Lifecycle::new(call_limit, interval, site(env), policy);
        GpuWatch { lifecycle, probe: None, interval, env: env.clone() }
    }

    /// The descriptor to poll for reading.
    pub fn fd(&self) -> Option<RawFd> {
        self.probe.as_ref().filter(|(_, open)| *open).map(|(probe, _)| probe.as_raw_fd())
    }

    /// When to call [`GpuWatch::pump`] without input.
    pub fn deadline(&self) -> Option<Duration> {
        self.lifecycle.deadline()
    }

    /// The PID of the probe, which is not part of the job.
    pub fn pid(&self) -> Option<i32> {
        self.lifecycle.pid()
    }

    /// The known state of the GPUs, which also classifies a death of the command.
    pub fn watch(&mut self) -> &mut Watch {
        self.lifecycle.watch()
    }

    /// The state of the GPUs: each GPU with its samples, the XIDs, and why the state is unknown for now.
    pub fn state(&self) -> Gpus {
        let watch = self.lifecycle.watched();
        let with_samples = |gpu: Gpu| {
            let samples = watch.samples(gpu.index).copied().collect();
            (gpu, samples)
        };
        Gpus {
            gpus: watch.gpus().into_iter().map(with_samples).collect(),
            unavailable: self.lifecycle.unavailable().map(str::to_owned),
            xids: watch.xids(),
        }
    }

    /// Reads the probe's output, kills a probe that hangs, and starts one if that is due.
    pub fn pump(&mut self, now: Duration) -> Vec<GpuEvent> {
        let mut events = self.hear(now);
        match self.lifecycle.order(now) {
            Some(Order::Spawn) => {
                let program = program::nvml(&self.env);
                let probe = ProbeProcess::spawn(&program, Mode::Watch(self.interval), &self.env);
                events.extend(self.lifecycle.started(now, probe.as_ref().map(|p| p.pid).map_err(ToString::to_string)));
                self.probe = probe.ok().map(|probe| (probe, true));
            }
            Some(Order::Kill) => self.kill(),
            None => {}
        }
        events.extend(self.lifecycle.due(now));
        events
    }

    /// A process was reaped. Returns `None` if it was not the probe.
    pub fn ended(&mut self, now: Duration, pid: i32, end: End) -> Option<Vec<GpuEvent>> {
        if self.lifecycle.pid() != Some(pid) {
            return None;
        }
        let mut events = self.hear(now);
        let words = self.probe.take().map(|(probe, _)| probe.last_words()).unwrap_or_default();
        events.extend(self.lifecycle.reaped(now, end, words));
        Some(events)
    }

    /// Kills the running probe, and starts none before the next [`GpuWatch::pump`]. The killed probe still has to be
    /// reaped.
    pub fn pause(&mut self, now: Duration) {
        if self.lifecycle.pause(now).is_some() {
            self.kill();
        }
    }

    fn hear(&mut self, now: Duration) -> Vec<GpuEvent> {
        let mut events = Vec::new();
        // A probe that floods its pipe gets no more than this in one turn of the loop; a pipe holds no more.
        for _ in 0..READS {
            let Some((probe, open @ true)) = &mut self.probe else { break };
            match probe.read() {
                Some(bytes) if bytes.is_empty() => break,
                Some(bytes) => events.extend(self.lifecycle.feed(now, &bytes)),
                None => *open = false,
            }
        }
        events
    }

    fn kill(&self) {
        if let Some((probe, _)) = &self.probe {
            probe.kill();
        }
    }
}
