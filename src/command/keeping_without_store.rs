//! In a build without stores `run` keeps nothing; [`crate::settings::left_out`] has refused whoever asked for it.

use crate::rules::env::Env;
use crate::settings::Reader;
use crate::supervisor::Keep;

pub(super) struct Keeping;

impl Keeping {
    pub(super) fn read(_: &mut Reader<'_>) -> Keeping {
        Keeping
    }

    pub(super) fn of_node(self, _: Option<u32>, _: Option<u32>, _: &Env) -> Option<Keep> {
        None
    }
}
