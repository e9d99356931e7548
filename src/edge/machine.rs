//! What this machine says of itself without asking anybody.

use std::fs;

use crate::rules::preempt::LocalFacts;

/// What the firmware says; empty where it is not shown.
pub fn local_facts() -> LocalFacts {
    let fact = |name: &str| fs::read_to_string(format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
    LocalFacts {
        product_name: fact("product_name"),
        sys_vendor: fact("sys_vendor"),
        bios_version: fact("bios_version"),
        chassis_asset_tag: fact("chassis_asset_tag"),
    }
}
