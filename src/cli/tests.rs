use super::*;
use crate::settings::defs::all;

fn parsed(line: &str) -> Parsed {
    parse(line.split(' ').map(OsString::from).collect()).expect(line)
}

#[test]
fn words_after_the_dashes_belong_to_the_command() {
    let p = parsed("trainit run --stop-grace 3s -- python --stop-grace 9 -- x");
    assert_eq!(p.flags["stop-grace"], ["3s"]);
    assert_eq!(p.operands, ["python", "--stop-grace", "9", "--", "x"]);
}

#[test]
fn short_help_shows_the_most_used_settings_and_long_help_shows_all_of_them_with_those_first() {
    let help = |flag: &str| match parse(["trainit", "run", flag].map(OsString::from).to_vec()) {
        Err(Refusal::Shown(text)) => text,
        _ => panic!("no help for {flag}"),
    };
    let flags = |text: &str| -> Vec<String> {
        let words = text.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
        words.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    assert!(help("-h").contains("Usage: trainit run [OPTIONS] -- COMMAND"), "{}", help("-h"));
    let (short, long) = (flags(&help("-h")), flags(&help("--help")));
    assert_eq!(short[1..], MOST_USED, "after --config");
    assert_eq!(long[..short.len()], short);
    assert_eq!(long.len(), 1 + all().filter(|s| s.on & on::RUN != 0).count());
}

#[test]
fn short_help_fits_a_terminal() {
    for sub in SUBS {
        let Err(Refusal::Shown(text)) = parse(["trainit", sub.name, "-h"].map(OsString::from).to_vec()) else {
            panic!("no help for {}", sub.name);
        };
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(long.is_empty(), "{}: {long:#?}", sub.name);
    }
}

#[test]
fn a_missing_operand_is_reported_with_its_values() {
    let answer_to = |line: &str| match parse(line.split(' ').map(OsString::from).collect()) {
        Err(Refusal::Wrong(lines)) => lines.join("; "),
        _ => String::new(),
    };
    let wanted = "command line: trainit checkpoint needs ACTION: list, explain, verify, push, pull or prune; see trainit checkpoint --help";
    assert_eq!(answer_to("trainit checkpoint"), wanted);
    assert_eq!(
        answer_to("trainit completions"),
        "command line: trainit completions needs SHELL: bash, zsh or fish; see trainit completions --help"
    );
}

#[test]
fn a_flag_without_a_value_does_not_consume_the_next_word() {
    for (line, flag, next) in [
        ("run --checkpoint-dir -- python", "--checkpoint-dir", "--"),
        ("run --verdict-file --log-level warn -- python", "--verdict-file", "--log-level"),
        ("run --report a --metric-file --stop-grace=3s python", "--metric-file", "--stop-grace=3s"),
    ] {
        let parsed = parsed(&format!("trainit {line}"));
        let [mistake] = parsed.mistakes.as_slice() else { panic!("{parsed:?}") };
        assert!(mistake.place == flag && mistake.message.contains(&format!("found {next:?}")), "{mistake:?}");
        assert_eq!(parsed.operands, ["python"], "{line}");
    }
    let given = parsed("trainit run --verdict-file=-- --marker --done -- python --report -- x");
    assert_eq!((given.mistakes.len(), &given.flags["verdict-file"][..]), (0, &["--".to_owned()][..]));
    assert_eq!(given.flags["marker"], ["--done"]);
}

#[test]
fn the_dashes_may_be_omitted() {
    let p = parsed("trainit run python -m trainer --json");
    assert_eq!(p.operands, ["python", "-m", "trainer", "--json"]);
}

#[test]
fn a_negative_value_is_a_value_not_a_flag() {
    assert_eq!(parsed("trainit report-metric loss -1e-5 --step 3").operands, ["loss", "-1e-5"]);
    assert_eq!(parsed("trainit report-metric loss -inf").operands, ["loss", "-inf"]);
    assert_eq!(parsed("trainit report-metric --tag t --value -1").flags["value"], ["-1"]);
}

#[test]
fn an_unknown_flag_sets_nothing_and_is_one_line_with_the_nearest_one() {
    for line in ["run --stop-grac 1 -- true", "run --stop_grace=2 true", "run --stop-gracee -- true"] {
        let parsed = parsed(&format!("trainit {line}"));
        let [mistake] = parsed.mistakes.as_slice() else { panic!("{parsed:?}") };
        assert!(mistake.message.contains("has no such flag; did you mean --st"), "{mistake}");
        assert_eq!((parsed.flags.len(), &parsed.operands[..]), (0, &["true".into()][..]), "{line}");
    }
    for (line, way_out) in [
        ("run -g -- true", "-g: trainit run has no such flag; did you mean --signal-target group?"),
        ("run -vv -- true", "-v: trainit run has no such flag; did you mean --log-level debug?"),
        ("run -r15:2 -- true", "-r: trainit run has no such flag; did you mean --rewrite-signal FROM:TO?"),
        ("run -p SIGTERM -- true", "-p: trainit run has no such flag; did you mean --parent-death-signal SIGNAL?"),
        ("run -s -- true", "-s: trainit run has no such flag; trainit always adopts orphans: leave it out"),
        ("run --dry-run -- true", "--dry-run: trainit run has no such flag; trainit inspect shows what run would do"),
    ] {
        let parsed = parsed(&format!("trainit {line}"));
        assert_eq!(parsed.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(), [way_out]);
        assert_eq!(parsed.operands, ["true"], "{line}");
    }
    let error = parse(["trainit", "status", "--jsn"].map(OsString::from).to_vec());
    let Err(Refusal::Wrong(lines)) = error else { panic!("{error:?}") };
    assert_eq!(lines, ["--jsn: trainit status has no such flag; did you mean --json?"]);
}

#[test]
fn a_value_after_a_switch_is_not_the_command() {
    let p = parsed("trainit run --allow-http True --stop-grace 5s -- python x");
    let [mistake] = p.mistakes.as_slice() else { panic!("{p:?}") };
    assert!(mistake.to_string().starts_with("--allow-http: it takes no value, found \"True\""), "{mistake}");
    assert_eq!(p.operands, ["python", "x"]);
    for line in [
        "run --allow-http true",
        "run --allow-http -- true",
        "run --allow-http true x",
        "run true -- x",
        "run --config c -- true --allow-http true -- x",
        "run true --allow-http true -- x",
        "run --stop-grace 5s true --allow-http true -- x",
    ] {
        let p = parsed(&format!("trainit {line}"));
        assert!(p.mistakes.is_empty() && p.operands[0] == "true", "{p:?}");
    }
}

#[test]
fn unknown_flags_are_all_reported_and_the_rest_is_read() {
    let p = parsed("trainit run --frobnicate 3 --quux=4 --stop-grace 5s --zzzzzz -- python x");
    let places: Vec<&str> = p.mistakes.iter().map(|m| m.place.as_str()).collect();
    assert_eq!(places, ["--frobnicate", "--quux", "--zzzzzz"]);
    assert_eq!((p.flags["stop-grace"][0].as_str(), p.operands.len()), ("5s", 2));
}

#[test]
fn help_is_shown_despite_other_mistakes() {
    let shown = parse("trainit run --frobnicate --help".split(' ').map(OsString::from).collect());
    assert!(matches!(shown, Err(Refusal::Shown(_))), "{shown:?}");
}

#[test]
fn help_names_every_flag_with_its_variable() {
    let Err(Refusal::Shown(text)) = parse(["trainit", "run", "--help"].map(OsString::from).to_vec()) else {
        panic!("no help");
    };
    for setting in all().filter(|s| s.on & on::RUN != 0) {
        let variable = setting.variable().unwrap_or_default();
        assert!(text.contains(&format!("--{}", setting.name)) && text.contains(&variable), "{text}");
    }
}

#[test]
fn clap_accepts_the_definition() {
    for sub in SUBS {
        build(sub, true).debug_assert();
    }
}
