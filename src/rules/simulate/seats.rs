//! The replicas of a simulated job by name: `chief`, `worker-1`, `ps-0`, `evaluator-0`.

use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;

/// The most replicas: each needs a loopback address of its own.
pub const MOST: usize = 200;

/// A chief, and this many replicas of the other roles.
pub fn seats(workers: u32, servers: u32, evaluators: u32) -> Vec<Seat> {
    let of = |role, count| (0..count).map(move |index| Seat::new(role, index));
    let others = of(Role::Worker, workers).chain(of(Role::Ps, servers)).chain(of(Role::Evaluator, evaluators));
    of(Role::Chief, 1).chain(others).collect()
}

/// The name, as a directory and as a prefix of output: `chief`, `worker-1`.
pub fn name(seat: Seat) -> String {
    match seat.role() {
        Role::Chief => "chief".to_owned(),
        role => format!("{}-{}", role.word(), seat.index),
    }
}

/// The seat with this name. Errors: the existing names.
pub fn find(text: &str, seats: &[Seat]) -> Result<usize, String> {
    let wanted = text.trim().replace('/', "-").to_ascii_lowercase();
    let is_it = |seat: &Seat| name(*seat) == wanted || (seat.role() == Role::Chief && wanted == "chief-0");
    seats.iter().position(is_it).ok_or_else(|| {
        let first: Vec<String> = seats.iter().take(12).map(|seat| name(*seat)).collect();
        let more = if seats.len() > first.len() { ", ..." } else { "" };
        format!("there is no replica {text:?}; this job has {}{more}", first.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seat_is_found_by_its_name_and_another_name_lists_those_that_exist() {
        let all = seats(2, 1, 1);
        let names: Vec<String> = all.iter().map(|seat| name(*seat)).collect();
        assert_eq!(names, ["chief", "worker-0", "worker-1", "ps-0", "evaluator-0"]);
        for (at, name) in names.iter().enumerate() {
            assert_eq!(find(name, &all), Ok(at));
        }
        assert_eq!(find("worker/1", &all), Ok(2));
        let error = find("worker-2", &all).expect_err("no such worker");
        assert!(error.contains("worker-2") && error.contains("chief, worker-0, worker-1"), "{error}");
    }
}
