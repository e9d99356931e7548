//! docs/reference/states.md is the job machine's table: the effect of each event in each state.

use std::time::Duration;

use crate::support::documents::{root, text};
use trainit::rules::cluster::seat::Seat;
use trainit::rules::cluster::spec::Role;
use trainit::rules::gang::member::{Action as Order, Leave};
use trainit::rules::gang::message::{Choice, Offer};
use trainit::rules::job::{Action, Event, Flushed, InGang, LivenessSample, Machine, Policy, State, Timer};
use trainit::rules::process::exit::End;
use trainit::rules::process::signal::Signal;

const HEAD: &str = "# The states of a job

What `rules/job` does about each event in each state: the actions, then the state that follows where it is another one.
The job of this table has training data to fetch, checkpoints, a store, three restarts, a hang timeout and peers to wait for, and every event comes 10 s
after the state began. An event that is missing below a state changes nothing there.

A test writes this page: `TRAINIT_WRITE_DOCS=1 cargo test --test it states_page`.
";

const IN_A_GANG: &str = "
# In a gang

The same job as a worker of a [gang](../gang.md). It has three states of its own, and more events in each.
";

fn restored() -> Event {
    Event::Restored { resume: None, committed: None, older: false, is_further: false }
}

fn ended(code: u8) -> Event {
    Event::MainEnded { local_rank: 0, end: End::Code(code), oom: Some(false) }
}

/// The shortest sequence of events into each state.
fn ways() -> Vec<(State, Vec<Event>)> {
    let running = [Event::Started, Event::Fetched, restored(), Event::PeersReached, Event::Spawned { pids: vec![7] }];
    let until = |count: usize, more: &[Event]| [&running[..count], more].concat();
    vec![
        (State::Fetching, until(1, &[])),
        (State::Restoring, until(2, &[])),
        (State::Gathering, until(3, &[])),
        (State::Launching, until(4, &[])),
        (State::Running, until(5, &[])),
        (State::Draining, until(5, &[ended(1)])),
        (State::Refreshing, until(5, &[ended(1), Event::TreeEmpty])),
        (State::Waiting, until(5, &[ended(1), Event::TreeEmpty, restored()])),
        (State::Flushing, until(5, &[ended(0), Event::TreeEmpty])),
        (State::Done, until(5, &[ended(0), Event::TreeEmpty, Event::Flushed(Flushed::Stepless)])),
    ]
}

/// The shortest sequence of events into each state of a gang.
fn ways_in_a_gang() -> Vec<(State, Vec<Event>)> {
    let running = [
        Event::Started,
        Event::Fetched,
        Event::Gang(Order::Survey),
        Event::Surveyed(Offer::default()),
        Event::Gang(Order::Restore(Choice::Start)),
        restored(),
        Event::Gang(Order::Launch(1)),
        Event::Spawned { pids: vec![7] },
    ];
    let until = |count: usize, more: &[Event]| [&running[..count], more].concat();
    vec![
        (State::Surveying, until(3, &[])),
        (State::Assembling, until(4, &[])),
        (State::Arming, until(5, &[])),
        (State::Running, until(8, &[])),
        (State::Draining, until(8, &[ended(1)])),
        (State::Flushing, until(8, &[ended(0), Event::TreeEmpty])),
    ]
}

/// The events that occur only in a gang.
fn events_of_the_gang() -> Vec<(&'static str, Event)> {
    let second = Duration::from_secs(1);
    vec![
        ("Surveyed", Event::Surveyed(Offer::default())),
        ("Gang: Survey", Event::Gang(Order::Survey)),
        ("Gang: Restore", Event::Gang(Order::Restore(Choice::Own(3)))),
        ("Gang: Launch", Event::Gang(Order::Launch(2))),
        ("Gang: Stop", Event::Gang(Order::Stop(second))),
        ("Gang: Kill", Event::Gang(Order::Kill)),
        ("Gang: Abort", Event::Gang(Order::Abort)),
        ("Gang: ReportTree", Event::Gang(Order::ReportTree)),
        ("Gang: End", Event::Gang(Order::End(second))),
        ("Gang: Save and hold", Event::Gang(Order::Save { lead: 30 * second, leave: false })),
        ("Gang: Save and leave", Event::Gang(Order::Save { lead: 30 * second, leave: true })),
        ("Gang: Leave", Event::Gang(Order::Leave(Leave::Finished))),
        ("Due: Finish", Event::Due(Timer::Finish)),
    ]
}

/// Every kind of event, with its name on the page.
fn events() -> Vec<(&'static str, Event)> {
    let not_spawned =
        |is_transient| Event::NotSpawned { code: 127, detail: "not found".into(), is_transient, others: false };
    let signal = |signal| Event::Signal { signal, sender: Some(1) };
    vec![
        ("Started", Event::Started),
        ("Fetched", Event::Fetched),
        ("NotFetched", Event::NotFetched { code: 125, detail: "no data".into() }),
        ("Restored", restored()),
        ("Found", Event::Found { committed: Some(3) }),
        ("KeptBeside", Event::KeptBeside),
        ("NotRestored", Event::NotRestored { code: 204, detail: "no store".into() }),
        ("PeersReached", Event::PeersReached),
        ("PeersMissing", Event::PeersMissing { detail: "node 1".into() }),
        ("Spawned", Event::Spawned { pids: vec![7] }),
        ("NotSpawned, for good", not_spawned(false)),
        ("NotSpawned, for now", not_spawned(true)),
        ("MainEnded with 0", ended(0)),
        ("MainEnded with 1", ended(1)),
        ("Clue", Event::Clue("no memory".into())),
        ("Reaped", Event::Reaped { pid: 9, end: End::Code(0) }),
        ("TreeEmpty", Event::TreeEmpty),
        ("SIGTERM", signal(Signal::TERM)),
        ("SIGINT", signal(Signal::INT)),
        ("SIGUSR1", signal(Signal::USR1)),
        ("Preempted", Event::Preempted { id: "1".into(), source: "gce".into(), lead: Duration::from_secs(30) }),
        ("Withdrawn", Event::Withdrawn { id: "1".into(), source: "gce".into() }),
        ("Warned", Event::Warned { why: "maintenance".into() }),
        ("Frozen", Event::Frozen { length: Duration::from_secs(30), why: "maintenance".into() }),
        ("LivenessSampled", Event::LivenessSampled(LivenessSample::default())),
        ("Due: Grace", Event::Due(Timer::Grace)),
        ("Due: Stuck", Event::Due(Timer::Stuck)),
        ("Due: Sweep", Event::Due(Timer::Sweep)),
        ("Due: Backoff", Event::Due(Timer::Backoff)),
        ("Due: FlushLimit", Event::Due(Timer::FlushLimit)),
        ("Due: Leave", Event::Due(Timer::Leave)),
        ("Due: Abort", Event::Due(Timer::Abort)),
        ("Due: SampleLiveness", Event::Due(Timer::SampleLiveness)),
        (
            "Committed",
            Event::Committed {
                unit: "ckpt-3".into(),
                step: Some(3),
                took: Duration::from_secs(1),
                lag: Duration::from_secs(1),
                is_progress: true,
            },
        ),
        ("Transferring", Event::Transferring),
        ("AwaitsOthers", Event::AwaitsOthers(Some(Duration::from_secs(5)))),
        ("Tidying", Event::Tidying),
        ("Flushed: Done", Event::Flushed(Flushed::Stepless)),
        ("Flushed: Failed", Event::Flushed(Flushed::Failed("no store".into()))),
        ("GpuFailed", Event::GpuFailed { detail: "GPU 0".into() }),
        ("Fenced", Event::Fenced { detail: "newer run".into() }),
    ]
}

fn in_state(way: &[Event], gang: Option<InGang>) -> Machine {
    let mut machine = Machine::new(Policy {
        fetches: true,
        checkpoints: true,
        store: true,
        max_restarts: 3,
        peers: Some("node 1".into()),
        gang,
        hang_timeout: Some(Duration::from_secs(600)),
        ..Policy::default()
    });
    for event in way {
        machine.step(Duration::from_secs(10), event.clone());
    }
    machine
}

/// The name of an action, with its timer or signal.
fn name(action: &Action) -> String {
    match action {
        Action::Arm(timer, _) => format!("Arm({timer:?})"),
        Action::Disarm(timer) => format!("Disarm({timer:?})"),
        Action::Signal { target, signal } => format!("Signal({target:?}, {signal})"),
        Action::ReportToGang(word) => {
            format!("ReportToGang({})", format!("{word:?}").split([' ', '(']).next().unwrap())
        }
        Action::Exit(outcome) => format!("Exit({})", outcome.exit_code),
        other => format!("{other:?}").split([' ', '(', '{']).next().unwrap().to_owned(),
    }
}

fn page() -> String {
    let gang = InGang { seat: Seat::new(Role::Worker, 0), stop_grace: Duration::from_millis(500) };
    let all_events = [events(), events_of_the_gang()].concat();
    [HEAD.to_owned(), tables(ways(), &events(), None), IN_A_GANG.to_owned()].concat()
        + &tables(ways_in_a_gang(), &all_events, Some(gang))
}

/// A table for each state.
fn tables(ways: Vec<(State, Vec<Event>)>, events: &[(&'static str, Event)], gang: Option<InGang>) -> String {
    let mut page = String::new();
    for (state, way) in ways {
        page.push_str(&format!("\n## {state:?}\n\n"));
        assert_eq!(in_state(&way, gang).state(), &state, "the way into it");
        let mut rows = String::new();
        for (event_name, event) in events.iter().cloned() {
            let mut machine = in_state(&way, gang);
            let actions: Vec<String> = machine
                .step(Duration::from_secs(20), event)
                .iter()
                .map(|action| format!("`{}`", name(action)))
                .collect();
            let next = if machine.state() == &state { String::new() } else { format!("{:?}", machine.state()) };
            if !actions.is_empty() || !next.is_empty() {
                rows.push_str(&format!("| {event_name} | {} | {next} |\n", actions.join(", ")));
            }
        }
        if rows.is_empty() {
            page.push_str("Every event is ignored.\n");
        } else {
            page.push_str(&format!("| event | actions | next state |\n|---|---|---|\n{rows}"));
        }
    }
    page
}

#[test]
fn the_page_of_states_is_the_table_of_the_job_machine() {
    let page = page();
    if std::env::var_os("TRAINIT_WRITE_DOCS").is_some() {
        std::fs::write(root().join("docs/reference/states.md"), &page).unwrap();
    }
    assert_eq!(
        text("docs/reference/states.md"),
        page,
        "write it anew: TRAINIT_WRITE_DOCS=1 cargo test --test it states_page"
    );
}
