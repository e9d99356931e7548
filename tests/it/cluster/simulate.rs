//! A platform on one machine: replicas as processes, faults, restarts, and the report.

use std::path::Path;

use serde_json::Value;

use crate::support::{Finished, Running, Trainit, eventually, send};

/// Trains to the step in $2, saves every fifth step to the directory $1, resumes from there, and saves on SIGTERM. With
/// $3 it does not end before it has resumed, so that a fault hits it in time.
const TRAINER: &str = r#"
mkdir -p "$1"; step=0
for file in "$1"/ckpt-*; do
    number=${file##*-}
    if [ -e "$file" ] && [ "$number" -gt "$step" ]; then step=$number; fi
done
echo "starts after $step"; begin=$step
trap 'stop=1' TERM
until [ "$step" -ge "$2" ] && { [ -z "$3" ] || [ "$begin" -gt 0 ]; }; do
    step=$((step + 1)); echo "step=$step loss=0.$((1000 - step))"
    if [ $((step % 5)) = 0 ] || [ -n "$stop" ]; then echo "$step" >"$1/.new"; mv "$1/.new" "$1/ckpt-$step"; fi
    if [ -n "$stop" ]; then echo "saved at $step"; exit 143; fi
    sleep 0.05
done
"#;

/// `trainit simulate FLAGS --json FILE -- COMMAND`.
struct Job {
    dir: tempfile::TempDir,
    flags: Vec<String>,
    /// The name of `--dir` below it, if it is given.
    place: Option<&'static str>,
}

impl Job {
    fn new(flags: &str) -> Job {
        let flags = ["--replace-after", "0.1s", "--limit", "50s"].into_iter().chain(flags.split_whitespace());
        Job { dir: tempfile::tempdir().unwrap(), flags: flags.map(str::to_owned).collect(), place: Some("job") }
    }

    fn report_path(&self) -> std::path::PathBuf {
        self.dir.path().join("report.json")
    }

    fn command(&self, command: &[&str]) -> Trainit {
        let json = self.report_path();
        let place = self.place.map(|name| self.dir.path().join(name).to_str().unwrap().to_owned());
        Trainit::new(["simulate", "--json", json.to_str().unwrap()])
            .args(place.map(|place| format!("--dir={place}")))
            .args(&self.flags)
            .args(["--"])
            .args(command)
    }

    /// The trainer below `trainit run`.
    fn supervised(&self, script: &str, steps: u32) -> Trainit {
        let steps = steps.to_string();
        self.command(&["trainit", "run", "--", "sh", "-c", script, "sh", "{own}/checkpoints", &steps])
    }

    /// The trainer below a `trainit run` that has no store.
    fn plain(&self, steps: u32, until_resumed: &str) -> Trainit {
        let steps = steps.to_string();
        let run = ["trainit", "run", "--", "sh", "-c", TRAINER, "sh", "{own}/kept", &steps, until_resumed];
        self.command(&run)
    }

    fn report(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.report_path()).unwrap()).unwrap()
    }
}

impl Trainit {
    /// Interrupts the simulation when a replica has ended with this reason.
    fn output_until_report(self, reason: &str) -> Finished {
        let running = self.start();
        running.after_log(&format!("trainit: {reason}: "));
        running.after_log("ended with 143");
        running.signal(libc::SIGTERM);
        running.finish().expect_code(143)
    }
}

/// The lines of one replica, without its name.
fn lines<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let of = |line: &'a str| line.split_once(" | ").filter(|(who, _)| who.trim_end() == name).map(|(_, line)| line);
    text.lines().filter_map(of).collect()
}

/// Processes whose command line holds the text.
fn processes(marker: &str) -> Vec<i32> {
    let ids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &i32| {
        let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(marker)
    };
    ids.filter(is_marked).collect()
}

#[test]
fn a_preempted_worker_that_loses_its_disk_resumes_from_the_store_and_the_job_succeeds() {
    let job = Job::new("--platform k8s_indexed --notice-by gce --preempt worker-0@step:7 --lose-disk");
    let script = format!("[ $JOB_COMPLETION_INDEX = 0 ] || set -- $1 $2 resumed; {TRAINER}");
    let done = job.supervised(&script, 12).output().expect_code(0);
    let (out, report) = (done.out(), job.report());
    let worker = lines(&out, "worker-0");
    let saved = worker.iter().find_map(|line| line.strip_prefix("saved at ")).expect("it saves on the notice");
    let goes_on = format!("starts after {saved}");
    assert!(worker.contains(&goes_on.as_str()), "{out}");
    assert!(lines(&done.err(), "worker-0").iter().any(|line| line.contains("gce preempted")), "{}", done.err());
    let of_worker = &report["replicas"][1];
    assert_eq!((&of_worker["name"], &of_worker["exits"]), (&"worker-0".into(), &serde_json::json!([143, 0])));
    assert_eq!(of_worker["repeated_steps"], 0);
    assert_eq!(of_worker["verdicts"][0]["reason"], "preempted");
    assert_eq!((&report["succeeded"], &report["faults"][0]["kind"]), (&true.into(), &"preempt".into()));
    assert!(out.contains("k8s_indexed would call this job succeeded"), "{out}");
}

#[test]
fn aws_and_azure_announce_the_end_in_their_own_protocols() {
    for cloud in ["aws", "azure"] {
        let job = Job::new(&format!("--platform k8s_indexed --workers 0 --notice-by {cloud} --preempt chief@step:2"));
        job.supervised(TRAINER, 900).env("TRAINIT_STOP_GRACE", "5s").output_until_report("preempted");
        let verdict = &job.report()["replicas"][0]["verdicts"][0];
        assert_eq!(verdict["reason"], "preempted");
        assert!(verdict["detail"].as_str().is_some_and(|detail| detail.contains(cloud)), "{verdict}");
    }
}

#[test]
fn a_killed_chief_repeats_the_steps_after_its_last_checkpoint() {
    let job = Job::new("--workers 0 --kill chief@step:8");
    job.plain(10, "resumed").output().expect_code(0);
    let report = job.report();
    let chief = &report["replicas"][0];
    assert_eq!(chief["exits"], serde_json::json!([137, 0]));
    assert!(chief["step"].as_u64() >= Some(10) && chief["repeated_steps"].as_u64() >= Some(1), "{report}");
    assert!(report["goodput"].as_f64().is_some_and(|share| share > 0.0 && share < 1.0), "{report}");
}

#[test]
fn a_disk_that_is_lost_without_a_store_means_a_start_from_the_beginning() {
    let job = Job::new("--workers 0 --kill chief@step:8 --lose-disk");
    let done = job.plain(40, "").output().expect_code(0);
    assert_eq!(done.out().matches("starts after 0").count(), 2, "{}", done.out());
}

#[test]
fn each_replica_has_its_own_directories_and_finds_its_role_in_the_platforms_variables() {
    let script = "echo home=$HOME tmp=$TMPDIR own=$0 shared=$1; echo step=1 loss=1; \
                  echo spec=$CLUSTER_SPEC model=$AIP_MODEL_DIR slurm=${SLURM_JOB_ID-none}; \
                  : >$1/said-$$; until [ $(ls $1 | grep -c said-) = 4 ]; do sleep 0.05; done";
    let job = Job::new("--workers 1 --ps 1 --evaluators 1");
    let done = job
        .command(&["trainit", "run", "--", "sh", "-c", script, "{own}", "{shared}"])
        .env("SLURM_JOB_ID", "7")
        .output()
        .expect_code(0);
    let (out, place) = (done.out(), job.dir.path().join("job"));
    for (name, kind) in
        [("chief", "workerpool0"), ("worker-0", "workerpool1"), ("ps-0", "workerpool2"), ("evaluator-0", "workerpool3")]
    {
        let said = lines(&out, name).join("\n");
        let disk = place.join(name).join("disk");
        let disk = disk.display();
        let shared = place.join("shared");
        assert!(
            said.contains(&format!("home={disk}/home tmp={disk}/tmp own={disk} shared={}", shared.display())),
            "{out}"
        );
        assert!(said.contains(&format!("\"type\":\"{kind}\"")) && said.contains("slurm=none"), "{out}");
        assert!(said.contains(&format!("model=file://{}/model/", shared.display())), "{out}");
    }
}

#[test]
fn slurm_requeues_the_whole_job_after_the_loss_of_one_node() {
    let job = Job::new("--platform slurm --kill worker-0@step:6");
    let script = format!("echo count=$SLURM_RESTART_COUNT of $SLURM_PROCID; {TRAINER}");
    let done = job
        .command(&["trainit", "run", "--", "sh", "-c", &script, "sh", "{own}/kept", "20", "resumed"])
        .output()
        .expect_code(0);
    let out = done.out();
    for (name, rank) in [("chief", 0), ("worker-0", 1)] {
        for count in 0..2 {
            assert!(lines(&out, name).contains(&format!("count={count} of {rank}").as_str()), "{out}");
        }
    }
    assert!(
        lines(&out, "chief").iter().any(|line| line.starts_with("saved at")),
        "the other node hears SIGTERM: {out}"
    );
}

#[test]
fn a_gang_whose_worker_is_killed_continues_in_the_next_generation() {
    let job = Job::new("--platform tf_config --no-checkpoint-dir --kill worker-0@step:4");
    let script = "trap 'exit 143' TERM; echo generation $TRAINIT_GENERATION; step=0; \
                  until [ $TRAINIT_GENERATION -ge 2 ] && [ $step -ge 3 ]; do \
                  step=$((step + 1)); echo step=$step loss=1; sleep 0.05; done";
    let done = job.command(&["trainit", "run", "--gang", "on", "--", "sh", "-c", script]).output().expect_code(0);
    let report = job.report();
    assert!(report["generation"].as_u64() >= Some(2), "{report}");
    assert_eq!((&report["replicas"][0]["starts"], &report["replicas"][1]["starts"]), (&1.into(), &2.into()));
    let out = done.out();
    for name in ["chief", "worker-0"] {
        let generations = lines(&out, name);
        assert!(generations.contains(&"generation 1") && generations.contains(&"generation 2"), "{out}");
    }
}

#[test]
fn the_losses_of_a_run_without_faults_are_shown_and_a_page_is_written() {
    let job = Job::new("--workers 0 --compare");
    let (page, schedule) = (job.dir.path().join("run.html"), job.dir.path().join("drill"));
    std::fs::write(&schedule, "# one fault\nkill chief@step:3\n").unwrap();
    let flags = ["--run-report", page.to_str().unwrap(), "--schedule", schedule.to_str().unwrap()];
    let job = Job { flags: [job.flags, flags.map(str::to_owned).to_vec()].concat(), ..job };
    let done = job.plain(40, "").output().expect_code(0);
    assert_eq!(done.out().matches("starts after 0").count(), 3, "killed once, and undisturbed: {}", done.out());
    let report = job.report();
    assert_eq!(report["undisturbed"]["replicas"][0]["exits"], serde_json::json!([0]));
    assert_eq!(report["undisturbed"]["replicas"][0]["loss"], report["replicas"][0]["loss"]);
    assert!(done.out().contains("Final losses: chief 0.96"), "{}", done.out());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<g data-track=\"chief\">") && page.contains("Faults: kill chief"), "{page}");
    assert_eq!(page.matches("<circle class=\"failed\"").count(), 1, "{page}");
}

#[test]
fn a_fault_that_did_not_happen_is_named_and_fails_the_simulation() {
    let job = Job::new("--workers 0 --kill chief@step:80 --freeze chief@49s");
    let done = job.plain(4, "").output().expect_code(1);
    let out = done.out();
    assert!(out.contains("vertex would call this job succeeded"), "{out}");
    assert!(out.contains("Not as asked: kill of chief at step 80 did not happen: chief reached only step 4."), "{out}");
    assert!(out.contains("freeze of chief at 49.0s did not happen: the job had ended before"), "{out}");
    assert_eq!(job.report()["problems"].as_array().map(Vec::len), Some(2));
    assert!(!done.err().contains("it has no effect"), "{}", done.err());
}

#[test]
fn different_results_without_faults_fail_the_simulation() {
    let job = Job::new("--workers 0 --kill chief@step:2 --compare");
    let script = "[ -e \"$0/again\" ] && loss=9; mkdir -p \"$0/again\"; \
                  echo step=1 loss=1; sleep 0.2; echo step=2 loss=${loss-3}; sleep 0.5";
    let run = ["trainit", "run", "--", "sh", "-c", script, "{own}"];
    let done = job.command(&run).output().expect_code(1);
    let named = "Not as asked: chief ended with loss 9, and with 3 without faults.";
    assert!(done.out().contains(named), "{}", done.out());
}

#[test]
fn a_replica_that_starts_from_the_beginning_is_named_where_a_resume_is_expected() {
    let job = Job::new("--workers 0 --preempt chief@step:8 --lose-disk --expect-resume");
    job.supervised(TRAINER, 12).output().expect_code(0);
    let job = Job::new("--workers 0 --kill chief@step:8 --lose-disk --expect-resume");
    let done = job.plain(12, "").output().expect_code(1);
    let named = "Not as asked: chief lost its disk and started from the beginning.";
    assert!(done.out().contains(named), "{}", done.out());
}

#[test]
fn a_trainer_that_hangs_is_found_and_started_again() {
    let job = Job::new("--workers 0 --hang chief@step:3");
    let run = ["trainit", "run", "--hang-timeout", "1s", "--restart-backoff", "1ms", "--", "sh", "-c", TRAINER, "sh"];
    let command = job.command(&[&run[..], &["{own}/checkpoints", "8"]].concat());
    let done = command.output().expect_code(0);
    assert!(done.err().contains("the trainer of chief hangs"), "{}", done.err());
    let chief = &job.report()["replicas"][0];
    assert_eq!((&chief["verdicts"][0]["attempts"], &chief["starts"]), (&2.into(), &1.into()), "{chief}");
}

#[test]
fn a_job_that_the_platform_gives_up_has_failed() {
    let job = Job::new("--platform torch_env");
    let done = job.command(&["sh", "-c", "[ $RANK = 1 ] && exit 3; exec sleep 1000"]).output().expect_code(1);
    assert!(done.out().contains("would not call this job succeeded: worker-0 ended with 3"), "{}", done.out());
    assert_eq!(job.report()["replicas"][0]["exits"], serde_json::json!([143]));
}

#[test]
fn a_job_beyond_its_time_limit_has_failed() {
    let job = Job::new("--workers 0 --limit 1s");
    let done = job.command(&["sleep", "1000"]).output().expect_code(1);
    assert!(done.out().contains("time limit"), "{}", done.out());
}

#[test]
fn when_the_chief_has_finished_a_worker_that_ignores_sigterm_is_killed() {
    let job = Job::new("--notice 0.5s");
    let script = "case $CLUSTER_SPEC in *'\"type\":\"workerpool0\"'*) until [ -e $0/deaf ]; do sleep 0.05; done; exit 0;; esac; \
                  trap '' TERM; : >$0/deaf; sleep 1000";
    let done = job.command(&["sh", "-c", script, "{shared}"]).output().expect_code(1);
    for problem in ["chief has no verdict", "worker-0 has no verdict", "no replica reported a step"] {
        assert!(done.out().contains(&format!("Not as asked: {problem}")), "{}", done.out());
    }
    let exits: Vec<Value> = job.report()["replicas"].as_array().unwrap().iter().map(|of| of["exits"].clone()).collect();
    assert_eq!(exits, [serde_json::json!([0]), serde_json::json!([137])]);
}

#[test]
fn a_frozen_replica_stops_and_continues() {
    let job = Job::new("--workers 0 --freeze chief@step:3+1s");
    job.plain(40, "").output().expect_code(0);
    let report = job.report();
    let stopped = report["replicas"][0]["time"]["stopped"].as_f64().unwrap();
    assert!(stopped >= 1.0 && report["replicas"][0]["starts"] == 1, "{report}");
}

#[test]
fn an_interrupt_ends_all_replicas_and_the_report_is_still_shown() {
    let marker = format!("trainit-simulate-test-{}-interrupt", std::process::id());
    let job = Job::new("");
    let script = format!("trap 'echo bye; exit 0' TERM; echo {marker}; while :; do sleep 0.05; done");
    let running = job.command(&["sh", "-c", &script]).start();
    running.after_line(&format!("chief    | {marker}"));
    running.after_line(&format!("worker-0 | {marker}"));
    running.signal(libc::SIGINT);
    let done = running.finish().expect_code(130);
    assert_eq!(done.out().matches("bye").count(), 2, "{}", done.out());
    assert!(done.out().contains("it was interrupted"), "{}", done.out());
    assert_eq!(processes(&marker), [0i32; 0]);
}

/// Starts a job whose replicas also have a process in a separate session; returns when all of them run.
fn with_daemons(job: &Job, marker: &str) -> Running {
    let script = format!(
        "setsid sh -c 'echo daemon of {marker}; trap \"\" TERM; while :; do sleep 1; done' & \
                          echo main of {marker}; wait"
    );
    let command = job.command(&["trainit", "run", "--", "sh", "-c", &script]).env("TMPDIR", job.dir.path());
    let running = command.start();
    for name in ["chief   ", "worker-0"] {
        for what in ["daemon", "main"] {
            running.after_line(&format!("{name} | {what} of {marker}"));
        }
    }
    running
}

#[test]
fn nothing_is_left_after_kill_9_of_the_simulator() {
    let marker = format!("trainit-simulate-test-{}-kill", std::process::id());
    let job = Job { place: None, ..Job::new("") };
    let running = with_daemons(&job, &marker);
    let directories = || {
        let names = std::fs::read_dir(job.dir.path()).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("trainit-simulate-")).count()
    };
    assert!(processes(&marker).len() >= 6 && directories() == 1);
    running.signal(libc::SIGKILL);
    eventually("no process of the replicas is left", || processes(&marker).is_empty());
    eventually("no temporary directory is left", || directories() == 0);
}

#[test]
fn a_replica_whose_keeper_is_killed_is_restarted_after_its_processes_have_ended() {
    let marker = format!("trainit-simulate-test-{}-keeper", std::process::id());
    let job = Job::new("");
    let running = with_daemons(&job, &marker);
    let before = processes(&marker);
    let keeper = processes("simulated-replica").into_iter().find(|pid| before.contains(pid)).expect("a keeper");
    send(keeper, libc::SIGKILL);
    running.after_log("is started again");
    running.signal(libc::SIGINT);
    running.signal(libc::SIGINT);
    running.finish().expect_code(130);
    assert_eq!(processes(&marker), [0i32; 0]);
    assert!(job.report()["replicas"].as_array().unwrap().iter().any(|replica| replica["exits"][0] == 137));
}

#[test]
fn every_mistake_on_the_command_line_has_a_line_and_nothing_starts() {
    for (flags, part) in [
        ("--kill worker-7@1s -- true", "--kill: there is no replica \"worker-7\"; this job has chief, worker-0"),
        ("--kill chief@70s --limit 60s -- true", "--kill: \"chief@70s\" is beyond the time limit"),
        ("--platform vertx -- true", "--platform: expected one of"),
        ("--platform slurm --ps 1 -- true", "--ps: slurm has no ps"),
        ("--workers 1", "no command given"),
        ("-- trainit-no-such-command", "the command trainit-no-such-command does not exist"),
        ("--prempt chief@1s -- true", "did you mean --preempt?"),
        ("--random often -- true", "--random: expected a number of faults and a period"),
        ("--schedule /no/such/file -- true", "--schedule: /no/such/file: there is no such file"),
        ("--dir /etc -- true", "--dir: /etc: is not empty"),
    ] {
        let done = Trainit::new([&["simulate"], &flags.split(' ').collect::<Vec<_>>()[..]].concat()).output();
        let done: Finished = done.expect_code(125);
        assert!(done.err().contains(part), "{flags}: {}", done.err());
        assert_eq!(done.out(), "");
    }
}
