//! `run --nproc N`: several processes under one trainit, each with its rank; one output, one end.

use std::fs;

use crate::metrics::report_metric::{folder, lines};
use crate::support::checkpoints::Place;
use crate::support::fake_nvml::FakeNvml;
use crate::support::{Finished, Trainit, eventually, is_alive, is_root};

/// A shell script as the trainer, in this many processes.
fn ranks(count: &str, flags: &[&str], script: &str) -> Trainit {
    Trainit::new(["run", "--nproc", count])
        .args(flags)
        .args(["--", "sh", "-c", script])
        .env("TRAINIT_LOG_FORMAT", "json")
}

/// The output of a rank, without the prefix.
fn said(done: &Finished, rank: u32) -> Vec<String> {
    let name = format!("[rank {rank}] ");
    done.out().lines().filter_map(|line| line.strip_prefix(&name)).map(str::to_owned).collect()
}

const SHOW: &str = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $NODE_RANK \
                    $MASTER_ADDR:$MASTER_PORT ${PET_NNODES-none} $JAX_PROCESS_ID/$JAX_NUM_PROCESSES";

#[test]
fn each_process_of_a_node_gets_its_rank_in_the_world() {
    let done = ranks("3", &["--nnodes", "2", "--node-rank", "1", "--leader", "h0:29400"], SHOW).output().expect_code(0);
    for local in 0..3 {
        let rank = 3 + local;
        assert_eq!(said(&done, rank), [format!("{rank}/6 {local}/3 1/2 1 h0:29400 none {rank}/6")]);
    }
    assert_eq!(done.out().lines().count(), 3);
}

#[test]
fn the_processes_of_one_node_use_the_loopback_and_a_single_process_has_no_ranks() {
    let done = ranks("2", &[], SHOW).env("MASTER_PORT", "29511").output().expect_code(0);
    assert_eq!(said(&done, 1), ["1/2 1/2 0/1 0 127.0.0.1:29511 none 1/2"]);
    let done = ranks("1", &[], SHOW).env("MASTER_PORT", "29511").output().expect_code(0);
    assert_eq!(done.out(), "0/1 0/1 0/1 0 127.0.0.1:29511 none 0/1\n", "no name before a line of the only one");
    assert!(done.verdict().get("rank").is_none());
}

#[test]
fn concurrent_runs_without_a_port_use_free_ones() {
    const LISTEN: &str = r#"
import os, socket, sys, time
if os.environ["RANK"] == "0":
    listener = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    listener.settimeout(60)
    listener.accept()
else:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
print(os.environ["MASTER_PORT"], os.environ["JAX_COORDINATOR_ADDRESS"], os.environ["DMLC_TRACKER_PORT"])
"#;
    let run = || Trainit::new(["run", "--nproc", "2", "--", "python3", "-c", LISTEN]).env("TRAINIT_LOG_FORMAT", "json");
    let runs = [run().start(), run().start()].map(|run| run.finish().expect_code(0));
    let ports = runs.each_ref().map(|done| {
        let [first, second] = [0, 1].map(|rank| said(done, rank).remove(0));
        assert_eq!(first, second, "all processes of a run have one port");
        let port = first.split(' ').next().unwrap().to_owned();
        assert_eq!(first, format!("{port} 127.0.0.1:{port} {port}"));
        assert!(!done.err().contains("\"severity\":\"WARNING\""), "{}", done.err());
        port
    });
    assert_ne!(ports[0], ports[1]);
}

#[test]
fn the_shown_variables_have_a_stable_port() {
    let shown = || Trainit::new(["env", "--nproc", "2"]).output().expect_code(0).out();
    assert!(shown().contains("MASTER_PORT='29500'") && shown() == shown());
}

#[test]
fn a_launchers_world_of_one_leaves_the_ranks_to_nproc() {
    let mpi = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "1"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    let azure = [&mpi[..], &[("AZ_BATCHAI_MPI_MASTER_NODE", "localhost")]].concat();
    let torch = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];
    for launcher in [&mpi[..], &azure, &torch] {
        let run = ranks("2", &[], SHOW).env("MASTER_PORT", "29500");
        let run = launcher.iter().fold(run, |run, (name, value)| run.env(name, value));
        let done = run.output().expect_code(0);
        for rank in 0..2 {
            let expected = format!("{rank}/2 {rank}/2 0/1 0 127.0.0.1:29500 none {rank}/2");
            assert_eq!(said(&done, rank), [expected], "{launcher:?}");
        }
    }
    let one = ranks("1", &[], SHOW).env("MASTER_PORT", "29500");
    let one = mpi.iter().fold(one, |run, (name, value)| run.env(name, value));
    assert_eq!(one.output().expect_code(0).out(), "0/1 0/1 0/1 0 127.0.0.1:29500 none 0/1\n");
}

#[test]
fn a_parameter_server_is_one_process() {
    let spec = r#"{"cluster":{"workerpool0":["a:1"],"workerpool2":["b:1"]},"task":{"type":"workerpool2","index":0}}"#;
    let done = ranks("4", &[], "echo only").env("CLUSTER_SPEC", spec).output().expect_code(0);
    assert_eq!(done.out(), "only\n");
}

#[test]
fn ranks_that_cannot_be_known_are_refused() {
    let run = ranks("2", &[], "echo no").env("PET_NNODES", "1:3").env("PET_NODE_RANK", "0").env("MASTER_ADDR", "h");
    let done = run.output().expect_code(125);
    assert!(done.out().is_empty() && done.err().contains("bad_setting"), "{}", done.err());
    let run = ranks("2", &[], "echo no").env("TORCHELASTIC_RUN_ID", "x").env("RANK", "0").env("WORLD_SIZE", "2");
    assert!(run.output().expect_code(125).err().contains("torchrun"));
}

#[test]
fn nproc_gpu_starts_one_process_for_each_gpu_that_cuda_may_use() {
    let fake = FakeNvml::new(&[]);
    let gpus: serde_json::Value = serde_json::from_slice(&fake.trainit(&["gpus", "--json"]).output().stdout).unwrap();
    let count = gpus["gpus"].as_array().unwrap().len();
    assert!(count > 1);
    let show = "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE $TRAINIT_GPU_COUNT";
    let args = ["run", "--nproc", "gpu", "--", "sh", "-c", show];
    let done = fake.trainit(&args).output().expect_code(0);
    assert_eq!(said(&done, 1), [format!("1/{count} {count}")]);
    assert_eq!(done.out().lines().count(), count);
    let done = fake.trainit(&args).env("CUDA_VISIBLE_DEVICES", "1").output().expect_code(0);
    assert_eq!(done.out(), format!("0/1 {count}\n"));
    let done = Trainit::new(args).env("CUDA_VISIBLE_DEVICES", "").output().expect_code(125);
    assert!(done.err().contains("GPU"), "{}", done.err());
}

#[test]
fn each_process_sees_its_own_mig_instance() {
    let fake = FakeNvml::new(&["gpus 1", "gpu0.mig 1"]);
    let show = "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES $JAX_LOCAL_DEVICE_IDS";
    let seen = |count: &str, list: &str| {
        let args = ["run", "--nproc", count, "--", "sh", "-c", show];
        let done = fake.trainit(&args).env("CUDA_VISIBLE_DEVICES", list).output().expect_code(0);
        [said(&done, 0).concat(), said(&done, 1).concat()]
    };
    assert_eq!(
        seen("gpu", "MIG-a, MIG-b"),
        ["0 MIG-a 0", "1 MIG-b 0"],
        "CUDA finds one in a process, whatever is listed"
    );
    assert_eq!(seen("2", "MIG-a,MIG-b"), ["0 MIG-a 0", "1 MIG-b 0"], "the same for a number of processes");
}

#[test]
fn lines_of_any_length_and_end_stay_whole() {
    // Each rank writes in small pieces, flushed, so that pieces of all ranks arrive between each other.
    let script = "import os, sys\nr = os.environ['RANK']\no = sys.stdout\n\
        for i in range(300):\n    o.write('line %d ' % i); o.flush()\n    o.write('%s ' % r * 40 + '\\n'); o.flush()\n\
        o.write('x' * 300000 + r + '\\n'); o.flush()\n\
        for i in range(5):\n    o.write('bar %d\\r' % i); o.flush()\n\
        o.write('half ' + r); o.flush()\n";
    let args = ["run", "--nproc", "4", "--", "python3", "-c", script];
    let done = Trainit::new(args).env("PATH", "/usr/local/bin:/usr/bin:/bin").output().expect_code(0);
    let out = done.out();
    assert!(out.ends_with('\n'));
    for line in out.split('\n').filter(|line| !line.is_empty()) {
        let writers: Vec<&str> = line.split("[rank ").skip(1).map(|piece| &piece[..1]).collect();
        assert!(!writers.is_empty() && writers.iter().all(|w| *w == writers[0]), "{line:.200}");
        let is_whole = line.ends_with(&format!("{} ", writers[0]).repeat(40));
        assert!(!line.contains("line") || is_whole, "{line:.200}");
    }
    for rank in 0..4 {
        let lines = said(&done, rank);
        assert_eq!(lines.iter().filter(|l| l.starts_with("line ")).count(), 300);
        assert!(lines.iter().any(|l| l.len() == 300_001 && l.ends_with(&rank.to_string())));
        assert!(out.contains(&format!("[rank {rank}] half {rank}\n")));
    }
}

#[test]
fn the_streams_stay_separate_and_the_prefix_can_be_omitted() {
    let done = ranks("2", &["--output-prefix", "none"], "echo out$RANK; echo err$RANK >&2").output().expect_code(0);
    let mut out: Vec<String> = done.out().lines().map(str::to_owned).collect();
    out.sort();
    assert_eq!(out, ["out0", "out1"]);
    assert!(done.err().lines().any(|line| line == "err1"), "{}", done.err());
}

#[test]
fn the_first_death_is_the_result_and_the_others_are_stopped_with_their_trees() {
    let (dir, _) = folder();
    let script = "if [ $LOCAL_RANK = 1 ]; then while [ ! -e \"$GO\" ]; do sleep 0.01; done; kill -KILL $$; fi\n\
                  setsid sleep 1000 & echo grandchild $!; trap 'kill $!; exit 134' TERM; echo ready; wait";
    let running = ranks("3", &[], script).env("GO", dir.path().join("go")).start();
    let grandchildren = [0, 2].map(|rank| {
        running.after_line(&format!("[rank {rank}] ready"));
        let line = running.after_line(&format!("[rank {rank}] grandchild "));
        line.rsplit(' ').next().unwrap().trim().parse::<i32>().unwrap()
    });
    fs::write(dir.path().join("go"), "").unwrap();
    let done = running.finish().expect_code(137);
    let verdict = done.verdict();
    assert_eq!(
        (&verdict["reason"], &verdict["rank"], &verdict["child_signal"]),
        (&"signalled".into(), &1.into(), &9.into())
    );
    let detail = verdict["detail"].as_str().unwrap();
    assert!(detail.contains("rank 1 (local rank 1)") && detail.contains("134"), "{detail}");
    assert!(grandchildren.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn with_several_deaths_at_once_the_first_counts_and_not_the_lowest_rank() {
    // While trainit is stopped, rank 2 dies, then rank 0. When trainit continues, both are zombies.
    let (dir, _) = folder();
    let script = "echo pid $$; while [ ! -e \"$DIR/$RANK\" ]; do sleep 0.01; done; exit 4$RANK";
    let running = ranks("3", &[], script).env("DIR", dir.path()).start();
    let pids = [0, 1, 2].map(|rank| {
        let line = running.after_line(&format!("[rank {rank}] pid "));
        line.rsplit(' ').next().unwrap().trim().parse::<i32>().unwrap()
    });
    // Their output is passed on before all of them are watched.
    running.after_log("started sh, ranks 0 to 2");
    running.signal(libc::SIGSTOP);
    for rank in [2, 0] {
        fs::write(dir.path().join(rank.to_string()), "").unwrap();
        eventually("it dies", || !is_alive(pids[rank]));
    }
    running.signal(libc::SIGCONT);
    let done = running.finish().expect_code(42);
    assert_eq!(done.verdict()["rank"], 2);
}

#[test]
fn a_stop_signal_reaches_each_of_them() {
    let script = "trap 'echo saved; exit 0' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done";
    let running = ranks("3", &[], script).start();
    for rank in 0..3 {
        running.after_line(&format!("[rank {rank}] ready"));
    }
    running.signal(libc::SIGUSR1);
    for rank in 0..3 {
        running.after_line(&format!("[rank {rank}] usr1"));
    }
    let done = running.stop().expect_code(143);
    assert!((0..3).all(|rank| said(&done, rank).contains(&"saved".to_owned())), "{}", done.out());
    assert_eq!(done.verdict()["reason"], "stopped");
}

#[test]
fn a_crash_starts_all_again_and_no_two_attempts_overlap() {
    let (dir, _) = folder();
    let script = "trap 'sleep 0.2; rmdir \"$DIR/$RANK\"; exit 0' TERM\n\
                  mkdir \"$DIR/$RANK\" || { echo overlap; exit 99; }; echo attempt $TRAINIT_ATTEMPT\n\
                  [ $TRAINIT_ATTEMPT = 1 ] && [ $RANK = 1 ] && { rmdir \"$DIR/1\"; exit 3; }\n\
                  [ $TRAINIT_ATTEMPT = 1 ] && while :; do sleep 0.01; done\n\
                  rmdir \"$DIR/$RANK\"";
    let flags = ["--max-restarts", "1", "--restart-backoff", "1ms"];
    let done = ranks("2", &flags, script).env("DIR", dir.path()).output().expect_code(0);
    assert_eq!(done.verdict()["attempts"], 2);
    assert!(!done.out().contains("overlap"), "{}", done.out());
    assert!((0..2).all(|rank| said(&done, rank).contains(&"attempt 2".to_owned())), "{}", done.out());
}

#[test]
fn metrics_are_those_of_local_rank_0() {
    let (_dir, file) = folder();
    let flags = ["--metric", "loss=loss: ([0-9.]+)"];
    let run = ranks("2", &flags, "for i in 1 2 3; do echo \"loss: $LOCAL_RANK.$i\"; done");
    let done = run.env("CLOUD_ML_HP_METRIC_FILE", &file).output().expect_code(0);
    let values: Vec<_> = lines(&file).iter().map(|line| line["loss"].clone()).collect();
    assert_eq!(values, ["0.1", "0.2", "0.3"]);
    assert_eq!(said(&done, 1).len(), 3);
    assert_eq!(done.verdict()["metrics"]["loss"], 0.3);
}

#[test]
fn another_rank_or_all_ranks_can_be_searched() {
    let found = |rank: &str| {
        let (_dir, file) = folder();
        let flags = ["--metric", "loss=loss: ([0-9.]+)", "--metric-rank", rank];
        let run = ranks("3", &flags, "echo \"loss: $LOCAL_RANK.5\"").env("CLOUD_ML_HP_METRIC_FILE", &file);
        run.output().expect_code(0);
        let mut values: Vec<String> = lines(&file).iter().map(|line| line["loss"].as_str().unwrap().into()).collect();
        values.sort_unstable();
        values
    };
    assert_eq!([found("first"), found("last"), found("1")], [["0.5"], ["2.5"], ["1.5"]]);
    assert_eq!(found("all"), ["0.5", "1.5", "2.5"]);
}

#[test]
fn a_missing_rank_to_search_is_refused_and_a_silent_one_is_named() {
    let flags = ["--metric", "loss=loss: ([0-9.]+)", "--metric-rank", "3"];
    let done = ranks("3", &flags, "echo started").output().expect_code(125);
    assert!(done.out().is_empty() && done.err().contains("local rank 3 does not exist among the 3"), "{}", done.err());
    let done = ranks("3", &flags[..2], "[ $LOCAL_RANK = 0 ] || echo loss: 0.5").output().expect_code(0);
    let expected = "the output of local rank 0 (without the other 2 ranks of this node, see --metric-rank) had no line";
    assert!(done.err().contains(expected), "{}", done.err());
}

#[test]
fn a_missing_command_is_reported_once_and_no_process_is_left() {
    let done = Trainit::new(["run", "--nproc", "3", "--", "no-such-trainer"]).output().expect_code(127);
    assert!(done.err().contains("command not found: no-such-trainer; check the spelling"), "{}", done.err());
}

#[test]
fn pid_1_with_several_main_children_leaves_no_process_behind() {
    let args = ["run", "--nproc", "2", "--", "sh", "-c", "sleep 1000 & [ $RANK = 1 ] && exit 5; wait"];
    let done = Trainit::pid1(args).output().expect_code(5);
    assert!(done.err().contains("rank 1 (local rank 1) failed"), "{}", done.err());
}

#[test]
fn a_checkpoint_of_several_ranks_is_committed_only_with_the_file_of_each() {
    let place = Place::new();
    let local = place.local();
    let script = r#"unit=$TRAINIT_CHECKPOINT_DIR/checkpoints/checkpoint_1; mkdir -p "$unit"; [ "$RANK" = "$SAVES" ] || [ "$SAVES" = all ] || exit 0
        [ "$RANK" != 0 ] || echo w >"$unit/pytorch_model.bin"; printf '\200\004.' >"$unit/random_states_$RANK.pkl""#;
    for (saves, committed) in [("0", 0), ("all", 1)] {
        let run = ["--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
        ranks("2", &run, script).env("SAVES", saves).output().expect_code(0);
        assert_eq!(place.commits().len(), committed, "saved by {saves}");
    }
    assert_eq!(place.manifest().1["world_size"], 2);
}

#[test]
fn a_new_process_with_the_pid_of_a_dead_rank_gets_no_signal() {
    // The test chooses the namespace's next process id.
    let script = r#"
        last=/proc/sys/kernel/ns_last_pid
        "$0" run --nproc 2 --signal-target group -- sh -c '[ $RANK = 1 ] && exec sleep 1000; echo $$ >"$1/first"' sh "$1" &
        trainit=$!
        until read -r first <"$1/first"; do :; done 2>/dev/null
        while kill -0 $first; do :; done 2>/dev/null
        while :; do
            echo $((first - 1)) >$last || { kill $trainit; wait; echo skipped; exit; }
            setsid sleep 1000 & stranger=$!
            [ $stranger = $first ] && break
            kill -9 $stranger
        done
        until read -r _ _ _ _ group _ </proc/$stranger/stat && [ $group = $stranger ]; do :; done
        kill $trainit
        wait $trainit
        echo trainit $?
        kill -9 $stranger
        wait $stranger
        echo stranger $?
    "#;
    if !is_root() {
        crate::support::skip("needs root for a PID namespace");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "sh", "-c", script];
    let done = Trainit::through(&prefix, [dir.path()]).output().expect_code(0);
    if done.out().contains("skipped") {
        crate::support::skip("no process id can be chosen here");
        return;
    }
    assert_eq!(done.out(), "trainit 143\nstranger 137\n", "{}", done.err());
}
