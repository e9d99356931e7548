//! `--strong-hash`: a BLAKE3 of each file beside its crc32c, compared whenever a file is read in full.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::support::checkpoints::Place;

/// Files of one block, of several, and of more than one chunk's parts.
const SIZES: [(&str, usize); 4] =
    [("empty.txt", 0), ("small.bin", 5000), ("middle.bin", 3 << 20), ("large.bin", 20 << 20)];

fn saved(place: &Place) -> BTreeMap<String, String> {
    place.save(1);
    let write = |(name, size): (&str, usize)| {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        fs::write(place.local().join("step-1").join(name), &bytes).unwrap();
        (format!("step-1/{name}"), blake3::hash(&bytes).to_hex().to_string())
    };
    SIZES.into_iter().map(write).collect()
}

fn hashes(manifest: &Value) -> BTreeMap<String, Value> {
    let files = manifest["files"].as_array().unwrap().iter();
    files.map(|f| (f["path"].as_str().unwrap().to_owned(), f["blake3"].clone())).collect()
}

#[test]
fn each_file_has_its_hash_on_request_and_none_otherwise() {
    let place = Place::new();
    let wanted = saved(&place);
    place.push();
    assert!(hashes(&place.manifest().1).values().all(Value::is_null));
    place.checkpoint("verify").output().expect_code(0);
    fs::write(place.local().join("step-1/state.json"), "{}").unwrap();
    place.checkpoint("push").args(["--strong-hash"]).output().expect_code(0);
    let found = hashes(&place.manifest().1);
    assert!(found.values().all(Value::is_string), "{found:?}");
    for (path, hash) in wanted {
        assert_eq!(found[&path], hash, "{path}");
    }
    place.checkpoint("verify").output().expect_code(0);
    place.pull_afresh("elsewhere");
}

#[test]
fn bytes_that_only_the_strong_hash_tells_apart_are_found_out_by_verify_and_never_restored() {
    for (name, _) in SIZES {
        let place = Place::new();
        saved(&place);
        place.checkpoint("push").args(["--strong-hash"]).output().expect_code(0);
        let (_, mut manifest) = place.manifest();
        let path = format!("step-1/{name}");
        let files = manifest["files"].as_array_mut().unwrap();
        let file = files.iter_mut().find(|f| f["path"] == path.as_str()).unwrap();
        file["blake3"] = json!("0".repeat(64));
        place.forge(manifest);
        let done = place.checkpoint("verify").output().expect_code(1);
        assert!(done.out().contains(&format!("{path} does not match its hash: blake3 ")), "{}", done.out());
        assert!(done.out().contains("1 of 2 commits are complete"), "{}", done.out());
        let there = place.path("elsewhere");
        let done = place.checkpoint_in("pull", &there).output().expect_code(0);
        assert!(done.err().contains(&format!("{path} does not match its blake3")), "{}", done.err());
        assert!(done.out().contains("commit 0000000001-000001"), "{}", done.out());
    }
}
