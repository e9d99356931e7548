//! A name and a resolv.conf: each full name ends with a dot, and there is at least one.
#![no_main]

use trainit_rules::cluster::parse::search_list::candidates;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (name, resolv_conf) = text.split_once('\n').unwrap_or((text, ""));
    let names = candidates(name, resolv_conf, Some("host.domain"));
    assert!(!names.is_empty() && names.iter().all(|name| name.ends_with('.')), "{names:?}");
});
