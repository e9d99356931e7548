//! The watching GPU probe inside the supervisor's loop: its descriptor to poll, its deadline, its death.
//!
//! The loop polls [`GpuWatch::fd`] until [`GpuWatch::deadline`], calls [`GpuWatch::pump`] after every poll, and hands every
//! reaped process to [`GpuWatch::ended`] first. Nothing here blocks. The probe is no part of the job's tree, and whoever
//! waits for that to be empty does not wait for it: it may be stuck in the kernel. Deliberately absent: what an event means for the job.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::edge::gpu::ladder;
use crate::edge::gpu::probe::{Mode, ProbeProcess};
use crate::edge::gpu::site;
use crate::rules::env::Env;
use crate::rules::exit::End;
use crate::rules::gpu::Gpu;
use crate::rules::gpu::lifecycle::{GpuEvent, Lifecycle, Order};
use crate::rules::gpu::watch::{Watch, WatchPolicy};
use crate::rules::status::Gpus;

/// 64 KiB in all.
const READS: usize = 4;

/// Keeps a watching probe, one at a time. Call it on one thread only, the one that lives as long as trainit.
#[derive(Debug)]
pub struct GpuWatch {
    lifecycle: Lifecycle,
    /// The process, and whether its output is still open.
    probe: Option<(ProbeProcess, bool)>,
    interval: Duration,
    env: Env,
}

impl GpuWatch {
    /// Nothing is started before the first [`GpuWatch::pump`]. `call_limit` is for one NVML call.
    pub fn new(call_limit: Duration, interval: Duration, policy: WatchPolicy, env: &Env) -> GpuWatch {
        let lifecycle = Lifecycle::new(call_limit, interval, site(env), policy);
        GpuWatch { lifecycle, probe: None, interval, env: env.clone() }
    }

    /// What to poll for reading.
    pub fn fd(&self) -> Option<RawFd> {
        self.probe.as_ref().filter(|(_, open)| *open).map(|(probe, _)| probe.as_raw_fd())
    }

    /// When to call [`GpuWatch::pump`] even if nothing was heard.
    pub fn deadline(&self) -> Option<Duration> {
        self.lifecycle.deadline()
    }

    /// The probe's process, which is no part of the job.
    pub fn pid(&self) -> Option<i32> {
        self.lifecycle.pid()
    }

    /// What is known of the GPUs; also where a death is asked about.
    pub fn watch(&mut self) -> &mut Watch {
        self.lifecycle.watch()
    }

    /// What there is to say of the GPUs: each with its samples, the XIDs, and why nothing is known for now.
    pub fn told(&self) -> Gpus {
        let watch = self.lifecycle.watched();
        let with_samples = |gpu: Gpu| {
            let samples = watch.samples(gpu.index).copied().collect();
            (gpu, samples)
        };
        Gpus {
            gpus: watch.gpus().into_iter().map(with_samples).collect(),
            blind: self.lifecycle.blind().map(str::to_owned),
            xids: watch.xids(),
        }
    }

    /// Hears, kills what hangs, starts what is due.
    pub fn pump(&mut self, now: Duration) -> Vec<GpuEvent> {
        let mut events = self.hear(now);
        match self.lifecycle.order(now) {
            Some(Order::Spawn) => {
                let ladder = ladder::nvml(&self.env);
                let probe = ProbeProcess::spawn(&ladder, Mode::Watch(self.interval), &self.env);
                events.extend(self.lifecycle.started(now, probe.as_ref().map(|p| p.pid).map_err(ToString::to_string)));
                self.probe = probe.ok().map(|probe| (probe, true));
            }
            Some(Order::Kill) => self.kill(),
            None => {}
        }
        events.extend(self.lifecycle.due(now));
        events
    }

    /// A process was reaped. `None`: it was not the probe.
    pub fn ended(&mut self, now: Duration, pid: i32, end: End) -> Option<Vec<GpuEvent>> {
        if self.lifecycle.pid() != Some(pid) {
            return None;
        }
        let mut events = self.hear(now);
        let words = self.probe.take().map(|(probe, _)| probe.last_words()).unwrap_or_default();
        events.extend(self.lifecycle.reaped(now, end, words));
        Some(events)
    }

    /// No probe for now: the one that runs is killed, and none is started before the next [`GpuWatch::pump`]. It still
    /// has to be reaped.
    pub fn pause(&mut self, now: Duration) {
        if self.lifecycle.pause(now).is_some() {
            self.kill();
        }
    }

    fn hear(&mut self, now: Duration) -> Vec<GpuEvent> {
        let mut events = Vec::new();
        // A probe that floods its pipe gets no more than this of one turn of the loop; a pipe holds no more.
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
