//! Which brokers get the replicas of a new partition: striped over the live brokers, racks alternating, so that leaders and
//! followers of one topic spread evenly. The same image gives the same placement.

use std::collections::BTreeMap;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;
use epoka_proto::metadata::Image;

use super::commands::Refusal;

/// Brokers to place replicas on.
pub(super) struct Placement {
    /// In an order in which neighbours are in different racks where possible.
    active: Vec<BrokerId>,
    /// Registered, but not live: take replicas only when the live ones do not suffice.
    inactive: Vec<BrokerId>,
    /// Where the stripes begin: grows with the cluster, so that topics of one partition do not all land on one broker.
    start: usize,
}

impl Placement {
    pub(super) fn new(image: &Image) -> Self {
        let of = |wanted: bool| {
            let mut racks: BTreeMap<Option<&str>, Vec<BrokerId>> = BTreeMap::new();
            for b in image.brokers.values().filter(|b| b.is_active() == wanted) {
                racks.entry(b.rack.as_deref()).or_default().push(b.id);
            }
            alternate(racks.into_values().collect())
        };
        Self {
            active: of(true),
            inactive: of(false),
            start: image.topics.values().map(|t| t.partitions.len()).sum(),
        }
    }

    /// Refuses a replication factor that the registered brokers cannot meet.
    pub(super) fn check(&self, replication_factor: usize) -> Result<(), Refusal> {
        let registered = self.active.len() + self.inactive.len();
        let message = if registered < replication_factor {
            format!(
                "the target replication factor of {replication_factor} cannot be reached because only {registered} \
                 broker(s) are registered"
            )
        } else if self.active.is_empty() {
            "all brokers are currently fenced".to_owned()
        } else {
            return Ok(());
        };
        Err(Refusal::new(ErrorCode::InvalidReplicationFactor, message))
    }

    /// The replicas of the `index`th partition placed. The replication factor must have passed `check`.
    pub(super) fn replicas(&self, index: usize, replication_factor: usize) -> Vec<BrokerId> {
        let turn = self.start + index;
        let mut replicas = stripe(&self.active, turn, replication_factor);
        let missing = replication_factor - replicas.len();
        replicas.extend(stripe(&self.inactive, turn, missing));
        replicas
    }
}

/// Takes from each list in turn.
fn alternate(lists: Vec<Vec<BrokerId>>) -> Vec<BrokerId> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|at| lists.iter().filter_map(move |list| list.get(at).copied()))
        .collect()
}

/// Up to `count` brokers: the first moves on by one each turn; the distance to the others grows by one each round, so that
/// the followers of one leader's partitions spread as well.
fn stripe(brokers: &[BrokerId], turn: usize, count: usize) -> Vec<BrokerId> {
    let n = brokers.len();
    let Some(others) = n.checked_sub(1) else {
        return Vec::new();
    };
    let (round, first) = (turn / n, turn % n);
    let follower = |j: usize| (first + 1 + (round + j) % others) % n;
    let followers = (0..others).map(follower);
    let picked = std::iter::once(first).chain(followers).take(count);
    picked.map(|at| brokers[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().map(|&n| BrokerId(n)).collect()
    }

    #[test]
    fn leaders_and_followers_spread_evenly() {
        let brokers = ids(&[1, 2, 3]);
        let placed: Vec<_> = (0..6).map(|turn| stripe(&brokers, turn, 2)).collect();
        let expected = [[1, 2], [2, 3], [3, 1], [1, 3], [2, 1], [3, 2]];
        assert_eq!(placed, expected.map(|p| ids(&p)));
        assert_eq!(stripe(&ids(&[7]), 5, 3), ids(&[7]));
        assert_eq!(stripe(&[], 5, 3), ids(&[]));
    }

    #[test]
    fn racks_alternate() {
        let lists = vec![ids(&[1, 2, 3]), ids(&[4]), ids(&[5, 6])];
        assert_eq!(alternate(lists), ids(&[1, 4, 5, 2, 6, 3]));
    }

    #[test]
    fn every_replica_of_a_partition_is_on_another_broker() {
        let brokers = ids(&[1, 2, 3, 4, 5]);
        for turn in 0..40 {
            for count in 0..=5 {
                let mut picked = stripe(&brokers, turn, count);
                picked.sort();
                picked.dedup();
                assert_eq!(picked.len(), count, "turn {turn}");
            }
        }
    }
}
