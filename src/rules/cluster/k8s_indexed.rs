//! A Kubernetes Indexed Job: `JOB_COMPLETION_INDEX`, and a number of nodes that somebody must give. Alone the index means
//! an array job, which is its commoner use.

use super::Platform;
use super::input::{Input, count};
use super::spec::{ClusterError, PlatformName, Reading, Warning, role_of_rank};

const NAME: PlatformName = PlatformName("k8s_indexed");

pub(super) const K8S_INDEXED: Platform =
    Platform::of(&[NAME], &["JOB_COMPLETION_INDEX"], "JOB_COMPLETION_INDEX, and --nnodes or TRAINIT_NNODES", read);

/// Reads the index where the world is given.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(nnodes) = &input.options.nnodes else { return Ok(None) };
    let Some(index) = input.rank("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let nodes = count(&nnodes.place, &nnodes.text)?;
    Ok(Some(Reading::of(NAME, role_of_rank(index), index, nodes)))
}
