//! Which step a generation starts from: the newest that every training member can restore.

use std::collections::BTreeMap;

use super::message::{Choice, Offer, Step};
use super::seat::Seat;

/// How the nodes keep their checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Found out from the offers.
    #[default]
    Auto,
    /// Each node has commits of its own.
    Each,
    /// The state is the same on all nodes, and node 0 commits it.
    Chief,
    /// All nodes see one directory.
    Shared,
}

/// What the offers come to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Agreement {
    /// Start from this.
    On(Choice),
    /// Some members have steps and no step is common to all: the newest step of each seat.
    NoCommonStep(Vec<(Seat, Option<u64>)>),
}

/// What node 0's seat is: the first that trains.
pub fn chief_of(seats: impl IntoIterator<Item = Seat>) -> Option<Seat> {
    seats.into_iter().filter(|seat| seat.trains()).min()
}

/// The mode that the offers show. All others see a file that only the leader's directory can have: shared. Another node
/// than 0 has committed: each. Else node 0 keeps the checkpoints.
fn mode_of(offers: &BTreeMap<Seat, Offer>, chief: Seat) -> Mode {
    let mut others = offers.iter().filter(|(seat, _)| **seat != chief).map(|(_, offer)| offer);
    let is_alone = others.clone().next().is_none();
    if !is_alone && others.clone().all(|offer| offer.sees_leaders_file) {
        Mode::Shared
    } else if others.any(|offer| offer.has_own_commits) {
        Mode::Each
    } else {
        Mode::Chief
    }
}

/// When a job may begin although a member has a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Beginning {
    /// Never.
    Never,
    /// Where no step is common to all: the job began with nothing, and no step was common since.
    WithoutCommonStep,
    /// Always: the user asked for it.
    Asked,
}

/// Agrees on a step. `offers` has every training seat; others are not asked.
pub fn agree(mode: Mode, beginning: Beginning, offers: &BTreeMap<Seat, Offer>) -> Agreement {
    let offers: BTreeMap<Seat, Offer> =
        offers.iter().filter(|(seat, _)| seat.trains()).map(|(seat, offer)| (*seat, offer.clone())).collect();
    let Some(chief) = chief_of(offers.keys().copied()) else { return Agreement::On(Choice::Start) };
    let newest = |offer: &Offer| offer.steps.iter().max().copied();
    if beginning == Beginning::Asked || offers.values().all(|offer| offer.steps.is_empty()) {
        return Agreement::On(Choice::Start);
    }
    let mode = if mode == Mode::Auto { mode_of(&offers, chief) } else { mode };
    let of_chief = offers.get(&chief).and_then(newest);
    let choice = match mode {
        Mode::Shared => of_chief.map(Choice::Shared),
        Mode::Chief => of_chief.map(Choice::Chiefs),
        Mode::Each | Mode::Auto => common(&offers).map(Choice::Own),
    };
    match choice {
        Some(choice) => Agreement::On(choice),
        None if beginning == Beginning::WithoutCommonStep => Agreement::On(Choice::Start),
        None => {
            let newest = |(seat, offer): (&Seat, &Offer)| (*seat, newest(offer).map(|step| step.step));
            Agreement::NoCommonStep(offers.iter().map(newest).collect())
        }
    }
}

/// The largest step that all offer.
fn common(offers: &BTreeMap<Seat, Offer>) -> Option<u64> {
    let mut all = offers.values();
    let mut steps: Vec<u64> = all.next()?.steps.iter().map(|step| step.step).collect();
    all.for_each(|offer| steps.retain(|step| offer.steps.iter().any(|other| other.step == *step)));
    steps.into_iter().max()
}

/// The steps to offer out of all that can be restored: the newest, and the kept one.
pub fn offered(mut steps: Vec<Step>, kept: Option<u64>) -> Vec<Step> {
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps.dedup();
    let rest = steps.split_off(steps.len().min(super::message::MOST_STEPS));
    steps.extend(rest.into_iter().filter(|step| Some(step.step) == kept).take(1));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::Role;

    fn step(step: u64) -> Step {
        Step { step, hash: step * 31 }
    }

    fn offer(steps: &[u64]) -> Offer {
        Offer { steps: steps.iter().copied().map(step).collect(), ..Offer::default() }
    }

    fn offers(of: &[&[u64]]) -> BTreeMap<Seat, Offer> {
        let seat = |index: usize| {
            if index == 0 { Seat::new(Role::Chief, 0) } else { Seat::new(Role::Worker, index as u32 - 1) }
        };
        of.iter().enumerate().map(|(index, steps)| (seat(index), offer(steps))).collect()
    }

    #[test]
    fn nodes_with_commits_of_their_own_agree_on_the_newest_step_that_all_have() {
        let all = offers(&[&[30, 20, 10], &[20, 10], &[30, 20]]);
        assert_eq!(agree(Mode::Each, Beginning::Never, &all), Agreement::On(Choice::Own(20)));
    }

    #[test]
    fn a_job_never_starts_from_the_beginning_while_a_member_has_a_step() {
        let all = offers(&[&[], &[20]]);
        for mode in [Mode::Each, Mode::Chief, Mode::Shared] {
            let Agreement::NoCommonStep(table) = agree(mode, Beginning::Never, &all) else { panic!("{mode:?}") };
            assert_eq!(table.iter().map(|(_, newest)| *newest).collect::<Vec<_>>(), [None, Some(20)]);
        }
        assert_eq!(agree(Mode::Each, Beginning::Asked, &all), Agreement::On(Choice::Start), "unless it is asked for");
        assert_eq!(agree(Mode::Auto, Beginning::Never, &offers(&[&[], &[]])), Agreement::On(Choice::Start));
    }

    #[test]
    fn steps_that_were_never_common_do_not_stop_a_job_that_began_with_nothing() {
        let all = offers(&[&[], &[20]]);
        assert_eq!(agree(Mode::Each, Beginning::WithoutCommonStep, &all), Agreement::On(Choice::Start));
        let all = offers(&[&[10], &[20, 10]]);
        assert_eq!(agree(Mode::Each, Beginning::WithoutCommonStep, &all), Agreement::On(Choice::Own(10)));
    }

    #[test]
    fn the_mode_is_found_out_from_what_the_members_see() {
        let mut all = offers(&[&[20, 10], &[], &[]]);
        assert_eq!(agree(Mode::Auto, Beginning::Never, &all), Agreement::On(Choice::Chiefs(step(20))));
        all.values_mut().skip(1).for_each(|offer| offer.sees_leaders_file = true);
        assert_eq!(agree(Mode::Auto, Beginning::Never, &all), Agreement::On(Choice::Shared(step(20))));
        let mut all = offers(&[&[20, 10], &[10]]);
        all.values_mut().nth(1).unwrap().has_own_commits = true;
        assert_eq!(agree(Mode::Auto, Beginning::Never, &all), Agreement::On(Choice::Own(10)));
    }

    #[test]
    fn parameter_servers_have_no_steps_and_are_not_asked() {
        let mut all = offers(&[&[20], &[20]]);
        all.insert(Seat::new(Role::Ps, 0), offer(&[]));
        assert_eq!(agree(Mode::Each, Beginning::Never, &all), Agreement::On(Choice::Own(20)));
    }

    #[test]
    fn the_kept_step_is_offered_however_many_newer_ones_there_are() {
        let steps = offered((1..=40).map(step).collect(), Some(3));
        assert_eq!(steps.len(), 17);
        assert_eq!((steps[0].step, steps[16].step), (40, 3));
    }
}
