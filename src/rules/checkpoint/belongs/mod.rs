//! What belongs to one save: which files, of whatever library, in whatever directory, are parts of the same checkpoint.

mod apart;
pub(super) mod halves;
pub(super) mod hasty;
pub(super) mod notes;
pub(super) mod results;
pub(super) mod roles;
pub(super) mod saved_over;
pub(super) mod second_name;
pub(super) mod siblings;
pub(super) mod strangers;
