//! A fetch of training data: any URL, any index in the directory and any listing of the store. The plan stays below the
//! directory and replaces neither the index nor a temporary file.
#![no_main]

use trainit_rules::store::fetch::index::{self, INDEX, Index};
use trainit_rules::store::fetch::plan::{Object, plan, temporary};
use trainit_rules::store::fetch::source::Source;

libfuzzer_sys::fuzz_target!(|text: &str| {
    // A URL, then lines: the index, and the store's paths.
    let (url, lines) = text.split_once('\n').unwrap_or((text, ""));
    if let Err(why) = Source::parse(url) {
        assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
    }
    let source = Source::parse(url).or_else(|_| Source::parse("gs://b/p")).expect("a URL");
    if let Some((around, name)) = source.as_object() {
        assert!(!name.contains('/') && Source::parse(&around.to_string()).is_ok(), "{around} {name:?}");
    }
    let object = |path: &str| Object { path: path.to_owned(), size: 3, tag: path.to_owned(), modified_ns: 0 };

    let mut index = Index::default();
    lines.lines().for_each(|line| index.read(url, line));
    // An entry is read back after any foreign line.
    let written = object(lines);
    index.read(url, &index::head(url));
    index.read(url, &index::entry(&written));
    assert!(index.has(&written));

    let mut listed: Vec<Object> = lines.lines().map(object).collect();
    listed.sort_by(|a, b| a.path.cmp(&b.path));
    listed.dedup();
    let count = listed.len();
    let Ok(planned) = plan(listed, &source, index, |_| Some(3)) else { return };
    assert!(planned.fetch.len() + planned.unchanged.len() <= count);
    for Object { path, .. } in planned.fetch.iter().chain(&planned.unchanged) {
        assert!(source.wants(path) && path != INDEX && !path.starts_with('/') && !path.contains('\0'), "{path:?}");
        assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255), "{path:?}");
        let temporary = temporary(path);
        assert!(temporary.rsplit_once('/').map(|at| at.0) == path.rsplit_once('/').map(|at| at.0), "{temporary:?}");
        assert!(planned.fetch.iter().all(|other| other.path != temporary), "{temporary:?}");
    }
});
