//! Explanations of a trainer's death beyond its exit code: an out-of-memory kill, a signal that was passed on, a full
//! /dev/shm, the command's own file. Each is a clause for the verdict, and says what to do.

use std::time::Duration;

use super::event::Uptime;
use super::policy::Policy;
use crate::process::exit::End;
use crate::process::signal::Signal;

/// The code of SIGBUS in a shell.
const BUS: u8 = 135;

/// The memory of /dev/shm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// Its size in bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
}

impl SharedMemory {
    /// Less than 2 % is free, or less than a page.
    fn is_full(self) -> bool {
        self.total > 0 && (self.free < 4096 || self.free.saturating_mul(50) < self.total)
    }
}

/// Whether a full /dev/shm explains this death. A process that writes to a full /dev/shm dies of SIGBUS, and its memory
/// may be free again before trainit can check.
pub fn shared_memory_clue(end: End, memory: Option<SharedMemory>) -> Option<String> {
    let advice = "give the container more of it (docker run --shm-size=8g; in Kubernetes an emptyDir with medium: Memory \
                mounted at /dev/shm), or have less shared (fewer data loader workers)";
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let full = memory.filter(|memory| memory.is_full());
    match (end.code() == BUS, full) {
        (_, Some(memory)) => {
            Some(format!("/dev/shm is full (all of its {} MiB are in use); {advice}", mib(memory.total)))
        }
        (true, None) => {
            let size = memory.map_or(String::new(), |memory| format!(", which has {} MiB here", mib(memory.total)));
            Some(format!("a full /dev/shm{size} causes this, and so does a mapped file that was truncated; {advice}"))
        }
        (false, None) => None,
    }
}

/// The explanations collected for one attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Clues {
    /// The last signal that was passed on, and its sender.
    passed: Option<(Signal, Option<u32>)>,
    found: Vec<String>,
}

impl Clues {
    pub(super) fn passed_on(&mut self, signal: Signal, sender: Option<u32>) {
        self.passed = Some((signal, sender));
    }

    pub(super) fn found(&mut self, clue: String) {
        if !self.found.contains(&clue) {
            self.found.push(clue);
        }
    }

    /// All explanations of this end, as clauses.
    pub(super) fn explain(&self, end: End, policy: &Policy) -> Vec<String> {
        let passed = self.passed.filter(|(signal, _)| End::Signal(*signal).code() == end.code());
        passed
            .map(|(signal, sender)| signal_clue(signal, sender, policy))
            .into_iter()
            .chain(self.found.clone())
            .collect()
    }
}

fn signal_clue(signal: Signal, sender: Option<u32>, policy: &Policy) -> String {
    let from = match sender {
        Some(0) | None => "from outside".to_owned(),
        Some(pid) => format!("from outside (pid {pid})"),
    };
    let way_out = if policy.checkpoint_on.contains(&signal) {
        format!(
            "Slurm sends it before the time limit where sbatch has --signal: with --preempt-on {0} trainit treats it as a \
             preemption and stops the trainer; or handle it in the trainer",
            signal.to_string().trim_start_matches("SIG")
        )
    } else {
        "handle it in the trainer, or drop it with --rewrite-signal".to_owned()
    };
    format!("{signal} arrived {from} and was passed on, but the trainer does not handle it; {way_out}")
}

/// A command that fails because one of its processes was killed fails within this time: the other ranks wait for the
/// dead one in a collective for at most half an hour by default (gloo's timeout), and a launcher allows some more. A
/// later failure has another cause.
const RECENT: Duration = Duration::from_secs(40 * 60);

/// The count of out-of-memory kills during one attempt. The cgroup counts them, but reports neither the process nor the
/// time.
#[derive(Debug, Default)]
pub struct Kills {
    /// `None` if there is no counter.
    count: Option<u64>,
    /// When the count was last seen to rise.
    rose_at: Option<Uptime>,
}

impl Kills {
    /// A new attempt, with the count at its start.
    pub fn since(count: Option<u64>) -> Kills {
        Kills { count, rose_at: None }
    }

    /// The count now.
    pub fn note(&mut self, now: Uptime, count: Option<u64>) {
        let Some((before, count)) = self.count.zip(count) else {
            self.count = None;
            return;
        };
        if count > before {
            self.rose_at = Some(now);
        }
        self.count = Some(count);
    }

    /// Whether a kill is so recent that it may be the cause of an end now; `None` if there is no counter.
    pub fn is_recent(&self, now: Uptime) -> Option<bool> {
        self.count.map(|_| self.rose_at.is_some_and(|rose_at| now.saturating_sub(rose_at) <= RECENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(number: i32) -> Signal {
        Signal::new(number).expect("a signal")
    }

    #[test]
    fn shared_memory_is_named_at_sigbus_and_at_any_failure_while_it_is_full() {
        let clue = |end, total, free| shared_memory_clue(end, Some(SharedMemory { total, free })).unwrap_or_default();
        let bus = End::Signal(signal(7));
        for (end, free) in [(bus, 64 << 20), (End::Code(135), 60 << 20), (End::Code(1), 0), (bus, 0)] {
            assert!(clue(end, 64 << 20, free).contains("--shm-size"), "{end} {free}");
        }
        assert!(clue(End::Code(1), 64 << 20, 1 << 20).contains("64 MiB are in use"));
        assert_eq!(clue(End::Code(1), 64 << 20, 32 << 20), "");
        assert_eq!(shared_memory_clue(End::Code(1), None), None);
        assert!(shared_memory_clue(bus, None).expect("clue").contains("--shm-size"));
    }

    #[test]
    fn a_signal_that_was_passed_on_explains_only_a_death_by_that_signal() {
        let mut clues = Clues::default();
        let slurm = Policy { checkpoint_on: vec![Signal::USR1], ..Policy::default() };
        assert_eq!(clues.explain(End::Signal(Signal::USR1), &slurm), Vec::<String>::new());
        clues.passed_on(Signal::USR1, Some(0));
        for end in [End::Signal(Signal::USR1), End::Code(138)] {
            let clue = clues.explain(end, &slurm).join(";");
            assert!(clue.contains("SIGUSR1 arrived from outside") && clue.contains("--preempt-on USR1"), "{clue}");
            let clue = clues.explain(end, &Policy::default()).join(";");
            assert!(clue.contains("from outside") && !clue.contains("--preempt-on"), "{clue}");
        }
        assert!(clues.explain(End::Signal(Signal::TERM), &slurm).is_empty());
    }

    fn secs(secs: u64) -> Uptime {
        Uptime::from_secs(secs)
    }

    #[test]
    fn a_kill_long_before_the_death_is_not_its_cause() {
        let mut kills = Kills::since(Some(4));
        assert_eq!(kills.is_recent(secs(1)), Some(false), "kills during earlier attempts do not count");
        kills.note(secs(60), Some(5));
        kills.note(secs(120), Some(5));
        assert_eq!((kills.is_recent(secs(120)), kills.is_recent(secs(60 + 1800))), (Some(true), Some(true)));
        assert_eq!(kills.is_recent(secs(60 + 2401)), Some(false));
        kills.note(secs(7200), Some(6));
        assert_eq!(kills.is_recent(secs(7200)), Some(true), "the count was not read before the death");
    }

    #[test]
    fn without_a_counter_the_answer_is_unknown() {
        let mut kills = Kills::since(None);
        kills.note(secs(1), Some(1));
        assert_eq!(kills.is_recent(secs(1)), None);
        let mut kills = Kills::since(Some(1));
        kills.note(secs(1), None);
        assert_eq!(kills.is_recent(secs(1)), None);
    }
}
