//! Lives of trainers: what is committed and when, and what a killed trainer finds. [`Dir::play`] defines the words.

use super::*;

/// The promise of each case, and its life.
const LIVES: &[(&str, &str)] = &[
    (
        "the first save waits three times settle, and a later one as long as an earlier pause",
        "save a.raw; wait 5; commits 0; save b.raw; wait 5; commits 0; wait 1.5; commits 1
         save a.raw; wait 4.5; commits 1; save b.raw; wait 6; commits 1; wait 3; commits 2",
    ),
    (
        "a pause within a save that was committed in two pieces is known at the next one",
        "save a.raw; wait 8; commits 1; save b.raw; wait 12; commits 2; save a.raw; wait 8; commits 2; save b.raw; wait 12
         commits 3; stored a.raw b.raw",
    ),
    (
        "a longer pause than a minute lies between two saves",
        "save a.raw; wait 8; save b.raw; wait 70; save a.raw; wait 70; save b.raw; wait 70; save a.raw; wait 7; commits 5",
    ),
    ("if no pause was seen, settle is enough", "save a.bin b.bin; wait 8; save a.bin b.bin; wait 2.5; commits 2"),
    (
        "an overwritten pair is of one save after a kill",
        "save G.pth D.pth; wait 8; save G.pth D.pth; wait 8; save G.pth; kill; back G.pth; commits 2; stored G.pth D.pth",
    ),
    (
        "and after the machine died, on the same disk",
        "save G.pth D.pth; wait 8; save G.pth D.pth; wait 8; save G.pth; crash; commits 2; stored G.pth D.pth",
    ),
    (
        "and on another disk",
        "save G.pth D.pth; wait 8; save G.pth D.pth; wait 8; save G.pth; lose; commits 2; stored G.pth D.pth",
    ),
    ("a trainer that ends by itself has finished writing", "save G.pth D.pth; wait 8; save G.pth D.pth; finish; commits 2"),
    ("a single file is proven by its end", "save c.pt; wait 8; save c.pt; wait 8; save c.pt; kill; commits 3; torn"),
    ("also in the first save", "save c.pt; kill; commits 1; torn"),
    ("a raw file has no end", "save c.raw; wait 8; save c.raw; kill; commits 1; torn c.raw; back c.raw"),
    (
        "whole files under new names stay, and are committed when the trainer writes again",
        "save a.pt b.pt; kill; commits 0; torn; wait 30; commits 0; crash; wait 30; commits 0; save c.pt; wait 8; commits 1
         stored a.pt b.pt c.pt",
    ),
    (
        "a torn file is restored from the last commit",
        "save out/c.pt; wait 8; tear out/c.pt; kill; back out/c.pt; commits 1; stored out/c.pt",
    ),
    (
        "one torn file moves nothing else away",
        "save r50/e_1.pth; wait 8; save r50/e_2.pth r50/e_3.pth; tear r50/e_4.pth; crash; torn r50/e_4.pth
         wait 8; save r50/e_4.pth; wait 8; stored r50/e_3.pth r50/e_4.pth",
    ),
    (
        "an empty file delays the save that it is in, and for ten looks at most",
        "save checkpoint_1.pt checkpoint_last.pt; wait 8; write checkpoint_last.pt ; save checkpoint_2.pt; wait 4
         state checkpoint_last.pt: it is empty; commits 1; wait 3; commits 2
         stored checkpoint_1.pt checkpoint_2.pt; count 3",
    ),
    (
        "a numbered series is committed by its newest three, until something else changes with the saves",
        "save config.yaml; wait 8; save model_100.pt model_200.pt model_300.pt; wait 8; save model_400.pt; wait 8
         only config.yaml model_200.pt model_300.pt model_400.pt
         resume model_400.pt 400; save data/train.npz; wait 8; count 6; resume . -",
    ),
    (
        "a save needs no time without a change if two of its end, the next save and the one after next show that it is finished",
        "save step-1/a.raw step-1/b.raw; look; save step-2/a.raw step-2/b.raw; look; commits 0
         save step-3/a.raw step-3/b.raw; look; commits 1; only step-1/a.raw step-1/b.raw",
    ),
    (
        "a file with its end that the next save follows needs none either",
        "save step-1.pt; look; commits 0; save step-2.pt; look; commits 1; only step-1.pt",
    ),
    (
        "a new directory that a killed trainer left with temporary files only is moved, because a framework takes the newest",
        "huggingface . 5; wait 3; write checkpoint-6/.tmpAb12 x; kill; torn checkpoint-6/.tmpAb12; resume checkpoint-5 5",
    ),
    (
        "two series are a tree",
        "save model_100.pt optim_100.pt; wait 8; save model_200.pt optim_200.pt; wait 8; count 4; resume . -",
    ),
    (
        "the newest checkpoint is the one that was finished last",
        "save epoch_2.pt; wait 8; save epoch_1.pt; wait 8; resume epoch_1.pt 1; lose; resume epoch_1.pt 1",
    ),
    (
        "a number that starts again is no reason to go back",
        "save epoch_1_step_500.pt; wait 8; save epoch_2_step_100.pt; wait 8; stored epoch_2_step_100.pt; kill; torn",
    ),
    (
        "a numbered directory without a file of the previous one waits",
        "save step_100/a.pt step_100/b.pt; wait 8; save step_200/a.pt; wait 26; commits 1; kill; torn step_200/a.pt
         resume step_100 100; save step_200/a.pt; wait 70; stored step_200/a.pt",
    ),
    (
        "a number that is the same in every save is not a step",
        "save step-1/00/01.bin step-1/00/02.bin step-1/00/03.bin; wait 26; commits 1
         save step-2/00/01.bin step-2/00/02.bin step-2/00/03.bin; wait 26; commits 2
         save step-3/00/01.bin step-3/00/02.bin step-3/00/03.bin; wait 26; commits 3",
    ),
    (
        "keep-saves drops the files of older saves",
        "keep 2; save tokenizer.json; save r/m_1_0.pt r/m_1_1.pt r/o_1.pt; wait 8; save r/m_2_0.pt r/m_2_1.pt r/o_2.pt
         wait 8; save r/m_3_0.pt r/m_3_1.pt r/o_3.pt; wait 8
         only r/m_2_0.pt r/m_2_1.pt r/m_3_0.pt r/m_3_1.pt r/o_2.pt r/o_3.pt tokenizer.json",
    ),
    (
        "a deletion is committed after a quiet period, but not that of the newest save",
        "save r/a_1.pt r/b.pt; wait 8; save r/a_2.pt r/b.pt; wait 8; remove r/a_1.pt; wait 1; commits 2; wait 8; commits 3
         only r/a_2.pt r/b.pt; remove r/b.pt; wait 20; commits 3; save r/a_3.pt; wait 8; only r/a_2.pt r/a_3.pt",
    ),
    (
        "nor that of the newest checkpoint whose files only begin with its name",
        "save t/ckpt-1.index t/ckpt-1.data-00000-of-00001 t/ckpt-2.index t/ckpt-2.data-00000-of-00001
         write t/checkpoint all_model_checkpoint_paths: \"ckpt-1\" all_model_checkpoint_paths: \"ckpt-2\"; wait 8; count 5
         remove t/ckpt-1.index; remove t/ckpt-1.data-00000-of-00001; wait 8; commits 2; count 3
         remove t/ckpt-2.index; remove t/ckpt-2.data-00000-of-00001; wait 20; commits 2; count 3",
    ),
    (
        "a known format is committed by its newest complete unit and the best one, with the rest",
        "huggingface out 5; save out/ema.pt; wait 8; huggingface out 10
         write out/checkpoint-10/trainer_state.json {\"global_step\": 10, \"best_model_checkpoint\": \"/x/checkpoint-5\"}
         wait 3; resume out/checkpoint-10 10; stored out/checkpoint-5/optimizer.pt
         huggingface out 15; wait 3; stored out/checkpoint-5/optimizer.pt
         huggingface out 20; wait 3; without checkpoint-5/; stored out/ema.pt out/checkpoint-10/optimizer.pt
         save out/checkpoint-15/merged.safetensors; wait 3; stored out/checkpoint-15/merged.safetensors
         resume out/checkpoint-20 20; save out/checkpoint-25/config.json out/checkpoint-25/model.safetensors; kill
         torn out/checkpoint-25/config.json out/checkpoint-25/model.safetensors; resume out/checkpoint-20 20",
    ),
    (
        "a checkpoint of Hugging Face without its state is incomplete, and where none ever had it, it is the rest",
        "save checkpoint-5/model.safetensors checkpoint-5/training_args.bin; no-unit; wait 20; commits 1
         huggingface . 10; wait 3; save checkpoint-15/model.safetensors
         unit Incomplete trainer_state.json is not there yet; wait 20; commits 2",
    ),
    (
        "an overwritten unit must be of one save, and a unit that is being deleted does not count",
        "huggingface . 5; wait 8; save checkpoint-5/model.safetensors checkpoint-5/trainer_state.json
         unit Complete; save checkpoint-5/model.safetensors
         unit Incomplete is younger than; huggingface . 5; unit Complete; wait 3; save checkpoint-5/optimizer.pt checkpoint-5/trainer_state.json
         unit Incomplete another save; huggingface . 5; unit Complete; remove checkpoint-5/optimizer.pt
         unit Incomplete is gone",
    ),
    (
        "under a new name the proof is enough, but without earlier looks the order is checked",
        "huggingface . 5; save checkpoint-5/model.safetensors; unit Complete; push; unit Incomplete is younger than",
    ),
    (
        "several roots are parts, each ready by itself and carried while it is not",
        "deepspeed c/_actor 50; deepspeed c/_critic 50; wait 8; deepspeed c/_actor 100; deepspeed c/_critic 100; wait 8
         deepspeed c/_actor 150; save c/_critic/global_step150/mp_rank_00_model_states.pt; wait 8
         stored c/_actor/global_step150/mp_rank_00_model_states.pt c/_critic/global_step100/mp_rank_00_model_states.pt
         resume c/_actor/global_step150 150; kill; torn c/_critic/global_step150/mp_rank_00_model_states.pt
         stored c/_critic/global_step100/mp_rank_00_model_states.pt",
    ),
    (
        "each rank has its file, but files from before the start may be of fewer ranks",
        "world 2; deepspeed run 5; unit Incomplete 1 of 2 ranks'; forget; unit Complete",
    ),
    (
        "each save has the files of the one before",
        "save ep0-ba10-rank0.pt ep0-ba10-rank1.pt; wait 8; save ep0-ba20-rank0.pt
         unit Unproven no counterpart of ep0-ba10-rank1.pt; kill; resume ep0-ba10 10",
    ),
    (
        "a model and its optimizer as distributed checkpoints are one unit",
        "save e/step-5/model/__0_0.distcp e/step-5/optim/__0_0.distcp; metadata e/step-5/model; metadata e/step-5/optim
         wait 8; resume e/step-5 5; save e/step-10/model/__0_0.distcp e/step-10/optim/__0_0.distcp
         metadata e/step-10/model; wait 8; resume e/step-5 5; commits 1; metadata e/step-10/optim; wait 8
         resume e/step-10 10",
    ),
    (
        "a distributed checkpoint that one process overwrites is checked for order",
        "save last/__0_0.distcp; metadata last; push; unit Complete; save last/__0_0.distcp; push; unit Incomplete is younger than",
    ),
    (
        "a whole newer step that was not committed is found although the clock was set back",
        "huggingface . 5; wait 8; skew -1; huggingface . 10; crash; resume checkpoint-10 10; wait 8
         stored checkpoint-10/optimizer.pt",
    ),
    (
        "a file that is open for writing is not committed",
        "save model.pt; open model.pt; wait 3; state model.pt is open for writing; close; wait 1; commits 1",
    ),
    (
        "after ten looks one warning names the missing file and says what to do",
        "huggingface . 5; wait 3; save checkpoint-10/model.safetensors; wait 20
         warned trainer_state.json is not there yet, for 10 looks, so its new content is not committed
         warned --checkpoint-format tree",
    ),
    ("format tree commits everything as one tree", "format tree; huggingface . 5; save o.pt step-1/DONE; wait 20; count 8; resume . -"),
    ("only the chosen format is committed", "format huggingface; huggingface . 5; save o.pt; wait 20; count 6; without o.pt"),
    ("and without a checkpoint of it nothing is committed", "format composer; huggingface . 5; save o.pt; wait 20; count 0"),
    (
        "a file that the run rewrites after the proof needs a new proof",
        "huggingface . 5; look; save checkpoint-5/model.safetensors; look; unit Incomplete is younger than
         save checkpoint-5/trainer_state.json; look; unit Complete",
    ),
    (
        "a marker is a proof",
        "marker DONE; save step-1/w.bin step-1/DONE; save step-2/w.bin; wait 20; only step-1/DONE step-1/w.bin",
    ),
    ("a format needs the marker as well", "format huggingface; marker DONE; huggingface . 5; wait 20; count 0"),
    (
        "the step of a tree is the number that the expression finds in the youngest path",
        r"step _(\d+)\.weights$; save b/y_1000.weights b/y_last.weights; wait 8; save b/y_2000.weights b/y_last.weights
          wait 8; resume . 2000",
    ),
    (
        "explain names the rule that decided",
        "huggingface out 5; save out/a.tmp out/ema.pt wandb/run-1/x.pt; finish; explain out/a.tmp *.tmp
         explain wandb/run-1/x.pt wandb/; explain out/checkpoint-5/optimizer.pt huggingface member of out/checkpoint-5
         explain out/checkpoint-5 huggingface; explain out huggingface holds 1; explain out/ema.pt rest nothing is new
         save out/ema.pt; look; explain out/ema.pt rest waiting: out/ema.pt changed; explain nothing not there",
    ),
    (
        "links that lead out of the directory are omitted, and a link alone is not a series",
        "save run/model.pt; write run/loop -> loop; write run/up -> ../../etc/passwd; wait 8; only run/loop run/model.pt
         explain run/up a symbolic link that leaves; write ckpt-5.index -> run/model.pt; no-unit",
    ),
];

#[test]
fn each_life_meets_its_assertions() {
    let fails = |life: &&(&str, &str)| std::panic::catch_unwind(|| Dir::new().play(life.0, life.1)).is_err();
    let failed: Vec<&str> = LIVES.iter().filter(fails).map(|life| life.0).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_tree_is_committed_whole_after_each_save_under_any_directory_name() {
    let layouts: [&[&str]; 9] = [
        &["epoch_N.pth", "last_checkpoint"],
        &["my_lora_00000N.safetensors", "optimizer.pt"],
        &["model_0000N.bin", "state_0000N_00000.bin", "state_0000N_00001.bin", "DONE_0000N"],
        &["checkpoint_1_N-model_part-0-shard0.pt", "checkpoint_1_N-model_part-1-shard0.pt"],
        &["model.iterN.npz", "model.npz", "model.npz.optimizer.npz", "model.npz.progress.yml"],
        &["step-N/model/.zarray", "step-N/model/0.0", "step-N/metadata.json"],
        &["generator.pt", "discriminator.pt", "sample-N.pt"],
        &["checkpoint.0.N.pt", "FNO.0.N.mdlus"],
        &["actor/model.pt", "critic/model.pt"],
    ];
    for (files, run) in layouts.iter().flat_map(|files| RUNS.map(|run| (files, run))) {
        let mut dir = Dir::new();
        for save in ["1", "2", "3"] {
            let names: Vec<String> = files.iter().map(|name| join(run, &name.replace('N', save))).collect();
            let names = names.join(" ");
            let no_step = if run.is_empty() { "" } else { "resume . -" };
            let life = format!("save {names}; write train.log x; wait 8; commits {save}; stored {names}; {no_step}");
            dir.play(run, &life);
        }
        dir.play(run, "without train.log");
    }
}

#[test]
fn texts_never_delay_a_commit_and_are_committed_when_they_are_unchanged() {
    let mut dir = Dir::new();
    for number in 0..60 {
        let save = if number == 5 { "save model.bin" } else { "" };
        dir.play("texts grow", &format!("write t.out {number}; write m.jsonl {number}; {save}; wait 0.5"));
    }
    dir.play("the model was committed", "commits 1; write latest.txt 100; wait 8; stored latest.txt t.out; commits 2");
    assert!(!dir.stored.expect("is committed").0.is_new_content, "a text is not progress");
}

#[test]
fn a_lock_that_a_trainer_holds_for_its_whole_life_never_delays_a_commit() {
    let mut dir = Dir::new();
    dir.play(
        "a lock",
        "write run1/train.lock ; open run1/train.lock; save run1/model.bin; wait 8; commits 1; only run1/model.bin",
    );
}

#[test]
fn json_with_a_value_on_each_line_is_a_text_and_other_json_is_not() {
    let mut dir = Dir::new();
    for number in 0..20 {
        dir.write("metrics.json", format!("{{\"loss\":1}}\n{{\"loss\":{number}}}\n"));
        dir.play("the log grows", "open metrics.json; wait 0.5");
    }
    dir.play("a save", "save model.pth");
    for number in 20..40 {
        dir.write("metrics.json", format!("{{\"loss\":1}}\n{{\"loss\":{number}}}\n"));
        dir.play("the log grows", "open metrics.json; wait 0.5");
    }
    dir.play("the save is committed", "commits 1; only metrics.json model.pth");
    for value in ["{\"loss\":1}", "{\"loss\":1}\n", "{\n\"loss\":1\n}\n"] {
        let mut dir = Dir::new();
        dir.write("state.json", value);
        dir.play(value, "save model.pth; open state.json; wait 4; commits 0");
    }
}

#[test]
fn files_that_cannot_be_copied_are_omitted_with_the_reason() {
    let mut dir = Dir::new();
    dir.save("run/model.pt");
    let mut entries = dir.listing().entries().to_vec();
    let odd = |path: &str, kind: Kind| Entry { path: path.to_owned(), kind, ..entries[0].clone() };
    let more = [
        odd("run/sock", Kind::NoContent("a socket")),
        odd("run/\u{fffd}.pt", Kind::Uncopyable("its name is not UTF-8")),
    ];
    entries.extend(more);
    let listing = Listing::new(entries);
    let scan = Scan { listing: &listing, peek: &dir.files, options: &dir.options };
    let found = partition(&scan, dir.tracker.history());
    let why: Vec<&str> = found.excluded.iter().map(|(_, why)| why.as_str()).collect();
    assert!(why.contains(&"a socket") && why.contains(&"its name is not UTF-8"), "{why:?}");
}

#[test]
fn an_unknown_format_is_refused_with_the_known_names() {
    assert!(Format::parse("torch").expect_err("is none").contains("huggingface"));
}

#[test]
fn a_file_that_grows_and_is_whole_at_each_look_is_copied_as_it_stands_and_holds_nothing_back() {
    let mut dir = Dir::new();
    dir.play("the first save", "save model.raw; wait 8; commits 1; save model.raw; look");
    for count in 1..20 {
        dir.write("log.json", format!("[{}1]", "1, ".repeat(count)));
        dir.look(Writer::Running);
    }
    dir.play("the log grows", "commits 2; stored model.raw");
}

#[test]
fn half_a_save_beside_the_last_commit_of_a_killed_trainer_is_moved_at_the_next_start() {
    let mut dir = Dir::new();
    dir.play("a life", "huggingface . 5; wait 3; huggingface . 6; save checkpoint-7/config.json");
    dir.look(Writer::Killed);
    dir.play("the next start", "commits 2; crash; torn checkpoint-7/config.json; resume checkpoint-6 6");
}
