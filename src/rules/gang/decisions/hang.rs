//! A hang of the gang: what the processes of each replica do, and which replicas are odd, because they differ from most.
//!
//! A replica is odd if it does not answer, if one of its processes is stuck in the kernel (D) or stopped (T), if its step is
//! below that of most, or if it runs while most sleep, or sleeps while most run. It runs if it uses half a core or more.

use serde::{Deserialize, Serialize};

use super::super::message::one_line;
use super::super::seat::Seat;
use crate::text::safe_text::named;

/// Kinds of activity that one replica reports at most.
const MOST_ACTIVITIES: usize = 8;
/// Longest name of a kernel function, bytes.
const LONGEST_PLACE: usize = 40;
/// Replicas in the table at most.
pub const MOST_ROWS: usize = 32;
/// Odd replicas in the sentence at most.
const MOST_NAMED: usize = 3;
/// Per cent of a core from which on a replica runs.
const RUNS: u32 = 50;

/// So many processes of one replica do the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Activity {
    /// The kernel's letter of the state: R, S, D, T.
    pub state: char,
    /// The kernel function in which they wait.
    pub place: String,
    /// How many.
    pub processes: u32,
}

/// What the processes of one replica's trainer do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TreeState {
    /// The step that the trainer names.
    pub step: Option<u64>,
    /// Per cent of a core that its threads used lately; `None`: this is not known.
    pub cpu: Option<u32>,
    /// The most frequent first.
    pub activities: Vec<Activity>,
}

impl TreeState {
    /// Of the state and the place of each process.
    pub fn of(step: Option<u64>, cpu: Option<u32>, processes: impl IntoIterator<Item = (char, String)>) -> TreeState {
        let mut activities: Vec<Activity> = Vec::new();
        for (state, place) in processes {
            match activities.iter_mut().find(|known| known.state == state && known.place == place) {
                Some(known) => known.processes += 1,
                None => activities.push(Activity { state, place, processes: 1 }),
            }
        }
        // What makes a replica odd is never left out.
        activities.sort_by_key(|activity| (!is_trouble(activity.state), std::cmp::Reverse(activity.processes)));
        TreeState { step, cpu, activities }.bounded()
    }

    /// The same with few and short texts.
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
    /// What its processes do; `None`: it has not answered.
    pub tree: Option<TreeState>,
}

/// What is said of a hang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The odd replica that is named first.
    pub oddest: Option<Seat>,
    /// The odd replicas, as a clause.
    pub clause: String,
    /// A line for each replica, the odd ones first, [`MOST_ROWS`] of them, and one for those that are left out.
    pub lines: Vec<String>,
}

/// Why a replica is odd, in the order in which the reasons count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Oddity {
    Silent,
    Stuck,
    Stopped,
    Behind { usual: u64 },
    Runs,
    Sleeps,
}

impl Oddity {
    fn clause(self) -> String {
        match self {
            Oddity::Silent => "it has not answered".to_owned(),
            Oddity::Stuck => "a process is stuck in the kernel".to_owned(),
            Oddity::Stopped => "a process is stopped".to_owned(),
            Oddity::Behind { usual } => format!("most are at step {usual}"),
            Oddity::Runs => "most sleep".to_owned(),
            Oddity::Sleeps => "most run".to_owned(),
        }
    }
}

/// Finds the odd replicas.
pub fn findings(rows: &[Row]) -> Findings {
    let trees = || rows.iter().filter_map(|row| row.tree.as_ref());
    let mut steps: Vec<u64> = trees().filter_map(|tree| tree.step).collect();
    steps.sort_unstable();
    let usual = steps.get(steps.len() / 2).copied();
    let running = trees().filter(|tree| tree.runs()).count();
    let sleeping = trees().count() - running;
    let oddities = |row: &Row| {
        let Some(tree) = &row.tree else { return vec![Oddity::Silent] };
        let does = |letters: &[char]| tree.activities.iter().any(|activity| letters.contains(&activity.state));
        let behind = usual.filter(|usual| tree.step.is_some_and(|step| step < *usual));
        [
            does(&['D']).then_some(Oddity::Stuck),
            does(&['T', 't']).then_some(Oddity::Stopped),
            behind.map(|usual| Oddity::Behind { usual }),
            (tree.runs() && sleeping > running).then_some(Oddity::Runs),
            (!tree.runs() && running > sleeping).then_some(Oddity::Sleeps),
        ]
        .into_iter()
        .flatten()
        .collect()
    };
    let mut judged: Vec<(&Row, Vec<Oddity>)> = rows.iter().map(|row| (row, oddities(row))).collect();
    judged.sort_by_key(|(row, oddities)| {
        let step = row.tree.as_ref().and_then(|tree| tree.step);
        (oddities.is_empty(), oddities.first().copied(), step, row.seat)
    });
    let odd = || judged.iter().take_while(|(_, oddities)| !oddities.is_empty());
    let why = |oddities: &[Oddity]| oddities.iter().map(|oddity| oddity.clause()).collect::<Vec<_>>().join(", ");
    let name = |(row, oddities): &(&Row, Vec<Oddity>)| match row.tree.as_ref().and_then(|tree| tree.step) {
        Some(step) => format!("{} at step {step} ({})", row.seat, why(oddities)),
        None => format!("{} ({})", row.seat, why(oddities)),
    };
    let clause = match named(odd().map(name), MOST_NAMED) {
        Some(named) => format!("odd: {named}"),
        None => "no replica is odd".to_owned(),
    };
    let line = |(row, oddities): &(&Row, Vec<Oddity>)| {
        let does = row.tree.as_ref().map_or(String::new(), |tree| format!(": {}", tree.shown()));
        let odd = if oddities.is_empty() { String::new() } else { format!("; odd: {}", why(oddities)) };
        format!("{} on {}{does}{odd}", row.seat, row.host)
    };
    let mut lines: Vec<String> = judged.iter().take(MOST_ROWS).map(line).collect();
    if judged.len() > MOST_ROWS {
        lines.push(format!(
            "{} more are not shown, {} of them odd",
            judged.len() - MOST_ROWS,
            odd().skip(MOST_ROWS).count()
        ));
    }
    Findings { oddest: odd().next().map(|(row, _)| row.seat), clause, lines }
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
    fn replicas_that_do_the_same_are_not_odd_and_each_has_a_line() {
        let found = findings(&[row(0, 7, 3, WAITS), row(1, 7, 4, WAITS)]);
        assert_eq!((found.oddest, found.clause.as_str()), (None, "no replica is odd"));
        assert_eq!(
            found.lines[1],
            "worker/1 on host-1: step 7, 4 % of a core, processes: 2 S in futex_wait_queue, 1 S in do_poll"
        );
    }

    #[test]
    fn the_replica_whose_step_is_behind_is_odd_and_one_that_is_ahead_is_not() {
        let behind = [row(0, 8, 0, WAITS), row(1, 7, 0, WAITS), row(2, 8, 0, WAITS), row(3, 9, 0, WAITS)];
        assert_eq!(clause(&behind), "odd: worker/1 at step 7 (most are at step 8)");
        assert_eq!(clause(&behind[..2]), "odd: worker/1 at step 7 (most are at step 8)", "of two the lower is behind");
    }

    #[test]
    fn the_replica_that_runs_while_most_sleep_is_odd_and_so_is_the_one_that_sleeps_while_most_spin() {
        let one = |odd: u32, others: u32| {
            clause(&[row(0, 7, others, WAITS), row(1, 7, odd, WAITS), row(2, 7, others, WAITS)])
        };
        assert_eq!(one(90, 1), "odd: worker/1 at step 7 (most sleep)");
        assert_eq!(one(2, 100), "odd: worker/1 at step 7 (most run)");
        assert_eq!(clause(&[row(0, 7, 0, WAITS), row(1, 7, 99, WAITS)]), "no replica is odd", "of two none is most");
    }

    #[test]
    fn silence_comes_before_the_kernel_that_before_a_stopped_process_and_that_before_a_step() {
        let rows = [
            row(0, 7, 0, WAITS),
            row(1, 5, 0, WAITS),
            row(2, 7, 0, &[('T', "do_signal_stop")]),
            row(3, 7, 0, &[('S', "do_poll"), ('D', "nfs_wait")]),
            Row { seat: Seat::new(Role::Worker, 4), host: "host-4".to_owned(), tree: None },
            row(5, 7, 0, WAITS),
        ];
        let found = findings(&rows);
        assert_eq!(found.oddest, Some(Seat::new(Role::Worker, 4)));
        let heads: Vec<&str> = found.lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(heads, ["worker/4", "worker/3", "worker/2", "worker/1", "worker/0", "worker/5"]);
        assert_eq!(found.lines[0], "worker/4 on host-4; odd: it has not answered");
        assert!(found.clause.ends_with(", ..."), "three are named: {}", found.clause);
    }

    #[test]
    fn the_table_of_ten_thousand_replicas_is_short() {
        let mut rows: Vec<Row> = (0..10_000).map(|index| row(index, 7, 0, WAITS)).collect();
        rows[9_000] = row(9_000, 6, 0, WAITS);
        let found = findings(&rows);
        assert_eq!(found.lines.len(), MOST_ROWS + 1);
        assert!(found.lines[0].starts_with("worker/9000 "), "{}", found.lines[0]);
        assert_eq!(found.lines[MOST_ROWS], "9968 more are not shown, 0 of them odd");
    }

    #[test]
    fn what_a_peer_reports_is_cut_and_a_stuck_process_is_never_cut_off() {
        let many = (0..100).map(|number| ('S', format!("place_{number}"))).chain([('D', "x\n".repeat(100))]);
        let tree = TreeState::of(None, None, many);
        assert_eq!(tree.activities.len(), MOST_ACTIVITIES);
        assert_eq!((tree.activities[0].state, tree.activities[0].place.len()), ('D', LONGEST_PLACE));
        assert!(!tree.shown().contains('\n'), "{}", tree.shown());
    }
}
