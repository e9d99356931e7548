//! Slurm's compressed host lists.
#![no_main]

use trainit_rules::cluster::parse::hostlist::expand;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(hosts) = expand(text) {
        assert!(!hosts.is_empty() && hosts.len() <= 65_536);
    }
});
