//! The cluster a test asks for.

use std::collections::BTreeMap;

use epoka_client::NewTopic;

/// How many nodes, their properties, and the topics there are when the test begins.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(super) brokers: i32,
    pub(super) controllers: i32,
    pub(super) broker_properties: BTreeMap<String, String>,
    pub(super) controller_properties: BTreeMap<String, String>,
    pub(super) topics: Vec<NewTopic>,
}

impl Default for Spec {
    /// One controller and three brokers, no topics.
    fn default() -> Self {
        Self {
            brokers: 3,
            controllers: 1,
            broker_properties: BTreeMap::new(),
            controller_properties: BTreeMap::new(),
            topics: Vec::new(),
        }
    }
}

impl Spec {
    /// This many controllers.
    #[must_use]
    pub fn controllers(mut self, count: i32) -> Self {
        self.controllers = count;
        self
    }

    /// A property of every broker.
    #[must_use]
    pub fn broker_property(mut self, name: &str, value: &str) -> Self {
        self.broker_properties.insert(name.into(), value.into());
        self
    }

    /// A property of every controller.
    #[must_use]
    pub fn controller_property(mut self, name: &str, value: &str) -> Self {
        self.controller_properties.insert(name.into(), value.into());
        self
    }

    /// A silent broker is fenced after this long.
    #[must_use]
    pub fn session_timeout_ms(self, ms: u32) -> Self {
        self.controller_property("broker.session.timeout.ms", &ms.to_string())
            .broker_property("broker.heartbeat.interval.ms", &(ms / 4).max(1).to_string())
    }

    /// A topic with three replicas, two of which must be in sync, and these configuration values.
    #[must_use]
    pub fn topic(mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Self {
        let topic =
            NewTopic::new(name, partitions, self.brokers.min(3)).config("min.insync.replicas", "2");
        let topic = configs
            .iter()
            .fold(topic, |topic, (key, value)| topic.config(*key, *value));
        self.topics.push(topic);
        self
    }
}
