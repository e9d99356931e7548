//! What this build was made without, and what whoever asks for it is told. The settings of it stay in the list: one that
//! were ignored would be checkpoints that nobody keeps.

use super::defs::{Setting, all};
use super::layers::{Complaint, Origin, Values};

/// Why it is not there, and the way out.
pub const WHY: &str = "this trainit was built without checkpoint stores (trainit-small) and keeps neither checkpoints nor \
                       models; take the full file, trainit, or leave it out and let the trainer save by itself";

/// The same for the status page.
const NO_PAGE: &str = "this trainit was built without an HTTP server (trainit-small) and has no status page; take the full \
                       file, trainit, or leave it out and ask with trainit status";

/// The heading in `--help` of what goes with the feature `store`.
const OF_STORES: &str = "Checkpoints";

/// Whether this build has no use for a setting.
pub fn is_left_out(setting: &Setting) -> bool {
    why(setting).is_some()
}

/// Why it has none, and the way out.
fn why(setting: &Setting) -> Option<&'static str> {
    match setting {
        Setting { topic: OF_STORES, .. } if !cfg!(feature = "store") => Some(WHY),
        Setting { name: "status-addr", .. } if !cfg!(feature = "status-page") => Some(NO_PAGE),
        _ => None,
    }
}

/// Takes what this build has no use for out of the values; each that somebody gave is a complaint.
pub fn refuse(values: &mut Values, complaints: &mut Vec<Complaint>) {
    for (setting, why) in all().filter_map(|setting| Some((setting, why(setting)?))) {
        let place = values.place(setting.name);
        if values.remove(setting.name).is_some_and(|given| given.origin != Origin::Default) {
            complaints.push(Complaint { place, message: why.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::defs::{find, on};
    use super::*;
    use crate::rules::env::Env;

    #[test]
    fn the_heading_is_the_one_of_the_list() {
        for name in ["checkpoint-dir", "checkpoint-store", "model-dir"] {
            assert_eq!(find(name).map(|setting| setting.topic), Some(OF_STORES), "{name}");
        }
    }

    #[test]
    fn who_asks_a_build_for_what_it_has_not_is_refused_and_who_does_not_is_not() {
        let gathered = |pairs: &[(&str, &str)]| {
            let (env, mut complaints) = (Env::from_pairs(pairs.iter().copied()), Vec::new());
            let mut values = Values::gather(on::RUN, Default::default(), &env, None, &mut complaints);
            refuse(&mut values, &mut complaints);
            (values.get("settle").is_some(), complaints.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let asked = [("TRAINIT_CHECKPOINT_DIR", "/c"), ("TRAINIT_MODEL_DIR", "/m"), ("TRAINIT_STOP_GRACE", "3s")];
        let (is_known, complaints) = gathered(&asked);
        if cfg!(feature = "store") {
            assert!(is_known && complaints.is_empty(), "{complaints:?}");
        } else {
            assert!(!is_known && complaints.len() == 2, "{complaints:?}");
            let place = |line: &String| line.starts_with("TRAINIT_CHECKPOINT_DIR: ") && line.contains("full file");
            assert!(complaints.iter().any(place), "{complaints:?}");
        }
        assert_eq!(gathered(&[("AIP_CHECKPOINT_DIR", "gs://b/c")]).1, Vec::<String>::new());
        let complaints = gathered(&[("TRAINIT_STATUS_ADDR", "127.0.0.1:9464")]).1;
        assert_eq!(complaints.is_empty(), cfg!(feature = "status-page"), "{complaints:?}");
        assert!(complaints.iter().all(|line| line.contains("without an HTTP server")), "{complaints:?}");
    }
}
