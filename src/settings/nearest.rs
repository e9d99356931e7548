//! The word that was meant, where one was misspelt.

/// `; did you mean X?` when a known word is near.
pub fn hint(word: &str, known: &[&str]) -> String {
    nearest(word, known).map(|k| format!("; did you mean {k}?")).unwrap_or_default()
}

/// The known word that was meant, if one is near.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|k| (distance(word, k), *k)).filter(|(d, k)| *d <= 2.max(k.len() / 4));
    near.min().map(|(_, k)| k)
}

/// Levenshtein distance, in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
