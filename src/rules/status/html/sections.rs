//! The sections of the page.

use std::time::Duration;

use super::chart::{self, Bar, Names, Title, Track, Unit};
use super::markup::{Html, html};
use super::{RunView, bytes, gpus, lasted, table};
use crate::job::Uptime;
use crate::job::goodput::Cause;
use crate::metric::foreign_text::number::repr;
use crate::status::history::{Attempt, Curve, History, Point};
use crate::status::{Facts, lag, problem, step_line};

/// The rows of the table of a curve.
const ROWS: usize = 12;
/// Commits in the table.
const COMMITS: usize = 30;
/// Attempts and marks in the table of the timeline, each.
const EVENTS: usize = 60;

/// Every section.
pub(super) fn all(view: &RunView, history: &History) -> Html {
    let mut page = Html::default();
    summary(&mut page, view);
    goodput(&mut page, &view.facts);
    timeline(&mut page, &view.facts, history);
    replicas(&mut page, &view.facts);
    metrics(&mut page, history);
    gpus::section(&mut page, &view.facts);
    checkpoints(&mut page, view, history);
    log(&mut page, view);
    page
}

fn summary(page: &mut Html, view: &RunView) {
    let RunView { snapshot, facts, verdict, .. } = view;
    if let Some((word, sentence)) = verdict {
        let is_good = ["finished", "stopped", "preempted"].contains(word);
        let class = Html::of(if is_good { "" } else { " class=\"bad\"" });
        html!(page, "<p" {class} "><strong>" {*word} "</strong>: " {sentence} "</p>\n");
    } else if let Some(why) = problem(snapshot) {
        html!(page, "<p class=\"bad\">Unhealthy: " {why} "</p>\n");
    } else if let Some(why) = &snapshot.leaving {
        html!(page, "<p><strong>Leaving</strong>: " {why} "</p>\n");
    }
    html!(page, "<dl>\n");
    let mut fact = |name: &'static str, text: Option<String>| {
        if let Some(text) = text {
            html!(page, "<div><dt>" {name} "</dt><dd>" {text} "</dd></div>\n");
        }
    };
    let step = |step: Option<u64>| step.map(|step| format!("step {step}"));
    fact("Step", facts.step.map(|step| step_line(step, facts.steps_per_second)));
    fact("Run time", Some(lasted(facts.now)));
    fact("Started (UTC)", Some(date(facts, Duration::ZERO)));
    let who = &facts.who;
    fact("Host", who.host.clone());
    fact("Platform", who.platform.clone());
    fact("Rank", who.rank.clone());
    fact("Job", who.job.clone());
    fact("Attempt", Some(snapshot.attempt.to_string()));
    let restarts = format!("{} of {}", snapshot.restarts_used, snapshot.restarts_allowed);
    fact("Restarts since progress", Some(restarts));
    fact("Resumed from", step(snapshot.resumed_step));
    if snapshot.has_store {
        fact("Committed", step(snapshot.committed_step).or_else(|| facts.tally.committed_unit.clone()));
        fact("A crash now would lose", lag(snapshot, facts).map(lasted));
    }
    fact("Store", facts.kept.as_ref().map(|kept| kept.store.clone()).filter(|store| !store.is_empty()));
    let share = facts.goodput.of(Cause::Training).as_secs_f64() / facts.goodput.sum().as_secs_f64().max(1e-3);
    fact("Training", Some(percent(share)));
    let memory = facts.memory.current_bytes.map(|used| match facts.memory.limit_bytes {
        Some(limit) => format!("{} of {}", bytes(used), bytes(limit)),
        None => bytes(used),
    });
    fact("Memory", memory.or_else(|| facts.memory.peak_bytes.map(|peak| format!("at most {}", bytes(peak)))));
    if let Some(gang) = &facts.gang {
        fact("Gang", Some(format!("generation {}, seat {}, {}", gang.generation, gang.seat, gang.state)));
        let waiting: Vec<String> = gang.waiting_for.iter().map(ToString::to_string).collect();
        fact("The gang waits for", (!waiting.is_empty()).then(|| waiting.join(", ")));
    }
    fact("trainit", Some(facts.version.to_owned()));
    html!(page, "</dl>\n");
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The cause for people.
fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Start => "start",
        Cause::Peers => "waiting for peers",
        Cause::Restore => "restore",
        Cause::FirstStep => "first step",
        Cause::Repeated => "repeated steps",
        Cause::Training => "training",
        Cause::Commit => "last commit",
        Cause::Stopped => "stopped",
    }
}

/// The colour of a cause. The timeline has that of training for attempts, and that of the last commit for commits.
fn key(cause: Cause) -> usize {
    match cause {
        Cause::Training => 1,
        Cause::Repeated => 2,
        Cause::Commit => 3,
        Cause::Restore => 4,
        Cause::FirstStep => 5,
        Cause::Peers => 6,
        Cause::Start => 7,
        Cause::Stopped => 8,
    }
}

/// A square in the colour of a key, and a text.
pub(super) fn keyed(key: usize, text: &str) -> Html {
    let mut cell = Html::default();
    html!(cell, "<span class=\"k k" {key} "\"></span>" {text});
    cell
}

/// Text as a cell.
pub(super) fn cell(text: impl AsRef<str>) -> Html {
    let mut cell = Html::default();
    html!(cell, { text.as_ref() });
    cell
}

fn goodput(page: &mut Html, facts: &Facts) {
    html!(page, "<h2>Where the time went</h2>\n");
    let millis = facts.goodput.millis();
    let all = millis.iter().map(|(_, millis)| millis).sum::<u64>().max(1) as f64;
    let share = |millis: u64| millis as f64 / all;
    let known = millis.iter().filter(|(_, millis)| *millis > 0);
    let words = |(cause, millis): &(Cause, u64)| format!("{} {}", cause_name(*cause), percent(share(*millis)));
    let all_words: Vec<String> = known.clone().map(words).collect();
    html!(page, "<div class=\"bar\" role=\"img\" aria-label=\"" {all_words.join(", ")} "\">\n");
    for of in known.clone() {
        html!(page, "<div class=\"k" {key(of.0)} "\" title=\"" {words(of)} "\" style=\"width:" {format!("{:.3}", share(of.1) * 100.0)}
            "%\"></div>");
    }
    html!(page, "</div>\n");
    let row = |(cause, millis): &(Cause, u64)| {
        let name = keyed(key(*cause), cause_name(*cause));
        vec![name, cell(lasted(Duration::from_millis(*millis))), cell(percent(share(*millis)))]
    };
    table(page, "The time of the run by cause", &["Cause", "Time", "Share"], known.map(row));
}

/// Whether an attempt that ended so has failed.
fn has_failed(attempt: &Attempt) -> bool {
    attempt.end.as_ref().is_some_and(|end| end != "exit code 0")
}

fn timeline(page: &mut Html, facts: &Facts, history: &History) {
    html!(page, "<h2>Timeline</h2>\n");
    let timeline = &history.timeline;
    let seconds = |at: Uptime| at.as_secs_f64();
    let ended = |attempt: &Attempt| attempt.end.as_ref().map(|end| format!(", {end}")).unwrap_or_default();
    let bar = |attempt: &Attempt| {
        let to = attempt.to.unwrap_or(facts.now);
        let (from, length) = (attempt.from, to.saturating_sub(attempt.from));
        let text = format!("attempt {}: {} from {}{}", attempt.number, lasted(length), lasted(from), ended(attempt));
        Bar { from: seconds(from), to: seconds(to), text, failed: has_failed(attempt) }
    };
    let step = |step: Option<u64>| step.map(|step| format!("step {step}, ")).unwrap_or_default();
    let commits = timeline.commits.iter();
    let commits = commits.map(|of| (seconds(of.at), format!("commit: {}at {}", step(of.step), lasted(of.at))));
    let marks = timeline.marks.iter();
    let marks = marks.map(|mark| (seconds(mark.at), format!("{} at {}", mark.text, lasted(mark.at)), false));
    let rows = [
        Track { name: "attempts".into(), bars: timeline.attempts.iter().map(bar).collect(), ..Track::default() },
        Track { name: "commits".into(), ticks: commits.collect(), ..Track::default() },
        Track { name: "other".into(), dots: marks.collect(), ..Track::default() },
    ];
    let text = format!(
        "{} attempts, {} commits and {} other events over {}",
        timeline.attempts.len(),
        timeline.commits.len(),
        timeline.marks.len(),
        lasted(facts.now)
    );
    let drawing =
        chart::tracks(&Title { id: "timeline", title: "Timeline of the run", text: &text }, seconds(facts.now), &rows);
    html!(page, "<figure class=\"tracks\">" {drawing} "</figure>\n");
    let mut rows: Vec<(Uptime, String)> = Vec::new();
    for attempt in timeline.attempts.iter().rev().take(EVENTS) {
        let from = attempt.resumed_step.map(|step| format!(" from step {step}")).unwrap_or_default();
        rows.push((attempt.from, format!("attempt {} started{from}", attempt.number)));
        if let Some(to) = attempt.to {
            let end = attempt.end.as_ref().map(|end| format!(" with {end}")).unwrap_or_default();
            rows.push((to, format!("attempt {} ended{end}", attempt.number)));
        }
    }
    rows.extend(timeline.marks.iter().rev().take(EVENTS).map(|mark| (mark.at, mark.text.clone())));
    rows.sort_by_key(|row| std::cmp::Reverse(row.0));
    let rows = rows.into_iter().map(|(at, text)| vec![lasted(at), text, date(facts, at)]);
    table(page, "Events, the newest first", &["Run time", "Event", "At (UTC)"], rows);
}

/// The UTC date of a time of the run.
fn date(facts: &Facts, at: Uptime) -> String {
    let text = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + facts.since_1970(at)).to_string();
    text.trim_end_matches('Z').replace('T', " ")
}

/// The members of the gang, on its leader.
fn replicas(page: &mut Html, facts: &Facts) {
    let Some(members) = facts.gang.as_ref().and_then(|gang| gang.members.as_ref()) else { return };
    html!(page, "<h2>Replicas</h2>\n");
    let rows = members.iter().map(|member| {
        let step = member.step.map(|step| step.to_string()).unwrap_or_default();
        vec![member.seat.to_string(), member.host.clone(), member.state.to_owned(), step]
    });
    table(page, "The replicas of the gang, as its leader sees them", &["Seat", "Host", "State", "Step"], rows);
}

fn metrics(page: &mut Html, history: &History) {
    if history.curves.all().len() == 0 {
        return;
    }
    html!(page, "<h2>Metrics</h2>\n<div class=\"charts\">\n");
    let mut curves: Vec<_> = history.curves.all().collect();
    curves.sort_by_key(|(tag, _)| !tag.to_ascii_lowercase().contains("loss"));
    for (index, (tag, curve)) in curves.into_iter().enumerate() {
        metric(page, index, tag, curve);
    }
    html!(page, "</div>\n");
    if history.curves.has_others() {
        let most = crate::status::history::MOST_CURVES;
        html!(page, "<p class=\"dim\">Only the first " {most} " metrics have a curve.</p>\n");
    }
}

/// A number without needless digits.
fn number(value: f64) -> String {
    repr(value).trim_end_matches(".0").to_owned()
}

/// A number with six significant digits.
fn brief(value: f64) -> String {
    number(format!("{value:.5e}").parse().unwrap_or(value))
}

fn metric(page: &mut Html, index: usize, tag: &str, curve: &Curve) {
    let points = curve.points();
    let last = points.last().map(|point| number(point.value)).unwrap_or_default();
    let brief = points.last().map(|point| brief(point.value)).unwrap_or_default();
    let extreme = |better: fn(f64, f64) -> bool| {
        points.iter().copied().reduce(|best, point| if better(point.value, best.value) { point } else { best })
    };
    let (low, high) = (extreme(|new, best| new < best), extreme(|new, best| new > best));
    let with_step =
        |point: Option<Point>| point.map(|point| format!("{} at {}", number(point.value), number(point.step)));
    let text = format!(
        "{} measurements by step, the lowest {}, the highest {}, the last {last}",
        curve.count(),
        with_step(low).unwrap_or_default(),
        with_step(high).unwrap_or_default()
    );
    let line = points.iter().map(|point| (point.step, point.value)).collect();
    let title = Title { id: &format!("m{index}"), title: tag, text: &text };
    let drawing = chart::lines(&title, &[line], &Names { x: "step", y: "value", unit: Unit::Number });
    html!(page, "<figure><figcaption><span>" {tag} "</span><span>" {brief} "</span></figcaption>" {drawing} "<details id=\"m" {index}
        "-n\"><summary id=\"m" {index} "-s\">Numbers of " {tag} "</summary>\n");
    let pace = points.len().div_ceil(ROWS).max(1);
    let row = |point: &Point| vec![number(point.step), number(point.value)];
    let rows = points.iter().rev().step_by(pace).chain(&low).chain(&high).map(row);
    let lost = match curve.not_finite() {
        0 => String::new(),
        count => format!("; {count} are not finite"),
    };
    let count = curve.count();
    let caption =
        format!("{count} measurements{lost}; some of them, the newest first, then the lowest and the highest");
    table(page, &caption, &["Step", "Value"], rows);
    html!(page, "</details></figure>\n");
}

fn checkpoints(page: &mut Html, view: &RunView, history: &History) {
    let facts = &view.facts;
    if !view.snapshot.has_store {
        return;
    }
    html!(page, "<h2>Checkpoints</h2>\n");
    let failures: u64 = facts.tally.failures.values().sum();
    if failures > 0 {
        let causes: Vec<String> =
            facts.tally.failures.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
        html!(page, "<p class=\"bad\">Commits that failed: " {causes.join(", ")} "</p>\n");
    }
    let commits = &history.timeline.commits;
    if commits.is_empty() {
        html!(page, "<p class=\"dim\">This run has committed nothing yet.</p>\n");
        return;
    }
    let rows = commits.iter().rev().take(COMMITS).map(|commit| {
        vec![
            commit.step.map_or_else(|| "?".to_owned(), |step| step.to_string()),
            date(facts, commit.at),
            lasted(facts.now.saturating_sub(commit.at)),
            lasted(commit.took),
            commit.bytes.map(bytes).unwrap_or_default(),
        ]
    });
    let caption = format!("{} commits, the newest first", facts.tally.commits);
    table(page, &caption, &["Step", "Complete at (UTC)", "Age", "Took", "Size"], rows);
}

fn log(page: &mut Html, view: &RunView) {
    if view.log.is_empty() {
        return;
    }
    html!(
        page,
        "<h2>Last log lines of trainit, the newest first</h2>\n\
        <pre id=\"log\" tabindex=\"0\" role=\"region\" aria-label=\"Last log lines\">"
    );
    for line in view.log.iter().rev() {
        html!(page, {line.trim_end()} "\n");
    }
    html!(page, "</pre>\n");
}
