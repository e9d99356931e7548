//! The checkpoint from which a generation starts. If each node has checkpoints of its own, it is the newest step that every
//! training member can restore. A checkpoint without a step can be chosen only if node 0's checkpoint is valid for all.

use std::collections::BTreeMap;

use super::super::message::{Choice, Offer, Step};
use crate::cluster::seat::Seat;

/// How the nodes keep their checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Detected from the offers.
    #[default]
    Auto,
    /// Each node has checkpoints of its own.
    Each,
    /// The state is the same on all nodes, and node 0 commits it.
    Chief,
    /// All nodes share one directory.
    Shared,
}

impl Mode {
    /// The value of `--gang-checkpoints`.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Each => "each",
            Mode::Chief => "chief",
            Mode::Shared => "shared",
        }
    }
}

/// The maximum number of steps of a seat in the table.
const STEPS_SHOWN: usize = 3;
/// The maximum number of seats in the table.
const SEATS_SHOWN: usize = 16;

/// The result of the offers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Agreement {
    /// The chosen checkpoint.
    On(Choice),
    /// Some members have steps, but no step is common to all. The text is a table of the members' steps.
    NoCommonStep(String),
}

/// The seat of node 0: the first that trains.
pub fn chief_of(seats: impl IntoIterator<Item = Seat>) -> Option<Seat> {
    seats.into_iter().filter(|seat| seat.trains()).min()
}

/// When a job may start from the beginning although a member has a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FromScratch {
    /// Never.
    Never,
    /// If no step is common to all: the job started without checkpoints, and no step was common since.
    WithoutCommonStep,
    /// Always, because of `--gang-from-scratch`.
    Requested,
}

/// Detects the mode from the offers, for [`Mode::Auto`]. Shared: all others see the leader's file in their directory. Each: a
/// node other than 0 has or had checkpoints of its own. Chief: otherwise. `offers` has every training seat.
pub fn mode_of(offers: &BTreeMap<Seat, Offer>, each_has_own: bool) -> Mode {
    let chief = chief_of(offers.keys().copied());
    let mut others = offers.iter().filter(|(seat, _)| Some(**seat) != chief).map(|(_, offer)| offer);
    let is_alone = others.clone().next().is_none();
    if !is_alone && others.clone().all(|offer| offer.sees_leaders_file) {
        Mode::Shared
    } else if each_has_own || others.any(|offer| offer.has_own_checkpoints) {
        Mode::Each
    } else {
        Mode::Chief
    }
}

/// Agrees on a checkpoint. `offers` has every training seat.
pub fn agree(mode: Mode, from_scratch: FromScratch, offers: &BTreeMap<Seat, Offer>) -> Agreement {
    let Some(chief) = chief_of(offers.keys().copied()) else { return Agreement::On(Choice::Start) };
    if from_scratch == FromScratch::Requested || offers.values().all(|offer| offer.steps.is_empty()) {
        return Agreement::On(Choice::Start);
    }
    let of_chief = || offers.get(&chief).into_iter().flat_map(|offer| offer.steps.iter().copied());
    let choice = match mode {
        Mode::Shared => of_chief().next().map(Choice::Shared),
        // Other nodes can read only a commit in the store.
        Mode::Chief => of_chief().find(|step| step.is_stored).or(of_chief().next()).map(Choice::Chiefs),
        Mode::Each | Mode::Auto => common(offers).map(Choice::Own),
    };
    match choice {
        Some(choice) => Agreement::On(choice),
        None if from_scratch == FromScratch::WithoutCommonStep => Agreement::On(Choice::Start),
        None => Agreement::NoCommonStep(table(mode, offers)),
    }
}

/// The largest step that all offer.
fn common(offers: &BTreeMap<Seat, Offer>) -> Option<u64> {
    let mut all = offers.values().map(|offer| offer.steps.iter().filter_map(|step| step.step));
    let mut steps: Vec<u64> = all.next()?.collect();
    for other in all {
        let other: Vec<u64> = other.collect();
        steps.retain(|step| other.contains(step));
    }
    steps.into_iter().max()
}

/// A table of the members' steps.
pub fn steps_of(offers: &BTreeMap<Seat, Offer>) -> String {
    let shown = |(seat, offer): (&Seat, &Offer)| {
        let steps = offer.steps.iter().take(STEPS_SHOWN);
        let steps: Vec<String> =
            steps.map(|step| step.step.map_or("one without a step".to_owned(), |step| step.to_string())).collect();
        let more = if offer.steps.len() > STEPS_SHOWN { " and older" } else { "" };
        let steps = if steps.is_empty() { "nothing".to_owned() } else { steps.join(", ") };
        format!("{seat} has {steps}{more}")
    };
    offers.iter().take(SEATS_SHOWN).map(shown).collect::<Vec<_>>().join(", ")
}

/// The table with the user's options.
fn table(mode: Mode, offers: &BTreeMap<Seat, Offer>) -> String {
    let is_stepless =
        mode == Mode::Each && offers.values().flat_map(|offer| &offer.steps).any(|step| step.step.is_none());
    let steps = if is_stepless { "give trainit the step (--step-regex, or the heartbeat file), " } else { "" };
    let chiefs = if mode == Mode::Each {
        "give --gang-checkpoints chief if node 0's checkpoint is enough for all, "
    } else {
        ""
    };
    format!(
        "no step is common to all: {}; nothing was started and nothing was changed; {steps}{chiefs}or start from the \
         beginning with --gang-from-scratch",
        steps_of(offers)
    )
}

/// The steps to offer, from all restorable ones, newest first: the newest, and the kept one.
pub fn offered(mut steps: Vec<Step>, kept: Option<u64>) -> Vec<Step> {
    let rest = steps.split_off(steps.len().min(super::super::message::MOST_STEPS));
    steps.extend(rest.into_iter().filter(|step| step.step.is_some() && step.step == kept).take(1));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::Role;

    fn step(step: u64) -> Step {
        Step { step: Some(step), hash: step * 31, is_stored: true }
    }

    const STEPLESS: Step = Step { step: None, hash: 7, is_stored: true };

    fn offers(of: &[&[Step]]) -> BTreeMap<Seat, Offer> {
        let seat = |index: usize| {
            if index == 0 { Seat::new(Role::Chief, 0) } else { Seat::new(Role::Worker, index as u32 - 1) }
        };
        let offer = |steps: &&[Step]| Offer { steps: steps.to_vec(), ..Offer::default() };
        of.iter().enumerate().map(|(index, steps)| (seat(index), offer(steps))).collect()
    }

    fn has_own(mut offers: BTreeMap<Seat, Offer>) -> BTreeMap<Seat, Offer> {
        offers.values_mut().skip(1).for_each(|offer| offer.has_own_checkpoints = true);
        offers
    }

    #[test]
    fn nodes_with_own_checkpoints_agree_on_the_newest_common_step() {
        let all = offers(&[&[step(30), step(20), step(10)], &[step(20), step(10)], &[step(30), step(20)]]);
        assert_eq!(agree(Mode::Each, FromScratch::Never, &all), Agreement::On(Choice::Own(20)));
    }

    #[test]
    fn a_job_never_starts_from_the_beginning_while_a_member_has_a_checkpoint() {
        let all = offers(&[&[], &[step(20)]]);
        for mode in [Mode::Each, Mode::Chief, Mode::Shared] {
            let Agreement::NoCommonStep(table) = agree(mode, FromScratch::Never, &all) else { panic!("{mode:?}") };
            assert!(table.contains("chief/0 has nothing, worker/0 has 20"), "{table}");
        }
        assert_eq!(agree(Mode::Each, FromScratch::Requested, &all), Agreement::On(Choice::Start), "unless requested");
        assert_eq!(agree(Mode::Each, FromScratch::Never, &offers(&[&[], &[]])), Agreement::On(Choice::Start));
    }

    #[test]
    fn a_job_that_started_without_checkpoints_may_start_again_until_a_step_is_common() {
        let all = offers(&[&[], &[step(20)]]);
        assert_eq!(agree(Mode::Each, FromScratch::WithoutCommonStep, &all), Agreement::On(Choice::Start));
        let all = offers(&[&[step(10)], &[step(20), step(10)]]);
        assert_eq!(agree(Mode::Each, FromScratch::WithoutCommonStep, &all), Agreement::On(Choice::Own(10)));
    }

    #[test]
    fn a_checkpoint_without_a_step_is_chosen_only_from_node_0() {
        let all = offers(&[&[STEPLESS, step(20)], &[STEPLESS]]);
        assert_eq!(agree(Mode::Chief, FromScratch::Never, &all), Agreement::On(Choice::Chiefs(STEPLESS)));
        let Agreement::NoCommonStep(table) = agree(Mode::Each, FromScratch::Never, &all) else { panic!("no step") };
        assert!(table.contains("worker/0 has one without a step") && table.contains("--step-regex"), "{table}");
    }

    #[test]
    fn node_0_chooses_its_newest_stored_commit_else_its_newest_local_checkpoint() {
        let local = |number| Step { is_stored: false, ..step(number) };
        let choice = |steps: &[Step]| agree(Mode::Chief, FromScratch::Never, &offers(&[steps, &[]]));
        assert_eq!(choice(&[local(40), step(30), step(20)]), Agreement::On(Choice::Chiefs(step(30))));
        assert_eq!(choice(&[local(40), local(30)]), Agreement::On(Choice::Chiefs(local(40))));
    }

    #[test]
    fn the_mode_is_detected_from_the_offers() {
        let mut all = offers(&[&[step(20)], &[], &[]]);
        assert_eq!(mode_of(&all, false), Mode::Chief);
        assert_eq!(mode_of(&all, true), Mode::Each, "another node had checkpoints once");
        assert_eq!(mode_of(&has_own(all.clone()), false), Mode::Each);
        all.values_mut().skip(1).for_each(|offer| offer.sees_leaders_file = true);
        assert_eq!(mode_of(&has_own(all), true), Mode::Shared);
        assert_eq!(mode_of(&offers(&[&[step(20)]]), false), Mode::Chief);
    }

    #[test]
    fn the_kept_step_is_offered_however_many_newer_ones_there_are() {
        let steps = offered((1..=40).rev().map(step).collect(), Some(3));
        assert_eq!(steps.len(), 17);
        assert_eq!((steps[0].step, steps[16].step), (Some(40), Some(3)));
    }
}
