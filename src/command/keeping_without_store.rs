//! In a build without stores `run` keeps nothing; [`crate::settings::left_out`] has refused whoever asked for it.

use serde_json::{Value, json};

use crate::rules::env::Env;
use crate::rules::framework::Resolved;
use crate::settings::Reader;
use crate::settings::left_out::WHY;
use crate::supervisor::Keep;

pub(super) struct Keeping;

impl Keeping {
    pub(super) fn read(_: &mut Reader<'_>) -> Keeping {
        Keeping
    }

    pub(super) fn look(&mut self, _: &mut Reader<'_>, _: &dyn Fn() -> bool) -> bool {
        true
    }

    pub(super) fn seen(self, _: &Resolved, _: &Env) -> (Value, u8) {
        (json!({ "left_out": WHY }), 0)
    }

    pub(super) fn of_node(self, _: &Resolved, _: &Env) -> Option<Keep> {
        None
    }
}
