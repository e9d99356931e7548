//! The replicas of a job agree on a checkpoint, restore exactly that, and continue together.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use crate::support::gang::{Cluster, TRAINS, all_train, finish, trains};
use crate::support::{Running, Trainit, eventually, send};

const GOAL: u64 = 40;

/// A replica of a collective: all ranks wait for each other at every step. It adds up its steps, saves the sum after every
/// step, and continues from the newest checkpoint that it finds. `SAVES=no` saves nothing; `PAUSE` is the time between two
/// steps in seconds, `LATE` the time before it looks for a checkpoint.
const TRAINER: &str = r#"
dir=$TRAINIT_CHECKPOINT_DIR; step=0; total=0
sleep ${LATE-0}
newest=$(ls "$dir" 2>/dev/null | sed -n 's/^step-//p' | sort -n | tail -1)
if [ -n "$newest" ]; then step=$newest; total=$(cat "$dir/step-$step/total"); fi
echo generation=$TRAINIT_GENERATION pid=$$ from=$step resumes=${TRAINIT_RESUME_STEP-none} .
while [ $step -lt $GOAL ]; do
  step=$((step + 1)); total=$((total + step))
  : > "$MEETS/$TRAINIT_GENERATION-$step-$RANK"
  for rank in $RANKS; do
    while [ ! -e "$MEETS/$TRAINIT_GENERATION-$step-$rank" ]; do sleep 0.02; done
  done
  if [ "$SAVES" != no ]; then
    mkdir "$dir/tmp-$step"; echo $total > "$dir/tmp-$step/total"; mv "$dir/tmp-$step" "$dir/step-$step"
  fi
  echo step=$step .
  sleep ${PAUSE-0.03}
done
echo total=$total .
"#;

/// A job whose replicas train with [`TRAINER`].
struct Job {
    cluster: Cluster,
    root: tempfile::TempDir,
    count: usize,
    /// The flags of all replicas.
    env: Vec<(&'static str, String)>,
}

impl Job {
    fn of(count: usize) -> Job {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("meets")).unwrap();
        let ranks: Vec<String> = (0..count).map(|rank| rank.to_string()).collect();
        let meets = root.path().join("meets").to_string_lossy().into_owned();
        let env = vec![
            ("GOAL", GOAL.to_string()),
            ("MEETS", meets),
            ("RANKS", ranks.join(" ")),
            ("TRAINIT_SETTLE", "10ms".to_owned()),
            ("TRAINIT_COMMIT_INTERVAL", "20ms".to_owned()),
        ];
        Job { cluster: Cluster::of_workers(count), root, count, env }
    }

    fn with(mut self, name: &'static str, value: &str) -> Job {
        self.env.push((name, value.to_owned()));
        self
    }

    fn with_store(self) -> Job {
        let store = format!("file://{}", self.root.path().join("store").display());
        self.with("TRAINIT_CHECKPOINT_STORE", &store)
    }

    fn disk(&self, rank: usize) -> PathBuf {
        self.root.path().join(format!("disk-{rank}"))
    }

    /// A replica with this checkpoint directory that is not started yet.
    fn replica_in(&self, rank: usize, disk: &Path) -> Trainit {
        let replica = self.cluster.replica("worker", rank, TRAINER).env("RANK", rank.to_string());
        let replica = replica.env("TRAINIT_CHECKPOINT_DIR", disk);
        self.env.iter().fold(replica, |replica, (name, value)| replica.env(name, value))
    }

    fn start(&self, rank: usize) -> Running {
        self.replica_in(rank, &self.disk(rank)).start()
    }

    /// The steps that are committed under this prefix of the store.
    fn committed(&self, prefix: &str) -> Vec<u64> {
        let commits = fs::read_dir(self.root.path().join("store").join(prefix).join(".trainit/commits"));
        let names = commits.into_iter().flatten().flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter_map(|name| name.rsplit('-').nth(1)?.parse().ok()).collect()
    }

    fn start_all(&self) -> Vec<Running> {
        (0..self.count).map(|rank| self.start(rank)).collect()
    }
}

fn save(disk: &Path, step: u64) {
    fs::create_dir_all(disk.join(format!("step-{step}"))).unwrap();
    fs::write(disk.join(format!("step-{step}/total")), (step * (step + 1) / 2).to_string()).unwrap();
}

/// The step from which all replicas continue in this generation.
fn continues_from<'a>(replicas: impl IntoIterator<Item = &'a Running>, generation: u64) -> u64 {
    let from = |replica: &Running| -> u64 {
        let line = replica.after_line(&format!("generation={generation} "));
        let step: u64 = line.split("from=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
        let resumes = if step == 0 { "none".to_owned() } else { step.to_string() };
        assert!(line.contains(&format!("resumes={resumes} ")), "{line}");
        step
    };
    let steps: Vec<u64> = replicas.into_iter().map(from).collect();
    assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    steps[0]
}

/// Waits until all finish with the sum of a run without faults.
fn all_finish(replicas: Vec<Running>) {
    for replica in finish(replicas) {
        let done = replica.expect_code(0);
        assert!(done.out().contains(&format!("total={} .", GOAL * (GOAL + 1) / 2)), "{}", done.out());
    }
}

#[test]
fn after_a_kill_all_continue_from_the_newest_common_step_and_finish_like_a_run_without_faults() {
    let job = Job::of(3);
    let replicas = job.start_all();
    let second = trains(&replicas[1], 1);
    replicas[1].after_line("step=7 ");
    send(second, libc::SIGKILL);
    assert!(continues_from(&replicas, 2) >= 6);
    all_finish(replicas);
}

#[test]
fn a_replica_with_an_empty_disk_restores_the_common_step_from_the_store() {
    let job = Job::of(2).with_store();
    let mut replicas = job.start_all();
    trains(&replicas[1], 1);
    replicas[1].after_line("step=7 ");
    send(replicas[1].pid(), libc::SIGKILL);
    drop(replicas.remove(1));
    fs::remove_dir_all(job.disk(1)).unwrap();
    replicas.push(job.start(1));
    assert!(continues_from(&replicas, 2) >= 1);
    all_finish(replicas);
}

#[test]
fn if_only_the_chief_saves_the_others_restore_its_commit() {
    let job = Job::of(2).with_store();
    let chief = job.start(0);
    let worker = job.replica_in(1, &job.disk(1)).env("SAVES", "no").start();
    let replicas = vec![chief, worker];
    trains(&replicas[1], 1);
    replicas[0].after_line("step=7 ");
    send(trains(&replicas[1], 1), libc::SIGKILL);
    assert!(continues_from(&replicas, 2) >= 1);
    assert!(!job.root.path().join("store/node-00001/.trainit/commits").exists(), "node 0 alone has committed");
    all_finish(replicas);
}

#[test]
fn in_a_shared_directory_the_chief_restores_the_common_checkpoint() {
    let job = Job::of(2).with_store();
    let disk = job.disk(0);
    // The worker looks into the directory when the chief is already training.
    let worker = job.replica_in(1, &disk).env("SAVES", "no").env("LATE", "0.5").start();
    let replicas = vec![job.start(0), worker];
    trains(&replicas[1], 1);
    replicas[0].after_line("step=7 ");
    send(trains(&replicas[1], 1), libc::SIGKILL);
    assert!(continues_from(&replicas, 2) >= 1);
    all_finish(replicas);
}

#[test]
fn newer_local_checkpoints_are_moved_aside() {
    let job = Job::of(2);
    (1..=5).for_each(|step| save(&job.disk(0), step));
    (1..=3).for_each(|step| save(&job.disk(1), step));
    let replicas = job.start_all();
    assert_eq!(continues_from(&replicas, 1), 3);
    let aside = job.disk(0).join(".trainit/aside/gang-local-1");
    for step in [4, 5] {
        assert!(aside.join(format!("step-{step}/total")).exists(), "step {step} is kept aside");
    }
    all_finish(replicas);
}

#[test]
fn without_a_common_step_all_exit_with_204_and_a_table_and_from_scratch_starts_from_the_beginning() {
    let job = Job::of(2);
    save(&job.disk(0), 10);
    save(&job.disk(1), 20);
    for replica in finish(job.start_all()) {
        let verdict = replica.expect_code(204).verdict();
        let detail = verdict["detail"].as_str().unwrap();
        assert!(detail.contains("worker/0 has 10, worker/1 has 20"), "{detail}");
    }
    assert!(job.disk(0).join("step-10").exists(), "nothing was changed");
    let job = job.with("TRAINIT_GANG_FROM_SCRATCH", "true");
    let replicas = job.start_all();
    assert_eq!(continues_from(&replicas, 1), 0);
    assert!(job.disk(1).join(".trainit/aside/gang-local-1/step-20").exists());
    all_finish(replicas);
}

#[test]
fn the_common_step_stays_in_the_store_and_older_commits_are_deleted() {
    let job = Job::of(2).with_store().with("TRAINIT_KEEP_LAST", "1").with("GOAL", "100000");
    // Longer than a commit, so that both commit the same steps.
    let job = job.with("PAUSE", "2");
    let replicas = job.start_all();
    eventually("early commits are deleted once later ones are common", || {
        let (first, second) = (job.committed("."), job.committed("node-00001"));
        let oldest = first.iter().chain(&second).min().copied();
        oldest.is_some_and(|oldest| oldest > 2)
    });
    send(trains(&replicas[1], 1), libc::SIGKILL);
    assert!(continues_from(&replicas, 2) > 2, "a common step was kept");
}

#[test]
fn a_manual_prune_keeps_the_commits_that_the_gang_needs() {
    let job = Job::of(2).with_store().with("TRAINIT_GANG_CHECKPOINTS", "each").with("GOAL", "100000");
    // Longer than a commit, so that each step is committed.
    let job = job.with("PAUSE", "1");
    let replicas = vec![job.start(0), job.replica_in(1, &job.disk(1)).env("SAVES", "no").start()];
    eventually("node 0 has commits, none of them common", || job.committed(".").len() > 2);
    replicas.iter().for_each(|replica| replica.signal(libc::SIGTERM));
    finish(replicas).into_iter().for_each(|replica| drop(replica.expect_code(143)));
    let store = format!("file://{}", job.root.path().join("store").display());
    let prune = ["checkpoint", "prune", "--keep-last", "1", "--checkpoint-store", &store];
    let kept = job.committed(".").len();
    let text = Trainit::new(prune).output().expect_code(0).out();
    assert!(job.committed(".").len() >= kept.min(16), "{text}");
}

#[test]
fn a_job_that_left_together_starts_again_without_waiting_for_its_old_gang() {
    let job = Job::of(2).with_store().with("GOAL", "100000").with("TRAINIT_GANG_ON_NOTICE", "leave");
    let job = job.with("TRAINIT_GANG_TIMEOUT", "10m");
    let replicas = job.start_all();
    replicas.iter().for_each(|replica| drop(replica.after_line("step=3 ")));
    replicas[1].signal(libc::SIGTERM);
    finish(replicas).into_iter().for_each(|replica| drop(replica.expect_code(143)));
    assert!(continues_from(&job.start_all(), 2) >= 3);
}

#[test]
fn silent_callers_do_not_keep_the_members_out() {
    let cluster = Cluster::of_workers(2);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    leader.after_log("leads the gang");
    let silent: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(("127.0.0.1", cluster.port)).unwrap()).collect();
    let member = cluster.replica("worker", 1, TRAINS).start();
    all_train([&leader, &member], 1);
    drop(silent);
}
