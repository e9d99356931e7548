//! GPUs without NVML: device nodes that can be opened, joined with `/proc/driver/nvidia`.
//!
//! Opening a node can wake the driver, and a faulty driver can block the caller forever, so [`tell`] runs in the probe
//! process. The functions for the main process only check names. Deliberately absent: any judgement.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::unistd::{AccessFlags, access};

use crate::edge::gpu::answer_line::LineWriter;
use crate::rules::gpu::answer::Site;
use crate::rules::gpu::nodes::{join, minor_of, read_information};
use crate::rules::gpu::protocol::Line;

const CONTROL_NODE: &str = "/dev/nvidiactl";
const UVM_NODE: &str = "/dev/nvidia-uvm";
const WSL_NODE: &str = "/dev/dxg";
const DRIVER: &str = "/proc/driver/nvidia";

/// The minor numbers of the existing device nodes, without opening any.
pub(super) fn minors() -> Vec<u32> {
    if !Path::new(CONTROL_NODE).exists() {
        return Vec::new();
    }
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut minors: Vec<u32> = entries.filter_map(|entry| minor_of(entry.file_name().to_str()?)).collect();
    minors.sort_unstable();
    minors
}

/// Whether there are GPUs without the additional device node that CUDA needs.
pub(super) fn lacks_uvm() -> bool {
    !minors().is_empty() && !Path::new(UVM_NODE).exists()
}

/// Facts that are visible without a call to the driver.
pub(super) fn site(named_library: Option<String>, named_probe: bool, uid: u32) -> Site {
    let control_node = [CONTROL_NODE, WSL_NODE].iter().any(|node| Path::new(node).exists());
    let minors = minors();
    let nodes = std::iter::once(CONTROL_NODE.to_owned()).chain(minors.iter().map(|n| format!("/dev/nvidia{n}")));
    let forbidden = |node: &String| {
        Path::new(node).exists() && access(node.as_str(), AccessFlags::R_OK | AccessFlags::W_OK).is_err()
    };
    Site {
        control_node,
        gpu_nodes: minors.len(),
        lacks_uvm: lacks_uvm(),
        module: Path::new(DRIVER).exists(),
        forbidden_node: nodes.into_iter().find(forbidden),
        uid,
        named_library,
        named_probe,
    }
}

/// Reports the GPUs. Only those with a device node count: `/proc` may list GPUs of other containers.
pub(super) fn tell(mut lines: LineWriter) {
    lines.call("open");
    let opens = |minor: &u32| {
        let node = format!("/dev/nvidia{minor}");
        fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(node).is_ok()
    };
    let open: Vec<u32> = minors().into_iter().filter(opens).collect();
    lines.call("read");
    let entries = fs::read_dir(Path::new(DRIVER).join("gpus")).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| fs::read(entry.path().join("information")).ok());
    let known = texts.map(|text| read_information(&String::from_utf8_lossy(&text))).collect();
    for gpu in join(&open, known) {
        lines.write(&Line::Gpu { sampled: false, gpu: Box::new(gpu) });
    }
    lines.write(&Line::End);
}
