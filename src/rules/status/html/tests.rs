use std::time::Duration;

use super::*;
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;
use crate::gang::view::{MemberView, View};
use crate::gpu::Gpu;
use crate::gpu::watch::Sample;
use crate::job::{Event, Mirrored};
use crate::process::exit::End;
use crate::status::tests::{goodput, snapshot};
use crate::status::{Gpus, Memory, Who};

const SECOND: Duration = Duration::from_secs(1);
const HOSTILE: &str = "</script><script>alert(1)</script>\"'>\u{1b}[2J\u{202e}&";

fn view() -> RunView {
    let gpu = Gpu { name: Some(HOSTILE.into()), utilization_percent: Some(93), ..Gpu::default() };
    let sample = |n: u32| Sample {
        at: n * SECOND,
        utilization_percent: Some(90 + n % 9),
        memory_used_bytes: Some(1 << 34),
        power_watts: None,
        temperature_celsius: Some(61),
    };
    let facts = Facts {
        version: "0.1.0",
        command: HOSTILE.into(),
        now: 4000 * SECOND,
        wall: 1_000_000_000 * SECOND,
        goodput: goodput(4000 * SECOND),
        memory: Memory { current_bytes: Some(5 << 30), ..Memory::default() },
        gpus: Some(Gpus { gpus: vec![(gpu, (0..60).map(sample).collect())], ..Gpus::default() }),
        ..Facts::default()
    };
    let snapshot = Snapshot { leaving: Some(HOSTILE.into()), ..snapshot() };
    RunView { snapshot, facts, log: vec![HOSTILE.into(), "a\nb\u{0}\u{7}".into()], verdict: None }
}

/// Ten attempts with commits.
fn history() -> History {
    let mut history = History::default();
    for n in 0..10 {
        let mut note = |after, event| {
            let snapshot = Snapshot { attempt: n + 1, ..snapshot() };
            history.timeline.note((n * 400 + after) * SECOND, &event, &snapshot);
        };
        note(10, Event::Spawned { pids: vec![7] });
        note(
            200,
            Event::Committed {
                unit: HOSTILE.into(),
                step: Some(n.into()),
                took: SECOND,
                lag: SECOND,
                is_progress: true,
            },
        );
        note(201, Event::Mirrored(Mirrored::Committed { bytes: 5 << 30, took: SECOND }));
        note(250, Event::Warned { why: HOSTILE.into() });
        note(390, Event::MainEnded { local_rank: 0, end: End::Code(3), oom: None });
        note(391, Event::TreeEmpty);
    }
    history
}

#[test]
fn the_page_has_every_section_and_each_chart_has_a_name_and_a_table() {
    let mut history = history();
    (0..100).for_each(|n| history.curves.add("loss", f64::from(n), 1.0 / f64::from(n + 1)));
    let page = live(&view(), &history);
    for section in [
        "Where the time went",
        "Timeline",
        "Metrics",
        "GPUs",
        "Checkpoints",
        "Last log lines of trainit, the newest first",
    ] {
        assert!(page.contains(&format!("<h2>{section}</h2>")), "{section}: {page}");
    }
    assert!(page.matches("class=\"failed\"").count() == 10, "each attempt failed: {page}");
    let charts = page.matches("<svg ").count();
    assert_eq!(charts, 5, "the timeline, one metric, three of the GPU");
    assert_eq!(page.matches("role=\"img\" aria-labelledby").count(), charts);
    assert!(page.matches("<table>").count() >= charts, "{page}");
    for text in ["attempt 10 ended with exit code 3", "97.5 %", "5.0 GiB", "100 measurements"] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn no_text_of_the_run_becomes_markup_or_a_control_character() {
    let mut history = history();
    history.curves.add(HOSTILE, 1.0, 2.0);
    for page in [live(&view(), &history), report(&view(), &history)] {
        assert_eq!(page.matches("alert(1)").count(), page.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count());
        assert!(page.matches("alert(1)").count() >= 8, "{page}");
        let strange = page.chars().find(|c| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c));
        assert_eq!(strange, None);
        assert!(page.contains("a\\nb\u{fffd}\u{fffd}"), "a line of the log stays one line");
    }
    assert_eq!(live(&view(), &history).matches("<script>").count(), 1, "its own");
}

#[test]
fn nothing_on_the_page_comes_from_outside_and_the_report_has_no_script() {
    let (live, report) = (live(&view(), &history()), report(&view(), &history()));
    for page in [&live, &report] {
        let links = ["src=", "href=", "url(", "@import", "<link", "<iframe", "<object"];
        assert_eq!(links.into_iter().find(|link| page.contains(link)), None);
        let named = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!named.contains("://"), "{named}");
    }
    assert!(report.contains("Content-Security-Policy") && !report.contains("<script"), "{report}");
    assert!(live.contains(LIVE) && POLICY.contains("script-src 'sha256-"));
}

#[test]
fn a_report_begins_with_the_verdict() {
    let verdict = Some(("failed", format!("exit code 3 {HOSTILE}")));
    let page = report(&RunView { verdict, ..view() }, &history());
    assert!(
        page.contains("(failed)</h1>") && page.contains("<strong>failed</strong>: exit code 3 &lt;/script"),
        "{page}"
    );
    assert!(page.contains("written at 2001-09-09T01:46:40Z"), "{page}");
}

#[test]
fn the_page_says_which_replica_this_is_and_the_leader_shows_the_others() {
    let mut view = view();
    let who = |text: &str| Some(text.to_owned());
    view.facts.who = Who { host: who("node-7"), platform: who("slurm"), rank: who("3 of 8"), job: who("4711") };
    let member =
        MemberView { seat: Seat::new(Role::Worker, 2), host: "node-9".into(), state: "running", step: Some(41) };
    view.facts.gang = Some(View {
        generation: 2,
        seat: Seat::new(Role::Chief, 0),
        state: "running",
        members: Some(vec![member]),
        waiting_for: Vec::new(),
    });
    let page = live(&view, &History::default());
    for (name, text) in [("Host", "node-7"), ("Platform", "slurm"), ("Rank", "3 of 8"), ("Job", "4711")] {
        assert!(page.contains(&format!("<dt>{name}</dt><dd>{text}</dd>")), "{name}: {page}");
    }
    assert!(
        page.contains("<h2>Replicas</h2>") && page.contains("<td>node-9</td><td>running</td><td>41</td>"),
        "{page}"
    );
}

#[test]
fn the_loss_comes_before_other_metrics() {
    let mut history = History::default();
    for tag in ["grad_norm", "accuracy", "train/Loss"] {
        history.curves.add(tag, 1.0, 2.0);
    }
    let page = live(&view(), &history);
    let at = |tag: &str| page.find(&format!("<figcaption><span>{tag}</span>")).expect(tag);
    assert!(at("train/Loss") < at("grad_norm"));
}

#[test]
fn a_run_without_anything_has_a_page() {
    let view = RunView { snapshot: Snapshot::default(), facts: Facts::default(), log: Vec::new(), verdict: None };
    let page = live(&view, &History::default());
    assert!(page.contains("<h2>Timeline</h2>") && !page.contains("<h2>Metrics</h2>"), "{page}");
}

#[test]
fn ten_attempts_with_fifty_metrics_and_a_million_points_stay_under_2_mib() {
    let mut history = history();
    for n in 0..1_000_000u32 {
        let noise = f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        history.curves.add(&format!("some/long/name/of/a/metric/{}", n % 50), f64::from(n / 50), noise);
    }
    let page = live(&view(), &history);
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    assert_eq!(page.matches("<figcaption>").count(), 53);
}
