//! Whether two zip files (`torch.save` writes such) hold the same save, by the checksums in their directories alone.

use std::collections::BTreeMap;

use super::containers;
use crate::rules::checkpoint::listing::{Entry, Peek};

/// Longer directories are not read: of a hundred thousand tensors.
const DIRECTORY_LIMIT: u64 = 8 << 20;

/// What is in one: a checksum and a length each, of all but the pickle, and of the pickle.
#[derive(PartialEq)]
struct Sums {
    tensors: BTreeMap<(u64, u64), usize>,
    pickle: (u64, u64),
}

/// Whether both hold the same, whatever the archives are called inside. (Lightning's first `last.ckpt` notes its own path in
/// the pickle, and is taken for another.)
pub(in super::super) fn is_same_save(peek: &dyn Peek, one: &Entry, other: &Entry) -> bool {
    sums(peek, one).is_some_and(|one| sums(peek, other) == Some(one))
}

/// `None`: it is none of torch's, or keeps no checksums.
fn sums(peek: &dyn Peek, file: &Entry) -> Option<Sums> {
    let (from, length) = containers::zip_directory(peek, file).ok()?;
    let directory = peek.read(&file.path, from, usize::try_from(length).ok().filter(|_| length <= DIRECTORY_LIMIT)?)?;
    let (mut tensors, mut pickle, mut at) = (BTreeMap::new(), None, 0);
    while at < directory.len() {
        let record = directory.get(at..at + 46).filter(|record| record.starts_with(b"PK\x01\x02"))?;
        let number = |from, width| containers::le(record, from, width);
        let (sum, size, named) = (number(16, 4), number(24, 4), number(28, 2) as usize);
        let name = directory.get(at + 46..at + 46 + named)?;
        if name.ends_with(b"/data.pkl") {
            pickle = Some((sum, size)).filter(|_| sum != 0);
        } else if name.windows(6).any(|part| part == b"/data/") {
            *tensors.entry((sum, size)).or_insert(0) += 1;
        }
        at += 46 + named + number(30, 2) as usize + number(32, 2) as usize;
    }
    Some(Sums { tensors, pickle: pickle? })
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;
    use crate::rules::checkpoint::listing::tests::Memory;

    /// An archive as torch.save writes it, in stored form.
    pub(in super::super::super) fn saved(pickle: &str, tensors: &[&str]) -> Vec<u8> {
        let numbered = tensors.iter().enumerate().map(|(at, tensor)| (format!("archive/data/{at}"), *tensor));
        let files = std::iter::once(("archive/data.pkl".to_owned(), pickle)).chain(numbered);
        let (mut bytes, mut directory, mut count) = (Vec::new(), Vec::new(), 0u16);
        for (name, content) in files.chain([("archive/version".to_owned(), "3\n")]) {
            let mut record = vec![0; 26];
            record[10..14].copy_from_slice(&crc32c::crc32c(content.as_bytes()).to_le_bytes());
            record[14..18].copy_from_slice(&(content.len() as u32).to_le_bytes());
            record[18..22].copy_from_slice(&(content.len() as u32).to_le_bytes());
            record[22..24].copy_from_slice(&(name.len() as u16).to_le_bytes());
            let offset = (bytes.len() as u32).to_le_bytes();
            bytes.extend([&b"PK\x03\x04"[..], &record, name.as_bytes(), content.as_bytes()].concat());
            let rest = [&[0; 12][..], &offset].concat();
            directory.extend([&b"PK\x01\x02\0\0"[..], &record, &rest[2..], name.as_bytes()].concat());
            count += 1;
        }
        let (size, offset) = ((directory.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes());
        let count = count.to_le_bytes();
        [&bytes[..], &directory, b"PK\x05\x06\0\0\0\0", &count, &count, &size, &offset, &[0; 2]].concat()
    }

    fn is_same(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
        let memory = Memory::default().with("one", one).with("other", other);
        let listing = memory.listing();
        let file = |name| listing.file(name).expect("is there");
        is_same_save(&memory, file("one"), file("other"))
    }

    #[test]
    fn two_archives_hold_the_same_save_where_all_that_is_in_them_is_the_same() {
        let one = saved("step 30", &["weights of 30", "moments of 30"]);
        let memory = Memory::default().with("a", &one);
        containers::zip(&memory, memory.listing().file("a").expect("is there")).expect("it is a whole zip file");
        assert!(is_same(&one, &one));
        for (other, why) in [
            (saved("step 31", &["weights of 30", "moments of 30"]), "nothing was learned in a step"),
            (saved("step 30 and fifty returns", &["weights of 30", "moments of 30"]), "what was learned is no tensor"),
            (saved("step 30", &["weights of 30", "moments of 31"]), "another step's"),
            (saved("step 30", &["weights of 30"]), "a model to hand out"),
            (b"no archive".to_vec(), "no archive"),
            (one[..one.len() - 30].to_vec(), "torn"),
        ] {
            assert!(!is_same(&one, &other) && !is_same(&other, &one), "{why}");
        }
    }
}
