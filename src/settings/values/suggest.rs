//! Finds the intended name for a misspelt one, or for one that other tools use.

use std::cmp::Reverse;

/// The words of other tools and of everyday speech for a name of ours. The name may be followed by the value that they
/// stand for.
const SYNONYMS: &[(&str, &[&str])] = &[
    ("checkpoint-dir", &["checkpoint", "checkpoints", "ckpt", "ckpt-dir", "save-dir", "output-dir", "save-path"]),
    ("checkpoint-store", &["store", "bucket", "storage", "store-url", "checkpoint-url", "checkpoint-bucket"]),
    ("stop-grace", &["grace", "grace-period", "kill-after", "stop-timeout", "termination-grace-period"]),
    ("max-restarts", &["retries", "max-retries", "restart", "restarts"]),
    ("restore", &["resume", "resume-from"]),
    ("restore-step", &["resume-step"]),
    ("leader HOST:PORT", &["master", "master-addr", "master-port", "port", "coordinator", "rdzv-endpoint", "head"]),
    ("node-rank", &["rank", "machine-rank", "node-id"]),
    ("nnodes", &["world-size", "num-nodes", "nodes", "num-machines", "replicas"]),
    ("nproc", &["nproc-per-node", "num-processes", "gpus-per-node", "ntasks-per-node", "n"]),
    ("require-gpus", &["gpus", "num-gpus", "min-gpus"]),
    ("metric", &["metrics"]),
    ("status-addr", &["listen", "addr", "http", "status-port", "metrics-port", "metrics-addr", "dashboard"]),
    ("log-level debug", &["v", "verbose", "debug", "w", "warn-on-reap"]),
    ("log-level warn", &["q", "quiet"]),
    ("signal-target group", &["g", "kill-process-group", "process-group"]),
    ("signal-target leader", &["c", "single-child"]),
    ("rewrite-signal FROM:TO", &["r", "rewrite"]),
    ("parent-death-signal SIGNAL", &["p"]),
    ("remap-exit CODE:0", &["e"]),
    ("k8s_indexed", &["k8s", "kubernetes", "gke", "eks", "aks", "indexed-job", "jobset"]),
    ("torch_env", &["torch", "pytorch", "pytorchjob"]),
    ("torchelastic", &["torchrun"]),
    ("tf_config", &["tfjob", "tensorflow"]),
    ("vertex", &["vertex-ai", "vertexai", "gcp", "google"]),
    ("aws_batch", &["batch"]),
    ("azureml", &["azure", "azure-ml"]),
];

/// `; did you mean X?` if a known name is near.
pub fn hint(word: &str, known: &[&str]) -> String {
    nearest(word, known).map(|(name, _)| format!("; did you mean {name}?")).unwrap_or_default()
}

/// The known word that equals this one in any case. Errors: all known words.
pub fn one_of<'a>(word: &str, known: &[&'a str]) -> Result<&'a str, String> {
    let found = known.iter().find(|k| k.eq_ignore_ascii_case(word.trim())).copied();
    found.ok_or_else(|| format!("expected one of {}, found {word:?}{}", known.join(", "), hint(word, known)))
}

/// The known name that was probably meant, and the value that the word stands for (` group`), if any: a synonym, else
/// the only name with the same words, else one with nearly the same letters. `None` if that is not certain: a wrong
/// suggestion is worse than none.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<(&'a str, &'static str)> {
    let word = plain(word);
    let find = |name: &str| known.iter().find(|known| plain(known) == plain(name)).copied();
    let synonym = SYNONYMS.iter().filter(|(_, words)| words.contains(&word.as_str())).find_map(|(meant, _)| {
        let (name, value) = meant.split_at(meant.find(' ').unwrap_or(meant.len()));
        find(name).map(|name| (name, value))
    });
    synonym.or_else(|| same_words(&word, known).or_else(|| same_letters(&word, known)).map(|name| (name, "")))
}

/// A name without dashes at its start and without the prefix of variables, in lower case, with dashes between its words.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('-').to_ascii_lowercase().replace('_', "-");
    name.strip_prefix("trainit-").map(str::to_owned).unwrap_or(name)
}

/// The only known name with the most words of this one, if one of the two has all words of the other. A single word of
/// a longer name says too little.
fn same_words<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let words: Vec<&str> = word.split('-').collect();
    let alike = known.iter().filter_map(|name| {
        let all = plain(name);
        let others: Vec<&str> = all.split('-').collect();
        let shared = words.iter().filter(|word| others.contains(word)).count();
        let is_alike = shared == words.len() || shared == others.len() && shared > 1;
        is_alike.then_some((Reverse(shared), words.len().abs_diff(others.len()), *name))
    });
    let mut alike: Vec<_> = alike.collect();
    alike.sort_unstable();
    match alike.as_slice() {
        [(shared, more, _), (next_shared, next_more, _), ..] if (shared, more) == (next_shared, next_more) => None,
        [(_, _, name), ..] => Some(name),
        [] => None,
    }
}

/// The known name that differs in the fewest letters, a third of them at most.
fn same_letters<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|name| (distance(word, &plain(name)), *name));
    near.filter(|(letters, _)| *letters <= (word.chars().count() / 3).min(3)).min().map(|(_, name)| name)
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
    use crate::settings::defs::all;

    fn flag(word: &str) -> Option<String> {
        let known: Vec<&str> = all().map(|setting| setting.name).collect();
        nearest(word, &known).map(|(name, value)| format!("{name}{value}"))
    }

    #[test]
    fn the_words_that_other_tools_use_lead_to_the_flag() {
        for (word, meant) in [
            ("--store", "checkpoint-store"),
            ("--grace", "stop-grace"),
            ("--rank", "node-rank"),
            ("--world-size", "nnodes"),
            ("--nproc_per_node", "nproc"),
            ("--port", "leader HOST:PORT"),
            ("--master_addr", "leader HOST:PORT"),
            ("--save-dir", "checkpoint-dir"),
            ("-v", "log-level debug"),
            ("-g", "signal-target group"),
            ("--single-child", "signal-target leader"),
            ("TRAINIT_GRACE", "stop-grace"),
        ] {
            assert_eq!(flag(word).as_deref(), Some(meant), "{word}");
        }
    }

    #[test]
    fn whole_words_and_then_letters_decide() {
        for (word, meant) in [
            ("stop-gracee", "stop-grace"),
            ("stop_grac", "stop-grace"),
            ("store-checkpoint", "checkpoint-store"),
            ("stop-grace-period", "stop-grace"),
            ("max-restart", "max-restarts"),
            ("checkpoint-dri", "checkpoint-dir"),
        ] {
            assert_eq!(flag(word).as_deref(), Some(meant), "{word}");
        }
        assert_eq!(nearest("rnu", &["env", "run"]), Some(("run", "")), "two swapped letters");
    }

    #[test]
    fn an_uncertain_word_has_no_suggestion() {
        for word in ["dir", "timeout", "heartbeat-file", "learning-rate", "frobnicate", "epochs", "TRAINIT_FOO"] {
            assert_eq!(flag(word), None, "{word}");
        }
    }

    #[test]
    fn each_synonym_stands_for_an_existing_name_and_is_no_name_itself() {
        let platforms = crate::rules::cluster::names().map(|name| name.word());
        let known: Vec<&str> = all().map(|setting| setting.name).chain(platforms).collect();
        for (meant, words) in SYNONYMS {
            let name = meant.split(' ').next().unwrap_or_default();
            assert!(known.contains(&name), "{name}");
            assert!(words.iter().all(|word| !all().any(|setting| setting.name == *word)), "{words:?}");
        }
    }
}
