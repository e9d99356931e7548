//! How a step is read from a name, and what in a name is none.

use std::sync::LazyLock;

use super::ascii::Pattern;
use super::parts;

/// The step in a file's name, its extension left out, so that the 5 of `.h5` is none. That of `model.ckpt-100` is no
/// extension.
pub(super) fn step_in(name: &str) -> Option<u64> {
    if let Some(one_of) = parts::counted(name) {
        return step_in_stem(one_of.before);
    }
    let is_extension =
        |end: &str| end.bytes().all(|b| b.is_ascii_alphanumeric()) && !end.bytes().all(|b| b.is_ascii_digit());
    match name.rsplit_once('.') {
        Some((stem, extension)) if is_extension(extension) => step_in_stem(stem),
        _ => step_in_stem(name),
    }
}

/// The step in a directory's name or a prefix: what follows the word `step`, else `iter` or `iteration`, else `epoch`,
/// else the last integer. Decimals, powers of ten, dates and ranks are a metric's, a learning rate's, a clock's, a
/// process's.
pub(super) fn step_in_stem(name: &str) -> Option<u64> {
    const WORDS: [&str; 4] = [
        r"(?i-u:step)[=_-]?([0-9]+)",
        r"(?i-u:iter|iteration)[=_-]?([0-9]+)",
        r"(?i-u:epoch)[=_-]?([0-9]+)",
        r"([0-9]+)[^0-9]*$",
    ];
    const OTHERS: &str = concat!(
        r"(?:^|[^0-9])(?:(?:19|20)[0-9]{2}[-_.][0-9]{2}[-_.][0-9]{2}|[0-9]{2}[-.][0-9]{2}[-.](?:19|20)[0-9]{2})",
        r"(?:[T_ .+-]+[0-9]{2}[-_:.h]?[0-9]{2}(?:[-_:.m]?[0-9]{2}(?:\.[0-9]+)?)?",
        r"(?:\+[0-9]{2}(?::?[0-9]{2})?|-[0-9]{2}:[0-9]{2})?)?(?:[^0-9]|$)",
        r"|(?:19|20)[0-9]{6}[T_-][0-9]{4,6}(?:\.[0-9]+)?|(?:^|[^0-9])[0-9]{1,2}h[0-9]{2}(?:m(?:[0-9]{2}s?)?)?(?:[^0-9]|$)",
        r"|[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-][0-9]+",
        r"|(?:^|[^0-9A-Za-z])[0-9]+[eE][0-9]+(?:[^0-9A-Za-z]|$)",
        r"|(?i-u:rank|shard|world_?size)[=_-]?[0-9]+"
    );
    static STEP: LazyLock<[Pattern; 4]> = LazyLock::new(|| WORDS.map(Pattern::new));
    static OTHER: LazyLock<Pattern> = LazyLock::new(|| Pattern::new(OTHERS));
    let name = OTHER.replaced(name, "/");
    let found = STEP.iter().find_map(|step| step.last_groups(&name))?;
    found[1].parse().ok()
}

/// Whether a directory's name says a step: it is a number, alone or before a word for steps (`1000_checkpoint`), or holds such a
/// word and a number (`step-100`, `epoch_3`, `ckpt10`); not that of a model, a run or a day (`llama3-8b`, `exp_1`, `2024-01-02`).
pub(super) fn is_steps(name: &str) -> bool {
    static STEPS: LazyLock<Pattern> = LazyLock::new(|| {
        let words = "step|epoch|ep|iter|iteration|batch|ba|ckpt|checkpoint|save";
        let ended = "(?:[^a-zA-Z0-9]|$)";
        let before = format!("^[0-9]+(?:[_.-]?(?i-u:(?:{words})s?))?$");
        Pattern::new(&format!("{before}|(?:^|[^a-zA-Z])(?i-u:(?:global_?)?(?:{words})s?)[=_.+-]?[0-9]+{ended}"))
    });
    STEPS.is_match(name)
}

/// Whether a name is a day, a time of day or both, as runs are called.
pub(super) fn is_day(name: &str) -> bool {
    static DAY: LazyLock<Pattern> = LazyLock::new(|| {
        let (day, time) = (r"20\d\d[-_]\d\d[-_]\d\d", r"\d\d[-_:.]\d\d[-_:.]\d\d");
        Pattern::new(&format!(r"^(?:{day}|{time}|{day}[ _T-]{time}|20\d{{6}}[_T-]\d{{6}})$"))
    });
    DAY.is_match(name)
}

/// `N` from a name that is exactly `prefixN`.
pub(super) fn number_after(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_follows_the_word_else_the_last_number() {
        for (name, step) in [
            ("epoch=3-step=1200.ckpt", Some(1200)),
            ("step-7", Some(7)),
            ("global_step42", Some(42)),
            ("ckpt-00000010.json", Some(10)),
            ("model_7b_5000.pt", Some(5000)),
            ("weights.0012.h5", Some(12)),
            ("checkpoint.30", Some(30)),
            ("best.pt", None),
            ("model.ckpt-100", Some(100)),
            ("model.txt.snapshot_iter_10", Some(10)),
            ("model.01-0.99.keras", Some(1)),
            ("weights.02-0.50.weights.h5", Some(2)),
            ("sample-mnist-epoch=02-val_loss=0.50.ckpt", Some(2)),
            ("epoch3_acc63.pth", Some(3)),
            ("resnet_epoch3_acc0.63.pth", Some(3)),
            ("checkpoint_2000_lr3e-6.pt", Some(2000)),
            ("iter_500_epoch_2.pth", Some(500)),
            ("model_2024-05-02_00-10.pt", None),
            ("model_20240502-001000.pt", None),
            ("model_20240502_001000.250000.pt", None),
            ("checkpoint_2026-11-26_10-49-30.377960", None),
            ("ckpt_2026-11-26T10:49:30.377960+00:00.pt", None),
            ("ckpt_2026-11-26T10:49:30-05:30", None),
            ("step-7_2026-11-26T10:49:30.377960.pt", Some(7)),
            ("run_2024-05-02_step=7.pt", Some(7)),
            ("ckpt_2024_06_30.pt", None),
            ("ckpt_2024_06_30_23_59_59.pt", None),
            ("ckpt_2024.06.30.pt", None),
            ("ckpt_06-30-2024_23-59.pt", None),
            ("30.06.2024.pt", None),
            ("ckpt_12h59m.pt", None),
            ("ckpt_12h59m07s.pt", None),
            ("2024_06_30_12000.pt", Some(12000)),
            ("model_2000_10_100.pt", Some(100)),
            ("model_8h100_500.pt", Some(500)),
            ("model_1e3.pt", None),
            ("stage2e10.pt", Some(10)),
            ("ckpt_100_rank1.pt", Some(100)),
            ("model_5_world_size_8_rank_7.pt", Some(5)),
            ("model_200_shard_0_of_2.pt", Some(200)),
            ("checkpoint_2_2000-shard1.pt", Some(2000)),
            ("model-00001-of-00002.pt", None),
            ("step_00500_of_01000.pt", Some(500)),
            ("loss=0.50", None),
            ("model.h5", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(step_in(name), step, "{name}");
        }
    }

    #[test]
    fn a_name_says_a_step_or_speaks_of_something_else() {
        let steps = "10 step-100 steps_5 global_step5 epoch_3 ep1-ba20 ckpt10 my-checkpoint-7 epoch=3-step=1200.ckpt";
        assert!(steps.split(' ').all(is_steps));
        for name in ["llama3-8b", "exp_1", "2024-01-02", "12-30-00", "3k2j9x1z", "version_0", "ckpt_v2", "step3k", ""] {
            assert!(!is_steps(name), "{name}");
        }
    }
}
