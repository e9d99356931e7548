//! Unit tests of the manifest.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn good() -> Manifest {
    let manifest = json!({
        "schema": SCHEMA, "job": "j", "attempt": 3, "seq": 2, "step": 10, "node": 0, "created_unix": 1, "framework": "generic",
        "unit": "u", "total_bytes": 30,
        "files": [
            {"type": "file", "path": "u/a", "size": 10, "key": "data/u/a", "crc32c": "0123abcd", "mtime_ns": 5},
            {"type": "file", "path": "other/b", "size": 20, "key": "data/other/b", "crc32c": "0123abcd", "mode": 420},
            {"type": "symlink", "path": "u/l", "target": "../other/b"},
        ],
        "parts": [{"root": "", "unit": "u", "files": ["u/a", "u/l"]}, {"files": ["other/b"]}],
        "pointers": [{"path": "latest", "content": "u"}],
    });
    serde_json::from_value(manifest).expect("is a manifest")
}

/// Reads the manifest back after a change in the JSON, under the name that fits.
fn altered(change: impl FnOnce(&mut Value)) -> Result<Manifest, String> {
    let mut value = serde_json::to_value(good()).expect("serialises");
    change(&mut value);
    let bytes = serde_json::to_vec(&value).expect("serialises");
    Manifest::read(&CommitName::of(good().stamp(), good().step, &bytes), &bytes)
}

#[test]
fn a_written_manifest_reads_back_with_sorted_keys() {
    let (some, text) = (Some("1".to_owned()), "1".to_owned());
    let mut full =
        Manifest { attempt_tag: Some(1), copies: vec!["c".into()], home: some.clone(), gang_kept: Some(7), ..good() };
    full.pointers[0].symlink = true;
    let chunks = Some(Chunks { size: CHUNK, crc32c: vec![text] });
    let (etag, offset) = (some, Some(1));
    full.files[0] = Item { etag, chunks, offset, ..full.files[0].clone() };
    // A `Value` keeps its keys in a sorted map.
    let sorted = serde_json::to_vec(&serde_json::to_value(&full).expect("serialises")).expect("serialises");
    assert_eq!(String::from_utf8(full.bytes().expect("short")), String::from_utf8(sorted));
    let bytes = good().bytes().expect("short");
    let name = CommitName::of(good().stamp(), Some(10), &bytes);
    assert_eq!(Manifest::read(&name, &bytes), Ok(good()));
}

#[test]
fn one_flipped_bit_anywhere_is_noticed() {
    let bytes = good().bytes().expect("short");
    let name = CommitName::of(good().stamp(), Some(10), &bytes);
    for at in 0..bytes.len() {
        let mut torn = bytes.clone();
        torn[at] ^= 1;
        assert!(Manifest::read(&name, &torn).is_err());
        assert!(Manifest::read(&name, &bytes[..at]).is_err());
    }
}

/// Checks that each change to a field is refused with this text in the message.
fn refused(rows: &[(&str, Value, &str)]) {
    for (field, value, why) in rows {
        let (outer, name) = field.rsplit_once('/').expect("is a JSON pointer");
        let read = altered(|v| {
            let outer = v.pointer_mut(outer).expect("is there");
            match name.parse::<usize>() {
                Ok(at) => outer[at] = value.clone(),
                Err(_) => outer[name] = value.clone(),
            }
        });
        let error = read.err().unwrap_or_else(|| panic!("{field} is accepted"));
        assert!(error.contains(why), "{field}: {error}");
        assert!(error.len() < 1000 && !error.contains('\n'), "{field}: one short line, {} bytes", error.len());
    }
}

#[test]
fn paths_that_lead_outside_or_cannot_be_written_are_refused() {
    let (long, deep) = ("x".repeat(256), ["d"; 67].join("/"));
    let texts = ",/,/etc/passwd,../x,u/../../x,u/./x,u//x,u/,a\0b,.trainit,.trainit/tmp/x,..".split(',');
    for bad in texts.chain([long.as_str(), deep.as_str()]) {
        for field in ["/files/0/path", "/pointers/0/path", "/unit"] {
            refused(&[(field, json!(bad), "the manifest's path")]);
        }
        refused(&[("/files/0/key", json!(bad), "the manifest's key")]);
    }
}

#[test]
fn contradictions_are_refused() {
    let (long, zeros) = ("x\n".repeat(100_000), "0".repeat(7));
    let chunks = |size: u64, sums: &[&str]| json!({"size": size, "crc32c": sums});
    refused(&[
        ("/files/1/path", json!("u/a"), "twice"),
        ("/pointers/0/path", json!("u/a"), "twice"),
        ("/files/1/path", json!("u/a/b/c"), "both as a file and as a directory"),
        ("/pointers/0/path", json!("u"), "both as a file and as a directory"),
        ("/total_bytes", json!(31), "sum to 30"),
        ("/files/0/size", json!(u64::MAX), "overflow"),
        ("/files/0/size", json!(-1), "malformed"),
        ("/files/2/size", json!(1), "is not a file"),
        ("/files/0/chunks", chunks(0, &[]), "do not fit"),
        ("/files/0/chunks", chunks(5, &["00000000"]), "do not fit"),
        ("/files/0/chunks", chunks(MIN_CHUNK, &["00000000", "00000000"]), "do not fit"),
        ("/files/0/chunks", chunks(MIN_CHUNK, &[&zeros]), "do not fit"),
        ("/files/0/crc32c", json!(""), "no crc32c"),
        ("/files/0/crc32c", json!(zeros), "no crc32c"),
        ("/files/0/offset", json!(u64::MAX), "archive"),
        ("/files/0/offset", json!(-1), "malformed"),
        ("/files/0/type", json!(long), "malformed"),
        ("/schema", json!("trainit.ckpt/3"), "trainit.ckpt/3"),
        ("/schema", json!(long), "the manifest's schema"),
        ("/schema", json!(null), "malformed"),
        ("/seq", json!(9), "another commit"),
        ("/step", json!(11), "another commit"),
        ("/parts/1/files/0", json!("u/a"), "twice"),
        ("/parts/1/files/0", json!("gone"), "not among its files"),
        ("/parts/0/root", json!("../x"), "the manifest's path"),
        ("/parts/0/unit", json!("/x"), "the manifest's path"),
    ]);
    assert!(altered(|v| v["later"] = json!("addition")).is_ok(), "a later version may add a field");
}

#[test]
fn links_stay_in_the_directory_by_themselves_and_through_others() {
    for bad in ["/etc/passwd", "../../x", "", "a/../../../x", &"a/".repeat(2048)] {
        refused(&[("/files/2/target", json!(bad), "leads outside or is too long")]);
    }
    refused(&[("/pointers/0/path", json!("p".repeat(250)), "too deep")]);
    let pointer = |to: &str, symlink: bool| json!({"path": "last.ckpt", "content": to, "symlink": symlink});
    refused(&[("/pointers/0", pointer("../x", true), "leads outside")]);
    for good in [pointer("u/a", true), pointer("../x", false)] {
        assert_eq!(altered(|v| v["pointers"][0] = good).err(), None);
    }
    let with = |links: &[(&str, &str)]| {
        altered(|v| {
            for (path, target) in links {
                let mut link = v["files"][2].clone();
                (link["path"], link["target"]) = (json!(path), json!(target));
                v["files"].as_array_mut().expect("a list").push(link);
            }
        })
    };
    assert!(with(&[("d/d/up", "../../"), ("d/d/out", "up/../etc/passwd")]).is_err_and(|why| why.contains("out")));
    assert!(with(&[("d/d/up", "../.."), ("d/d/out", "up/../../x")]).is_err());
    assert_eq!(with(&[("d/d/up", "../../"), ("d/d/in", "up/d/x"), ("x1", "x2"), ("x2", "x1")]).err(), None);
}

#[test]
fn the_sums_of_two_ranges_join_to_the_sum_of_both_at_any_boundary() {
    // The first four bytes have the sum 0, the same as no bytes.
    let zero = b"\xab\x9b\xe0\x9b and so on".as_slice();
    assert_eq!(crc32c::crc32c(&zero[..4]), 0);
    for bytes in [b"weights and biases".as_slice(), zero, &[0; 40], &[]] {
        for at in 0..=bytes.len() {
            let (before, after) = bytes.split_at(at);
            let both = joined(crc32c::crc32c(before), crc32c::crc32c(after), after.len() as u64);
            assert_eq!(both, crc32c::crc32c(bytes), "{bytes:?} at {at}");
        }
    }
}

#[test]
fn endless_nesting_is_refused_and_not_followed() {
    for head in ["", r#"{"x":"#, r#"{"schema":"trainit.ckpt/1","files":"#] {
        let bytes = format!("{head}{}", "[".repeat(1_000_000)).into_bytes();
        let name = CommitName::of(good().stamp(), good().step, &bytes);
        assert!(Manifest::read(&name, &bytes).is_err());
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let name = CommitName::of(good().stamp(), Some(10), &bytes);
        let _ = Manifest::read(&name, &bytes);
    }

    #[test]
    fn an_accepted_path_stays_beneath(text in "[a./\0]{0,12}|[.]{1,3}/?[a.]{0,3}") {
        if path(&text).is_ok() {
            let parts: Vec<&str> = text.split('/').collect();
            prop_assert!(parts.iter().all(|p| !p.is_empty() && *p != "." && *p != ".."));
            prop_assert!(!text.contains('\0') && !text.starts_with('/'));
        }
    }
}

#[test]
fn an_archive_is_as_long_as_its_files_need_and_another_object_as_its_file() {
    let alone = &good().files[0];
    assert!(alone.fits(10) && !alone.fits(9) && !alone.fits(11));
    let inside = Item { offset: Some(512), ..alone.clone() };
    assert!(inside.fits(522) && inside.fits(9999) && !inside.fits(521) && !inside.fits(10));
    assert_eq!(inside.run(), 512..522);
}

#[test]
fn a_commit_of_an_earlier_version_is_one_part() {
    for schema in [ONE_UNIT, ONE_UNIT_WITH_ARCHIVES] {
        let earlier = altered(|v| {
            v["schema"] = json!(schema);
            v["parts"] = json!([]);
        });
        let parts = earlier.expect("is read").parts();
        let found = (parts.len(), parts[0].unit.as_deref(), parts[0].step, parts[0].files.len());
        assert_eq!(found, (1, Some("u"), Some(10), 3));
    }
}
