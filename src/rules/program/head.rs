//! What the first bytes of a file say of who is to run it: a `#!` line as Linux reads it (fs/binfmt_script.c), or an ELF
//! header with its program headers (elf(5)). Any bytes will do: what does not lie within them is not known.

/// The kernel reads no more of a `#!` line.
const LINE_BYTES: usize = 255;
/// The program header that names the dynamic loader.
const PT_INTERP: u64 = 3;

/// A file by its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// It begins with `#!`; empty where no interpreter follows.
    Script(Vec<u8>),
    /// A program of its own.
    Elf {
        /// `e_machine`
        machine: u16,
        /// The dynamic loader, where it names one within what was read.
        loader: Option<Vec<u8>>,
    },
    /// Neither; what it looks like, and what to do about it.
    Other(&'static str),
}

impl Head {
    /// Reads what a file begins with.
    pub fn of(bytes: &[u8]) -> Head {
        if let Some(line) = bytes.strip_prefix(b"#!") {
            return script(line);
        }
        elf(bytes).unwrap_or_else(|| Head::Other(likeness(bytes)))
    }

    /// Who is to run it.
    pub fn interpreter(&self) -> Option<&[u8]> {
        match self {
            Head::Script(path) => Some(path.as_slice()).filter(|path| !path.is_empty()),
            Head::Elf { loader, .. } => loader.as_deref(),
            Head::Other(_) => None,
        }
    }
}

fn script(line: &[u8]) -> Head {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let path = line.trim_ascii_start().split(|b| matches!(b, b' ' | b'\t' | 0)).next().unwrap_or_default();
    if path.len() > LINE_BYTES {
        return Head::Other("its #! line is longer than the 255 bytes that Linux reads; name its interpreter first");
    }
    // A carriage return is a part of the name, but trimming must not have left one alone.
    Head::Script(path.to_vec())
}

fn elf(bytes: &[u8]) -> Option<Head> {
    let rest = bytes.strip_prefix(b"\x7fELF")?;
    let (is_64, is_little) = (rest.first() == Some(&2), rest.get(1) != Some(&2));
    let number = |at: u64, width: usize| number(bytes, at, width, is_little);
    let machine = u16::try_from(number(18, 2)?).ok()?;
    // Where the table begins, the size and the number of its entries; in an entry where a part lies, and its size.
    let (table, size, count, from, length, width) = if is_64 { (32, 54, 56, 8, 32, 8) } else { (28, 42, 44, 4, 16, 4) };
    let entries = || Some((number(table, width)?, number(size, 2)?, number(count, 2)?));
    let loader = entries().and_then(|(table, size, count)| {
        let mut entries = (0..count).map_while(|entry| table.checked_add(entry.checked_mul(size)?));
        let entry = entries.find(|at| number(*at, 4) == Some(PT_INTERP))?;
        let from = usize::try_from(number(entry.checked_add(from)?, width)?).ok()?;
        let length = usize::try_from(number(entry.checked_add(length)?, width)?).ok()?;
        let path = bytes.get(from..from.checked_add(length)?)?.split(|b| *b == 0).next()?;
        (!path.is_empty()).then(|| path.to_vec())
    });
    Some(Head::Elf { machine, loader })
}

fn number(bytes: &[u8], at: u64, width: usize, is_little: bool) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    Some(if is_little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
}

fn likeness(bytes: &[u8]) -> &'static str {
    const LIKENESSES: [(&[u8], &str); 7] = [
        (b"\x7fELF", "it is cut off within its first bytes; build or copy it again"),
        (b"\xef\xbb\xbf#!", "a byte order mark stands before its #! line; save it as UTF-8 without one"),
        (b"MZ", "it is a program for Windows; build or copy the one for Linux"),
        (b"\xcf\xfa\xed\xfe", "it is a program for macOS; build or copy the one for Linux"),
        (b"\xca\xfe\xba\xbe", "it is a program for macOS, or a Java class; build or copy the one for Linux"),
        (
            b"version https://git-lfs",
            "it is a pointer of Git LFS, not the file itself; run git lfs pull before the build",
        ),
        (b"PK\x03\x04", "it is an archive, no program; name what runs it first, as in: python FILE"),
    ];
    if bytes.is_empty() {
        return "it is empty; was it copied whole?";
    }
    if let Some((_, what)) = LIKENESSES.iter().find(|(start, _)| bytes.starts_with(start)) {
        return what;
    }
    match bytes.trim_ascii_start().starts_with(b"#!") {
        true => "its #! is not the very first thing in it; take out what stands before",
        false => {
            "not a program for this machine and no script with a #! line; name its interpreter first, as in: python FILE"
        }
    }
}

/// The usual name of an `e_machine`; `None` for one that trainit knows no name of.
pub fn machine_name(machine: u16) -> Option<&'static str> {
    Some(match machine {
        3 => "x86 (32 bits)",
        21 => "ppc64le",
        22 => "s390x",
        40 => "arm (32 bits)",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv64",
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A program of 64 bits with one program header and its loader behind.
    pub(in super::super) fn program(machine: u16, loader: &str) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16] = 2;
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        (bytes[64], bytes[64 + 8], bytes[64 + 32]) = (3, 120, loader.len() as u8 + 1);
        bytes.extend_from_slice(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    #[test]
    fn an_interpreter_is_read_as_the_kernel_reads_it() {
        let cases: [(&[u8], &[u8]); 6] = [
            (b"#!/bin/sh\n", b"/bin/sh"),
            (b"#! \t/opt/conda/bin/python -u\nprint()", b"/opt/conda/bin/python"),
            (b"#!/bin/sh\r\nexit", b"/bin/sh\r"),
            (b"#!/bin/sh -e\r\nexit", b"/bin/sh"),
            (b"#!/bin/sh", b"/bin/sh"),
            (b"#!", b""),
        ];
        for (text, path) in cases {
            assert_eq!(Head::of(text), Head::Script(path.to_vec()), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_program_names_its_machine_and_its_loader() {
        let head = Head::of(&program(183, "/lib/ld-musl-aarch64.so.1"));
        assert_eq!(head, Head::Elf { machine: 183, loader: Some(b"/lib/ld-musl-aarch64.so.1".to_vec()) });
        assert_eq!(machine_name(183), Some("aarch64"));
        // Big-endian, of 32 bits: the numbers lie elsewhere, and the other way round.
        let mut big = vec![0; 52 + 32];
        big[..7].copy_from_slice(b"\x7fELF\x01\x02\x01");
        (big[19], big[31], big[43], big[45]) = (40, 52, 32, 1);
        (big[55], big[59], big[71]) = (3, 84, 4);
        big.extend_from_slice(b"/ld\0");
        assert_eq!(Head::of(&big), Head::Elf { machine: 40, loader: Some(b"/ld".to_vec()) });
    }

    proptest! {
        #[test]
        fn damage_is_survived(at in 0usize..150, byte: u8, cut in 0usize..160, rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = program(62, "/lib64/ld-linux-x86-64.so.2");
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes.truncate(cut);
            Head::of(&bytes);
            let mut wild = bytes.get(..16).unwrap_or_default().to_vec();
            wild.extend(&rest);
            Head::of(&wild);
            Head::of(&rest);
        }
    }
}
