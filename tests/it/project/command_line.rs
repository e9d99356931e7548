//! Mistakes on the command line and in the configuration: one clear line each, exit 125.

use crate::support::{Trainit, binary};

#[test]
fn an_unknown_flag_is_125_and_one_line_with_the_nearest_name() {
    let done = Trainit::new(["run", "--stop-gracee", "3s", "--", "true"]).output().expect_code(125);
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    assert!(done.err().contains("--stop-grace"), "{}", done.err());
}

#[test]
fn help_is_on_stdout_and_names_the_variable_of_each_flag() {
    let done = Trainit::new(["run", "--help"]).output().expect_code(0);
    assert!(done.out().contains("TRAINIT_STOP_GRACE"), "{}", done.out());
}

#[test]
fn help_and_version_are_words_as_well_as_flags() {
    let said = |args: &[&str]| Trainit::new(args).output().expect_code(0).out();
    for (word, flag) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "checkpoint"], &["checkpoint", "--help"]),
        (&["version"], &["--version"]),
    ] {
        assert_eq!(said(word), said(flag));
    }
    for wrong in [&["help", "rnu"][..], &["help", "me", "please"], &["version", "2"]] {
        let done = Trainit::new(wrong).output().expect_code(125);
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    }
    // Words after the dashes belong to the command.
    assert_eq!(Trainit::new(["run", "--", "echo", "help"]).output().expect_code(0).out(), "help\n");
}

#[test]
fn all_mistakes_of_a_start_are_reported_together() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "stop-grace = \"soon\"\nnodes = 3\n").unwrap();
    let wrong = |sub: &str, rest: &[&str]| {
        let args = [&[sub, "--frobnicate", "3", "--max-restart", "many", "--config", file.to_str().unwrap()], rest];
        let done = Trainit::new(args.concat()).env("TRAINIT_KEEP", "few").env("TRAINIT_LEADER", "tcp://x");
        done.env("CLUSTER_SPEC", "[]").env("TF_CONFIG", "{").output().expect_code(125)
    };
    let places = [
        "--frobnicate: ",
        "--max-restart: ",
        "config.toml:2: ",
        "config.toml:1: stop-grace: ",
        "TRAINIT_KEEP: ",
        "TRAINIT_LEADER: ",
        "CLUSTER_SPEC: ",
        "TF_CONFIG: ",
    ];
    for done in [wrong("run", &["--", "true"]), wrong("inspect", &[])] {
        let said = done.err();
        let lines: Vec<&str> = said.lines().collect();
        for (place, line) in places.iter().zip(&lines) {
            assert!(line.contains(place), "{place} is not in {line}:\n{said}");
        }
    }
    let done = wrong("run", &["--", "true"]);
    assert_eq!(done.err().lines().count(), places.len() + 1);
    let last: serde_json::Value = serde_json::from_str(done.err().lines().last().unwrap()).unwrap();
    assert_eq!((&last["verdict"]["reason"], &last["trainit"]["code"]), (&"not_started".into(), &"bad_setting".into()));
}

#[test]
fn a_setting_that_depends_on_an_invalid_setting_is_not_a_second_mistake() {
    let store = ["run", "--checkpoint-store", "file:///s"];
    let lacking = Trainit::new([&store[..], &["--", "true"]].concat()).output().expect_code(125);
    assert!(lacking.err().contains("needs --checkpoint-dir"), "{}", lacking.err());
    // The unreadable flag may name the directory or the leader.
    let unread = Trainit::new([&store[..], &["--checkpoint-path=/c", "--", "true"]].concat());
    let unread = unread.env("PET_NNODES", "2").env("PET_NODE_RANK", "1").output().expect_code(125);
    assert_eq!(unread.err().lines().count(), 1, "{}", unread.err());
    let report = ["run", "--report", "loss", "--metric", "loss=loss", "--", "true"];
    assert_eq!(Trainit::new(report).output().expect_code(125).err().lines().count(), 1);
}

#[test]
fn a_malformed_cluster_and_a_wrong_setting_are_both_reported() {
    let done =
        Trainit::new(["run", "--stop-grace", "x", "--", "true"]).env("PET_NNODES", "2").env("PET_NODE_RANK", "1");
    let said = done.output().expect_code(125).err();
    assert!(said.contains("--stop-grace: ") && said.contains("PET_MASTER_ADDR: is not set"), "{said}");
}

#[test]
fn an_unknown_flag_is_refused_and_not_replaced_by_the_nearest_one() {
    let dir = tempfile::tempdir().unwrap();
    for args in [["--verdict-fil", "verdict.json"].as_slice(), &["--verdict-fil=verdict.json"]] {
        let run = Trainit::new(["run"]).args(args).args(["--", "touch", "started"]).dir(dir.path());
        let said = run.output().expect_code(125).err();
        assert!(said.contains("trainit run has no such flag; did you mean --verdict-file?"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?}");
    }
}

#[test]
fn common_first_mistakes_are_one_line_with_advice() {
    let cases: [(&[&str], &str); 15] = [
        (&["--", "true", "x"], "no subcommand given; to start a command: trainit run -- true x\n"),
        (&["runn", "--", "true"], "did you mean run?"),
        (&["python", "train.py"], "trainit run -- python ..."),
        (
            &["--stop-grace", "5s", "run", "--", "x"],
            "--stop-grace belongs after the subcommand: trainit run --stop-grace ...\n",
        ),
        (&["--json", "gpus"], "trainit gpus --json ..."),
        (&["--config=c.toml", "--", "x"], "--config belongs after the subcommand: trainit run --config ..."),
        (&["--stop", "run"], "unexpected argument '--stop' found; see trainit --help"),
        (&["run", "-g", "--", "true"], "-g: trainit run has no such flag"),
        (&["run", "--config", "/no/such.toml", "--", "true"], "; check the path, and that the file is in the image"),
        (&["run", "--config", "/", "--", "true"], "; name a file in it"),
        (&["run", "--nnodes", "2", "--node-rank", "0", "--", "true"], "or give --leader HOST:PORT"),
        (&["run", "--"], "no command given; write it after --"),
        (&["checkpoint"], "see trainit checkpoint --help"),
        (&["checkpoint", "lst"], "did you mean list?"),
        (&["inspect", "python"], "unexpected argument 'python' found; see trainit inspect --help"),
    ];
    for (args, way_out) in cases {
        let said = Trainit::new(args).output().expect_code(125).err();
        assert!(said.lines().count() == 1 && said.contains(way_out) && !said.contains("tip"), "{args:?}: {said}");
    }
}

#[test]
fn a_configuration_file_that_is_no_regular_file_or_too_large_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    nix::unistd::mkfifo(path("fifo").as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::File::create(path("huge")).unwrap().set_len(3 << 30).unwrap();
    for file in [path("fifo"), path("huge"), "/dev/zero".to_owned(), "/dev/null".to_owned()] {
        for sub in [&["run", "--config", &file, "--", "true"][..], &["inspect", "--config", &file]] {
            let said = Trainit::new(sub).output().expect_code(125).err();
            assert!(
                said.contains("cannot read") && said.contains("a regular file of at most 1 MiB"),
                "{sub:?}: {said}"
            );
        }
    }
    let linked = path("link");
    std::fs::write(path("config.toml"), "stop-grace = \"3s\"\n").unwrap();
    std::os::unix::fs::symlink(path("config.toml"), &linked).unwrap();
    Trainit::new(["run", "--config", &linked, "--", "true"]).output().expect_code(0);
}

#[test]
fn an_unknown_variable_is_reported_by_prune_too_and_once_in_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("file://{}", dir.path().display());
    let prune = ["checkpoint", "prune", "--checkpoint-store", &store];
    let done = Trainit::new(prune).env("TRAINIT_KEEP_LSAT", "10").output().expect_code(0);
    let warning =
        "trainit: warning: TRAINIT_KEEP_LSAT: no such setting, so it is ignored; did you mean TRAINIT_KEEP_LAST?\n";
    assert_eq!(done.err(), warning);
    let file = dir.path().join("metrics").display().to_string();
    let report = ["report-metric", "loss", "1", "--file", &file];
    let script = "exec \"$@\"";
    let trainit = binary();
    let run = [&["run", "--", "sh", "-c", script, "sh", trainit.to_str().unwrap()][..], &report].concat();
    let done = Trainit::new(run).env("TRAINIT_KEEEP", "10").output().expect_code(0);
    assert_eq!(done.err().matches("TRAINIT_KEEEP: no such setting").count(), 1, "{}", done.err());
}

#[test]
fn a_setting_without_effect_causes_a_warning_and_the_run_starts() {
    let done = Trainit::new(["run", "--output-prefix", "none", "--", "true"]).env("TRAINIT_GANG_PORT", "5000").output();
    let said = done.expect_code(0).err();
    for (place, missing) in [("--output-prefix", "--nproc"), ("TRAINIT_GANG_PORT", "--gang")] {
        let warning = format!("{place}: it has no effect without {missing}; give that too, or omit this");
        assert_eq!(said.matches(&warning).count(), 1, "{said}");
    }
    assert_eq!(said.matches("\"code\":\"idle_setting\"").count(), 2, "{said}");
    let shown = Trainit::new(["inspect", "--output-prefix", "none"]).output().expect_code(0).out();
    assert!(shown.contains("--nproc; give that too, or omit this [code=idle_setting]"), "{shown}");
}

#[test]
fn an_unused_variable_is_named_together_with_the_mistakes() {
    for args in [&["run", "--", "true"][..], &["inspect"], &["env"]] {
        let run = Trainit::new(args).env("TRAINIT_CHEKPOINT_DIR", "/c").env("TRAINIT_NNODES", "two");
        let done = run.output().expect_code(125);
        assert!(done.err().contains("TRAINIT_NNODES"), "{args:?}: {}", done.err());
        let names = done.err().matches("did you mean TRAINIT_CHECKPOINT_DIR?").count();
        assert_eq!(names, 1, "{args:?}: {}", done.err());
    }
}

#[test]
fn a_duration_that_would_end_every_trainer_or_keep_a_processor_busy_is_refused() {
    let dir = ["--checkpoint-dir", "checkpoints", "--checkpoint-store", "file:///nowhere"];
    for (flag, value) in [("--commit-interval", "0s"), ("--hang-timeout", "1ms"), ("--store-timeout", "1ms")] {
        let done = Trainit::new(["run"]).args(dir).args([flag, value, "--", "true"]).output().expect_code(125);
        assert!(done.err().contains("expected at least") && done.err().contains(flag), "{}", done.err());
    }
}
