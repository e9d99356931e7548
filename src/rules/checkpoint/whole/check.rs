//! Which check a file gets, and what it proves, by the file's name: that it was not cut short, and nothing of the content.

use super::containers::{Verdict, hdf5, is_zip_cut, no_zeros, safetensors, safetensors_end, torch, zip};
use super::json::json;
use super::structure;
use crate::rules::checkpoint::listing::{Entry, Peek, extension_of};

/// What `torch.save` wrote first before it wrote zip files: the pickle of a number. Tensors follow the pickles.
const TORCH_PICKLE: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";

/// Whether the file passes the check of its type, which its name tells. Errors: why not, in one clause.
pub fn whole(peek: &dyn Peek, file: &Entry) -> Verdict {
    let name = file.name();
    let verdict = match extension_of(name) {
        _ if is_torchs(name) => torch(peek, file),
        // torch.save under other names, as Accelerate's random_states_0.pkl.
        "bin" | "pkl" | "pickle" | "tar" if starts_as_torchs(peek, file) => torch(peek, file),
        "distcp" => no_zeros(peek, file),
        "keras" | "npz" | "zip" => zip(peek, file),
        "safetensors" => safetensors(peek, file),
        "h5" | "hdf5" => hdf5(peek, file),
        "json" => json(peek, file),
        "pkl" | "pickle" => structure::pickle(peek, file),
        "ubj" => structure::ubjson(peek, file),
        "npy" => structure::npy(peek, file),
        _ => Ok(()),
    };
    let verdict = if file.size == 0 && is_weights(name) { Err("it is empty".to_owned()) } else { verdict };
    verdict.map_err(|why| format!("{}: {why}", file.path))
}

/// Names of files that hold weights or state, which are never empty. (A `.distcp` is, of a rank with nothing to write.)
pub fn is_weights(name: &str) -> bool {
    const EXTENSIONS: &str = "bin keras npz zip safetensors h5 hdf5 json index pkl pickle ubj npy msgpack onnx model pdparams \
                              pdopt pdstates params states caffemodel solverstate eqx th cbm joblib";
    is_torchs(name) || EXTENSIONS.split(' ').any(|known| known == extension_of(name)) || name.contains(".data-")
}

/// Names that `torch.save` and Lightning write under, and nobody else.
pub(in super::super) fn is_torchs(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".pt", ".pth", ".pth.tar", ".ckpt"].iter().any(|end| name.ends_with(end))
}

/// Whether a file of this type that passes its check surely was not cut short.
pub(in super::super) fn shows_its_end(peek: &dyn Peek, file: &Entry) -> bool {
    let starts_with = |magic: &[u8]| peek.read(&file.path, 0, magic.len()).is_some_and(|head| head == magic);
    match extension_of(file.name()) {
        "keras" | "npz" | "zip" | "safetensors" | "h5" | "hdf5" | "json" | "ubj" | "npy" => true,
        "pkl" | "pickle" if !starts_with(TORCH_PICKLE) => true,
        "pt" | "pth" | "ckpt" | "tar" | "bin" => starts_with(b"PK\x03\x04"),
        _ => false,
    }
}

/// Whether the file begins as one of a type that says where it ends, and surely ends before that.
pub fn is_cut(peek: &dyn Peek, file: &Entry) -> bool {
    match extension_of(file.name()) {
        "safetensors" => safetensors_end(peek, file).is_ok_and(|end| end > file.size),
        "pt" | "pth" | "ckpt" | "tar" | "bin" | "npz" | "keras" | "zip" => is_zip_cut(peek, file),
        _ => false,
    }
}

fn starts_as_torchs(peek: &dyn Peek, file: &Entry) -> bool {
    let head = peek.read(&file.path, 0, TORCH_PICKLE.len()).unwrap_or_default();
    let start = &head[..head.len().min(4)];
    !head.is_empty() && b"PK\x03\x04".starts_with(start) || head == TORCH_PICKLE
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::containers::{HDF5_SIGNATURE, TABLE_MAGIC};
    use super::*;
    use crate::rules::checkpoint::listing::tests::Memory;
    use proptest::prelude::*;

    /// A zip file of one stored file, as torch.save lays it out.
    pub(crate) fn zip_of(content: &[u8], comment: &[u8]) -> Vec<u8> {
        let mut bytes = b"PK\x03\x04".to_vec();
        bytes.extend_from_slice(&[0; 26]);
        bytes.extend_from_slice(content);
        let offset = bytes.len() as u32;
        bytes.extend_from_slice(b"PK\x01\x02");
        bytes.extend_from_slice(&[0; 42]);
        bytes.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        bytes.extend_from_slice(&46u32.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&(comment.len() as u16).to_le_bytes());
        bytes.extend_from_slice(comment);
        bytes
    }

    fn zip64_of(content: &[u8]) -> Vec<u8> {
        let mut bytes = b"PK\x03\x04".to_vec();
        bytes.extend_from_slice(content);
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(&[b'd'; 46]);
        let record = bytes.len() as u64;
        bytes.extend_from_slice(b"PK\x06\x06");
        bytes.extend_from_slice(&44u64.to_le_bytes());
        bytes.extend_from_slice(&[0; 28]);
        bytes.extend_from_slice(&46u64.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(b"PK\x06\x07\0\0\0\0");
        bytes.extend_from_slice(&record.to_le_bytes());
        bytes.extend_from_slice(b"\x01\0\0\0PK\x05\x06\0\0\0\0\xff\xff\xff\xff");
        bytes.extend_from_slice(&[0xff; 8]);
        bytes.extend_from_slice(&[0; 2]);
        bytes
    }

    pub(crate) fn safetensors_of(data: &[u8]) -> Vec<u8> {
        let header = format!(
            r#"{{"__metadata__":{{"format":"pt"}},"w":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#,
            data.len()
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    pub(crate) fn hdf5_of(version: u8, data: &[u8], user_block: usize) -> Vec<u8> {
        let mut bytes = vec![0; user_block];
        bytes.extend_from_slice(HDF5_SIGNATURE);
        bytes.push(version);
        let (head, base) =
            if version < 2 { (vec![0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0) } else { (vec![8, 8, 0], 0) };
        bytes.extend_from_slice(&head);
        if version == 1 {
            bytes.extend_from_slice(&[0; 4]);
        }
        let end_at = bytes.len() + 16;
        bytes.extend_from_slice(&u64::to_le_bytes(base));
        bytes.extend_from_slice(&[0xff; 8]);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(data);
        let end = bytes.len() as u64;
        bytes[end_at..end_at + 8].copy_from_slice(&end.to_le_bytes());
        bytes
    }

    pub(crate) fn table_of(data: &[u8]) -> Vec<u8> {
        let mut bytes = data.to_vec();
        bytes.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
        bytes
    }

    /// A file that passes the check of its type. A trainer's state speaks of the step in its path.
    pub(crate) fn whole_file(path: &str) -> Vec<u8> {
        match path.rsplit('.').next() {
            Some("safetensors") => safetensors_of(b"w"),
            Some("h5") => hdf5_of(2, b"w", 0),
            Some("json") => {
                let step: String = path.chars().filter(char::is_ascii_digit).collect();
                format!(r#"{{"global_step": {}}}"#, step.parse().unwrap_or(0)).into_bytes()
            }
            Some("yaml" | "txt" | "log" | "ubj") => b"{}".to_vec(),
            Some("pkl") => b"\x80\x04.".to_vec(),
            Some("npy") => {
                let head = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n";
                [b"\x93NUMPY\x01\0", &(head.len() as u16).to_le_bytes()[..], head.as_bytes(), b"w"].concat()
            }
            _ => zip_of(b"w", b""),
        }
    }

    fn verdict(name: &str, bytes: &[u8]) -> Verdict {
        let memory = Memory::of(&[(name, bytes)]);
        let listing = memory.listing();
        whole(&memory, listing.file(name).expect("is there"))
    }

    fn whole_files() -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("a.pt", zip_of(b"weights", b"")),
            ("A.pth.tar", zip_of(b"weights", b"")),
            ("b.ckpt", zip_of(b"weights", b"a comment")),
            ("b.bin", zip_of(b"weights", b"")),
            ("b.pkl", zip_of(b"states", b"")),
            ("c.npz", zip64_of(b"weights of many gigabytes")),
            ("d.safetensors", safetensors_of(b"12345678")),
            ("e.h5", hdf5_of(0, b"data", 0)),
            ("e1.h5", hdf5_of(1, b"data", 0)),
            ("f.weights.h5", hdf5_of(3, b"data", 0)),
            ("g.hdf5", hdf5_of(2, b"data", 512)),
            ("h.json", br#"{"a": [1, 2, {"b": null}]}"#.to_vec()),
            ("h2.json", br#"{"grad\"NaN": [NaN, -Infinity, Infinity], "b": "Infinity\\"}"#.to_vec()),
            ("j.pkl", b"\x80\x04]\x94.".to_vec()),
        ]
    }

    #[test]
    fn a_whole_file_passes_the_check_of_its_type() {
        for (name, bytes) in whole_files() {
            assert_eq!(verdict(name, &bytes), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_file_cut_anywhere_never_passes() {
        for (name, bytes) in whole_files() {
            for length in 0..bytes.len() {
                assert!(verdict(name, &bytes[..length]).is_err(), "{name} cut to {length} of {}", bytes.len());
            }
        }
    }

    #[test]
    fn a_file_that_is_longer_than_it_says_never_passes() {
        for (name, mut bytes) in whole_files().into_iter().filter(|(name, _)| !name.ends_with("json")) {
            bytes.extend_from_slice(b"tail of an older, longer file");
            assert!(verdict(name, &bytes).is_err(), "{name}");
        }
    }

    #[test]
    fn a_file_is_surely_cut_where_it_begins_as_one_that_has_an_end_and_has_none() {
        let cut = |name: &str, bytes: &[u8]| {
            let memory = Memory::of(&[(name, bytes)]);
            is_cut(&memory, memory.listing().file(name).expect("is there"))
        };
        let (zip, tensors) = (zip_of(b"weights", b""), safetensors_of(&[b'w'; 200]));
        for (name, bytes) in [("a.pt", &zip), ("a.bin", &zip), ("a.pth.tar", &zip), ("a.safetensors", &tensors)] {
            assert!(cut(name, &bytes[..bytes.len() / 2 + 30]), "{name}");
            assert!(!cut(name, bytes), "{name}");
            assert!(!cut(name, &[&bytes[..], b"tail"].concat()), "{name} is longer, and may be read");
            assert!(!cut(name, b""), "{name}");
        }
        let [json, pickle, text]: [(&str, &[u8]); 3] = [("a.json", b"{"), ("a.pkl", b"\x80\x04]"), ("a.tar", b"text")];
        assert!([json, pickle, text].into_iter().all(|(name, bytes)| !cut(name, bytes)), "others may read them");
    }

    #[test]
    fn a_zip_file_that_has_lost_a_piece_within_never_passes() {
        for (name, bytes) in [("a.pt", zip_of(b"weights", b"")), ("c.npz", zip64_of(b"weights"))] {
            let without = [&bytes[..5], &bytes[6..]].concat();
            assert!(verdict(name, &without).is_err_and(|why| why.contains("cut short")), "{name}");
        }
        let end = &zip_of(b"", b"")[76..];
        assert!(verdict("a.pt", &[b"PK\x03\x04", end].concat()).is_err(), "nothing is before the end record");
    }

    #[test]
    fn an_hdf5_file_may_count_from_its_own_beginning_behind_a_user_block() {
        let file = [vec![0; 512], hdf5_of(2, b"data", 0)].concat();
        assert!(verdict("g.h5", &file).is_err(), "it counts from the first byte, and is longer");
        let mut based = file;
        based[512 + 12..512 + 20].copy_from_slice(&512u64.to_le_bytes());
        assert_eq!(verdict("g.h5", &based), Ok(()));
    }

    #[test]
    fn a_pickle_of_old_torch_and_a_file_of_unknown_type_pass_unless_empty_or_zeros() {
        assert_eq!(verdict("old.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."), Ok(()));
        assert_eq!(verdict("weights.custom", b"x"), Ok(()));
        for name in ["zeros.pt", "zeros.pkl", "__0_0.distcp"] {
            assert!(verdict(name, &[0; 4096]).is_err_and(|why| why.contains("zeros")), "{name}");
        }
        for name in ["old.pkl", "old.bin"] {
            let tensors = b"\x80\x02}q\0.\x80\x02]q\0.\x04\0\0\0\0\0\0\0four";
            assert_eq!(verdict(name, &[TORCH_PICKLE, tensors].concat()), Ok(()), "{name}");
        }
        assert_eq!(verdict("__1_0.distcp", b""), Ok(()));
        assert!(verdict("empty.pt", b"").is_err());
        assert!(verdict("ckpt-1.data-00000-of-00001", b"").is_err());
        assert_eq!(verdict("_SUCCESS", b""), Ok(()));
    }

    #[test]
    fn tensors_lie_in_any_order_and_may_be_empty_but_never_overlap() {
        let tensors = |header: &str| {
            let length = (header.len() as u64).to_le_bytes();
            verdict("x.safetensors", &[&length, header.as_bytes(), &[0; 8]].concat())
        };
        assert_eq!(
            tensors(r#"{"a":{"data_offsets":[4,8]},"b":{"data_offsets":[0,4]},"c":{"data_offsets":[4,4]}}"#),
            Ok(())
        );
        for overlapping in
            [r#"{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[2,8]}}"#, r#"{"a":{"data_offsets":[9,8]}}"#]
        {
            assert!(tensors(overlapping).is_err_and(|why| why.contains("overlap")), "{overlapping}");
        }
        assert!(verdict("x.safetensors", &[0xff; 16]).is_err(), "a header without end");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_check_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..10, cut in 0usize..6) {
            let (name, whole) = &whole_files()[at];
            let mut mixed = whole.clone();
            let from = mixed.len() * cut / 6;
            mixed.truncate(from);
            mixed.extend_from_slice(&bytes);
            let _ = verdict(name, &mixed);
        }
    }
}
