//! The nodes whose replicas vote in the root group, as far as a coordinator can know them without
//! trusting any single node.
//!
//! At first all nodes of the configuration but the readers are believed to vote. Another set
//! replaces the believed one when a majority of the believed nodes agrees to it. A node agrees if
//! it names that set, or if it says that it does not vote itself. So a node can take away its own
//! vote, but no other's.

use std::collections::{BTreeMap, BTreeSet};

/// Limits on the number of voters that a replica may name, and on the length of a name.
const VOTERS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 253;

/// The nodes that are believed to vote, and the set that each node named last.
#[derive(Debug)]
pub struct Voters {
    believed: BTreeSet<String>,
    said: BTreeMap<String, BTreeSet<String>>,
}

impl Voters {
    /// Believes that these nodes of the configuration vote.
    pub fn new<'a>(nodes: impl Iterator<Item = &'a str>) -> Self {
        Self { believed: nodes.map(str::to_owned).collect(), said: BTreeMap::new() }
    }

    /// The nodes that are believed to vote.
    pub fn believed(&self) -> &BTreeSet<String> {
        &self.believed
    }

    /// Whether `holds` is true for a majority of the believed nodes.
    pub fn majority(&self, holds: impl Fn(&str) -> bool) -> bool {
        self.believed.iter().filter(|node| holds(node)).count() * 2 > self.believed.len()
    }

    /// Notes which nodes vote, according to `node`, which names none if it hosts no replica of the
    /// group.
    pub fn note(&mut self, node: &str, voters: &[String]) {
        if voters.len() > VOTERS_MAX || voters.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return;
        }
        let voters: BTreeSet<String> = voters.iter().cloned().collect();
        if self.said.get(node) != Some(&voters) {
            self.said.insert(node.to_owned(), voters);
        }
        let agreed = self.said.values().find(|voters| **voters != self.believed && self.is_agreed(voters));
        if let Some(voters) = agreed.cloned() {
            tracing::info!(before = ?self.believed, now = ?voters, "the voters of the root group are others now");
            self.believed = voters;
        }
    }

    fn is_agreed(&self, voters: &BTreeSet<String>) -> bool {
        let agrees = |node: &str| match self.said.get(node) {
            Some(said) => said == voters || !voters.contains(node) && !said.contains(node),
            None => false,
        };
        !voters.is_empty() && self.majority(agrees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn believed(voters: &Voters) -> Vec<&str> {
        voters.believed().iter().map(String::as_str).collect()
    }

    #[test]
    fn hosts_among_more_nodes_are_found_and_followed_when_they_change() {
        let mut voters = Voters::new(["a", "b", "c", "d", "e"].into_iter());
        let hosts = names(&["a", "b", "c"]);
        voters.note("a", &hosts);
        voters.note("d", &[]);
        assert_eq!(believed(&voters).len(), 5, "two of five");
        voters.note("b", &hosts);
        assert_eq!(believed(&voters), ["a", "b", "c"]);
        assert!(voters.majority(|node| node != "c") && !voters.majority(|node| node == "c"));
        // First there is one more voter. Then there is one less, and a voter is silent.
        let (more, less) = (names(&["a", "b", "c", "d"]), names(&["b", "c", "d"]));
        ["b", "c"].iter().for_each(|node| voters.note(node, &more));
        assert_eq!(believed(&voters), ["a", "b", "c", "d"]);
        ["b", "c"].iter().for_each(|node| voters.note(node, &less));
        assert_eq!(believed(&voters), ["a", "b", "c", "d"], "two of four");
        voters.note("d", &less);
        assert_eq!(believed(&voters), ["b", "c", "d"]);
    }

    #[test]
    fn one_node_can_take_away_only_its_own_vote() {
        let mut voters = Voters::new(["a", "b", "c"].into_iter());
        let all = names(&["a", "b", "c"]);
        voters.note("a", &all);
        for lie in [&["c"][..], &[], &["b", "c"], &["c", "x", "y"], &["a"]] {
            voters.note("c", &names(lie));
            assert_eq!(believed(&voters), ["a", "b", "c"], "{lie:?}");
        }
        voters.note("b", &all);
        voters.note("c", &vec![String::new(); VOTERS_MAX + 1]);
        assert_eq!(believed(&voters), ["a", "b", "c"]);
        assert!(!voters.majority(|node| node == "c"));
    }

    #[test]
    fn one_voter_is_enough_where_it_is_the_only_one_and_of_two_both_are_needed() {
        let one = Voters::new(["a"].into_iter());
        assert!(one.majority(|node| node == "a"));
        let two = Voters::new(["a", "b"].into_iter());
        assert!(!two.majority(|node| node == "a") && two.majority(|_| true));
    }
}
