//! Line charts and the timeline as SVG. Colours are placeholders that the style sheet replaces, so that a chart follows the
//! light or dark scheme. A chart gets its own units, so that the library never sees foreign numbers.

use plotters::prelude::*;

use super::escaped;

/// The size of a chart and of the timeline in units of the drawing; the page scales it.
const CHART: (u32, u32) = (420, 190);
const LANES: (u32, u32) = (420, 120);
const FONT: (&str, u32) = ("sans-serif", 14);
/// Labels of an axis, at most.
const LABELS: f64 = 5.0;

/// The placeholder of a line's colour: `#000001` is the first.
fn colour(number: usize) -> RGBColor {
    RGBColor(0, 0, (number % 8) as u8 + 1)
}

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
pub(super) struct Title<'a> {
    /// Unique on the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    /// A description of the chart in one sentence.
    pub(super) text: &'a str,
}

/// A drawing in the units of the axes.
enum Shape {
    Line(Vec<(f64, f64)>, RGBColor),
    Dot((f64, f64), u32, RGBColor),
    Bar([(f64, f64); 2], RGBColor),
}

/// Lines over a common axis. A line is interrupted where its x value decreases.
pub(super) fn lines(title: &Title<'_>, lines: &[Vec<(f64, f64)>], x_unit: Unit) -> String {
    let all = || lines.iter().flatten();
    let x = Axis::of(all().map(|(x, _)| *x), x_unit);
    let y = Axis::of(all().map(|(_, y)| *y), Unit::Number);
    let mut shapes = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let places: Vec<(f64, f64)> = line.iter().map(|(at, value)| (x.place(*at), y.place(*value))).collect();
        for part in places.chunk_by(|before, after| after.0 >= before.0) {
            shapes.push(match part {
                // A line of one point is invisible.
                [point] => Shape::Dot(*point, 2, colour(number)),
                part => Shape::Line(part.to_vec(), colour(number)),
            });
        }
    }
    let (y_label, y_labels) = (|place| y.label(place), y.count as usize + 1);
    drawn(title, &Axes { size: CHART, x: &x, y: (0.0, y.count), y_label: &y_label, y_labels }, shapes)
}

/// Three lanes over the time of the run, in seconds: attempts, commits and other marks.
pub(super) fn lanes(title: &Title<'_>, now: f64, attempts: &[(f64, f64)], commits: &[f64], marks: &[f64]) -> String {
    let x = Axis::of([0.0, now].into_iter(), Unit::Time);
    let name = |lane: f64| (*["", "other", "commits", "attempts"].get(lane as usize).unwrap_or(&"")).to_owned();
    let bar = |(number, (from, to)): (usize, &(f64, f64))| {
        Shape::Bar([(x.place(*from), 2.7), (x.place(*to), 3.3)], colour(number % 2))
    };
    let tick = |at: &f64| Shape::Line(vec![(x.place(*at), 1.7), (x.place(*at), 2.3)], colour(2));
    let dot = |at: &f64| Shape::Dot((x.place(*at), 1.0), 4, colour(3));
    let shapes = attempts.iter().enumerate().map(bar).chain(commits.iter().map(tick)).chain(marks.iter().map(dot));
    drawn(title, &Axes { size: LANES, x: &x, y: (0.5, 3.5), y_label: &name, y_labels: 3 }, shapes.collect())
}

/// The axes of a chart.
struct Axes<'a> {
    size: (u32, u32),
    x: &'a Axis,
    y: (f64, f64),
    y_label: &'a dyn Fn(f64) -> String,
    y_labels: usize,
}

fn drawn(title: &Title<'_>, axes: &Axes<'_>, shapes: Vec<Shape>) -> String {
    let mut svg = String::new();
    // Drawing into a string has no errors of its own.
    let _ = draw(&mut svg, axes, shapes);
    let inside = svg.split_once('>').map_or("", |(_, inside)| inside);
    let Title { id, title, text } = title;
    let (title, text, (width, height)) = (escaped(title), escaped(text), axes.size);
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{title}</title>\
         <desc id=\"{id}-d\">{text}</desc>{inside}"
    )
}

fn draw(svg: &mut String, axes: &Axes<'_>, shapes: Vec<Shape>) -> Result<(), Box<dyn std::error::Error>> {
    let Axes { size, x, y, y_label, y_labels } = *axes;
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(6)
        .margin_right(16)
        .x_label_area_size(24)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..x.count, y.0..y.1)
        .map_err(|error| error.to_string())?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(x.count as usize + 1)
        .y_labels(y_labels)
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y_label(*place))
        .label_style(FONT)
        .draw()
        .map_err(|error| error.to_string())?;
    for shape in shapes {
        match shape {
            Shape::Line(points, colour) => chart.draw_series([PathElement::new(points, colour)]).map(drop),
            Shape::Dot(at, size, colour) => chart.draw_series([Circle::new(at, size, colour.filled())]).map(drop),
            Shape::Bar(corners, colour) => chart.draw_series([Rectangle::new(corners, colour.filled())]).map(drop),
        }
        .map_err(|error| error.to_string())?;
    }
    area.present().map_err(|error| error.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TITLE: Title<'_> = Title { id: "c", title: "a </title> & b", text: "falls" };

    #[test]
    fn a_chart_has_a_name_that_is_escaped_and_no_size_of_its_own() {
        let svg = lines(&TITLE, &[vec![(0.0, 1.0), (10.0, 0.5)]], Unit::Number);
        assert!(svg.starts_with("<svg viewBox=\"0 0 420 190\" role=\"img\" aria-labelledby=\"c-t c-d\">"), "{svg}");
        assert!(svg.contains(">a &lt;/title&gt; &amp; b</title>") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("<polyline") && svg.contains("stroke=\"#000001\""), "{svg}");
    }

    #[test]
    fn a_line_that_goes_back_is_cut() {
        let svg = lines(&TITLE, &[vec![(0.0, 1.0), (5.0, 2.0), (3.0, 1.0), (6.0, 2.0), (1.0, 1.0)]], Unit::Number);
        assert_eq!((svg.matches("stroke=\"#000001\"").count(), svg.matches("<circle").count()), (2, 1), "{svg}");
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
                let svg = lines(&TITLE, std::slice::from_ref(&line), unit);
                assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"), "{values:?}: {svg}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_finite_points_have_a_chart_of_bounded_size(
            points in prop::collection::vec((prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, prop::num::f64::NORMAL), 0..40)
        ) {
            let svg = lines(&TITLE, &[points], Unit::Number);
            prop_assert!(svg.trim_end().ends_with("</svg>") && svg.len() < 30_000);
        }
    }
}
