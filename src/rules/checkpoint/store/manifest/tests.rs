//! Unit tests of the manifest.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn good() -> Manifest {
    let file = |path: &str, size| Item {
        path: path.into(),
        kind: ItemKind::File,
        size,
        mode: 0o644,
        mtime_ns: 5,
        key: format!("data/{path}"),
        target: None,
        etag: None,
        offset: None,
        generation: None,
        crc32c: "0123abcd".into(),
        chunks: None,
        blake3: None,
    };
    let link = Item {
        kind: ItemKind::Symlink,
        target: Some("b".into()),
        key: String::new(),
        crc32c: String::new(),
        ..file("u/l", 0)
    };
    Manifest {
        schema: SCHEMA.into(),
        job: "j".into(),
        attempt: 3,
        attempt_tag: None,
        seq: 2,
        step: Some(10),
        unit: "u".into(),
        framework: "generic".into(),
        world_size: None,
        node: 0,
        created_unix: 1,
        parent: None,
        best_step: None,
        unit_mode: None,
        home: None,
        total_bytes: 30,
        files: vec![file("u/a", 10), file("u/b", 20), link],
        pointers: vec![Pointer { path: "latest".into(), content: "u".into(), symlink: false }],
        copies: vec![],
    }
}

/// Reads it back after a change in the JSON, the name made to fit.
fn altered(change: impl FnOnce(&mut Value)) -> Result<Manifest, String> {
    let mut value = serde_json::to_value(good()).expect("serialises");
    change(&mut value);
    let bytes = serde_json::to_vec(&value).expect("serialises");
    Manifest::read(&CommitName::of(good().stamp(), good().step, &bytes), &bytes)
}

#[test]
fn what_was_written_reads_back_and_its_keys_are_sorted() {
    let (some, text) = (Some("1".to_owned()), "1".to_owned());
    let mut full = Manifest {
        attempt_tag: Some(1),
        best_step: Some(1),
        copies: vec!["c".into()],
        home: some.clone(),
        unit_mode: Some(0o700),
        ..good()
    };
    full.pointers[0].symlink = true;
    let chunks = Some(Chunks { size: CHUNK, crc32c: vec![text] });
    let (etag, generation, blake3, offset) = (some.clone(), some.clone(), some, Some(1));
    full.files[0] = Item { etag, generation, blake3, chunks, offset, ..full.files[0].clone() };
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

#[test]
fn hostile_paths_are_refused() {
    let long = "x".repeat(256);
    let deep = ["d"; 67].join("/");
    let texts = ",/,/etc/passwd,../x,u/../../x,u/./x,u//x,u/,a\0b,.trainit,.trainit/tmp/x,..".split(',');
    for bad in texts.chain([long.as_str(), deep.as_str()]) {
        assert!(altered(|v| v["files"][0]["path"] = json!(bad)).is_err(), "path {bad:?}");
        assert!(altered(|v| v["files"][0]["key"] = json!(bad)).is_err(), "key {bad:?}");
        assert!(altered(|v| v["pointers"][0]["path"] = json!(bad)).is_err(), "pointer {bad:?}");
        assert!(altered(|v| v["unit"] = json!(bad)).is_err(), "unit {bad:?}");
    }
}

#[test]
fn a_unit_that_is_none_of_its_files_is_refused() {
    let of = |unit: &str, paths: [&str; 3]| {
        altered(|v| {
            v["unit"] = json!(unit);
            for (at, path) in paths.iter().enumerate() {
                v["files"][at]["path"] = json!(path);
            }
            v["files"][2]["type"] = json!("directory");
        })
    };
    for (unit, paths) in [
        ("u", ["u/a", "u/b", "u/d"]),
        ("ckpt-10", ["ckpt-10.index", "ckpt-10.data-00000-of-00001", "d"]),
        ("backup/latest.weights.h5", ["backup/latest.weights.h5", "backup/training_metadata.json", "backup/d"]),
        ("checkpoint_10", ["checkpoint_10", "checkpoint_10_gda/a", "checkpoint_10_gda"]),
    ] {
        assert_eq!(of(unit, paths).map(|m| m.unit), Ok(unit.to_owned()));
    }
    for unit in ["m-step=3", "other", "x/m-step=30.bin", "m-step=30.bin/x"] {
        let why = of(unit, ["m-step=30.bin", "m-step=30.txt", "d"]).expect_err(unit);
        assert!(why.contains("its unit") && why.contains(unit) && why.contains("none of its files"), "{why}");
    }
}

#[test]
fn duplicates_and_paths_that_are_file_and_parent_are_refused() {
    assert!(altered(|v| v["files"][1]["path"] = json!("u/a")).is_err());
    for below in ["u/a/b", "u/a/b/c/d"] {
        assert!(altered(|v| v["files"][1]["path"] = json!(below)).is_err(), "{below}");
    }
    assert!(altered(|v| v["pointers"][0]["path"] = json!("u/a")).is_err());
    assert!(altered(|v| v["pointers"][0]["path"] = json!("u")).is_err());
}

#[test]
fn sizes_that_lie_or_overflow_are_refused() {
    assert!(altered(|v| v["total_bytes"] = json!(31)).is_err());
    assert!(altered(|v| v["files"][0]["size"] = json!(u64::MAX)).is_err());
    assert!(altered(|v| v["files"][0]["size"] = json!(-1)).is_err());
    assert!(altered(|v| v["files"][0]["chunks"] = json!({"size": 0, "crc32c": []})).is_err());
    assert!(altered(|v| v["files"][0]["chunks"] = json!({"size": 5, "crc32c": ["00000000"]})).is_err());
}

#[test]
fn the_sums_of_two_stretches_join_to_that_of_both_wherever_they_meet() {
    let text = b"weights and biases".as_slice();
    // The first four have the sum 0, as no bytes have.
    let zero = b"\xab\x9b\xe0\x9b and so on".as_slice();
    assert_eq!(crc32c::crc32c(&zero[..4]), 0);
    for bytes in [text, zero, &[0; 40], &[]] {
        for at in 0..=bytes.len() {
            let (before, after) = bytes.split_at(at);
            let both = joined(crc32c::crc32c(before), crc32c::crc32c(after), after.len() as u64);
            assert_eq!(both, crc32c::crc32c(bytes), "{bytes:?} at {at}");
        }
    }
}

#[test]
fn chunks_that_do_not_make_the_whole_are_refused_before_anything_is_fetched() {
    let bytes: Vec<u8> = (0..(MIN_CHUNK as usize * 2 + 7)).map(|n| (n % 251) as u8).collect();
    let of = |size: u64| bytes.chunks(size as usize).map(|chunk| hex(crc32c::crc32c(chunk))).collect::<Vec<String>>();
    let with = |size: u64, sums: &[String]| {
        altered(|v| {
            v["files"][0]["size"] = json!(bytes.len());
            v["files"][0]["crc32c"] = json!(hex(crc32c::crc32c(&bytes)));
            v["files"][0]["chunks"] = json!({"size": size, "crc32c": sums});
            v["total_bytes"] = json!(good().total_bytes - good().files[0].size + bytes.len() as u64);
        })
    };
    let mut sums = of(MIN_CHUNK);
    assert!(with(MIN_CHUNK, &sums).is_ok(), "{:?}", with(MIN_CHUNK, &sums));
    assert!(with(MIN_CHUNK / 2, &of(MIN_CHUNK / 2)).is_err(), "so small that they would never end");
    sums[1] = "00000000".to_owned();
    assert!(with(MIN_CHUNK, &sums).is_err_and(|why| why.contains("do not make its crc32c")));
    for none in ["", "0000000", "ABCDEF01"] {
        assert!(
            altered(|v| v["files"][0]["crc32c"] = json!(none)).is_err_and(|why| why.contains("no crc32c")),
            "{none}"
        );
    }
}

#[test]
fn depth_without_end_is_refused_and_not_followed() {
    for head in ["", r#"{"x":"#, r#"{"schema":"trainit.ckpt/1","files":"#] {
        let bytes = format!("{head}{}", "[".repeat(1_000_000)).into_bytes();
        let name = CommitName::of(good().stamp(), good().step, &bytes);
        assert!(Manifest::read(&name, &bytes).is_err());
    }
}

#[test]
fn a_refusal_is_one_short_line_whatever_it_quotes() {
    let long = "x\n".repeat(100_000);
    for field in ["schema", "unit", "job"] {
        if let Err(why) = altered(|v| v[field] = json!(long)) {
            assert!(why.len() < 1000 && !why.contains('\n'), "{field}: {} bytes", why.len());
        }
    }
    let why = altered(|v| v["files"][0]["type"] = json!(long)).expect_err("no such type");
    assert!(why.len() < 1000 && !why.contains('\n'), "{} bytes", why.len());
}

#[test]
fn links_that_leave_the_unit_are_refused() {
    for bad in ["/etc/passwd", "../x", "", "../../x", "../u2/x"] {
        assert!(altered(|v| v["files"][2]["target"] = json!(bad)).is_err(), "{bad:?}");
    }
    let pointer = json!({"path": "last.ckpt", "content": "../x", "symlink": true});
    assert!(altered(|v| v["pointers"][0] = pointer).is_err());
    let inside = json!({"path": "last.ckpt", "content": "u/a", "symlink": true});
    let of_text = json!({"path": "latest", "content": "../x"});
    for pointer in [inside, of_text] {
        assert_eq!(altered(|v| v["pointers"][0] = pointer).err(), None);
    }
}

#[test]
fn links_that_leave_the_unit_only_through_each_other_are_refused_and_circles_end_nowhere() {
    let with = |links: &[(&str, &str)]| {
        altered(|v| {
            for (path, target) in links {
                let mut link = v["files"][2].clone();
                (link["path"], link["target"]) = (json!(path), json!(target));
                v["files"].as_array_mut().expect("a list").push(link);
            }
        })
    };
    assert!(with(&[("u/d/d/up", "../../"), ("u/d/d/out", "up/../etc/passwd")]).is_err_and(|why| why.contains("out")));
    assert!(with(&[("u/d/d/up", "../.."), ("u/d/d/out", "up/../../../x")]).is_err());
    assert!(
        with(&[("u/d/d/up", "../.."), ("u/d/d/out", "up/../u2/x")]).is_err(),
        "its name only begins like the unit's"
    );
    assert_eq!(with(&[("u/d/d/up", "../../"), ("u/d/d/in", "up/d/x"), ("u/x1", "x2"), ("u/x2", "x1")]).err(), None);
}

#[test]
fn what_no_file_system_or_store_takes_is_refused() {
    let long = "a/".repeat(2048);
    assert!(altered(|v| v["files"][2]["target"] = json!(long)).is_err_and(|why| why.contains("too long")));
    let pointer = json!({"path": "last.ckpt", "content": long, "symlink": true});
    assert!(altered(|v| v["pointers"][0] = pointer).is_err());
    let pointer = |name: String| altered(|v| v["pointers"][0]["path"] = json!(name));
    assert!(
        pointer("p".repeat(243)).is_ok() && pointer("p".repeat(244)).is_err(),
        "it is put there through a neighbour"
    );
    for bad in ["u/a\nb", "u/a\u{7f}", "u/a#1", &["k"; 60].map(|k| k.repeat(20)).join("/")] {
        assert!(altered(|v| v["files"][0]["key"] = json!(bad)).is_err_and(|why| why.contains("the manifest's key")));
    }
}

#[test]
fn another_schema_or_another_commits_manifest_is_refused() {
    assert!(altered(|v| v["schema"] = json!("trainit.ckpt/2")).is_err_and(|e| e.contains("trainit.ckpt/2")));
    assert!(altered(|v| v["seq"] = json!(9)).is_err());
    assert!(altered(|v| v["step"] = json!(11)).is_err());
    assert!(altered(|v| v["later"] = json!("addition")).is_ok());
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

    #[test]
    fn a_field_of_any_type_is_refused_or_harmless(field in "schema|job|attempt|seq|step|unit|files|pointers|total_bytes", at in 0usize..6) {
        let value = [json!(null), json!(-1), json!("x"), json!([]), json!({}), json!(1e300)][at].clone();
        let _ = altered(|v| v[field.as_str()] = value);
    }
}

#[test]
fn a_strong_hash_may_be_there_and_is_then_one() {
    let hash = "0123456789abcdef".repeat(4);
    let read = altered(|v| v["files"][0]["blake3"] = json!(hash)).expect("good");
    assert_eq!((read.files[0].blake3.as_deref(), &read.files[1].blake3), (Some(hash.as_str()), &None));
    assert!(String::from_utf8(read.bytes().expect("short")).expect("UTF-8").contains(&hash));
    for bad in [json!(""), json!("0123"), json!(hash.to_uppercase()), json!(7), json!("g".repeat(64))] {
        assert!(altered(|v| v["files"][0]["blake3"] = bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn a_file_in_an_archive_lies_where_one_of_ours_can_and_under_the_schema_that_knows_of_it() {
    let with = |schema: &str, offset: Value, size: u64| {
        altered(|v| {
            v["schema"] = json!(schema);
            v["files"][0]["offset"] = offset;
            v["files"][0]["size"] = json!(size);
            v["total_bytes"] = json!(size + 20);
        })
    };
    assert_eq!(with(WITH_ARCHIVES, json!(512), SMALL).map(|m| m.files[0].run()), Ok(512..512 + SMALL));
    assert!(altered(|v| v["schema"] = json!(WITH_ARCHIVES)).is_ok(), "none need be in one");
    assert!(with(SCHEMA, json!(512), 10).is_err_and(|why| why.contains("knows no archives")));
    for (offset, size) in [(json!(0), SMALL + 1), (json!(u64::MAX), 1)] {
        assert!(with(WITH_ARCHIVES, offset, size).is_err_and(|why| why.contains("u/a")));
    }
    for bad in [json!(-1), json!(1.5), json!("512"), json!([])] {
        assert!(with(WITH_ARCHIVES, bad, 10).is_err_and(|why| why.contains("malformed")));
    }
}

#[test]
fn an_archive_is_as_long_as_its_files_need_and_another_object_as_its_file() {
    let alone = &good().files[0];
    assert!(alone.fits(10) && !alone.fits(9) && !alone.fits(11));
    let inside = Item { offset: Some(512), ..alone.clone() };
    assert!(inside.fits(522) && inside.fits(9999) && !inside.fits(521) && !inside.fits(10));
}
