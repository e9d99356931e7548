//! A restored checkpoint has the modes of its directories.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::checkpoints::{Place, save_in};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directories_are_restored_with_their_modes() {
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
    assert!(manifest.get("unit_mode").is_none(), "an ordinary mode is not stored");
    let modes = [("", 0o770), ("layers", 0o2707), ("empty", 0o555)];
    save_in(&place.local(), 2);
    let unit = place.local().join("step-2");
    fs::create_dir(unit.join("empty")).unwrap();
    for (directory, mode) in modes {
        set_mode(&unit.join(directory), mode);
    }
    place.push();
    let pulled = place.pull_afresh("pulled").join("step-2");
    let restored = modes.map(|(directory, _)| mode(&pulled.join(directory)));
    assert_eq!(restored, [0o770, 0o707, 0o755], "each owner can still use the directory");
    assert!(place.checkpoint_in("pull", &place.path("pulled")).output().out().contains("is already in place"));
}
