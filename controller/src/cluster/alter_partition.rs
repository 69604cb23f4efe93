//! A leader's proposals of a new ISR: validated in one fixed order, then made by the change builder. Rules C-37, C-40, C-41.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, PartitionId};
use epoka_proto::metadata::{Assignment, Record, Recovery};

use super::commands::IsrProposal;
use super::work::Work;

impl Work<'_> {
    pub(super) fn alter_partitions(
        &mut self,
        sender: BrokerId,
        epoch: BrokerEpoch,
        proposals: &[IsrProposal],
    ) -> Result<Vec<Result<Assignment, ErrorCode>>, ErrorCode> {
        self.current(sender, epoch)?;
        let answers = proposals.iter().map(|p| self.alter_partition(sender, p));
        Ok(answers.collect())
    }

    fn alter_partition(
        &mut self,
        sender: BrokerId,
        proposal: &IsrProposal,
    ) -> Result<Assignment, ErrorCode> {
        let state = self.check_proposal(sender, proposal)?;
        let members: Vec<BrokerId> = proposal.isr.iter().map(|(r, _)| *r).collect();
        let recovery = if proposal.recovering {
            Recovery::Recovering
        } else {
            Recovery::Recovered
        };
        match self.change(proposal.partition, |c| c.isr(&members).recovery(recovery)) {
            // Nothing to change is a success: the leader must leave its pending state (H-39). The partition epoch moves all the
            // same, unlike Kafka's: a leader proposes what is committed in order to leave behind its earlier proposals that
            // went unanswered, which could otherwise still arrive and be carried out. Copies of this one are left behind as well,
            // so a partition epoch is raised so at most once.
            None => Ok(self.next_partition_epoch(proposal.partition, state)),
            // The change completed a reassignment that cost the sender its leadership: it stands, and is an error to it.
            Some(changed) if changed.assignment.leader != Some(sender) => {
                Err(ErrorCode::NewLeaderElected)
            }
            Some(changed) => Ok(changed.assignment),
        }
    }

    fn next_partition_epoch(&mut self, id: PartitionId, state: Assignment) -> Assignment {
        let assignment = Assignment {
            partition_epoch: state.partition_epoch.next(),
            ..state
        };
        self.write(Record::Partition {
            id,
            assignment: assignment.clone(),
        });
        assignment
    }

    /// The rows of C-40, in order: the first hit wins.
    fn check_proposal(
        &self,
        sender: BrokerId,
        proposal: &IsrProposal,
    ) -> Result<Assignment, ErrorCode> {
        let topic = self.image().topics.get(&proposal.partition.topic);
        let topic = topic.ok_or(ErrorCode::UnknownTopicId)?;
        let state = topic.partitions.get(&proposal.partition.partition);
        let state = state.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if proposal.leader_epoch > state.leader_epoch
            || proposal.partition_epoch > state.partition_epoch
        {
            return Err(ErrorCode::NotController); // we are the ones behind (H-38)
        }
        if proposal.leader_epoch < state.leader_epoch {
            return Err(ErrorCode::FencedLeaderEpoch);
        }
        if state.leader != Some(sender) {
            return Err(ErrorCode::InvalidRequest);
        }
        if proposal.partition_epoch < state.partition_epoch {
            return Err(ErrorCode::InvalidUpdateVersion);
        }
        let members = &proposal.isr;
        let repeated =
            |at: usize, r: BrokerId| members[..at].iter().any(|(earlier, _)| *earlier == r);
        let malformed = members
            .iter()
            .enumerate()
            .any(|(at, (r, _))| repeated(at, *r) || !state.replicas.contains(r));
        if malformed || !members.iter().any(|(r, _)| *r == sender) {
            return Err(ErrorCode::InvalidRequest);
        }
        if proposal.recovering && (members.len() > 1 || state.recovery == Recovery::Recovered) {
            return Err(ErrorCode::InvalidRequest);
        }
        let eligible = |(r, epoch): &(BrokerId, Option<BrokerEpoch>)| {
            let registration = self.image().brokers.get(r);
            registration.is_some_and(|b| b.is_active() && epoch.is_none_or(|e| e == b.epoch))
        };
        if !members.iter().all(eligible) {
            return Err(ErrorCode::IneligibleReplica); // H-15, H-41
        }
        Ok((**state).clone())
    }
}
