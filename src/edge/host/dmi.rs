//! Facts about this machine that need no network request.

use std::fs;

use crate::rules::preempt::LocalFacts;

/// The ID of this boot; `None` if it is not readable.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// The facts of the firmware; empty if they are not readable.
pub fn local_facts() -> LocalFacts {
    let fact = |name: &str| fs::read_to_string(format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
    LocalFacts {
        product_name: fact("product_name"),
        sys_vendor: fact("sys_vendor"),
        bios_version: fact("bios_version"),
        chassis_asset_tag: fact("chassis_asset_tag"),
    }
}
