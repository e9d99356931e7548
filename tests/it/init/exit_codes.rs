//! Exit codes and the verdict.

use std::fs;
use std::process::Command;

use crate::support::Trainit;

#[test]
fn every_exit_code_of_the_command_is_passed_through() {
    for code in 0..=255 {
        let done = Trainit::run(["sh", "-c", &format!("exit {code}")]).output().expect_code(code);
        assert_eq!(done.verdict()["child_code"], code);
    }
}

#[test]
fn a_command_killed_by_a_signal_is_128_and_its_number() {
    for (name, number) in [("KILL", 9), ("SEGV", 11), ("ABRT", 6), ("USR1", 10), ("RTMIN", 34)] {
        let done = Trainit::run(["bash", "-c", &format!("kill -{name} $$; sleep 1000")]).output();
        let verdict = done.expect_code(128 + number).verdict();
        assert_eq!(
            (verdict["child_signal"].as_i64(), verdict["reason"].as_str()),
            (Some(number.into()), Some("signalled"))
        );
    }
}

#[test]
fn a_flag_where_the_command_belongs_is_127_and_says_where_flags_go() {
    let done = Trainit::run(["--hang-timeout", "5s", "--", "true"]).output().expect_code(127);
    assert!(
        done.err().contains("command not found: --hang-timeout; the command follows trainit run --"),
        "{}",
        done.err()
    );
}

#[test]
fn a_missing_command_is_127_and_says_what_to_do() {
    let done = Trainit::run(["no-such-command"]).output().expect_code(127);
    let verdict = done.verdict();
    assert_eq!(verdict["reason"], "not_started");
    assert!(verdict["detail"].as_str().unwrap().contains("no-such-command"));
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
}

#[test]
fn a_file_that_cannot_be_executed_gives_126() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let interpreter = write("denied", "", 0o644);
    let foreign = [b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xed\xfe".as_slice(), &[0; 100]].concat();
    let foreign_path = write("foreign", "", 0o755);
    fs::write(&foreign_path, foreign).unwrap();
    let cases = [
        (write("not-executable", "#!/bin/sh\n", 0o644), "permission denied"),
        (write("no-interpreter", "#!/no/such/interpreter\n", 0o755), "its interpreter /no/such/interpreter, named"),
        (write("windows", "#!/bin/sh\r\nexit\r\n", 0o755), "ends in a carriage return"),
        (write("denied-too", &format!("#!{}\n", interpreter.display()), 0o755), "this user may not execute "),
        (write("no-shebang", "echo no shell runs this\n", 0o755), "#!"),
        (foreign_path, "built for machine number 65261"),
        (dir.path().to_owned(), "is a directory"),
        ("/dev/null".into(), "not a regular file"),
    ];
    for (path, word) in cases {
        let done = Trainit::run([&path]).output().expect_code(126);
        assert!(done.verdict()["detail"].as_str().unwrap().contains(word), "{}", done.err());
        assert!(!done.out().contains("no shell"));
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    }
}

#[test]
fn a_word_that_is_not_the_name_of_a_program_is_explained_and_stays_127() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.py"), "").unwrap();
    let script = dir.path().join("torchrun");
    fs::write(&script, "#!/old/prefix/bin/python\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let cases: [(&[&str], i32, &str); 8] = [
        (&["python train.py --x 1"], 127, "the whole command line is one word"),
        (&[""], 127, "the command is empty"),
        (&["--", "true"], 127, "one -- is too many"),
        (&["ulimit", "-n", "9"], 127, "it is a shell builtin"),
        (&["A=1", "python"], 127, "write env A=... python"),
        (&["train.py"], 127, " train.py, or ./train.py"),
        (&["torchrun"], 127, "its interpreter /old/prefix/bin/python, named"),
        (&[".", "env.sh"], 126, "it is a shell builtin"),
    ];
    for (command, code, words) in cases {
        let path = if command[0] == "torchrun" { path.as_str() } else { "/usr/bin:/bin" };
        let done = Trainit::run(command).dir(dir.path()).env("PATH", path).output().expect_code(code);
        assert!(done.verdict()["detail"].as_str().unwrap().contains(words), "{command:?}: {}", done.err());
    }
}

#[test]
fn no_command_and_bad_settings_are_125_with_every_mistake_named() {
    let done = Trainit::new(["run", "--stop-grace", "soon", "--max-restarts", "many"]).output().expect_code(125);
    for word in ["--stop-grace", "\\\"soon\\\"", "--max-restarts", "no command given"] {
        assert!(done.err().contains(word), "{word}: {}", done.err());
    }
    assert_eq!(done.verdict()["reason"], "not_started");
}

#[test]
fn an_empty_path_is_a_mistake_and_an_empty_variable_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, "verdict-file = \"\"\n").unwrap();
    let from_file = ["run", "--config", file.to_str().unwrap(), "--", "echo", "started"];
    let cases: [&[&str]; 4] = [
        &["run", "--verdict-file", " ", "--", "echo", "started"],
        &["run", "--config=", "--", "echo", "started"],
        &from_file,
        &["status", "--socket", ""],
    ];
    for args in cases {
        let done = Trainit::new(args).output().expect_code(125);
        assert!(done.err().contains("found nothing") && done.out().is_empty(), "{args:?}: {}", done.err());
        assert_eq!(done.err().lines().count(), 1, "{args:?}: {}", done.err());
    }
    let empty = Trainit::run(["true"]).env("TRAINIT_CHECKPOINT_DIR", "").env("TRAINIT_VERDICT_FILE", " ");
    assert_eq!(empty.output().expect_code(0).verdict()["committed_step"], serde_json::Value::Null);
}

#[test]
fn a_demand_of_zero_gpus_starts_without_a_gpu() {
    for demand in [["--require-gpus", "0"], ["--min-gpu-memory", "0"]] {
        Trainit::new(["run"]).args(demand).args(["--", "true"]).output().expect_code(0);
    }
}

#[test]
fn exit_codes_are_remapped_last() {
    let done = Trainit::new(["run", "--remap-exit", "3:0", "--", "sh", "-c", "exit 3"]).output().expect_code(0);
    let verdict = done.verdict();
    assert_eq!((verdict["exit_code"].as_i64(), verdict["child_code"].as_i64()), (Some(0), Some(3)));
    for args in
        [&["--remap-exit", "125:0", "--require-gpus", "999"][..], &["--remap-exit", "125:0", "--stop-grace", "x"]]
    {
        let done = Trainit::new(["run"]).args(args).args(["--", "true"]).output().expect_code(0);
        assert_eq!(done.verdict()["reason"], "not_started");
    }
}

#[test]
fn every_last_line_that_is_an_error_has_a_code_in_both_forms() {
    let ended = |args: &[&str], format: &str| {
        Trainit::new(["run", "--log-format", format]).args(args).output().err().lines().last().unwrap().to_owned()
    };
    let endings: [(&[&str], Option<&str>); 4] = [
        (&["--", "no-such-command"], Some("not_started")),
        (&["--", "false"], Some("failed")),
        (&["--stop-grace", "soon", "--", "true"], Some("bad_setting")),
        (&["--", "true"], None),
    ];
    for (args, code) in endings {
        let line: serde_json::Value = serde_json::from_str(&ended(args, "json")).unwrap();
        assert_eq!(line["trainit"]["code"].as_str(), code, "{line}");
        let text = ended(args, "text");
        let is_there = code.map_or(!text.contains("[code="), |code| text.contains(&format!("[code={code} ")));
        assert!(is_there, "{text}");
    }
}

#[test]
fn the_verdict_has_every_key_and_goes_to_the_file_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("verdict.json");
    let done = Trainit::new(["run", "--log-level", "error", "--verdict-file", path.to_str().unwrap(), "--", "true"])
        .output()
        .expect_code(0);
    assert_eq!(done.err().lines().count(), 1, "only the verdict at this level: {}", done.err());
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(written, done.verdict());
    let mut keys: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "attempts",
        "child_code",
        "child_signal",
        "committed_step",
        "detail",
        "exit_code",
        "goodput",
        "metrics",
        "oom",
        "peak_memory_bytes",
        "reason",
        "resumed_step",
        "seconds",
        "step",
        "xids",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn the_folder_of_a_verdict_file_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out/of/it.json");
    let done = Trainit::run(["true"]).env("TRAINIT_VERDICT_FILE", &path).output().expect_code(0);
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(written, done.verdict());
}

#[test]
fn a_verdict_file_that_cannot_be_written_is_a_warning_and_changes_no_code() {
    let done = Trainit::new(["run", "--verdict-file", "/proc/nowhere", "--", "sh", "-c", "exit 4"]).output();
    assert!(done.expect_code(4).err().contains("/proc/nowhere"));
}

#[test]
fn a_verdict_file_that_is_the_log_is_appended_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.log");
    for name in ["/dev/stdout", "/dev/stderr", path.to_str().unwrap()] {
        let log = fs::File::create(&path).unwrap();
        let mut trainit = Trainit::new(["run", "--verdict-file", name, "--", "echo", "trained"]);
        trainit.command().stdout(log.try_clone().unwrap()).stderr(log);
        assert!(trainit.command().status().unwrap().success());
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines.contains(&"trained")), (5, true), "{name}: {text}");
        let [verdict, last] = [3, 4].map(|at| serde_json::from_str::<serde_json::Value>(lines[at]).unwrap());
        assert_eq!(verdict, last["verdict"], "{name}: {text}");
    }
}

#[test]
fn a_verdict_file_that_is_a_fifo_without_a_reader_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let done = Trainit::new(["run", "--verdict-file", fifo.to_str().unwrap(), "--", "sh", "-c", "exit 4"]).output();
    let done = done.expect_code(4);
    assert!(done.err().contains("the verdict could not be written"), "{}", done.err());
    assert_eq!(done.verdict()["reason"], "failed");
}

#[test]
fn a_verdict_file_that_cannot_be_written_is_reported_with_what_to_do() {
    let done = Trainit::new(["run", "--verdict-file", "/proc/nobodys/verdict.json", "--", "true"]).output();
    let said = done.expect_code(0).err();
    assert!(said.contains("make it writable for this user, or name another --verdict-file"), "{said}");
}

#[test]
fn crashes_are_restarted_within_the_budget_and_numbered() {
    let done = Trainit::new(["run", "--max-restarts", "2", "--restart-backoff", "1ms..2ms", "--"])
        .args(["sh", "-c", "echo attempt $TRAINIT_ATTEMPT; exit $TRAINIT_ATTEMPT$TRAINIT_ATTEMPT"])
        .output()
        .expect_code(33);
    assert_eq!(done.out(), "attempt 1\nattempt 2\nattempt 3\n");
    assert_eq!(done.verdict()["attempts"], 3);
}

#[test]
fn a_restart_that_succeeds_is_a_success() {
    let script = "[ $TRAINIT_ATTEMPT = 2 ] || exit 9";
    let done = Trainit::new(["run", "--max-restarts", "3", "--restart-backoff", "1ms", "--", "sh", "-c", script])
        .output()
        .expect_code(0);
    let verdict = done.verdict();
    assert_eq!((verdict["attempts"].as_i64(), verdict["reason"].as_str()), (Some(2), Some("finished")));
}

#[test]
fn an_attempt_begins_only_when_the_old_tree_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let script = "[ -e busy ] && exit 50; [ $TRAINIT_ATTEMPT = 2 ] && exit 0; \
                  touch busy; setsid sh -c 'trap \"sleep 0.3; rm busy; exit\" TERM; touch ready; while :; do sleep 0.01; done' & \
                  while [ ! -e ready ]; do sleep 0.01; done; exit 9";
    Trainit::new(["run", "--max-restarts", "1", "--restart-backoff", "1ms", "--", "sh", "-c", script])
        .dir(dir.path())
        .output()
        .expect_code(0);
}
