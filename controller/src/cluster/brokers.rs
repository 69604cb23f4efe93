//! Lives of brokers: registration, fencing, unfencing, shutdown, removal, and what each means for ISRs and leaderships.
//! Rules C-10 to C-18. When a broker is to be fenced is decided elsewhere; here it only happens.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId};
use epoka_proto::metadata::{Assignment, BrokerRegistration, Record};

use super::commands::{Fault, Refusal, Registration, Withdrawal};
use super::restore::is_vacant;
use super::work::Work;

impl Work<'_> {
    /// C-10, C-12, C-13.
    pub(super) fn register(&mut self, new: &Registration) -> Result<BrokerEpoch, Refusal> {
        if let Some(theirs) = &new.cluster_id
            && *theirs != self.image().cluster_id
        {
            let message = self.foreign(new.broker, theirs);
            return Err(Refusal::new(ErrorCode::InconsistentClusterId, message));
        }
        let old = self.image().brokers.get(&new.broker).cloned();
        let same_life = old.filter(|o| o.incarnation == new.incarnation);
        let (epoch, fenced, shutting_down) = match same_life {
            // The answer was lost, or addresses changed: still the same uptime (H-44).
            Some(old) => (old.epoch, old.fenced, old.shutting_down),
            None => {
                self.bury(new.broker, new.previous_epoch);
                (BrokerEpoch(self.offset), true, false)
            }
        };
        self.write_broker(BrokerRegistration {
            id: new.broker,
            epoch,
            incarnation: new.incarnation,
            listeners: new.listeners.clone(),
            grpc_address: new.grpc_address.clone(),
            log_dirs: new.log_dirs.clone(),
            rack: new.rack.clone(),
            fenced,
            shutting_down,
        });
        Ok(epoch)
    }

    /// What to tell a broker of another cluster. Where this one has no topics, its directory may be the one that was lost.
    fn foreign(&self, broker: BrokerId, theirs: &str) -> String {
        let image = self.image();
        let restore = "EPOKA_RESTORE_BROKERS set to the number of brokers that hold data, and then the brokers";
        if is_vacant(image) {
            return format!(
                "broker {broker} belongs to cluster {theirs}, of which this controller has no memory: it is new, without \
                 topics and brokers. If the controller's directory was lost, put it back; or have the metadata rebuilt from \
                 the brokers: start the controller once with {restore}"
            );
        }
        let (id, brokers, topics) = (&image.cluster_id, image.brokers.len(), image.topics.len());
        let mut message = format!(
            "broker {broker} belongs to cluster {theirs}, and this is cluster {id} with {brokers} broker(s) and {topics} \
             topic(s); check controller.quorum.bootstrap.servers"
        );
        if topics == 0 {
            message.push_str(&format!(
                ". If the controller's directory was lost, put it back; or start the controller on an empty directory with \
                 {restore}"
            ));
        }
        message
    }

    /// Ends the previous life of a broker before the next one is admitted. A lease may have run out without being acted on,
    /// and the new registration is born fenced, so nobody would fence it later (H-82). A life that did not end cleanly may
    /// have lost acknowledged records: it is no longer eligible either. What could not be served in that life may be in order
    /// again; if not, the next life says so before it is unfenced.
    fn bury(&mut self, broker: BrokerId, previous_epoch: Option<BrokerEpoch>) {
        self.leaving = Some(broker);
        for id in self.partitions_where(|a| a.offline.contains(&broker)) {
            self.change(id, |c| c.online(broker));
        }
        self.end_life(broker, previous_epoch);
        self.leaving = None;
    }

    fn end_life(&mut self, broker: BrokerId, previous_epoch: Option<BrokerEpoch>) {
        let Some(old) = self.image().brokers.get(&broker) else {
            return;
        };
        let clean = previous_epoch == Some(old.epoch);
        if clean {
            self.leave_isrs(broker);
        } else {
            for id in self.partitions_where(|a| is_held_by(a, broker)) {
                self.change(id, |c| c.without(broker).unclean_restart(broker));
            }
        }
    }

    /// Takes a broker out of every ISR; leaderships follow (C-18).
    fn leave_isrs(&mut self, broker: BrokerId) {
        for id in self.partitions_where(|a| a.isr.contains(&broker)) {
            self.change(id, |c| c.without(broker));
        }
    }

    /// The registration of a broker in this very life, else STALE_BROKER_EPOCH (C-11).
    pub(super) fn current(
        &self,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<&BrokerRegistration, ErrorCode> {
        let known = self.image().brokers.get(&broker);
        known
            .filter(|b| b.epoch == epoch)
            .map(|b| b.as_ref())
            .ok_or(ErrorCode::StaleBrokerEpoch)
    }

    pub(super) fn fence(&mut self, broker: BrokerId, epoch: BrokerEpoch) -> Result<(), ErrorCode> {
        let mut registration = self.current(broker, epoch)?.clone();
        if registration.fenced {
            return Ok(());
        }
        self.leaving = Some(broker);
        self.leave_isrs(broker);
        self.leaving = None;
        registration.fenced = true;
        self.write_broker(registration);
        Ok(())
    }

    pub(super) fn unfence(
        &mut self,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<(), ErrorCode> {
        let mut registration = self.current(broker, epoch)?.clone();
        if !registration.fenced {
            return Ok(());
        }
        registration.fenced = false;
        self.write_broker(registration);
        self.retry_elections();
        Ok(())
    }

    pub(super) fn begin_shutdown(
        &mut self,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<(), ErrorCode> {
        let mut registration = self.current(broker, epoch)?.clone();
        registration.shutting_down = true;
        self.write_broker(registration);
        self.leave_isrs(broker);
        Ok(())
    }

    /// Replicas that failed while their broker goes on: as after an unclean restart, but only there. A replica that nobody else
    /// could stand in for stays eligible: it is not elected as it is, but its repair may bring the partition back.
    pub(super) fn withdraw(
        &mut self,
        broker: BrokerId,
        epoch: BrokerEpoch,
        withdrawals: &[Withdrawal],
    ) -> Result<(), ErrorCode> {
        self.current(broker, epoch)?;
        let mut result = Ok(());
        self.leaving = Some(broker);
        for w in withdrawals {
            let assignment = self.image().assignment(w.partition);
            let Some(now) = assignment.filter(|a| a.replicas.contains(&broker)) else {
                continue;
            };
            if now.partition_epoch != w.partition_epoch {
                result = Err(ErrorCode::InvalidUpdateVersion);
                continue;
            }
            let mut holders = now.isr.iter().chain(&now.elr);
            let replaceable = holders.any(|r| *r != broker && !now.offline.contains(r));
            self.change(w.partition, |change| {
                let change = match w.fault {
                    Fault::Offline => change.offline(broker),
                    Fault::Lost => change.lost(broker),
                };
                if replaceable {
                    change.unclean_restart(broker)
                } else {
                    change
                }
            });
        }
        self.leaving = None;
        result
    }

    pub(super) fn unregister(&mut self, broker: BrokerId) -> Result<(), ErrorCode> {
        if !self.image().brokers.contains_key(&broker) {
            return Err(ErrorCode::BrokerIdNotRegistered);
        }
        self.bury(broker, None);
        self.write(Record::RemoveBroker { id: broker });
        Ok(())
    }
}

/// Whether a broker's replica counts as holding everything committed.
fn is_held_by(assignment: &Assignment, broker: BrokerId) -> bool {
    assignment.isr.contains(&broker) || assignment.elr.contains(&broker)
}
