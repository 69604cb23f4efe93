//! When a cluster of containers is ready: as `epoka up` decides it for processes, seen from this machine.

use std::time::Duration;

use epoka_client::{Client, ClientConfig, Metadata};
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::Containers;
use crate::action::State;
use crate::builder::Builder;
use crate::error::{Error, Result};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

impl Containers {
    /// Waits until every broker answers, and sees leaders with their minimum ISR in every topic.
    ///
    /// # Errors
    /// A container ends; the patience does.
    pub(super) async fn until_ready(&self, plan: &Builder) -> Result<()> {
        let begun = Instant::now();
        let client = Client::new(self.brokers(), ClientConfig::default());
        let topics = plan.topic_names();
        loop {
            let brokers = self.brokers();
            let looks = brokers.iter().map(|at| client.describe(at.clone()));
            let looks = join_all(looks).await;
            let missing = looks.into_iter().zip(&brokers).find_map(|(look, at)| {
                let missing = look.map(|metadata| missing(&metadata, &brokers, &topics));
                match missing {
                    Ok(missing) => missing,
                    Err(error) => Some(format!("the broker at {at} does not answer: {error}")),
                }
            });
            let Some(missing) = missing else {
                return Ok(());
            };
            let down = self
                .states()
                .await?
                .into_iter()
                .find(|(_, s)| *s == State::Down);
            let why = match down {
                Some((node, _)) => {
                    let why = self.last_words(node).await;
                    format!("{node} ended while starting: {why}")
                }
                None if begun.elapsed() < plan.patience => {
                    sleep(PAUSE).await;
                    continue;
                }
                None => format!(
                    "waited {} ms; last seen: {missing}",
                    begun.elapsed().as_millis()
                ),
            };
            let directory = None;
            return Err(Error::NotReady { why, directory });
        }
    }
}

/// What a broker does not see yet.
fn missing(metadata: &Metadata, brokers: &[String], topics: &[String]) -> Option<String> {
    let serving = metadata.brokers.values().filter(|b| !b.fenced).count();
    if serving < brokers.len() {
        return Some(format!("{serving} of {} brokers serve", brokers.len()));
    }
    topics.iter().find_map(|name| {
        let Some(topic) = metadata.topics.get(name) else {
            return Some(format!("topic {name} is not known everywhere"));
        };
        let waiting = topic.partitions.iter().find(|(_, p)| !p.is_writable());
        waiting.map(|(number, p)| {
            let (isr, least) = (p.isr.len(), p.min_isr);
            format!(
                "{name}-{number} has {isr} of {least} in-sync replicas and leader {:?}",
                p.leader
            )
        })
    })
}
