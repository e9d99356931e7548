//! The pointers and copies that manifests of earlier versions list beside their files.

use std::io;
use std::sync::Arc;

use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::Kind;
use crate::rules::store::manifest::{Manifest, Pointer};
use crate::rules::store::plan;

/// Writes them for a commit that is in place. Returns lines for the log. Errors: as open(2), rename(2).
pub(crate) async fn put_names(dir: &Arc<RootedDir>, manifest: &Manifest) -> io::Result<Vec<String>> {
    let (dir, unit) = (Arc::clone(dir), manifest.unit.clone());
    let (pointers, copies) = (manifest.pointers.clone(), manifest.copies.clone());
    blocking(move || {
        let mut lines = Vec::new();
        for path in copies {
            if let Err(error) = copy(&dir, &unit, &path) {
                lines.push(format!(
                    "{unit} is in place, but not under the name {path} as well: {error}; a trainer that looks for it there does not find it"
                ));
            }
        }
        for Pointer { path, content, symlink } in pointers {
            if symlink {
                dir.replace_link(&path, &content)?;
            } else {
                dir.replace(&path, content.as_bytes(), 0o644)?;
            }
        }
        Ok(lines)
    })
    .await
}

/// Copies the unit, which is one file, to another name.
fn copy(dir: &RootedDir, unit: &str, path: &str) -> io::Result<()> {
    let Some(unit) = dir.look(unit)?.filter(|unit| unit.kind == Kind::File) else { return Ok(()) };
    if dir.look(path)?.is_some() {
        return Ok(());
    }
    if dir.free_bytes()? < plan::space_needed(unit.size) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    dir.copy(&unit.path, path, unit.mtime_ns)
}
