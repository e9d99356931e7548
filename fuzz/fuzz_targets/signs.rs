//! The counts of launchers that are not read: a number, a range, a list in any form.
#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = trainit_rules::cluster::unread::signs::count(text);
    for name in ["SKYPILOT_NODE_IPS", "SLURM_JOB_NODELIST", "SM_HOSTS", "TPU_WORKER_HOSTNAMES", "PET_NNODES"] {
        shared::resolved(&[(name, text)], None);
    }
});
