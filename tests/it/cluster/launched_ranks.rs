//! One trainit for each process, as `srun`, `mpirun` and `torchrun --no-python` start them: the first process of a node
//! manages everything that exists once for each node, and the others wait for its restore.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::checkpoints::{Place, save_in};
use crate::support::{Finished, Running, Trainit};

type Variables = Vec<(&'static str, String)>;

/// The variables with which each launcher describes one of several processes of a single node.
const LAUNCHERS: [fn(u32, u32) -> Variables; 5] = [slurm, open_mpi, mpich, torchrun, deepspeed_on_vertex];

fn slurm(rank: u32, world: u32) -> Variables {
    let (rank, world) = (rank.to_string(), world.to_string());
    vec![
        ("SLURM_JOB_ID", "77".into()),
        ("SLURM_STEP_ID", "0".into()),
        ("SLURM_PROCID", rank.clone()),
        ("SLURM_LOCALID", rank),
        ("SLURM_NTASKS", world),
        ("SLURM_NNODES", "1".into()),
        ("SLURM_NODEID", "0".into()),
        ("SLURM_STEP_NODELIST", "n1".into()),
    ]
}

fn four(names: [&'static str; 4], rank: u32, world: u32) -> Variables {
    let values = [rank, world, rank, world];
    names.into_iter().zip(values).map(|(name, value)| (name, value.to_string())).collect()
}

fn open_mpi(rank: u32, world: u32) -> Variables {
    let names =
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
    four(names, rank, world)
}

fn mpich(rank: u32, world: u32) -> Variables {
    four(["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"], rank, world)
}

fn torchrun(rank: u32, world: u32) -> Variables {
    let mut variables = four(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], rank, world);
    variables.extend([("TORCHELASTIC_RUN_ID", "x"), ("GROUP_RANK", "0")].map(|(name, value)| (name, value.to_owned())));
    variables.extend([("GROUP_WORLD_SIZE", "1".to_owned()), ("MASTER_ADDR", "127.0.0.1".to_owned())]);
    variables
}

fn deepspeed_on_vertex(rank: u32, world: u32) -> Variables {
    let spec = r#"{"cluster": {"workerpool0": ["a:2222"]}, "task": {"type": "workerpool0", "index": 0}}"#;
    let mut variables = four(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"], rank, world);
    variables
        .extend([("CLUSTER_SPEC", spec), ("MASTER_ADDR", "127.0.0.1")].map(|(name, value)| (name, value.to_owned())));
    variables
}

fn with(trainit: Trainit, variables: Variables) -> Trainit {
    variables.into_iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value))
}

/// A process of the job, with the checkpoint directory of this name.
fn rank(place: &Place, local: &str, variables: Variables, script: &str) -> Trainit {
    let (local, model) = (place.path(local), place.path("model"));
    let models = format!("file://{}", place.path("models").display());
    let run = Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()])
        .args(["--settle", "0s", "--commit-interval", "10ms", "--model-store", &models])
        .args(["--model-dir", model.to_str().unwrap(), "--", "sh", "-c", script, model.to_str().unwrap()]);
    with(run, variables)
}

const MODEL: &str = "mkdir -p \"$0\"; echo graph > \"$0/saved_model.pb\"";

/// Prints where it resumes, waits for a signal file, and leaves a model.
fn script(place: &Place, rank: u32) -> String {
    let go = place.path(&format!("go-{rank}"));
    if !go.exists() {
        nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    format!("echo goes on at $TRAINIT_RESUME_STEP from $TRAINIT_RESUME_FROM; read _ < {}; {MODEL}", go.display())
}

fn let_go_on(place: &Place, rank: u32) {
    fs::write(place.path(&format!("go-{rank}")), "\n").unwrap();
}

fn attempts(place: &Place) -> usize {
    fs::read_dir(place.store().join(".trainit/attempts")).unwrap().count()
}

/// Starts all processes of a node's job, the first process last, so that the others wait for it.
fn started(place: &Place, of: fn(u32, u32) -> Variables, world: u32) -> Vec<Running> {
    let start = |n| rank(place, "checkpoints", of(n, world), &script(place, n)).start();
    let others: Vec<Running> = (1..world).map(start).collect();
    for (other, n) in others.iter().zip(1..) {
        other.after_log(&format!("this one, of local rank {n}, neither restores nor commits"));
    }
    std::iter::once(start(0)).chain(others).collect()
}

#[track_caller]
fn all_go_on_at(place: &Place, ranks: &[Running], step: u64) {
    let from = place.local().join(format!("step-{step}"));
    for rank in ranks {
        assert_eq!(rank.after_line("goes on"), format!("goes on at {step} from {}\n", from.display()));
    }
}

#[track_caller]
fn finished(place: &Place, ranks: Vec<Running>) -> Vec<Finished> {
    (0..ranks.len()).for_each(|n| let_go_on(place, n as u32));
    ranks.into_iter().map(|rank| rank.finish().expect_code(0)).collect()
}

#[test]
fn the_processes_of_a_node_share_one_store_and_resume_at_one_step_with_every_launcher() {
    for (of, world) in LAUNCHERS.into_iter().zip([3, 2, 3, 2, 3]) {
        let place = Place::new();
        save_in(&place.path("elsewhere"), 30);
        place.checkpoint_in("push", &place.path("elsewhere")).output().expect_code(0);
        let ranks = started(&place, of, world);
        all_go_on_at(&place, &ranks, 30);
        place.save(40);
        ranks[0].after_log("checkpoint committed");
        let done = finished(&place, ranks);
        assert_eq!(place.steps(), [40, 30]);
        assert_eq!((place.commits().len(), attempts(&place)), (2, 2), "the push by hand, and one run");
        let copied = |done: &&Finished| done.err().contains("the model is in");
        assert_eq!(done.iter().filter(copied).count(), 1);
        assert!(copied(&&done[0]) && place.path("models/saved_model.pb").exists());
        assert!(!done[0].err().contains("neither restores nor commits"), "{}", done[0].err());
    }
}

#[test]
fn after_a_kill_every_process_resumes_at_the_committed_step_on_an_empty_machine() {
    let place = Place::new();
    let ranks = started(&place, slurm, 3);
    ranks.iter().for_each(|rank| assert_eq!(rank.after_line("goes on"), "goes on at from\n"));
    place.save(7);
    ranks[0].after_log("checkpoint committed");
    drop(ranks);
    fs::remove_dir_all(place.local()).unwrap();
    let ranks = started(&place, slurm, 3);
    all_go_on_at(&place, &ranks, 7);
    finished(&place, ranks);
    assert_eq!((place.steps(), attempts(&place)), (vec![7], 2));
}

#[test]
fn files_that_the_first_process_ignores_are_ignored_by_the_others() {
    let place = Place::new();
    save_in(&place.path("elsewhere"), 30);
    place.checkpoint_in("push", &place.path("elsewhere")).output().expect_code(0);
    // Nothing shows that this file belongs to the job.
    place.save(99);
    let ranks = started(&place, open_mpi, 2);
    all_go_on_at(&place, &ranks, 30);
    finished(&place, ranks);
}

#[test]
fn a_process_that_waits_for_the_first_ones_restore_exits_at_once_on_a_stop() {
    let place = Place::new();
    let waits = rank(&place, "checkpoints", slurm(1, 2), "echo started").start();
    waits.after_log("neither restores nor commits");
    let done = waits.stop().expect_code(143);
    assert_eq!(done.out(), "");
}

#[test]
fn while_an_older_run_exists_a_process_waits_for_the_first_process_of_its_own_launch() {
    let (place, again) = (Place::new(), ("SLURM_RESTART_COUNT", "1".to_owned()));
    let of = |n| [slurm(n, 2), vec![again.clone()]].concat();
    let older = rank(&place, "checkpoints", slurm(0, 2), &script(&place, 7)).start();
    assert_eq!(older.after_line("goes on"), "goes on at from\n");
    place.save(40);
    older.after_log("checkpoint committed");
    let other = rank(&place, "checkpoints", of(1), &script(&place, 1)).start();
    other.after_log("neither restores nor commits");
    let first = rank(&place, "checkpoints", of(0), &script(&place, 0)).start();
    let ranks = vec![first, other];
    all_go_on_at(&place, &ranks, 40);
    finished(&place, ranks);
    drop(older);
}

#[test]
fn a_process_with_a_separate_directory_and_store_manages_them_itself() {
    let (first, other) = (Place::new(), Place::new());
    let ranks = [&first, &other].into_iter().zip([0, 1]);
    let ranks: Vec<Running> =
        ranks.map(|(place, n)| rank(place, "checkpoints", slurm(n, 2), &script(place, n)).start()).collect();
    ranks[1].after_log("so this one keeps them itself");
    for (running, place) in ranks.iter().zip([&first, &other]) {
        running.after_line("goes on");
        save_in(&place.local(), 7);
        running.after_log("checkpoint committed");
    }
    for (running, (place, n)) in ranks.into_iter().zip([(&first, 0), (&other, 1)]) {
        let_go_on(place, n);
        running.finish().expect_code(0);
        assert_eq!(place.steps(), [7]);
    }
}

#[test]
fn the_first_process_is_found_in_a_directory_that_it_has_just_created() {
    let place = Place::new();
    std::fs::remove_dir(place.local()).unwrap();
    let first = rank(&place, "checkpoints", slurm(0, 2), &script(&place, 0)).start();
    first.after_line("goes on");
    let other = rank(&place, "checkpoints", slurm(1, 2), "echo started").start();
    let done = other.finish().expect_code(0);
    assert!(!done.err().contains("keeps them itself"), "{}", done.err());
    let_go_on(&place, 0);
    first.finish().expect_code(0);
}

#[test]
fn the_last_commit_waits_for_saves_of_the_other_processes_of_the_node() {
    let place = Place::new();
    let mut ranks = started(&place, slurm, 2);
    ranks.iter().for_each(|rank| assert_eq!(rank.after_line("goes on"), "goes on at from\n"));
    let other = ranks.pop().unwrap();
    let_go_on(&place, 0);
    ranks[0].after_log("the last commit waits for the other processes of this node");
    place.save(40);
    let_go_on(&place, 1);
    other.finish().expect_code(0);
    ranks.pop().unwrap().finish().expect_code(0);
    assert_eq!(place.steps(), [40]);
}

#[test]
fn a_signal_ends_the_wait_for_the_other_processes_but_not_the_commit() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let place = Place::new();
        let ranks = started(&place, slurm, 2);
        ranks.iter().for_each(|rank| assert_eq!(rank.after_line("goes on"), "goes on at from\n"));
        place.save(40);
        let_go_on(&place, 0);
        ranks[0].after_log("the last commit waits for the other processes of this node");
        let asked = Instant::now();
        ranks[0].signal(signal);
        let [first, other] = <[Running; 2]>::try_from(ranks).unwrap_or_else(|_| unreachable!());
        let done = first.finish().expect_code(0);
        assert!(asked.elapsed() < Duration::from_secs(20), "{}", done.err());
        assert!(done.err().contains("other processes of this node still run"), "{}", done.err());
        assert_eq!(place.steps(), [40]);
        let_go_on(&place, 1);
        other.finish().expect_code(0);
    }
}

#[test]
fn the_others_notice_a_first_process_that_ends_at_once() {
    let place = Place::new();
    let saves = format!("mkdir -p {0}/step-8; echo x > {0}/step-8/$SLURM_PROCID.bin", place.local().display());
    let others = [1, 2].map(|n| rank(&place, "checkpoints", slurm(n, 3), &saves).start());
    others.iter().for_each(|other| {
        other.after_log("neither restores nor commits");
    });
    let first = rank(&place, "checkpoints", slurm(0, 3), MODEL).output().expect_code(0);
    for other in others {
        let done = other.finish().expect_code(0);
        assert!(!done.err().contains("keeps them itself"), "{}", done.err());
    }
    assert_eq!((place.steps(), attempts(&place)), (vec![8], 1), "{}", first.err());
}

#[test]
fn after_a_failure_the_commit_waits_for_no_other_process_and_skips_unfinished_saves() {
    let place = Place::new();
    let one_attempt = |n| [slurm(n, 2), vec![("TRAINIT_MAX_RESTARTS", "0".to_owned())]].concat();
    let torn = place.local().join("step-40");
    let fails = format!("{} && exit 3", script(&place, 0));
    let first = rank(&place, "checkpoints", one_attempt(0), &fails).start();
    let writes = format!("mkdir {0}; exec 3>{0}/model.bin; echo half >&3; {1}", torn.display(), script(&place, 1));
    let other = rank(&place, "checkpoints", one_attempt(1), &writes).start();
    for rank in [&first, &other] {
        rank.after_line("goes on");
    }
    let_go_on(&place, 0);
    let done = first.finish().expect_code(3);
    assert!(!done.err().contains("waits for the other processes"), "{}", done.err());
    assert!(done.err().contains("is open for writing"), "{}", done.err());
    let_go_on(&place, 1);
    other.finish().expect_code(0);
    assert_eq!(place.commits().len(), 0);
}

#[test]
fn a_late_process_resumes_from_the_step_that_the_first_process_chose() {
    for (before, from) in [(Some(30), "30 from"), (None, "from")] {
        let place = Place::new();
        if let Some(step) = before {
            save_in(&place.local(), step);
        }
        let first = rank(&place, "checkpoints", slurm(0, 2), &script(&place, 0)).start();
        let began = first.after_line("goes on");
        assert!(began.starts_with(&format!("goes on at {from}")), "{began}");
        place.save(40);
        let other = rank(&place, "checkpoints", slurm(1, 2), &script(&place, 1)).start();
        assert_eq!(other.after_line("goes on"), began);
        finished(&place, vec![first, other]);
    }
}

#[test]
fn inspect_shows_which_process_keeps_the_checkpoints() {
    let place = Place::new();
    let seen = |n: u32| -> Value {
        let local = place.local();
        let run = Trainit::new(["inspect", "--json", "--checkpoint-store", &place.url()]);
        let done = with(run.args(["--checkpoint-dir", local.to_str().unwrap()]), slurm(n, 2)).output().expect_code(0);
        serde_json::from_str::<Value>(&done.out()).unwrap()["checkpoints"].clone()
    };
    let (first, other) = (seen(0), seen(1));
    assert!(first["store"].is_object() && first.get("kept_by").is_none(), "{first}");
    assert_eq!(
        (&other["store"], &other["kept_by"]),
        (&Value::Null, &"the trainit of local rank 0 on this node".into())
    );
    assert_eq!(other["restore"], "from what the trainit of local rank 0 on this node restores");
}
