//! The program of the probe, and the ways to execute it. They are tried in order between fork and exec; if one fails,
//! the next is tried.
//!
//! | build | ways |
//! | --- | --- |
//! | any | the file that `TRAINIT_GPU_PROBE` names, and no other |
//! | dynamic | this executable, with its hidden subcommand |
//! | static | `trainit-gpu-probe` in the directory of this executable (an image layer: no security alert); the embedded program from memory; the same from a file that is deleted before it runs |
//!
//! Deliberately absent: `ld.so FILE` for a program that cannot be executed, which would bypass an administrator's
//! policy.
//!
//! libc is used because the calls must be async-signal-safe.

#![expect(unsafe_code, reason = "code between fork and exec")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::rules::process::env::Env;

/// One way to execute the probe.
#[derive(Debug)]
pub enum Candidate {
    /// A file.
    Path(CString),
    /// A program in memory, from an anonymous sealed file.
    Memory(&'static [u8]),
    /// A program in memory, from a new file of this name that is deleted before it runs.
    Temporary(CString, &'static [u8]),
}

/// The ways to execute the probe, first to last.
#[derive(Debug)]
pub struct ProbeProgram {
    /// The name of the program, for `argv[0]` and messages.
    pub name: String,
    /// The ways in order.
    pub candidates: Vec<Candidate>,
}

#[cfg(gpu_probe_embedded)]
const EMBEDDED: Option<(&str, &[u8])> =
    Some((env!("TRAINIT_GPU_PROBE_LOADER"), include_bytes!(concat!(env!("OUT_DIR"), "/gpu-probe"))));
#[cfg(not(gpu_probe_embedded))]
const EMBEDDED: Option<(&str, &[u8])> = None;

/// The probe for NVML.
pub fn nvml(env: &Env) -> ProbeProgram {
    if let Some(named) = env.given("TRAINIT_GPU_PROBE") {
        return ProbeProgram { name: named.to_owned(), candidates: path(named.into()).into_iter().collect() };
    }
    if EMBEDDED.is_none() && cfg!(all(target_env = "gnu", not(target_feature = "crt-static"))) {
        return ourselves();
    }
    let beside = super::own_path().map(|own| own.with_file_name("trainit-gpu-probe"));
    let mut candidates: Vec<Candidate> = beside.and_then(path).into_iter().collect();
    // The program cannot run without its loader.
    if let Some((loader, program)) = EMBEDDED
        && std::path::Path::new(loader).exists()
    {
        candidates.push(Candidate::Memory(program));
        let own = env.given("TMPDIR").into_iter().chain(["/tmp", "/run", "."]);
        let name = format!(".trainit-gpu-probe-{}", crate::edge::process::spawn::own_pid());
        let files = own.filter_map(|dir| CString::new(format!("{dir}/{name}")).ok());
        candidates.extend(files.map(|file| Candidate::Temporary(file, program)));
    }
    ProbeProgram { name: "trainit-gpu-probe".to_owned(), candidates }
}

/// This executable: by `/proc`, which works even if the file has been replaced, else by the path it was started with.
pub fn ourselves() -> ProbeProgram {
    let paths = [Some(PathBuf::from("/proc/self/exe")), super::started_as()].into_iter().flatten();
    ProbeProgram { name: "trainit".to_owned(), candidates: paths.filter_map(path).collect() }
}

fn path(path: PathBuf) -> Option<Candidate> {
    CString::new(path.as_os_str().as_bytes()).ok().map(Candidate::Path)
}

impl Candidate {
    /// Executes this program; returns only on failure, with errno.
    ///
    /// # Safety
    /// Call only in a freshly forked child. `argv` and `envp` are NULL-terminated arrays of C strings.
    pub(super) unsafe fn exec(&self, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        // SAFETY: system calls on strings and memory made before the fork.
        unsafe {
            match self {
                Candidate::Path(path) => {
                    libc::execve(path.as_ptr(), argv, envp);
                }
                Candidate::Memory(program) => {
                    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
                    let mut fd = libc::memfd_create(c"trainit-gpu-probe".as_ptr(), flags | libc::MFD_EXEC);
                    if fd < 0 {
                        // Linux before 6.3 rejects the flag and does not need it.
                        fd = libc::memfd_create(c"trainit-gpu-probe".as_ptr(), flags);
                    }
                    if fd >= 0 && write_all(fd, program) {
                        let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
                        libc::fcntl(fd, libc::F_ADD_SEALS, seals);
                        exec_fd(fd, argv, envp);
                    }
                }
                Candidate::Temporary(path, program) => {
                    let create = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                    let written = libc::open(path.as_ptr(), create, 0o700);
                    if written >= 0 {
                        let whole = write_all(written, program);
                        let fd = open_again(path, written);
                        // A file that is open for writing cannot be executed.
                        libc::close(written);
                        let errno = *libc::__errno_location();
                        libc::unlink(path.as_ptr());
                        *libc::__errno_location() = errno;
                        if whole && fd >= 0 {
                            exec_fd(fd, argv, envp);
                        }
                    }
                }
            }
            *libc::__errno_location()
        }
    }
}

/// Opens the file of this name for reading if it is the file that `written` refers to; otherwise returns a negative
/// value, with errno. In a directory that other users can write to, another file may have taken the name.
///
/// # Safety
/// As [`Candidate::exec`].
unsafe fn open_again(path: &CStr, written: c_int) -> c_int {
    // SAFETY: the structures are read only after the calls have filled them.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        let (mut written_stat, mut opened_stat) =
            (MaybeUninit::<libc::stat>::uninit(), MaybeUninit::<libc::stat>::uninit());
        if fd < 0
            || libc::fstat(written, written_stat.as_mut_ptr()) < 0
            || libc::fstat(fd, opened_stat.as_mut_ptr()) < 0
        {
            return -1;
        }
        let (old, new) = (written_stat.assume_init(), opened_stat.assume_init());
        if (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino) {
            return fd;
        }
        libc::close(fd);
        *libc::__errno_location() = libc::ESTALE;
        -1
    }
}

/// Executes an open file; by `/proc` if the kernel (or an emulator) has no execveat(2).
///
/// # Safety
/// As [`Candidate::exec`].
unsafe fn exec_fd(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let digits = fd.max(1).ilog10() as usize;
    let mut rest = fd;
    for at in (0..=digits).rev() {
        path[14 + at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // SAFETY: the path is NUL-terminated and on this stack; the rest by the contract above.
    unsafe {
        libc::syscall(libc::SYS_execveat, fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH);
        if *libc::__errno_location() == libc::ENOSYS {
            libc::execve(path.as_ptr().cast(), argv, envp);
        }
    }
}

/// # Safety
/// As [`Candidate::exec`].
unsafe fn write_all(fd: c_int, bytes: &[u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: within the slice.
        let count = unsafe { libc::write(fd, bytes.as_ptr().add(done).cast(), bytes.len() - done) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => done += count,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_taken_the_probes_name_is_not_executed() {
        use std::fs::{self, File};
        use std::os::fd::AsRawFd;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("probe");
        let written = File::create(&path).expect("a file");
        let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: plain system calls on a live string and descriptor.
        let is_opened = || unsafe {
            let fd = open_again(&name, written.as_raw_fd());
            fd >= 0 && libc::close(fd) == 0
        };
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
    fn a_configured_probe_is_the_only_candidate() {
        let program = nvml(&Env::from_pairs([("TRAINIT_GPU_PROBE", "/x/probe")]));
        assert_eq!(program.name, "/x/probe");
        assert!(matches!(&program.candidates[..], [Candidate::Path(path)] if path.as_c_str() == c"/x/probe"));
    }
}
