//! Trainers that save into several files side by side, or write the finished model among their checkpoints: all that the
//! next start needs is committed and put back on an empty disk, and nothing else.

use std::fs::{self, File};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::support::checkpoints::{Place, tree};
use crate::support::{Finished, Trainit};

/// `trainit run` of a shell script in the place; it sees the checkpoint directory as $D, and `committed N` waits.
fn run(place: &Place, args: &[&str], script: &str) -> Finished {
    let (local, store) = (place.local(), place.store());
    let committed = format!(
        r#"committed() {{ until [ "$(ls {0}/.trainit/commits/*.json 2>/dev/null | wc -l)" -ge "$1" ]; do sleep 0.01; done; }}"#,
        store.display()
    );
    Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()])
        .args(["--settle", "300ms", "--mirror-interval", "20ms"])
        .args(args)
        .args(["--", "sh", "-c", &format!("{committed}\n{script}")])
        .env("D", &local)
        .output()
}

/// What a start on an empty disk finds, and what it is told to go on from.
fn next_start(place: &Place, args: &[&str]) -> (Vec<String>, String) {
    let _ = fs::remove_dir_all(place.local());
    let done = run(place, args, r#"echo "$TRAINIT_RESUME_FROM""#).expect_code(0);
    let files = tree(&place.local()).into_keys().filter(|path| !path.ends_with('/') && !path.starts_with(".trainit"));
    (files.collect(), done.out().trim().rsplit('/').next().unwrap_or_default().to_owned())
}

#[test]
fn a_model_and_its_optimizer_saved_over_and_over_are_committed_and_resumed_from_together() {
    let place = Place::new();
    let script = r#"save() { echo "$1" >"$D/model.pt"; sleep 0.1; echo "$1" >"$D/optimizer.pt"; }
                    echo '{"lr": 1}' >"$D/trainer_state.json"; save 1; committed 1; save 2; committed 2"#;
    run(&place, &[], script).expect_code(0);
    let names = ["model.pt", "optimizer.pt", "trainer_state.json"];
    assert_eq!(next_start(&place, &[]), (names.map(str::to_owned).to_vec(), "model.pt".to_owned()));
    let saved = |name: &str| fs::read_to_string(place.local().join(name)).unwrap();
    assert_eq!((saved("model.pt"), saved("optimizer.pt")), ("2\n".to_owned(), "2\n".to_owned()));
}

#[test]
fn a_model_whose_optimizer_is_still_being_gathered_is_not_committed_alone() {
    let place = Place::new();
    let script = r#"save() { mkdir "$D/step-$1"; echo "$1" >"$D/step-$1/model.pt"; sleep "$2"; echo "$1" >"$D/step-$1/optim.pt"; }
                    save 1 0; committed 1; save 2 1; committed 2"#;
    run(&place, &[], script).expect_code(0);
    assert_eq!(place.commits().len(), 2);
    let names = ["step-2/model.pt", "step-2/optim.pt"];
    assert_eq!(next_start(&place, &[]), (names.map(str::to_owned).to_vec(), "step-2".to_owned()));
}

#[test]
fn what_is_written_over_all_the_time_beside_a_step_keeps_it_from_no_commit_and_comes_along_at_the_end() {
    let place = Place::new();
    let script = r#"mkdir "$D/step-1"; echo 1 >"$D/step-1/model.pt"; commits="${D%/*}/store/.trainit/commits"
                    while [ -z "$(ls "$commits" 2>/dev/null)" ]; do echo 1 >"$D/optimizer.pt"; sleep 0.02; done
                    i=0; while [ $((i += 1)) -le 50 ]; do echo 1 >"$D/optimizer.pt"; sleep 0.02; done; echo 2 >"$D/optimizer.pt""#;
    let script = script.replace("${D%/*}/store", place.store().to_str().unwrap());
    let done = run(&place, &[], &script).expect_code(0);
    assert_eq!(done.err().matches("committed WITHOUT it until the command has ended").count(), 1, "{}", done.err());
    assert_eq!(place.commits().len(), 2, "none for each time that it is written over\n{}", done.err());
    let names = ["optimizer.pt", "step-1/model.pt"];
    assert_eq!(next_start(&place, &[]), (names.map(str::to_owned).to_vec(), "step-1".to_owned()));
    assert_eq!(fs::read_to_string(place.local().join("optimizer.pt")).unwrap(), "2\n");
}

#[test]
fn what_comes_after_each_step_is_waited_for_however_often_and_never_left_out() {
    let place = Place::new();
    let script = r#"for i in 1 2 3 4 5 6 7; do
                        mkdir "$D/step-$i"; echo $i >"$D/step-$i/model.pt"; sleep 0.45
                        echo $i >"$D/optimizer.pt.tmp"; mv "$D/optimizer.pt.tmp" "$D/optimizer.pt"; committed $i
                    done"#;
    let done = run(&place, &["--keep-last", "9"], script).expect_code(0);
    assert!(!done.err().contains("WITHOUT it"), "{}", done.err());
    assert_eq!(next_start(&place, &[]).0, ["optimizer.pt", "step-7/model.pt"]);
}

#[test]
fn a_step_that_is_saved_in_a_directory_for_each_of_its_parts_is_committed_and_put_back_whole() {
    for (script, names, unit) in [
        (
            r#"for part in actor critic; do mkdir -p "$D/$part/step-$n/state"; echo $n >"$D/$part/step-$n/state/model.pt"; done"#,
            ["actor/step-2/state/model.pt", "critic/step-2/state/model.pt"],
            "step-2",
        ),
        (
            r#"mkdir -p "$D/models" "$D/optims"; echo $n >"$D/models/model_$n.pt"; echo $n >"$D/optims/optim_$n.pt""#,
            ["models/model_2.pt", "optims/optim_2.pt"],
            "model_2.pt",
        ),
        (
            r#"mkdir -p "$D/models" "$D/optims"; echo $n >"$D/models/model_$n.bin"; echo $n >"$D/optims/optim_$n.pt""#,
            ["models/model_2.bin", "optims/optim_2.pt"],
            "model_2.bin",
        ),
    ] {
        let place = Place::new();
        let done = run(&place, &[], &format!("for n in 1 2; do {script}; committed $n; done")).expect_code(0);
        assert!(!done.err().contains("is NOT"), "{}", done.err());
        assert_eq!(next_start(&place, &[]), (names.map(str::to_owned).to_vec(), unit.to_owned()));
        assert!(names.iter().all(|name| fs::read_to_string(place.local().join(name)).unwrap() == "2\n"));
        assert_eq!(place.steps(), [2, 1]);
        // What lies there otherwise is in the way of the whole of it.
        let changed = place.local().join(names[1]);
        for path in [&changed, &changed.with_file_name("more.pt")] {
            fs::write(path, "of long ago").unwrap();
            File::options().append(true).open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }
        place.checkpoint("pull").output().expect_code(0);
        assert_eq!(fs::read_to_string(&changed).unwrap(), "2\n");
        assert_eq!(changed.with_file_name("more.pt").exists(), unit != "step-2");
    }
}

#[test]
fn what_each_save_writes_over_elsewhere_comes_back_with_its_step_or_its_model() {
    for (save, names, unit) in [
        (
            r#"mkdir -p "$D/out/ckpts/step-$n"; echo $n >"$D/out/ckpts/step-$n/model.bin"; echo $n >"$D/out/state.json""#,
            ["out/ckpts/step-2/model.bin", "out/state.json"],
            "step-2",
        ),
        (
            r#"mkdir -p "$D/ckpts/step-$n"; echo $n >"$D/ckpts/step-$n/model.bin"; echo $n >"$D/optimizer.pt""#,
            ["ckpts/step-2/model.bin", "optimizer.pt"],
            "step-2",
        ),
        (
            r#"mkdir -p "$D/model" "$D/optim"; echo $n >"$D/model/last.pt"; echo $n >"$D/optim/last.pt""#,
            ["model/last.pt", "optim/last.pt"],
            "last.pt",
        ),
    ] {
        let place = Place::new();
        let done = run(&place, &[], &format!("for n in 1 2; do {save}; committed $n; done")).expect_code(0);
        assert!(!done.err().contains("NOT"), "{}", done.err());
        assert_eq!(next_start(&place, &[]), (names.map(str::to_owned).to_vec(), unit.to_owned()));
        assert!(names.iter().all(|name| fs::read_to_string(place.local().join(name)).unwrap() == "2\n"));
    }
}

#[test]
fn half_of_a_step_in_directories_that_say_nothing_of_a_part_is_told_of_and_a_copy_is_not() {
    let save = |other: &str| {
        let place = Place::new();
        let script = format!(
            r#"for name in a b; do mkdir -p "$D/$name/step-200"; done
               echo 1 >"$D/a/step-200/model.pt"; echo {other} >"$D/b/step-200/model.pt""#
        );
        run(&place, &[], &script).expect_code(0).err()
    };
    for other in ["2", "22"] {
        let told = save(other);
        assert_eq!(told.matches("of the same step and the same time, is NOT").count(), 1, "{told}");
    }
    assert!(!save("1").contains("is NOT"));
}

#[test]
fn the_finished_model_is_no_checkpoint_although_it_lies_among_them() {
    let place = Place::new();
    let model = place.local().join("model");
    let told = ["--model-dir", model.to_str().unwrap()];
    let script = r#"echo 1 >"$D/model_10.pt"; committed 1; mkdir "$D/model"; echo 2 >"$D/model/model.pt"; sleep 0.5"#;
    let done = run(&place, &told, script).expect_code(0);
    assert_eq!(place.commits().len(), 1, "{}", done.err());
    let listed = |args: &[&str]| place.checkpoint("list").args(args).output().expect_code(0).out();
    assert!(!listed(&told).contains("model/model.pt") && listed(&[]).contains("model/model.pt"));
    assert_eq!(next_start(&place, &told), (vec!["model_10.pt".to_owned()], "model_10.pt".to_owned()));
}

#[test]
fn nobody_is_warned_that_the_finished_model_is_not_committed() {
    for (told, is_warned) in [(true, false), (false, true)] {
        let place = Place::new();
        let model = place.local().join("model");
        let args = if told { &["--model-dir", model.to_str().unwrap()][..] } else { &[] };
        let script = r#"mkdir "$D/model"; echo 2 >"$D/model/weights.safetensors"; sleep 1"#;
        let done = run(&place, args, script).expect_code(0);
        assert_eq!(done.err().contains("NOTHING is being committed"), is_warned, "{}", done.err());
    }
}

#[test]
fn a_model_directory_that_is_the_checkpoint_directory_or_around_it_leaves_out_nothing() {
    for model in ["", "disk"] {
        let place = Place::new();
        let model = if model.is_empty() { place.path("") } else { place.local() };
        run(&place, &["--model-dir", model.to_str().unwrap()], r#"echo 1 >"$D/model_10.pt""#).expect_code(0);
        assert_eq!(place.steps(), [10]);
    }
}

#[test]
fn one_nodes_ranks_of_a_sharded_checkpoint_wait_for_the_others_unless_the_trainer_marks_them() {
    let place = Place::new();
    let node = ["--nnodes", "2", "--node-rank", "1", "--leader", "127.0.0.1:1"];
    let script = r#"cd "$D"; mkdir global_step10; echo 1 >global_step10/zero_pp_rank_8_mp_rank_00_optim_states.pt
                    echo global_step10 >latest; touch global_step10/DONE"#;
    let done = run(&place, &node, script).expect_code(0).err();
    let line = done.lines().find(|line| line.contains("checkpoint_passed_over")).unwrap_or_default();
    for part in
        ["zero_pp_rank_0_mp_rank_00 are missing", "save to one that all nodes share", "--marker", "not committed"]
    {
        assert!(line.contains(part), "{part}: {done}");
    }
    let commits = || fs::read_dir(place.store().join("node-00001/.trainit/commits")).map_or(0, Iterator::count);
    assert_eq!(commits(), 0);
    run(&place, &[&node[..], &["--marker", "DONE"]].concat(), "true").expect_code(0);
    assert_eq!(commits(), 1);
}

#[test]
fn a_file_with_its_arrays_in_a_directory_beside_it_is_sent_once_whoever_goes_on_from_it() {
    let place = Place::new();
    let script = r#"[ "$TRAINIT_RESUME_FROM" ] && exit; mkdir -p "$D/checkpoint_20_gda/w"; echo 1 >"$D/checkpoint_20_gda/w/0"
                    echo done >"$D/checkpoint_20_gda/commit_success.txt"; echo 20 >"$D/checkpoint_20""#;
    run(&place, &[], script).expect_code(0);
    let files = ["checkpoint_20", "checkpoint_20_gda/commit_success.txt", "checkpoint_20_gda/w/0"];
    assert_eq!(next_start(&place, &[]), (files.map(str::to_owned).to_vec(), "checkpoint_20".to_owned()));
    run(&place, &[], script).expect_code(0);
    assert_eq!(place.commits().len(), 1, "of a start on an empty disk, and one on a disk that is still there");
}

#[test]
fn who_saves_beside_an_earlier_trainers_checkpoints_in_another_form_is_told_that_these_are_not_committed() {
    let earlier = |dir: &Path| {
        let old = dir.join("10/state");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("manifest.ocdbt"), "orbax").unwrap();
        fs::write(dir.join("10/_CHECKPOINT_METADATA"), "{}").unwrap();
    };
    for is_restored in [true, false] {
        let place = Place::new();
        earlier(&place.local());
        if is_restored {
            place.push();
            fs::remove_dir_all(place.local()).unwrap();
        }
        let local = place.local();
        let running = Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir"])
            .args([&local])
            .args(["--settle", "30ms", "--mirror-interval", "10ms", "--", "sh", "-c"])
            .args([r#"echo "$TRAINIT_RESUME_STEP"; echo 1 >"$D/model_20.safetensors"; exec sleep 1000"#])
            .env("D", &local)
            .start();
        let line = running.after_log("NOTHING is being committed");
        for part in ["are taken for orbax", "none of these is new", "model_20.safetensors came", "--checkpoint-format"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
        let done = running.stop().expect_code(143);
        assert_eq!(done.out(), "10\n", "{}", done.err());
    }
    // Where its own go on, nobody is told of what lies beside them.
    let place = Place::new();
    earlier(&place.local());
    let script = r#"echo 1 >"$D/model_20.safetensors"
                    for n in 1 2 3 4; do cp -r "$D/10" "$D/tmp"; mv "$D/tmp" "$D/${n}0"0; committed $n; done"#;
    let done = run(&place, &["--keep-last", "9"], script).expect_code(0);
    assert!(!done.err().contains("NOTHING is being committed"), "{}", done.err());
}

#[test]
fn who_takes_all_that_lies_beside_its_checkpoints_for_one_is_told_to_save_below_the_directory() {
    for (unit, is_told) in [("checkpoint_0", 1), ("checkpoints/checkpoint_0", 0), ("step_0", 0)] {
        let place = Place::new();
        let script = format!(
            r#"mkdir -p "$D/{unit}"; cd "$D/{unit}"; echo w >pytorch_model.bin; printf '\200\004.' >random_states_0.pkl; committed 1"#
        );
        let told = |done: Finished| {
            let named = format!("{unit} lies in the checkpoint directory");
            done.err().lines().filter(|line| line.contains(&named) && line.contains("give the directory above")).count()
        };
        assert_eq!(told(run(&place, &[], &script).expect_code(0)), is_told, "{unit}, as it is saved");
        assert_eq!(told(run(&place, &[], "true").expect_code(0)), is_told, "{unit}, at the next start");
        fs::remove_dir_all(place.local()).unwrap();
        assert_eq!(told(run(&place, &[], "true").expect_code(0)), is_told, "{unit}, restored");
    }
}

#[test]
fn an_optimizer_that_is_saved_over_beside_numbered_models_is_committed_with_the_newest_and_never_alone() {
    let place = Place::new();
    let script = r#"for step in 1 2 3 4; do echo $step >"$D/model_$step.pt"; sleep 0.4; echo $step >"$D/optimizer.pt"; sleep 0.4; done"#;
    run(&place, &[], script).expect_code(0);
    let names = ["model_4.pt", "optimizer.pt"];
    assert_eq!(next_start(&place, &[]), (names.map(str::to_owned).to_vec(), "model_4.pt".to_owned()));
    assert_eq!(fs::read_to_string(place.local().join("optimizer.pt")).unwrap(), "4\n");
}

#[test]
fn what_each_save_writes_over_beside_steps_of_any_form_is_put_back_as_it_was_with_the_newest() {
    for step in ["model_$n.msgpack", "run/step-$n/model.pt", "epoch_$n.pt"] {
        let place = Place::new();
        let home = if step.starts_with("run/") { "run/" } else { "" };
        let script = format!(
            r#"for n in 1 2 3; do mkdir -p "$(dirname "$D/{step}")"; for name in {step} {home}optimizer.pt {home}state.json {home}rng_state {home}train.log
               do echo $n >"$D/$name"; done; committed $n; done"#
        );
        run(&place, &[], &script).expect_code(0);
        let mut names = ["optimizer.pt", "rng_state", "state.json"].map(|name| format!("{home}{name}")).to_vec();
        names.push(step.replace("$n", "3"));
        names.sort();
        assert_eq!(next_start(&place, &[]).0, names, "{step}");
        let saved = |name: &String| fs::read_to_string(place.local().join(name)).unwrap();
        assert!(names.iter().all(|name| saved(name) == "3\n"), "{step}");
        assert_eq!(place.steps(), [3, 2, 1], "{step}");
    }
}

#[test]
fn an_optimizer_that_is_ahead_of_the_newest_step_is_not_mixed_with_it() {
    for step in ["model_$1.pt", "model_$1.msgpack", "step-$1/model.pt"] {
        let place = Place::new();
        let script = format!(
            r#"[ "$TRAINIT_RESUME_FROM" ] && {{ cat "$D/optimizer.pt"; exit; }}
               model() {{ mkdir -p "$D/step-$1"; echo "$1" >"$D/{step}"; }}
               for n in 1 2; do echo $n >"$D/optimizer.pt"; model $n; committed $n; done; echo 3 >"$D/optimizer.pt"; kill -9 $$"#
        );
        let done = run(&place, &[], &script).expect_code(0);
        assert_eq!((done.out().as_str(), place.steps()), ("2\n", vec![2, 1]), "{step}: {}", done.err());
        next_start(&place, &[]);
        assert_eq!(fs::read_to_string(place.local().join("optimizer.pt")).unwrap(), "2\n", "{step}");
    }
}

#[test]
fn what_is_saved_over_beside_a_step_is_told_from_what_is_called_so_in_it() {
    let place = Place::new();
    let script = r#"for n in 1 2; do mkdir "$D/step-$n"; for name in model.pt optimizer.pt; do echo "$n in it" >"$D/step-$n/$name"; done
                    echo "$n beside it" >"$D/optimizer.pt"; committed $n; done"#;
    run(&place, &[], script).expect_code(0);
    let names = ["optimizer.pt", "step-2/model.pt", "step-2/optimizer.pt"];
    assert_eq!(next_start(&place, &[]).0, names);
    let saved = names.map(|name| fs::read_to_string(place.local().join(name)).unwrap());
    assert_eq!(saved, ["2 beside it\n", "2 in it\n", "2 in it\n"]);
}

/// `save NAME` writes an archive as `torch.save` does, `trainer N` a checkpoint as Transformers' `Trainer` does.
const SAVES: &str = r#"
    save() { printf 'PK\003\004PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\004\0\0\0\0\0' >"$D/$1"; sleep 0.05; }
    trainer() { mkdir "$D/checkpoint-$1"; echo "{\"global_step\": $1}" >"$D/checkpoint-$1/trainer_state.json"
                for part in pytorch_model.bin optimizer.pt scheduler.pt rng_state.pth; do save "checkpoint-$1/$part"; done
                sleep 1.1; }"#;

/// What a run is warned of that ends before a second look, after one that did `before`: nothing, or one line with `told`.
#[track_caller]
fn warned(before: &str, script: &str, told: &str) {
    let place = Place::new();
    let run = |script: &str| run(&place, &["--mirror-interval", "1h"], &format!("{SAVES}\n{script}")).expect_code(0);
    if !before.is_empty() {
        run(before);
    }
    let err = run(script).err();
    let warned: Vec<&str> = err.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warned.len(), usize::from(!told.is_empty()), "{before}; {script}: {err}");
    assert!(warned.iter().all(|line| line.contains(told)), "{before}; {script}: {err}");
}

#[test]
fn a_trainer_that_counts_from_below_again_is_told_of_it_however_short_the_run_and_beside_a_best_one_too() {
    warned(
        "",
        "save epoch_0_step_20.pt; save epoch_1_step_10.pt",
        "epoch_1_step_10.pt is newer than epoch_0_step_20.pt",
    );
    warned(
        "",
        "save ckpt_20.pt; save ckpt_10.pt; save best.pt",
        "ckpt_10.pt is newer than ckpt_20.pt and not committed",
    );
    warned("", "save ckpt_10.pt; save ckpt_20.pt; save best.pt", "");
    warned("save ckpt_20.pt; save ckpt_10.pt", "true", "");
}

#[test]
fn what_is_saved_in_another_form_than_what_is_committed_is_told_of_at_the_end_however_short_the_run() {
    let nothing = "none of these is new since the start, so NOTHING is being committed, although model_20.pt";
    warned("trainer 10", "save model_20.pt", nothing);
    warned("", "trainer 10; save ckpt_20.pt", "ckpt_20.pt is NOT committed, although its step is the highest");
    warned("", "save weights.bin", "so NOTHING is being committed, although weights.bin came");
    // A finished model comes at the end, too.
    warned("trainer 10", "save model.pt", "");
    warned("", "trainer 10; save model.pt", "");
}

#[test]
fn what_is_saved_in_haste_in_another_form_than_the_series_is_committed_and_what_is_saved_last_without_a_step_is_told_of()
 {
    for (series, hasty) in [("step-$n/model.pt", "interrupted.pt"), ("model_$n.pt", "preempted.safetensors")] {
        let place = Place::new();
        let script = format!(
            r#"for n in 1 2; do mkdir -p "$(dirname "$D/{series}")"; save "{series}"; done; sleep 1.1
               case {hasty} in *.pt) save {hasty} ;; *) printf '\002\0\0\0\0\0\0\0{{}}' >"$D/{hasty}" ;; esac"#
        );
        run(&place, &["--mirror-interval", "1h"], &format!("{SAVES}\n{script}")).expect_code(0);
        assert_eq!(next_start(&place, &[]), (vec![hasty.to_owned()], hasty.to_owned()), "{series}");
    }
    let told = "last.pt is NOT committed, although it was saved last";
    warned("", r#"mkdir "$D/step-1" "$D/step-2"; save step-1/w.pt; save step-2/w.pt; sleep 1.1; save last.pt"#, told);
    warned("", r#"mkdir "$D/step-1" "$D/step-2"; save step-1/w.pt; save last.pt; sleep 1.1; save step-2/w.pt"#, "");
    let told = "ft/ckpt_4.pt is NOT committed, although it was saved last";
    warned("", r#"mkdir "$D/step-20" "$D/ft"; save step-20/w.pt; sleep 1.1; save ft/ckpt_4.pt"#, told);
}
