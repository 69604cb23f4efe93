//! What kind of run a seed makes: each draws its own weather, so that some runs are all crashes and others all delays.

use epoka_proto::ids::Millis;
use rand::Rng;
use rand::rngs::SmallRng;

/// The parameters of one run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) brokers: usize,
    pub(super) partitions: usize,
    pub(super) replication_factor: i32,
    pub(super) min_isr: usize,
    /// Whether the topic allows unclean elections.
    pub(super) unclean: bool,
    pub(super) lag_ms: Millis,
    pub(super) session_ms: Millis,
    pub(super) chaos_ms: Millis,
    /// Mean time between two acts of chaos.
    pub(super) chaos_every_ms: Millis,
    /// Probabilities of a message's fates.
    pub(super) loss: f64,
    pub(super) duplicate: f64,
    pub(super) late: f64,
    /// Mean time between a producer's batches.
    pub(super) produce_every_ms: Millis,
    /// A broker that does not return when the others do: the calm must come without it.
    pub(super) stays_away: Option<usize>,
    /// Weights of the acts of chaos, in the order of `chaos::Act::ALL`.
    pub(super) weights: Vec<u32>,
}

impl Plan {
    pub(super) fn draw(rng: &mut SmallRng, acts: usize) -> Self {
        let brokers = if rng.random_bool(0.2) { 4 } else { 3 };
        let replication_factor = if rng.random_bool(0.15) { 2 } else { 3 };
        let stormy = |rng: &mut SmallRng, most: f64| {
            if rng.random_bool(0.3) {
                0.0
            } else {
                rng.random_range(0.0..most)
            }
        };
        let gentle = rng.random_bool(0.4);
        Self {
            brokers,
            partitions: 3,
            replication_factor,
            min_isr: rng.random_range(1..=2),
            unclean: rng.random_bool(0.1),
            lag_ms: rng.random_range(800..3000),
            session_ms: rng.random_range(600..2500),
            chaos_ms: rng.random_range(4_000..14_000),
            chaos_every_ms: if gentle {
                rng.random_range(700..3000)
            } else {
                rng.random_range(60..700)
            },
            loss: stormy(rng, 0.08),
            duplicate: stormy(rng, 0.10),
            late: stormy(rng, 0.03),
            produce_every_ms: rng.random_range(20..160),
            stays_away: rng.random_bool(0.2).then(|| rng.random_range(0..brokers)),
            weights: (0..acts)
                .map(|_| {
                    if rng.random_bool(0.25) {
                        0
                    } else {
                        rng.random_range(1..10)
                    }
                })
                .collect(),
        }
    }
}
