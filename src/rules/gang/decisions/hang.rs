//! A hang of the gang: the activity of each replica's processes, and the suspicious replicas, which differ from most.
//!
//! Any of these makes a replica suspicious:
//! - It does not answer.
//! - One of its processes is stuck in the kernel (D) or stopped (T). A start of a process or a read of a disk is a short D, so
//!   a process that has run since the last sample is not stuck.
//! - Its step is below that of most replicas.
//! - It runs and most replicas sleep, or the reverse. A replica runs if it uses half a core or more.

use serde::{Deserialize, Serialize};

use super::super::message::one_line;
use crate::cluster::seat::Seat;
use crate::text::safe_text::named;

/// The maximum number of activities in one replica's report.
const MOST_ACTIVITIES: usize = 8;
/// The longest name of a kernel function, in bytes.
const LONGEST_PLACE: usize = 40;
/// The maximum number of replicas in the table.
pub const MOST_ROWS: usize = 32;
/// The maximum number of suspicious replicas in the clause.
const MOST_NAMED: usize = 3;
/// A replica runs from this percentage of a core on.
const RUNS: u32 = 50;

/// Processes of one replica with the same state and kernel function.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Activity {
    /// The kernel's letter for the state: R, S, D, T.
    pub state: char,
    /// The kernel function in which they wait.
    pub place: String,
    /// The number of processes.
    pub processes: u32,
}

/// The activity of the processes of one replica's trainer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TreeState {
    /// The step that the trainer reports.
    pub step: Option<u64>,
    /// The recent CPU use of its threads, as a percentage of a core; `None`: unknown.
    pub cpu: Option<u32>,
    /// The most frequent first.
    pub activities: Vec<Activity>,
}

impl TreeState {
    /// From the state and the kernel function of each process.
    pub fn of(step: Option<u64>, cpu: Option<u32>, processes: impl IntoIterator<Item = (char, String)>) -> TreeState {
        let mut activities: Vec<Activity> = Vec::new();
        for (state, place) in processes {
            match activities.iter_mut().find(|existing| existing.state == state && existing.place == place) {
                Some(existing) => existing.processes += 1,
                None => activities.push(Activity { state, place, processes: 1 }),
            }
        }
        // An activity that makes a replica suspicious is never cut off.
        activities.sort_by_key(|activity| (!is_trouble(activity.state), std::cmp::Reverse(activity.processes)));
        TreeState { step, cpu, activities }.bounded()
    }

    /// Limits the number and the length of the texts.
    pub fn bounded(mut self) -> TreeState {
        self.activities.truncate(MOST_ACTIVITIES);
        for activity in &mut self.activities {
            activity.place = one_line(&activity.place, LONGEST_PLACE);
            if activity.state.is_control() {
                activity.state = '?';
            }
        }
        self
    }

    fn runs(&self) -> bool {
        let has_running = || self.activities.iter().any(|activity| activity.state == 'R');
        self.cpu.map_or_else(has_running, |cpu| cpu >= RUNS)
    }

    fn shown(&self) -> String {
        let step = self.step.map_or("no step".to_owned(), |step| format!("step {step}"));
        let cpu = self.cpu.map_or(String::new(), |cpu| format!(", {cpu} % of a core"));
        let does = |activity: &Activity| {
            let Activity { state, place, processes } = activity;
            let place = if *state == 'R' { String::new() } else { format!(" in {place}") };
            format!("{processes} {state}{place}")
        };
        let activities: Vec<String> = self.activities.iter().map(does).collect();
        let activities = match activities.is_empty() {
            true => "its processes are not seen".to_owned(),
            false => format!("processes: {}", activities.join(", ")),
        };
        format!("{step}{cpu}, {activities}")
    }
}

/// The state of a process for [`TreeState::of`], from the kernel's letter and whether the process has run since the last
/// sample.
pub fn lasting_state(state: char, has_run: bool) -> char {
    if state == 'D' && has_run { 'S' } else { state }
}

fn is_trouble(state: char) -> bool {
    matches!(state, 'D' | 'T' | 't')
}

/// One replica of a gang that hangs.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its seat.
    pub seat: Seat,
    /// Its host, as it calls itself.
    pub host: String,
    /// Its activity; `None`: it has not answered.
    pub tree: Option<TreeState>,
}

/// The findings about a hang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The suspicious replica that comes first.
    pub most_suspicious: Option<Seat>,
    /// The suspicious replicas, as a clause.
    pub clause: String,
    /// A line for each replica, suspicious ones first, at most [`MOST_ROWS`], and a line with the number of omitted ones.
    pub lines: Vec<String>,
}

/// Why a replica is suspicious. The strongest reason comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Suspicion {
    Silent,
    Stuck,
    Stopped,
    Behind { usual: u64 },
    Runs,
    Sleeps,
}

impl Suspicion {
    fn clause(self) -> String {
        match self {
            Suspicion::Silent => "it has not answered".to_owned(),
            Suspicion::Stuck => "a process is stuck in the kernel".to_owned(),
            Suspicion::Stopped => "a process is stopped".to_owned(),
            Suspicion::Behind { usual } => format!("most are at step {usual}"),
            Suspicion::Runs => "most sleep".to_owned(),
            Suspicion::Sleeps => "most run".to_owned(),
        }
    }
}

/// Finds the suspicious replicas.
pub fn findings(rows: &[Row]) -> Findings {
    let trees = || rows.iter().filter_map(|row| row.tree.as_ref());
    let mut steps: Vec<u64> = trees().filter_map(|tree| tree.step).collect();
    steps.sort_unstable();
    let usual = steps.get(steps.len() / 2).copied();
    let running = trees().filter(|tree| tree.runs()).count();
    let sleeping = trees().count() - running;
    let suspicions = |row: &Row| {
        let Some(tree) = &row.tree else { return vec![Suspicion::Silent] };
        let does = |letters: &[char]| tree.activities.iter().any(|activity| letters.contains(&activity.state));
        let behind = usual.filter(|usual| tree.step.is_some_and(|step| step < *usual));
        [
            does(&['D']).then_some(Suspicion::Stuck),
            does(&['T', 't']).then_some(Suspicion::Stopped),
            behind.map(|usual| Suspicion::Behind { usual }),
            (tree.runs() && sleeping > running).then_some(Suspicion::Runs),
            (!tree.runs() && running > sleeping).then_some(Suspicion::Sleeps),
        ]
        .into_iter()
        .flatten()
        .collect()
    };
    let mut sorted: Vec<(&Row, Vec<Suspicion>)> = rows.iter().map(|row| (row, suspicions(row))).collect();
    sorted.sort_by_key(|(row, suspicions)| {
        let step = row.tree.as_ref().and_then(|tree| tree.step);
        (suspicions.is_empty(), suspicions.first().copied(), step, row.seat)
    });
    let suspicious = || sorted.iter().take_while(|(_, suspicions)| !suspicions.is_empty());
    let why =
        |suspicions: &[Suspicion]| suspicions.iter().map(|suspicion| suspicion.clause()).collect::<Vec<_>>().join(", ");
    let name = |(row, suspicions): &(&Row, Vec<Suspicion>)| match row.tree.as_ref().and_then(|tree| tree.step) {
        Some(step) => format!("{} at step {step} ({})", row.seat, why(suspicions)),
        None => format!("{} ({})", row.seat, why(suspicions)),
    };
    let clause = match named(suspicious().map(name), MOST_NAMED) {
        Some(named) => format!("suspicious: {named}"),
        None => "no replica is suspicious".to_owned(),
    };
    let line = |(row, suspicions): &(&Row, Vec<Suspicion>)| {
        let does = row.tree.as_ref().map_or(String::new(), |tree| format!(": {}", tree.shown()));
        let why = if suspicions.is_empty() { String::new() } else { format!("; suspicious: {}", why(suspicions)) };
        format!("{} on {}{does}{why}", row.seat, row.host)
    };
    let mut lines: Vec<String> = sorted.iter().take(MOST_ROWS).map(line).collect();
    if sorted.len() > MOST_ROWS {
        lines.push(format!(
            "{} more are not shown, {} of them suspicious",
            sorted.len() - MOST_ROWS,
            suspicious().skip(MOST_ROWS).count()
        ));
    }
    Findings { most_suspicious: suspicious().next().map(|(row, _)| row.seat), clause, lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::Role;

    fn row(index: u32, step: u64, cpu: u32, processes: &[(char, &str)]) -> Row {
        let processes = processes.iter().map(|(state, place)| (*state, (*place).to_owned()));
        let tree = Some(TreeState::of(Some(step), Some(cpu), processes));
        Row { seat: Seat::new(Role::Worker, index), host: format!("host-{index}"), tree }
    }

    const WAITS: &[(char, &str)] = &[('S', "futex_wait_queue"), ('S', "futex_wait_queue"), ('S', "do_poll")];

    fn clause(rows: &[Row]) -> String {
        findings(rows).clause
    }

    #[test]
    fn replicas_with_the_same_activity_are_not_suspicious_and_each_has_a_line() {
        let found = findings(&[row(0, 7, 3, WAITS), row(1, 7, 4, WAITS)]);
        assert_eq!((found.most_suspicious, found.clause.as_str()), (None, "no replica is suspicious"));
        assert_eq!(
            found.lines[1],
            "worker/1 on host-1: step 7, 4 % of a core, processes: 2 S in futex_wait_queue, 1 S in do_poll"
        );
    }

    #[test]
    fn a_replica_behind_the_step_of_most_is_suspicious_and_one_ahead_is_not() {
        let behind = [row(0, 8, 0, WAITS), row(1, 7, 0, WAITS), row(2, 8, 0, WAITS), row(3, 9, 0, WAITS)];
        assert_eq!(clause(&behind), "suspicious: worker/1 at step 7 (most are at step 8)");
        assert_eq!(
            clause(&behind[..2]),
            "suspicious: worker/1 at step 7 (most are at step 8)",
            "of two the lower is behind"
        );
    }

    #[test]
    fn a_replica_that_runs_while_most_sleep_or_sleeps_while_most_run_is_suspicious() {
        let one = |cpu: u32, others: u32| {
            clause(&[row(0, 7, others, WAITS), row(1, 7, cpu, WAITS), row(2, 7, others, WAITS)])
        };
        assert_eq!(one(90, 1), "suspicious: worker/1 at step 7 (most sleep)");
        assert_eq!(one(2, 100), "suspicious: worker/1 at step 7 (most run)");
        assert_eq!(
            clause(&[row(0, 7, 0, WAITS), row(1, 7, 99, WAITS)]),
            "no replica is suspicious",
            "two replicas have no majority"
        );
    }

    #[test]
    fn a_process_in_an_uninterruptible_sleep_is_stuck_only_if_it_has_not_run_since_the_last_sample() {
        assert_eq!(lasting_state('D', false), 'D');
        assert_eq!(lasting_state('D', true), 'S');
        assert_eq!((lasting_state('R', true), lasting_state('T', true)), ('R', 'T'));
    }

    #[test]
    fn the_order_is_no_answer_stuck_in_the_kernel_stopped_behind() {
        let rows = [
            row(0, 7, 0, WAITS),
            row(1, 5, 0, WAITS),
            row(2, 7, 0, &[('T', "do_signal_stop")]),
            row(3, 7, 0, &[('S', "do_poll"), ('D', "nfs_wait")]),
            Row { seat: Seat::new(Role::Worker, 4), host: "host-4".to_owned(), tree: None },
            row(5, 7, 0, WAITS),
        ];
        let found = findings(&rows);
        assert_eq!(found.most_suspicious, Some(Seat::new(Role::Worker, 4)));
        let heads: Vec<&str> = found.lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(heads, ["worker/4", "worker/3", "worker/2", "worker/1", "worker/0", "worker/5"]);
        assert_eq!(found.lines[0], "worker/4 on host-4; suspicious: it has not answered");
        assert!(found.clause.ends_with(", ..."), "three are listed: {}", found.clause);
    }

    #[test]
    fn the_table_of_ten_thousand_replicas_is_short() {
        let mut rows: Vec<Row> = (0..10_000).map(|index| row(index, 7, 0, WAITS)).collect();
        rows[9_000] = row(9_000, 6, 0, WAITS);
        let found = findings(&rows);
        assert_eq!(found.lines.len(), MOST_ROWS + 1);
        assert!(found.lines[0].starts_with("worker/9000 "), "{}", found.lines[0]);
        assert_eq!(found.lines[MOST_ROWS], "9968 more are not shown, 0 of them suspicious");
    }

    #[test]
    fn a_peers_report_is_limited_and_keeps_its_stuck_process() {
        let many = (0..100).map(|number| ('S', format!("place_{number}"))).chain([('D', "x\n".repeat(100))]);
        let tree = TreeState::of(None, None, many);
        assert_eq!(tree.activities.len(), MOST_ACTIVITIES);
        assert_eq!((tree.activities[0].state, tree.activities[0].place.len()), ('D', LONGEST_PLACE));
        assert!(!tree.shown().contains('\n'), "{}", tree.shown());
    }
}
