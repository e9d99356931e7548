//! The files of a given set that a process has open for writing now, from /proc. Without a readable /proc none is found.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::edge::process::proc_listing;

/// Device and inode of a file.
type FileId = (u64, u64);

/// The subset of these files that any process has open for writing, or mapped shared and writable.
pub fn open_for_writing(files: &HashSet<FileId>) -> HashSet<FileId> {
    let mut open = HashSet::new();
    if files.is_empty() {
        return open;
    }
    for pid in proc_listing::ids("/proc").into_iter().flatten() {
        add_open(pid, files, &mut open);
        add_mapped(pid, files, &mut open);
    }
    open
}

fn add_open(pid: i32, files: &HashSet<FileId>, open: &mut HashSet<FileId>) {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return };
    for fd in descriptors.flatten() {
        let info = format!("/proc/{pid}/fdinfo/{}", fd.file_name().to_string_lossy());
        // Checked before stat(2), which never returns on a mount whose server is gone.
        if may_write(&fs::read_to_string(info).unwrap_or_default(), files)
            && let Ok(metadata) = fs::metadata(fd.path())
        {
            open.extend(files.get(&(metadata.dev(), metadata.ino())));
        }
    }
}

/// Whether the access mode in `flags:` (octal) allows writing, and the inode in `ino:` is one of these. Kernels before 5.14
/// do not report the inode.
fn may_write(info: &str, files: &HashSet<FileId>) -> bool {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = field("flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok());
    let inode = field("ino:").and_then(|inode| inode.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & 0o3 != 0) && inode.is_none_or(|inode| files.iter().any(|file| file.1 == inode))
}

/// Lines such as `7f1c2a000000-7f1c2a021000 rw-s 00000000 fe:00 393233 /data/file`.
fn add_mapped(pid: i32, files: &HashSet<FileId>, open: &mut HashSet<FileId>) {
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        if !(rights.contains('w') && rights.ends_with('s')) {
            continue;
        }
        let Some(inode) = fields.nth(2).and_then(|inode| inode.parse::<u64>().ok()) else { continue };
        // The device in this file is not stat's on some file systems; map_files is a link to the file itself.
        match fs::metadata(format!("/proc/{pid}/map_files/{range}")) {
            Ok(metadata) => open.extend(files.get(&(metadata.dev(), metadata.ino()))),
            Err(_) => open.extend(files.iter().filter(|file| file.1 == inode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    #[test]
    fn a_file_open_for_writing_is_distinguished_from_one_open_for_reading() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("f");
        fs::write(&path, "x").expect("write");
        let metadata = fs::metadata(&path).expect("stat");
        let files = HashSet::from([(metadata.dev(), metadata.ino())]);
        let reading = File::open(&path).expect("opens");
        assert!(open_for_writing(&files).is_empty());
        let writing = OpenOptions::new().append(true).open(&path).expect("opens");
        assert_eq!(open_for_writing(&files), files);
        drop((reading, writing));
        assert!(open_for_writing(&files).is_empty());
    }

    #[test]
    fn stat_is_called_only_for_files_open_for_writing_with_a_wanted_inode() {
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
