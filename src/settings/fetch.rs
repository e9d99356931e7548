//! `--fetch URL=DIR` as types.

use std::path::{Path, PathBuf};

use super::Reader;
use super::values::reader::{expanded, local, unquoted};
use crate::rules::process::env::Env;
use crate::rules::store::address::Nearness;
use crate::rules::store::fetch::source::Source;

/// A source of training data, and the directory for them.
#[derive(Debug, Clone)]
pub struct Fetching {
    /// The source.
    pub source: Source,
    /// The directory; absolute.
    pub dir: PathBuf,
}

/// Reads all sources. Mistakes are collected in the reader.
pub fn read(reader: &mut Reader<'_>, env: &Env) -> Vec<Fetching> {
    let fetches = reader.each("fetch", |text| pair(text, env));
    let dirs: Vec<&Path> = fetches.iter().map(|fetch| fetch.dir.as_path()).collect();
    let within = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
    for (at, dir) in dirs.iter().enumerate() {
        if let Some(other) = dirs[..at].iter().find(|other| within(other, dir)) {
            let message = format!(
                "{} and {} overlap, so files of one fetch would replace those of the other; choose separate directories",
                other.display(),
                dir.display()
            );
            reader.complain("fetch", message);
        }
        let checkpoints = reader.text("checkpoint-dir").map(PathBuf::from);
        if let Some(checkpoints) = checkpoints.filter(|checkpoints| within(checkpoints, dir)) {
            let message = format!(
                "{} and the checkpoint directory {} overlap, so the data would be committed as checkpoints; choose separate directories",
                dir.display(),
                checkpoints.display()
            );
            reader.complain("fetch", message);
        }
    }
    fetches
}

/// Splits the pair at the last `=/`, because `=` is common in names of partitions (`year=2026`). Errors: what was
/// expected, without secrets.
fn pair(text: &str, env: &Env) -> Result<Fetching, String> {
    let Some(at) = unquoted(text)?.trim().rfind("=/") else {
        return Err("expected URL=DIR with an absolute directory, such as gs://bucket/data=/data".to_owned());
    };
    let (url, dir) = text.trim().split_at(at);
    let dir: PathBuf = local(&dir[1..])?.components().collect();
    if dir.components().any(|part| part.as_os_str() == "..") {
        return Err(format!("expected a directory without .., found {}", dir.display()));
    }
    let source = match variable(url) {
        Some(name) => {
            let value = env.given(name).ok_or_else(|| {
                format!("the variable {name} is not set, so there is no URL to fetch from; set it, or write the URL")
            })?;
            Source::parse(value.trim()).map_err(|why| format!("the variable {name}: {why}"))?
        }
        None => Source::parse(expanded(url)?)?,
    };
    if source.address.nearness(&dir, &Path::to_path_buf) != Nearness::Apart {
        return Err(source.address.nested("the data in", &dir, "they would be fetched into themselves"));
    }
    Ok(Fetching { source, dir })
}

/// `NAME` for `$NAME`, `${NAME}` and `$(NAME)`, which no shell has expanded: a platform gives the URL in a variable, and an
/// ENTRYPOINT in JSON has no shell.
fn variable(url: &str) -> Option<&str> {
    let rest = url.strip_prefix('$')?;
    let bare = |open, close| rest.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    let name = bare('{', '}').or_else(|| bare('(', ')')).unwrap_or(rest);
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::super::Values;
    use super::super::defs::on;
    use super::*;

    fn read_all(texts: &[&str], env: &[(&str, &str)]) -> (Vec<String>, String) {
        let env = Env::from_pairs(env.iter().copied());
        let flags = [("fetch", texts.iter().map(|text| (*text).to_owned()).collect())];
        let mut complaints = Vec::new();
        let values = Values::gather(on::RUN, flags.into_iter().collect(), &env, None, &mut complaints);
        let mut reader = Reader::new(&values, complaints);
        let read = read(&mut reader, &env);
        let read = read.iter().map(|fetch| format!("{} {}", fetch.source, fetch.dir.display())).collect();
        (read, reader.complaints.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn a_pair_is_divided_at_its_last_equals_sign_before_a_slash() {
        let texts = ["gs://b/year=2026/x=/data/a/", "file:///srv/d=/data/b", "s3://b/a*=/data/c"];
        let (read, complaints) = read_all(&texts, &[]);
        assert_eq!((read.len(), complaints.as_str()), (3, ""));
        assert_eq!(read[0], "gs://b/year=2026/x /data/a");
        assert_eq!(read[2], "s3://b/a* /data/c");
    }

    #[test]
    fn a_url_may_be_that_of_a_variable() {
        let env = [("AIP_TRAINING_DATA_URI", "gs://b/d/training-*")];
        for url in ["$AIP_TRAINING_DATA_URI", "${AIP_TRAINING_DATA_URI}", "$(AIP_TRAINING_DATA_URI)"] {
            assert_eq!(read_all(&[&format!("{url}=/d")], &env).0, ["gs://b/d/training-* /d"]);
        }
        assert!(read_all(&["$AIP_TRAINING_DATA_URI=/d"], &[]).1.contains("AIP_TRAINING_DATA_URI is not set"));
        let table = [("AIP_TRAINING_DATA_URI", "bq://project.data.table")];
        assert!(read_all(&["$AIP_TRAINING_DATA_URI=/d"], &table).1.contains("unknown scheme \"bq\""));
    }

    #[test]
    fn every_mistake_is_reported_without_a_secret() {
        for (texts, expected) in [
            (&["gs://b/data"][..], "expected URL=DIR"),
            (&["gs://b/data=data"], "absolute directory"),
            (&["=/data"], "expected a URL"),
            (&["gs://b=/data/../x"], "without .."),
            (&["https://b.example/x?sig=hunter2=/data"], "AWS_ENDPOINT_URL"),
            (&["s3://AKIA:hunter2@b/x=/data"], "no user or key"),
            (&["file:///data=/data/in"], "fetched into themselves"),
            (&["gs://b=/data", "gs://c=/data/c"], "overlap"),
            (&["gs://b/$JOB=/data"], "\"JOB\""),
        ] {
            let (_, complaints) = read_all(texts, &[]);
            assert!(complaints.contains(expected) && !complaints.contains("hunter2"), "{texts:?}: {complaints}");
        }
        let with_checkpoints = read_all(&["gs://b=/data"], &[("TRAINIT_CHECKPOINT_DIR", "/data/checkpoints")]).1;
        assert!(with_checkpoints.contains("checkpoint directory"), "{with_checkpoints}");
    }
}
