//! A checkpoint that is put back as it was: the modes of its directories, and what names it where the directory is
//! another.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::Trainit;
use crate::support::checkpoints::{Place, save_in};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directories_come_back_with_their_modes() {
    let place = Place::new();
    place.save(1);
    let unit = place.local().join("step-1");
    fs::create_dir(unit.join("empty")).unwrap();
    for (directory, mode) in [("", 0o755), ("layers", 0o755), ("empty", 0o755)] {
        set_mode(&unit.join(directory), mode);
    }
    place.push();
    let manifest = place.manifest().1;
    let paths: Vec<&str> = manifest["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["step-1/empty", "step-1/layers/0.bin", "step-1/state.json", "step-1/weights.bin"]);
    assert!(manifest.get("unit_mode").is_none(), "what is ordinary takes no room");
    let modes = [("", 0o770), ("layers", 0o2707), ("empty", 0o555)];
    save_in(&place.local(), 2);
    let unit = place.local().join("step-2");
    fs::create_dir(unit.join("empty")).unwrap();
    for (directory, mode) in modes {
        set_mode(&unit.join(directory), mode);
    }
    place.push();
    let there = place.pull_afresh("there").join("step-2");
    let restored = modes.map(|(directory, _)| mode(&there.join(directory)));
    assert_eq!(restored, [0o770, 0o707, 0o755], "whoever owns one can go on using it");
    assert!(place.checkpoint_in("pull", &place.path("there")).output().out().contains("is in place already"));
}

/// What a pointer in `from` says, after its checkpoint is restored into `to`.
fn restored_pointer(place: &Place, content: &str, to: &Path) -> (String, String) {
    fs::write(place.local().join("last_checkpoint"), content).unwrap();
    let done = place.push();
    assert!(done.out().starts_with("committed"), "{}", done.out());
    let url = place.url();
    let run = ["run", "--checkpoint-store", &url, "--checkpoint-dir", to.to_str().unwrap(), "--", "true"];
    let done = Trainit::new(run).output().expect_code(0);
    (fs::read_to_string(to.join("last_checkpoint")).unwrap(), done.err())
}

#[test]
fn a_pointer_that_names_its_checkpoint_by_its_path_names_it_where_it_is_put() {
    for (number, of_content) in ["{}/step-1", " {}/step-1/\n"].iter().enumerate() {
        let place = Place::new();
        place.save(1);
        let (here, there) = (place.local().display().to_string(), place.path("there"));
        let (said, log) = restored_pointer(&place, &of_content.replace("{}", &here), &there);
        assert_eq!(said, of_content.replace("{}", &there.display().to_string()), "{number}");
        assert!(log.contains("last_checkpoint named step-1 by its path in") && log.contains(&here), "{log}");
        fs::remove_dir_all(place.local()).unwrap();
        place.checkpoint("pull").output().expect_code(0);
        let back = fs::read_to_string(place.local().join("last_checkpoint")).unwrap();
        assert_eq!(back, of_content.replace("{}", &here), "bit for bit where it was saved");
    }
}

#[test]
fn a_pointer_to_where_only_its_trainer_sees_the_directory_stays_as_it_is() {
    let place = Place::new();
    place.save(1);
    for content in ["/in/a/container/step-1", "step-1"] {
        let there = place.path(&format!("there-{}", content.len()));
        place.save(1);
        fs::write(place.local().join("step-1/more.bin"), content).unwrap();
        let (said, log) = restored_pointer(&place, content, &there);
        assert_eq!(said, content);
        assert!(!log.contains("by its path in"), "{log}");
    }
}
