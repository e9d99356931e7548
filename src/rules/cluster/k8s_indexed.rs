//! A Kubernetes Indexed Job: `JOB_COMPLETION_INDEX`, and a number of nodes that somebody must give. Alone the index means
//! an array job, which is its commoner use.

use super::Source;
use super::input::{Input, count};
use super::spec::{ClusterError, Platform, Reading, Warning, role_of_rank};

pub(super) const K8S_INDEXED: Source = Source::of(
    &[Platform::K8sIndexed],
    &["JOB_COMPLETION_INDEX"],
    "JOB_COMPLETION_INDEX, and --nnodes or TRAINIT_NNODES",
    read,
);

/// Reads the index where the world is given.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(nnodes) = &input.options.nnodes else { return Ok(None) };
    let Some(index) = input.rank("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let nodes = count(&nnodes.place, &nnodes.text)?;
    Ok(Some(Reading::of(Platform::K8sIndexed, role_of_rank(index), index, nodes)))
}
