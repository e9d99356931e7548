//! A thousand and ten thousand members, and the cost of the leader.

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::tests::check_seed;
    use super::super::*;
    use crate::gang::beat::Beat;
    use crate::gang::leader::{Action, Event, Link};
    use crate::gang::message::{Hello, Record};
    use crate::gang::wire::{Channel, Direction};

    /// A leader, and the links of its members.
    struct Load {
        leader: Leader,
        members: u64,
        now: Duration,
    }

    impl Load {
        fn new(members: usize) -> Load {
            let config = Config {
                mode: Mode::Auto,
                limits: Limits { max_restarts: 1_000, ..Limits::default() },
                hang: Some(HANG),
                ..Config::of((0..members).map(seat_of), seat_of(0), Incarnation(u128::MAX))
            };
            let now = Duration::from_secs(1_000);
            Load { leader: Leader::new(now, config), members: members as u64, now }
        }

        /// Each member sends a message, one after the other within this time; the store answers at once. Returns the computing
        /// time of the leader.
        #[allow(clippy::disallowed_methods, reason = "the test measures processor time")]
        fn send_from_all(&mut self, within: Duration, message: impl Fn(Link) -> ToLeader) -> Duration {
            let began = Instant::now();
            let (members, start) = (self.members, self.now);
            let mut wake = start;
            for link in 0..members {
                self.now = start + within * link as u32 / members as u32;
                let tick = (self.now >= wake).then_some(Event::Tick);
                for event in tick.into_iter().chain([Event::Received(link, message(link))]) {
                    for action in self.leader.step(self.now, event) {
                        match action {
                            Action::Claim { generation, .. } => {
                                drop(self.leader.step(self.now, Event::Claimed(generation)))
                            }
                            Action::Wake(at) => wake = at,
                            _ => {}
                        }
                    }
                }
            }
            self.now = start + within;
            began.elapsed()
        }

        fn beats(&mut self, seconds: u64, step: impl Fn(u64) -> u64, committed: &[u64]) -> Duration {
            let beat = Timing::default().beat;
            let mut took = Duration::ZERO;
            for number in 0..seconds / beat.as_secs() {
                let clock = self.now.as_millis() as u64;
                took += self.send_from_all(beat, |_| {
                    let (step, committed) = (Some(step(number)), committed.to_vec());
                    ToLeader::Beat(Beat { clock, step, committed, ..Beat::default() })
                });
            }
            took
        }
    }

    fn hello(link: Link) -> ToLeader {
        ToLeader::Hello(Hello {
            seat: seat_of(link as usize),
            incarnation: Incarnation(u128::from(link)),
            host: format!("host-{link}"),
            boot: String::new(),
            newest: 0,
            busy: None,
            former: None,
            record: Record::default(),
            settings: None,
        })
    }

    /// A complete run of a gang; the name of each part, and the computing time of the leader.
    fn life(members: usize) -> Vec<(&'static str, Duration)> {
        let mut load = Load::new(members);
        let step = |step| Step { step: Some(step), hash: step, is_stored: true };
        let offer = |after, newest: u64| ToLeader::Offer {
            after,
            offer: Offer {
                steps: (1..=newest).rev().take(16).map(step).collect(),
                has_own_checkpoints: true,
                ..Offer::default()
            },
        };
        let second = Duration::from_secs(1);
        let mut parts = vec![("join", load.send_from_all(second, hello))];
        parts.push(("offer", load.send_from_all(second, |_| offer(0, 16))));
        parts.push(("wait for the claim", load.beats(4, |_| 0, &[])));
        assert_eq!(load.leader.state(), "arming");
        let generation = load.leader.generation();
        parts.push(("arm", load.send_from_all(second, |_| ToLeader::Armed { generation })));
        assert_eq!(load.leader.state(), "training");
        parts.push(("a minute of beats", load.beats(60, |number| number, &[17])));
        parts.push(("commit", load.beats(2, |_| 100, &[17, 18])));
        assert_eq!(load.leader.record().kept, Some(18));
        let tree = TreeState::of(Some(100), Some(1), [('S', "futex_wait_queue".to_owned())]);
        parts.push((
            "activity of the processes",
            load.send_from_all(second, |_| ToLeader::Tree { generation, tree: tree.clone() }),
        ));
        parts.push(("a hang", load.beats(46, |_| 100, &[])));
        assert_eq!(load.leader.state(), "collecting");
        parts.push(("offer again", load.send_from_all(second / 4, |_| offer(generation, 18))));
        parts.push(("the pause", load.beats(4, |_| 100, &[])));
        assert_eq!(load.leader.state(), "arming");
        parts
    }

    #[test]
    fn the_work_of_the_leader_grows_linearly_with_the_number_of_members() {
        let total = |members: usize| life(members).iter().map(|(_, took)| *took).sum::<Duration>();
        // With ten times the members, a hundred times the work would be quadratic.
        let (few, many) = (total(200), total(2_000));
        assert!(many < few * 50 + Duration::from_secs(5), "200 members take {few:?}, 2,000 take {many:?}");
    }

    #[test]
    #[ignore = "a measurement, for an optimized build"]
    fn cost_of_ten_thousand_members_for_the_leader() {
        for (part, took) in life(10_000) {
            println!("{part}: {took:?}");
        }
    }

    /// With JSON and authentication, as on the connections.
    #[test]
    #[ignore = "a measurement, for an optimized build"]
    #[allow(clippy::disallowed_methods, reason = "the test measures processor time")]
    fn cost_of_a_minute_of_beats_of_ten_thousand_members_on_the_wire() {
        let began = Instant::now();
        let beat = ToLeader::Beat(Beat { clock: 1_000, step: Some(7), committed: vec![1, 2, 3, 4], ..Beat::default() });
        let (mut from, mut to) =
            (Channel::new([7; 32], Direction::ToLeader), Channel::new([7; 32], Direction::ToLeader));
        let (mut out, mut received) = (Channel::new([7; 32], Direction::ToMember), Vec::new());
        for _ in 0..300_000 {
            received.extend(from.frame(&beat).expect("short"));
            assert!(to.take::<ToLeader>(&mut received).expect("a message").is_some());
            out.frame(&ToMember::Echo { clock: 1_000, save_at: None, save_step: None, missing: Vec::new() })
                .expect("short");
        }
        println!("300,000 beats, each made, read and answered: {:?}", began.elapsed());
    }

    #[test]
    fn a_thousand_members_keep_the_promises() {
        check_seed(1, &Plan::of(1_000, Mode::Each).slow(), 2);
    }

    #[test]
    #[ignore = "minutes"]
    fn a_thousand_and_ten_thousand_members_keep_the_promises() {
        for seed in 0..4 {
            check_seed(seed, &Plan::of(1_000, Mode::Each).slow(), 6);
        }
        for seed in 0..2 {
            check_seed(seed, &Plan::of(10_000, Mode::Each).slow(), 4);
        }
    }
}
