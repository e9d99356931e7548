//! The launchers with a number of nodes, a rank and a leader, one value on each line; a missing line is a variable that is not
//! set.
#![no_main]

mod shared;

const LAUNCHERS: [[&str; 3]; 5] = [
    ["SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS"],
    ["DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP"],
    ["MF_PARALLEL_NUM_NODES", "MF_PARALLEL_NODE_INDEX", "MF_PARALLEL_MAIN_IP"],
    ["BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK", "BEAKER_LEADER_REPLICA_HOSTNAME"],
    ["LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"],
];

libfuzzer_sys::fuzz_target!(|text: &str| {
    for names in LAUNCHERS {
        let pairs: Vec<(&str, &str)> = names.into_iter().zip(text.lines()).collect();
        shared::resolved(&pairs, None);
    }
});
