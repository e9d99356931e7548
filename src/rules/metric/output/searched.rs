//! The processes of a node whose output is searched for metrics (`--metric-rank`).
//!
//! Deliberately absent: ranks on other nodes. Each node's trainit reports the output of its own processes.

/// A selection of processes by local rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Searched {
    /// Local rank 0.
    #[default]
    First,
    /// The highest local rank, which prints under pipeline parallelism.
    Last,
    /// All. Measurements are in the order of the lines, and those without a step are counted together.
    All,
    /// Only this local rank.
    Only(u32),
}

impl Searched {
    /// Reads `first`, `last`, `all` or a local rank. Errors: the expected form.
    pub fn parse(text: &str) -> Result<Searched, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "first" => Ok(Searched::First),
            "last" => Ok(Searched::Last),
            "all" => Ok(Searched::All),
            word => word
                .parse()
                .map(Searched::Only)
                .map_err(|_| format!("expected first, last, all or a local rank such as 1, found {text:?}")),
        }
    }

    /// Whether the selection includes this one of `count` processes.
    pub fn includes(self, local_rank: u32, count: u32) -> bool {
        match self {
            Searched::First => local_rank == 0,
            Searched::Last => local_rank + 1 == count,
            Searched::All => true,
            Searched::Only(rank) => local_rank == rank,
        }
    }

    /// The selection in words, such as `local rank 0`, for `count` processes.
    pub fn shown(self, count: u32) -> String {
        match self {
            Searched::First => "local rank 0".to_owned(),
            Searched::Last => format!("local rank {}", count.saturating_sub(1)),
            Searched::All => "all local ranks".to_owned(),
            Searched::Only(rank) => format!("local rank {rank}"),
        }
    }

    /// Why the selection is empty, if it is.
    pub fn empty_reason(self, count: u32) -> Option<String> {
        let rank = match self {
            Searched::Only(rank) if rank >= count => rank,
            _ => return None,
        };
        Some(format!(
            "local rank {rank} does not exist among the {count} of this node, so no output would be searched for metrics; give one from \
             0 to {}, or first, last or all",
            count.saturating_sub(1)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_a_local_rank_selects_the_searched_output() {
        let of_three = |text: &str| -> Vec<u32> {
            let searched = Searched::parse(text).expect(text);
            (0..3).filter(|rank| searched.includes(*rank, 3)).collect()
        };
        assert_eq!([of_three("first"), of_three("Last"), of_three(" 1")], [[0], [2], [1]]);
        assert_eq!(of_three("all"), [0, 1, 2]);
        assert!(Searched::parse("middle").is_err_and(|e| e.contains("first, last, all")));
    }

    #[test]
    fn a_rank_that_does_not_exist_is_reported() {
        assert!(Searched::Only(3).empty_reason(3).is_some_and(|why| why.contains("from 0 to 2")));
        assert_eq!(Searched::Only(2).empty_reason(3).or(Searched::Last.empty_reason(1)), None);
    }
}
