//! Finds the intended word for a misspelt one.

use std::cmp::Reverse;

/// `; did you mean X?` if a known word is near.
pub fn hint(word: &str, known: &[&str]) -> String {
    nearest(word, known).map(|k| format!("; did you mean {k}?")).unwrap_or_default()
}

/// The known word that equals this one in any case. Errors: all known words.
pub fn one_of<'a>(word: &str, known: &[&'a str]) -> Result<&'a str, String> {
    let found = known.iter().find(|k| k.eq_ignore_ascii_case(word.trim())).copied();
    found.ok_or_else(|| format!("expected one of {}, found {word:?}{}", known.join(", "), hint(word, known)))
}

/// The known word that was probably meant: a similar one, or else one with a common part (`grace` for `stop-grace`).
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|k| (distance(word, k), *k)).filter(|(d, k)| *d <= 2.max(k.len() / 4));
    let alike = || {
        let alike = known.iter().map(|k| (shared(word, k), *k)).filter(|(shared, _)| *shared > 0);
        alike.min_by_key(|(shared, k)| (Reverse(*shared), distance(word, k))).map(|(_, k)| k)
    };
    near.min().map(|(_, k)| k).or_else(alike)
}

/// The number of common parts of two names, without trainit's prefix and common words.
fn shared(a: &str, b: &str) -> usize {
    let parts = |name| str::split(name, ['-', '_']).filter(|part| part.len() > 3 && *part != "TRAINIT");
    parts(a).filter(|part| parts(b).any(|other| other == *part)).count()
}

/// Levenshtein distance in characters; two swapped neighbours count as one mistake.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (mut before, mut row): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut least = (row[j] + usize::from(x != y)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        (before, row) = (row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_or_similar_name_is_matched() {
        let known = ["stop-grace", "max-restarts", "restart-backoff", "checkpoint-dir", "checkpoint-store"];
        for (word, meant) in [
            ("grace", Some("stop-grace")),
            ("grace-period", Some("stop-grace")),
            ("restarts", Some("max-restarts")),
            ("store-checkpoint", Some("checkpoint-store")),
            ("checkpoint", Some("checkpoint-dir")),
            ("stop-gracee", Some("stop-grace")),
            ("dir", None),
            ("learning-rate", None),
        ] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
        assert_eq!(
            nearest("TRAINIT_GRACE", &["TRAINIT_GPU_TIMEOUT", "TRAINIT_STOP_GRACE"]),
            Some("TRAINIT_STOP_GRACE")
        );
        assert_eq!(nearest("rnu", &["env", "run"]), Some("run"), "two swapped letters");
        assert_eq!(nearest("TRAINIT_FOO", &["TRAINIT_STOP_GRACE"]), None);
    }
}
