//! The GPU watch of one run: on while the command runs, off while its tree is stopped. Its reports become events and
//! log lines.

use std::os::fd::RawFd;

use crate::rules::gpu::ledger::Finding;
use crate::rules::gpu::lifecycle::GpuEvent;
use crate::rules::gpu::xid::Class;
use crate::rules::job::{Event, Uptime};
use crate::rules::process::exit::End;
use crate::rules::status::Gpus;
use crate::supervisor::gpu::watch::GpuWatch;

/// The GPU watch and its state; empty without GPUs.
#[derive(Debug)]
pub(in crate::supervisor) struct GpuEvents {
    watch: Option<GpuWatch>,
    host: String,
    is_open: bool,
    /// Reasons already reported for leaving this machine: the trainer's death may report the same one again.
    reported: Vec<String>,
}

impl GpuEvents {
    pub(in crate::supervisor) fn new(gpus: Option<(GpuWatch, String)>) -> GpuEvents {
        let (watch, host) = gpus.map_or((None, String::new()), |(watch, host)| (Some(watch), host));
        GpuEvents { watch, host, is_open: false, reported: Vec::new() }
    }

    /// Starts watching, because the command runs.
    pub(in crate::supervisor) fn open(&mut self) {
        self.is_open = true;
        self.reported.clear();
    }

    /// Stops watching, because the command has ended. The loop does not wait for the probe, which may be stuck in the
    /// kernel.
    pub(in crate::supervisor) fn close(&mut self, now: Uptime) {
        self.is_open = false;
        if let Some(watch) = &mut self.watch {
            watch.pause(now);
        }
    }

    pub(in crate::supervisor) fn fd(&self) -> Option<RawFd> {
        self.watch.as_ref().filter(|_| self.is_open)?.fd()
    }

    pub(in crate::supervisor) fn deadline(&self) -> Option<Uptime> {
        self.watch.as_ref().filter(|_| self.is_open)?.deadline()
    }

    /// The PID of the probe, which is not part of the job's tree.
    pub(in crate::supervisor) fn pid(&self) -> Option<i32> {
        self.watch.as_ref()?.pid()
    }

    /// Reads the probe's reports, and starts or kills the probe if that is due.
    pub(in crate::supervisor) fn news(&mut self, now: Uptime) -> Vec<Event> {
        let Some(watch) = self.watch.as_mut().filter(|_| self.is_open) else { return Vec::new() };
        let events = watch.pump(now);
        self.tell(events)
    }

    /// A process was reaped. Returns `None` if it was not the probe.
    pub(in crate::supervisor) fn ended(&mut self, now: Uptime, pid: i32, end: End) -> Option<Vec<Event>> {
        let events = self.watch.as_mut()?.ended(now, pid, end)?;
        // The death of a probe that trainit killed is not reported.
        Some(if self.is_open { self.tell(events) } else { Vec::new() })
    }

    /// The command died: reports whether a GPU is the cause, so that the job should continue on another machine.
    pub(in crate::supervisor) fn death(&mut self, now: Uptime) -> Option<Event> {
        let Finding { class, text } = self.watch.as_mut()?.watch().death(now)?;
        // The finding itself was logged when it occurred.
        let text = if class == Class::Restart {
            format!("{text}; it is taken as the cause of the command's end")
        } else {
            text
        };
        self.finding(class, &text)
    }

    /// There is a newer checkpoint: earlier incidents no longer count.
    pub(in crate::supervisor) fn refill(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.watch().refill();
        }
    }

    /// The state of the GPUs, if any are watched.
    pub(in crate::supervisor) fn state(&self) -> Option<Gpus> {
        self.watch.as_ref().map(GpuWatch::state)
    }

    fn tell(&mut self, events: Vec<GpuEvent>) -> Vec<Event> {
        let mut reports = Vec::new();
        for event in events {
            match event {
                GpuEvent::Found(found) => {
                    tracing::debug!(gpus = found.gpus.len() as u64, "the GPUs are watched");
                    // Problems that CUDA has with the GPUs were reported before the start.
                    if let Some(problem) = found.problem.filter(|problem| found.unusable.as_ref() != Some(problem)) {
                        tracing::warn!(code = "gpu", "{problem}; training continues");
                    }
                }
                GpuEvent::Round => {}
                GpuEvent::Finding(finding) => reports.extend(self.finding(finding.class, &finding.text)),
                GpuEvent::Unavailable(reason) => tracing::warn!(
                    code = "gpu_unknown",
                    "the state of the GPUs is unknown for now: {reason}; training continues"
                ),
                GpuEvent::Available => tracing::info!("the GPUs are watched again"),
            }
        }
        reports
    }

    fn finding(&mut self, class: Class, text: &str) -> Option<Event> {
        match class {
            Class::Leave if self.reported.iter().any(|reported| reported == text) => None,
            Class::Leave => {
                self.reported.push(text.to_owned());
                Some(Event::GpuFailed { detail: format!("{text} (host {})", self.host) })
            }
            Class::Restart | Class::Note => {
                tracing::warn!(code = "gpu", "{text}");
                None
            }
        }
    }
}
