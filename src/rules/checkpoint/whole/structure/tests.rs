//! Unit tests of the walks through a file's structure.

use super::*;
use crate::rules::checkpoint::listing::tests::{Counting, Memory};
use proptest::prelude::*;

fn verdict(name: &str, bytes: &[u8]) -> Verdict {
    let memory = Memory::of(&[(name, bytes)]);
    let listing = memory.listing();
    super::super::check::whole(&memory, listing.file(name).expect("is there"))
}

/// `{"a": [1.0, 2.0] typed, "b": ["x", {}] counted, "c": true, "d": [a number of each type]}`, full of braces.
fn model() -> Vec<u8> {
    let mut bytes = b"{L\0\0\0\0\0\0\0\x01a[$d#L\0\0\0\0\0\0\0\x02}}}}}}}}".to_vec();
    bytes.extend_from_slice(b"i\x01b[#i\x02Si\x03}}}{}");
    bytes.extend_from_slice(b"i\x01cTi\x01d[ZU.C.I..l....d....L........D........Sl\0\0\0\x03}}}SI\0\x03}}}SU\x03}}}]}");
    bytes
}

/// What Python 3.11 wrote: pickle.dumps({"w": [1.5, 2], "s": "..."}, 4) and protocol 2.
const PICKLES: [&[u8]; 2] = [
    b"\x80\x04\x95\x22\0\0\0\0\0\0\0}\x94(\x8c\x01w\x94]\x94(G?\xf8\0\0\0\0\0\0K\x02e\x8c\x01s\x94\x8c\x03...\x94u.",
    b"\x80\x02}q\0(X\x01\0\0\0wq\x01]q\x02(G?\xf8\0\0\0\0\0\0K\x02eX\x01\0\0\0sq\x03X\x03\0\0\0...q\x04u.",
];

/// What it wrote by protocol 3, pickle.dumps([{1}, 300, 70000, 2**40, b"x", "."], 3), and by protocol 5 of [bytearray(b"ab"), "."];
/// strings and a long integer as Python 2 wrote them, and what is longer than 255 bytes.
fn more_pickles() -> [Vec<u8>; 4] {
    let long = |operation: u8| [&[operation], &260u32.to_le_bytes()[..], &[b'y'; 260]].concat();
    [
        b"\x80\x03]q\0(cbuiltins\nset\nq\x01]q\x02K\x01a\x85q\x03Rq\x04M,\x01Jp\x11\x01\0\x8a\x06\0\0\0\0\0\x01C\x01xq\x05X\x01\0\0\0.q\x06e.".to_vec(),
        b"\x80\x05\x95\x15\0\0\0\0\0\0\0]\x94(\x96\x02\0\0\0\0\0\0\0ab\x94\x8c\x01.\x94e.".to_vec(),
        b"\x80\x02](U\x01aT\x02\0\0\0abI4294967296\nX\x01\0\0\0.e.".to_vec(),
        [b"\x80\x03](", &long(b'B')[..], &long(0x8b), b"X\x01\0\0\0.e."].concat(),
    ]
}

fn array(dtype: &str, shape: &str, data: usize) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, b'.');
    bytes
}

#[test]
fn a_whole_structure_passes_and_one_cut_anywhere_does_not() {
    let whole = [
        ("a_1.ubj", model()),
        ("b.pkl", PICKLES[0].to_vec()),
        ("c.pkl", PICKLES[1].to_vec()),
        ("d.npy", array("<f4", "(2, 3)", 24)),
        ("e.npy", array("|b1", "(5,)", 5)),
        ("f.npy", array("<U3", "()", 12)),
        ("g.npy", array("<M8[ns]", "(2,)", 16)),
    ];
    let more = more_pickles().into_iter().map(|bytes| ("h.pkl", bytes));
    for (name, bytes) in whole.into_iter().chain(more) {
        assert_eq!(verdict(name, &bytes), Ok(()), "{name}");
        for length in 0..bytes.len() {
            assert!(verdict(name, &bytes[..length]).is_err(), "{name} cut to {length} of {}", bytes.len());
        }
    }
}

#[test]
fn several_in_a_file_are_whole_when_the_last_is() {
    let two = [array("<f4", "(2,)", 8), array("<i8", "(1,)", 8)].concat();
    assert_eq!(verdict("x.npy", &two), Ok(()));
    assert!(verdict("x.npy", &two[..two.len() - 1]).is_err());
    assert_eq!(verdict("x.pkl", &PICKLES.concat()), Ok(()));
    assert!(verdict("x.pkl", &PICKLES.concat()[..60]).is_err());
    assert!(verdict("x.ubj", &[model(), b"tail".to_vec()].concat()).is_err());
}

#[test]
fn what_is_not_known_is_left_to_the_last_byte() {
    // joblib: raw bytes of an array in the middle, here an operation that would claim 4 GiB.
    let joblib = b"\x80\x04\x8c\x13joblib.numpy_pickle\x94\x8c\x11NumpyArrayWrapper\x94\x93)\x81}bX\xff\xff\xff\xff.";
    assert_eq!(verdict("x.pkl", joblib), Ok(()));
    assert!(verdict("x.pkl", &joblib[..joblib.len() - 1]).is_err());
    assert_eq!(verdict("x.pkl", b"no pickle at all"), Ok(()));
    assert_eq!(verdict("x.npy", &array("|O", "(2,)", 3)), Ok(()), "objects");
    assert!(verdict("x.ubj", b"[]").is_err());
    assert!(verdict("x.npy", b"PK\x03\x04").is_err());
}

#[test]
fn numbers_that_overflow_and_depth_without_end_are_refused_not_followed() {
    assert!(verdict("x.npy", &array("<f8", "(18446744073709551615, 9)", 8)).is_err());
    assert!(verdict("x.ubj", b"{i\x01a[$D#L\x7f\xff\xff\xff\xff\xff\xff\xff").is_err());
    assert!(verdict("x.ubj", &[b"{i\x01a".as_slice(), &[b'['; 100_000]].concat()).is_err());
    assert!(verdict("x.pkl", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.").is_err());
}

#[test]
fn what_is_full_of_small_containers_is_read_a_few_times_only() {
    let boxes = [b"{i\x01a[".as_slice(), &b"[]".repeat(1 << 18), b"]}"].concat();
    let peek = Counting::of("x.ubj", boxes);
    assert_eq!(ubjson(&peek, peek.memory.listing().file("x.ubj").expect("is there")), Ok(()));
    assert!(peek.times.get() < 8, "{} times", peek.times.get());
}

proptest! {
    #[test]
    fn no_bytes_make_a_walk_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..3) {
        let (name, head): (&str, &[u8]) = [("x.ubj", b"{".as_slice()), ("x.pkl", b"\x80\x04"), ("x.npy", b"\x93NUMPY\x01\0")][at];
        bytes.splice(0..0, head.iter().copied());
        let _ = verdict(name, &bytes);
    }

    #[test]
    fn one_changed_byte_never_makes_a_walk_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        for (name, mut bytes) in [("x.ubj", model()), ("x.pkl", PICKLES[0].to_vec()), ("x.npy", array("<f4", "(2, 3)", 24))] {
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = verdict(name, &bytes);
        }
    }
}
