//! Numbered points at which a test build kills or stops itself, so that tests can be unkind at any moment they choose.
//! In release builds there are none.

/// What to do at which point: `TRAINIT_TEST_FAULT=7` kills the process at its point 7, `7:stop` stops it there until
/// SIGCONT, `7:stop:3` only at the third time.
#[derive(Debug, Default, Clone)]
pub struct Faults {
    #[cfg(debug_assertions)]
    armed: Option<(u32, nix::sys::signal::Signal, std::sync::Arc<std::sync::atomic::AtomicU32>)>,
}

impl Faults {
    /// Reads the variable's value. Anything else than the forms above arms nothing.
    pub fn parse(text: Option<&str>) -> Faults {
        #[cfg(debug_assertions)]
        {
            use nix::sys::signal::Signal;
            let mut parts = text.unwrap_or_default().split(':');
            let number = parts.next().and_then(|n| n.parse().ok());
            let signal = if parts.next() == Some("stop") { Signal::SIGSTOP } else { Signal::SIGKILL };
            let times = parts.next().and_then(|n| n.parse().ok()).unwrap_or(1);
            Faults { armed: number.map(|number| (number, signal, std::sync::Arc::new(times.into()))) }
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
        if let Some((armed, signal, times)) = &self.armed
            && *armed == number
            && times.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 1
        {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), *signal);
        }
        #[cfg(not(debug_assertions))]
        let _ = number;
    }
}
