use super::*;

fn all(pattern: &Pattern, line: &[u8]) -> Vec<Found> {
    let mut all = Vec::new();
    pattern.find(line, |found| all.extend(found));
    all
}

fn found(pattern: &str, line: &str) -> Vec<(f64, Option<String>)> {
    let pattern = Pattern::parse(pattern).expect(pattern);
    all(&pattern, line.as_bytes()).into_iter().map(|f| (f.value, f.step)).collect()
}

#[test]
fn the_value_is_the_named_group_or_the_first() {
    assert_eq!(found("a=loss: ([0-9.]+)", "x loss: 0.5, loss: 0.25"), [(0.5, None), (0.25, None)]);
    assert_eq!(found("a=(epoch|step) loss=(?P<value>\\S+)", "epoch loss=1e-5"), [(1e-5, None)]);
    let step = |text: &str| Some(text.to_owned());
    assert_eq!(found("a=step (?<step>\\d+).*loss (\\S+)", "step 007 loss nan")[0].1, step("7"));
    assert_eq!(found("a=(?<value>\\S+) at (?<step>\\d+)", "-inf at 3"), [(f64::NEG_INFINITY, step("3"))]);
}

#[test]
fn a_filter_takes_the_name_from_the_line() {
    let of = |filter: &str, line: &str| -> Vec<(Option<String>, f64)> {
        all(&Pattern::filter(filter).expect(filter), line.as_bytes()).into_iter().map(|f| (f.tag, f.value)).collect()
    };
    let expected = |tag: &str, value| (Some(tag.to_owned()), value);
    // The default filter of Katib's collectors.
    let katib = r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)";
    let found = of(katib, "epoch 3: Validation-accuracy=0.93 loss = 1e-3 name=x");
    assert_eq!(found, [expected("Validation-accuracy", 0.93), expected("loss", 1e-3)]);
    // The filter of Katib's JSON-like examples, in which RE2 reads the brace literally.
    let katib = r"{metricName: ([\w|-]+), metricValue: ((-?\d+)(\.\d+)?)}";
    let found = of(katib, "{metricName: loss, metricValue: -0.5};{metricName: acc, metricValue: 1}");
    assert_eq!(found, [expected("loss", -0.5), expected("acc", 1.0)]);
    assert_eq!(of("(?<value>\\S+) is (\\w+)", "0.5 is acc"), [expected("acc", 0.5)]);
    assert_eq!(of("(?P<value>\\S+) is (?P<name>\\w+)\\Z", "0.5 is acc"), [expected("acc", 0.5)]);
    assert!(Pattern::filter("(\\w+)=").is_err_and(|e| e.contains("two groups")));
}

#[test]
fn a_line_without_its_optional_step_still_has_its_value() {
    let optional = "a=(?:step (?<step>\\d+) )?loss (?<value>\\S+)";
    assert_eq!(found(optional, "step 7 loss 0.5 loss 0.25"), [(0.5, Some("7".to_owned())), (0.25, None)]);
    assert_eq!(found("a=loss (\\S+) ?(?<step>\\d*)", "loss 1"), [(1.0, None)]);
}

#[test]
fn a_step_is_read_in_any_notation() {
    for step in ["100", "1e2", "100.0", "100.9"] {
        let line = format!("loss 0.5 at {step}");
        assert_eq!(found("a=loss (\\S+) at (?<step>\\S+)", &line), [(0.5, Some("100".to_owned()))], "{step}");
    }
}

#[test]
fn case_can_be_ignored() {
    assert_eq!(found("a=(?i)loss: (\\S+)", "Loss: 0.5 LOSS: 1"), [(0.5, None), (1.0, None)]);
}

#[test]
fn a_match_that_is_not_a_number_is_not_a_metric() {
    assert_eq!(found("a=loss: (\\S+)", "loss: n/a loss: 0.5"), [(0.5, None)]);
    assert_eq!(found("a=loss: (\\S+) (?<step>\\S*)", "loss: 0.5 soon"), []);
    assert_eq!(Pattern::parse("a=(?s-u)loss: (.)").map(|p| all(&p, b"loss: \xff").len()), Ok(0));
}

#[test]
fn an_invalid_pattern_is_refused_with_the_mistake() {
    for (text, reason) in [
        ("loss", "expected TAG=REGEX"),
        ("=(x)", "no tag"),
        ("loss=x", "no group"),
        ("loss=(?<step>x)", "no group"),
        ("loss=(x", "unclosed group"),
        ("loss=(?<=a)(x)", "look-around, which is not supported"),
        ("loss=x{9999999}(y)", "not a regular expression"),
        ("trial=(x)", "choose another tag"),
    ] {
        let error = Pattern::parse(text).map(|p| p.tag().map(str::to_owned)).expect_err(text);
        assert!(error.contains(reason) && !error.contains('\n'), "{text}: {error}");
    }
}
