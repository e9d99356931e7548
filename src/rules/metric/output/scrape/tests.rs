use super::*;
use proptest::prelude::*;

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::parse(text).expect(text)).collect()
}

/// The result for output in chunks of this size.
fn scrape(texts: &[&str], output: &[u8], size: usize) -> Vec<(usize, f64)> {
    let patterns = patterns(texts);
    let mut scraper = Scraper::default();
    let mut hits = Vec::new();
    for chunk in output.chunks(size.max(1)) {
        scraper.feed(&patterns, chunk, &mut hits);
    }
    scraper.finish(&patterns, &mut hits);
    hits.into_iter().map(|(which, found)| (which, found.value)).collect()
}

#[track_caller]
fn finds(text: &str, output: &[u8], values: &[f64]) {
    for size in [1, 2, 3, 7, 64, 1 << 20] {
        let found: Vec<f64> = scrape(&[text], output, size).into_iter().map(|(_, value)| value).collect();
        assert_eq!(found, values, "chunks of {size}");
    }
}

#[test]
fn a_metric_is_found_for_any_chunks() {
    finds("a=loss: ([0-9.]+)", b"start\nloss: 0.5\nnothing\nloss: 0.25 and loss: 0.125\n", &[0.5, 0.25, 0.125]);
}

#[test]
fn a_progress_bar_is_many_lines() {
    finds("a=loss=([0-9.]+)", b"\r 10%|#  | loss=0.5\r 20%|## | loss=0.4\r\n\r\ndone\n", &[0.5, 0.4]);
}

#[test]
fn an_incomplete_line_at_the_end_counts() {
    finds("a=loss: ([0-9.]+)", b"loss: 0.5\nloss: 0.25", &[0.5, 0.25]);
}

#[test]
fn anchors_apply_to_the_line() {
    finds("a=^loss: ([0-9.]+)$", b"loss: 1\rloss: 2\nmy loss: 3\nloss: 4 x\nloss: 5\r\nloss: 6", &[1.0, 2.0, 5.0, 6.0]);
    finds("a=\\Aloss: ([0-9.]+)\\z", b"loss: 1\nloss: 2\n x loss: 3\n", &[1.0, 2.0]);
}

#[test]
fn nothing_matches_across_lines() {
    finds("a=loss:\\s+([0-9.]+)", b"loss:\n0.5\nloss:\r1\nloss: 2\n", &[2.0]);
    finds("a=(?s)loss.*?([0-9]+)", b"loss\n1\nloss 2\nloss\n", &[2.0]);
    finds("a=loss[^0-9]*([0-9]+)", b"loss\n1\nloss 2\nloss\n3\n", &[2.0]);
}

#[test]
fn binary_junk_is_harmless() {
    let junk: Vec<u8> = (0..=255u8).chain((0..=255).rev()).cycle().take(200_000).collect();
    let output = [&junk[..], b"\nloss: 0.5\n", &junk].concat();
    assert_eq!(scrape(&["a=loss: ([0-9.]+)"], &output, 4096), [(0, 0.5)]);
}

#[test]
fn an_invalid_byte_hides_nothing_else_of_its_line() {
    finds("a=epoch.*loss=([0-9.]+)", b"epoch \xe9\xff loss=0.5\n\x1b[1mepoch \xc3 loss=0.25\nepoch \xc3", &[0.5, 0.25]);
    // A character that is split by the end of a piece is such a byte.
    for before in LONGEST_LINE_BYTES - 8..LONGEST_LINE_BYTES {
        let line = [&vec![b'-'; before][..], "é".as_bytes(), b"\xffloss=0.5 and on\n"].concat();
        assert_eq!(scrape(&["a=é.loss=([0-9.]+)"], &line, 1 << 20), [(0, 0.5)], "{before}");
    }
}

#[test]
fn colours_are_removed() {
    finds(
        "a=loss: ([0-9.]+)$",
        b"\x1b[1mloss:\x1b[0m \x1b[38;5;82m0.5\x1b[0m\n\x1b[2K\x1b[1Gloss: 0.25\n\x1b]junk\x1b",
        &[0.5, 0.25],
    );
}

#[test]
fn titles_links_and_character_sets_are_removed() {
    finds(
        "a=^loss: ([0-9.]+)$",
        b"\x1b]0;loss: 9\x07loss: \x1b(B0.5\n\x1b]8;;http://x\x1b\\loss: 0.25\x1b]8;;\x1b\\\n\x1b]cut off\nloss: 0.125\n",
        &[0.5, 0.25, 0.125],
    );
}

#[test]
fn a_code_of_one_byte_is_not_a_digit_of_a_value() {
    finds(
        "a=loss=([0-9.]+)",
        b"\x1b7loss=\x1b80.46\x1b8\n\x1b=loss=\x1b>0.5\n\x1bMloss=0.25\x1bc1\n\x1b7",
        &[0.46, 0.5, 0.251],
    );
}

#[test]
fn a_match_across_the_cut_of_a_long_line_is_found_once() {
    let places = (LONGEST_LINE_BYTES - 40..LONGEST_LINE_BYTES + 2)
        .chain(LONGEST_LINE_BYTES - OVERLAP_BYTES - 40..LONGEST_LINE_BYTES - OVERLAP_BYTES + 40);
    for before in places {
        for filler in ["x", "- "] {
            let line = format!("{} loss: 0.5625 and on\n", filler.repeat(before / filler.len()));
            for text in ["a=loss: ([0-9.]+)", "a=([0-9.]+)", "a=\\bl?oss: (\\S+)", "a=loss.*?([0-9.]+) and"] {
                assert_eq!(scrape(&[text], line.as_bytes(), 1 << 20), [(0, 0.5625)], "{before} {text}");
            }
        }
    }
}

#[test]
fn the_metrics_of_an_endless_line_are_counted_once() {
    let text: String = (0..20_000).map(|n| format!("\x1b[1mstep{n}\x1b[0m=0.5 loss={n} | ")).collect();
    let losses: Vec<(usize, f64)> = (0..20_000).map(|n| (0, f64::from(n))).collect();
    for size in [1000, 4096, 1 << 20] {
        assert_eq!(scrape(&["a=loss=([0-9]+)"], text.as_bytes(), size), losses, "{size}");
        let patterns = patterns(&["b=step([0-9]+)=[0-9.]+ loss", "c=5 loss=([0-9]+)", "d=p([0-9]+)="]);
        let (mut scraper, mut hits) = (Scraper::default(), Vec::new());
        for chunk in text.as_bytes().chunks(size) {
            scraper.feed(&patterns, chunk, &mut hits);
        }
        scraper.finish(&patterns, &mut hits);
        for which in 0..3 {
            let values: Vec<f64> = hits.iter().filter(|(w, _)| *w == which).map(|(_, f)| f.value).collect();
            assert!(values.iter().copied().eq((0..20_000).map(f64::from)), "{size} {which}: {}", values.len());
        }
    }
}

#[test]
fn an_endless_line_takes_no_more_memory_than_a_piece() {
    let patterns = patterns(&["a=loss: ([0-9.]+);"]);
    let mut scraper = Scraper::default();
    let mut hits = Vec::new();
    for _ in 0..1000 {
        scraper.feed(&patterns, &[b'x'; 3000], &mut hits);
        assert!(
            scraper.incomplete.len() < LONGEST_LINE_BYTES && scraper.incomplete.capacity() <= 2 * LONGEST_LINE_BYTES
        );
    }
    scraper.feed(&patterns, b" loss: 0.5; and on", &mut hits);
    scraper.finish(&patterns, &mut hits);
    assert_eq!(hits.len(), 1);
}

#[test]
fn a_match_that_is_not_a_number_causes_one_complaint() {
    let patterns = patterns(&["loss=loss: (\\S+)", "acc=acc: (\\S+) at (?P<step>\\S+)", "x=x: ([0-9]*)"]);
    let (mut scraper, mut hits) = (Scraper::default(), Vec::new());
    scraper.feed(&patterns, b"loss: 1,234 acc: 0.9 at soon\nloss: n/a\nloss: 0.3,\nx: \n", &mut hits);
    assert_eq!(hits.iter().map(|(_, found)| found.value).collect::<Vec<_>>(), [0.3]);
    let complaints: Vec<String> = std::iter::from_fn(|| scraper.complaint()).collect();
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].contains("loss: the value \"1,234\""), "{complaints:?}");
    assert!(
        complaints[1].contains("acc: the step \"soon\"") && complaints[1].contains("(?<step>[0-9]+)"),
        "{complaints:?}"
    );
    scraper.feed(&patterns, b"loss: 1,234\n", &mut hits);
    assert_eq!(scraper.complaint(), None);
}

#[test]
fn measurements_are_in_the_order_of_lines_then_of_patterns() {
    let texts = ["a=a=([0-9]+)", "b=b=([0-9]+)"];
    let output = b"b=1 a=2\na=3\nb=4\n";
    assert_eq!(scrape(&texts, output, 1 << 20), [(0, 2.0), (1, 1.0), (0, 3.0), (1, 4.0)]);
}

/// The expected result, without blocks.
fn by_line(texts: &[&str], output: &[u8]) -> Vec<(usize, f64)> {
    let mut plain = Vec::new();
    without_codes(output, &mut plain);
    let patterns = patterns(texts);
    let of_line = |line: &[u8]| -> Vec<(usize, f64)> {
        let each = patterns.iter().enumerate();
        let mut found = Vec::new();
        each.for_each(|(which, p)| p.find(line, |f| found.extend(f.map(|f| (which, f.value)))));
        found
    };
    plain.split(|b| is_end(*b)).flat_map(of_line).collect()
}

proptest! {
    #[test]
    fn a_search_in_blocks_finds_the_same_as_in_lines(
        output in "((loss|acc|x)[:= ]{0,2}[0-9.]{0,3}|\\n|\\r|\\x1b\\[3?m|é| ){0,40}", size in 1usize..50,
    ) {
        let texts = [
            "a=loss[:= ]*([0-9.]+)", "b=^acc: ([0-9]+)$", "c=(?s)x.*([0-9])", "d=x[^0-9]*([0-9])", "e=\\b([0-9]+)$",
            "f=(?i)LOSS\\s*([0-9])", "g=\\Aacc(.)", "h=(?:loss|acc)([^ ]+)",
        ];
        prop_assert_eq!(scrape(&texts, output.as_bytes(), size), by_line(&texts, output.as_bytes()));
    }
}
