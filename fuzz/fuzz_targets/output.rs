//! The trainer's output, searched with patterns of users: the size of the pieces does not change the result.
#![no_main]

use std::sync::LazyLock;

use trainit_rules::metric::output::pattern::Pattern;
use trainit_rules::metric::output::scrape::{Hit, Scraper};

// Compiled once, because compiling takes most of a run.
static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let mut patterns = vec![Pattern::step("epoch", true).expect("a name")];
    patterns.extend(Pattern::parse_all("loss=loss[:= ]*([0-9.]+)").expect("a pattern"));
    patterns.extend(Pattern::parse_all("acc=^acc (\\S+)( at (?<step>\\S+))?$").expect("a pattern"));
    patterns.push(Pattern::filter(r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)").expect("a filter"));
    patterns
});

libfuzzer_sys::fuzz_target!(|output: &[u8]| {
    let patterns = PATTERNS.as_slice();
    let found = |size: usize| -> Vec<String> {
        let (mut scraper, mut hits): (Scraper, Vec<Hit>) = (Scraper::default(), Vec::new());
        output.chunks(size).for_each(|piece| scraper.feed(patterns, piece, &mut hits));
        scraper.finish(patterns, &mut hits);
        assert!(std::iter::from_fn(|| scraper.complaint()).count() <= 10);
        hits.iter().map(|hit| format!("{hit:?}")).collect()
    };
    // Longer lines are searched in pieces, and only short matches across pieces are certain to be found.
    if output.len() < 512 {
        assert_eq!(found(usize::MAX), found(7));
    } else {
        found(4096);
    }
});
