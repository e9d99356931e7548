//! Files of each type: whole, cut and corrupt.

use proptest::prelude::*;

use super::containers::{HDF5_SIGNATURE, TABLE_MAGIC};
use super::*;

/// One file in memory.
struct Memory<'a>(&'a [u8]);

impl Peek for Memory<'_> {
    fn read(&self, _: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        assert!(length <= 1 << 20, "a small file has no long parts");
        let from = (from as usize).min(self.0.len());
        Some(self.0[from..(from + length).min(self.0.len())].to_vec())
    }
}

/// A zip file of one stored file, as torch.save lays it out.
fn zip_of(content: &[u8], comment: &[u8]) -> Vec<u8> {
    let file = [b"PK\x03\x04", &[0; 26][..], content].concat();
    let (offset, length) = ((file.len() as u32).to_le_bytes(), (comment.len() as u16).to_le_bytes());
    let end = [b"PK\x05\x06\0\0\0\0\x01\0\x01\0".as_slice(), &46u32.to_le_bytes(), &offset, &length].concat();
    [&file, b"PK\x01\x02".as_slice(), &[0; 42], &end, comment].concat()
}

fn zip64_of(content: &[u8]) -> Vec<u8> {
    let file = [b"PK\x03\x04", content].concat();
    let (offset, at) = (file.len() as u64, file.len() as u64 + 46);
    let sizes = [&44u64.to_le_bytes()[..], &[0; 28], &46u64.to_le_bytes(), &offset.to_le_bytes()].concat();
    let record = [b"PK\x06\x06", &sizes[..], b"PK\x06\x07\0\0\0\0", &at.to_le_bytes(), b"\x01\0\0\0"].concat();
    [&file, &[b'd'; 46][..], &record, b"PK\x05\x06\0\0\0\0", &[0xff; 12], &[0; 2]].concat()
}

fn safetensors_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// An HDF5 file with this base address, behind a user block.
fn hdf5_of(version: u8, user_block: usize, base: u64) -> Vec<u8> {
    let widths: &[u8] = match version {
        0 => &[0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        1 => &[0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => &[8, 8, 0],
    };
    let head = [&vec![0; user_block], HDF5_SIGNATURE, &[version], widths, &base.to_le_bytes(), &[0xff; 8]].concat();
    let end = (head.len() + 12) as u64 - base;
    [&head[..], &end.to_le_bytes(), b"data"].concat()
}

/// A NumPy array with this many bytes of data.
fn array(dtype: &str, shape: &str, data: usize) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), &vec![b'.'; data]].concat()
}

/// A file with the end that its type requires. A trainer state has the step of its path.
pub(crate) fn whole_file(path: &str) -> Vec<u8> {
    match path.rsplit('.').next() {
        Some("safetensors") => safetensors_of(r#"{"w":{"data_offsets":[0,1]}}"#, b"w"),
        Some("h5") => hdf5_of(2, 0, 0),
        Some("index" | "tempstate17") => TABLE_MAGIC.to_le_bytes().to_vec(),
        Some("json") => {
            let step = path.split('/').rev().nth(1).unwrap_or_default();
            let step: String = step.chars().filter(char::is_ascii_digit).collect();
            format!(r#"{{"global_step": {}}}"#, step.parse().unwrap_or(0)).into_bytes()
        }
        Some("pkl" | "metadata") => b"\x80\x04.".to_vec(),
        Some("npy") => array("|u1", "(1,)", 1),
        Some("pt" | "pth" | "ckpt" | "th" | "npz" | "keras" | "bin" | "tar") => zip_of(path.as_bytes(), b""),
        _ => format!("of {path}").into_bytes(),
    }
}

fn verdict(name: &str, bytes: &[u8]) -> Verdict {
    whole(&Memory(bytes), &Entry::file(name, bytes.len() as u64))
}

/// Pickles written by Python 3.11 with protocols 4, 2, 3 and 5, one by Python 2, and one with a string of more than 255
/// bytes.
fn pickles() -> [Vec<u8>; 6] {
    let long = |operation: u8| [&[operation], &260u32.to_le_bytes()[..], &[b'y'; 260]].concat();
    [
        b"\x80\x04\x95\x22\0\0\0\0\0\0\0}\x94(\x8c\x01w\x94]\x94(G?\xf8\0\0\0\0\0\0K\x02e\x8c\x01s\x94\x8c\x03...\x94u.".to_vec(),
        b"\x80\x02}q\0(X\x01\0\0\0wq\x01]q\x02(G?\xf8\0\0\0\0\0\0K\x02eX\x01\0\0\0sq\x03X\x03\0\0\0...q\x04u.".to_vec(),
        b"\x80\x03]q\0(cbuiltins\nset\nq\x01]q\x02K\x01a\x85q\x03Rq\x04M,\x01Jp\x11\x01\0\x8a\x06\0\0\0\0\0\x01C\x01xq\x05X\x01\0\0\0.q\x06e.".to_vec(),
        b"\x80\x05\x95\x15\0\0\0\0\0\0\0]\x94(\x96\x02\0\0\0\0\0\0\0ab\x94\x8c\x01.\x94e.".to_vec(),
        b"\x80\x02](U\x01aT\x02\0\0\0abI4294967296\nX\x01\0\0\0.e.".to_vec(),
        [b"\x80\x03](", &long(b'B')[..], &long(0x8b), b"X\x01\0\0\0.e."].concat(),
    ]
}

/// A joblib file: raw bytes of an array in the middle, here an operation that would claim 4 GiB.
const JOBLIB: &[u8] =
    b"\x80\x04\x8c\x13joblib.numpy_pickle\x94\x8c\x11NumpyArrayWrapper\x94\x93)\x81}bX\xff\xff\xff\xff.";

fn whole_files() -> Vec<(&'static str, Vec<u8>)> {
    let tensors = r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let mut files = vec![
        ("a.pt", zip_of(b"weights", b"")),
        ("A.pth.tar", zip_of(b"weights", b"")),
        ("b.ckpt", zip_of(b"weights", b"a comment")),
        ("b.bin", zip_of(b"weights", b"")),
        ("b.pkl", zip_of(b"states", b"")),
        ("c.npz", zip64_of(b"weights of many gigabytes")),
        ("d.safetensors", safetensors_of(tensors, b"12")),
        ("e.h5", hdf5_of(0, 0, 0)),
        ("e1.h5", hdf5_of(1, 0, 0)),
        ("f.weights.h5", hdf5_of(3, 0, 0)),
        ("g.hdf5", hdf5_of(2, 512, 0)),
        ("g.h5", hdf5_of(2, 512, 512)),
        ("h.json", br#"{"a": [1, 2, {"b": null}]}"#.to_vec()),
        ("h2.json", br#"{"grad\"NaN": [NaN, -Infinity, Infinity], "b": "Infinity\\"}"#.to_vec()),
        ("d.npy", array("<f4", "(2, 3)", 24)),
        ("f.npy", array("<U3", "()", 12)),
        ("g.npy", array("<M8[ns]", "(2,)", 16)),
    ];
    files.extend(pickles().map(|bytes| ("h.pkl", bytes)));
    files
}

#[test]
fn a_whole_file_passes_and_a_cut_or_extended_one_does_not() {
    for (name, bytes) in whole_files() {
        assert_eq!(verdict(name, &bytes), Ok(()), "{name}");
        for length in 0..bytes.len() {
            assert!(verdict(name, &bytes[..length]).is_err(), "{name} cut to {length} of {}", bytes.len());
        }
        let longer = [&bytes[..], b"tail of an older, longer file"].concat();
        assert!(name.ends_with("json") || verdict(name, &longer).is_err(), "{name} with more bytes");
    }
}

#[test]
fn an_unusual_manifest_passes_or_is_refused_with_the_reason() {
    let (zip, zip64) = (zip_of(b"weights", b""), zip64_of(b"weights"));
    let tensors = |header: &str| safetensors_of(header, &[0; 8]);
    let two = [array("<f4", "(2,)", 8), array("<i8", "(1,)", 8)].concat();
    let raw = b"\x80\x02}q\0.\x80\x02]q\0.\x04\0\0\0\0\0\0\0four";
    let apart = r#"{"a":{"data_offsets":[4,8]},"b":{"data_offsets":[0,4]},"c":{"data_offsets":[4,4]}}"#;
    let whole = "";
    for (name, bytes, why) in [
        ("a piece is missing.pt", [&zip[..5], &zip[6..]].concat(), "cut short"),
        ("a piece is missing.npz", [&zip64[..5], &zip64[6..]].concat(), "cut short"),
        ("only the end record.pt", [b"PK\x03\x04", &zip_of(b"", b"")[76..]].concat(), "cut short"),
        ("old.pt", TORCH_PICKLE.to_vec(), whole),
        ("old.pkl", [TORCH_PICKLE, raw].concat(), whole),
        ("old.bin", [TORCH_PICKLE, raw].concat(), whole),
        ("weights.custom", b"x".to_vec(), whole),
        ("zeros.pt", vec![0; 4096], "zeros"),
        ("zeros.pkl", vec![0; 4096], "zeros"),
        ("__0_0.distcp", vec![0; 4096], "zeros"),
        ("__1_0.distcp", vec![], whole),
        ("_SUCCESS", vec![], whole),
        ("empty.pt", vec![], "it is empty"),
        ("ckpt-1.data-00000-of-00001", vec![], "it is empty"),
        ("any order.safetensors", tensors(apart), whole),
        ("a.safetensors", tensors(r#"{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[2,8]}}"#), "overlap"),
        ("b.safetensors", tensors(r#"{"a":{"data_offsets":[9,8]}}"#), "overlap"),
        ("a header without end.safetensors", vec![0xff; 16], "claims"),
        ("two arrays.npy", two.clone(), whole),
        ("two arrays.npy", two[..two.len() - 1].to_vec(), "cut short"),
        ("too long.npy", array("<f8", "(18446744073709551615, 9)", 8), "cut short"),
        ("objects.npy", array("|O", "(2,)", 3), whole),
        ("two pickles.pkl", pickles()[..2].concat(), whole),
        ("two pickles.pkl", pickles()[..2].concat()[..60].to_vec(), "cut short"),
        ("too long.pkl", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.".to_vec(), "cut short"),
        ("joblib.pkl", JOBLIB.to_vec(), whole),
        ("joblib.pkl", JOBLIB[..JOBLIB.len() - 1].to_vec(), "cut short"),
        ("a.json", b"[\n1,\n2]".to_vec(), whole),
        ("line by line.json", b"{\"a\": 1}\n{\"a\": -Infinity}\n\n".to_vec(), whole),
        ("line by line.json", b"{\"a\": 1}\n{\"a\": 2".to_vec(), "cut short"),
        ("a.json", b"NaN".to_vec(), whole),
        ("a.json", b"{\"a\": In".to_vec(), "cut short"),
        ("a.json", b"Na\nN".to_vec(), "cut short"),
        ("a.json", b"\n".to_vec(), "cut short"),
    ] {
        let error = verdict(name, &bytes).err().unwrap_or_default();
        assert!(error.contains(why) && error.is_empty() == why.is_empty(), "{name}: {error:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_check_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..20, cut in 0usize..6) {
        let (name, whole) = &whole_files()[at];
        let mut mixed = whole.clone();
        mixed.truncate(whole.len() * cut / 6);
        mixed.extend_from_slice(&bytes);
        let _ = verdict(name, &mixed);
    }
}
