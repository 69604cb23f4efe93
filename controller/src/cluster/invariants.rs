//! What must hold of the metadata after every command: invariants I-1, I-2 and I-18. For tests and simulations, which call
//! it after each step.

use epoka_proto::metadata::Image;

/// The invariants that the change from one image to the next breaks, as sentences; empty when all is well.
pub fn broken_invariants(before: &Image, after: &Image) -> Vec<String> {
    let mut broken = Vec::new();
    for (id, topic, now) in after.partitions() {
        let mut say =
            |what: String| broken.push(format!("{}-{}: {what}", topic.name, id.partition));
        if now.leader.is_some_and(|l| !now.isr.contains(&l)) {
            say(format!(
                "I-1: leader {:?} is not in ISR {:?}",
                now.leader, now.isr
            ));
        }
        if let Some(then) = before.assignment(id) {
            let epochs =
                |a: &epoka_proto::metadata::Assignment| (a.leader_epoch, a.partition_epoch);
            if now.leader_epoch < then.leader_epoch || now.partition_epoch < then.partition_epoch {
                say(format!(
                    "I-2: epochs {:?} -> {:?}",
                    epochs(then),
                    epochs(now)
                ));
            }
            let silent_change = now.partition_epoch == then.partition_epoch && now != then;
            let same_term = now.leader_epoch == then.leader_epoch;
            if silent_change || same_term && now.leader != then.leader {
                say(format!("C-3: {then:?} -> {now:?}"));
            }
        }
        let active = |r| after.brokers.get(r).is_some_and(|b| b.is_active());
        if !now.isr.iter().all(active) {
            say(format!(
                "I-18: ISR {:?} has a member that is not active",
                now.isr
            ));
        }
        if now.isr.iter().any(|r| now.elr.contains(r)) {
            say(format!(
                "I-18: ISR {:?} and ELR {:?} meet",
                now.isr, now.elr
            ));
        }
        if now.isr.iter().any(|r| now.offline.contains(r)) {
            say(format!(
                "ISR {:?} has a member that is offline: {:?}",
                now.isr, now.offline
            ));
        }
        let mut members = now.isr.iter().chain(&now.elr).chain(&now.offline);
        if !members.all(|r| now.replicas.contains(r)) {
            say(format!(
                "I-18: ISR {:?}, ELR {:?} or offline {:?} beyond {:?}",
                now.isr, now.elr, now.offline, now.replicas
            ));
        }
        if now.isr.len() >= now.min_isr && !now.elr.is_empty() {
            say(format!(
                "I-18: ISR {:?} suffices, yet ELR {:?}",
                now.isr, now.elr
            ));
        }
    }
    broken
}
