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
        let info = format!("/proc/{pid}/fdinfo/{}", fd.file_name().to_string_lossy());
        // Asked first: on a mount whose server is gone stat(2) never returns.
        may_write(&fs::read_to_string(info).unwrap_or_default(), files)
            && fs::metadata(fd.path()).is_ok_and(|m| files.contains(&(m.dev(), m.ino())))
    })
}

/// Whether the access mode in `flags:` (octal) allows writing, and the inode in `ino:` is one of these. Kernels before 5.14
/// do not say the inode.
fn may_write(info: &str, files: &HashSet<FileId>) -> bool {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = field("flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok());
    let inode = field("ino:").and_then(|inode| inode.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & 0o3 != 0) && inode.is_none_or(|inode| files.iter().any(|file| file.1 == inode))
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

    #[test]
    fn only_what_is_open_for_writing_and_has_one_of_the_inodes_is_worth_a_stat() {
        let files = HashSet::from([(1, 42), (1, 43)]);
        let info = |flags: &str, inode: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t24\n{inode}");
        for (flags, inode, expected) in [
            ("0100001", "ino:\t42\n", true),
            ("0100002", "ino:\t43\n", true),
            ("0100001", "", true),
            ("0100000", "ino:\t42\n", false),
            ("0100001", "ino:\t7\n", false),
            ("0100000", "", false),
        ] {
            assert_eq!(may_write(&info(flags, inode), &files), expected, "{flags} {inode}");
        }
        assert!(!may_write("", &files));
    }
}
