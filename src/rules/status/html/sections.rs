//! The sections of the page.

use std::fmt::Write as _;
use std::time::Duration;

use super::chart::{self, Title, Unit};
use super::{RunView, bytes, escaped, lasted, table};
use crate::gpu::Gpu;
use crate::gpu::watch::Sample;
use crate::job::Uptime;
use crate::job::goodput::Cause;
use crate::metric::foreign_text::number::repr;
use crate::status::history::{Curve, History, Point};
use crate::status::{Facts, lag, problem, step_line};

/// The rows of the table of a curve.
const ROWS: usize = 12;
/// Commits in the table.
const COMMITS: usize = 30;
/// Attempts and marks in the table of the timeline, each.
const EVENTS: usize = 60;
/// GPUs with a line.
const GPUS: usize = 16;

/// Every section.
pub(super) fn all(page: &mut String, view: &RunView, history: &History) {
    summary(page, view);
    goodput(page, &view.facts);
    timeline(page, &view.facts, history);
    metrics(page, history);
    gpus(page, &view.facts);
    checkpoints(page, view, history);
    log(page, view);
}

fn heading(page: &mut String, text: &str) {
    let _ = writeln!(page, "<h2>{text}</h2>");
}

fn summary(page: &mut String, view: &RunView) {
    let RunView { snapshot, facts, verdict, .. } = view;
    if let Some((word, sentence)) = verdict {
        let _ = writeln!(page, "<p><strong>{word}</strong>: {}</p>", escaped(sentence));
    } else if let Some(why) = problem(snapshot) {
        let _ = writeln!(page, "<p class=\"bad\">Unhealthy: {}</p>", escaped(&why));
    } else if let Some(why) = &snapshot.leaving {
        let _ = writeln!(page, "<p><strong>Leaving</strong>: {}</p>", escaped(why));
    }
    page.push_str("<dl>\n");
    let mut fact = |name: &str, text: Option<String>| {
        if let Some(text) = text {
            let _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escaped(&text));
        }
    };
    let step = |step: Option<u64>| step.map(|step| format!("step {step}"));
    fact("Run time", Some(lasted(facts.now)));
    fact("Attempt", Some(snapshot.attempt.to_string()));
    let restarts = format!("{} of {}", snapshot.restarts_used, snapshot.restarts_allowed);
    fact("Restarts since progress", Some(restarts));
    fact("Step", facts.step.map(|step| step_line(step, facts.steps_per_second)));
    fact("Resumed from", step(snapshot.resumed_step));
    if snapshot.has_store {
        fact("Committed", step(snapshot.committed_step).or_else(|| facts.tally.committed_unit.clone()));
        fact("A crash now would lose", lag(snapshot, facts).map(lasted));
    }
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
    page.push_str("</dl>\n");
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

/// The colour of a cause.
fn key(cause: Cause) -> usize {
    match cause {
        Cause::Training => 1,
        Cause::Repeated => 2,
        Cause::Restore => 3,
        Cause::Commit => 4,
        Cause::FirstStep => 5,
        Cause::Peers => 6,
        Cause::Start => 7,
        Cause::Stopped => 8,
    }
}

fn goodput(page: &mut String, facts: &Facts) {
    heading(page, "Where the time went");
    let millis = facts.goodput.millis();
    let all = millis.iter().map(|(_, millis)| millis).sum::<u64>().max(1) as f64;
    let share = |millis: u64| millis as f64 / all;
    let known = millis.iter().filter(|(_, millis)| *millis > 0);
    let words: Vec<String> =
        known.clone().map(|(cause, millis)| format!("{} {}", cause_name(*cause), percent(share(*millis)))).collect();
    let _ = writeln!(page, "<div class=\"bar\" role=\"img\" aria-label=\"{}\">", words.join(", "));
    for (cause, millis) in known.clone() {
        let _ = write!(page, "<div class=\"k{}\" style=\"width:{:.3}%\"></div>", key(*cause), share(*millis) * 100.0);
    }
    page.push_str("</div>\n");
    let row = |(cause, millis): &(Cause, u64)| {
        let name = format!("<span class=\"k k{}\"></span>{}", key(*cause), cause_name(*cause));
        vec![name, lasted(Duration::from_millis(*millis)), percent(share(*millis))]
    };
    table(page, "The time of the run by cause", &["Cause", "Time", "Share"], known.map(row));
}

fn timeline(page: &mut String, facts: &Facts, history: &History) {
    heading(page, "Timeline");
    let timeline = &history.timeline;
    let seconds = |at: Uptime| at.as_secs_f64();
    let attempts: Vec<(f64, f64)> = (timeline.attempts.iter())
        .map(|attempt| (seconds(attempt.from), seconds(attempt.to.unwrap_or(facts.now))))
        .collect();
    let commits: Vec<f64> = timeline.commits.iter().map(|commit| seconds(commit.at)).collect();
    let marks: Vec<f64> = timeline.marks.iter().map(|mark| seconds(mark.at)).collect();
    let text = format!(
        "{} attempts, {} commits and {} other events over {}",
        attempts.len(),
        commits.len(),
        marks.len(),
        lasted(facts.now)
    );
    let title = Title { id: "timeline", title: "Timeline of the run", text: &text };
    let drawing = chart::lanes(&title, seconds(facts.now), &attempts, &commits, &marks);
    let _ = writeln!(page, "<figure class=\"timeline\">{drawing}</figure>");
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
    let rows = rows.into_iter().map(|(at, text)| vec![lasted(at), escaped(&text), date(facts, at)]);
    table(page, "Events, the newest first", &["Run time", "Event", "At (UTC)"], rows);
}

/// The UTC date of a time of the run.
fn date(facts: &Facts, at: Uptime) -> String {
    let text = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + facts.since_1970(at)).to_string();
    text.trim_end_matches('Z').replace('T', " ")
}

fn metrics(page: &mut String, history: &History) {
    if history.curves.all().len() == 0 {
        return;
    }
    heading(page, "Metrics");
    page.push_str("<div class=\"charts\">\n");
    for (index, (tag, curve)) in history.curves.all().enumerate() {
        metric(page, index, tag, curve);
    }
    page.push_str("</div>\n");
    if history.curves.has_others() {
        let most = crate::status::history::MOST_CURVES;
        let _ = writeln!(page, "<p class=\"dim\">Only the first {most} metrics have a curve.</p>");
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

fn metric(page: &mut String, index: usize, tag: &str, curve: &Curve) {
    let points = curve.points();
    let last = points.last().map(|point| number(point.value)).unwrap_or_default();
    let brief = points.last().map(|point| brief(point.value)).unwrap_or_default();
    let name = escaped(tag);
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
    let drawing = chart::lines(&title, &[line], Unit::Number);
    let _ = writeln!(
        page,
        "<figure><figcaption><span>{name}</span><span>{brief}</span></figcaption>{drawing}\
         <details id=\"m{index}-n\"><summary id=\"m{index}-s\">Numbers of {name}</summary>"
    );
    let pace = points.len().div_ceil(ROWS).max(1);
    let row = |point: &Point| vec![number(point.step), number(point.value)];
    let rows = points.iter().rev().step_by(pace).chain(&low).chain(&high).map(row);
    let lost = match curve.not_finite() {
        0 => String::new(),
        count => format!("; {count} are not finite"),
    };
    table(
        page,
        &format!(
            "{} measurements{lost}; some of them, the newest first, then the lowest and the highest",
            curve.count()
        ),
        &["Step", "Value"],
        rows,
    );
    page.push_str("</details></figure>\n");
}

/// A quantity of the GPUs.
struct Quantity {
    id: &'static str,
    name: &'static str,
    of: fn(&Sample) -> Option<f64>,
    unit: &'static str,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        id: "gpu-use",
        name: "GPU utilisation",
        of: |sample| sample.utilization_percent.map(f64::from),
        unit: "%",
    },
    Quantity {
        id: "gpu-memory",
        name: "GPU memory",
        of: |sample| sample.memory_used_bytes.map(|bytes| bytes as f64 / f64::from(1u32 << 30)),
        unit: "GiB",
    },
    Quantity {
        id: "gpu-heat",
        name: "GPU temperature",
        of: |sample| sample.temperature_celsius.map(f64::from),
        unit: "°C",
    },
];

fn gpus(page: &mut String, facts: &Facts) {
    let Some(watched) = facts.gpus.as_ref().filter(|watched| !watched.gpus.is_empty()) else { return };
    heading(page, "GPUs");
    if let Some(why) = &watched.unavailable {
        let _ = writeln!(page, "<p class=\"bad\">No readings at present: {}</p>", escaped(why));
    }
    let row = |(number, (gpu, _)): (usize, &(Gpu, Vec<Sample>))| {
        let text = |text: Option<String>| escaped(&text.unwrap_or_default());
        let memory = gpu.memory_used_bytes.map(|used| {
            format!("{} of {}", bytes(used), gpu.memory_total_bytes.map(bytes).unwrap_or_else(|| "?".to_owned()))
        });
        vec![
            format!("<span class=\"k k{}\"></span>{}", number % 8 + 1, gpu.index),
            text(gpu.name.clone()),
            text(gpu.utilization_percent.map(|percent| format!("{percent} %"))),
            text(memory),
            text(gpu.temperature_celsius.map(|degrees| format!("{degrees} °C"))),
            text(gpu.power_watts.map(|watts| format!("{watts:.0} W"))),
            text(gpu.health_reason.clone().or_else(|| Some(format!("{:?}", gpu.health).to_lowercase()))),
        ]
    };
    let heads = ["GPU", "Name", "Utilisation", "Memory", "Temperature", "Power", "Health"];
    table(page, "The GPUs now", &heads, watched.gpus.iter().enumerate().map(row));
    page.push_str("<p></p><div class=\"charts\">\n");
    for Quantity { id, name, of, unit } in QUANTITIES {
        let line = |samples: &[Sample]| -> Vec<(f64, f64)> {
            samples.iter().filter_map(|sample| Some((sample.at.as_secs_f64(), of(sample)?))).collect()
        };
        let lines: Vec<Vec<(f64, f64)>> = watched.gpus.iter().take(GPUS).map(|(_, samples)| line(samples)).collect();
        if lines.iter().all(Vec::is_empty) {
            continue;
        }
        let text = format!("{name} in {unit} over the run time, a line for each of {} GPUs", lines.len());
        let title = Title { id, title: name, text: &text };
        let drawing = chart::lines(&title, &lines, Unit::Time);
        let _ = writeln!(
            page,
            "<figure><figcaption><span>{name}</span><span>{unit}</span></figcaption>{drawing}\
             <details id=\"{id}-n\"><summary id=\"{id}-s\">Numbers of {name}</summary>"
        );
        let rows = watched.gpus.iter().zip(&lines).filter(|(_, line)| !line.is_empty()).map(|((gpu, _), line)| {
            let values = || line.iter().map(|(_, value)| *value);
            let in_unit = |value: f64| format!("{value:.1} {unit}");
            let last = line.last().map_or(0.0, |(_, value)| *value);
            let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
            vec![gpu.index.to_string(), in_unit(low), in_unit(high), in_unit(last)]
        });
        table(page, "Of the drawn samples", &["GPU", "Lowest", "Highest", "Last"], rows);
        page.push_str("</details></figure>\n");
    }
    page.push_str("</div>\n");
    let xids = watched.xids.iter().map(|xid| vec![xid.xid.to_string(), escaped(&xid.gpu), xid.count.to_string()]);
    if !watched.xids.is_empty() {
        table(page, "Errors that the driver reported", &["XID", "GPU", "Count"], xids);
    }
}

fn checkpoints(page: &mut String, view: &RunView, history: &History) {
    let facts = &view.facts;
    if !view.snapshot.has_store {
        return;
    }
    heading(page, "Checkpoints");
    let failures: u64 = facts.tally.failures.values().sum();
    if failures > 0 {
        let causes: Vec<String> =
            facts.tally.failures.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
        let _ = writeln!(page, "<p class=\"bad\">Commits that failed: {}</p>", escaped(&causes.join(", ")));
    }
    let commits = &history.timeline.commits;
    if commits.is_empty() {
        page.push_str("<p class=\"dim\">This run has committed nothing yet.</p>\n");
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

fn log(page: &mut String, view: &RunView) {
    if view.log.is_empty() {
        return;
    }
    heading(page, "Last log lines of trainit, the newest first");
    page.push_str("<pre id=\"log\" tabindex=\"0\" role=\"region\" aria-label=\"Last log lines\">");
    for line in view.log.iter().rev() {
        let _ = writeln!(page, "{}", escaped(line.trim_end()));
    }
    page.push_str("</pre>\n");
}
