//! Any answers to every question that a preemption source asks: no panic and no pause beyond an hour.
#![no_main]

use std::time::Duration;

use trainit_rules::preempt::{Answer, NoticeFacts, PREEMPTION_LEAD, SOURCES};
use trainit_rules::process::env::Env;

libfuzzer_sys::fuzz_target!(|answers: Vec<(u16, &str, &str, &str, bool)>| {
    for source in SOURCES {
        for mut watch in (source.watches)(&NoticeFacts { preemption: PREEMPTION_LEAD, has_gpus: false }, &Env::default()) {
            for (status, header, value, body, came) in &answers {
                let question = watch.question();
                assert!(question.path.starts_with('/') && question.timeout <= Duration::from_secs(600));
                let headers = vec![
                    (header.to_lowercase(), (*value).to_owned()),
                    ("metadata-flavor".to_owned(), "Google".to_owned()),
                    ("etag".to_owned(), (*value).to_owned()),
                ];
                let answer =
                    Answer { status: *status, headers, body: (*body).to_owned(), received_unix: 1_800_000_000 };
                let evaluation = watch.evaluate(came.then_some(&answer), Duration::ZERO, 0.5);
                assert!(evaluation.pause <= Duration::from_secs(3600), "{:?}", evaluation.pause);
            }
        }
    }
});
