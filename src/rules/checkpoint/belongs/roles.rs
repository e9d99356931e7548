//! Names that say what of a save is in a file, and no step: `model.pt` and `optimizer.pt`, `latest_net_G.pth` and
//! `latest_net_D.pth`. What such names say beside those words is the same in all files of one save.

use crate::rules::checkpoint::listing::stem_of;

/// What a file is to its save, what is loaded first at the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Role {
    /// A model, or one of several.
    Model,
    /// Some state, of whatever it is.
    Some,
    /// What a model is trained with, and is nothing alone.
    Beside,
}

const MODELS: &str = "model net network module weights params policy pi actor critic value vf q qf qnet g d netg netd gen disc \
     generator discriminator encoder decoder enc dec head backbone classifier adapter lora unet vae student teacher reward \
     value projector predictor";
const BESIDE: &str = "optimizer optimizers optim optims opt opts optg optd optimg optimd optimizerg optimizerd scheduler \
     schedulers sched lrscheduler scaler rng ema target buffer replay args config \
     normalizer normalizers rms dataloader sampler criterion";
/// What an entropy is weighed with, where no model is called so: `log_alpha`, `ent_coef_optimizer`.
const COEFFICIENTS: &str = "alpha temperature ent entropy coef";
const STATES: &str = "state states";
/// These say more of another word, and nothing alone.
const FILLERS: &str = "lr dict random trainer training train text image vision audio log obs function";
/// What is saved over is called so, a part as well as a checkpoint in itself.
const NEWEST: &str = "last latest newest recent current";
/// These are in the name of what is a checkpoint in itself.
const WHOLES: &str = "best final finished checkpoint checkpoints ckpt ckpts snapshot snapshots \
     save saved autosave resume restart recovery backup pretrained init initial preempt preempted preemption emergency \
     interrupt interrupted sigterm crash";
/// Of these there are two and more: `q1`, `critic_2`, `G_A2B`.
const TWINS: &str = "q qf qnet critic vf value";
const DOMAINS: &str = "a b ab ba a2b b2a";

fn is_in(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// What a file's name says, its extension left out.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Said {
    /// `None`: no word for a part is in it.
    pub(in super::super) role: Option<Role>,
    /// The name without those words.
    pub(in super::super) rest: String,
    /// Whether what looks like a step only tells one part from its twin.
    pub(super) is_twin: bool,
    /// Whether it may be a checkpoint in itself: it is called so, or has a number besides.
    pub(super) may_be_whole: bool,
}

impl Said {
    pub(super) fn by(name: &str) -> Said {
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix(".tar").unwrap_or(&name);
        let stem = stem_of(name);
        let has_number = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
        let words: Vec<&str> = stem.split(['_', '-', '.', ' ']).collect();
        let (role, rest) = (role(&words), rest(&words));
        let is_twin = role.is_some() && has_number(stem) && !has_number(&rest);
        let says_whole = |word: &&str| is_in(WHOLES, word) || role != Some(Role::Beside) && is_in(NEWEST, word);
        let may_be_whole = has_number(&rest) || words.iter().any(says_whole);
        Said { role, is_twin, may_be_whole, rest }
    }
}

fn role(words: &[&str]) -> Option<Role> {
    let has = |known: &str| words.iter().any(|word| is_in(known, word) || is_in(known, untwinned(word)));
    match () {
        () if has(BESIDE) => Some(Role::Beside),
        () if has(MODELS) => Some(Role::Model),
        () if has(COEFFICIENTS) => Some(Role::Beside),
        () => has(STATES).then_some(Role::Some),
    }
}

fn rest(words: &[&str]) -> String {
    let is_of_a_model = words.iter().any(|word| is_in(MODELS, word));
    let is_said = |(at, word): (usize, &&str)| {
        let before = &words[..at];
        let is_number = word.len() == 1 && word.bytes().all(|byte| byte.is_ascii_digit());
        [MODELS, BESIDE, STATES, FILLERS].iter().any(|known| is_in(known, word))
            || !is_of_a_model && is_in(COEFFICIENTS, word)
            || untwinned(word) != *word
            || is_number && before.iter().rfind(|word| **word != "target").is_some_and(|word| is_in(TWINS, word))
            || is_in(DOMAINS, word) && before.last().is_some_and(|word| *word != "model" && is_in(MODELS, word))
    };
    let left: Vec<&str> =
        words.iter().enumerate().filter(|(at, word)| !is_said((*at, word))).map(|(_, w)| *w).collect();
    left.join("_")
}

/// `qf` of `qf1`.
fn untwinned(word: &str) -> &str {
    let one = word.strip_suffix(|c: char| c.is_ascii_digit());
    one.filter(|one| is_in(TWINS, one)).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str) -> (Option<Role>, String) {
        let said = Said::by(name);
        (said.role, said.rest)
    }

    #[test]
    fn a_name_without_the_words_for_a_part_is_what_a_save_has_in_common() {
        for (name, role, rest) in [
            ("model.pt", Some(Role::Model), ""),
            ("pytorch_model.pth.tar", Some(Role::Model), "pytorch"),
            ("latest_net_G_A.pth", Some(Role::Model), "latest"),
            ("netG_B2A.pth", Some(Role::Model), ""),
            ("decoder_B.h5", Some(Role::Model), ""),
            ("last_model_state_dict.pt", Some(Role::Model), "last"),
            ("critic_target_2.pt", Some(Role::Beside), ""),
            ("qf1.pt", Some(Role::Model), ""),
            ("actor-best-0.93.pt", Some(Role::Model), "best_0_93"),
            ("lr_scheduler.last.pt", Some(Role::Beside), "last"),
            ("random_states.pkl", Some(Role::Some), ""),
            ("training_state.pt", Some(Role::Some), ""),
            ("last.pt", None, "last"),
            ("checkpoint_last.pt", None, "checkpoint_last"),
            ("train.pt", None, ""),
            ("model_b.pt", Some(Role::Model), "b"),
            ("critic_best_0.93.pt", Some(Role::Model), "best_0_93"),
            ("model_v2.pt", Some(Role::Model), "v2"),
            ("model1.pt", None, "model1"),
            ("log_alpha.pt", Some(Role::Beside), ""),
            ("alpha_optimizer.pt", Some(Role::Beside), ""),
            ("log_ent_coef.pt", Some(Role::Beside), ""),
            ("temperature_optim.pt", Some(Role::Beside), ""),
            ("obs_rms.pt", Some(Role::Beside), ""),
            ("reward_normalizer.pt", Some(Role::Beside), ""),
            ("value_function.pt", Some(Role::Model), ""),
            ("model_alpha.pt", Some(Role::Model), "alpha"),
        ] {
            assert_eq!(said(name), (role, rest.to_owned()), "{name}");
        }
    }

    #[test]
    fn what_may_be_a_checkpoint_in_itself_is_called_so_or_numbered() {
        let wholes =
            ["last.pt", "model_best.pt", "Checkpoint.pth.tar", "my-ckpt.pt", "interrupted.pt", "vocab_v2.pt", "a20.pt"];
        assert!(wholes.iter().all(|name| Said::by(name).may_be_whole));
        let parts = ["losses.pt", "losses.ckpt", "q1.pt", "critic_2.pt", "lasting.pt", "muon_optimizer.pt"];
        assert!(!parts.iter().any(|name| Said::by(name).may_be_whole));
    }

    #[test]
    fn a_number_that_tells_twins_apart_is_told_from_a_step() {
        assert!(["q1.pt", "critic_2.pt", "target_qf2.pt", "netG_A2B.pth"].iter().all(|name| Said::by(name).is_twin));
        let steps = ["model_1.pt", "critic_2_100.pt", "critic_20.pt", "q10.pt", "actor.pt", "encoder_1.pt"];
        assert!(!steps.iter().any(|name| Said::by(name).is_twin));
    }
}
