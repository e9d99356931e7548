//! The faults of a simulated job, as text: `worker-1@40s`, `worker-1@step:20`, `chief@80s+10s`; schedules in files;
//! random faults by seed.

use std::fmt;
use std::time::Duration;

use super::seats;
use crate::cluster::seat::Seat;
use crate::gang::random::Random;
use crate::text::duration;

/// How long a replica is frozen if the user gives no duration.
const FREEZE: Duration = Duration::from_secs(30);
/// The limit for random faults.
const MOST_RANDOM: usize = 10_000;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The platform announces the end of the machine, and ends it after the notice period.
    Preempt,
    /// The machine is gone without a notice.
    Kill,
    /// Freeze the machine for this time.
    Freeze(Duration),
    /// Stop the processes of the trainer, and not trainit.
    Hang,
}

impl Kind {
    /// The flag's name.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Preempt => "preempt",
            Kind::Kill => "kill",
            Kind::Freeze(_) => "freeze",
            Kind::Hang => "hang",
        }
    }
}

/// When a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this time after the start.
    At(Duration),
    /// When the replica reports this step.
    Step(u64),
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::At(at) => write!(f, "{:.1}s", at.as_secs_f64()),
            When::Step(step) => write!(f, "step {step}"),
        }
    }
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: Kind,
    /// When it happens.
    pub when: When,
    /// The replica's place in the list of seats.
    pub replica: usize,
    /// The seed chose it. The user asked for such faults, but for none of them alone.
    pub is_random: bool,
}

/// Reads `SEAT@TIME` or `SEAT@step:N`; for a freeze also `SEAT@TIME+LENGTH`. Errors: the mistake, as one clause.
pub fn parse(kind: Kind, text: &str, seats: &[Seat], limit: Duration) -> Result<Fault, String> {
    let (seat, when) = text.trim().split_once('@').ok_or_else(|| {
        format!("expected SEAT@TIME or SEAT@step:N, as worker-1@40s or worker-1@step:20, found {text:?}")
    })?;
    let (when, kind) = match (kind, when.split_once('+')) {
        (Kind::Freeze(_), Some((when, length))) => (when, Kind::Freeze(duration::parse(length)?)),
        (kind, _) => (when, kind),
    };
    let when = match when.strip_prefix("step:") {
        Some(step) => When::Step(step.trim().parse().map_err(|_| format!("expected a step, found {step:?}"))?),
        None => When::At(duration::parse(when)?),
    };
    if let When::At(at) = when
        && at >= limit
    {
        return Err(format!("{text:?} is beyond the time limit of the job, {}s (--limit)", limit.as_secs_f64()));
    }
    Ok(Fault { kind, when, replica: seats::find(seat, seats)?, is_random: false })
}

/// The kind with this word.
pub fn kind(word: &str) -> Option<Kind> {
    [Kind::Preempt, Kind::Kill, Kind::Freeze(FREEZE), Kind::Hang].into_iter().find(|kind| kind.word() == word)
}

/// Reads a schedule: `preempt worker-1@40s` on each line, `#` begins a comment. Errors: every mistake, with its line.
pub fn schedule(text: &str, seats: &[Seat], limit: Duration) -> Result<Vec<Fault>, Vec<String>> {
    let (mut faults, mut mistakes) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let read = kind(word)
            .ok_or_else(|| format!("expected preempt, kill, freeze or hang, found {word:?}"))
            .and_then(|kind| parse(kind, rest, seats, limit));
        match read {
            Ok(fault) => faults.push(fault),
            Err(mistake) => mistakes.push(format!("line {number}: {mistake}")),
        }
    }
    if mistakes.is_empty() { Ok(faults) } else { Err(mistakes) }
}

/// The number of random faults in each period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    count: f64,
    period: Duration,
}

/// Reads `2/5m`. Errors: the expected form.
pub fn rate(text: &str) -> Result<Rate, String> {
    let expected = || format!("expected a number of faults and a period, as 2/5m, found {text:?}");
    let (count, period) = text.split_once('/').ok_or_else(expected)?;
    let count: f64 = count.trim().parse().map_err(|_| expected())?;
    let period = duration::parse(period)?;
    let is_sound = count.is_finite() && count > 0.0 && !period.is_zero();
    if is_sound { Ok(Rate { count, period }) } else { Err(expected()) }
}

/// Random faults until the limit, the same for the same seed. Half of them are preemptions, a quarter each kills and
/// freezes. Errors: there would be too many.
pub fn random(rate: Rate, seed: u64, seats: usize, limit: Duration) -> Result<Vec<Fault>, String> {
    let expected = rate.count * limit.as_secs_f64() / rate.period.as_secs_f64();
    if expected > MOST_RANDOM as f64 {
        return Err(format!("about {expected:.0} faults within --limit are too many; expected at most {MOST_RANDOM}"));
    }
    let (mut random, mut at, mut faults) = (Random(seed), 0.0, Vec::new());
    loop {
        // The pauses between independent events are exponentially distributed.
        at += -(1.0 - random.fraction()).ln() * rate.period.as_secs_f64() / rate.count;
        let when = Duration::from_secs_f64(at.min(1e9));
        if when >= limit || faults.len() >= 2 * MOST_RANDOM {
            return Ok(faults);
        }
        let kind = match random.below(4) {
            0 | 1 => Kind::Preempt,
            2 => Kind::Kill,
            _ => Kind::Freeze(FREEZE),
        };
        let replica = random.below(seats as u64) as usize;
        faults.push(Fault { kind, when: When::At(when), replica, is_random: true });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn read(kind_word: &str, text: &str) -> Result<Fault, String> {
        parse(kind(kind_word).expect("a kind"), text, &seats::seats(2, 0, 0), MINUTE)
    }

    #[test]
    fn a_fault_is_a_seat_and_a_time_or_a_step() {
        let fault = |kind, when, replica| Ok(Fault { kind, when, replica, is_random: false });
        let seconds = Duration::from_secs;
        assert_eq!(read("preempt", "worker-1@40s"), fault(Kind::Preempt, When::At(seconds(40)), 2));
        assert_eq!(read("kill", " chief@step:20"), fault(Kind::Kill, When::Step(20), 0));
        assert_eq!(read("freeze", "chief@5s"), fault(Kind::Freeze(FREEZE), When::At(seconds(5)), 0));
        assert_eq!(read("hang", "chief@step:3"), fault(Kind::Hang, When::Step(3), 0));
        assert_eq!(read("freeze", "chief@5s+2s"), fault(Kind::Freeze(seconds(2)), When::At(seconds(5)), 0));
    }

    #[test]
    fn a_mistake_in_a_fault_says_what_was_expected() {
        for (text, part) in [
            ("worker-1", "SEAT@TIME"),
            ("worker-7@1s", "no replica \"worker-7\""),
            ("worker-1@60s", "beyond the time limit"),
            ("worker-1@soon", "expected a duration"),
            ("worker-1@step:x", "expected a step"),
            ("worker-1@5s+2s", "expected a duration"),
        ] {
            let error = read("kill", text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_schedule_names_the_line_of_each_mistake() {
        let seats = seats::seats(1, 0, 0);
        let faults = schedule("# a drill\npreempt worker-0@1s # first\n\nkill chief@2s\n", &seats, MINUTE);
        assert_eq!(faults.map(|faults| faults.len()), Ok(2));
        let mistakes = schedule("preempt worker-0@1s\nexplode chief@2s\nkill\n", &seats, MINUTE).expect_err("two");
        assert!(mistakes.len() == 2 && mistakes[0].starts_with("line 2: ") && mistakes[1].starts_with("line 3: "));
    }

    #[test]
    fn a_seed_gives_the_same_faults_each_time_and_another_seed_gives_others() {
        let of = |seed| random(rate("2/1m").expect("a rate"), seed, 3, 60 * MINUTE).expect("not too many");
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert!((60..200).contains(&of(7).len()), "{}", of(7).len());
        assert!(of(7).iter().all(|fault| fault.replica < 3));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in r"(preempt |kill |freeze )?(chief|worker-0|é|)[@+:/ 0-9a-zé\n#.-]{0,40}") {
            let seats = seats::seats(1, 1, 1);
            let _ = schedule(&text, &seats, MINUTE);
            let _ = parse(Kind::Freeze(FREEZE), &text, &seats, Duration::MAX);
            let _ = crate::simulate::progress::read(&text.replace('@', "step=").replace('#', "loss="));
            if let Ok(rate) = rate(&text) {
                let _ = random(rate, 7, 3, MINUTE);
            }
        }
    }

    #[test]
    fn an_impossible_rate_is_refused() {
        for text in ["", "2", "0/5m", "-1/5m", "nan/5m", "2/0s", "inf/1s"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(random(rate("1000/1s").expect("a rate"), 7, 3, MINUTE).is_err());
    }
}
