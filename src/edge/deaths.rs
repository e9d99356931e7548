//! In which order processes died. wait(2) tells of several dead children in the order of their birth; an epoll(7) of their
//! pidfds keeps the order in which they became readable, which is the order of their deaths.

#![expect(unsafe_code, reason = "pidfd_open and epoll")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Watched processes, and those of them that have died. Dropping it forgets them.
#[derive(Debug)]
pub struct Deaths {
    epoll: OwnedFd,
    /// A pidfd leaves the epoll when it is closed.
    watched: Vec<OwnedFd>,
    died: Vec<i32>,
}

impl Deaths {
    /// Watches nobody yet. Errors: as epoll_create1(2).
    pub fn new() -> io::Result<Deaths> {
        // SAFETY: an integer flag; a descriptor that was returned is ours alone.
        let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        Ok(Deaths { epoll, watched: Vec::new(), died: Vec::new() })
    }

    /// Watches a child that has not been waited for. Errors: as pidfd_open(2) (Linux 5.3) and epoll_ctl(2).
    pub fn watch(&mut self, pid: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32,
            u64: u64::from(pid.unsigned_abs()),
        };
        // SAFETY: integers, and an event that is alive for the call; a descriptor that was returned is ours alone.
        unsafe {
            let pidfd = owned(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32)?;
            let (epoll, fd) = (self.epoll.as_raw_fd(), pidfd.as_raw_fd());
            if libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) < 0 {
                return Err(io::Error::last_os_error());
            }
            self.watched.push(pidfd);
        }
        Ok(())
    }

    /// The watched processes that have died, first death first.
    pub fn so_far(&mut self) -> &[i32] {
        loop {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
            // SAFETY: the buffer has room for as many events as is said; the call does not wait.
            let count =
                unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 0) };
            let Ok(count @ 1..) = usize::try_from(count) else { return &self.died };
            self.died.extend(events[..count].iter().map(|event| event.u64 as i32));
        }
    }
}

/// A descriptor that a call returned, or errno.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller says that it is a new one.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    #[expect(clippy::disallowed_methods, reason = "its mask and SIGPIPE do not matter here")]
    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat")
    }

    #[test]
    fn the_last_born_that_dies_first_is_first() {
        let (mut one, mut two) = (cat(), cat());
        let mut deaths = Deaths::new().expect("epoll");
        for child in [&one, &two] {
            deaths.watch(child.id() as i32).expect("a pidfd");
        }
        assert!(deaths.so_far().is_empty());
        drop(two.stdin.take());
        two.wait().expect("ended");
        drop(one.stdin.take());
        one.wait().expect("ended");
        assert_eq!(deaths.so_far(), [two.id() as i32, one.id() as i32]);
    }
}
