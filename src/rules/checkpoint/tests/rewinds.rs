//! Going back to an older checkpoint of a directory.

use super::*;

impl Dir {
    /// The checkpoints of the directory, the newest first.
    fn restorable(&mut self) -> Vec<(Option<String>, Option<u64>)> {
        let found = self.with(Writer::Finished, |tracker, facts| {
            tracker.update(facts);
            restorable(&facts.scan, tracker)
        });
        found.into_iter().map(|resume| (resume.unit, resume.step)).collect()
    }

    fn rewind(&mut self, unit: &str) -> Option<Rewind> {
        self.with(Writer::Finished, |tracker, facts| rewind(&facts.scan, tracker, unit))
    }
}

fn unit(path: &str, step: u64) -> (Option<String>, Option<u64>) {
    (Some(path.to_owned()), Some(step))
}

#[test]
fn a_directory_of_one_format_can_go_back_to_each_complete_checkpoint_that_has_a_step() {
    let mut dir = Dir::new();
    for step in [100, 200, 300] {
        dir.save(&format!("model_{step}.pt"));
    }
    let newest_first = [300, 200, 100].map(|step| unit(&format!("model_{step}.pt"), step));
    assert_eq!(dir.restorable(), newest_first);
    let back = dir.rewind("model_100.pt").expect("it is there");
    assert_eq!(back.aside, ["model_200.pt", "model_300.pt"]);
    assert_eq!(dir.rewind("model_400.pt"), None);
}

#[test]
fn a_rewind_makes_the_pointer_name_the_older_checkpoint() {
    let mut dir = Dir::new();
    for step in [100, 200] {
        let home = format!("global_step{step}");
        dir.save(&format!("{home}/mp_rank_00_model_states.pt"));
        dir.save(&format!("{home}/zero_pp_rank_0_mp_rank_00_optim_states.pt"));
        dir.write("latest", &home);
    }
    assert_eq!(dir.restorable(), [unit("global_step200", 200), unit("global_step100", 100)]);
    let back = dir.rewind("global_step100").expect("it is there");
    assert!(back.aside.iter().all(|path| path.starts_with("global_step200/")), "{back:?}");
    assert_eq!(back.pointers, [("latest".to_owned(), "global_step100".to_owned())]);
}

#[test]
fn a_directory_with_other_files_is_offered_as_it_is() {
    let mut dir = Dir::new();
    for step in [100, 200] {
        dir.save(&format!("model_{step}.pt"));
        dir.save(&format!("optim_{step}.pt"));
    }
    assert_eq!(dir.restorable(), [(None, None)]);
    assert_eq!(dir.rewind("model_100.pt"), None);
    let mut texts = Dir::new();
    texts.save("global_step100/mp_rank_00_model_states.pt");
    texts.save("global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt");
    texts.save("global_step200/mp_rank_00_model_states.pt");
    texts.save("global_step200/zero_pp_rank_0_mp_rank_00_optim_states.pt");
    texts.write("latest", "global_step200");
    texts.write("loss.csv", "1,2");
    assert_eq!(texts.restorable().len(), 2, "a text does not prevent a rewind");
}
