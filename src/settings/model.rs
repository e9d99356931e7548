//! The model that a finished job leaves: where the trainer writes it, and where it goes.

use std::path::PathBuf;

use super::Reader;
use crate::rules::checkpoint::address::Address;

/// What was said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Where the trainer writes it.
    pub dir: PathBuf,
    /// Where it goes; `None`: nowhere.
    pub store: Option<Address>,
}

/// Reads the topic; mistakes go to the reader. `None` without a directory.
pub fn read(reader: &mut Reader<'_>) -> Option<Model> {
    let dir = reader.path("model-dir");
    let store = reader.store("model-store");
    if store.is_some() && dir.is_none() {
        let message = "a place for the model needs --model-dir, the directory where the trainer writes it".to_owned();
        reader.complain_of_lack("model-store", message);
    }
    dir.map(|dir| Model { dir, store })
}
