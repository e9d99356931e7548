//! What happened on the GPUs, in time: which class each incident gets, and what the trainer's death means after it.
//!
//! The driver's own verdict (recovery action) outweighs the XID's row. An XID stops a live trainer only with class leave;
//! class restart gives the reason when the trainer dies within [`BLAME`]. Deliberately absent: where the incidents come
//! from, and what the supervisor does about a class.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::health::{is_known, recovery};
use super::xid::{Class, Rule, row};
use super::{Gpu, Health};

/// How long after an incident a death or hang of the trainer is put down to it.
const BLAME: Duration = Duration::from_secs(60);
/// How long an incident waits for the ones that explain it, and for the recovery action read after 2 s.
const PATIENCE: Duration = Duration::from_secs(5);
/// A recovery action that is read sooner than this after an XID may not have followed it yet; the probe reads again
/// after 2 s.
const SETTLING: Duration = Duration::from_millis(1500);
/// Kinds of incidents (an XID on a GPU) that are remembered and counted.
const MEMORY: usize = 256;
/// The same note is not repeated before this.
const QUIET: Duration = Duration::from_secs(60);

/// Which GPU: NVML's index.
pub type GpuId = u32;

/// In the place of an index, where the driver names no GPU.
const NAMELESS: GpuId = GpuId::MAX;

/// What is decided about something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What to do.
    pub class: Class,
    /// One line: what happened, to which GPU.
    pub text: String,
}

/// How often an XID came, for the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct XidCount {
    /// The GPU, as [`super::Gpu::label`] has it.
    pub gpu: String,
    /// The number.
    pub xid: u64,
    /// How often.
    pub count: u64,
}

#[derive(Debug)]
struct Incident {
    at: Duration,
    gpu: GpuId,
    xid: u64,
    rule: Rule,
    /// The driver's verdict since; `None` while it has not been read or cannot be.
    action: Option<u32>,
    /// Whether the action was read when it must have been up to date.
    settled: bool,
    told: bool,
    /// It was told that it is there, and not decided yet.
    heard: bool,
    /// A death was put down to it; what it damaged is gone.
    blamed: bool,
}

/// The memory of a job.
#[derive(Debug, Default)]
pub struct Ledger {
    overrides: BTreeMap<u64, Class>,
    /// Whether the job uses more than one GPU.
    pub several: bool,
    labels: BTreeMap<GpuId, String>,
    /// GPUs that the trainer cannot see: their incidents are notes.
    unused: BTreeSet<GpuId>,
    /// The last of each kind.
    incidents: VecDeque<Incident>,
    counts: BTreeMap<(GpuId, u64), (u64, Duration)>,
    actions: BTreeMap<GpuId, u32>,
    /// Why a GPU must not be trained on again, and whether that stops a live trainer too.
    condemned: BTreeMap<GpuId, String>,
    strikes: BTreeMap<GpuId, u32>,
    unclear_strikes: u32,
}

impl Ledger {
    /// With the rows that the user overrides.
    pub fn new(overrides: impl IntoIterator<Item = (u64, Class)>) -> Ledger {
        Ledger { overrides: overrides.into_iter().collect(), ..Ledger::default() }
    }

    /// Says what a GPU is called and whether the trainer can see it.
    pub fn introduce(&mut self, gpu: GpuId, label: String, used: bool) {
        self.labels.insert(gpu, label);
        if used {
            self.unused.remove(&gpu)
        } else {
            self.unused.insert(gpu)
        };
    }

    /// An XID came without its GPU: told and counted, and nobody is blamed.
    pub fn stray(&mut self, now: Duration, xid: u64) -> Vec<Finding> {
        self.introduce(NAMELESS, "a GPU that the driver does not name".to_owned(), false);
        self.xid(now, NAMELESS, xid, None)
    }

    /// An XID came, with the recovery action as read right after it.
    pub fn xid(&mut self, now: Duration, gpu: GpuId, xid: u64, action: Option<u32>) -> Vec<Finding> {
        let room = self.counts.len() < MEMORY;
        let quiet = match self.counts.get_mut(&(gpu, xid)) {
            Some((count, last)) => {
                *count += 1;
                let quiet = now.saturating_sub(*last) < QUIET;
                *last = now;
                quiet
            }
            None if room => self.counts.insert((gpu, xid), (1, now)).is_some(),
            None => true,
        };
        let rule = self.overrides.get(&xid).map_or(row(xid).1, |class| Rule::Always(*class));
        self.remember(
            Incident {
                at: now,
                gpu,
                xid,
                rule,
                action: None,
                settled: false,
                told: false,
                heard: false,
                blamed: false,
            },
            quiet,
        );
        let mut findings = self.note_action(now, gpu, action, false);
        findings.extend(self.due(now));
        findings
    }

    /// The word that an XID is there whose meaning only what follows tells; once for each incident.
    pub fn undecided(&mut self, gpu: GpuId, xid: u64) -> Option<Finding> {
        let is_news = |i: &Incident| (i.gpu, i.xid) == (gpu, xid) && !i.told && !i.heard;
        let at = self.incidents.iter().position(is_news)?;
        let by = match self.incidents[at].rule {
            Rule::DoubleBit => "by the XIDs that come with it (64, 94, 95)",
            Rule::LinkByAction => "by the recovery action that the driver asks for",
            _ => return None,
        };
        self.incidents[at].heard = true;
        let (what, seconds) = (self.describe(&self.incidents[at]), PATIENCE.as_secs());
        Some(Finding {
            class: Class::Note,
            text: format!("{what}; whether to go on is decided within {seconds} s, {by}"),
        })
    }

    /// In the place of the last of its kind; one that is not decided yet stays, so that a flood puts nothing off.
    fn remember(&mut self, mut incident: Incident, quiet: bool) {
        let is_same = |known: &Incident| (known.gpu, known.xid) == (incident.gpu, incident.xid);
        if let Some(at) = self.incidents.iter().position(is_same) {
            if !self.incidents[at].told {
                return;
            }
            let last = self.incidents.remove(at);
            // After a death it is news again.
            let quiet = quiet && !last.is_some_and(|last| last.blamed);
            incident.told =
                quiet && self.class(&incident, incident.at, false).is_some_and(|class| class < Class::Leave);
        } else if self.incidents.len() == MEMORY {
            let decided = self.incidents.iter().position(|known| known.told);
            self.incidents.remove(decided.unwrap_or_default());
        }
        self.incidents.push_back(incident);
    }

    /// The recovery action was read anew.
    pub fn action(&mut self, now: Duration, gpu: GpuId, action: Option<u32>) -> Vec<Finding> {
        let mut findings = self.note_action(now, gpu, action, true);
        findings.extend(self.due(now));
        findings
    }

    fn note_action(&mut self, now: Duration, gpu: GpuId, action: Option<u32>, again: bool) -> Vec<Finding> {
        let Some(action) = action else { return Vec::new() };
        for incident in self.incidents.iter_mut().filter(|i| i.gpu == gpu && now.saturating_sub(i.at) < BLAME) {
            incident.action = Some(action);
            incident.settled |= again && now.saturating_sub(incident.at) >= SETTLING;
        }
        if self.actions.insert(gpu, action) == Some(action) || action == 0 {
            return Vec::new();
        }
        let (health, text) = recovery(action, self.several);
        let class = if health == Health::Bad { self.used(gpu, Class::Leave) } else { Class::Note };
        if class == Class::Leave {
            self.condemned.entry(gpu).or_insert_with(|| text.clone());
        }
        vec![Finding { class, text: format!("{}: {text}", self.label(gpu)) }]
    }

    /// A GPU is no place to train any more: `Leave` at once, `Restart` never, `Note` for when the trainer dies.
    pub fn condemn(&mut self, gpu: GpuId, class: Class, why: &str) -> Vec<Finding> {
        if self.condemned.get(&gpu).is_some_and(|known| known == why) {
            return Vec::new();
        }
        self.condemned.insert(gpu, why.to_owned());
        vec![Finding { class: self.used(gpu, class), text: format!("{}: {why}", self.label(gpu)) }]
    }

    /// A GPU is listed no more. It is told by its own name: its number may be another's by now.
    pub fn gone(&mut self, gpu: &Gpu) -> Option<Finding> {
        let why = "lost after a good start, the driver lists it no more";
        let is_used = gpu.cuda_visible != Some(false);
        if is_used && self.condemned.insert(gpu.index, why.to_owned()).is_some_and(|known| known == why) {
            return None;
        }
        let class = if is_used { Class::Leave } else { Class::Note };
        Some(Finding { class, text: format!("{}: {why}", gpu.label()) })
    }

    /// Why a GPU must not be trained on again, if that is so.
    pub fn condemned(&self, gpu: GpuId) -> Option<&str> {
        self.condemned.get(&gpu).map(String::as_str)
    }

    /// Decides what can be decided by now.
    pub fn due(&mut self, now: Duration) -> Vec<Finding> {
        let mut findings = Vec::new();
        for at in 0..self.incidents.len() {
            if self.incidents[at].told {
                continue;
            }
            if let Some(class) = self.class(&self.incidents[at], now, false) {
                self.incidents[at].told = true;
                let text = self.describe(&self.incidents[at]);
                if class == Class::Leave {
                    let (gpu, why) = (self.incidents[at].gpu, self.what(&self.incidents[at]));
                    self.condemned.entry(gpu).or_insert(why);
                }
                findings.push(Finding { class, text });
            }
        }
        findings
    }

    /// When [`Ledger::due`] has something to decide without anything new.
    pub fn deadline(&self) -> Option<Duration> {
        self.incidents.iter().filter(|i| !i.told).map(|i| i.at + PATIENCE).min()
    }

    /// The trainer died or hung: whether a GPU is to blame, and whether another try here makes sense. Each death counts
    /// once against a GPU: the second of class restart within one restart budget is leave.
    pub fn death(&mut self, now: Duration) -> Option<Finding> {
        let mut found: Vec<Finding> = self
            .condemned
            .iter()
            .filter(|(gpu, _)| !self.unused.contains(gpu))
            .map(|(gpu, why)| Finding { class: Class::Leave, text: format!("{}: {why}", self.label(*gpu)) })
            .collect();
        let mut struck = BTreeSet::new();
        let mut unclear = false;
        for at in 0..self.incidents.len() {
            let incident = &self.incidents[at];
            let (gpu, rule, told) = (incident.gpu, incident.rule, incident.told);
            if incident.blamed || now.saturating_sub(incident.at) > BLAME || self.unused.contains(&gpu) {
                continue;
            }
            let text = self.describe(incident);
            let class = match (rule, self.class(incident, now, true)) {
                (Rule::Unclear, Some(Class::Note)) => {
                    if !unclear {
                        unclear = true;
                        self.unclear_strikes += 1;
                    }
                    if self.unclear_strikes > 1 { Class::Leave } else { Class::Restart }
                }
                (_, Some(Class::Restart)) => {
                    if struck.insert(gpu) {
                        *self.strikes.entry(gpu).or_default() += 1;
                    }
                    // A program's bug shows on every GPU; on one alone, it is the GPU.
                    let elsewhere = self.incidents.iter().any(|i| i.rule == Rule::Program && i.gpu != gpu);
                    let twice = self.strikes.get(&gpu).is_some_and(|strikes| *strikes > 1);
                    if twice && !(rule == Rule::Program && elsewhere) { Class::Leave } else { Class::Restart }
                }
                (_, Some(Class::Leave)) => Class::Leave,
                (_, Some(Class::Note) | None) if told => continue,
                // Nobody asks again.
                (_, Some(Class::Note) | None) => Class::Note,
            };
            self.incidents[at].told = true;
            self.incidents[at].blamed = class == Class::Restart;
            found.push(Finding { class, text });
        }
        found.into_iter().reduce(|worst, next| if next.class > worst.class { next } else { worst })
    }

    /// The restart budget is full again: what was counted against the GPUs is forgiven.
    pub fn refill(&mut self) {
        self.strikes.clear();
        self.unclear_strikes = 0;
    }

    /// What came and how often, for the verdict.
    pub fn history(&self) -> Vec<XidCount> {
        let count = |((gpu, xid), (count, _)): (&(GpuId, u64), &(u64, Duration))| XidCount {
            gpu: self.label(*gpu),
            xid: *xid,
            count: *count,
        };
        self.counts.iter().map(count).collect()
    }

    /// The class of an incident, or nothing while it is too early to say. `last` asks for what is known now.
    fn class(&self, incident: &Incident, now: Duration, last: bool) -> Option<Class> {
        let over = now >= incident.at + PATIENCE;
        let decided = last || over;
        let link = if self.several { Class::Leave } else { Class::Note };
        let class = match incident.action {
            Some(action) if is_known(action) => match recovery(action, self.several).0 {
                Health::Bad => Some(Class::Leave),
                _ => Some(Class::Note),
            },
            action => match incident.rule {
                Rule::Always(class) => Some(class),
                Rule::Program => Some(Class::Restart),
                Rule::Unclear => Some(Class::Note),
                Rule::Link => Some(link),
                Rule::DoubleBit => self.double_bit(incident).or(decided.then_some(Class::Leave)),
                // A 0 of the first moment acquits nobody.
                Rule::LinkByAction | Rule::Action if action == Some(0) && (incident.settled || over) => {
                    Some(Class::Note)
                }
                Rule::LinkByAction => decided.then_some(link),
                Rule::Action => decided.then_some(Class::Note),
            },
        };
        class.map(|class| self.used(incident.gpu, class))
    }

    /// What the neighbours of a double-bit error say of it.
    fn double_bit(&self, incident: &Incident) -> Option<Class> {
        let near = |other: &&Incident| other.gpu == incident.gpu && other.at.abs_diff(incident.at) < PATIENCE;
        let beside: Vec<u64> = self.incidents.iter().filter(near).map(|other| other.xid).collect();
        match (beside.contains(&64) || beside.contains(&95), beside.contains(&94)) {
            (true, _) => Some(Class::Leave),
            (false, true) => Some(Class::Restart),
            (false, false) => None,
        }
    }

    fn used(&self, gpu: GpuId, class: Class) -> Class {
        if self.unused.contains(&gpu) { Class::Note } else { class }
    }

    fn describe(&self, incident: &Incident) -> String {
        format!("{}: {}", self.label(incident.gpu), self.what(incident))
    }

    fn what(&self, incident: &Incident) -> String {
        let (what, _) = row(incident.xid);
        let action = incident.action.filter(|action| *action != 0);
        let action = action.map(|action| format!("; {}", recovery(action, self.several).1)).unwrap_or_default();
        format!("XID {}, {what}{action}", incident.xid)
    }

    fn label(&self, gpu: GpuId) -> String {
        self.labels.get(&gpu).cloned().unwrap_or_else(|| format!("GPU {gpu}"))
    }
}

#[cfg(test)]
mod tests;
