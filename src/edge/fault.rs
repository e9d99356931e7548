//! Numbered fault points, at which a test build kills, stops or panics itself. Release builds have none.

/// The fault, and the point where it occurs: `TRAINIT_TEST_FAULT=7` kills the process at its point 7, `7:stop` stops it
/// there until SIGCONT, `7:stop:3` only at the third time, `7:panic` panics in the thread that passes it.
#[derive(Debug, Default, Clone)]
pub struct Faults {
    #[cfg(debug_assertions)]
    armed: Option<(u32, Fault, std::sync::Arc<std::sync::atomic::AtomicU32>)>,
}

#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy)]
enum Fault {
    Signal(nix::sys::signal::Signal),
    Panic,
}

impl Faults {
    /// Reads the variable's value. A value of another form arms no point.
    pub fn parse(text: Option<&str>) -> Faults {
        #[cfg(debug_assertions)]
        {
            use nix::sys::signal::Signal;
            let mut parts = text.unwrap_or_default().split(':');
            let number = parts.next().and_then(|n| n.parse().ok());
            let fault = match parts.next() {
                Some("panic") => Fault::Panic,
                Some("stop") => Fault::Signal(Signal::SIGSTOP),
                _ => Fault::Signal(Signal::SIGKILL),
            };
            let times = parts.next().and_then(|n| n.parse().ok()).unwrap_or(1);
            Faults { armed: number.map(|number| (number, fault, std::sync::Arc::new(times.into()))) }
        }
        #[cfg(not(debug_assertions))]
        {
            let _ = text;
            Faults {}
        }
    }

    /// Passes the point of this number.
    pub fn point(&self, number: u32) {
        #[cfg(debug_assertions)]
        if let Some((armed, fault, times)) = &self.armed
            && *armed == number
            && times.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 1
        {
            match fault {
                Fault::Signal(signal) => drop(nix::sys::signal::kill(nix::unistd::Pid::this(), *signal)),
                Fault::Panic => panic!("fault point {number}"),
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = number;
    }
}
