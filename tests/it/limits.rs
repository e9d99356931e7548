//! What a run does where it may have few processes, threads or open files: it ends with a code and a line of its own, and the
//! line names the limit.

use crate::support::Trainit;
use crate::support::checkpoints::Place;

#[test]
fn where_too_few_files_may_be_open_the_line_says_so_and_blames_nothing_else() {
    let mut codes = Vec::new();
    for limit in 6..18 {
        let (place, limit) = (Place::new(), format!("--nofile={limit}"));
        let (local, url) = (place.local(), place.url());
        let store = ["--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &url, "--", "true"];
        let done = Trainit::through(&["prlimit", &limit], ["run", "--max-restarts", "0"]).args(store).output();
        let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
        assert_eq!(done.code() != 0, detail.contains("raise the limit on open files"), "{limit}: {}", done.err());
        assert!(!detail.contains("give a") && !detail.contains("disk") && !detail.contains("see that"), "{detail}");
        codes.push(done.code());
    }
    assert!(codes[0] == 125 && codes.last() == Some(&0), "{codes:?}");
}
