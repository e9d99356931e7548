//! TensorFlow: `P.index` and `P.data-KKKKK-of-NNNNN`, and the state file `checkpoint`, a text proto that names the finished
//! checkpoints: `all_model_checkpoint_paths: "ckpt-10"`.

use std::sync::LazyLock;

use regex::Regex;

use crate::checkpoint::formats::ends;
use crate::checkpoint::formats::units::Case;
use crate::checkpoint::listing::name_of;

/// Checks that the index is whole and that every data file exists.
pub(in crate::checkpoint) fn complete(case: &Case) -> Result<(), String> {
    let path = format!("{}.index", case.unit().key);
    let index = case.file(&path).ok_or_else(|| format!("{path} is not there yet"))?;
    ends::table(case.scan.peek, index).map_err(|why| format!("{}: {why}", index.path))?;
    let shards: Vec<(u32, u32)> = case.files().filter_map(|(_, path)| shard(path)).collect();
    let count = shards.first().map_or(0, |shard| shard.1);
    if shards.iter().any(|shard| shard.1 != count) {
        return Err(format!("{}: its data files disagree about their number", case.unit().path));
    }
    match (0..count.min(1 << 16)).find(|k| !shards.iter().any(|shard| shard.0 == *k)) {
        Some(missing) => Err(format!("{}: data file {missing} of {count} is missing", case.unit().path)),
        None => Ok(()),
    }
}

/// `P.data-00001-of-00004` as `(1, 4)`.
fn shard(path: &str) -> Option<(u32, u32)> {
    let (number, count) = path.rsplit_once(".data-")?.1.split_once("-of-")?;
    Some((number.parse().ok()?, count.parse().ok()?))
}

/// Whether a state file names this checkpoint as finished.
pub(in crate::checkpoint) fn names(text: &str, key: &str) -> bool {
    #[expect(clippy::unwrap_used, reason = "a constant expression, compiled by a test")]
    static PATH: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"\ball_model_checkpoint_paths\s*:\s*"((?:[^"\\]|\\.)*)""#).unwrap());
    let is_it = |path: &str| [key, &escaped(key)].contains(&name_of(path));
    PATH.captures_iter(text).any(|found| found.get(1).is_some_and(|path| is_it(path.as_str())))
}

/// Escapes a string as in a text proto: quotes with a backslash, non-ASCII bytes as octal numbers.
fn escaped(text: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'"' | b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        byte => format!("\\{byte:03o}"),
    };
    text.bytes().map(escaped).collect()
}
