//! The GPU watch of one run: on while the command runs, off while its tree is stopped, its news as events and log lines.

use std::os::fd::RawFd;

use super::gpus::GpuWatch;
use crate::rules::exit::End;
use crate::rules::gpu::ledger::Finding;
use crate::rules::gpu::lifecycle::GpuEvent;
use crate::rules::gpu::xid::Class;
use crate::rules::job::{Event, Uptime};
use crate::rules::status::Gpus;

/// Where the watch reports; empty without GPUs.
#[derive(Debug)]
pub(super) struct GpuDesk {
    watch: Option<GpuWatch>,
    host: String,
    is_open: bool,
    /// Why this attempt is to leave; the trainer's death may bring the same up again.
    said: Vec<String>,
}

impl GpuDesk {
    pub(super) fn new(gpus: Option<(GpuWatch, String)>) -> GpuDesk {
        let (watch, host) = gpus.map_or((None, String::new()), |(watch, host)| (Some(watch), host));
        GpuDesk { watch, host, is_open: false, said: Vec::new() }
    }

    /// The command runs: watch.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        self.said.clear();
    }

    /// The command is gone, and nobody waits for the probe, which may never let itself be reaped.
    pub(super) fn close(&mut self, now: Uptime) {
        self.is_open = false;
        if let Some(watch) = &mut self.watch {
            watch.pause(now);
        }
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        self.watch.as_ref().filter(|_| self.is_open)?.fd()
    }

    pub(super) fn deadline(&self) -> Option<Uptime> {
        self.watch.as_ref().filter(|_| self.is_open)?.deadline()
    }

    /// The probe's process, which is no part of the job's tree.
    pub(super) fn pid(&self) -> Option<i32> {
        self.watch.as_ref()?.pid()
    }

    /// Hears the probe, starts or kills it where that is due.
    pub(super) fn news(&mut self, now: Uptime) -> Vec<Event> {
        let Some(watch) = self.watch.as_mut().filter(|_| self.is_open) else { return Vec::new() };
        let events = watch.pump(now);
        self.tell(events)
    }

    /// A process was reaped; `None`: it was not the probe.
    pub(super) fn ended(&mut self, now: Uptime, pid: i32, end: End) -> Option<Vec<Event>> {
        let events = self.watch.as_mut()?.ended(now, pid, end)?;
        // A probe that we killed ourselves is no news.
        Some(if self.is_open { self.tell(events) } else { Vec::new() })
    }

    /// The command died: whether a GPU is to blame so that another machine should go on.
    pub(super) fn death(&mut self, now: Uptime) -> Option<Event> {
        let Finding { class, text } = self.watch.as_mut()?.watch().death(now)?;
        // It was told when it came.
        let text = if class == Class::Restart { format!("{text}; the command's end is put down to it") } else { text };
        self.finding(class, &text)
    }

    /// There is a newer checkpoint: what happened before it counts no more.
    pub(super) fn refill(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.watch().refill();
        }
    }

    /// What there is to say of the GPUs, where any are watched.
    pub(super) fn told(&self) -> Option<Gpus> {
        self.watch.as_ref().map(GpuWatch::told)
    }

    fn tell(&mut self, events: Vec<GpuEvent>) -> Vec<Event> {
        let mut told = Vec::new();
        for event in events {
            match event {
                GpuEvent::Found(found) => {
                    tracing::debug!(gpus = found.gpus.len() as u64, "the GPUs are watched");
                    if let Some(problem) = found.problem {
                        tracing::warn!(code = "gpu", "{problem}; training goes on");
                    }
                }
                GpuEvent::Round => {}
                GpuEvent::Finding(finding) => told.extend(self.finding(finding.class, &finding.text)),
                GpuEvent::Blind(reason) => tracing::warn!(
                    code = "gpu_unknown",
                    "nothing is known of the GPUs for now: {reason}; training goes on"
                ),
                GpuEvent::Sighted => tracing::info!("the GPUs are watched again"),
            }
        }
        told
    }

    fn finding(&mut self, class: Class, text: &str) -> Option<Event> {
        match class {
            Class::Leave if self.said.iter().any(|said| said == text) => None,
            Class::Leave => {
                self.said.push(text.to_owned());
                Some(Event::GpuFailed { detail: format!("{text} (host {})", self.host) })
            }
            Class::Restart | Class::Note => {
                tracing::warn!(code = "gpu", "{text}");
                None
            }
        }
    }
}
