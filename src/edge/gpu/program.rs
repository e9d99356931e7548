//! The program of the probe.
//!
//! | build | program |
//! | --- | --- |
//! | any | the file that `TRAINIT_GPU_PROBE` names, and no other |
//! | dynamic | this executable, with its hidden subcommand |
//! | static | the same, which then executes the first that it can of: `trainit-gpu-probe` in the directory of this executable (an image layer: no security alert); the embedded program from memory; the same from a file that is deleted before it runs |
//!
//! A static trainit cannot load NVML. The probe's own process makes the file and executes it, because both may hang on a
//! file system. It is killed at the deadline, as every probe.
//!
//! Deliberately absent: `ld.so FILE` for a program that cannot be executed, which would bypass an administrator's
//! policy.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::iter;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{execve, fexecve};

use super::probe::SUBCOMMAND;
use crate::edge::process::spawn::own_pid;
use crate::rules::process::env::{Changes, Env};

/// The name of the program that contains NVML's code.
const NAME: &str = "trainit-gpu-probe";

/// The program of the probe, to be started with the hidden subcommand.
#[derive(Debug)]
pub struct ProbeProgram {
    /// Its name, for `argv[0]` and messages.
    pub name: String,
    /// Its files. The first that can be executed is used.
    pub files: Vec<PathBuf>,
}

#[cfg(gpu_probe_embedded)]
const EMBEDDED: Option<(&str, &[u8])> =
    Some((env!("TRAINIT_GPU_PROBE_LOADER"), include_bytes!(concat!(env!("OUT_DIR"), "/gpu-probe"))));
#[cfg(not(gpu_probe_embedded))]
const EMBEDDED: Option<(&str, &[u8])> = None;

/// The probe for NVML.
pub fn nvml(env: &Env) -> ProbeProgram {
    match env.given("TRAINIT_GPU_PROBE") {
        Some(named) => ProbeProgram { name: named.to_owned(), files: vec![named.into()] },
        None if super::LOADS_NVML => ourselves(),
        None => ProbeProgram { name: NAME.to_owned(), ..ourselves() },
    }
}

/// This executable: by `/proc`, which works even if the file has been replaced, else by the path it was started with.
pub fn ourselves() -> ProbeProgram {
    let files = [Some(PathBuf::from("/proc/self/exe")), super::started_as()].into_iter().flatten().collect();
    ProbeProgram { name: "trainit".to_owned(), files }
}

/// Executes the program that contains NVML's code in this process. Returns only if every way fails, with the last error.
pub(super) fn become_nvml_program(words: &[OsString], env: &Env) -> io::Error {
    // None of them contains a NUL byte, because the kernel has passed them.
    let c_strings = |all: Vec<Vec<u8>>| all.into_iter().flat_map(CString::new).collect::<Vec<CString>>();
    let words = words.iter().map(|word| word.clone().into_vec());
    let argv = c_strings([NAME.into(), SUBCOMMAND.into()].into_iter().chain(words).collect());
    let block = c_strings(env.with(&Changes::default()));
    let mut last = Errno::ENOENT.into();
    let beside = super::own_path().map(|own| own.with_file_name(NAME).into_os_string().into_vec());
    for beside in c_strings(beside.into_iter().collect()) {
        let Err(errno) = execve(&beside, &argv, &block);
        last = errno.into();
    }
    // The program cannot run without its loader.
    if let Some((_, program)) = EMBEDDED.filter(|(loader, _)| Path::new(loader).exists()) {
        let directories = env.given("TMPDIR").into_iter().chain(["/tmp", "/run", "."]);
        let name = format!(".{NAME}-{}", own_pid());
        let temporary = directories.map(|directory| temporary_file(&Path::new(directory).join(&name), program));
        // Each file is made only after all ways before have failed.
        for file in iter::once_with(|| memory_file(program)).chain(temporary) {
            let Err(error) = file.and_then(|file| Ok(fexecve(file, &argv, &block)?));
            last = error;
        }
    }
    last
}

/// The program in an anonymous file that can no longer be changed.
fn memory_file(program: &[u8]) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let executable = MFdFlags::from_bits_retain(libc::MFD_EXEC);
    // Linux before 6.3 rejects the flag and does not need it.
    let file = memfd_create(NAME, flags | executable).or_else(|_| memfd_create(NAME, flags))?;
    let mut file = File::from(file);
    file.write_all(program)?;
    let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// The program in a new file of this name, which is deleted, open for reading. A file that is open for writing cannot be
/// executed.
fn temporary_file(path: &Path, program: &[u8]) -> io::Result<File> {
    let mut written = File::options().write(true).create_new(true).mode(0o700).open(path)?;
    let opened = written.write_all(program).and_then(|()| open_again(path, &written));
    let _ = fs::remove_file(path);
    opened
}

/// Opens the file of this name for reading if it is the file that `written` refers to. In a directory that other users
/// can write to, another file may have taken the name.
fn open_again(path: &Path, written: &File) -> io::Result<File> {
    let opened = File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let (old, new) = (written.metadata()?, opened.metadata()?);
    if (old.dev(), old.ino()) == (new.dev(), new.ino()) { Ok(opened) } else { Err(Errno::ESTALE.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_taken_the_probes_name_is_not_executed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("probe");
        let written = File::create(&path).expect("a file");
        let is_opened = || open_again(&path, &written).is_ok();
        assert!(is_opened());
        fs::rename(&path, dir.path().join("ours")).expect("renamed");
        assert!(!is_opened(), "the file is missing");
        fs::write(&path, "another").expect("written");
        assert!(!is_opened(), "another file");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("ours", &path).expect("linked");
        assert!(!is_opened(), "a link");
    }

    #[test]
    fn both_files_of_the_program_can_be_read_and_not_be_changed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("probe");
        for file in [memory_file(b"program"), temporary_file(&path, b"program")] {
            let mut file = file.expect("a file");
            assert_eq!(std::os::unix::fs::FileExt::read_at(&file, &mut [0; 9], 0).expect("read"), 7);
            assert!(file.write_all(b"x").is_err());
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_configured_probe_is_the_only_program() {
        let program = nvml(&Env::from_pairs([("TRAINIT_GPU_PROBE", "/x/probe")]));
        assert_eq!((program.name.as_str(), &program.files[..]), ("/x/probe", &[PathBuf::from("/x/probe")][..]));
    }
}
