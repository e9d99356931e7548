//! The metrics file on full disks and mounts, without permission, and at paths that are not regular files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::metrics::file::{scripted, without_power};
use crate::metrics::report_metric::{folder, lines, needs_root, report};
use crate::support::{Trainit, eventually};

const FULL: &str = "mount -t tmpfs -o size=4k none \"$DIR\" && printf '{\"x\": \"%s\"}\\n' \"$(head -c $((FILL)) /dev/zero | tr '\\0' x)\" >\"$FILE\" && \
     cp \"$FILE\" /dev/shm/before-$$ && \"$@\"; code=$?; cmp \"$FILE\" /dev/shm/before-$$ && echo is unchanged; rm /dev/shm/before-$$; exit $code";

#[test]
fn a_full_disk_leaves_the_file_unchanged_and_is_reported() {
    needs_root!();
    // An append that needs another page, and a trim that would make the file longer.
    for args in [&["a", "1"][..], &["a", "1", "--keep", "1", "--checkpoint-path", &"y".repeat(4100)]] {
        let (_dir, file) = folder();
        let done = scripted(&file, true, &FULL.replace("FILL", "4030"), args).expect_code(1);
        assert!(done.out().contains("is unchanged"), "{}", done.out());
        assert!(done.err().contains("space") && done.err().contains("free some space"), "{}", done.err());
    }
}

#[test]
fn a_file_size_limit_is_an_error_and_does_not_kill() {
    let (_dir, file) = folder();
    let old = format!("{{\"x\": \"{}\"}}\n", "x".repeat(490));
    fs::write(&file, &old).unwrap();
    let done = scripted(&file, false, "ulimit -f 1; exec \"$@\"", &["a", "1"]);
    assert_eq!(done.code(), 1, "{}", done.err());
    assert_eq!(fs::read_to_string(&file).unwrap(), old);
}

#[test]
fn a_closed_stderr_loses_no_report() {
    let (_dir, file) = folder();
    scripted(&file, false, "exec \"$@\" 2>&-", &["a b", "1"]).expect_code(0);
    scripted(&file, false, "{ \"$@\"; echo $? >\"$DIR/code\"; } 2>&1 >/dev/null | true", &["a b", "1"]).expect_code(0);
    eventually("the second report", || fs::read_to_string(file.with_file_name("code")).is_ok_and(|c| c == "0\n"));
    assert_eq!(lines(&file).len(), 2);
}

#[test]
fn a_read_only_mount_is_named_with_advice() {
    needs_root!();
    let (_dir, file) = folder();
    fs::write(&file, "{}\n").unwrap();
    let done = scripted(&file, true, "mount --bind -o ro \"$DIR\" \"$DIR\" && exec \"$@\"", &["a", "1"]).expect_code(1);
    assert!(done.err().contains("Read-only file system") && done.err().contains("mount it writable"), "{}", done.err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");
}

#[test]
fn a_file_or_folder_without_permission_is_named() {
    let (dir, file) = folder();
    fs::write(&file, "{}\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let run = |file: &Path, args: &[&str]| {
        Trainit::through(without_power(), ["report-metric", "a", "1"])
            .args(args)
            .env("CLOUD_ML_HP_METRIC_FILE", file)
            .output()
    };
    let done = run(&file, &[]).expect_code(1);
    assert!(done.err().contains("Permission denied") && done.err().contains("output.metrics"), "{}", done.err());
    let done = run(&file, &["--best-effort"]).expect_code(0);
    assert!(done.err().contains("Permission denied"), "{}", done.err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");

    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    let done = run(&locked.join("sub/output.metrics"), &[]).expect_code(1);
    assert!(done.err().contains("make the folder") && done.err().contains("locked/sub"), "{}", done.err());
}

#[test]
fn a_file_in_a_read_only_folder_is_written() {
    let (dir, file) = folder();
    fs::write(&file, "{\"a\": \"1\"}\n").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let run = |keep: &str| {
        Trainit::through(without_power(), ["report-metric", "a", "1", "--keep", keep])
            .env("CLOUD_ML_HP_METRIC_FILE", &file)
            .output()
    };
    run("100").expect_code(0);
    run("2").expect_code(0);
    assert_eq!(lines(&file).len(), 2);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_folder_or_a_file_in_the_way_is_named() {
    let (dir, file) = folder();
    let done = report(dir.path(), ["a", "1"]).output().expect_code(1);
    assert!(done.err().contains("directory"), "{}", done.err());
    fs::write(&file, "").unwrap();
    let done = report(&file.join("x"), ["a", "1"]).output().expect_code(1);
    assert!(done.err().contains("output.metrics/x"), "{}", done.err());
    let dangling = dir.path().join("dangling");
    std::os::unix::fs::symlink("/nowhere/at/all", &dangling).unwrap();
    let done = report(&dangling, ["a", "1"]).output().expect_code(1);
    assert!(done.err().contains("dangling"), "{}", done.err());
    let done = report(&dangling.join("m"), ["a", "1"]).output().expect_code(1);
    assert!(done.err().contains("dangling: a symlink of that name has no target; create"), "{}", done.err());
}

#[test]
fn a_symlink_is_followed_and_stays() {
    let (dir, file) = folder();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for _ in 0..3 {
        report(&link, ["a", "1", "--keep", "2"]).output().expect_code(0);
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(lines(&file).len(), 2);
}

#[test]
fn a_bind_mounted_file_is_written_in_place() {
    needs_root!();
    let (dir, file) = folder();
    fs::write(&file, "").unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "").unwrap();
    let script = "mount --bind \"$DIR/outside\" \"$FILE\" && \"$@\" && \"$@\" && exec \"$@\"";
    scripted(&file, true, script, &["a", "1", "--keep", "2"]).expect_code(0);
    assert_eq!(lines(&outside).len(), 2);
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
}

#[test]
fn a_fifo_gets_the_line_and_one_without_a_reader_does_not_hang_the_report() {
    let (dir, fifo) = folder();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let done = report(&fifo, ["a", "1"]).output().expect_code(1);
    assert!(done.err().contains("no process reads this FIFO"), "{}", done.err());
    let run = |path: &Path| {
        let path = path.to_owned();
        std::thread::spawn(move || fs::read_to_string(path).unwrap())
    };
    let reader = run(&fifo);
    eventually("a reader takes the line", || report(&fifo, ["a", "1"]).output().code() == 0);
    let text = reader.join().unwrap();
    assert!(text.starts_with("{\"a\": \"1.0\"") && text.ends_with("}\n"), "{text}");
    drop(dir);
}

#[test]
fn a_device_gets_the_line_and_a_full_one_fails() {
    report(Path::new("/dev/null"), ["a", "1"]).output().expect_code(0);
    let done = report(Path::new("/dev/full"), ["a", "1"]).output().expect_code(1);
    assert!(done.err().contains("No space left"), "{}", done.err());
    let done = report(Path::new("/dev/stdout"), ["a", "1"]).output().expect_code(0);
    assert!(done.out().starts_with("{\"a\": \"1.0\""), "{}", done.out());
}

#[test]
fn missing_folders_are_made_also_by_eight_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let file = dir.path().join(format!("{round}/b/c/output.metrics"));
        let runs: Vec<_> = (0..8).map(|_| report(&file, ["a", "1"]).start()).collect();
        runs.into_iter().for_each(|run| drop(run.finish().expect_code(0)));
        assert_eq!(lines(&file).len(), 8);
    }
}

#[test]
fn the_umask_decides_the_modes_and_an_old_file_keeps_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sub/output.metrics");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let run = |args: &[&str]| {
        Trainit::through(&["sh", "-c", "umask 027; exec \"$@\"", "sh"], ["report-metric", "a", "1"])
            .args(args)
            .env("CLOUD_ML_HP_METRIC_FILE", &file)
            .output()
            .expect_code(0)
    };
    run(&[]);
    assert_eq!((mode(file.parent().unwrap()), mode(&file)), (0o750, 0o640));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
    let inode = fs::metadata(&file).unwrap().ino();
    (0..3).for_each(|_| drop(run(&["--keep", "2"])));
    assert_eq!((mode(&file), fs::metadata(&file).unwrap().ino()), (0o604, inode));
    assert_eq!(lines(&file).len(), 2);
}
