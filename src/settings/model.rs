//! The settings for the finished model: where the trainer writes it, and where it is copied.

use std::path::PathBuf;

use super::Reader;
use crate::rules::store::address::Address;

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Where the trainer writes it.
    pub dir: PathBuf,
    /// The store it is copied to; `None`: it is not copied.
    pub store: Option<Address>,
}

/// Reads the topic. Mistakes are collected in the reader. `None` without a directory.
pub fn read(reader: &mut Reader<'_>) -> Option<Model> {
    let dir = reader.path("model-dir");
    let store = reader.store("model-store");
    if store.is_some() && dir.is_none() {
        let message = "it needs --model-dir, the directory where the trainer writes the model".to_owned();
        reader.complain_of_missing("model-store", message);
    }
    dir.map(|dir| Model { dir, store })
}
