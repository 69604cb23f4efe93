//! The settings of the nodes, as variables of their containers. Kafka's name in capitals, `_` for `.`, after `EPOKA_`.

use crate::builder::Builder;
use crate::target::Node;

/// Where brokers listen for the clients on the host.
pub const HOST_PORT: u16 = 9092;
/// Where brokers listen for clients in other containers.
const CONTAINERS_PORT: u16 = 19092;
/// Where brokers listen for each other.
const GRPC_PORT: u16 = 19093;
/// Where controllers listen.
const CONTROLLER_PORT: u16 = 9093;

/// The names of a cluster's containers, which are their host names in its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The network's, and the beginning of all others.
    pub network: String,
}

impl Names {
    /// A container's name.
    pub fn of(&self, node: Node) -> String {
        format!("{}-{}", self.network, node.name())
    }

    /// Where clients in the same network reach a broker.
    pub fn address(&self, broker: Node) -> String {
        format!("{}:{CONTAINERS_PORT}", self.of(broker))
    }

    /// For each controller: its id and where it listens.
    fn voters(&self, plan: &Builder) -> String {
        let voter = |id| {
            let name = self.of(Node::Controller(id));
            format!("{id}@{name}:{CONTROLLER_PORT}")
        };
        let voters: Vec<_> = (1..=plan.controllers).map(voter).collect();
        voters.join(",")
    }

    fn controllers(&self, plan: &Builder) -> String {
        let controller = |id| format!("{}:{CONTROLLER_PORT}", self.of(Node::Controller(id)));
        let controllers: Vec<_> = (1..=plan.controllers).map(controller).collect();
        controllers.join(",")
    }

    /// The variables of a controller.
    pub fn controller(&self, plan: &Builder, id: i32) -> Vec<(String, String)> {
        // Safe to kill: with three brokers, an acknowledged write is on two of them.
        let min_isr = if plan.brokers >= 3 { 2 } else { 1 };
        let mut variables = vec![variable("min.insync.replicas", min_isr.to_string())];
        variables.extend(asked(plan));
        variables.extend([
            variable("node.id", id.to_string()),
            variable(
                "listeners",
                format!("CONTROLLER://0.0.0.0:{CONTROLLER_PORT}"),
            ),
            variable("controller.quorum.voters", self.voters(plan)),
            variable("topics", plan.topics().join(";")),
        ]);
        variables
    }

    /// The variables of a broker that clients on the host reach at this port.
    pub fn broker(&self, plan: &Builder, id: i32, host_port: u16) -> Vec<(String, String)> {
        let name = self.of(Node::Broker(id));
        let mut variables = asked(plan);
        variables.extend([
            variable("node.id", id.to_string()),
            variable(
                "listeners",
                format!("CONTAINERS://0.0.0.0:{CONTAINERS_PORT},HOST://0.0.0.0:{HOST_PORT}"),
            ),
            variable(
                "advertised.listeners",
                format!("CONTAINERS://{name}:{CONTAINERS_PORT},HOST://127.0.0.1:{host_port}"),
            ),
            variable("grpc.listener", format!("0.0.0.0:{GRPC_PORT}")),
            variable("grpc.advertised", format!("{name}:{GRPC_PORT}")),
            variable(
                "controller.quorum.bootstrap.servers",
                self.controllers(plan),
            ),
        ]);
        variables
    }
}

fn asked(plan: &Builder) -> Vec<(String, String)> {
    let settings = plan.settings.iter();
    settings
        .map(|(key, value)| variable(key, value.clone()))
        .collect()
}

fn variable(key: &str, value: String) -> (String, String) {
    let name = key.to_uppercase().replace('.', "_");
    let name = match name.starts_with("EPOKA_") {
        true => name,
        false => format!("EPOKA_{name}"),
    };
    (name, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(variables: Vec<(String, String)>) -> Vec<String> {
        variables
            .into_iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect()
    }

    #[test]
    fn nodes_are_told_who_they_are_and_where_the_others_are() {
        let network = "epoka-1f2e".to_owned();
        let names = Names { network };
        let plan = Builder::new().topic("orders", 3, 3).topic("audit", 1, 2);
        let plan = plan.set("replica.lag.time.max.ms", "500");
        assert_eq!(
            lines(names.controller(&plan, 1)),
            [
                "EPOKA_MIN_INSYNC_REPLICAS=2",
                "EPOKA_REPLICA_LAG_TIME_MAX_MS=500",
                "EPOKA_NODE_ID=1",
                "EPOKA_LISTENERS=CONTROLLER://0.0.0.0:9093",
                "EPOKA_CONTROLLER_QUORUM_VOTERS=1@epoka-1f2e-controller-1:9093",
                "EPOKA_TOPICS=orders:3:3;audit:1:2",
            ]
        );
        assert_eq!(
            lines(names.broker(&plan, 2, 41002)),
            [
                "EPOKA_REPLICA_LAG_TIME_MAX_MS=500",
                "EPOKA_NODE_ID=2",
                "EPOKA_LISTENERS=CONTAINERS://0.0.0.0:19092,HOST://0.0.0.0:9092",
                "EPOKA_ADVERTISED_LISTENERS=CONTAINERS://epoka-1f2e-broker-2:19092,HOST://127.0.0.1:41002",
                "EPOKA_GRPC_LISTENER=0.0.0.0:19093",
                "EPOKA_GRPC_ADVERTISED=epoka-1f2e-broker-2:19093",
                "EPOKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS=epoka-1f2e-controller-1:9093",
            ]
        );
    }
}
