//! PyTorch's distributed checkpoints: rank 0 writes `.metadata` by a rename after every rank has written. It is a pickle that
//! contains the names of the shards as plain text.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::bytes::Regex;

use crate::checkpoint::formats::ends;
use crate::checkpoint::formats::layouts::pattern;
use crate::checkpoint::formats::units::{Case, Scan};
use crate::checkpoint::listing::join;

/// At most this many bytes of the metadata are read.
const METADATA_LIMIT: u64 = 64 << 20;

pub(in crate::checkpoint) fn is_shard(name: &str) -> bool {
    pattern("__<n>_<n>.distcp").is_match(name) || name == ".metadata"
}

/// Checks for Lightning's last file, `meta.pt`: in Lightning's own checkpoints, and if another unit of the root has
/// one.
pub(in crate::checkpoint) fn lightning_metadata(case: &Case) -> Result<(), String> {
    let unit = case.unit();
    let has_meta = |path: &str| case.scan.listing.file(&join(path, "meta.pt")).is_some();
    let is_lightnings = unit.key.ends_with(".ckpt") && (unit.key.contains("step=") || unit.key.starts_with("last"));
    if (is_lightnings || case.root.units.iter().any(|other| has_meta(&other.path))) && !has_meta(&unit.path) {
        return Err(format!("{} is not there yet", join(&unit.path, "meta.pt")));
    }
    Ok(())
}

/// Checks that the metadata exists in this directory, with every shard that it names.
pub(in crate::checkpoint) fn whole(scan: &Scan, home: &str) -> Result<(), String> {
    static SHARD: LazyLock<Regex> = LazyLock::new(|| ends::constant(r"__[0-9]+_[0-9]+\.distcp"));
    let path = join(home, ".metadata");
    let metadata = scan.listing.file(&path).ok_or_else(|| format!("{path} is not there yet"))?;
    if scan.listing.get(&join(home, ".metadata.tmp")).is_some() {
        return Err(format!("{path}.tmp exists: it is being saved again"));
    }
    if metadata.size == 0 {
        return Err(format!("{path} is empty"));
    }
    ends::pickle(scan.peek, metadata).map_err(|why| format!("{path}: {why}"))?;
    let length = metadata.size.min(METADATA_LIMIT) as usize;
    let text = scan.peek.read(&path, 0, length).ok_or_else(|| format!("{path} cannot be read"))?;
    let named: BTreeSet<&[u8]> = SHARD.find_iter(&text).map(|found| found.as_bytes()).collect();
    for name in named {
        let shard = join(home, &String::from_utf8_lossy(name));
        // A rank with nothing to write leaves an empty file, which the metadata does not name.
        if scan.listing.file(&shard).is_none_or(|file| file.size == 0) {
            return Err(format!("{shard} is missing or empty, and {path} names it"));
        }
    }
    Ok(())
}
