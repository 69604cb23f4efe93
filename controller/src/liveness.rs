//! Who is alive: soft state of the active controller, lost with it and never replicated. When each broker was last heard,
//! what it then knew, whether its heartbeat stream is open; and what a heartbeat asks for (C-14, C-16). Time is passed in,
//! as milliseconds of a monotonic clock. Decides nothing about partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use epoka_proto::ids::{BrokerEpoch, BrokerId, Millis};
use epoka_proto::metadata::{BrokerRegistration, Image};

/// Names one heartbeat stream among all this controller ever served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

/// What a broker says in a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    /// The last metadata offset it has applied, if any.
    pub metadata_offset: Option<i64>,
    /// It is not ready to serve.
    pub want_fence: bool,
    /// It wants to stop.
    pub want_shutdown: bool,
}

/// What is to be done about a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing.
    Stay,
    /// Let it lead and be in ISRs.
    Unfence,
    /// Take that away.
    Fence,
    /// Move its leaderships elsewhere.
    BeginShutdown,
    /// It may stop: fence it, if it is not, and tell it.
    ShutDownNow,
}

/// A session that ran out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired {
    /// Whose.
    pub broker: BrokerId,
    /// Of which life.
    pub epoch: BrokerEpoch,
    /// For how long nothing was heard.
    pub silent: Duration,
}

/// Last-heard times and open streams.
#[derive(Debug)]
pub struct Liveness {
    session_timeout: Millis,
    sessions: BTreeMap<BrokerId, Session>,
}

#[derive(Debug)]
struct Session {
    epoch: BrokerEpoch,
    last_contact: Millis,
    metadata_offset: Option<i64>,
    stream: Option<StreamId>,
    /// Where the metadata stood when its shutdown began.
    shutdown_offset: Option<i64>,
}

impl Liveness {
    /// Nobody heard yet. A broker not heard for `session_timeout` milliseconds has lost its session.
    pub fn new(session_timeout: Millis) -> Self {
        Self {
            session_timeout,
            sessions: BTreeMap::new(),
        }
    }

    /// This controller has just become active, or was itself not running for a while: it cannot judge the past, so every
    /// session begins anew (C-14).
    pub fn start_over(&mut self, image: &Image, now: Millis) {
        self.sessions
            .retain(|id, s| image.brokers.get(id).is_some_and(|b| b.epoch == s.epoch));
        for broker in image.brokers.values() {
            self.session(broker.id, broker.epoch, now).last_contact = now;
        }
    }

    /// A broker was heard in its current life: its lease is renewed.
    pub fn heard(&mut self, broker: BrokerId, epoch: BrokerEpoch, beat: &Beat, now: Millis) {
        let session = self.session(broker, epoch, now);
        session.last_contact = now;
        session.metadata_offset = session.metadata_offset.max(beat.metadata_offset);
    }

    /// A heartbeat stream of a broker's current life has begun; it takes the place of an older one.
    pub fn stream_opened(
        &mut self,
        broker: BrokerId,
        epoch: BrokerEpoch,
        stream: StreamId,
        now: Millis,
    ) {
        let session = self.session(broker, epoch, now);
        session.stream = Some(stream);
        session.last_contact = now;
    }

    /// A heartbeat stream broke. Says whether it was the broker's only one.
    pub fn stream_closed(&mut self, broker: BrokerId, stream: StreamId) -> bool {
        match self.sessions.get_mut(&broker) {
            Some(session) if session.stream == Some(stream) => {
                session.stream = None;
                true
            }
            _ => false,
        }
    }

    /// Whether a heartbeat stream of this very life is open.
    pub fn has_stream(&self, broker: BrokerId, epoch: BrokerEpoch) -> bool {
        let session = self.sessions.get(&broker);
        session.is_some_and(|s| s.epoch == epoch && s.stream.is_some())
    }

    /// Whether a broker's session is live, so that no other process may take its id (C-10): its stream is open and it was
    /// heard recently. A process that was killed has no stream, and its successor need not wait.
    pub fn is_live(&self, broker: BrokerId, now: Millis) -> bool {
        let session = self.sessions.get(&broker);
        session.is_some_and(|s| s.stream.is_some() && !self.is_over(s, now))
    }

    /// The unfenced broker whose session ran out first, if any has (C-14).
    pub fn expired(&self, image: &Image, now: Millis) -> Option<Expired> {
        let unfenced = image.brokers.values().filter(|b| !b.fenced);
        let sessions = unfenced.filter_map(|b| {
            let session = self.sessions.get(&b.id).filter(|s| s.epoch == b.epoch)?;
            Some((session.last_contact, b.id, b.epoch, session))
        });
        sessions
            .filter(|(.., session)| self.is_over(session, now))
            .min_by_key(|(last_contact, id, ..)| (*last_contact, *id))
            .map(|(last_contact, broker, epoch, _)| Expired {
                broker,
                epoch,
                silent: Duration::from_millis((now - last_contact).unsigned_abs()),
            })
    }

    /// What this heartbeat asks for, by C-16. `newest` is the offset of the newest metadata change.
    pub fn next(
        &mut self,
        image: &Image,
        registration: &BrokerRegistration,
        beat: &Beat,
        newest: Option<i64>,
    ) -> Next {
        let id = registration.id;
        let caught_up = is_caught_up(registration, beat);
        let leads = || image.partitions().any(|(_, _, a)| a.leader == Some(id));
        match (registration.fenced, registration.shutting_down) {
            (true, _) if beat.want_shutdown => Next::ShutDownNow,
            (true, _) if !beat.want_fence && caught_up => Next::Unfence,
            (true, _) => Next::Stay,
            (false, false) if beat.want_fence && beat.want_shutdown => Next::ShutDownNow,
            (false, false) if beat.want_fence => Next::Fence,
            (false, false) if beat.want_shutdown && leads() => Next::BeginShutdown,
            (false, false) if beat.want_shutdown => Next::ShutDownNow,
            (false, false) => Next::Stay,
            (false, true) if leads() => Next::Stay,
            (false, true) if self.others_know_of_shutdown(image, id, newest) => Next::ShutDownNow,
            (false, true) => Next::Stay,
        }
    }

    /// Whether every active broker has applied the metadata in which this one leads nothing any more.
    fn others_know_of_shutdown(
        &mut self,
        image: &Image,
        broker: BrokerId,
        newest: Option<i64>,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(&broker) else {
            return false;
        };
        if session.shutdown_offset.is_none() {
            session.shutdown_offset = newest;
        }
        let needed = session.shutdown_offset;
        let mut active = image.brokers.values().filter(|b| b.is_active());
        active.all(|b| {
            let known = self.sessions.get(&b.id).filter(|s| s.epoch == b.epoch);
            known.and_then(|s| s.metadata_offset) >= needed
        })
    }

    fn is_over(&self, session: &Session, now: Millis) -> bool {
        now > session.last_contact + self.session_timeout
    }

    /// The session of a broker's current life; an older life's is forgotten.
    fn session(&mut self, broker: BrokerId, epoch: BrokerEpoch, now: Millis) -> &mut Session {
        let fresh = || Session {
            epoch,
            last_contact: now,
            metadata_offset: None,
            stream: None,
            shutdown_offset: None,
        };
        let session = self.sessions.entry(broker).or_insert_with(fresh);
        if session.epoch != epoch {
            *session = fresh();
        }
        session
    }
}

/// Whether a broker has applied its own registration. Not the end of the metadata log, which moves on (KAFKA-13959).
pub fn is_caught_up(registration: &BrokerRegistration, beat: &Beat) -> bool {
    beat.metadata_offset >= Some(registration.epoch.0)
}

#[cfg(test)]
mod tests;
