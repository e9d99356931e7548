//! Launchers that trainit does not read: the variables of each, so that one of its replicas is not silently treated as
//! the only one. To add a launcher, add its line here. A common launcher should get a file of its own and a line in
//! `PLATFORMS`.
//!
//! The names are from each launcher's documentation or source. Deliberately absent: array jobs (an index in
//! `JOB_COMPLETION_INDEX`, `AWS_BATCH_JOB_ARRAY_INDEX`), whose tasks are independent, and slots of a batch system
//! (`LSB_DJOB_NUMPROC`, `NSLOTS`), which are processors.

use crate::cluster::unread::signs::Signs;

/// In the order of checking. The warning is about the first one that names more than one node or process.
pub(in crate::cluster) const UNSUPPORTED: &[Signs] = &[
    // Without a hosts file its tasks are independent.
    Signs {
        launcher: "Google Cloud Batch",
        counts: &["BATCH_TASK_COUNT"],
        places: &["BATCH_TASK_INDEX"],
        leaders: &["BATCH_HOSTS_FILE"],
        also_set: &["BATCH_HOSTS_FILE"],
        ..Signs::NODES
    },
    Signs {
        launcher: "Lepton",
        counts: &["LEPTON_JOB_TOTAL_WORKERS"],
        places: &["LEPTON_JOB_WORKER_INDEX"],
        ..Signs::NODES
    },
    Signs {
        launcher: "NGC Base Command",
        counts: &["NGC_ARRAY_SIZE"],
        places: &["NGC_ARRAY_INDEX"],
        leaders: &["NGC_MASTER_ADDR"],
        ..Signs::NODES
    },
    Signs {
        launcher: "Volcengine",
        counts: &["MLP_WORKER_NUM"],
        places: &["MLP_ROLE_INDEX"],
        leaders: &["MLP_WORKER_0_HOST"],
        ..Signs::NODES
    },
    Signs {
        launcher: "Arnold",
        counts: &["ARNOLD_WORKER_NUM"],
        places: &["ARNOLD_ID"],
        leaders: &["ARNOLD_WORKER_0_HOST"],
        ..Signs::NODES
    },
    Signs {
        launcher: "ModelArts",
        counts: &["MA_NUM_HOSTS"],
        places: &["VC_TASK_INDEX"],
        leaders: &["VC_WORKER_HOSTS"],
        also_set: &["MA_NUM_HOSTS"],
        ..Signs::NODES
    },
    Signs {
        launcher: "Volcano",
        counts: &["VC_*_HOSTS"],
        places: &["VC_TASK_INDEX", "VK_TASK_INDEX"],
        leaders: &["VC_MASTER_HOSTS", "VC_*_HOSTS"],
        also_set: &["VC_*_HOSTS"],
        ..Signs::NODES
    },
    Signs {
        launcher: "Taiji",
        counts: &["HOST_NUM", "NODE_IP_LIST"],
        places: &["INDEX"],
        leaders: &["CHIEF_IP"],
        also_set: &["CHIEF_IP"],
        ..Signs::NODES
    },
    Signs { launcher: "HTCondor", counts: &["_CONDOR_NPROCS"], places: &["_CONDOR_PROCNO"], ..Signs::NODES },
    Signs {
        launcher: "PBS",
        counts: &["PBS_NUM_NODES"],
        node_files: &["PBS_NODEFILE"],
        places: &["PBS_NODENUM"],
        leaders: &["PBS_NODEFILE"],
        ..Signs::NODES
    },
    Signs { launcher: "OAR", node_files: &["OAR_NODEFILE"], leaders: &["OAR_NODEFILE"], ..Signs::NODES },
    Signs {
        launcher: "Cobalt",
        counts: &["COBALT_JOBSIZE"],
        node_files: &["COBALT_NODEFILE"],
        leaders: &["COBALT_NODEFILE"],
        ..Signs::NODES
    },
    Signs {
        launcher: "Grid Engine",
        counts: &["NHOSTS"],
        leaders: &["PE_HOSTFILE"],
        also_set: &["PE_HOSTFILE"],
        ..Signs::NODES
    },
    Signs { launcher: "TorchX", places: &["TORCHX_REPLICA_IDX"], leaders: &["TORCHX_RANK0_HOST"], ..Signs::NODES },
    Signs {
        launcher: "accelerate",
        counts: &["NUM_MACHINES"],
        places: &["MACHINE_RANK"],
        leaders: &["MAIN_PROCESS_IP", "MASTER_ADDR"],
        ..Signs::NODES
    },
    Signs {
        launcher: "PaddlePaddle",
        counts: &["PADDLE_NNODES"],
        places: &["PADDLE_NODE_RANK"],
        leaders: &["PADDLE_MASTER"],
        ..Signs::NODES
    },
    Signs {
        launcher: "jsrun",
        counts: &["JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"],
        places: &["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"],
        ..Signs::PROCESSES
    },
    Signs {
        launcher: "MVAPICH",
        counts: &["MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"],
        places: &["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"],
        ..Signs::PROCESSES
    },
    Signs {
        launcher: "MVAPICH",
        counts: &["MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"],
        places: &["MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_LOCAL_RANK"],
        ..Signs::PROCESSES
    },
    Signs {
        launcher: "PALS",
        counts: &["PALS_SIZE", "PALS_LOCAL_SIZE"],
        places: &["PALS_RANKID", "PALS_NODEID"],
        ..Signs::PROCESSES
    },
    Signs { launcher: "ALPS", places: &["ALPS_APP_PE"], ..Signs::PROCESSES },
    Signs {
        launcher: "Horovod",
        counts: &["HOROVOD_SIZE", "HOROVOD_CROSS_SIZE"],
        places: &["HOROVOD_RANK"],
        leaders: &["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        ..Signs::PROCESSES
    },
    Signs {
        launcher: "PaddlePaddle",
        counts: &["PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS"],
        places: &["PADDLE_TRAINER_ID"],
        leaders: &["PADDLE_TRAINER_ENDPOINTS"],
        ..Signs::PROCESSES
    },
    Signs { launcher: "Ascend", counts: &["RANK_SIZE"], places: &["RANK_ID"], ..Signs::PROCESSES },
    Signs {
        launcher: "MindSpore",
        counts: &["MS_WORKER_NUM"],
        places: &["MS_NODE_ID"],
        leaders: &["MS_SCHED_HOST"],
        ..Signs::PROCESSES
    },
    Signs {
        launcher: "ps-lite",
        counts: &["DMLC_NUM_WORKER"],
        places: &["DMLC_WORKER_ID"],
        leaders: &["DMLC_PS_ROOT_URI"],
        also_set: &["DMLC_PS_ROOT_URI"],
        ..Signs::PROCESSES
    },
    // Its list of devices has a number for each process, which for one process looks like a count.
    Signs {
        launcher: "Neuron",
        places: &["NEURON_PJRT_PROCESS_INDEX"],
        leaders: &["NEURON_RT_ROOT_COMM_ID"],
        ..Signs::PROCESSES
    },
    Signs {
        launcher: "Cloud TPU",
        counts: &["TPU_PROCESS_ADDRESSES"],
        places: &["CLOUD_TPU_TASK_ID"],
        leaders: &["TPU_PROCESS_ADDRESSES"],
        ..Signs::PROCESSES
    },
    // Last, because processes of jsrun or mpirun in its jobs are described better by the launcher's own variables.
    Signs {
        launcher: "LSF",
        counts: &["LSB_MCPU_HOSTS", "LSB_HOSTS"],
        leaders: &["LSB_MCPU_HOSTS", "LSB_HOSTS"],
        ..Signs::NODES
    },
];
