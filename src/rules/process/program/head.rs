//! The first bytes of a file, which name its interpreter: a `#!` line as Linux reads it (fs/binfmt_script.c), or an ELF
//! header with its program headers (elf(5)). Any bytes are accepted; values outside of them count as unknown.

/// The kernel reads at most this much of a `#!` line.
const LINE_BYTES: usize = 255;
/// The program header that names the dynamic loader.
const PT_INTERP: u64 = 3;

/// The type of a file, from its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// It begins with `#!`. The path is empty if no interpreter follows.
    Script(Vec<u8>),
    /// A compiled program.
    Elf {
        /// `e_machine`
        machine: u16,
        /// The path of the dynamic loader, if these bytes contain one.
        loader: Option<Vec<u8>>,
    },
    /// Another type: a description with advice. `ADVICE` stands for the advice to name the interpreter.
    Other(&'static str),
}

impl Head {
    /// Reads the first bytes of a file.
    pub fn of(bytes: &[u8]) -> Head {
        if let Some(line) = bytes.strip_prefix(b"#!") {
            return script(line);
        }
        elf(bytes).unwrap_or_else(|| Head::Other(description(bytes)))
    }

    /// The path of the program that executes this file.
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
        return Head::Other("its #! line is longer than the 255 bytes that Linux reads; ADVICE");
    }
    // A carriage return is part of the name. A name that is only a carriage return counts as empty.
    Head::Script(path.to_vec())
}

/// The interpreter of a `#!` line with Windows line endings, with its carriage return: the name that `env` looks up, or
/// the last argument. `None` for any other line.
pub fn with_carriage_return(bytes: &[u8]) -> Option<String> {
    let line = bytes.strip_prefix(b"#!")?.split(|b| *b == b'\n').next().filter(|line| line.ends_with(b"\r"))?;
    let last = line.rsplit(|b| matches!(b, b' ' | b'\t')).next()?;
    Some(String::from_utf8_lossy(last).into_owned())
}

/// The program that a `#!` line looks up in PATH by means of `env`.
pub fn env_argument(bytes: &[u8]) -> Option<String> {
    let line = bytes.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
    words.next().filter(|first| first.rsplit('/').next() == Some("env"))?;
    words.find(|word| !word.starts_with('-') && !word.contains('=')).map(str::to_owned)
}

fn elf(bytes: &[u8]) -> Option<Head> {
    let rest = bytes.strip_prefix(b"\x7fELF")?;
    let (is_64, is_little) = (rest.first() == Some(&2), rest.get(1) != Some(&2));
    let number = |at: u64, width: usize| number(bytes, at, width, is_little);
    let machine = u16::try_from(number(18, 2)?).ok()?;
    // Offset of the table, entry size and entry count; within an entry, offset and size of the segment.
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

fn description(bytes: &[u8]) -> &'static str {
    const LIKENESSES: [(&[u8], &str); 7] = [
        (b"\x7fELF", "it is a program that was cut off within its first bytes; build or copy it again"),
        (b"\xef\xbb\xbf#!", "it has a byte order mark before its #! line; save it as UTF-8 without one"),
        (b"MZ", "it is a program for Windows; build or copy the one for Linux"),
        (b"\xcf\xfa\xed\xfe", "it is a program for macOS; build or copy the one for Linux"),
        (b"\xca\xfe\xba\xbe", "it is a program for macOS, or a Java class; build or copy the one for Linux"),
        (b"version https://git-lfs", "it is a Git LFS pointer, not the file itself; run git lfs pull before the build"),
        (b"PK\x03\x04", "it is an archive, not a program; ADVICE"),
    ];
    if bytes.is_empty() {
        return "it is empty; was it copied whole?";
    }
    if let Some((_, what)) = LIKENESSES.iter().find(|(start, _)| bytes.starts_with(start)) {
        return what;
    }
    match bytes.trim_ascii_start().starts_with(b"#!") {
        true => "its #! is not at the very beginning of the file; remove what is before it",
        false => "it is neither a program for this machine nor a script with a #! line; ADVICE",
    }
}

/// The usual name of an `e_machine`; `None` for an unknown number.
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

    /// A 64-bit program with one program header, followed by its loader's path.
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
    fn the_machine_and_the_loader_of_a_program_are_read() {
        let head = Head::of(&program(183, "/lib/ld-musl-aarch64.so.1"));
        assert_eq!(head, Head::Elf { machine: 183, loader: Some(b"/lib/ld-musl-aarch64.so.1".to_vec()) });
        assert_eq!(machine_name(183), Some("aarch64"));
        // A big-endian 32-bit program: other offsets and byte order.
        let mut big = vec![0; 52 + 32];
        big[..7].copy_from_slice(b"\x7fELF\x01\x02\x01");
        (big[19], big[31], big[43], big[45]) = (40, 52, 32, 1);
        (big[55], big[59], big[71]) = (3, 84, 4);
        big.extend_from_slice(b"/ld\0");
        assert_eq!(Head::of(&big), Head::Elf { machine: 40, loader: Some(b"/ld".to_vec()) });
    }

    #[test]
    fn the_argument_of_env_is_read_and_so_is_a_carriage_return_anywhere_in_the_line() {
        for (text, env, cut) in [
            ("#!/usr/bin/env python3\r\nx", Some("python3\r"), Some("python3\r")),
            ("#!/usr/bin/env -S python3 -u\n", Some("python3"), None),
            ("#! /bin/sh -e\r\n", None, Some("-e\r")),
            ("#!/bin/sh\n\r\n", None, None),
            ("#!/usr/bin/env", None, None),
            ("print()\r\n", None, None),
        ] {
            assert_eq!(env_argument(text.as_bytes()).as_deref(), env, "{text:?}");
            assert_eq!(with_carriage_return(text.as_bytes()).as_deref(), cut, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(at in 0usize..150, byte: u8, cut in 0usize..160, rest in prop::collection::vec(any::<u8>(), 0..80)) {
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
