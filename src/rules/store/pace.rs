//! `--commit-bandwidth`: a limit in bytes a second while the trainer needs the network itself.

use std::time::Duration;

/// A limit in bytes a second. It does not apply while no trainer runs, and can be lifted for good.
#[derive(Debug, Default)]
pub struct Pace {
    /// Bytes a second; `None`: no limit.
    rate: Option<u64>,
    /// The limit does not apply now.
    is_off: bool,
    /// When the admitted bytes have been sent at this rate.
    free_at: Duration,
}

impl Pace {
    /// With this many bytes a second.
    pub fn new(rate: Option<u64>) -> Pace {
        Pace { rate, is_off: false, free_at: Duration::ZERO }
    }

    /// Whether there is a limit.
    pub fn is_capped(&self) -> bool {
        self.rate.is_some() && !self.is_off
    }

    /// Suspends the limit while no trainer runs.
    pub fn rest(&mut self, is_off: bool) {
        self.is_off = is_off;
    }

    /// Removes the limit, because time is short.
    pub fn remove_limit(&mut self) {
        self.rate = None;
    }

    /// When these bytes may be sent. Unused time before `now` is not saved up.
    pub fn admit(&mut self, now: Duration, bytes: u64) -> Duration {
        let Some(rate) = self.rate.filter(|_| !self.is_off) else { return now };
        let at = self.free_at.max(now);
        self.free_at = at + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn bytes_go_at_the_rate_and_rest_is_not_saved_up() {
        let mut pace = Pace::new(Some(10));
        assert_eq!(pace.admit(seconds(5), 20), seconds(5));
        assert_eq!(pace.admit(seconds(5), 10), seconds(7));
        assert_eq!(pace.admit(seconds(6), 10), seconds(8));
        assert_eq!(pace.admit(seconds(60), 10), seconds(60));
        assert_eq!(pace.admit(seconds(60), 10), seconds(61));
        pace.rest(true);
        assert_eq!(pace.admit(seconds(60), 1 << 40), seconds(60));
        pace.rest(false);
        assert_eq!(pace.admit(seconds(60), 10), seconds(62), "an idle period leaves no credit");
        pace.remove_limit();
        assert_eq!(pace.admit(seconds(60), 1 << 40), seconds(60));
        assert!(!pace.is_capped() && Pace::new(Some(1)).is_capped());
        assert_eq!(Pace::default().admit(seconds(1), u64::MAX), seconds(1));
    }
}
