//! A simulated cluster: real `Replica`s and the real `Cluster` under a virtual clock, with a network that loses, delays,
//! duplicates and reorders messages (also beyond the session timeout), disks that forget what was not flushed, processes that
//! die, pause and return, and controllers that fail over. A seed decides everything; the same seed gives the same trace.
//! After every step the invariants of the replication document hold, or the run panics and names the one that does not.

mod broker;
mod calm;
mod chaos;
mod client;
mod controller;
mod follow;
mod ghost;
mod message;
mod network;
mod plan;
mod serve;
mod shell;
mod trace;
mod world;

use world::World;

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened: the same seed gives the same.
    pub trace: u64,
    /// How many things happened.
    pub steps: u64,
    /// Batches acknowledged with acks=all.
    pub acked: u64,
    /// Leaders that began a term.
    pub terms: u64,
    /// Elections that may have lost records.
    pub unclean: u64,
    /// Cuts of diverged suffixes.
    pub truncations: u64,
    /// Logs dropped and begun again.
    pub restarts_over: u64,
    /// ISR changes committed for leaders.
    pub isr_changes: u64,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.trace ^= other.trace;
        self.steps += other.steps;
        self.acked += other.acked;
        self.terms += other.terms;
        self.unclean += other.unclean;
        self.truncations += other.truncations;
        self.restarts_over += other.restarts_over;
        self.isr_changes += other.isr_changes;
    }
}

/// Runs one seed to its end. Panics on the first broken invariant. `verbose` prints the trace as it happens.
pub fn run(seed: u64, verbose: bool) -> Report {
    World::new(seed, verbose).run()
}
