//! Line charts and tracks over time as SVG. The style sheet has the colours, so that a chart follows the light or dark
//! scheme. A point, a bar and a mark show their values under the pointer.

use super::markup::{Html, html};

/// The size of a chart in units of the drawing; the page scales it. The room for labels, and around the plot.
const CHART: (f64, f64) = (420.0, 200.0);
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 38.0;
/// The width of the tracks, of their names, and the height of one.
const TRACKS: f64 = 1000.0;
const NAMES: f64 = 110.0;
const TRACK: f64 = 30.0;
/// Labels of an axis, at most.
const LABELS: f64 = 5.0;
/// Points of a line that show their value.
const SHOWN: usize = 40;

/// The unit of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// A plain number.
    Number,
    /// Seconds, labelled in the unit that fits.
    Time,
}

/// An axis with round labels: `count` steps from `first * step` on.
#[derive(Debug, Clone, Copy)]
struct Axis {
    first: f64,
    step: f64,
    count: f64,
    /// The divisor of a label, and its suffix.
    unit: (f64, &'static str),
}

impl Axis {
    /// An axis for these finite values.
    fn of(values: impl Iterator<Item = f64>, unit: Unit) -> Axis {
        const MOST: f64 = 1e300;
        let (low, high) = values.fold((MOST, -MOST), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low.max(-MOST), high.min(MOST)) };
        let smallest = (low.abs().max(high.abs()) * 1e-9).max(1e-290);
        let (low, high) = match high - low < smallest {
            true => (low - smallest.max(low.abs() / 10.0), high + smallest.max(high.abs() / 10.0)),
            false => (low, high),
        };
        let unit = match (unit, high - low) {
            (Unit::Number, _) => (1.0, ""),
            (Unit::Time, ..120.0) => (1.0, " s"),
            (Unit::Time, 120.0..7200.0) => (60.0, " min"),
            (Unit::Time, 7200.0..172_800.0) => (3600.0, " h"),
            (Unit::Time, _) => (86_400.0, " d"),
        };
        let raw = (high - low) / unit.0 / LABELS;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= raw).unwrap_or(raw);
        let step = step * unit.0;
        let first = (low / step).floor();
        Axis { first, step, count: ((high / step).ceil() - first).clamp(1.0, 2.0 * LABELS), unit }
    }

    fn place(&self, value: f64) -> f64 {
        (value / self.step - self.first).clamp(0.0, self.count)
    }

    /// The places of the labels, and the labels.
    fn labels(&self) -> impl Iterator<Item = (f64, String)> {
        (0..=self.count as usize).map(|place| (place as f64, self.label(place as f64)))
    }

    /// A value in the unit of the labels.
    fn label_of(&self, value: f64) -> String {
        format!("{}{}", number_text(value / self.unit.0), self.unit.1)
    }

    fn label(&self, place: f64) -> String {
        let (step, value) = (self.step / self.unit.0, (self.first + place) * self.step / self.unit.0);
        let value = if value.abs() < step / 2.0 { 0.0 } else { value };
        format!("{}{}", short(value, step), self.unit.1)
    }
}

/// A number with the digits that a step of this size needs.
fn short(value: f64, step: f64) -> String {
    let digits = |step: f64| (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-4..1e12).contains(&size) => {
            let text = format!("{value:.1e}");
            text.replace(".0e", "e")
        }
        1e9.. => format!("{:.*}G", digits(step / 1e9), value / 1e9),
        1e6.. => format!("{:.*}M", digits(step / 1e6), value / 1e6),
        1e4.. => format!("{:.*}k", digits(step / 1e3), value / 1e3),
        _ => format!("{value:.*}", digits(step)),
    }
}

/// The name of a chart for people and for screen readers.
pub(crate) struct Title<'a> {
    /// Unique on the page.
    pub(crate) id: &'a str,
    /// The name.
    pub(crate) title: &'a str,
    /// A description of the chart in one sentence.
    pub(crate) text: &'a str,
}

/// What the axes of a line chart are.
pub(super) struct Names {
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) unit: Unit,
}

/// Lines over a common axis. A line is interrupted where its x value decreases.
pub(super) fn lines(title: &Title<'_>, lines: &[Vec<(f64, f64)>], names: &Names) -> Html {
    let all = || lines.iter().flatten();
    let x = Axis::of(all().map(|(x, _)| *x), names.unit);
    let y = Axis::of(all().map(|(_, y)| *y), Unit::Number);
    let (width, height) = CHART;
    let (right, bottom) = (width - RIGHT, height - BOTTOM);
    let place_x = |value: f64| LEFT + (right - LEFT) * x.place(value) / x.count;
    let place_y = |value: f64| bottom - (bottom - TOP) * y.place(value) / y.count;
    let mut svg = begun(title, CHART);
    for (at, label) in x.labels() {
        let at = LEFT + (right - LEFT) * at / x.count;
        html!(svg, "<line x1=\"" {at} "\" y1=\"" {TOP} "\" x2=\"" {at} "\" y2=\"" {bottom} "\"/><text x=\"" {at} "\" y=\""
            {bottom + 16.0} "\" text-anchor=\"middle\">" {label} "</text>\n");
    }
    for (at, label) in y.labels() {
        let at = bottom - (bottom - TOP) * at / y.count;
        html!(svg, "<line x1=\"" {LEFT} "\" y1=\"" {at} "\" x2=\"" {right} "\" y2=\"" {at} "\"/><text x=\"" {LEFT - 6.0} "\" y=\""
            {at + 5.0} "\" text-anchor=\"end\">" {label} "</text>\n");
    }
    html!(svg, "<text class=\"axis\" x=\"" {right} "\" y=\"" {height - 6.0} "\" text-anchor=\"end\">" {names.x}
        "</text><text class=\"axis\" x=\"4\" y=\"13\">" {names.y} "</text>\n");
    for (number, line) in lines.iter().enumerate() {
        let key = number % 8 + 1;
        for part in line.chunk_by(|before, after| after.0 >= before.0) {
            match part {
                // A line of one point is invisible.
                [(at, value)] => {
                    html!(svg, "<circle class=\"f" {key} "\" cx=\"" {place_x(*at)} "\" cy=\"" {place_y(*value)} "\" r=\"2\"/>\n");
                }
                part => {
                    html!(svg, "<polyline class=\"l" {key} "\" points=\"");
                    for (at, value) in part {
                        html!(svg, {place_x(*at)} "," {place_y(*value)} " ");
                    }
                    html!(svg, "\"/>\n");
                }
            }
        }
        for (at, value) in line.iter().step_by(line.len().div_ceil(SHOWN).max(1)) {
            let said = format!("{} {}: {}", names.x, x.label_of(*at), number_text(*value));
            html!(svg, "<circle class=\"point\" cx=\"" {place_x(*at)} "\" cy=\"" {place_y(*value)} "\" r=\"6\"><title>" {said}
                "</title></circle>\n");
        }
    }
    html!(svg, "</svg>\n");
    svg
}

/// Six digits of a number.
fn number_text(value: f64) -> String {
    let short = format!("{value:.5e}");
    match value.abs() {
        1e-4..1e9 => short.parse::<f64>().map_or(short, |number| number.to_string()),
        0.0 => "0".to_owned(),
        _ => short,
    }
}

/// A row of the tracks.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// Its name.
    pub(crate) name: String,
    /// From, to, and what it was.
    pub(crate) bars: Vec<Bar>,
    /// Moments at which something was done.
    pub(crate) ticks: Vec<(f64, String)>,
    /// Other moments; `true`: something failed.
    pub(crate) dots: Vec<(f64, String, bool)>,
}

/// A bar of a track.
#[derive(Debug)]
pub(crate) struct Bar {
    /// Its begin in seconds.
    pub(crate) from: f64,
    /// Its end.
    pub(crate) to: f64,
    /// What it shows under the pointer.
    pub(crate) text: String,
    /// It ended with a failure.
    pub(crate) failed: bool,
}

/// Rows over the same seconds.
pub(crate) fn tracks(title: &Title<'_>, seconds: f64, rows: &[Track]) -> Html {
    let height = TRACK * (rows.len() as f64 + 1.0);
    let x = Axis::of([0.0, seconds].into_iter(), Unit::Time);
    let at_place = |place: f64| NAMES + (TRACKS - NAMES - 30.0) * place / x.count;
    let place = |seconds: f64| at_place(x.place(seconds));
    let mut svg = begun(title, (TRACKS, height));
    for (at, label) in x.labels() {
        let at = at_place(at);
        html!(svg, "<line x1=\"" {at} "\" y1=\"0\" x2=\"" {at} "\" y2=\"" {height - TRACK} "\"/><text x=\"" {at} "\" y=\""
            {height - 10.0} "\" text-anchor=\"middle\">" {label} "</text>\n");
    }
    for (number, row) in rows.iter().enumerate() {
        let y = TRACK * (number as f64 + 0.5);
        html!(svg, "<g data-track=\"" {row.name} "\"><text x=\"4\" y=\"" {y + 5.0} "\">" {row.name} "</text>\n");
        for bar in &row.bars {
            let (from, width) = (place(bar.from), (place(bar.to) - place(bar.from)).max(1.5));
            let class = if bar.failed { Html::of("failed") } else { Html::of("f1") };
            html!(svg, "<rect class=\"" {class} "\" x=\"" {from} "\" y=\"" {y - 7.0} "\" width=\"" {width} "\" height=\"14\"><title>"
                {bar.text} "</title></rect>\n");
        }
        for (at, text) in &row.ticks {
            html!(svg, "<rect class=\"f3\" x=\"" {place(*at) - 1.5} "\" y=\"" {y - 11.0} "\" width=\"3\" height=\"22\"><title>" {text}
                "</title></rect>\n");
        }
        for (at, text, failed) in &row.dots {
            let class = if *failed { Html::of("failed") } else { Html::of("f8") };
            html!(svg, "<circle class=\"" {class} "\" cx=\"" {place(*at)} "\" cy=\"" {y} "\" r=\"6\"><title>" {text} "</title></circle>\n");
        }
        html!(svg, "</g>\n");
    }
    html!(svg, "</svg>\n");
    svg
}

fn begun(title: &Title<'_>, (width, height): (f64, f64)) -> Html {
    let Title { id, title, text } = title;
    let mut svg = Html::default();
    html!(svg, "<svg viewBox=\"0 0 " {width} " " {height} "\" role=\"img\" aria-labelledby=\"" {id} "-t " {id} "-d\"><title id=\"" {id}
        "-t\">" {title} "</title><desc id=\"" {id} "-d\">" {text} "</desc>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TITLE: Title<'_> = Title { id: "c", title: "a </title> & b", text: "falls" };

    fn drawn(all: &[Vec<(f64, f64)>], unit: Unit) -> String {
        lines(&TITLE, all, &Names { x: "step", y: "", unit }).text()
    }

    #[test]
    fn a_failed_bar_and_a_failed_moment_are_marked_and_all_have_their_text() {
        let bar = |failed| Bar { from: 1.0, to: 2.0, text: "attempt <1>".into(), failed };
        let row = |failed| Track {
            name: "worker-1".into(),
            bars: vec![bar(failed)],
            ticks: vec![(1.5, "commit".into())],
            dots: vec![(1.2, "killed".into(), failed)],
        };
        let svg = tracks(&TITLE, 10.0, &[row(false), row(true)]).text();
        assert_eq!(svg.matches("class=\"failed\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("<title>attempt &lt;1&gt;</title>").count(), 2, "{svg}");
        assert_eq!(svg.matches("data-track=\"worker-1\"").count(), 2, "{svg}");
    }

    #[test]
    fn a_chart_has_a_name_that_is_escaped_and_no_size_of_its_own() {
        let svg = drawn(&[vec![(0.0, 1.0), (10.0, 0.5)]], Unit::Number);
        assert!(svg.starts_with("<svg viewBox=\"0 0 420.0 200.0\" role=\"img\" aria-labelledby=\"c-t c-d\">"), "{svg}");
        assert!(svg.contains(">a &lt;/title&gt; &amp; b</title>") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("<polyline class=\"l1\"") && svg.contains("<title>step 10: 0.5</title>"), "{svg}");
    }

    #[test]
    fn a_line_that_goes_back_is_cut() {
        let svg = drawn(&[vec![(0.0, 1.0), (5.0, 2.0), (3.0, 1.0), (6.0, 2.0), (1.0, 1.0)]], Unit::Number);
        assert_eq!((svg.matches("class=\"l1\"").count(), svg.matches("class=\"f1\"").count()), (2, 1), "{svg}");
    }

    #[test]
    fn labels_are_round_numbers_and_times_have_the_unit_that_fits() {
        let labels = |low: f64, high: f64, unit| {
            let axis = Axis::of([low, high].into_iter(), unit);
            (0..=axis.count as usize).map(|place| axis.label(place as f64)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(labels(0.0, 1.0, Unit::Number), "0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(labels(0.31, 0.33, Unit::Number), "0.310 0.315 0.320 0.325 0.330");
        assert_eq!(labels(0.0, 48_000.0, Unit::Number), "0 10k 20k 30k 40k 50k");
        assert_eq!(labels(-2.0, 3.0, Unit::Number), "-2 -1 0 1 2 3");
        assert_eq!(labels(0.0, 86_400.0, Unit::Time), "0 h 5 h 10 h 15 h 20 h 25 h");
        assert_eq!(labels(0.0, 90.0, Unit::Time), "0 s 20 s 40 s 60 s 80 s 100 s");
        assert_eq!(labels(1e-9, 2e-9, Unit::Number).split(' ').next(), Some("1e-9"));
    }

    #[test]
    fn any_extreme_has_a_chart() {
        for values in [
            vec![f64::MAX, f64::MIN],
            vec![5e-324, 0.0],
            vec![1e16, 1e16 + 2.0],
            vec![0.0, 0.0],
            vec![-0.0],
            vec![1e-300, 1e300],
            vec![],
        ] {
            let line = values.iter().map(|value| (*value, *value)).collect();
            for unit in [Unit::Number, Unit::Time] {
                let svg = drawn(std::slice::from_ref(&line), unit);
                assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"), "{values:?}: {svg}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_finite_points_have_a_chart_of_bounded_size(
            points in prop::collection::vec((prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, prop::num::f64::NORMAL), 0..40)
        ) {
            let svg = drawn(&[points], Unit::Number);
            prop_assert!(svg.trim_end().ends_with("</svg>") && svg.len() < 30_000);
        }
    }
}
