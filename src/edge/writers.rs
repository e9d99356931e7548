//! Who is writing certain files right now, from /proc. Where /proc cannot be read, nobody is seen.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Device and inode of a file.
pub type FileId = (u64, u64);

/// The first process that has one of the files open for writing, or mapped shared and writable: `python (pid 123)`.
pub fn writer_of(files: &HashSet<FileId>) -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?;
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if has_open(pid, files) || has_mapped(pid, files) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Some(format!("{} (pid {pid})", name.trim()));
        }
    }
    None
}

fn has_open(pid: u32, files: &HashSet<FileId>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|fd| {
        let is_ours = fs::metadata(fd.path()).is_ok_and(|m| files.contains(&(m.dev(), m.ino())));
        is_ours && writes(pid, &fd.file_name().to_string_lossy())
    })
}

/// Whether the access mode in `flags:` (octal) allows writing.
fn writes(pid: u32, fd: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = text.lines().find_map(|l| l.strip_prefix("flags:")).and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
    flags.is_some_and(|f| f & 0o3 != 0)
}

/// Lines such as `7f1c2a000000-7f1c2a021000 rw-s 00000000 fe:00 393233 /data/file`.
fn has_mapped(pid: u32, files: &HashSet<FileId>) -> bool {
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { return false };
        let shared_and_writable = rights.contains('w') && rights.ends_with('s');
        // The device in this file is not stat's on some file systems; map_files is a link to the file itself.
        let is_ours = |inode: Option<&str>| {
            let inode = inode.and_then(|i| i.parse::<u64>().ok());
            inode.is_some_and(|i| files.iter().any(|f| f.1 == i))
        };
        shared_and_writable && is_ours(fields.nth(2)) && {
            let mapped = fs::metadata(format!("/proc/{pid}/map_files/{range}"));
            mapped.map_or(true, |m| files.contains(&(m.dev(), m.ino())))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    #[test]
    fn a_file_open_for_writing_has_a_writer_and_one_open_for_reading_has_none() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("f");
        fs::write(&path, "x").expect("write");
        let metadata = fs::metadata(&path).expect("stat");
        let files = HashSet::from([(metadata.dev(), metadata.ino())]);
        let reading = File::open(&path).expect("opens");
        assert_eq!(writer_of(&files), None);
        let writing = OpenOptions::new().append(true).open(&path).expect("opens");
        let writer = writer_of(&files).expect("we are writing");
        assert!(writer.contains(&format!("pid {}", std::process::id())), "{writer}");
        drop((reading, writing));
        assert_eq!(writer_of(&files), None);
    }
}
