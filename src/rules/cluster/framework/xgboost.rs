//! XGBoost: the tracker's address and the worker's number, with DMLC's names. The library does not read the
//! environment; the program passes the values to `collective.init`.
//!
//! A tracker that sorts by task id compares text, so the ids of a large world are zero-padded: 02 comes before 10.

use super::Framework;
use super::vars::{Context, Derived};

pub(super) const XGBOOST: Framework =
    Framework::of("xgboost", &["DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"], derive);

/// The variables of this process or node.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group() else { return derived };
    let Some(rendezvous) = group.rendezvous else { return derived };
    derived.put("DMLC_TRACKER_URI", &rendezvous.host, context.leader_precedence(|leader| leader.host.clone()));
    derived.put("DMLC_TRACKER_PORT", rendezvous.port, context.port_precedence());
    let width = group.world.saturating_sub(1).to_string().len();
    derived.put("DMLC_TASK_ID", format!("{:0width$}", group.rank), context.rank_precedence());
    derived.put("DMLC_NUM_WORKER", group.world, context.world_precedence());
    derived
}

#[cfg(test)]
mod tests {
    use crate::cluster::framework::resolve;
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::ClusterOptions;
    use crate::process::env::Env;

    #[test]
    fn task_ids_sort_as_text_like_their_ranks_as_numbers() {
        let id = |rank: u32, world: u32| {
            let (rank, world) = (rank.to_string(), world.to_string());
            let env = Env::from_pairs([("RANK", rank.as_str()), ("WORLD_SIZE", &world), ("MASTER_ADDR", "m")]);
            let options = ClusterOptions::default();
            let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            resolved.changes().set["DMLC_TASK_ID"].clone()
        };
        for world in [2, 10, 11, 101] {
            let ids: Vec<String> = (0..world).map(|rank| id(rank, world)).collect();
            assert!(ids.is_sorted(), "{ids:?}");
            assert!(ids.iter().zip(0..).all(|(id, rank)| id.parse() == Ok(rank)), "{ids:?}");
        }
        assert_eq!((id(3, 10), id(3, 11)), ("3".to_owned(), "03".to_owned()));
    }
}
