//! The incidents of the GPUs in the order of time: the class of each incident, and whether it explains the trainer's death.
//!
//! The driver's own verdict (recovery action) outweighs the XID's row. An XID stops a live trainer only with class leave;
//! class restart gives the reason when the trainer dies within [`BLAME_WITHIN`]. Deliberately absent: where the
//! incidents come from, and what the supervisor does about a class.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::health::{is_known, recovery};
use super::xid::{Class, Rule, row};
use super::{Gpu, Health};

/// A death or hang of the trainer within this time after an incident is attributed to it.
const BLAME_WITHIN: Duration = Duration::from_secs(60);
/// The time that an incident waits for XIDs that explain it, and for the recovery action that is read after 2 s.
const DECIDE_WITHIN: Duration = Duration::from_secs(5);
/// A recovery action that is read sooner than this after an XID may be older than the XID; the probe reads it again
/// after 2 s.
const SETTLING: Duration = Duration::from_millis(1500);
/// The limit for kinds of incidents (an XID on a GPU) that are remembered and counted.
const MOST_INCIDENTS: usize = 256;
/// The same note is not repeated within this time.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// A GPU, by NVML's index.
pub type GpuId = u32;

/// Used as the index if the driver names no GPU.
const UNNAMED_GPU: GpuId = GpuId::MAX;

/// The decision about an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The reaction.
    pub class: Class,
    /// One line: the incident and its GPU.
    pub text: String,
}

/// The number of times an XID occurred, for the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct XidCount {
    /// The GPU, in the form of [`super::Gpu::label`].
    pub gpu: String,
    /// The number.
    pub xid: u64,
    /// The number of times.
    pub count: u64,
}

#[derive(Debug)]
struct Incident {
    at: Duration,
    gpu: GpuId,
    xid: u64,
    rule: Rule,
    /// The driver's verdict after the incident; `None` if it has not been read or cannot be read.
    action: Option<u32>,
    /// Whether the action was read late enough to be valid.
    is_settled: bool,
    is_reported: bool,
    /// It was announced as not decided yet.
    is_announced: bool,
    /// A death was attributed to it, so it explains no other death.
    is_blamed: bool,
}

/// The incidents of a job.
#[derive(Debug, Default)]
pub struct Ledger {
    overrides: BTreeMap<u64, Class>,
    /// Whether the job uses more than one GPU.
    pub several: bool,
    labels: BTreeMap<GpuId, String>,
    /// GPUs that the trainer cannot see. Their incidents are notes.
    unused: BTreeSet<GpuId>,
    /// The last incident of each kind.
    incidents: VecDeque<Incident>,
    counts: BTreeMap<(GpuId, u64), (u64, Duration)>,
    actions: BTreeMap<GpuId, u32>,
    /// Why a GPU is unfit for another start.
    unfit: BTreeMap<GpuId, String>,
    strikes: BTreeMap<GpuId, u32>,
    unclear_strikes: u32,
}

impl Ledger {
    /// A ledger with the rows that the user overrides.
    pub fn new(overrides: impl IntoIterator<Item = (u64, Class)>) -> Ledger {
        Ledger { overrides: overrides.into_iter().collect(), ..Ledger::default() }
    }

    /// Sets the name of a GPU, and whether the trainer can see it.
    pub fn set_gpu(&mut self, gpu: GpuId, label: String, used: bool) {
        self.labels.insert(gpu, label);
        if used {
            self.unused.remove(&gpu)
        } else {
            self.unused.insert(gpu)
        };
    }

    /// Records an XID without a GPU: reported and counted, but not attributed to any GPU.
    pub fn xid_without_gpu(&mut self, now: Duration, xid: u64) -> Vec<Finding> {
        self.set_gpu(UNNAMED_GPU, "a GPU that the driver does not name".to_owned(), false);
        self.xid(now, UNNAMED_GPU, xid, None)
    }

    /// Records an XID, with the recovery action that was read directly after it.
    pub fn xid(&mut self, now: Duration, gpu: GpuId, xid: u64, action: Option<u32>) -> Vec<Finding> {
        let room = self.counts.len() < MOST_INCIDENTS;
        let quiet = match self.counts.get_mut(&(gpu, xid)) {
            Some((count, last)) => {
                *count += 1;
                let quiet = now.saturating_sub(*last) < REPEAT_AFTER;
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
                is_settled: false,
                is_reported: false,
                is_announced: false,
                is_blamed: false,
            },
            quiet,
        );
        let mut findings = self.note_action(now, gpu, action, false);
        findings.extend(self.due(now));
        findings
    }

    /// The announcement of an XID whose meaning depends on later facts; once for each incident.
    pub fn undecided(&mut self, gpu: GpuId, xid: u64) -> Option<Finding> {
        let is_news = |i: &Incident| (i.gpu, i.xid) == (gpu, xid) && !i.is_reported && !i.is_announced;
        let at = self.incidents.iter().position(is_news)?;
        let by = match self.incidents[at].rule {
            Rule::DoubleBit => "by the XIDs that come with it (64, 94, 95)",
            Rule::LinkByAction => "by the recovery action that the driver asks for",
            _ => return None,
        };
        self.incidents[at].is_announced = true;
        let (incident_text, seconds) = (self.describe(&self.incidents[at]), DECIDE_WITHIN.as_secs());
        Some(Finding {
            class: Class::Note,
            text: format!("{incident_text}; the decision to continue or leave follows within {seconds} s, {by}"),
        })
    }

    /// Replaces the last incident of its kind. One that is not decided yet stays, so that a flood delays no decision.
    fn remember(&mut self, mut incident: Incident, quiet: bool) {
        let is_same = |known: &Incident| (known.gpu, known.xid) == (incident.gpu, incident.xid);
        if let Some(at) = self.incidents.iter().position(is_same) {
            if !self.incidents[at].is_reported {
                return;
            }
            let last = self.incidents.remove(at);
            // After a death it is reported again.
            let quiet = quiet && !last.is_some_and(|last| last.is_blamed);
            incident.is_reported =
                quiet && self.class(&incident, incident.at, false).is_some_and(|class| class < Class::Leave);
        } else if self.incidents.len() == MOST_INCIDENTS {
            let decided = self.incidents.iter().position(|known| known.is_reported);
            self.incidents.remove(decided.unwrap_or_default());
        }
        self.incidents.push_back(incident);
    }

    /// Records the recovery action, which was read again.
    pub fn action(&mut self, now: Duration, gpu: GpuId, action: Option<u32>) -> Vec<Finding> {
        let mut findings = self.note_action(now, gpu, action, true);
        findings.extend(self.due(now));
        findings
    }

    fn note_action(&mut self, now: Duration, gpu: GpuId, action: Option<u32>, again: bool) -> Vec<Finding> {
        let Some(action) = action else { return Vec::new() };
        for incident in self.incidents.iter_mut().filter(|i| i.gpu == gpu && now.saturating_sub(i.at) < BLAME_WITHIN) {
            incident.action = Some(action);
            incident.is_settled |= again && now.saturating_sub(incident.at) >= SETTLING;
        }
        if self.actions.insert(gpu, action) == Some(action) || action == 0 {
            return Vec::new();
        }
        let (health, text) = recovery(action, self.several);
        let class = if health == Health::Bad { self.used(gpu, Class::Leave) } else { Class::Note };
        if class == Class::Leave {
            self.unfit.entry(gpu).or_insert_with(|| text.clone());
        }
        vec![Finding { class, text: format!("{}: {text}", self.label(gpu)) }]
    }

    /// A GPU is unfit for training from now on: `Leave` at once, `Restart` never, `Note` at the trainer's death.
    pub fn mark_unfit(&mut self, gpu: GpuId, class: Class, why: &str) -> Vec<Finding> {
        if self.unfit.get(&gpu).is_some_and(|known| known == why) {
            return Vec::new();
        }
        self.unfit.insert(gpu, why.to_owned());
        vec![Finding { class: self.used(gpu, class), text: format!("{}: {why}", self.label(gpu)) }]
    }

    /// A GPU is no longer listed. The text uses its stored name, because its index may belong to another GPU now.
    pub fn gone(&mut self, gpu: &Gpu) -> Option<Finding> {
        let why = "lost after a good start, the driver no longer lists it";
        let is_used = gpu.cuda_visible != Some(false);
        if is_used && self.unfit.insert(gpu.index, why.to_owned()).is_some_and(|known| known == why) {
            return None;
        }
        let class = if is_used { Class::Leave } else { Class::Note };
        Some(Finding { class, text: format!("{}: {why}", gpu.label()) })
    }

    /// Why a GPU is unfit for another start, if it is.
    pub fn unfit(&self, gpu: GpuId) -> Option<&str> {
        self.unfit.get(&gpu).map(String::as_str)
    }

    /// Decides all incidents that can be decided now.
    pub fn due(&mut self, now: Duration) -> Vec<Finding> {
        let mut findings = Vec::new();
        for at in 0..self.incidents.len() {
            if self.incidents[at].is_reported {
                continue;
            }
            if let Some(class) = self.class(&self.incidents[at], now, false) {
                self.incidents[at].is_reported = true;
                let text = self.describe(&self.incidents[at]);
                if class == Class::Leave {
                    let (gpu, why) = (self.incidents[at].gpu, self.incident_text(&self.incidents[at]));
                    self.unfit.entry(gpu).or_insert(why);
                }
                findings.push(Finding { class, text });
            }
        }
        findings
    }

    /// When [`Ledger::due`] must be called again, if nothing else happens.
    pub fn deadline(&self) -> Option<Duration> {
        self.incidents.iter().filter(|i| !i.is_reported).map(|i| i.at + DECIDE_WITHIN).min()
    }

    /// The trainer died or hung: whether a GPU is to blame, and whether a restart here makes sense. Each death counts
    /// once against a GPU: the second one of class restart within one restart budget is leave.
    pub fn death(&mut self, now: Duration) -> Option<Finding> {
        let mut found: Vec<Finding> = self
            .unfit
            .iter()
            .filter(|(gpu, _)| !self.unused.contains(gpu))
            .map(|(gpu, why)| Finding { class: Class::Leave, text: format!("{}: {why}", self.label(*gpu)) })
            .collect();
        let mut struck = BTreeSet::new();
        let mut unclear = false;
        for at in 0..self.incidents.len() {
            let incident = &self.incidents[at];
            let (gpu, rule, is_reported) = (incident.gpu, incident.rule, incident.is_reported);
            if incident.is_blamed || now.saturating_sub(incident.at) > BLAME_WITHIN || self.unused.contains(&gpu) {
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
                    // A bug of the program occurs on every GPU. If it occurs on only one, the GPU is to blame.
                    let elsewhere = self.incidents.iter().any(|i| i.rule == Rule::Program && i.gpu != gpu);
                    let twice = self.strikes.get(&gpu).is_some_and(|strikes| *strikes > 1);
                    if twice && !(rule == Rule::Program && elsewhere) { Class::Leave } else { Class::Restart }
                }
                (_, Some(Class::Leave)) => Class::Leave,
                (_, Some(Class::Note) | None) if is_reported => continue,
                // The driver will not be asked again.
                (_, Some(Class::Note) | None) => Class::Note,
            };
            self.incidents[at].is_reported = true;
            self.incidents[at].is_blamed = class == Class::Restart;
            found.push(Finding { class, text });
        }
        found.into_iter().reduce(|worst, next| if next.class > worst.class { next } else { worst })
    }

    /// The restart budget was refilled, so the counts against the GPUs are reset.
    pub fn refill(&mut self) {
        self.strikes.clear();
        self.unclear_strikes = 0;
    }

    /// All XIDs with their counts, for the verdict.
    pub fn history(&self) -> Vec<XidCount> {
        let count = |((gpu, xid), (count, _)): (&(GpuId, u64), &(u64, Duration))| XidCount {
            gpu: self.label(*gpu),
            xid: *xid,
            count: *count,
        };
        self.counts.iter().map(count).collect()
    }

    /// The class of an incident; `None` while it is too early to decide. `last` requires a decision from the present
    /// facts.
    fn class(&self, incident: &Incident, now: Duration, last: bool) -> Option<Class> {
        let over = now >= incident.at + DECIDE_WITHIN;
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
                // A 0 that was read too early does not clear the GPU.
                Rule::LinkByAction | Rule::Action if action == Some(0) && (incident.is_settled || over) => {
                    Some(Class::Note)
                }
                Rule::LinkByAction => decided.then_some(link),
                Rule::Action => decided.then_some(Class::Note),
            },
        };
        class.map(|class| self.used(incident.gpu, class))
    }

    /// Decides a double-bit error by the XIDs that accompany it.
    fn double_bit(&self, incident: &Incident) -> Option<Class> {
        let near = |other: &&Incident| other.gpu == incident.gpu && other.at.abs_diff(incident.at) < DECIDE_WITHIN;
        let accompanying: Vec<u64> = self.incidents.iter().filter(near).map(|other| other.xid).collect();
        match (accompanying.contains(&64) || accompanying.contains(&95), accompanying.contains(&94)) {
            (true, _) => Some(Class::Leave),
            (false, true) => Some(Class::Restart),
            (false, false) => None,
        }
    }

    fn used(&self, gpu: GpuId, class: Class) -> Class {
        if self.unused.contains(&gpu) { Class::Note } else { class }
    }

    fn describe(&self, incident: &Incident) -> String {
        format!("{}: {}", self.label(incident.gpu), self.incident_text(incident))
    }

    fn incident_text(&self, incident: &Incident) -> String {
        let (incident_text, _) = row(incident.xid);
        let action = incident.action.filter(|action| *action != 0);
        let action = action.map(|action| format!("; {}", recovery(action, self.several).1)).unwrap_or_default();
        format!("XID {}, {incident_text}{action}", incident.xid)
    }

    fn label(&self, gpu: GpuId) -> String {
        self.labels.get(&gpu).cloned().unwrap_or_else(|| format!("GPU {gpu}"))
    }
}

#[cfg(test)]
mod tests;
