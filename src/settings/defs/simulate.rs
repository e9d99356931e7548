//! The flags of `trainit simulate`. They have no variable and no key in the configuration file, because those configure
//! the replicas.

use super::{Setting, many, one, switch};

const JOB: &str = "Job";
const FAULTS: &str = "Faults";
const RESULTS: &str = "Results";

/// In the order of `--help`.
pub const SETTINGS: &[Setting] = &[
    one(
        "platform",
        "vertex|k8s_indexed|torch_env|tf_config|slurm|sagemaker",
        JOB,
        0,
        "vertex",
        "The platform whose variables, notices and restarts are imitated (torch_env: PyTorchJob, tf_config: TFJob)",
    )
    .without_variable(),
    one("workers", "N", JOB, 0, "1", "Workers in addition to the chief").without_variable(),
    one("ps", "N", JOB, 0, "0", "Parameter servers").without_variable(),
    one("evaluators", "N", JOB, 0, "0", "Evaluators").without_variable(),
    one("limit", "DURATION", JOB, 0, "10m", "The time limit of the job").without_variable(),
    one("dir", "DIR", JOB, 0, "", "The directory for the job's disks, stores and models; it must be empty [default: a temporary directory, removed at the end]")
        .without_variable(),
    switch("no-checkpoint-dir", JOB, 0, "Set no TRAINIT_CHECKPOINT_DIR and no TRAINIT_CHECKPOINT_STORE").without_variable(),
    many("preempt", "SEAT@TIME", FAULTS, 0, "Announce the end of the replica's machine, and end it after --notice")
        .without_variable(),
    many("kill", "SEAT@TIME", FAULTS, 0, "End the replica's machine without a notice").without_variable(),
    many("freeze", "SEAT@TIME[+DURATION]", FAULTS, 0, "Freeze the replica's machine, for 30s without a DURATION")
        .without_variable(),
    many("hang", "SEAT@TIME", FAULTS, 0, "Stop the processes of the replica's trainer, and not trainit").without_variable(),
    one("random", "N/PERIOD", FAULTS, 0, "", "Random faults, N in each PERIOD on average (2/5m)").without_variable(),
    one("seed", "N", FAULTS, 0, "1", "The seed of the random faults; the same seed gives the same faults").without_variable(),
    one("schedule", "FILE", FAULTS, 0, "", "A file of faults, one on each line: preempt worker-1@40s").without_variable(),
    one("notice", "DURATION", FAULTS, 0, "30s", "The time from a notice to SIGKILL").without_variable(),
    one(
        "notice-by",
        "signal|gce|aws|azure",
        FAULTS,
        0,
        "",
        "Announce by SIGTERM, or by the metadata server of this cloud [default: as the platform does]",
    )
    .without_variable(),
    switch("lose-disk", FAULTS, 0, "A replica that was preempted or killed comes back with an empty disk").without_variable(),
    one("replace-after", "DURATION", FAULTS, 0, "5s", "The time until a replica that has ended is started again")
        .without_variable(),
    switch("compare", RESULTS, 0, "Run the same job again without faults; different results are a failure").without_variable(),
    switch("expect-resume", RESULTS, 0, "Fail unless each replica that lost its disk resumed above step 0, and --compare finds equal results").without_variable(),
    one("tolerance", "SHARE", RESULTS, 0, "0.01", "The share by which equal results may differ").without_variable(),
    one("json", "FILE", RESULTS, 0, "", "Write the report as JSON").without_variable(),
    one("run-report", "FILE", RESULTS, 0, "", "Write the report as a page for a browser").without_variable(),
];
