//! What this machine says of itself without asking anybody.

use std::fs;

use crate::rules::preempt::LocalFacts;

/// What tells this boot of this kernel from all others; `None` where it is not shown.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

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
