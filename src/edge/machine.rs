//! What this machine says of itself without asking anybody.

use std::fs;

use crate::rules::preempt::LocalFacts;

/// The firmware's product name; empty where it is not shown.
pub fn local_facts() -> LocalFacts {
    LocalFacts { dmi_product: fs::read_to_string("/sys/class/dmi/id/product_name").unwrap_or_default() }
}
