//! The cluster that is wanted.

use std::path::PathBuf;
use std::time::Duration;

use epoka_client::NewTopic;

use crate::cluster::Cluster;
use crate::error::{Error, Result};

/// How long is waited for anything, unless [`Builder::patience`] says otherwise. Machines that run many tests are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says which cluster to start.
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start`"]
pub struct Builder {
    pub(crate) brokers: i32,
    pub(crate) controllers: i32,
    topics: Vec<NewTopic>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) patience: Duration,
    pub(crate) binary: Option<PathBuf>,
    #[cfg(feature = "containers")]
    pub(crate) containers: bool,
    #[cfg(feature = "containers")]
    pub(crate) image: Option<(String, String)>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            brokers: 3,
            controllers: 1,
            topics: Vec::new(),
            settings: Vec::new(),
            patience: PATIENCE,
            binary: None,
            #[cfg(feature = "containers")]
            containers: false,
            #[cfg(feature = "containers")]
            image: None,
        }
    }

    /// How many brokers, with the ids from 1: 3 unless this is called.
    pub fn brokers(mut self, count: i32) -> Self {
        self.brokers = count;
        self
    }

    /// How many controllers, with the ids from 1: 1, 3 or 5; 1 unless this is called.
    pub fn controllers(mut self, count: i32) -> Self {
        self.controllers = count;
        self
    }

    /// A topic that is there, with leaders, when the cluster is ready. Without any there is `orders` with 3 partitions, each
    /// on up to 3 brokers.
    pub fn topic(self, name: &str, partitions: i32, replication_factor: i32) -> Self {
        self.topic_with(NewTopic::new(name, partitions, replication_factor))
    }

    /// A topic with configuration values. Left open, it has 1 partition on up to 3 brokers.
    ///
    /// ```
    /// # use epoka_testing::{Cluster, NewTopic};
    /// let events = NewTopic::new("events", 1, 3).config("cleanup.policy", "compact");
    /// let cluster = Cluster::builder().topic_with(events);
    /// ```
    pub fn topic_with(mut self, topic: NewTopic) -> Self {
        self.topics.push(topic);
        self
    }

    /// A setting, by Kafka's name, for every broker and controller that knows it. With three brokers or more,
    /// `min.insync.replicas` is 2 unless it is set.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The program to start, instead of the one that EPOKA_BIN names, the one in this test's target directory, or the first
    /// in PATH.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// How long is waited for the cluster to be ready, and then for whatever the test awaits: 60 s unless this is called.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs the nodes as containers of the local Docker engine instead of as processes. See [the crate's
    /// documentation](crate#containers).
    #[cfg(feature = "containers")]
    pub fn in_containers(mut self) -> Self {
        self.containers = true;
        self
    }

    /// The image of the containers, instead of the one that EPOKA_IMAGE names (`name:tag`), or `epoka:latest`.
    #[cfg(feature = "containers")]
    pub fn image(mut self, name: &str, tag: &str) -> Self {
        self.image = Some((name.to_owned(), tag.to_owned()));
        self
    }

    /// Starts the cluster and waits until every broker serves and every topic has leaders that take writes.
    ///
    /// # Errors
    /// There is no program, or no Docker engine and image; a setting is wrong; the cluster does not become ready.
    pub async fn start(self) -> Result<Cluster> {
        if self.brokers < 1 {
            let brokers = self.brokers;
            return Err(Error::Shape(format!(
                "a cluster has at least 1 broker, not {brokers}"
            )));
        }
        if ![1, 3, 5].contains(&self.controllers) {
            let controllers = self.controllers;
            return Err(Error::Shape(format!(
                "a cluster has 1, 3 or 5 controllers, not {controllers}"
            )));
        }
        Cluster::launch(&self).await
    }

    /// The topics as the program takes them: `orders:3:3:min.insync.replicas=2,cleanup.policy=compact`.
    pub(crate) fn topics(&self) -> Vec<String> {
        let copies = self.brokers.min(3);
        let default = [NewTopic::new("orders", 3, copies)];
        let topics = if self.topics.is_empty() {
            &default[..]
        } else {
            &self.topics
        };
        let spec = |topic: &NewTopic| {
            let partitions = topic.partitions.unwrap_or(1);
            let copies = topic.replication_factor.unwrap_or(copies);
            let mut spec = format!("{}:{partitions}:{copies}", topic.name);
            let configs: Vec<_> = topic
                .configs
                .iter()
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            if !configs.is_empty() {
                spec = format!("{spec}:{}", configs.join(","));
            }
            spec
        };
        topics.iter().map(spec).collect()
    }

    /// Their names.
    #[cfg(feature = "containers")]
    pub(crate) fn topic_names(&self) -> Vec<String> {
        let name = |spec: String| spec.split(':').next().unwrap_or_default().to_owned();
        self.topics().into_iter().map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_written_as_the_program_takes_them() {
        let events = NewTopic::new("events", 1, 2)
            .config("min.insync.replicas", "2")
            .config("cleanup.policy", "compact,delete");
        let open = NewTopic {
            partitions: None,
            replication_factor: None,
            ..NewTopic::new("open", 1, 1)
        };
        let builder = Builder::new().topic("orders", 3, 3).topic_with(events);
        assert_eq!(
            builder.topic_with(open).topics(),
            [
                "orders:3:3",
                "events:1:2:cleanup.policy=compact,delete,min.insync.replicas=2",
                "open:1:3",
            ]
        );
        assert_eq!(Builder::new().brokers(2).topics(), ["orders:3:2"]);
    }

    #[tokio::test]
    async fn a_cluster_that_cannot_be_is_refused_at_once() {
        let even = Builder::new().controllers(2).start().await;
        assert!(even.is_err_and(|e| e.to_string().contains("1, 3 or 5 controllers, not 2")));
        let none = Builder::new().brokers(0).start().await;
        assert!(none.is_err_and(|e| e.to_string().contains("at least 1 broker")));
    }
}
