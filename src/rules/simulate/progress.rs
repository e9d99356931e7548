//! The step and the loss in a line that a trainer prints, in the common forms `step=12 loss=0.5`, `step 12`, `loss: 0.5`;
//! and what trainit's own log lines say.

/// The values in a line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// The step.
    pub step: Option<u64>,
    /// The loss.
    pub loss: Option<f64>,
    /// The generation of the gang.
    pub generation: Option<u64>,
    /// The number of the attempt that trainit starts.
    pub attempt: Option<u64>,
    /// A commit is complete.
    pub is_commit: bool,
}

/// Reads a line. A step counts only together with a loss, because a line about a checkpoint names a step, too.
pub fn read(line: &str) -> Progress {
    let loss = value(line, "loss").and_then(|text| text.parse::<f64>().ok()).filter(|_| !is_own(line));
    let step = value(line, "step").and_then(|text| text.parse().ok()).filter(|_| loss.is_some());
    let generation = value(line, "generation").and_then(|text| text.parse().ok());
    let loss = loss.filter(|_| step.is_some());
    let attempt = value(line, "attempt").and_then(|text| text.parse().ok()).filter(|_| line.contains("started "));
    let is_commit = line.contains("checkpoint committed") || line.contains("checkpoint is safe in the store");
    Progress { step, loss, generation, attempt, is_commit }
}

/// Whether trainit wrote the line: its verdict names the last step and the last loss again.
fn is_own(line: &str) -> bool {
    let is_text = line.get(8..).is_some_and(|rest| rest.starts_with(" trainit: "));
    is_text || line.contains("\"message\":") && line.contains("\"severity\":")
}

/// The number after a word.
fn value<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let found = line.match_indices(word).find_map(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        if before.ends_with(is_part) || after.starts_with(is_part) {
            return None;
        }
        let rest = after.trim_start_matches(['=', ':', ' ', '"', '\'']);
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
        let end = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
        (end > 0).then(|| rest[..end].trim_end_matches('.'))
    });
    found.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_forms_are_read_and_other_lines_are_ignored() {
        let said = |line| (read(line).step, read(line).loss);
        for line in [
            "step=12 loss=0.5",
            "INFO step 12 loss 0.5",
            "step: 12, loss: 0.5.",
            "{\"step\": 12, \"loss\": 0.5}",
            "step=12 loss=5e-1 lr=3",
        ] {
            assert_eq!(said(line), (Some(12), Some(0.5)), "{line}");
        }
        let verdicts = [
            "14:27:39 trainit: finished: the command finished; step 21 (18 a second), committed step 21, loss 0.28",
            "{\"message\":\"finished\",\"severity\":\"INFO\",\"verdict\":{\"metrics\":{\"loss\":0.2},\"step\":5}}",
        ];
        for line in verdicts {
            assert_eq!(said(line), (None, None), "{line}");
        }
        for line in ["checkpoint step=10 file=x", "footstep=12 loss=1", "step=x loss=0.5", "", "done step=12", "loss=2"]
        {
            assert_eq!(said(line), (None, None), "{line}");
        }
        assert_eq!(read("generation 3 of the gang starts").generation, Some(3));
        let own = ["started python [attempt=2 pid=7]", r#"{"message":"started python","trainit":{"attempt":2}}"#];
        assert_eq!(own.map(|line| read(line).attempt), [Some(2); 2]);
        assert!(read("checkpoint committed [step=5]").is_commit && !read("the first commit takes x").is_commit);
    }
}
