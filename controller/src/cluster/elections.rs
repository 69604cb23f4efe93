//! Elections that nothing but themselves is the reason for: an operator's, and the periodic ones. How a leader is chosen is
//! the change builder's business. Rules C-31, C-32, C-35.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{PartitionId, TopicPartition};
use epoka_proto::metadata::Assignment;

use super::change::Kind;
use super::commands::{ElectionKind, ElectionReply, Refusal};
use super::work::Work;

impl Work<'_> {
    pub(super) fn elect_leaders(
        &mut self,
        kind: ElectionKind,
        partitions: Option<&[TopicPartition]>,
    ) -> Vec<ElectionReply> {
        let asked: Vec<TopicPartition> = match partitions {
            Some(named) => named.to_vec(),
            None => {
                let needed = self.image().partitions();
                let needed = needed.filter(|(_, _, a)| is_needed(kind, a));
                needed
                    .map(|(id, topic, _)| TopicPartition::new(topic.name.clone(), id.partition))
                    .collect()
            }
        };
        asked
            .into_iter()
            .map(|partition| ElectionReply {
                result: self.elect_leader(kind, &partition),
                partition,
            })
            .collect()
    }

    fn elect_leader(
        &mut self,
        kind: ElectionKind,
        partition: &TopicPartition,
    ) -> Result<(), Refusal> {
        let unknown = || {
            let message = format!("there is no partition {partition}");
            Refusal::new(ErrorCode::UnknownTopicOrPartition, message)
        };
        let topic = self.image().topic(&partition.topic).ok_or_else(unknown)?;
        let assignment = topic.partitions.get(&partition.partition);
        let assignment = assignment.ok_or_else(unknown)?;
        if !is_needed(kind, assignment) {
            return Err(Refusal::new(
                ErrorCode::ElectionNotNeeded,
                match kind {
                    ElectionKind::Preferred => format!("{partition} has its preferred leader"),
                    ElectionKind::Unclean => format!("{partition} has a leader"),
                },
            ));
        }
        let id = PartitionId {
            topic: topic.id,
            partition: partition.partition,
        };
        let (kind, error, message) = match kind {
            ElectionKind::Preferred => (
                Kind::Preferred,
                ErrorCode::PreferredLeaderNotAvailable,
                format!("the preferred leader of {partition} is not live and in sync"),
            ),
            ElectionKind::Unclean => (
                Kind::Unclean,
                ErrorCode::EligibleLeadersNotAvailable,
                format!("no replica of {partition} is live and able to serve"),
            ),
        };
        match self.change(id, |c| c.kind(kind)) {
            Some(_) => Ok(()),
            None => Err(Refusal::new(error, message)),
        }
    }

    /// Moves leaderships back to preferred leaders that can take them, at most so many at once.
    pub(super) fn balance_leaders(&mut self, at_most: usize) {
        let movable = |a: &Assignment| {
            let preferred = a.replicas.first();
            is_needed(ElectionKind::Preferred, a)
                && preferred.is_some_and(|r| a.isr.contains(r) && self.acceptable(*r))
        };
        let mut partitions = self.partitions_where(movable);
        partitions.truncate(at_most);
        for id in partitions {
            self.change(id, |c| c.kind(Kind::Preferred));
        }
    }

    /// Tries to elect a leader wherever there is none.
    pub(super) fn retry_elections(&mut self) {
        for id in self.partitions_where(|a| a.leader.is_none()) {
            self.change(id, |c| c);
        }
    }
}

fn is_needed(kind: ElectionKind, assignment: &Assignment) -> bool {
    match kind {
        ElectionKind::Preferred => assignment.leader.as_ref() != assignment.replicas.first(),
        ElectionKind::Unclean => assignment.leader.is_none(),
    }
}
