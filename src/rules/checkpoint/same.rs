//! Whether two files are of one save, without reading them: two archives of torch's by the checksums of their tensors (a
//! trainer that saves twice notes other paths beside them), other files by their length and samples of their bytes.

use std::collections::BTreeMap;

use super::check;
use super::listing::{Entry, Peek};

/// Longer directories of archives are not read.
const DIRECTORY_LIMIT: u64 = 8 << 20;
/// How many samples are compared, and how long they are; shorter files are compared whole.
const SAMPLES: u64 = 16;
const SAMPLE: u64 = 4 << 10;

/// The files in an archive: how often each checksum and length comes, and those of the pickle that holds the rest.
struct Sums {
    tensors: BTreeMap<(u64, u64), usize>,
    pickle: (u64, u64),
}

pub(super) fn is_same_save(peek: &dyn Peek, one: &Entry, other: &Entry) -> bool {
    match (sums(peek, one), sums(peek, other)) {
        (Some(one), Some(other)) => one.is_of(&other) || other.is_of(&one),
        _ => is_alike(peek, one, other),
    }
}

impl Sums {
    /// Whether what is in it is in the other, too: one of them may hold a model alone. Numbers that changed (a step) leave a
    /// pickle its length, so that tensors which never change prove nothing then.
    fn is_of(&self, other: &Sums) -> bool {
        let is_in = |(sum, times): (&(u64, u64), &usize)| other.tensors.get(sum).is_some_and(|there| there >= times);
        let is_told = !self.tensors.is_empty() && self.pickle.1 != other.pickle.1;
        (self.pickle == other.pickle || is_told) && self.tensors.iter().all(is_in)
    }
}

/// `None`: it is none of torch's archives, or keeps no checksums.
fn sums(peek: &dyn Peek, file: &Entry) -> Option<Sums> {
    let (from, length) = check::zip_directory(peek, file).ok()?;
    let directory = peek.read(&file.path, from, usize::try_from(length).ok().filter(|_| length <= DIRECTORY_LIMIT)?)?;
    let (mut tensors, mut pickle, mut at) = (BTreeMap::new(), None, 0);
    while at < directory.len() {
        let record = directory.get(at..at + 46).filter(|record| record.starts_with(b"PK\x01\x02"))?;
        let number = |from, width| check::le(record, from, width);
        let (sum, size, named) = ((number(16, 4)), number(24, 4), number(28, 2) as usize);
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

/// Whether they have the same length and, at the samples, the same bytes.
fn is_alike(peek: &dyn Peek, one: &Entry, other: &Entry) -> bool {
    let is_short = one.size <= SAMPLES * SAMPLE;
    let (count, length) = if is_short { (1, one.size) } else { (SAMPLES, SAMPLE) };
    let apart = one.size.saturating_sub(length) / (count - 1).max(1);
    let is_equal = |number: u64| {
        // The last one ends where the file does.
        let from = if number + 1 == count { one.size - length } else { number * apart };
        let read = |file: &Entry| peek.read(&file.path, from, length as usize);
        read(one).is_some_and(|bytes| Some(bytes) == read(other))
    };
    one.size == other.size && (0..count).all(is_equal)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::listing::tests::Memory;
    use super::*;

    /// An archive as torch.save writes it, in stored form.
    pub(in super::super) fn archive_of(pickle: &str, tensors: &[&str]) -> Vec<u8> {
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
    fn two_archives_are_of_one_save_where_the_tensors_of_one_are_all_in_the_other() {
        let saved = archive_of("step 30", &["weights of 30", "moments of 30"]);
        check::zip(
            &Memory::default().with("a", &saved),
            Memory::default().with("a", &saved).listing().file("a").expect("a"),
        )
        .expect("it is whole");
        assert!(is_same(&saved, &saved));
        assert!(is_same(&saved, archive_of("step 30, last.ckpt", &["weights of 30", "moments of 30"])));
        assert!(is_same(&saved, archive_of("the model", &["weights of 30"])));
        assert!(!is_same(&saved, archive_of("step 40, last.ckpt", &["weights of 40", "moments of 30"])));
        assert!(!is_same(&saved, archive_of("step 31", &["weights of 30", "moments of 30"])), "a number went on");
        assert!(!is_same(archive_of("step 1", &[]), archive_of("step 10", &[])), "nothing tells");
        assert!(!is_same(&saved, &saved[..saved.len() - 1]), "cut short");
    }

    #[test]
    fn other_files_are_of_one_save_where_length_and_samples_are_equal() {
        let long: Vec<u8> = (0..200_003u32).map(|at| (at.wrapping_mul(7919) >> 5) as u8).collect();
        assert!(is_same("weights", "weights") && is_same(&long, &long));
        assert!(!is_same("weights", "weightz") && !is_same("weights", "weight") && !is_same(&long, &long[1..]));
        let other: Vec<u8> = long.iter().map(|byte| byte ^ 1).collect();
        assert!(!is_same(&long, other));
        let mut end = long.clone();
        *end.last_mut().expect("a byte") ^= 1;
        assert!(!is_same(&long, end));
    }

    proptest::proptest! {
        #[test]
        fn no_archive_makes_it_panic(at in 0usize..400, byte: u8) {
            let whole = archive_of("step 30", &["weights", "moments"]);
            let mut other = whole.clone();
            let at = at % other.len();
            other[at] = byte;
            let _ = is_same(&whole, &other);
        }
    }
}
