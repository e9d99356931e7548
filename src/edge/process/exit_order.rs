//! The order in which processes exited. wait(2) reports several dead children in the order of their start; an epoll(7) of
//! their pidfds keeps the order in which they became readable, which is the order of their exits.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::edge::process::pidfd;

/// Watched processes, and the dead ones among them.
#[derive(Debug)]
pub struct Deaths {
    epoll: Epoll,
    /// A pidfd leaves the epoll when it is closed.
    watched: Vec<OwnedFd>,
    died: Vec<i32>,
}

impl Deaths {
    /// Watches no process yet. Errors: as epoll_create1(2).
    pub fn new() -> io::Result<Deaths> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Deaths { epoll, watched: Vec::new(), died: Vec::new() })
    }

    /// Watches a child that has not been waited for. Errors: as pidfd_open(2) (Linux 5.3) and epoll_ctl(2).
    pub fn watch(&mut self, pid: i32) -> io::Result<()> {
        let pidfd = pidfd::open(pid)?;
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        self.epoll.add(&pidfd, EpollEvent::new(once, u64::from(pid.unsigned_abs())))?;
        self.watched.push(pidfd);
        Ok(())
    }

    /// The watched processes that have died, first death first.
    pub fn so_far(&mut self) -> &[i32] {
        loop {
            let mut events = [EpollEvent::empty(); 16];
            let Ok(count @ 1..) = self.epoll.wait(&mut events, EpollTimeout::ZERO) else { return &self.died };
            self.died.extend(events[..count].iter().map(|event| event.data() as i32));
        }
    }
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
    fn the_first_death_is_first_even_of_the_youngest_process() {
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
